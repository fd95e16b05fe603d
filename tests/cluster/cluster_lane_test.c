/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory between the processes of a run: the same bits as over TCP, and
 * nobody who is stopped, killed or a stranger there does harm or leaves
 * anything behind. */
#include "proto/base/time.h"
#include "proto/net/messages/message.h"
#include "proto/net/shm/lane_parts.h"
#include "proto/net/shm/lanes.h"
#include "tests/cluster/cluster_play.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KILLED = 128 + SIGKILL, RETRY = 138 };
static const char over_lane[] = ": over shared memory";
static const char lost_lane[] = "ps 0: over TCP: it has ended";

/* Blocks of several sizes on 2 ps, and long enough to be disturbed. */
static const char job[] =
    "{\"model\": {\"layers\": [64, 256, 256, 10]}, \"steps\": 800,"
    " \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.001}},"
    " \"chief\": \"coordinate\", \"timeouts\": {\"peer\": 20},"
    " \"checkpoint\": {\"every_steps\": 50}}";

static void begin(void **state, struct cluster_play *play) {
    cluster_run_job(*state, job);
    cluster_play_describe(play, *state, 1, 2, 2);
    cluster_play_start_all(play);
}

static struct cluster_process *process_of(const struct cluster_play *play,
                                          const char *type) {
    return play->tasks[cluster_play_find(play, type, 0)].process;
}

/* A whole run over LANE, its checkpoints in FOLDER/LANE. */
static void complete(struct cluster_run *run, const char *lane, bool shared) {
    char folder[64];
    snprintf(folder, sizeof folder, "checkpoint.dir=%s", lane);
    const char *const arguments[] = {"local", "--ps",     "2",  "--workers",
                                     "2",     "--lane",   lane, "--set",
                                     folder,  "job.json", NULL};
    cluster_run_job(run, job);
    struct cluster_process *process =
        cluster_run_start(run, lane, arguments, NULL);
    cluster_run_expect(process, 0, 2 * CLUSTER_RUN_DEADLINE);
    assert_int_equal(cluster_play_said(process, over_lane), shared);
    assert_false(cluster_play_said(process, lost_lane));
}

static void both_lanes_give_the_same_bits(void **state) {
    complete(*state, "auto", true);
    complete(*state, "tcp", false);
    cluster_play_same(*state, "auto", "tcp");
}

static void a_lane_that_is_none_is_refused(void **state) {
    static const char *const arguments[] = {"local", "--lane", "udp",
                                            "job.json", NULL};
    static const char *const local[] = {"local", "job.json", NULL};
    static const char *const environment[] = {"CAPSTAN_LANE=udp", NULL};
    struct cluster_process *process =
        cluster_run_start(*state, "flag", arguments, NULL);
    cluster_run_expect(process, 2, CLUSTER_RUN_DEADLINE);
    assert_true(cluster_play_said(process, "auto or tcp, not 'udp'"));
    process = cluster_run_start(*state, "variable", local, environment);
    cluster_run_expect(process, 2, CLUSTER_RUN_DEADLINE);
    assert_true(cluster_play_said(process, "CAPSTAN_LANE is 'udp'"));
}

/* Servers that have sent it something meanwhile leave it, and it calls them
 * again; either way nothing is lost or counted twice. */
static void a_stopped_worker_goes_on_where_it_was(void **state) {
    struct cluster_play play;
    complete(*state, "auto", true);
    begin(state, &play);
    struct cluster_process *worker = process_of(&play, "worker");
    cluster_run_await(worker, over_lane, CLUSTER_RUN_DEADLINE);
    cluster_run_await(play.tasks[0].process, "checkpoint",
                      CLUSTER_RUN_DEADLINE);
    cluster_run_signal(worker, SIGSTOP);
    cluster_play_pass(4.5); /* a lane that is not read is left after 3 s */
    cluster_run_signal(worker, SIGCONT);
    cluster_play_expect(&play, CLUSTER_PLAY_TASKS, 0, 2 * CLUSTER_RUN_DEADLINE);
    cluster_play_same(*state, "auto", "checkpoint");
}

/* What PROCESS shares has no name in a file system, where it could stay. Other
 * programs may come and go there meanwhile. */
static void expect_nameless(const struct cluster_process *process) {
    char path[64], line[PATH_MAX + 128];
    bool shares = false;
    snprintf(path, sizeof path, "/proc/%d/maps", cluster_run_pid(process));
    FILE *maps = fopen(path, "r");
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
                      char name[LANES_NAME]) {
    char path[64], target[64], line[512], inode[32], wanted[48];
    snprintf(path, sizeof path, "/proc/%d/fd", cluster_run_pid(process));
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
    const char *line = cluster_run_await(chief, ", run ", CLUSTER_RUN_DEADLINE);
    char run[17], word[17];
    int length = 0;
    assert_int_equal(sscanf(strstr(line, ", run "), ", run %16s", run), 1);
    assert_int_equal(sscanf(name, "capstan-%16[0-9a-f]%n", word, &length), 1);
    assert_int_equal(length, strlen(name));
    assert_string_not_equal(word, run);
}

