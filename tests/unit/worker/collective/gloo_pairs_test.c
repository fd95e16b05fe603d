/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of both kinds beside each other, and what becomes of shared memory when
 * a rank cannot have it, breaks its rules or is killed. */
#include "core/base/time.h"
#include "core/net/shm/buffer.h"
#include "tests/lib/gloo_fixture.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char shared[] = "over shared memory";

static uint64_t bits_over_tcp(struct gloo_fixture fixture) {
    fixture.shm = false;
    fixture.prepare = NULL;
    for (uint32_t i = 0; i < fixture.size; i++)
        fixture.transports[i] = "";
    return gloo_fixture_run_all(fixture);
}

TEST(both_kinds_of_pair_give_the_same_bits) {
    struct gloo_fixture fixture = {
        .ops = gloo_fixture_load(), .shm = true, .timeout = 20};
    for (fixture.size = 2; fixture.size <= 4; fixture.size++)
        for (int algorithm = 0; algorithm < 2; algorithm++) {
            fixture.algorithm =
                algorithm ? COLLECTIVE_HALVING_DOUBLING : COLLECTIVE_RING;
            for (uint32_t i = 0; i < fixture.size; i++)
                fixture.transports[i] = shared;
            assert_true(gloo_fixture_run_all(fixture) ==
                        bits_over_tcp(fixture));
        }
}

/* Rank 1 gets no memory that can be shared. */
static void limit(uint32_t rank, struct collective_settings *settings) {
    struct rlimit files = {4096, 4096};
    (void)settings;
    if (rank != 1)
        return;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &files);
}

/* It calls rank 0, and rank 2 calls it, with memory of its own. */
TEST(a_rank_that_cannot_share_memory_uses_tcp_and_logs_why) {
    struct gloo_fixture fixture = {
        .ops = gloo_fixture_load(),
        .shm = true,
        .timeout = 20,
        .prepare = limit,
        .transports = {
            "over shared memory with 1 of 2 ranks",
            "over TCP with rank 0, though on this host: no shared memory: "
            "File too large",
            shared}};
    for (fixture.size = 3; fixture.size >= 2; fixture.size--) {
        uint64_t bits = gloo_fixture_run_all(fixture);
        assert_true(bits == bits_over_tcp(fixture));
        fixture.transports[0] = "";
    }
}

static void refuse(uint32_t rank, struct collective_settings *settings) {
    settings->shm = rank != 1;
}

/* There is room enough, but not for whatever others show. */
static void limit_space(uint32_t rank, struct collective_settings *settings) {
    struct rlimit space = {(rlim_t)1 << 47, (rlim_t)1 << 47};
    (void)settings;
    if (rank == 1)
        setrlimit(RLIMIT_AS, &space);
}

TEST(shared_memory_can_be_disabled) {
    struct gloo_fixture fixture = {
        .ops = gloo_fixture_load(),
        .size = 3,
        .timeout = 20,
        .prepare = refuse,
        .transports = {"over shared memory with 1 of 2 ranks", "",
                       "over shared memory with 1 of 2 ranks"}};
    assert_true(gloo_fixture_run_all(fixture) == bits_over_tcp(fixture));
    fixture.prepare = limit_space;
    fixture.shm = true;
    assert_true(gloo_fixture_run_all(fixture) == bits_over_tcp(fixture));
}

/* Everything that this process shares, from the rings' heads on; false: it
 * shares nothing. */
static bool write_over_shared_memory(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    bool shares = false;
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (strstr(line, "memfd:capstan") &&
            sscanf(line, "%lx-%lx", &from, &to) == 2) {
            memset((char *)from + 64, 0x5a, to - from - 64);
            shares = true;
        }
    }
    fclose(maps);
    return shares;
}

