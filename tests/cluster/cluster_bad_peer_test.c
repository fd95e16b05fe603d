/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that are none of a run's, at the ports of all its processes, while it
 * runs: it goes on to the same weights, and says so once. */
#include "proto/cluster/cluster.h"
#include "proto/messages/message.h"
#include "tests/cluster/bad_peers.h"
#include "tests/cluster/cluster_run.h"
#include "tests/cluster/faulty_proxy.h"
#include "tests/lib/process_memory.h"
#include "tests/lib/test.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

enum { CHIEF, PS, WORKER, OTHER, PROCESSES };
enum { MAX_HANDSHAKE_MS = 10000, PULL_RANK = 0, WRONG_VERSION = 99 };
enum { LAST_BIAS = 40 /* bytes of the plan's first block */ };
/* What chief and ps together, and the worker, may grow by; sanitizers keep what
 * is freed. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { GROWTH_KB = 1 << 20 };
#else
enum { GROWTH_KB = 40 << 10 };
#endif
static const uint64_t NOBODY = 999, NO_RUN = 123;

struct beset_run {
    struct cluster_run *run;
    struct faulty_proxy *proxy; /* without faults: it knows the senders */
    struct cluster_process *processes[PROCESSES];
    uint16_t ports[PROCESSES];
    struct faulty_proxy_sender sender;
};

static int setup(void **state) {
    struct beset_run *beset = calloc(1, sizeof *beset);
    void *run;
    if (!beset || cluster_run_setup(&run))
        return -1;
    beset->run = run;
    *state = beset;
    return 0;
}

static int teardown(void **state) {
    struct beset_run *beset = *state;
    void *run = beset->run;
    cluster_run_teardown(&run);
    faulty_proxy_close(&beset->proxy, NULL);
    free(beset);
    return 0;
}

static uint16_t port_of(const struct cluster_run *run, const char *type,
                        unsigned index) {
    json_t *list = json_object_get(run->cluster, type);
    const char *address = json_string_value(json_array_get(list, index));
    return (uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10);
}

static void prepare(struct cluster_run *run, const char *file) {
    cluster_run_job(run, textf("{\"steps\": 3000, \"chief\": \"coordinate\","
                               " \"checkpoint\": {\"resume\": \"never\"},"
                               " \"export\": {\"path\": \"%s\"}}",
                               file));
}

static void start(struct beset_run *beset) {
    static const char *const job[] = {"job.json", NULL};
    struct cluster_run *run = beset->run;
    struct faulty_proxy_settings straight = {.seed = 1};
    uint16_t port;
    cluster_run_describe(run, 1, 1, 2);
    beset->ports[CHIEF] = port_of(run, "chief", 0);
    beset->ports[PS] = straight.port = port_of(run, "ps", 0);
    beset->ports[WORKER] = port_of(run, "worker", 0);
    beset->processes[PS] = cluster_run_task(run, "ps", 0, NULL);
    beset->proxy = faulty_proxy_open(&straight, &port);
    json_array_set_new(json_object_get(run->cluster, "ps"), 0,
                       json_string(textf("127.0.0.1:%u", port)));
    beset->processes[WORKER] = cluster_run_task(run, "worker", 0, NULL);
    beset->processes[OTHER] = cluster_run_task(run, "worker", 1, NULL);
    beset->processes[CHIEF] = cluster_run_task(run, "chief", 0, job);
}

/* With one trainer stopped in the midst, no round closes: the run is there. */
static void pause_training(struct beset_run *beset) {
    faulty_proxy_await(beset->proxy, 0, 20, CLUSTER_RUN_DEADLINE,
                       &beset->sender);
    cluster_run_signal(beset->processes[OTHER], SIGSTOP);
}

enum { BAD_PEERS = 5, ABORTS = 100, GIB = 1 << 30 };

static void come(uint16_t port, int descriptors[BAD_PEERS]) {
    descriptors[0] = bad_peers_send_garbage(port);
    descriptors[1] = bad_peers_send_http(port);
    descriptors[2] = bad_peers_begin_frame(port, UINT64_C(4) << 30);
    descriptors[3] = bad_peers_begin_frame(port, UINT64_C(100) << 20);
    descriptors[4] = bad_peers_connect(port);
}

