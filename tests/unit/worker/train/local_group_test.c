/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas of one trainer on fake devices: their sum, and what one of them that
 * fails does to the step. */
#include "worker/train/local_group.h"

#include "tests/lib/assert_fails.h"
#include "tests/lib/collective_fixture.h"
#include "tests/lib/local_group_fixture.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t widths[] = {7, 12, 9, 5, 0};
enum {
    ELEMENTS = 7 * 12 + 12 + 12 * 9 + 9 + 9 * 5 + 5,
    PARAMETERS = 6,
    REPLICAS = 4,
    STEPS = 5
};

/* Trains STEPS with REPLICAS on fake devices; the last step's gradients. */
static void train(const struct fake_device_settings *gpus,
                  const struct collective_ops *nccl, float *gradients,
                  struct device_replica_result *result) {
    struct local_group_fixture fixture;
    struct failure why;
    local_group_fixture_open(&fixture, widths);
    if (local_group_fixture_begin(&fixture, gpus, nccl, REPLICAS, &why))
        fail_msg("%s", why.text);
    assert_int_equal(local_group_reduces_on_host(&fixture.local_group), !nccl);
    local_group_fixture_load(&fixture, 0, REPLICAS);
    for (int step = 0; step < STEPS; step++) {
        if (local_group_fixture_compute(&fixture, result, &why) ||
            local_group_fixture_gather(&fixture, true, &why))
            fail_msg("%s", why.text);
        assert_int_equal(fixture.num_announced, PARAMETERS);
        for (uint32_t i = 0; i < PARAMETERS; i++)
            assert_int_equal(fixture.said[i], PARAMETERS - 1 - i);
    }
    local_group_fixture_gradients(&fixture, gradients);
    local_group_fixture_close(&fixture);
}

TEST(gradients_are_the_sum_in_the_order_of_replicas) {
    const struct collective_ops *const by[] = {NULL,
                                               &collective_fixture_device_ops};
    float expected[ELEMENTS], found[ELEMENTS];
    struct device_replica_result wanted, result;
    local_group_fixture_expect(widths, REPLICAS, STEPS, expected, &wanted);
    for (int i = 0; i < 2; i++)
        for (int order = 0; order < FAKE_DEVICE_ORDERS; order++)
            for (uint64_t seed = 0; seed < 5; seed++) {
                struct fake_device_settings gpus = {
                    .order = order, .seed = seed, .devices = REPLICAS};
                train(&gpus, by[i], found, &result);
                assert_memory_equal(found, expected, sizeof expected);
                assert_true(result.loss == wanted.loss);
                assert_true(result.finite_loss_sum == wanted.finite_loss_sum);
                assert_true(result.last_loss == wanted.last_loss);
                assert_int_equal(result.samples, wanted.samples);
                assert_int_equal(result.correct, wanted.correct);
                assert_int_equal(result.last_samples, wanted.last_samples);
            }
}

static void begin(struct local_group_fixture *fixture,
                  const struct fake_device_settings *gpus,
                  const struct collective_ops *nccl, uint32_t count) {
    struct failure why;
    local_group_fixture_open(fixture, widths);
    if (local_group_fixture_begin(fixture, gpus, nccl, count, &why))
        fail_msg("%s", why.text);
    local_group_fixture_load(fixture, 0, count);
}

/* On devices the first batch of the next step is there already. */
TEST(steps_that_are_left_out_take_their_samples_with_them) {
    float expected[ELEMENTS], found[ELEMENTS];
    struct device_replica_result wanted, result;
    local_group_fixture_expect(widths, REPLICAS, STEPS, expected, &wanted);
    for (int order = 0; order < FAKE_DEVICE_ORDERS; order++) {
        struct fake_device_settings gpus = {.order = order,
                                            .devices = REPLICAS};
        struct local_group_fixture fixture;
        begin(&fixture, &gpus, NULL, REPLICAS);
        for (int step = 0; step < 2; step++) {
            assert_ok(local_group_fixture_compute(&fixture, &result, &failure));
            assert_ok(local_group_fixture_gather(&fixture, true, &failure));
            for (int left_out = 2; step == 0 && left_out < STEPS; left_out++)
                assert_ok(local_group_skip(&fixture.local_group,
                                           fixture.job.accumulation, &failure));
        }
        local_group_fixture_gradients(&fixture, found);
        assert_memory_equal(found, expected, sizeof expected);
        assert_true(result.loss == wanted.loss);
        local_group_fixture_close(&fixture);
    }
}

