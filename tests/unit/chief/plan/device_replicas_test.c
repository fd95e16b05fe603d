/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct run_fixture *fixture

#include "chief/plan/device_replicas.h"

#include "core/base/time.h"
#include "tests/lib/run_fixture.h"
#include "tests/lib/test.h"

enum { WORKERS = 3 };

/* Three workers, whose declarations come. */
static int setup(void **state) {
    run_fixture_setup(state, WORKERS);
    struct run_fixture *fixture = *state;
    fixture->run.plan.train_samples = 600;
    return 0;
}

FIXTURE(setup, run_fixture_teardown);

/* Worker INDEX has COUNT devices, each with so many bytes free. */
static bool declare(struct run_fixture *fixture, uint32_t index,
                    uint32_t count) {
    Capstan__ModelSpec model_spec = CAPSTAN__MODEL_SPEC__INIT;
    Capstan__MemoryLimit devices[8], *list[8];
    for (uint32_t i = 0; i < count; i++) {
        capstan__memory_limit__init(&devices[i]);
        devices[i].key = i ? "device b" : "device a";
        devices[i].name = "free on a device";
        devices[i].free = 1000 + i;
        list[i] = &devices[i];
    }
    model_spec.replicas = count;
    model_spec.n_devices = count;
    model_spec.devices = list;
    model_spec.adds_on_host = count > 1;
    return device_replicas_declare(
        &fixture->run, &fixture->run.roster.slots[index], &model_spec);
}

static void declare_all(struct run_fixture *fixture, uint32_t a, uint32_t b,
                        uint32_t c) {
    assert_true(declare(fixture, 0, a));
    assert_true(declare(fixture, 1, b));
    assert_true(declare(fixture, 2, c));
}

static void expect_text(const struct run *run, const char *expected) {
    char text[256];
    device_replicas_describe(run, text, sizeof text);
    assert_string_equal(text, expected);
}

TEST(equal_replica_counts_are_shown_as_a_product) {
    struct run *run = &fixture->run;
    uint32_t list[WORKERS];
    declare_all(fixture, 4, 4, 4);
    link_fixture_capture_log(fixture->wire);
    assert_true(device_replicas_resolve(run));
    assert_contains(link_fixture_captured_log(fixture->wire),
                    "replicas: 12 (3 workers x 4 devices)");
    assert_int_equal(run->plan.num_replicas, 12);
    assert_int_equal(run_step_replicas(run), 12);
    assert_int_equal(fixture->job.train_batch_size, 120);
    assert_int_equal(run->plan.batches_per_epoch, 5);
    assert_int_equal(device_replicas_list(run, list), WORKERS);
    assert_int_equal(list[2], 4);
    assert_int_equal(run->plan.limits[1].devices, 4);
    assert_true(run->plan.limits[1].adds_on_host);
}

TEST(different_replica_counts_are_listed) {
    struct run *run = &fixture->run;
    declare_all(fixture, 2, 1, 3);
    assert_true(device_replicas_resolve(run));
    expect_text(run, "replicas: 6 (3 workers with 2 + 1 + 3 devices)");
    run->trains = true;
    expect_text(run, "replicas: 6 (3 trainers with 2 + 1 + 3 devices)");
    assert_int_equal(fixture->job.train_batch_size, 60);
}

/* Worker 1 has come back to the machine of worker 0, who had it for itself. */
TEST(a_trainer_that_shares_its_host_has_one_replica) {
    struct run *run = &fixture->run;
    for (uint32_t r = 0; r < 2; r++) {
        run->trainers[r].visible_devices.count = 1;
        strcpy(run->trainers[r].visible_devices.ids[0], "a");
    }
    declare_all(fixture, 4, 1, 2);
    assert_true(device_replicas_resolve(run));
    expect_text(run, "replicas: 4 (3 workers with 1 + 1 + 2 devices)");
    assert_int_equal(device_replicas_devices(run), 2);
}

TEST(cpu_replicas_are_not_shown) {
    Capstan__ModelSpec none = CAPSTAN__MODEL_SPEC__INIT;
    for (uint32_t i = 0; i < WORKERS; i++)
        assert_true(device_replicas_declare(
            &fixture->run, &fixture->run.roster.slots[i], &none));
    link_fixture_capture_log(fixture->wire);
    assert_true(device_replicas_resolve(&fixture->run));
    assert_int_equal(device_replicas_devices(&fixture->run), 0);
    assert_string_equal(link_fixture_captured_log(fixture->wire), "");
    assert_int_equal(fixture->run.plan.num_replicas, WORKERS);
}

