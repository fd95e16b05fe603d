/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct metrics_fixture *measured

#include "chief/report/stall.h"

#include "core/base/time.h"
#include "tests/lib/metrics_fixture.h"
#include "tests/lib/test.h"

#include <math.h>
#include <string.h>

static int64_t at(double seconds) {
    return time_from_seconds(100 + seconds);
}

/* Two trainers that have taken STEPS each, a step in SECONDS. */
static void prepare(struct metrics_fixture *measured, uint64_t steps,
                    double seconds) {
    struct roster *roster = &measured->run.roster;
    roster->count = roster->num_ranks = 2;
    for (uint32_t r = 0; r < 2; r++) {
        struct run_trainer *trainer = &measured->trainers[r];
        roster->slots[r] = (struct roster_slot){.role = CLUSTER_WORKER,
                                                .index = r,
                                                .rank = r,
                                                .state = ROSTER_HELD,
                                                .last_seen = at(0)};
        trainer->in_view = true;
        trainer->from = 1;
        trainer->heartbeat.clock = steps;
        trainer->heartbeat.training_s = seconds * (double)steps;
    }
    stall_update(&measured->run, at(0));
}

/* TRAINER is heard of at SECONDS, and then looked at. */
static void receive(struct metrics_fixture *measured, uint32_t trainer,
                    double seconds) {
    measured->run.roster.slots[trainer].last_seen = at(seconds);
    stall_update(&measured->run, at(seconds));
}

static void expect(struct metrics_fixture *measured, double now, double stalled,
                   const char *cause) {
    char text[256];
    double found = stall_seconds(&measured->run, at(now), text, sizeof text);
    assert_true(fabs(found - stalled) < 1e-9);
    assert_string_equal(text, cause);
}

FIXTURE(metrics_fixture_setup, metrics_fixture_teardown);

TEST(a_trainer_that_has_not_finished_the_step_is_named) {
    prepare(measured, 100, 0.01);
    measured->trainers[0].heartbeat.clock = 101;
    receive(measured, 0, 4);
    receive(measured, 1, 4);
    expect(measured, 4, 4, "waiting for worker 1");
    measured->trainers[0].heartbeat.clock = 100;
    expect(measured, 4, 4, "");
}

TEST(a_silent_trainer_is_named_before_a_slow_one) {
    prepare(measured, 100, 0.01);
    measured->trainers[0].heartbeat.clock = 101;
    receive(measured, 1, 4);
    expect(measured, 4, 4, "waiting for worker 0, silent for 4 s");
}

TEST(a_step_may_take_its_usual_time) {
    prepare(measured, 10, 10);
    receive(measured, 0, 29);
    receive(measured, 1, 29);
    expect(measured, 29, 0, "");
    expect(measured, 30, 30, "");
}

TEST(without_a_silence_no_time_is_lost) {
    prepare(measured, 100, 0.01);
    for (double second = 1; second <= 4; second++) {
        measured->run.roster.slots[1].last_seen = at(second);
        receive(measured, 0, second);
    }
    measured->trainers[0].heartbeat.clock =
        measured->trainers[1].heartbeat.clock = 101;
    stall_update(&measured->run, at(4));
    assert_true(measured->run.stall.lost.seconds == 0);
}

/* One that comes back, then one that is declared gone: the other waits, and has
 * finished before progress is shown again. */
TEST(time_without_a_step_is_charged_to_the_silent_peer) {
    const struct run_wait_loss *lost = &measured->run.stall.lost;
    prepare(measured, 100, 0.01);
    receive(measured, 0, 3);
    receive(measured, 1, 3);
    measured->trainers[0].heartbeat.clock =
        measured->trainers[1].heartbeat.clock = 101;
    stall_update(&measured->run, at(3));
    assert_true(fabs(lost->seconds - 3) < 1e-9);
    assert_string_equal(lost->peer, "worker 1");
    receive(measured, 1, 5);
    measured->trainers[1].heartbeat.clock = 102;
    roster_remove(&measured->run.roster.slots[0]);
    measured->trainers[1].finished = true;
    measured->run.metrics.reached = 102;
    stall_update(&measured->run, at(8));
    assert_true(fabs(lost->seconds - 8) < 1e-9);
    assert_true(fabs(lost->longest - 5) < 1e-9);
    assert_string_equal(lost->peer, "worker 0");
}

/* The silent trainer has not brought its part of it either. */
TEST(an_open_evaluation_hides_no_silence) {
    struct run_evaluation evaluation = {.open = true};
    prepare(measured, 100, 0.01);
    measured->run.evaluations.items = &evaluation;
    measured->run.evaluations.count = 1;
    receive(measured, 0, 3);
    receive(measured, 0, 5);
    roster_remove(&measured->run.roster.slots[1]);
    measured->trainers[0].heartbeat.clock = 101;
    stall_update(&measured->run, at(5));
    measured->run.evaluations.count = 0;
    assert_true(fabs(measured->run.stall.lost.seconds - 5) < 1e-9);
    assert_string_equal(measured->run.stall.lost.peer, "worker 1");
}