/* Each is hung up on, also the one that says nothing. */
static void act_as_bad_peer(const struct beset_run *beset) {
    int descriptors[OTHER][BAD_PEERS];
    for (int p = CHIEF; p < OTHER; p++)
        come(beset->ports[p], descriptors[p]);
    for (int i = 0; i < OTHER * BAD_PEERS; i++) {
        struct pollfd item = {descriptors[i / BAD_PEERS][i % BAD_PEERS],
                              POLLRDHUP, 0};
        assert_true(item.fd >= 0);
        if (poll(&item, 1, MAX_HANDSHAKE_MS) != 1)
            fail_msg("stranger %d of process %d is still connected",
                     i % BAD_PEERS, i / BAD_PEERS);
        close(item.fd);
    }
}

/* Sends HEADER by a peer of its own and waits for what PROCESS says of it. */
static void say(struct beset_run *beset, int process, const void *header,
                size_t bytes, size_t payload, const char *line) {
    struct bad_peers_message message = {header, bytes, payload, payload ? 2 : 1,
                                        1};
    bad_peers_send_messages(beset->ports[process], &message);
    cluster_run_await_soon(beset->processes[process], line);
}

static void send_data(struct beset_run *beset, int process,
                      Capstan__DataHeader header, size_t payload,
                      const char *line) {
    static const uint32_t version = MESSAGE_VERSION;
    unsigned char space[1024];
    if (!header.version)
        header.version = version;
    size_t bytes = capstan__data_header__pack(&header, space);
    say(beset, process, space, bytes, payload, line);
}

static void send_control(struct beset_run *beset, uint32_t version,
                         uint64_t run, const char *line) {
    unsigned char space[256];
    Capstan__Heartbeat heartbeat = CAPSTAN__HEARTBEAT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.version = version;
    control.run = run;
    control.incarnation = NOBODY;
    control.body_case = CAPSTAN__CONTROL__BODY_HEARTBEAT;
    control.heartbeat = &heartbeat;
    size_t bytes = capstan__control__pack(&control, space);
    say(beset, CHIEF, space, bytes, 0, line);
}

static void send_multipart(struct beset_run *beset, int process) {
    struct bad_peers_message message = {"x", 1, 100, 1000, 3};
    bad_peers_send_messages(beset->ports[process], &message);
    cluster_run_await_soon(beset->processes[process], "too many parts");
}

static Capstan__DataHeader pull(uint64_t run, uint64_t incarnation) {
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = CAPSTAN__DATA_HEADER__KIND__PULL;
    header.run = run;
    header.incarnation = incarnation;
    header.rank = PULL_RANK;
    return header;
}

static void confuse_chief(struct beset_run *beset) {
    send_control(beset, WRONG_VERSION, 0, "protocol version 99");
    send_control(beset, MESSAGE_VERSION, NO_RUN, "not in this run is refused");
    send_multipart(beset, CHIEF);
}

static void confuse_worker(struct beset_run *beset) {
    Capstan__DataHeader header = pull(NO_RUN, NOBODY);
    send_data(beset, WORKER, header, 0, "does not accept here");
    header.version = WRONG_VERSION;
    send_data(beset, WORKER, header, 0, "protocol version 99");
    send_multipart(beset, WORKER);
}

/* Strangers, and one that speaks in the name of a trainer. */
static void confuse_ps(struct beset_run *beset) {
    uint64_t run = beset->sender.run, trainer = beset->sender.incarnation;
    uint32_t none[] = {1000000}, first[] = {0};
    Capstan__DataHeader header = pull(NO_RUN, NOBODY);
    header.version = WRONG_VERSION;
    send_data(beset, PS, header, 0, "protocol version 99");
    send_data(beset, PS, pull(NO_RUN, trainer), 0, "another run");
    send_data(beset, PS, pull(run, NOBODY), 0, "not in this ps's view");
    header = pull(run, trainer);
    header.n_blocks = 1;
    header.blocks = none;
    send_data(beset, PS, header, 0, "a block that is not on this ps");
    header = pull(run, trainer);
    header.n_blocks = 1;
    header.blocks = first;
    send_data(beset, PS, header, 400, "is not the size of its blocks");
    header.kind = CAPSTAN__DATA_HEADER__KIND__PUSH;
    header.clock = beset->sender.clock + 1000;
    send_data(beset, PS, header, LAST_BIAS, "whose clock is out of order");
    send_multipart(beset, PS);
}

/* Small messages at full speed, and 100 MB of large ones to who takes them. */
static void flood(uint16_t port, size_t large) {
    char *nothing = calloc(1, large);
    struct bad_peers_message messages[] = {{"small", 5, 0, 1, 100000},
                                           {nothing, large, 0, 1, 100}};
    assert_non_null(nothing);
    bad_peers_send_messages(port, &messages[0]);
    bad_peers_send_messages(port, &messages[1]);
    free(nothing);
}