static void who_is_killed_leaves_nothing(void **state) {
    static const char *const victims[] = {"worker", "ps"};
    char name[LANES_NAME];
    for (int v = 0; v < 2; v++) {
        struct cluster_play play;
        cluster_play_renew(state);
        begin(state, &play);
        struct cluster_process *chief = play.tasks[0].process;
        unsigned victim = cluster_play_find(&play, victims[v], 0);
        cluster_run_await(process_of(&play, "worker"), over_lane,
                          CLUSTER_RUN_DEADLINE);
        find_name(process_of(&play, "ps"), name);
        expect_no_number_in(name, chief);
        cluster_run_await(chief, "checkpoint", CLUSTER_RUN_DEADLINE);
        expect_nameless(play.tasks[victim].process);
        cluster_run_signal(play.tasks[victim].process, SIGKILL);
        cluster_run_expect(play.tasks[victim].process, KILLED, 4);
        if (v == 0) /* the others wait for its silence */
            for (unsigned i = 0; i < play.count; i++)
                cluster_run_signal(play.tasks[i].process, SIGKILL);
        cluster_play_expect(&play, victim, v == 0 ? KILLED : RETRY,
                            2 * CLUSTER_RUN_DEADLINE);
        assert_int_equal(
            cluster_play_said(process_of(&play, "worker"), lost_lane), v == 1);
        assert_false(is_listed(name));
    }
}

static void turn(struct lanes *lanes) {
    struct pollfd item = {lanes_descriptor(lanes), POLLIN, 0};
    lanes_sleep(lanes);
    poll(&item, 1, 10);
    lanes_tend(lanes, time_now());
}

/* A lane of this process to the server of NAME. */
static struct lane *call(struct lanes *lanes, const char *name,
                         uint32_t *number) {
    char text[128];
    int64_t deadline = time_now() + CLUSTER_RUN_DEADLINE * TIME_S;
    *number = lanes_call(lanes, name, text, sizeof text);
    for (;;) {
        assert_true(time_now() < deadline);
        turn(lanes);
        struct lane *lane = lanes_find(lanes, *number);
        if (lane && lane_bell(lane) >= 0)
            return lane;
    }
}

/* The server ends the lane of NUMBER. */
static void expect_end(struct lanes *lanes, uint32_t number) {
    int64_t deadline = time_now() + CLUSTER_RUN_DEADLINE * TIME_S;
    while (lanes_find(lanes, number)) {
        assert_true(time_now() < deadline);
        turn(lanes);
    }
}

static void disturb(const char *name) {
    struct lanes *lanes = lanes_open(MESSAGE_MAX_PAYLOAD);
    uint32_t number;
    struct lane *lane = call(lanes, name, &number);
    lane_send(lane, "no data header", 14, NULL);
    turn(lanes);
    expect_end(lanes, number);
    lane = call(lanes, name, &number);
    memset(lane->writer.bytes, 0x5a, 4096);
    atomic_store(&lane->writer.shared->head, 4096);
    lane_send(lane, "rings the bell", 14, NULL);
    atomic_store(&lane->writer.shared->head, UINT64_MAX);
    expect_end(lanes, number);
    lane = call(lanes, name, &number);
    struct ring_payload far = {.offset = UINT64_C(1) << 60, .bytes = 4096};
    ring_reserve(&lane->writer, 0);
    ring_commit(&lane->writer, "x", 1, &far);
    lane_send(lane, "rings the bell", 14, NULL);
    expect_end(lanes, number);
    lanes_close(&lanes);
}

static void strangers_on_a_lane_do_not_disturb_a_run(void **state) {
    struct cluster_play play;
    char name[LANES_NAME];
    complete(*state, "auto", true);
    begin(state, &play);
    cluster_run_await(process_of(&play, "worker"), over_lane,
                      CLUSTER_RUN_DEADLINE);
    find_name(process_of(&play, "ps"), name);
    for (int i = 0; i < 3; i++)
        disturb(name);
    cluster_play_expect(&play, CLUSTER_PLAY_TASKS, 0, 2 * CLUSTER_RUN_DEADLINE);
    cluster_play_same(*state, "auto", "checkpoint");
    assert_true(
        cluster_play_said(play.tasks[cluster_play_find(&play, "ps", 0)].process,
                          "shares memory is left") ||
        cluster_play_said(play.tasks[cluster_play_find(&play, "ps", 1)].process,
                          "shares memory is left"));
}

#define LANE_TEST(f)                                                           \
    cmocka_unit_test_setup_teardown(f, cluster_run_setup, cluster_run_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        LANE_TEST(both_lanes_give_the_same_bits),
        LANE_TEST(a_lane_that_is_none_is_refused),
        LANE_TEST(a_stopped_worker_goes_on_where_it_was),
        LANE_TEST(who_is_killed_leaves_nothing),
        LANE_TEST(strangers_on_a_lane_do_not_disturb_a_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
