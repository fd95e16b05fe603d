/* SPDX-License-Identifier: Apache-2.0 */
/* Two runs and one checkpoint directory. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <unistd.h>

enum { CONFIG = 2, RETRY = 138, MAXIMUM = 64 };

static const char endless[] =
    "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
    " \"chief\": \"coordinate\", \"checkpoint\": {\"every_seconds\": 0.4,"
    " \"keep\": 60}, \"timeouts\": {\"peer\": 5, \"chief\": 0}}";

static struct cluster_process *begin(struct cluster_fixture *fixture,
                                     struct cluster_run *run) {
    cluster_run_job(run, endless);
    cluster_fixture_describe(fixture, run, 1, 2, 2);
    cluster_fixture_start_all(fixture);
    struct cluster_process *chief = fixture->tasks[0].process;
    cluster_run_await_soon(chief, "checkpoint /");
    return chief;
}

static void end(const struct cluster_fixture *fixture) {
    cluster_run_signal(fixture->tasks[0].process, SIGTERM);
    cluster_run_expect_soon(fixture->tasks[0].process, 128 + SIGTERM);
    cluster_fixture_expect_soon(fixture, 0, RETRY);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(a_second_run_is_refused_and_the_first_continues) {
    struct cluster_fixture fixture;
    uint64_t steps[MAXIMUM];
    char text[512], host[256] = "";
    struct cluster_process *chief = begin(&fixture, run), *second;
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "the chief, pid %d on host %s",
             cluster_run_pid(chief), host);
    static const char *const never[] = {"checkpoint.resume=never", NULL};
    second = cluster_fixture_local(run, 1, 1, never);
    cluster_run_expect_soon(second, CONFIG);
    assert_true(cluster_fixture_has_logged(second, "another run is using"));
    assert_true(cluster_fixture_has_logged(second, text));
    assert_false(cluster_fixture_has_logged(second, "aside"));
    cluster_run_await_soon(chief, "checkpoint /");
    end(&fixture);
    assert_true(cluster_fixture_checkpoints(run, "checkpoint", steps, MAXIMUM) >
                1);
}

TEST(checkpoints_can_be_read_during_a_run) {
    struct cluster_fixture fixture;
    begin(&fixture, run);
    cluster_fixture_tool(run, 0, WORDS("ckpt", "ls", "checkpoint"));
    cluster_fixture_tool(run, 0, WORDS("ckpt", "verify", "checkpoint"));
    cluster_fixture_tool(run, 0,
                         WORDS("ckpt", "export", "checkpoint", "now.npz"));
    end(&fixture);
}

/* While the ps of the killed run still wait for its chief. */
TEST(a_killed_chief_releases_its_directory_at_once) {
    struct cluster_fixture fixture;
    struct cluster_process *chief = begin(&fixture, run), *local;
    cluster_run_signal(chief, SIGKILL);
    cluster_run_expect_soon(chief, 128 + SIGKILL);
    local = cluster_fixture_local(run, 1, 1, NULL);
    cluster_run_await_soon(local, "resuming from");
    cluster_run_signal(local, SIGTERM);
    cluster_run_expect_soon(local, 128 + SIGTERM);
    cluster_fixture_expect_soon(&fixture, 0, RETRY);
}

static void move_away(const struct cluster_run *run) {
    const char *from = cluster_run_path(run, "checkpoint");
    assert_int_equal(rename(from, cluster_run_path(run, "away")), 0);
}

/* Cleaned up by somebody who took the run for dead. */
TEST(a_removed_directory_is_created_and_locked_again) {
    struct cluster_fixture fixture;
    uint64_t steps[MAXIMUM];
    struct cluster_process *chief = begin(&fixture, run);
    move_away(run);
    cluster_run_await_soon(chief, "was removed or replaced during the run");
    cluster_run_await_soon(chief, "checkpoint /");
    cluster_run_await_soon(chief, "checkpoint /");
    struct cluster_process *second = cluster_fixture_local(run, 1, 1, NULL);
    cluster_run_expect_soon(second, CONFIG);
    assert_true(cluster_fixture_has_logged(second, "another run is using"));
    end(&fixture);
    assert_true(cluster_fixture_checkpoints(run, "checkpoint", steps, MAXIMUM) >
                1);
}

/* The other one has it now, and keeps what it writes there. */
TEST(a_directory_taken_by_another_run_is_left_alone) {
    struct cluster_fixture fixture;
    uint64_t steps[MAXIMUM];
    struct cluster_process *chief = begin(&fixture, run), *second;
    /* else it may be there first */
    for (unsigned i = 0; i < fixture.count; i++)
        cluster_run_signal(fixture.tasks[i].process, SIGSTOP);
    move_away(run);
    second = cluster_fixture_local(run, 1, 1, NULL);
    cluster_run_await_soon(second, "checkpoint /");
    for (unsigned i = 0; i < fixture.count; i++)
        cluster_run_signal(fixture.tasks[i].process, SIGCONT);
    const char *line = cluster_run_await_soon(chief, "another run is using");
    assert_contains(line, "there is no checkpoint of step ");
    end(&fixture);
    assert_true(cluster_fixture_has_logged(chief, "there is no checkpoint"));
    cluster_run_signal(second, SIGTERM);
    cluster_run_expect_soon(second, 128 + SIGTERM);
    assert_true(cluster_fixture_checkpoints(run, "checkpoint", steps, MAXIMUM) >
                1);
}
