/* SPDX-License-Identifier: Apache-2.0 */
/* Two runs and one checkpoint directory. */
#include "tests/cluster/cluster_play.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CONFIG = 2, RETRY = 138, MOST = 64 };

static const char endless[] =
    "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
    " \"chief\": \"coordinate\", \"checkpoint\": {\"every_seconds\": 0.4,"
    " \"keep\": 60}, \"timeouts\": {\"peer\": 5}}";

static struct cluster_process *begin(struct cluster_play *play,
                                     struct cluster_run *run) {
    cluster_run_job(run, endless);
    cluster_play_describe(play, run, 1, 2, 2);
    cluster_play_start_all(play);
    struct cluster_process *chief = play->tasks[0].process;
    cluster_run_await(chief, "checkpoint /", CLUSTER_RUN_DEADLINE);
    return chief;
}

static void end(const struct cluster_play *play) {
    cluster_run_signal(play->tasks[0].process, SIGTERM);
    cluster_run_expect(play->tasks[0].process, 128 + SIGTERM,
                       CLUSTER_RUN_DEADLINE);
    cluster_play_expect(play, 0, RETRY, CLUSTER_RUN_DEADLINE);
}

static void a_second_run_is_refused_and_the_first_goes_on(void **state) {
    struct cluster_run *run = *state;
    struct cluster_play play;
    uint64_t steps[MOST];
    char text[512], host[256] = "";
    struct cluster_process *chief = begin(&play, run), *second;
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "the chief, pid %d on host %s",
             cluster_run_pid(chief), host);
    static const char *const never[] = {"checkpoint.resume=never", NULL};
    second = cluster_play_local(run, 1, 1, never);
    cluster_run_expect(second, CONFIG, CLUSTER_RUN_DEADLINE);
    assert_true(cluster_play_said(second, "another run is using"));
    assert_true(cluster_play_said(second, text));
    assert_false(cluster_play_said(second, "aside"));
    cluster_run_await(chief, "checkpoint /", CLUSTER_RUN_DEADLINE);
    end(&play);
    assert_true(cluster_play_checkpoints(run, "checkpoint", steps, MOST) > 1);
}

static void checkpoints_are_read_while_a_run_lives(void **state) {
    struct cluster_run *run = *state;
    struct cluster_play play;
    begin(&play, run);
    cluster_play_tool(run, 0,
                      (const char *[]){"ckpt", "ls", "checkpoint", NULL});
    cluster_play_tool(run, 0,
                      (const char *[]){"ckpt", "verify", "checkpoint", NULL});
    cluster_play_tool(
        run, 0,
        (const char *[]){"ckpt", "export", "checkpoint", "now.npz", NULL});
    end(&play);
}

/* While the ps of the killed run still wait for its chief. */
static void a_killed_chiefs_directory_is_free_at_once(void **state) {
    struct cluster_run *run = *state;
    struct cluster_play play;
    struct cluster_process *chief = begin(&play, run), *local;
    cluster_run_signal(chief, SIGKILL);
    cluster_run_expect(chief, 128 + SIGKILL, CLUSTER_RUN_DEADLINE);
    local = cluster_play_local(run, 1, 1, NULL);
    cluster_run_await(local, "resuming from", CLUSTER_RUN_DEADLINE);
    cluster_run_signal(local, SIGTERM);
    cluster_run_expect(local, 128 + SIGTERM, CLUSTER_RUN_DEADLINE);
    cluster_play_expect(&play, 0, RETRY, CLUSTER_RUN_DEADLINE);
}

static void move_away(const struct cluster_run *run) {
    char from[PATH_MAX], to[PATH_MAX];
    cluster_run_path(run, "checkpoint", from);
    cluster_run_path(run, "away", to);
    assert_int_equal(rename(from, to), 0);
}

/* Cleaned up by somebody who took the run for dead. */
static void a_directory_that_is_removed_is_made_and_locked_anew(void **state) {
    struct cluster_run *run = *state;
    struct cluster_play play;
    uint64_t steps[MOST];
    struct cluster_process *chief = begin(&play, run);
    move_away(run);
    cluster_run_await(chief, "was removed or replaced while the run goes on",
                      CLUSTER_RUN_DEADLINE);
    cluster_run_await(chief, "checkpoint /", CLUSTER_RUN_DEADLINE);
    cluster_run_await(chief, "checkpoint /", CLUSTER_RUN_DEADLINE);
    struct cluster_process *second = cluster_play_local(run, 1, 1, NULL);
    cluster_run_expect(second, CONFIG, CLUSTER_RUN_DEADLINE);
    assert_true(cluster_play_said(second, "another run is using"));
    end(&play);
    assert_true(cluster_play_checkpoints(run, "checkpoint", steps, MOST) > 1);
}

/* The other one has it now, and keeps what it writes there. */
static void a_directory_that_another_run_has_taken_is_left_to_it(void **state) {
    struct cluster_run *run = *state;
    struct cluster_play play;
    uint64_t steps[MOST];
    struct cluster_process *chief = begin(&play, run), *second;
    /* else it may be there first */
    for (unsigned i = 0; i < play.count; i++)
        cluster_run_signal(play.tasks[i].process, SIGSTOP);
    move_away(run);
    second = cluster_play_local(run, 1, 1, NULL);
    cluster_run_await(second, "checkpoint /", CLUSTER_RUN_DEADLINE);
    for (unsigned i = 0; i < play.count; i++)
        cluster_run_signal(play.tasks[i].process, SIGCONT);
    const char *line =
        cluster_run_await(chief, "another run is using", CLUSTER_RUN_DEADLINE);
    assert_non_null(strstr(line, "there is no checkpoint of step "));
    end(&play);
    assert_true(cluster_play_said(chief, "there is no checkpoint"));
    cluster_run_signal(second, SIGTERM);
    cluster_run_expect(second, 128 + SIGTERM, CLUSTER_RUN_DEADLINE);
    assert_true(cluster_play_checkpoints(run, "checkpoint", steps, MOST) > 1);
}

#define CLAIM_TEST(name)                                                       \
    cmocka_unit_test_setup_teardown(name, cluster_run_setup,                   \
                                    cluster_run_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        CLAIM_TEST(a_second_run_is_refused_and_the_first_goes_on),
        CLAIM_TEST(checkpoints_are_read_while_a_run_lives),
        CLAIM_TEST(a_directory_that_is_removed_is_made_and_locked_anew),
        CLAIM_TEST(a_directory_that_another_run_has_taken_is_left_to_it),
        CLAIM_TEST(a_killed_chiefs_directory_is_free_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
