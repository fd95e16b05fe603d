/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in memory of two ps, of which one does not tell of its part. What all
 * tell is in the simulation and cluster_buddies_test.c. */
#include "chief/snapshot/buddies.h"

#include "chief/rewind.h"
#include "core/base/time.h"
#include "tests/lib/run_fixture.h"
#include "tests/lib/test.h"

enum { TRAINERS = 1, PS = 2, STEP = 10 };

static struct rewind_lineage lineage;

static int setup(void **state) {
    struct parameter parameter = {.name = "p", .num_dims = 1, .dims = {1}};
    run_fixture_setup(state, TRAINERS);
    struct run_fixture *fixture = *state;
    struct run *run = &fixture->run;
    control_server_close(&run->control_server);
    roster_close(&run->roster);
    assert_true(roster_open(&run->roster, false, TRAINERS, PS, TIME_S));
    run->control_server = control_server_open(
        fixture->wire->server_link, &run->roster, &fixture->wire->log, 1, 2);
    assert_non_null(run->control_server);
    assert_ok(layout_build(&run->plan.layout, &parameter, 1, &failure));
    fixture->job.timeouts.step = fixture->job.timeouts.peer = 1;
    run->plan.num_holders = PS;
    run->plan.schedule.buddy_steps = STEP;
    run->phase = RUN_TRAINING;
    run->buddies.has_begun = true;
    run->lineage = &lineage;
    return 0;
}

static int teardown(void **state) {
    buddies_close(&((struct run_fixture *)*state)->run);
    return run_fixture_teardown(state);
}

static void tell_written(struct run *run, uint32_t ps) {
    Capstan__SnapshotReport part = CAPSTAN__SNAPSHOT_REPORT__INIT;
    Capstan__BuddyReport report = CAPSTAN__BUDDY_REPORT__INIT;
    part.outcome = CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN;
    part.name = "part.bin";
    report.step = STEP;
    report.part = &part;
    buddies_receive(run, roster_ps(&run->roster, ps), &report);
}

static void tell_fetched(struct run *run, uint32_t ps) {
    Capstan__BuddyReport report = CAPSTAN__BUDDY_REPORT__INIT;
    report.step = STEP;
    report.fetched = true;
    buddies_receive(run, roster_ps(&run->roster, ps), &report);
}

static bool has_metrics(struct run *run, uint64_t step) {
    (void)run;
    return step == STEP;
}

/* Once the two limits are over. */
static void expect_given_up(struct run_fixture *fixture) {
    struct run *run = &fixture->run;
    link_fixture_capture_log(fixture->wire);
    buddies_step(run, has_metrics);
    struct buddies_set *set = buddies_find(&run->buddies, STEP);
    assert_non_null(set);
    set->since -= 2 * TIME_S;
    buddies_step(run, has_metrics);
    assert_null(buddies_find(&run->buddies, STEP));
    assert_int_equal(run->buddies.ordered, 0);
    assert_contains(link_fixture_captured_log(fixture->wire),
                    "step 10: ps 1 has not told within 2 s");
}

TEST_WITH(setup, teardown, who_does_not_write_its_part_is_named) {
    struct run_fixture *fixture = *state;
    tell_written(&fixture->run, 0);
    tell_written(&fixture->run, 0);
    assert_int_equal(fixture->run.buddies.ordered, 0);
    expect_given_up(fixture);
}

TEST_WITH(setup, teardown, who_does_not_fetch_the_other_part_is_named) {
    struct run_fixture *fixture = *state;
    tell_written(&fixture->run, 0);
    tell_written(&fixture->run, 1);
    assert_int_equal(fixture->run.buddies.ordered, STEP);
    tell_fetched(&fixture->run, 0);
    tell_fetched(&fixture->run, 0);
    expect_given_up(fixture);
}

/* The state at a step that was asked for may be that of a later one, the
 * multiple that is due next. */
TEST(no_step_is_copied_twice) {
    struct run_buddies buddies = {0};
    assert_true(buddies_is_due(&buddies, 2, 2));
    assert_non_null(buddies_begin(&buddies, 4, PS, TRAINERS, 0));
    assert_false(buddies_is_due(&buddies, 2, 4));
    assert_true(buddies_is_due(&buddies, 2, 5));
    assert_false(buddies_is_due(&buddies, 2, 5));
    assert_true(
        buddies_may_copy(&buddies, 5)); /* what the one due then is of */
    assert_false(buddies_may_copy(&buddies, 5));
    assert_false(buddies_may_copy(&buddies, 4));
    for (int i = 0; i < BUDDIES_SETS; i++)
        if (buddies.sets[i].step)
            buddies_forget(&buddies, &buddies.sets[i]);
}