/* Joins in the name of a worker who is there, and as one of another cluster,
 * without end; and requests to the ps: what they are answered is not read. */
static void request_without_reading(const struct beset_run *beset) {
    enum { MANY = 50000, MESSAGES = 3 };
    unsigned char space[256];
    int connections[MESSAGES];
    Capstan__Join join = CAPSTAN__JOIN__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    join.role = CLUSTER_WORKER;
    join.host = "elsewhere";
    control.version = MESSAGE_VERSION;
    control.incarnation = NOBODY;
    control.body_case = CAPSTAN__CONTROL__BODY_JOIN;
    control.join = &join;
    size_t bytes = capstan__control__pack(&control, space);
    connections[0] =
        bad_peers_send_unread(beset->ports[CHIEF], space, bytes, MANY);
    join.source = "TF_CONFIG";
    join.workers = 77;
    bytes = capstan__control__pack(&control, space);
    connections[1] =
        bad_peers_send_unread(beset->ports[CHIEF], space, bytes, MANY);
    Capstan__DataHeader header = pull(NO_RUN, NOBODY);
    header.version = MESSAGE_VERSION;
    bytes = capstan__data_header__pack(&header, space);
    connections[2] =
        bad_peers_send_unread(beset->ports[PS], space, bytes, MANY);
    for (int i = 0; i < MESSAGES; i++)
        close(connections[i]);
}

static void expect_few_warnings(const struct cluster_process *process) {
    unsigned count = 0;
    const char *at = cluster_run_errors(process);
    while ((at = strstr(at, "warning"))) {
        count++;
        at++;
    }
    if (count > 40)
        fail_msg("%u warnings:\n%s", count, cluster_run_errors(process));
}

static void expect_same_files(const struct cluster_run *run, const char *a,
                              const char *b) {
    assert_int_equal(
        system(textf("cmp %s/%s %s/%s", run->folder, a, run->folder, b)), 0);
}

TEST_WITH(setup, teardown, bad_peers_do_not_disturb_a_run) {
    static const char *const local[] = {"local", "--ps",     "1", "--workers",
                                        "2",     "job.json", NULL};
    struct beset_run *beset = *state;
    long before[PROCESSES], grown[PROCESSES];
    prepare(beset->run, "alone.safetensors");
    cluster_run_expect_soon(cluster_run_start(beset->run, "local", local, NULL),
                            0);
    prepare(beset->run, "beset.safetensors");
    start(beset);
    pause_training(beset);
    for (int i = CHIEF; i < OTHER; i++)
        before[i] = process_memory_kb(cluster_run_pid(beset->processes[i]));
    act_as_bad_peer(beset);
    confuse_chief(beset);
    confuse_ps(beset);
    confuse_worker(beset);
    flood(beset->ports[CHIEF], 1 << 20);
    flood(beset->ports[PS], 1 << 20);
    flood(beset->ports[WORKER], 1 << 14);
    request_without_reading(beset);
    for (int i = CHIEF; i < OTHER; i++)
        bad_peers_open_and_close(beset->ports[i], 1000);
    for (int i = CHIEF; i < OTHER; i++) {
        for (int n = 0; n < ABORTS;)
            n += bad_peers_ping_and_reset(beset->ports[i], n % 2 ? 17 : 1100);
        bad_peers_send_parts(beset->ports[i], GIB >> 10, 1 << 10);
        bad_peers_send_parts(beset->ports[i], GIB >> 4, 1 << 4);
    }
    for (int i = CHIEF; i < OTHER; i++) {
        grown[i] =
            process_memory_kb(cluster_run_pid(beset->processes[i])) - before[i];
        print_message("# process %d has grown by %ld KB\n", i, grown[i]);
    }
    assert_true(grown[CHIEF] + grown[PS] < GROWTH_KB);
    assert_true(grown[WORKER] < GROWTH_KB);
    cluster_run_signal(beset->processes[OTHER], SIGCONT);
    for (int i = CHIEF; i < OTHER; i++)
        bad_peers_open_and_close(beset->ports[i], 200);
    for (int i = 0; i < PROCESSES; i++)
        cluster_run_expect_soon(beset->processes[i], 0);
    for (int i = CHIEF; i < OTHER; i++) {
        expect_few_warnings(beset->processes[i]);
        assert_contains(cluster_run_errors(beset->processes[i]),
                        "sent no Capstan message");
    }
    expect_same_files(beset->run, "alone.safetensors", "beset.safetensors");
}