TEST(with_staleness_unequal_replica_counts_end_the_run) {
    struct run *run = &fixture->run;
    fixture->job.staleness = 1;
    declare_all(fixture, 4, 4, 2);
    assert_false(device_replicas_resolve(run));
    assert_int_equal(run->phase, RUN_STOPPING);
    assert_int_equal(run->code, FAILURE_DEVICES_DIFFER);
    assert_contains(run->text, "worker 0 on host h0 computes on 4 "
                               "devices, worker 2 on host h2 on 2;");
    run->phase = RUN_JOINING;
    assert_true(declare(fixture, 2, 4));
    assert_true(device_replicas_resolve(run));
    assert_int_equal(run_step_replicas(run), 4);
    assert_int_equal(fixture->job.train_batch_size, 40);
}

TEST(an_unsolvable_batch_ends_the_run) {
    struct run *run = &fixture->run;
    fixture->job.train_batch_size = 100;
    declare_all(fixture, 2, 2, 2);
    assert_false(device_replicas_resolve(run));
    assert_int_equal(run->code, FAILURE_JOB_INVALID);
    assert_contains(run->text, "6 replicas (3 trainers x 2 devices)");
}

TEST(an_epoch_without_a_batch_ends_the_run) {
    struct run *run = &fixture->run;
    fixture->job.data.drop_last = true;
    run->plan.train_samples = 59;
    declare_all(fixture, 2, 2, 2);
    assert_true(device_replicas_resolve(run));
    run->plan.batches_per_epoch = 0;
    run->plan.train_samples = 53;
    assert_false(device_replicas_resolve(run));
    assert_int_equal(run->code, FAILURE_DATA_TOO_SMALL);
    assert_contains(run->text, "a replica's share is 9 samples (53 over "
                               "6 replicas), the micro batch 10");
}

/* By even shares, and by the records that each trainer has counted. */
TEST(a_batch_that_a_share_does_not_fill_is_warned_of) {
    struct run *run = &fixture->run;
    run->plan.train_samples = 30;
    declare_all(fixture, 1, 1, 1);
    link_fixture_capture_log(fixture->wire);
    assert_true(device_replicas_resolve(run));
    run->plan.train_samples = 27;
    run->plan.batches_per_epoch = 0;
    assert_true(device_replicas_resolve(run));
    assert_contains(link_fixture_captured_log(fixture->wire),
                    "worker 0 has 9 samples");
    for (uint32_t r = 0; r < WORKERS; r++)
        run->trainers[r].share_samples = 12 - 4 * r;
    run->plan.batches_per_epoch = 0;
    link_fixture_capture_log(fixture->wire);
    assert_true(device_replicas_resolve(run));
    assert_contains(link_fixture_captured_log(fixture->wire),
                    "worker 2 has 4 samples");
    assert_int_equal(run->plan.batches_per_epoch, 2);
}

/* Memory is reckoned for what the run counts on, whatever a peer says. */
TEST(a_peer_with_too_many_replicas_is_refused) {
    Capstan__ModelSpec hostile = CAPSTAN__MODEL_SPEC__INIT;
    declare_all(fixture, 1, 1, 1);
    hostile.replicas = UINT32_MAX;
    hostile.adds_on_host = true;
    assert_true(device_replicas_declare(
        &fixture->run, &fixture->run.roster.slots[1], &hostile));
    assert_int_equal(fixture->run.plan.limits[1].replicas, JOB_MAX_DEVICES);
    assert_true(device_replicas_resolve(&fixture->run));
    assert_int_equal(fixture->run.plan.num_replicas, 2 + JOB_MAX_DEVICES);
}

/* It may bring more, which it does not use. */
TEST(a_trainer_that_rejoins_with_fewer_replicas_is_refused) {
    struct run *run = &fixture->run;
    declare_all(fixture, 2, 2, 2);
    assert_true(device_replicas_resolve(run));
    run->phase = RUN_TRAINING;
    link_fixture_capture_log(fixture->wire);
    assert_false(declare(fixture, 1, 1));
    assert_contains(link_fixture_captured_log(fixture->wire),
                    "worker 1 on host h1 has 1 device to compute on, "
                    "and this run needs 2");
    assert_int_equal(run->phase, RUN_TRAINING);
    assert_true(declare(fixture, 1, 3));
    assert_int_equal(run->trainers[1].replicas, 2);
}
