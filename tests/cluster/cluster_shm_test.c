/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory between the processes of a run: the same bits as over TCP, and
 * nobody who is stopped, killed or a stranger there does harm or leaves
 * anything behind. */
#include "core/base/time.h"
#include "core/net/shm/shm_connection_internal.h"
#include "core/net/shm/shm_endpoint.h"
#include "proto/messages/message.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

enum { KILLED = 128 + SIGKILL, RETRY = 138 };
static const char over_lane[] = ": over shared memory";
static const char lost_lane[] = "ps 0: over TCP: ";

/* Blocks of several sizes on 2 ps, and long enough to be disturbed. */
static const char job[] =
    "{\"model\": {\"layers\": [64, 256, 256, 10]}, \"steps\": 800,"
    " \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.001}},"
    " \"chief\": \"coordinate\", \"timeouts\": {\"peer\": 20},"
    " \"checkpoint\": {\"every_steps\": 50}}";

static void begin(void **state, struct cluster_fixture *fixture) {
    cluster_run_job(*state, job);
    cluster_fixture_describe(fixture, *state, 1, 2, 2);
    cluster_fixture_start_all(fixture);
}

static struct cluster_process *process_of(const struct cluster_fixture *fixture,
                                          const char *type) {
    return fixture->tasks[cluster_fixture_find(fixture, type, 0)].process;
}

/* A whole run over LANE, its checkpoints in FOLDER/LANE. */
static void complete(struct cluster_run *run, const char *shm_connection,
                     bool shared) {
    const char *folder = textf("checkpoint.dir=%s", shm_connection);
    cluster_run_job(run, job);
    struct cluster_process *process = cluster_run_start(
        run, shm_connection,
        WORDS("local", "--ps", "2", "--workers", "2", "--lane", shm_connection,
              "--set", folder, "--json-log", "job.json"),
        NULL);
    cluster_run_expect(process, 0, 2 * CLUSTER_RUN_DEADLINE);
    assert_int_equal(cluster_fixture_has_logged(process, over_lane), shared);
    assert_false(cluster_fixture_has_logged(process, lost_lane));
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(both_transports_give_the_same_bits) {
    complete(*state, "auto", true);
    complete(*state, "tcp", false);
    cluster_fixture_expect_same_checkpoints(*state, "auto", "tcp");
}

TEST(an_unknown_transport_is_refused) {
    static const char *const local[] = {"local", "job.json", NULL};
    struct cluster_process *process = cluster_run_start(
        *state, "flag", WORDS("local", "--lane", "udp", "job.json"), NULL);
    cluster_run_expect_soon(process, 2);
    assert_true(cluster_fixture_has_logged(process, "auto or tcp, not 'udp'"));
    process =
        cluster_run_start(*state, "variable", local, WORDS("CAPSTAN_LANE=udp"));
    cluster_run_expect_soon(process, 2);
    assert_true(cluster_fixture_has_logged(process, "CAPSTAN_LANE is 'udp'"));
}

/* Servers that have sent it something meanwhile leave it, and it calls them
 * again; either way nothing is lost or counted twice. */
TEST(a_stopped_worker_continues_where_it_was) {
    struct cluster_fixture fixture;
    complete(*state, "auto", true);
    begin(state, &fixture);
    struct cluster_process *worker = process_of(&fixture, "worker");
    cluster_run_await_soon(worker, over_lane);
    cluster_run_await_soon(fixture.tasks[0].process, "chief: checkpoint ");
    cluster_run_signal(worker, SIGSTOP);
    cluster_fixture_sleep(4.5); /* a lane that is not read is left after 3 s */
    cluster_run_signal(worker, SIGCONT);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0,
                           2 * CLUSTER_RUN_DEADLINE);
    cluster_fixture_expect_same_checkpoints(*state, "auto", "checkpoint");
}

/* What PROCESS shares has no name in a file system, where it could stay. Other
 * programs may come and go there meanwhile. */
static void expect_nameless(const struct cluster_process *process) {
    char line[PATH_MAX + 128];
    bool shares = false;
    FILE *maps = fopen(textf("/proc/%d/maps", cluster_run_pid(process)), "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) {
        shares |= strstr(line, "/memfd:") != NULL;
        assert_null(strstr(line, "/dev/shm/"));
    }
    fclose(maps);
    assert_true(shares);
}

/* The name of the lane that PROCESS listens by. */
static void find_name(const struct cluster_process *process,
                      char name[SHM_ENDPOINT_NAME]) {
    char target[64], line[512], inode[32], wanted[48];
    const char *path = textf("/proc/%d/fd", cluster_run_pid(process));
    FILE *file = fopen("/proc/net/unix", "r");
    assert_non_null(file);
    bool found = false;
    while (!found && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%*s %*s %*s %*s %*s %*s %31s @%63s", inode, name) < 2)
            continue;
        snprintf(wanted, sizeof wanted, "socket:[%s]", inode);
        DIR *folder = opendir(path);
        for (struct dirent *entry; folder && (entry = readdir(folder));) {
            ssize_t size = readlinkat(dirfd(folder), entry->d_name, target,
                                      sizeof target - 1);
            target[size > 0 ? size : 0] = 0;
            found |= !strcmp(target, wanted);
        }
        closedir(folder);
    }
    fclose(file);
    assert_true(found);
}

static bool is_listed(const char *name) {
    FILE *file = fopen("/proc/net/unix", "r");
    char line[512];
    bool listed = false;
    while (file && fgets(line, sizeof line, file))
        listed |= strstr(line, name) != NULL;
    fclose(file);
    return listed;
}