/* Gradients that are not wanted leave no trace in the next step's. */
TEST(unwanted_gradients_are_left) {
    struct fake_device_settings gpus = {.devices = REPLICAS};
    float expected[ELEMENTS], found[ELEMENTS];
    struct local_group_fixture fixture;
    struct device_replica_result result;
    struct failure why;
    local_group_fixture_expect(widths, REPLICAS, 2, expected, &result);
    begin(&fixture, &gpus, NULL, REPLICAS);
    for (int step = 0; step < 2; step++) {
        assert_int_equal(local_group_fixture_compute(&fixture, &result, &why),
                         STATUS_OK);
        assert_int_equal(local_group_fixture_gather(&fixture, step, &why),
                         STATUS_OK);
        assert_int_equal(fixture.num_announced, step ? PARAMETERS : 0);
    }
    local_group_fixture_gradients(&fixture, found);
    assert_memory_equal(found, expected, sizeof expected);
    local_group_fixture_close(&fixture);
}

/* Only a sample with its first pixel set makes the model overflow. */
static void let_one_overflow(struct local_group_fixture *fixture,
                             uint32_t sample) {
    uint8_t *images = (uint8_t *)fixture->data.images;
    for (uint32_t i = 0; i < LOCAL_GROUP_FIXTURE_SAMPLES; i++)
        images[i * widths[0]] = i == sample ? 255 : 0;
    fixture->arena.weight_of[0][0] = 3e38f;
    for (uint32_t u = 0; u < widths[2]; u++) {
        fixture->arena.weight_of[2][u * widths[1]] = 1;
        fixture->arena.weight_of[4][u] = 2;
    }
}

/* Of BATCH of replica RANK. */
static uint32_t first_sample(uint32_t rank, uint32_t ranks, uint64_t batch) {
    struct sampler_options options = {.num_samples =
                                          LOCAL_GROUP_FIXTURE_SAMPLES,
                                      .rank = rank,
                                      .num_ranks = ranks,
                                      .micro_batch = 3,
                                      .seed = 2,
                                      .shuffle = true};
    struct sampler *sampler;
    struct failure why;
    uint32_t indices[3];
    if (sampler_open(&sampler, &options, &why))
        fail_msg("%s", why.text);
    (void)sampler_batch(sampler, batch, indices);
    sampler_close(&sampler);
    return indices[0];
}

TEST(a_nonfinite_replica_makes_the_whole_step_nonfinite) {
    struct fake_device_settings gpus = {.devices = REPLICAS};
    struct local_group_fixture fixture;
    struct device_replica_result result;
    struct failure why;
    begin(&fixture, &gpus, NULL, REPLICAS);
    local_group_close(&fixture.local_group); /* its readers have begun */
    let_one_overflow(&fixture, first_sample(2, REPLICAS, 0));
    if (local_group_fixture_begin(&fixture, &gpus, NULL, REPLICAS, &why))
        fail_msg("%s", why.text);
    local_group_fixture_load(&fixture, 0, REPLICAS);
    assert_int_equal(local_group_fixture_compute(&fixture, &result, &why),
                     STATUS_OK);
    assert_true(result.nonfinite);
    assert_int_equal(result.samples, REPLICAS * 6 - 3);
    assert_int_equal(local_group_fixture_gather(&fixture, false, &why),
                     STATUS_OK);
    assert_int_equal(local_group_fixture_compute(&fixture, &result, &why),
                     STATUS_OK);
    assert_false(result.nonfinite);
    assert_int_equal(local_group_fixture_gather(&fixture, true, &why),
                     STATUS_OK);
    local_group_fixture_close(&fixture);
}