/* Rank 1 breaks all rules, and goes when all others have ended. */
static void run_with_misbehaving_rank(struct rendezvous_fake *rendezvous,
                                      uint32_t rank, const void *context) {
    static float data[300000];
    const struct gloo_fixture *fixture = context;
    struct collective *group = gloo_fixture_connect(rendezvous, rank, fixture);
    struct failure why = {0};
    enum status status = fixture->ops->all_reduce(group, data, 300000, &why);
    rendezvous_fake_arrive(rendezvous);
    rendezvous_fake_await_arrivals(rendezvous, fixture->size);
    if (rank == 1) {
        bool wrote = write_over_shared_memory();
        rendezvous_fake_await_arrivals(rendezvous, 2 * fixture->size - 1);
        _exit(!wrote);
    }
    while (!status)
        status = fixture->ops->all_reduce(group, data, 300000, &why);
    rendezvous_fake_arrive(rendezvous);
    fixture->ops->close(&group);
    gloo_fixture_end(rendezvous, rank, status, why.text);
}

/* By who reads what it writes at once, else as one that reads nothing. */
TEST(a_rank_that_misuses_shared_memory_is_named) {
    for (uint32_t size = 2; size <= 3; size++) {
        struct gloo_fixture fixture = {.ops = gloo_fixture_load(),
                                       .size = size,
                                       .shm = true,
                                       .timeout = 2};
        struct rendezvous_fake *rendezvous = rendezvous_fake_open();
        int64_t begun = time_now();
        for (uint32_t i = 0; i < size; i++)
            rendezvous_fake_start(rendezvous, i, run_with_misbehaving_rank,
                                  &fixture);
        gloo_fixture_expect_failed_rank(rendezvous, size, 1, "");
        assert_int_equal(rendezvous_fake_await_exit(rendezvous, 1), 0);
        assert_true(time_now() - begun < 20 * TIME_S);
        rendezvous_fake_close(&rendezvous);
    }
}

/* Is there a line with TEXT in this process's map? */
static bool has_mapped(const char *text) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    bool found = false;
    while (fgets(line, sizeof line, maps))
        found |= strstr(line, text) != NULL;
    fclose(maps);
    return found;
}

enum { FLOATS = 150001, ROUNDS = 40 };

/* Of each round of a trainer: gradients are added up, each rank makes weights
 * of its piece, and all gather them. */
static void train(struct rendezvous_fake *rendezvous, uint32_t rank,
                  const struct gloo_fixture *fixture, struct collective *group,
                  float *gradients, float *weights) {
    size_t first, own = collective_piece(FLOATS, rank, fixture->size, &first);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < FLOATS; i++)
            gradients[i] = gloo_fixture_value(rank, i + round);
        gloo_fixture_expect_call(
            rendezvous, rank,
            fixture->ops->reduce_scatter(group, gradients, FLOATS, &failure),
            &failure);
        for (size_t i = first; i < first + own; i++)
            weights[i] = weights[i] * 0.5f + gradients[i];
        gloo_fixture_expect_call(
            rendezvous, rank,
            fixture->ops->all_gather(group, weights, FLOATS, &failure),
            &failure);
        gloo_fixture_record_bits(&rendezvous->ends[rank], weights, FLOATS);
        gloo_fixture_expect_call(
            rendezvous, rank,
            fixture->ops->all_reduce(group, gradients, FLOATS / 2, &failure),
            &failure);
    }
}

static void train_in_buffers(struct rendezvous_fake *rendezvous, uint32_t rank,
                             const void *context) {
    const struct gloo_fixture *fixture = context;
    struct collective *group = gloo_fixture_connect(rendezvous, rank, fixture);
    struct buffer *gradients = buffer_open_shared(FLOATS * sizeof(float));
    struct buffer *weights = buffer_open_shared(FLOATS * sizeof(float));
    if (fixture->shares_memory) {
        fixture->ops->register_buffer(group, gradients);
        fixture->ops->register_buffer(group, weights);
    }
    train(rendezvous, rank, fixture, group, buffer_data(gradients),
          buffer_data(weights));
    bool reads = has_mapped(" r--s ");
    fixture->ops->close(&group);
    buffer_release(&gradients);
    buffer_release(&weights);
    if (reads != (fixture->shares_memory && fixture->shm))
        gloo_fixture_end(rendezvous, rank, STATUS_FAILED,
                         reads ? "it maps what is not shown"
                               : "it maps nothing");
    gloo_fixture_end(rendezvous, rank, STATUS_OK, "");
}

