/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct run_fixture *fixture

#include "chief/plan/device_replicas.h"

#include "chief/run.h"
#include "core/base/time.h"
#include "tests/lib/run_fixture.h"
#include "tests/lib/test.h"

enum { WORKERS = 3 };

/* Three workers, who tell what they see. */
static int setup(void **state) {
    run_fixture_setup(state, WORKERS);
    return 0;
}

FIXTURE(setup, run_fixture_teardown);

/* Worker RANK tells that it sees IDS, "a b c" of a letter each, and would take
 * ALONE of them. */
static void tell(struct run_fixture *fixture, uint32_t rank, const char *ids,
                 uint32_t wanted_devices) {
    Capstan__VisibleDevices visible_devices = CAPSTAN__VISIBLE_DEVICES__INIT;
    char texts[16][2], *list[16];
    for (const char *id = ids; *id; id++) {
        if (*id == ' ')
            continue;
        texts[visible_devices.n_devices][0] = *id;
        texts[visible_devices.n_devices][1] = 0;
        list[visible_devices.n_devices] = texts[visible_devices.n_devices];
        visible_devices.n_devices++;
    }
    visible_devices.devices = list;
    visible_devices.wanted_devices = wanted_devices;
    device_replicas_receive_visible(
        &fixture->run, &fixture->run.roster.slots[rank], &visible_devices);
}

static void expect(struct run_fixture *fixture, uint32_t rank,
                   uint32_t sharer_index, uint32_t trainers) {
    struct device_replicas_local_rank found =
        device_replicas_local_rank(&fixture->run, rank);
    assert_int_equal(found.sharer_index, sharer_index);
    assert_int_equal(found.trainers, trainers);
}

TEST(trainers_that_see_the_same_device_share_it) {
    tell(fixture, 0, "a b", 2);
    tell(fixture, 1, "c d", 2);
    tell(fixture, 2, "b a", 2);
    expect(fixture, 0, 0, 2);
    expect(fixture, 1, 0, 1);
    expect(fixture, 2, 1, 2);
}

/* One that sees all shares with two who have nothing of each other's. */
TEST(one_common_device_is_enough_to_share) {
    tell(fixture, 0, "a", 1);
    tell(fixture, 1, "a b c", 3);
    tell(fixture, 2, "c", 1);
    expect(fixture, 0, 0, 2);
    expect(fixture, 1, 1, 3);
    expect(fixture, 2, 1, 2);
}

TEST(cpu_trainers_share_nothing) {
    for (uint32_t r = 0; r < WORKERS; r++)
        tell(fixture, r, "", 0);
    for (uint32_t r = 0; r < WORKERS; r++) {
        expect(fixture, r, 0, 1);
        assert_true(fixture->run.trainers[r].visible_devices.answered);
        assert_false(run_awaits_devices(&fixture->run, r));
    }
}

TEST(assignments_are_sent_after_all_have_reported) {
    struct run_trainer *trainers = fixture->run.trainers;
    tell(fixture, 0, "a", 1);
    tell(fixture, 1, "a", 1);
    assert_false(trainers[0].visible_devices.answered ||
                 trainers[1].visible_devices.answered);
    assert_true(run_awaits_devices(&fixture->run, 0));
    assert_false(run_awaits_devices(&fixture->run, 2));
    tell(fixture, 2, "a", 1);
    for (uint32_t r = 0; r < WORKERS; r++)
        assert_true(trainers[r].visible_devices.answered);
    assert_false(run_awaits_devices(&fixture->run, 0));
}

/* One of an older kind, or in another language. */
TEST(a_declared_trainer_without_devices_is_not_waited_for) {
    struct run_trainer *trainers = fixture->run.trainers;
    tell(fixture, 0, "a", 1);
    tell(fixture, 1, "a", 1);
    trainers[2].declared = true;
    trainers[2].devices = 1;
    device_replicas_have_declared(&fixture->run, &fixture->run.roster.slots[2]);
    assert_true(trainers[0].visible_devices.answered &&
                trainers[1].visible_devices.answered);
    assert_false(trainers[2].visible_devices.answered);
    expect(fixture, 2, 0, 1);
    trainers[2].declared = false; /* another member of its slot */
    trainers[2].devices = 0;
    tell(fixture, 0, "a", 1);
    assert_int_equal(trainers[2].devices, 1);
}

/* Others' places do not move meanwhile. */
TEST(a_rejoining_trainer_is_answered_at_once) {
    struct visible_devices *devices = &fixture->run.trainers[0].visible_devices;
    for (uint32_t r = 0; r < WORKERS; r++)
        tell(fixture, r, "a b c", 3);
    fixture->run.phase = RUN_TRAINING;
    devices->reported = devices->answered =
        false; /* as a new member of the slot */
    expect(fixture, 1, 1, 3);
    tell(fixture, 0, "x", 1);
    assert_true(devices->answered);
    expect(fixture, 0, 0, 1);
    expect(fixture, 1, 0, 2);
}

TEST(an_impossible_batch_ends_the_run_before_devices_are_opened) {
    struct run *run = &fixture->run;
    fixture->job.train_batch_size = 50;
    tell(fixture, 0, "a b", 2);
    tell(fixture, 1, "c d", 2);
    tell(fixture, 2, "e f", 2);
    assert_int_equal(run->phase, RUN_STOPPING);
    assert_int_equal(run->code, FAILURE_JOB_INVALID);
    assert_contains(run->text, "6 replicas (3 trainers x 2 devices)");
    assert_false(run->trainers[2].visible_devices.answered);
}

/* Who has a device alone takes all; who shares them takes one. */
TEST(a_predicted_assignment_does_not_keep_a_plan) {
    struct run *run = &fixture->run;
    fixture->job.train_batch_size = 40;
    tell(fixture, 0, "a b", 2);
    tell(fixture, 1, "a b", 2);
    tell(fixture, 2, "c d", 2);
    assert_int_equal(run->phase, RUN_JOINING);
    assert_int_equal(run->trainers[1].devices, 2);
    assert_int_equal(run->trainers[2].replicas, 0);
    assert_int_equal(run->plan.num_replicas, 0);
    assert_int_equal(fixture->job.accumulation, 0);
}

TEST(a_peer_that_reports_too_many_devices_is_refused) {
    tell(fixture, 0, "abcdefghijklmnop", UINT32_MAX);
    tell(fixture, 1, "", 0);
    tell(fixture, 2, "", 0);
    assert_int_equal(fixture->run.trainers[0].devices, JOB_MAX_DEVICES);
    assert_int_equal(fixture->run.trainers[1].devices, 1);
}

/* The chief before has told all their places. A worker that comes in later is
 * among them, and waits for none that is gone. */
TEST(the_workers_of_an_adopted_run_keep_their_places) {
    struct run *run = &fixture->run;
    char *ids[] = {"a", "b"};
    Capstan__VisibleDevices seen = CAPSTAN__VISIBLE_DEVICES__INIT;
    seen.devices = ids;
    seen.n_devices = seen.wanted_devices = 2;
    device_replicas_take_over(run, 0, &seen);
    device_replicas_take_over(run, 1, NULL);
    device_replicas_take_over(run, 2, NULL);
    run->phase = RUN_TRAINING;
    run->trainers[2].visible_devices.answered = false; /* a new process */
    tell(fixture, 2, "a b", 2);
    assert_true(run->trainers[2].visible_devices.answered);
    expect(fixture, 0, 0, 2);
    expect(fixture, 2, 1, 2);
}
