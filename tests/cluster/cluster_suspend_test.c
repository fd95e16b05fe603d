/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that stand still for longer than a deadline and go on: the time in
 * which one did not run itself, it blames on nobody. */
#include "tests/cluster/cluster_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { RETRY = 138 };

static void signal_all(const struct cluster_fixture *fixture, int number) {
    for (unsigned i = 0; i < fixture->count; i++)
        cluster_run_signal(fixture->tasks[i].process, number);
}

static void begin(struct cluster_fixture *fixture, struct cluster_run *run,
                  const char *job, unsigned num_workers) {
    cluster_run_job(run, job);
    cluster_fixture_describe(fixture, run, 1, 1, num_workers);
    cluster_fixture_start_all(fixture);
    cluster_run_await(fixture->tasks[0].process, "%)", CLUSTER_RUN_DEADLINE);
}

/* Trains on, and ends by a signal as any run does. */
static void end(const struct cluster_fixture *fixture) {
    cluster_run_await(fixture->tasks[0].process, "%)", CLUSTER_RUN_DEADLINE);
    cluster_run_signal(fixture->tasks[0].process, SIGTERM);
    cluster_run_expect(fixture->tasks[0].process, 128 + SIGTERM,
                       CLUSTER_RUN_DEADLINE);
    cluster_fixture_expect(fixture, 0, RETRY, CLUSTER_RUN_DEADLINE);
}

/* Its trainer is in the same process, and has taken no step either. */
static void a_resumed_chief_does_not_blame_its_trainer(void **state) {
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
    cluster_run_await(chief, "this process itself stood still for 6 s",
                      CLUSTER_RUN_DEADLINE);
    end(&fixture);
    assert_false(cluster_fixture_has_logged(chief, "no heartbeat from"));
}

static const char short_of_peer[] =
    "{\"steps\": 1000000, \"steps_per_epoch\": 1000000,"
    " \"steps_per_print\": 500, \"chief\": \"coordinate\","
    " \"timeouts\": {\"peer\": 4, \"stop\": 1}}";

/* As a virtual machine that is paused, or a frozen container. */
static void a_suspended_machine_loses_no_member(void **state) {
    struct cluster_fixture fixture;
    begin(&fixture, *state, short_of_peer, 2);
    signal_all(&fixture, SIGSTOP);
    cluster_fixture_sleep(6);
    signal_all(&fixture, SIGCONT);
    for (unsigned i = 0; i < fixture.count; i++)
        cluster_run_await(fixture.tasks[i].process,
                          "this process itself stood still for 6 s",
                          CLUSTER_RUN_DEADLINE);
    end(&fixture);
    assert_false(
        cluster_fixture_has_logged(fixture.tasks[0].process, "is gone"));
}

/* Each by its own deadline; what they have said of it is the cause. */
static void a_chief_that_was_declared_dead_says_why(void **state) {
    struct cluster_fixture fixture;
    begin(&fixture, *state, short_of_peer, 2);
    struct cluster_process *chief = fixture.tasks[0].process;
    cluster_run_signal(chief, SIGSTOP);
    cluster_fixture_expect(&fixture, 0, RETRY, CLUSTER_RUN_DEADLINE);
    cluster_run_signal(chief, SIGCONT);
    cluster_run_expect(chief, RETRY, CLUSTER_RUN_DEADLINE);
    cluster_fixture_expect_logged(chief, "this process itself stood still for");
    cluster_fixture_expect_logged(chief, "was silent for 4 s (timeouts.peer)");
    assert_false(cluster_fixture_has_logged(chief, "is gone: silent"));
}

/* Nobody is left to say so. */
static void a_member_lost_during_a_suspension_is_reported_with_it(
    void **state) {
    struct cluster_fixture fixture;
    begin(&fixture, *state, short_of_peer, 2);
    struct cluster_process *chief = fixture.tasks[0].process;
    cluster_run_signal(chief, SIGSTOP);
    for (unsigned i = 1; i < fixture.count; i++)
        cluster_run_signal(fixture.tasks[i].process, SIGKILL);
    cluster_fixture_sleep(6);
    cluster_run_signal(chief, SIGCONT);
    cluster_run_await(chief, "this process itself stood still for 6 s",
                      CLUSTER_RUN_DEADLINE);
    cluster_run_await(chief, "no heartbeat from", CLUSTER_RUN_DEADLINE);
    cluster_run_expect(chief, RETRY, CLUSTER_RUN_DEADLINE);
    cluster_fixture_expect_logged(chief,
                                  "is gone since this chief itself stood "
                                  "still for 6 s, and its weights with it");
}

#define STANDSTILL_TEST(name)                                                  \
    cmocka_unit_test_setup_teardown(name, cluster_run_setup_in_memory,         \
                                    cluster_run_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        STANDSTILL_TEST(a_resumed_chief_does_not_blame_its_trainer),
        STANDSTILL_TEST(a_suspended_machine_loses_no_member),
        STANDSTILL_TEST(a_chief_that_was_declared_dead_says_why),
        STANDSTILL_TEST(a_member_lost_during_a_suspension_is_reported_with_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