TEST(shared_buffers_are_read_in_place_with_the_same_bits) {
    struct gloo_fixture fixture = {.ops = gloo_fixture_load(), .timeout = 20};
    for (fixture.size = 2; fixture.size <= 4; fixture.size++) {
        fixture.shm = fixture.shares_memory = false;
        uint64_t bits = gloo_fixture_run(&fixture, train_in_buffers);
        fixture.shares_memory = true; /* nobody reads it over TCP */
        assert_true(gloo_fixture_run(&fixture, train_in_buffers) == bits);
        fixture.shm = true;
        assert_true(gloo_fixture_run(&fixture, train_in_buffers) == bits);
        fixture.shares_memory = false;
        assert_true(gloo_fixture_run(&fixture, train_in_buffers) == bits);
    }
}

/* Nothing that it shares has a name in a file system, where it could stay. */
static void run_and_wait(struct rendezvous_fake *rendezvous, uint32_t rank,
                         const void *context) {
    static float data[300000];
    const struct gloo_fixture *fixture = context;
    struct collective *group = gloo_fixture_connect(rendezvous, rank, fixture);
    struct failure why = {0};
    fixture->ops->all_reduce(group, data, 300000, &why);
    rendezvous->ends[rank].bits =
        has_mapped("/memfd:") && !has_mapped("/dev/shm/");
    rendezvous_fake_arrive(rendezvous);
    rendezvous_fake_await_arrivals(rendezvous, fixture->size + 1);
}

TEST(a_killed_rank_leaves_no_segment) {
    struct gloo_fixture fixture = {
        .ops = gloo_fixture_load(), .size = 3, .shm = true, .timeout = 30};
    struct rendezvous_fake *rendezvous = rendezvous_fake_open();
    for (uint32_t i = 0; i < 3; i++)
        rendezvous_fake_start(rendezvous, i, run_and_wait, &fixture);
    assert_true(rendezvous_fake_await_arrivals(rendezvous, 3));
    for (uint32_t i = 0; i < 3; i++)
        kill(rendezvous->pids[i], SIGKILL);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(rendezvous_fake_await_exit(rendezvous, i), -SIGKILL);
        assert_true(rendezvous->ends[i].bits);
    }
    rendezvous_fake_close(&rendezvous);
}

/* How many ports of Gloo a process of this host connects to as soon as they
 * listen: at addresses in 127.1.0.0 to 127.254.255.255. */
static int reached_ports;

int listen(int fd, int backlog) {
    struct sockaddr_in address = {0};
    socklen_t size = sizeof address;
    int result = (int)syscall(SYS_listen, fd, backlog);
    int error = errno;
    getsockname(fd, (struct sockaddr *)&address, &size);
    uint32_t host = ntohl(address.sin_addr.s_addr);
    if (reached_ports && address.sin_family == AF_INET && host >> 24 == 127 &&
        (host >> 16 & 255)) {
        reached_ports--;
        int caller = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        connect(caller, (struct sockaddr *)&address, size);
    }
    errno = error;
    return result;
}

static void reach_some(uint32_t rank, struct collective_settings *settings) {
    (void)settings;
    reached_ports = rank ? 0 : 2;
}

static void reach_all(uint32_t rank, struct collective_settings *settings) {
    (void)settings;
    reached_ports = rank ? 0 : 1000;
}