/* They were on their way when the last batch turned out to have no loss. */
TEST(unwanted_gradients_are_not_written_later) {
    struct fake_device_settings gpus = {.devices = 1,
                                        .order = FAKE_DEVICE_LAZY};
    struct local_group_fixture fixture;
    struct device_replica_result result;
    struct failure why;
    begin(&fixture, &gpus, NULL, 1);
    local_group_close(&fixture.local_group); /* its readers have begun */
    let_one_overflow(&fixture, first_sample(0, 1, 1));
    if (local_group_fixture_begin(&fixture, &gpus, NULL, 1, &why))
        fail_msg("%s", why.text);
    local_group_fixture_load(&fixture, 0, 1);
    assert_int_equal(local_group_fixture_compute(&fixture, &result, &why),
                     STATUS_OK);
    assert_true(result.nonfinite);
    assert_int_equal(local_group_fixture_gather(&fixture, false, &why),
                     STATUS_OK);
    float *bias = fixture.arena.gradient_of[fixture.layout->num_parameters - 1];
    bias[0] = 7;
    executor_synchronize(
        &fixture.local_group.members[0].device_replica.executor);
    assert_true(bias[0] == 7);
    local_group_fixture_close(&fixture);
}

/* Bytes of the first COUNT parameters. */
static uint64_t bytes_of(const struct layout *layout, uint32_t count) {
    uint64_t elements = 0;
    for (uint32_t p = 0; p < count; p++)
        elements += layout->parameters[p].elements;
    return elements * sizeof(float);
}

/* Two batches go up, and no weights that are not there. */
TEST(missing_weights_do_not_block_an_abort) {
    struct fake_device_settings gpus = {.devices = REPLICAS};
    const uint64_t batches = 2 * 3 * (7 * sizeof(float) + sizeof(uint32_t));
    for (uint32_t p = 1; p < PARAMETERS; p += 2) {
        struct local_group_fixture fixture;
        struct device_replica_result result;
        struct failure why;
        begin(&fixture, &gpus, NULL, REPLICAS);
        fixture.missing_from = p;
        fixture.aborted = true;
        assert_int_equal(local_group_fixture_compute(&fixture, &result, &why),
                         STATUS_OK);
        assert_int_equal(local_group_fixture_gather(&fixture, false, &why),
                         STATUS_OK);
        for (uint32_t i = 0; i < REPLICAS; i++)
            assert_true(fake_device_uploaded(
                            fixture.local_group.members[i]
                                .device_replica.executor.device.handle) <=
                        batches + bytes_of(fixture.layout, p));
        local_group_fixture_close(&fixture);
    }
}

/* Whichever it is, and wherever in its work. The others do not wait for it as
 * they leave their group. */
TEST(a_lost_device_ends_the_step_with_its_name) {
    const struct collective_ops *const by[] = {NULL,
                                               &collective_fixture_device_ops};
    for (uint32_t lost_device = 0; lost_device < 3; lost_device++)
        for (uint64_t call = 1; call < 300; call += 23) {
            struct fake_device_settings gpus = {
                .devices = 3, .lose_at = call, .lost_device = lost_device};
            struct local_group_fixture fixture;
            struct device_replica_result result;
            struct failure why = {0};
            enum status status = STATUS_OK;
            unsigned left_whole = collective_fixture_unaborted_exits();
            char name[32];
            begin(&fixture, &gpus, by[call % 2], 3);
            for (int step = 0; !status && step < 20; step++) {
                status = local_group_fixture_compute(&fixture, &result, &why);
                enum status gathered = local_group_fixture_gather(
                    &fixture, !status, status ? NULL : &why);
                status = status ? status : gathered;
            }
            assert_fails(status, &why, FAILURE_DEVICE_LOST);
            snprintf(name, sizeof name, "device cuda %u ", lost_device);
            if (!strstr(why.text, name))
                fail_msg("no \"%s\" in: %s", name, why.text);
            local_group_fixture_close(&fixture);
            assert_int_equal(collective_fixture_unaborted_exits(), left_whole);
        }
}

