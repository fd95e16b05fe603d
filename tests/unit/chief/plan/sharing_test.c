/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/sharing.h"

#include "chief/run.h"
#include "proto/base/time.h"
#include "tests/lib/run_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { WORKERS = 3 };

/* Three workers, who tell what they see. */
static int setup(void **state) {
    run_fixture_setup(state, WORKERS);
    return 0;
}

/* Worker RANK tells that it sees IDS, "a b c" of a letter each, and would take
 * ALONE of them. */
static void tell(struct run_fixture *fixture, uint32_t rank, const char *ids,
                 uint32_t alone) {
    Capstan__Sight sight = CAPSTAN__SIGHT__INIT;
    char texts[16][2], *list[16];
    for (const char *id = ids; *id; id++) {
        if (*id == ' ')
            continue;
        texts[sight.n_devices][0] = *id;
        texts[sight.n_devices][1] = 0;
        list[sight.n_devices] = texts[sight.n_devices];
        sight.n_devices++;
    }
    sight.devices = list;
    sight.alone = alone;
    sharing_take(&fixture->run, &fixture->run.roster.slots[rank], &sight);
}

static void expect(struct run_fixture *fixture, uint32_t rank, uint32_t place,
                   uint32_t trainers) {
    struct sharing_place found = sharing_place(&fixture->run, rank);
    assert_int_equal(found.place, place);
    assert_int_equal(found.trainers, trainers);
}

static void who_sees_the_same_device_shares_it(void **state) {
    struct run_fixture *fixture = *state;
    tell(fixture, 0, "a b", 2);
    tell(fixture, 1, "c d", 2);
    tell(fixture, 2, "b a", 2);
    expect(fixture, 0, 0, 2);
    expect(fixture, 1, 0, 1);
    expect(fixture, 2, 1, 2);
}

/* One that sees all shares with two who have nothing of each other's. */
static void one_device_of_several_is_enough(void **state) {
    struct run_fixture *fixture = *state;
    tell(fixture, 0, "a", 1);
    tell(fixture, 1, "a b c", 3);
    tell(fixture, 2, "c", 1);
    expect(fixture, 0, 0, 2);
    expect(fixture, 1, 1, 3);
    expect(fixture, 2, 1, 2);
}

static void who_computes_on_the_processor_shares_nothing(void **state) {
    struct run_fixture *fixture = *state;
    for (uint32_t r = 0; r < WORKERS; r++)
        tell(fixture, r, "", 0);
    for (uint32_t r = 0; r < WORKERS; r++) {
        expect(fixture, r, 0, 1);
        assert_true(fixture->run.trainers[r].sight.answered);
        assert_false(sharing_waits(&fixture->run, r));
    }
}

static void nobody_is_answered_before_all_have_told(void **state) {
    struct run_fixture *fixture = *state;
    struct run_trainer *trainers = fixture->run.trainers;
    tell(fixture, 0, "a", 1);
    tell(fixture, 1, "a", 1);
    assert_false(trainers[0].sight.answered || trainers[1].sight.answered);
    assert_true(sharing_waits(&fixture->run, 0));
    assert_false(sharing_waits(&fixture->run, 2));
    tell(fixture, 2, "a", 1);
    for (uint32_t r = 0; r < WORKERS; r++)
        assert_true(trainers[r].sight.answered);
    assert_false(sharing_waits(&fixture->run, 0));
}

/* One of an older kind, or in another language. */
static void who_declares_and_has_told_nothing_is_not_waited_for(void **state) {
    struct run_fixture *fixture = *state;
    struct run_trainer *trainers = fixture->run.trainers;
    tell(fixture, 0, "a", 1);
    tell(fixture, 1, "a", 1);
    trainers[2].declared = true;
    trainers[2].devices = 1;
    sharing_declared(&fixture->run, &fixture->run.roster.slots[2]);
    assert_true(trainers[0].sight.answered && trainers[1].sight.answered);
    assert_false(trainers[2].sight.answered);
    expect(fixture, 2, 0, 1);
    trainers[2].declared = false; /* another holder of its slot */
    trainers[2].devices = 0;
    tell(fixture, 0, "a", 1);
    assert_int_equal(trainers[2].devices, 1);
}

/* Others' places do not move meanwhile. */
static void who_comes_back_is_answered_at_once(void **state) {
    struct run_fixture *fixture = *state;
    struct sharing_sight *sight = &fixture->run.trainers[0].sight;
    for (uint32_t r = 0; r < WORKERS; r++)
        tell(fixture, r, "a b c", 3);
    fixture->run.phase = RUN_TRAINING;
    sight->told = sight->answered = false; /* as a new holder of the slot */
    expect(fixture, 1, 1, 3);
    tell(fixture, 0, "x", 1);
    assert_true(sight->answered);
    expect(fixture, 0, 0, 1);
    expect(fixture, 1, 0, 2);
}

static void a_batch_that_cannot_be_ends_the_run_before_devices_are_taken(
    void **state) {
    struct run_fixture *fixture = *state;
    struct run *run = &fixture->run;
    fixture->job.train_batch_size = 50;
    tell(fixture, 0, "a b", 2);
    tell(fixture, 1, "c d", 2);
    tell(fixture, 2, "e f", 2);
    assert_int_equal(run->phase, RUN_STOPPING);
    assert_int_equal(run->status, STATUS_CONFIG);
    assert_non_null(strstr(run->text, "6 replicas (3 trainers x 2 devices)"));
    assert_false(run->trainers[2].sight.answered);
}

/* Who has a device alone takes all; who shares them takes one. */
static void what_is_foreseen_leaves_nothing_of_a_plan(void **state) {
    struct run_fixture *fixture = *state;
    struct run *run = &fixture->run;
    fixture->job.train_batch_size = 40;
    tell(fixture, 0, "a b", 2);
    tell(fixture, 1, "a b", 2);
    tell(fixture, 2, "c d", 2);
    assert_int_equal(run->phase, RUN_JOINING);
    assert_int_equal(run->trainers[1].devices, 2);
    assert_int_equal(run->trainers[2].replicas, 0);
    assert_int_equal(run->num_replicas, 0);
    assert_int_equal(fixture->job.accumulation, 0);
}

static void no_peer_tells_of_more_than_a_trainer_may_have(void **state) {
    struct run_fixture *fixture = *state;
    tell(fixture, 0, "abcdefghijklmnop", UINT32_MAX);
    tell(fixture, 1, "", 0);
    tell(fixture, 2, "", 0);
    assert_int_equal(fixture->run.trainers[0].devices, JOB_MOST_DEVICES);
    assert_int_equal(fixture->run.trainers[1].devices, 1);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, run_fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(who_sees_the_same_device_shares_it),
        TEST(one_device_of_several_is_enough),
        TEST(who_computes_on_the_processor_shares_nothing),
        TEST(nobody_is_answered_before_all_have_told),
        TEST(who_declares_and_has_told_nothing_is_not_waited_for),
        TEST(who_comes_back_is_answered_at_once),
        TEST(a_batch_that_cannot_be_ends_the_run_before_devices_are_taken),
        TEST(what_is_foreseen_leaves_nothing_of_a_plan),
        TEST(no_peer_tells_of_more_than_a_trainer_may_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