TEST(a_port_of_gloo_that_a_local_process_reaches_is_given_up) {
    struct gloo_fixture fixture = {
        .ops = gloo_fixture_load(), .size = 3, .timeout = 20};
    uint64_t bits = gloo_fixture_run_all(fixture);
    fixture.prepare = reach_some;
    assert_true(gloo_fixture_run_all(fixture) == bits);
}

TEST(a_local_process_that_reaches_all_ports_of_gloo_is_named) {
    struct gloo_fixture fixture = {.ops = gloo_fixture_load(),
                                   .size = 2,
                                   .timeout = 20,
                                   .prepare = reach_all};
    struct rendezvous_fake *rendezvous = rendezvous_fake_open();
    for (uint32_t i = 0; i < 2; i++)
        rendezvous_fake_start(rendezvous, i, gloo_fixture_call_forever,
                              &fixture);
    rendezvous_fake_await_exit(rendezvous, 0);
    assert_int_equal(rendezvous->ends[0].status, STATUS_RETRY);
    assert_contains(rendezvous->ends[0].text, "a process of this host");
    rendezvous_fake_close(&rendezvous);
}

/* A kernel without packet filters. */
static bool refuses_filters;

int setsockopt(int fd, int level, int option, const void *value,
               socklen_t size) {
    bool refuses =
        refuses_filters && level == SOL_SOCKET && option == SO_ATTACH_FILTER;
    errno = ENOPROTOOPT;
    return refuses
               ? -1
               : (int)syscall(SYS_setsockopt, fd, level, option, value, size);
}

static void refuse_filters(uint32_t rank,
                           struct collective_settings *settings) {
    (void)settings;
    refuses_filters = !rank;
}

static void refuse_filters_with_secret(uint32_t rank,
                                       struct collective_settings *settings) {
    static const unsigned char key[32] = {1};
    settings->proof = key;
    refuse_filters(rank, settings);
}

TEST(a_kernel_without_filters_serves_runs_without_a_secret_alone) {
    struct gloo_fixture fixture = {
        .ops = gloo_fixture_load(),
        .size = 2,
        .timeout = 20,
        .prepare = refuse_filters,
        .transports = {"over TCP; processes of this host reach Gloo's port, as "
                       "the kernel takes no filter: Protocol not available",
                       ""}};
    assert_true(gloo_fixture_run_all(fixture) == bits_over_tcp(fixture));
    fixture.prepare = refuse_filters_with_secret;
    struct rendezvous_fake *rendezvous = rendezvous_fake_open();
    for (uint32_t i = 0; i < 2; i++)
        rendezvous_fake_start(rendezvous, i, gloo_fixture_call_forever,
                              &fixture);
    rendezvous_fake_await_exit(rendezvous, 0);
    assert_contains(rendezvous->ends[0].text,
                    "the kernel takes no filter for Gloo's port");
    rendezvous_fake_close(&rendezvous);
}

static uint64_t count_threads(void) {
    uint64_t count = 0;
    DIR *all = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(all));)
        count += entry->d_name[0] != '.';
    closedir(all);
    return count;
}

static void count_own_threads(struct rendezvous_fake *rendezvous, uint32_t rank,
                              const void *context) {
    const struct gloo_fixture *fixture = context;
    struct collective *group = gloo_fixture_connect(rendezvous, rank, fixture);
    rendezvous->ends[rank].bits = count_threads();
    fixture->ops->close(&group);
    gloo_fixture_end(rendezvous, rank, STATUS_OK, "");
}

/* Gloo has one. */
TEST(ranks_over_shared_memory_alone_have_no_thread_for_tcp) {
    struct gloo_fixture fixture = {
        .ops = gloo_fixture_load(), .size = 2, .timeout = 20};
    uint64_t by_tcp = gloo_fixture_run(&fixture, count_own_threads);
    fixture.shm = true;
    uint64_t by_shm = gloo_fixture_run(&fixture, count_own_threads);
    assert_int_equal(by_tcp, by_shm + 1);
}