TEST(a_failed_allocation_closes_all_replicas) {
    enum status status = STATUS_FAILED;
    for (uint64_t piece = 1; status; piece++) {
        struct fake_device_settings gpus = {.devices = 2,
                                            .fail_allocation = piece};
        struct local_group_fixture fixture;
        struct failure why;
        assert_true(piece < 30);
        local_group_fixture_open(&fixture, widths);
        status = local_group_fixture_begin(&fixture, &gpus, NULL, 2, &why);
        assert_int_equal(status, status ? STATUS_FAILED : STATUS_OK);
        local_group_fixture_close(&fixture);
    }
}

/* Devices that cannot meet are added up by the host. */
TEST(without_a_device_group_the_host_sums) {
    struct fake_device_settings gpus = {.devices = REPLICAS};
    float expected[ELEMENTS], found[ELEMENTS];
    struct device_replica_result wanted, result;
    struct local_group_fixture fixture;
    struct failure why;
    local_group_fixture_expect(widths, REPLICAS, 1, expected, &wanted);
    collective_fixture_arrange(true, 1, 0);
    begin(&fixture, &gpus, &collective_fixture_device_ops, REPLICAS);
    collective_fixture_arrange(false, 0, 0);
    assert_true(local_group_reduces_on_host(&fixture.local_group));
    assert_int_equal(local_group_fixture_compute(&fixture, &result, &why),
                     STATUS_OK);
    assert_int_equal(local_group_fixture_gather(&fixture, true, &why),
                     STATUS_OK);
    local_group_fixture_gradients(&fixture, found);
    assert_memory_equal(found, expected, sizeof expected);
    local_group_fixture_close(&fixture);
}

TEST(a_plan_uses_at_most_the_visible_devices) {
    struct fake_device_settings gpus = {.devices = 3};
    struct local_group_fixture fixture;
    struct failure why;
    local_group_fixture_open(&fixture, widths);
    assert_fails(local_group_fixture_begin(&fixture, &gpus, NULL, 4, &why),
                 &why, FAILURE_DEVICE_LOST);
    assert_non_null(strstr(why.text, "counts on 4 devices here, where there "
                                     "are 3"));
    local_group_fixture_close(&fixture);
    begin(&fixture, &gpus, NULL, 2);
    assert_int_equal(fixture.local_group.count, 2);
    local_group_fixture_close(&fixture);
}

static uint32_t found(struct local_device_request request, bool alone,
                      uint32_t max_devices) {
    struct local_group_search search = {
        .request = &request, .alone = alone, .max_devices = max_devices};
    struct local_group group;
    struct failure why;
    if (local_group_find(&group, &search, &why))
        fail_msg("%s", why.text);
    uint32_t count = group.count;
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(group.members[i].device_replica.executor.device.index,
                         i + (alone ? 0 : request.local_rank));
    local_group_close(&group);
    return count;
}

TEST(a_single_trainer_uses_all_visible_devices) {
    struct local_device_request request = {.kind = JOB_DEVICE_AUTO,
                                           .threads = 1,
                                           .cuda = fake_device_ops(),
                                           .timeout = 60};
    fake_device_configure(&(struct fake_device_settings){.devices = 4});
    assert_int_equal(found(request, true, 0), 4);
    assert_int_equal(found(request, true, 3), 3);
    assert_int_equal(found(request, true, 9), 4);
    request.local_rank = 2;
    assert_int_equal(found(request, false, 0), 1);
    request.local_rank = 0;
    request.kind = JOB_DEVICE_CPU;
    assert_int_equal(found(request, true, 0), 1);
}