/* Every process of this host may read the name: it is a word of its own, and
 * nothing that lets anybody in. */
static void expect_no_number_in(const char *name,
                                struct cluster_process *chief) {
    const char *line = cluster_run_await_soon(chief, ", run ");
    char run[17], word[17];
    int length = 0;
    assert_int_equal(sscanf(strstr(line, ", run "), ", run %16s", run), 1);
    assert_int_equal(sscanf(name, "capstan-%16[0-9a-f]%n", word, &length), 1);
    assert_int_equal(length, strlen(name));
    assert_string_not_equal(word, run);
}

TEST(a_killed_process_leaves_no_segment) {
    static const char *const victims[] = {"worker", "ps"};
    char name[SHM_ENDPOINT_NAME];
    setenv("CAPSTAN_RESTARTS", "0", 1); /* the run ends with its ps */
    for (int v = 0; v < 2; v++) {
        struct cluster_fixture fixture;
        cluster_fixture_reset(state);
        begin(state, &fixture);
        struct cluster_process *chief = fixture.tasks[0].process;
        unsigned victim = cluster_fixture_find(&fixture, victims[v], 0);
        cluster_run_await_soon(process_of(&fixture, "worker"), over_lane);
        find_name(process_of(&fixture, "ps"), name);
        expect_no_number_in(name, chief);
        cluster_run_await_soon(chief, "chief: checkpoint ");
        expect_nameless(fixture.tasks[victim].process);
        cluster_run_signal(fixture.tasks[victim].process, SIGKILL);
        cluster_run_expect_soon(fixture.tasks[victim].process, KILLED);
        if (v == 0) /* the others wait for its silence */
            for (unsigned i = 0; i < fixture.count; i++)
                cluster_run_signal(fixture.tasks[i].process, SIGKILL);
        cluster_fixture_expect(&fixture, victim, v == 0 ? KILLED : RETRY,
                               2 * CLUSTER_RUN_DEADLINE);
        assert_false(cluster_fixture_has_logged(process_of(&fixture, "worker"),
                                                lost_lane));
        assert_false(is_listed(name));
    }
    unsetenv("CAPSTAN_RESTARTS");
}

static void turn(struct shm_endpoint *endpoint) {
    struct pollfd item = {shm_endpoint_descriptor(endpoint), POLLIN, 0};
    shm_endpoint_prepare_wait(endpoint);
    poll(&item, 1, 10);
    shm_endpoint_progress(endpoint, time_now());
}

/* A lane of this process to the server of NAME. */
static struct shm_connection *call(struct shm_endpoint *endpoint,
                                   const char *name, uint32_t *number) {
    char text[128];
    int64_t deadline = time_now() + CLUSTER_RUN_DEADLINE * TIME_S;
    *number = shm_endpoint_connect(endpoint, name, text, sizeof text);
    for (;;) {
        assert_true(time_now() < deadline);
        turn(endpoint);
        struct shm_connection *connection =
            shm_endpoint_find(endpoint, *number);
        if (connection && shm_connection_wakeup(connection) >= 0)
            return connection;
    }
}

/* The server ends the lane of NUMBER. */
static void expect_end(struct shm_endpoint *endpoint, uint32_t number) {
    int64_t deadline = time_now() + CLUSTER_RUN_DEADLINE * TIME_S;
    while (shm_endpoint_find(endpoint, number)) {
        assert_true(time_now() < deadline);
        turn(endpoint);
    }
}

static void disturb(const char *name) {
    struct shm_connection_settings settings = {.max_frame =
                                                   MESSAGE_MAX_PAYLOAD};
    struct shm_endpoint *endpoint = shm_endpoint_open(&settings);
    uint32_t number;
    struct shm_connection *connection = call(endpoint, name, &number);
    shm_connection_send(connection, "no data header", 14, NULL);
    turn(endpoint);
    expect_end(endpoint, number);
    connection = call(endpoint, name, &number);
    memset(connection->writer.bytes, 0x5a, 4096);
    atomic_store(&connection->writer.shared->head, 4096);
    shm_connection_send(connection, "rings the bell", 14, NULL);
    atomic_store(&connection->writer.shared->head, UINT64_MAX);
    expect_end(endpoint, number);
    connection = call(endpoint, name, &number);
    struct ring_payload far = {.offset = UINT64_C(1) << 60, .bytes = 4096};
    ring_reserve(&connection->writer, 0);
    ring_commit(&connection->writer, "x", 1, &far);
    shm_connection_send(connection, "rings the bell", 14, NULL);
    expect_end(endpoint, number);
    shm_endpoint_close(&endpoint);
}

TEST(bad_peers_on_shared_memory_do_not_disturb_a_run) {
    struct cluster_fixture fixture;
    char name[SHM_ENDPOINT_NAME];
    complete(*state, "auto", true);
    begin(state, &fixture);
    cluster_run_await_soon(process_of(&fixture, "worker"), over_lane);
    find_name(process_of(&fixture, "ps"), name);
    for (int i = 0; i < 3; i++)
        disturb(name);
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0,
                           2 * CLUSTER_RUN_DEADLINE);
    cluster_fixture_expect_same_checkpoints(*state, "auto", "checkpoint");
    assert_true(
        cluster_fixture_has_logged(
            fixture.tasks[cluster_fixture_find(&fixture, "ps", 0)].process,
            "shares memory is disconnected") ||
        cluster_fixture_has_logged(
            fixture.tasks[cluster_fixture_find(&fixture, "ps", 1)].process,
            "shares memory is disconnected"));
}
