/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/stall.h"

#include "proto/base/time.h"
#include "tests/lib/measures_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

static int64_t at(double seconds) {
    return time_from_seconds(100 + seconds);
}

/* Two trainers that have taken STEPS each, a step in SECONDS. */
static void prepare(struct measures_fixture *measured, uint64_t steps,
                    double seconds) {
    struct roster *roster = &measured->run.roster;
    roster->count = roster->num_ranks = 2;
    for (uint32_t r = 0; r < 2; r++) {
        struct run_trainer *trainer = &measured->trainers[r];
        roster->slots[r] = (struct roster_slot){.role = CLUSTER_WORKER,
                                                .index = r,
                                                .rank = r,
                                                .state = ROSTER_HELD,
                                                .heard = at(0)};
        trainer->viewed = true;
        trainer->from = 1;
        trainer->beat.clock = steps;
        trainer->beat.training_s = seconds * (double)steps;
    }
    stall_note(&measured->run, at(0));
}

/* TRAINER is heard of at SECONDS, and then looked at. */
static void hear(struct measures_fixture *measured, uint32_t trainer,
                 double seconds) {
    measured->run.roster.slots[trainer].heard = at(seconds);
    stall_note(&measured->run, at(seconds));
}

static void expect(struct measures_fixture *measured, double now, double still,
                   const char *cause) {
    char text[256];
    double found = stall_seconds(&measured->run, at(now), text, sizeof text);
    assert_true(fabs(found - still) < 1e-9);
    assert_string_equal(text, cause);
}

static void who_has_not_finished_the_step_is_named(void **state) {
    struct measures_fixture *measured = *state;
    prepare(measured, 100, 0.01);
    measured->trainers[0].beat.clock = 101;
    hear(measured, 0, 4);
    hear(measured, 1, 4);
    expect(measured, 4, 4, "waiting for worker 1");
    measured->trainers[0].beat.clock = 100;
    expect(measured, 4, 4, "");
}

static void who_is_silent_is_named_before_who_is_slow(void **state) {
    struct measures_fixture *measured = *state;
    prepare(measured, 100, 0.01);
    measured->trainers[0].beat.clock = 101;
    hear(measured, 1, 4);
    expect(measured, 4, 4, "waiting for worker 0, silent for 4 s");
}

static void a_step_may_take_its_usual_time(void **state) {
    struct measures_fixture *measured = *state;
    prepare(measured, 10, 10);
    hear(measured, 0, 29);
    hear(measured, 1, 29);
    expect(measured, 29, 0, "");
    expect(measured, 30, 30, "");
}

static void without_a_silence_no_time_is_lost(void **state) {
    struct measures_fixture *measured = *state;
    prepare(measured, 100, 0.01);
    for (double second = 1; second <= 4; second++) {
        measured->run.roster.slots[1].heard = at(second);
        hear(measured, 0, second);
    }
    measured->trainers[0].beat.clock = measured->trainers[1].beat.clock = 101;
    stall_note(&measured->run, at(4));
    assert_true(measured->run.lost_time.seconds == 0);
}

/* One that comes back, then one that is declared gone: the other waits. */
static void time_without_a_step_is_lost_to_who_was_silent(void **state) {
    struct measures_fixture *measured = *state;
    const struct run_lost *lost = &measured->run.lost_time;
    prepare(measured, 100, 0.01);
    hear(measured, 0, 3);
    hear(measured, 1, 3);
    measured->trainers[0].beat.clock = measured->trainers[1].beat.clock = 101;
    stall_note(&measured->run, at(3));
    assert_true(fabs(lost->seconds - 3) < 1e-9);
    assert_string_equal(lost->peer, "worker 1");
    hear(measured, 1, 5);
    measured->trainers[1].beat.clock = 102;
    roster_remove(&measured->run.roster.slots[0]);
    stall_note(&measured->run, at(8));
    assert_true(fabs(lost->seconds - 8) < 1e-9);
    assert_true(fabs(lost->longest - 5) < 1e-9);
    assert_string_equal(lost->peer, "worker 0");
}

#define MEASURED(f)                                                            \
    cmocka_unit_test_setup_teardown(f, measures_fixture_setup,                 \
                                    measures_fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        MEASURED(who_has_not_finished_the_step_is_named),
        MEASURED(who_is_silent_is_named_before_who_is_slow),
        MEASURED(a_step_may_take_its_usual_time),
        MEASURED(without_a_silence_no_time_is_lost),
        MEASURED(time_without_a_step_is_lost_to_who_was_silent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
