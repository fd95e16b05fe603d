/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that stand still for longer than a deadline and go on: the time in
 * which one did not run itself, it blames on nobody. */
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/test.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { CONFIG = 2, RETRY = 138, KILLED = 128 + SIGKILL };

static void signal_all(const struct cluster_fixture *fixture, int number) {
    for (unsigned i = 0; i < fixture->count; i++)
        cluster_run_signal(fixture->tasks[i].process, number);
}

static void begin(struct cluster_fixture *fixture, struct cluster_run *run,
                  const char *job, unsigned num_workers) {
    cluster_run_job(run, job);
    cluster_fixture_describe(fixture, run, 1, 1, num_workers);
    cluster_fixture_start_all(fixture);
    cluster_run_await_soon(fixture->tasks[0].process, "%)");
}

/* Trains on, and ends by a signal as any run does. */
static void end(const struct cluster_fixture *fixture) {
    cluster_run_await_soon(fixture->tasks[0].process, "%)");
    cluster_run_signal(fixture->tasks[0].process, SIGTERM);
    cluster_run_expect_soon(fixture->tasks[0].process, 128 + SIGTERM);
    cluster_fixture_expect_soon(fixture, 0, RETRY);
}

FIXTURE(cluster_run_setup_in_memory, cluster_run_teardown);

/* Its trainer is in the same process, and has taken no step either. */
TEST(a_resumed_chief_does_not_blame_its_trainer) {
    struct cluster_fixture fixture;
    begin(&fixture, *state,
          "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
          " \"steps_per_print\": 500, \"chief\": \"train\","
          " \"timeouts\": {\"step\": 4, \"peer\": 24, \"stop\": 1}}",
          0);
    struct cluster_process *chief = fixture.tasks[0].process;
    cluster_run_signal(chief, SIGSTOP);
    cluster_fixture_sleep(6);
    cluster_run_signal(chief, SIGCONT);
    cluster_run_await_soon(chief, "this process itself stood still for 6 s");
    end(&fixture);
    assert_false(cluster_fixture_has_logged(chief, "no heartbeat from"));
}

static const char short_of_peer[] =
    "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
    " \"steps_per_print\": 500, \"chief\": \"coordinate\","
    " \"strategy\": {\"recovery\": \"end\"},"
    " \"timeouts\": {\"peer\": 4, \"stop\": 1}}";

/* As a virtual machine that is paused, or a frozen container. */
TEST(a_suspended_machine_loses_no_member) {
    struct cluster_fixture fixture;
    begin(&fixture, *state, short_of_peer, 2);
    signal_all(&fixture, SIGSTOP);
    cluster_fixture_sleep(6);
    signal_all(&fixture, SIGCONT);
    for (unsigned i = 0; i < fixture.count; i++)
        cluster_run_await_soon(fixture.tasks[i].process,
                               "this process itself stood still for 6 s");
    end(&fixture);
    assert_false(
        cluster_fixture_has_logged(fixture.tasks[0].process, "is gone"));
}

/* As when a person or a time server sets it. */
TEST(a_clock_that_jumps_harms_nobody) {
    char built[PATH_MAX];
    struct cluster_fixture fixture;
    assert_true(build_folder_find(built));
    const char *library = textf("%s/fake/jumping_clock.so", built);
    assert_int_equal(access(library, R_OK), 0);
    setenv("LD_PRELOAD", library, 1);
    setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1);
    begin(&fixture, *state, short_of_peer, 2);
    unsetenv("LD_PRELOAD");
    cluster_fixture_sleep(5); /* five jumps, and longer than timeouts.peer */
    end(&fixture);
    for (unsigned i = 0; i < fixture.count; i++) {
        const struct cluster_process *process = fixture.tasks[i].process;
        assert_false(cluster_fixture_has_logged(process, "is gone"));
        assert_false(cluster_fixture_has_logged(process, "stood still"));
    }
}

/* Each by its own deadline; what they have said of it is the cause. */
TEST(a_chief_that_was_declared_dead_says_why) {
    struct cluster_fixture fixture;
    begin(&fixture, *state, short_of_peer, 2);
    struct cluster_process *chief = fixture.tasks[0].process;
    cluster_run_signal(chief, SIGSTOP);
    cluster_fixture_expect_soon(&fixture, 0, RETRY);
    cluster_run_signal(chief, SIGCONT);
    cluster_run_expect_soon(chief, RETRY);
    cluster_fixture_expect_logged(chief, "this process itself stood still for");
    cluster_fixture_expect_logged(chief, "was silent for 4 s (timeouts.peer)");
    assert_false(cluster_fixture_has_logged(chief, "is gone: silent"));
}

