/* SPDX-License-Identifier: Apache-2.0 */
/* Unknown peers at the port of rank 0 while it waits for rank 1: none of them
 * gets further than a line of the log, and the ranks sum to the bits of a group
 * that nobody disturbs. */
#include "core/base/proof.h"
#include "core/base/time.h"
#include "tests/lib/gloo_fixture.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    FLOATS = 100003,
    GARBAGE = 1000,
    FLOOD = 5000,
    HELD = 1000,         /* connections that a flood holds at once */
    DESCRIPTORS = 330,   /* most that a rank has while it connects */
    UNKNOWN_PEERS = 300, /* more than a rank holds unproved */
    HELLO_BYTES = 48,
    PLACE_BYTES = sizeof(struct sockaddr_storage) + PROOF_BYTES
};

static const unsigned char key[PROOF_KEY_BYTES] = {1};

/* What rank 0 says of those that it refuses. */
static struct { char text[2048]; } * refusals;

static int open_refusals(void **state) {
    (void)state;
    refusals = mmap(NULL, sizeof *refusals, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(refusals, MAP_FAILED);
    return 0;
}

static int close_refusals(void **state) {
    (void)state;
    return munmap(refusals, sizeof *refusals);
}

FIXTURE(open_refusals, close_refusals);

static void note_rejected(const void *context, const char *own,
                          const char *from, const char *why) {
    (void)context, (void)own, (void)from;
    size_t used = strlen(refusals->text);
    snprintf(refusals->text + used, sizeof refusals->text - used, "%s\n", why);
}

static void use_key(uint32_t rank, struct collective_settings *settings) {
    settings->proof = key;
    if (!rank)
        settings->reject = note_rejected;
}

/* Rank 1 learns where rank 0 is once the unknown peers are done. */
static enum status get_late(void *context, const char *name, int64_t until,
                            void **value, size_t *size, struct failure *why) {
    struct rendezvous_fake *rendezvous = context;
    if (!strcmp(name, "gloo.at.0"))
        rendezvous_fake_await_arrivals(rendezvous, 1);
    return rendezvous->store.get(context, name, until, value, size, why);
}

static void sum_once(struct rendezvous_fake *rendezvous, uint32_t rank,
                     const void *context) {
    static float data[FLOATS];
    const struct gloo_fixture *fixture = context;
    struct collective_store store = rendezvous->store;
    struct failure why = {0};
    if (rank == 1)
        store.get = get_late;
    struct collective *group =
        gloo_fixture_connect_by(&store, rendezvous, rank, fixture);
    for (size_t i = 0; i < FLOATS; i++)
        data[i] = gloo_fixture_value(rank, i);
    enum status status = fixture->ops->all_reduce(group, data, FLOATS, &why);
    gloo_fixture_record_bits(&rendezvous->ends[rank], data, FLOATS);
    fixture->ops->close(&group);
    gloo_fixture_end(rendezvous, rank, status, why.text);
}

static struct sockaddr_storage place_of_rank_0(
    struct rendezvous_fake *rendezvous) {
    struct sockaddr_storage address;
    struct failure why = {0};
    void *value = NULL;
    size_t size = 0;
    assert_int_equal(rendezvous->store.get(rendezvous, "gloo.at.0",
                                           time_now() + 20 * TIME_S, &value,
                                           &size, &why),
                     STATUS_OK);
    assert_int_equal(size, PLACE_BYTES);
    memcpy(&address, value, sizeof address);
    free(value);
    return address;
}

static int call_address(const struct sockaddr_storage *address) {
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_return_code(fd, errno);
    assert_return_code(connect(fd, (const struct sockaddr *)address,
                               sizeof(struct sockaddr_in)),
                       errno);
    return fd;
}

/* The hello of rank 1 for its data connection, with a challenge of zeros. */
static void send_hello(int fd) {
    char hello[HELLO_BYTES] = "capgloo1\1";
    assert_int_equal(send(fd, hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
}

/* True: the other side closes the connection, within 10 s, and has sent at most
 * MOST bytes. */
static bool is_closed_after(int fd, size_t most) {
    char bytes[256];
    struct pollfd poll_fd = {fd, POLLIN, 0};
    for (size_t got = 0; got <= most;) {
        if (poll(&poll_fd, 1, 10000) != 1)
            return false;
        ssize_t count = recv(fd, bytes, sizeof bytes, 0);
        if (count <= 0)
            return true;
        got += (size_t)count;
    }
    return false;
}

typedef void attack_body(struct rendezvous_fake *rendezvous,
                         const struct sockaddr_storage *address);

/* The bits of the ranks' sum while ATTACK plays; NULL: nothing does. */
static uint64_t bits_under(attack_body *attack, bool shm) {
    struct gloo_fixture fixture = {.ops = gloo_fixture_load(),
                                   .shm = shm,
                                   .size = 2,
                                   .timeout = 30,
                                   .prepare = use_key};
    struct rendezvous_fake *rendezvous = rendezvous_fake_open();
    refusals->text[0] = 0;
    for (uint32_t i = 0; i < 2; i++)
        rendezvous_fake_start(rendezvous, i, sum_once, &fixture);
    struct sockaddr_storage address = place_of_rank_0(rendezvous);
    if (attack)
        attack(rendezvous, &address);
    rendezvous_fake_arrive(rendezvous);
    gloo_fixture_expect_success(rendezvous, 2);
    assert_true(rendezvous->ends[0].bits == rendezvous->ends[1].bits);
    uint64_t bits = rendezvous->ends[0].bits;
    rendezvous_fake_close(&rendezvous);
    return bits;
}

static void expect_harmless(attack_body *attack, const char *says) {
    for (int shm = 0; shm < 2; shm++) {
        assert_true(bits_under(NULL, shm) == bits_under(attack, shm));
        assert_contains(refusals->text, says);
    }
}

/* What a rank's process makes of connect(2): it fails so many times. */
static int unreachable;

int connect(int fd, const struct sockaddr *address, socklen_t size) {
    static int64_t last;
    bool fails = unreachable > 0;
    if (fails) {
        unreachable--;
        if (time_now() - last < TIME_S / 50)
            _exit(3); /* it calls without a pause */
        last = time_now();
    }
    errno = EHOSTUNREACH;
    return fails ? -1 : (int)syscall(SYS_connect, fd, address, size);
}

static void make_unreachable(uint32_t rank,
                             struct collective_settings *settings) {
    use_key(rank, settings);
    unreachable = rank ? 5 : 0;
}

TEST(a_rank_that_is_briefly_unreachable_is_called_again) {
    struct gloo_fixture fixture = {.ops = gloo_fixture_load(),
                                   .size = 2,
                                   .timeout = 30,
                                   .prepare = make_unreachable};
    gloo_fixture_run_all(fixture);
}

/* Rank R learns where rank 0 is after R times three quarters of the time in
 * which one rank has to prove itself. */
enum { PROVE_SECONDS = 6 };

static enum status get_in_turn(void *context, const char *name, int64_t until,
                               void **value, size_t *size,
                               struct failure *why) {
    struct rendezvous_fake *rendezvous = context;
    for (uint32_t i = 1; i < 3; i++)
        if (rendezvous->pids[i] == getpid() && !strcmp(name, "gloo.at.0"))
            usleep(i * PROVE_SECONDS * 750000);
    return rendezvous->store.get(context, name, until, value, size, why);
}

static void join_in_turn(struct rendezvous_fake *rendezvous, uint32_t rank,
                         const void *context) {
    const struct gloo_fixture *fixture = context;
    struct collective_store store = rendezvous->store;
    store.get = get_in_turn;
    struct collective *group =
        gloo_fixture_connect_by(&store, rendezvous, rank, fixture);
    fixture->ops->close(&group);
    gloo_fixture_end(rendezvous, rank, STATUS_OK, "");
}

TEST(each_rank_that_proves_itself_gives_the_others_more_time) {
    struct gloo_fixture fixture = {.ops = gloo_fixture_load(),
                                   .size = 3,
                                   .timeout = PROVE_SECONDS,
                                   .prepare = use_key};
    gloo_fixture_run(&fixture, join_in_turn);
}

static double used_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

enum { IDLE_SECONDS = 4 };
static double used_before; /* what this process waits */

/* Once the other rank can call, the process has no descriptor left for it. */
static enum status set_without_descriptors(void *context, const char *name,
                                           const void *value, size_t size,
                                           struct failure *why) {
    struct rendezvous_fake *rendezvous = context;
    if (!strcmp(name, "gloo.at.0")) {
        void *other = NULL;
        size_t other_size;
        rendezvous->store.get(context, "gloo.at.1", time_now() + 60 * TIME_S,
                              &other, &other_size, why);
        free(other);
        int next = dup(0);
        struct rlimit files = {(rlim_t)next, (rlim_t)next};
        close(next);
        setrlimit(RLIMIT_NOFILE, &files);
        used_before = used_seconds();
    }
    return rendezvous->store.set(context, name, value, size, why);
}

static void accept_nobody(struct rendezvous_fake *rendezvous, uint32_t rank,
                          const void *context) {
    const struct gloo_fixture *fixture = context;
    struct collective_store store = rendezvous->store;
    struct collective *group;
    struct failure why = {0};
    if (!rank)
        store.set = set_without_descriptors;
    struct collective_settings settings = {
        .rank = rank, .size = 2, .store = &store, .timeout = IDLE_SECONDS};
    enum status status = fixture->ops->open(&group, &settings, &why);
    rendezvous->ends[rank].bits =
        used_seconds() - used_before < IDLE_SECONDS / 4.0;
    gloo_fixture_end(rendezvous, rank, status, why.text);
}

TEST(a_rank_without_descriptors_waits_idle_and_says_so) {
    struct gloo_fixture fixture = {.ops = gloo_fixture_load()};
    struct rendezvous_fake *rendezvous = rendezvous_fake_open();
    for (uint32_t i = 0; i < 2; i++)
        rendezvous_fake_start(rendezvous, i, accept_nobody, &fixture);
    rendezvous_fake_await_exit(rendezvous, 0);
    assert_int_equal(rendezvous->ends[0].status, STATUS_RETRY);
    assert_contains(rendezvous->ends[0].text,
                    "accept nobody: Too many open files");
    assert_true(rendezvous->ends[0].bits);
    rendezvous_fake_close(&rendezvous);
}

static enum status set_no_ip_address(void *context, const char *name,
                                     const void *value, size_t size,
                                     struct failure *why) {
    struct rendezvous_fake *rendezvous = context;
    char changed[PLACE_BYTES];
    if (strcmp(name, "gloo.at.1"))
        return rendezvous->store.set(context, name, value, size, why);
    memcpy(changed, value, sizeof changed);
    ((struct sockaddr_storage *)changed)->ss_family = AF_UNIX;
    return rendezvous->store.set(context, name, changed, size, why);
}

static void publish_no_ip_address(struct rendezvous_fake *rendezvous,
                                  uint32_t rank, const void *context) {
    struct collective_store store = rendezvous->store;
    if (rank == 1)
        store.set = set_no_ip_address;
    gloo_fixture_connect_by(&store, rendezvous, rank, context);
    gloo_fixture_end(rendezvous, rank, STATUS_OK, "it has met somebody");
}

TEST(a_place_of_another_kind_than_ip_is_named) {
    struct gloo_fixture fixture = {
        .ops = gloo_fixture_load(), .size = 2, .timeout = 2};
    struct rendezvous_fake *rendezvous = rendezvous_fake_open();
    for (uint32_t i = 0; i < 2; i++)
        rendezvous_fake_start(rendezvous, i, publish_no_ip_address, &fixture);
    rendezvous_fake_await_exit(rendezvous, 0);
    assert_contains(rendezvous->ends[0].text,
                    "rank 1 has published no IP address");
    rendezvous_fake_close(&rendezvous);
}

TEST(undisturbed_ranks_reject_nobody) {
    bits_under(NULL, false);
    assert_string_equal(refusals->text, "");
}

static void send_garbage(struct rendezvous_fake *rendezvous,
                         const struct sockaddr_storage *address) {
    (void)rendezvous;
    for (int i = 0; i < GARBAGE; i++) {
        unsigned char bytes[200];
        int fd = call_address(address);
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (unsigned char)(i * 31 + (int)k * 17);
        send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
        assert_true(is_closed_after(fd, 0));
        close(fd);
    }
}

TEST(garbage_is_answered_by_nothing) {
    expect_harmless(send_garbage, "is no rank of this group");
}

static void send_too_much(struct rendezvous_fake *rendezvous,
                          const struct sockaddr_storage *address) {
    (void)rendezvous;
    char bytes[HELLO_BYTES + 200] = "capgloo1\1";
    int fd = call_address(address);
    assert_int_equal(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    assert_true(is_closed_after(fd, 0));
    close(fd);
}

TEST(who_sends_more_than_a_rank_does_is_not_read) {
    expect_harmless(send_too_much, "is no rank of this group");
}

static void stay_silent(struct rendezvous_fake *rendezvous,
                        const struct sockaddr_storage *address) {
    (void)rendezvous;
    int silent = call_address(address), halfway = call_address(address);
    send_hello(halfway);
    assert_true(is_closed_after(silent, 0));
    assert_true(is_closed_after(halfway, PROOF_BYTES));
    close(silent);
    close(halfway);
}

TEST(who_is_silent_is_dropped_after_its_time) {
    expect_harmless(stay_silent, "does not prove itself within 2 s");
}

static int count_descriptors(pid_t pid) {
    int count = 0;
    DIR *all = opendir(textf("/proc/%d/fd", pid));
    assert_non_null(all);
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

static void flood(struct rendezvous_fake *rendezvous,
                  const struct sockaddr_storage *address) {
    static int held[HELD];
    struct rlimit files = {4096, 4096};
    setrlimit(RLIMIT_NOFILE, &files);
    for (int i = 0; i < FLOOD; i++) {
        if (i >= HELD)
            close(held[i % HELD]);
        held[i % HELD] = call_address(address);
        if (i % 2)
            send_hello(held[i % HELD]);
        if (i % 1000 == 999)
            assert_in_range(count_descriptors(rendezvous->pids[0]), 1,
                            DESCRIPTORS);
    }
    for (int i = 0; i < HELD; i++)
        close(held[i]);
}

TEST(a_flood_is_bounded) {
    assert_true(bits_under(NULL, false) == bits_under(flood, false));
}

static int call_from_elsewhere(const struct sockaddr_storage *address) {
    struct sockaddr_in own = {.sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_return_code(bind(fd, (struct sockaddr *)&own, sizeof own), errno);
    assert_return_code(
        connect(fd, (const struct sockaddr *)address, sizeof own), errno);
    return fd;
}

/* The oldest of all calls from the address of a rank. */
static void flood_from_elsewhere(struct rendezvous_fake *rendezvous,
                                 const struct sockaddr_storage *address) {
    (void)rendezvous;
    int held[UNKNOWN_PEERS], slow = call_address(address);
    char challenge[PROOF_BYTES];
    for (int i = 0; i < UNKNOWN_PEERS; i++) {
        held[i] = call_from_elsewhere(address);
        send_hello(held[i]);
    }
    assert_true(is_closed_after(held[0], PROOF_BYTES));
    send_hello(slow);
    assert_int_equal(recv(slow, challenge, sizeof challenge, MSG_WAITALL),
                     sizeof challenge);
    close(slow);
    for (int i = 0; i < UNKNOWN_PEERS; i++)
        close(held[i]);
}

TEST(a_flood_from_elsewhere_takes_no_place_of_a_rank) {
    expect_harmless(flood_from_elsewhere, "gave way to others that call");
}

static void claim_falsely(struct rendezvous_fake *rendezvous,
                          const struct sockaddr_storage *address) {
    (void)rendezvous;
    for (int i = 0; i < GARBAGE; i++) {
        char proof[PROOF_BYTES] = {(char)i};
        int fd = call_address(address);
        send_hello(fd);
        assert_int_equal(recv(fd, proof, sizeof proof, MSG_WAITALL),
                         sizeof proof); /* the challenge, sent back */
        assert_int_equal(send(fd, proof, sizeof proof, MSG_NOSIGNAL),
                         sizeof proof);
        assert_true(is_closed_after(fd, PROOF_BYTES));
        close(fd);
    }
}

TEST(a_false_proof_is_refused) {
    expect_harmless(claim_falsely, "does not prove");
}

/* The relay: what comes from one side goes to the other, until one ends. */
struct relay {
    int listener;
    struct sockaddr_storage to;
};

static void *relay_bytes(void *context) {
    struct relay *relay = context;
    int from = accept(relay->listener, NULL, NULL);
    int to = call_address(&relay->to);
    struct pollfd fds[] = {{from, POLLIN, 0}, {to, POLLIN, 0}};
    char bytes[256];
    while (poll(fds, 2, 20000) > 0)
        for (int i = 0; i < 2; i++) {
            if (!fds[i].revents)
                continue;
            ssize_t count = recv(fds[i].fd, bytes, sizeof bytes, 0);
            if (count <= 0) {
                close(from);
                close(to);
                return NULL;
            }
            send(fds[1 - i].fd, bytes, (size_t)count, MSG_NOSIGNAL);
        }
    return NULL;
}

/* Rank 1 of another group of the same secret finds the relay in the place of
 * its rank 0. */
static struct sockaddr_storage place_of_relay;

static int listen_as_relay(void) {
    struct sockaddr_in *in = (struct sockaddr_in *)&place_of_relay;
    socklen_t size = sizeof *in;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *in = (struct sockaddr_in){.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_return_code(bind(fd, (struct sockaddr *)in, size), errno);
    assert_return_code(listen(fd, 1), errno);
    assert_return_code(getsockname(fd, (struct sockaddr *)in, &size), errno);
    return fd;
}

static enum status get_relay(void *context, const char *name, int64_t until,
                             void **value, size_t *size, struct failure *why) {
    struct rendezvous_fake *rendezvous = context;
    enum status status =
        rendezvous->store.get(context, name, until, value, size, why);
    if (!status && !strcmp(name, "gloo.at.0"))
        memcpy(*value, &place_of_relay, sizeof place_of_relay);
    return status;
}

static void join_by_relay(struct rendezvous_fake *rendezvous, uint32_t rank,
                          const void *context) {
    struct collective_store store = rendezvous->store;
    if (rank == 1)
        store.get = get_relay;
    gloo_fixture_connect_by(&store, rendezvous, rank, context);
    gloo_fixture_end(rendezvous, rank, STATUS_OK, "it has met somebody");
}

static void relay_another_group(struct rendezvous_fake *rendezvous,
                                const struct sockaddr_storage *address) {
    (void)rendezvous;
    struct relay relay = {listen_as_relay(), *address};
    struct gloo_fixture fixture = {.ops = gloo_fixture_load(),
                                   .size = 2,
                                   .timeout = 4,
                                   .prepare = use_key};
    struct rendezvous_fake *other = rendezvous_fake_open();
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, relay_bytes, &relay), 0);
    for (uint32_t i = 0; i < 2; i++)
        rendezvous_fake_start(other, i, join_by_relay, &fixture);
    rendezvous_fake_await_exit(other, 1);
    assert_int_equal(other->ends[1].status, STATUS_RETRY);
    assert_contains(other->ends[1].text, "does not prove");
    pthread_join(thread, NULL);
    close(relay.listener);
    rendezvous_fake_close(&other);
}

TEST(a_relayed_proof_of_another_group_is_refused) {
    expect_harmless(relay_another_group, "does not prove");
}