/* Nobody is left to say so. */
TEST(a_member_lost_during_a_suspension_is_reported_with_it) {
    struct cluster_fixture fixture;
    begin(&fixture, *state, short_of_peer, 2);
    struct cluster_process *chief = fixture.tasks[0].process;
    cluster_run_signal(chief, SIGSTOP);
    for (unsigned i = 1; i < fixture.count; i++) /* as hosts that fail */
        cluster_run_signal(fixture.tasks[i].process, SIGSTOP);
    cluster_fixture_sleep(6);
    cluster_run_signal(chief, SIGCONT);
    cluster_run_await_soon(chief, "this process itself stood still for 6 s");
    cluster_run_await_soon(chief, "no heartbeat from");
    cluster_run_expect_soon(chief, RETRY);
    cluster_fixture_expect_logged(chief,
                                  "is gone since this chief itself stood "
                                  "still for 6 s, and its weights with it");
}

static const char far_from_peer[] =
    "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
    " \"steps_per_print\": 500, \"chief\": \"coordinate\","
    " \"timeouts\": {\"peer\": 300, \"stop\": 1}}";

/* Another process of task I, which listens on another port. */
static struct cluster_process *start_second(
    const struct cluster_fixture *fixture, unsigned i) {
    const struct cluster_fixture_task *task = &fixture->tasks[i];
    json_t *jobs = fixture->run->cluster;
    json_t *given = json_deep_copy(jobs);
    json_array_set_new(json_object_get(jobs, task->type), task->index,
                       json_string("localhost:0"));
    struct cluster_process *second =
        cluster_run_task(fixture->run, task->type, task->index, NULL);
    json_decref(jobs);
    fixture->run->cluster = given;
    return second;
}

/* It stands still for longer than any heartbeat takes, its connection is open,
 * and another process asks for its slot all the while. */
static void expect_keeps_its_slot(void **state, const char *type) {
    struct cluster_fixture fixture;
    begin(&fixture, *state, far_from_peer, 2);
    unsigned i = cluster_fixture_find(&fixture, type, 0);
    struct cluster_process *holder = fixture.tasks[i].process;
    cluster_run_signal(holder, SIGSTOP);
    struct cluster_process *second = start_second(&fixture, i);
    cluster_run_await_soon(second, "has not answered a join for 5 s");
    cluster_run_signal(holder, SIGCONT);
    cluster_run_expect_soon(second, CONFIG);
    cluster_fixture_expect_logged(second, "is already here, from host");
    end(&fixture);
    assert_false(
        cluster_fixture_has_logged(fixture.tasks[0].process, "is gone"));
}

TEST(a_stopped_worker_keeps_its_slot_beside_a_join) {
    expect_keeps_its_slot(state, "worker");
}

TEST(a_stopped_ps_keeps_its_slot_beside_a_join) {
    expect_keeps_its_slot(state, "ps");
}

/* Its kernel has closed its connection: nobody waits for timeouts.peer. */
TEST(a_worker_killed_beside_a_join_gives_its_slot_at_once) {
    struct cluster_fixture fixture;
    begin(&fixture, *state, far_from_peer, 2);
    unsigned i = cluster_fixture_find(&fixture, "worker", 0);
    struct cluster_process *holder = fixture.tasks[i].process;
    cluster_run_signal(holder, SIGSTOP);
    struct cluster_process *second = start_second(&fixture, i);
    cluster_run_await_soon(second, "has not answered a join for 5 s");
    cluster_run_signal(holder, SIGKILL);
    cluster_run_expect_soon(holder, KILLED);
    cluster_run_await_soon(second, "joined");
    fixture.tasks[i].process = second;
    end(&fixture);
    cluster_fixture_expect_logged(fixture.tasks[0].process,
                                  "worker 0 joined from");
}

/* It is dead as soon, and the run with it: the second one does not get its
 * slot. */
TEST(a_ps_killed_beside_a_join_is_replaced_at_once) {
    struct cluster_fixture fixture;
    begin(&fixture, *state, far_from_peer, 2);
    unsigned i = cluster_fixture_find(&fixture, "ps", 0);
    struct cluster_process *holder = fixture.tasks[i].process;
    struct cluster_process *second = start_second(&fixture, i);
    cluster_run_signal(holder, SIGKILL);
    cluster_run_expect_soon(holder, KILLED);
    cluster_run_await_soon(fixture.tasks[0].process, "is gone");
    cluster_run_await_soon(fixture.tasks[0].process, "the run goes on after");
    cluster_run_signal(fixture.tasks[0].process, SIGTERM);
    cluster_run_expect_soon(second, RETRY);
    cluster_fixture_expect_logged(second, "joined the chief");
}
