/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/batch_prefetch.h"

#include "tests/gpu/fake_device.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 6, FEATURES = 7, BATCHES = 9 };

static const struct batch_spec spec = {
    .numbered = true,
    .num_columns = 2,
    .columns = {{BATCH_FLOATS, .width = FEATURES},
                {BATCH_CLASSES, .width = 1, .num_classes = 10}}};

struct fixture {
    struct local_device device;
    struct batch_prefetch batch_prefetch;
    float *sums;       /* of each batch, by the device */
    uint64_t *numbers; /* of each batch, copied there */
    float found[BATCHES * FEATURES];
    float inputs[SAMPLES * FEATURES];
    uint32_t labels[SAMPLES];
};

static void open_fixture(struct fixture *fixture, enum job_device kind,
                         const struct fake_device_settings *plan) {
    struct local_device_request request = {
        .kind = kind, .threads = 1, .cuda = fake_device_ops(), .timeout = 60};
    fake_device_configure(plan);
    *fixture = (struct fixture){0};
    if (local_device_open(&fixture->device, &request, NULL, &failure) ||
        batch_prefetch_open(&fixture->batch_prefetch, &fixture->device, SAMPLES,
                            &spec, &failure))
        fail_msg("%s", failure.text);
    const struct local_device *device = &fixture->device;
    fixture->sums =
        device->ops->allocate(device->handle, sizeof fixture->found);
    fixture->numbers = device->ops->allocate(
        device->handle, BATCHES * sizeof *fixture->numbers);
}

static void close_fixture(struct fixture *fixture) {
    const struct local_device *device = &fixture->device;
    device->ops->release(device->handle, fixture->sums);
    device->ops->release(device->handle, fixture->numbers);
    batch_prefetch_close(&fixture->batch_prefetch);
    local_device_close(&fixture->device);
}

/* Batch NUMBER, all of whose values are NUMBER, in the one memory there is. */
static void put(struct fixture *fixture, uint32_t number) {
    struct batch batch = {.number = number,
                          .count = 1 + number % SAMPLES,
                          .columns = {fixture->inputs, fixture->labels}};
    assert_int_equal(batch_prefetch_sync(&fixture->batch_prefetch, NULL),
                     STATUS_OK);
    for (uint32_t i = 0; i < SAMPLES * FEATURES; i++)
        fixture->inputs[i] = (float)number;
    batch_prefetch_push(&fixture->batch_prefetch, &batch);
}

/* The device adds the samples of the next batch up. */
static void add_up(struct fixture *fixture, uint32_t number) {
    const struct local_device *device = &fixture->device;
    const struct batch *batch = batch_prefetch_pop(&fixture->batch_prefetch);
    assert_int_equal(batch->number, number);
    assert_int_equal(batch->count, 1 + number % SAMPLES);
    device->ops->run(device->handle, STREAM_COMPUTE,
                     op_column_sums(batch->columns[0],
                                    fixture->sums + number * FEATURES,
                                    batch->count, FEATURES, false));
    device->ops->copy(device->handle, STREAM_COMPUTE, &fixture->numbers[number],
                      batch->device_number, sizeof *fixture->numbers);
    batch_prefetch_release(&fixture->batch_prefetch);
}

static void expect_numbers(struct fixture *fixture) {
    const struct local_device *device = &fixture->device;
    uint64_t found[BATCHES];
    device->ops->download(device->handle, STREAM_COMPUTE, found,
                          fixture->numbers, sizeof found);
    assert_int_equal(device->ops->synchronize(device->handle, NULL), STATUS_OK);
    for (uint64_t number = 0; number < BATCHES; number++)
        assert_int_equal(found[number], number);
}

static void expect_sums(struct fixture *fixture) {
    const struct local_device *device = &fixture->device;
    device->ops->download(device->handle, STREAM_COMPUTE, fixture->found,
                          fixture->sums, sizeof fixture->found);
    assert_int_equal(device->ops->synchronize(device->handle, NULL), STATUS_OK);
    for (uint32_t number = 0; number < BATCHES; number++)
        for (uint32_t j = 0; j < FEATURES; j++)
            assert_true(fixture->found[number * FEATURES + j] ==
                        (float)(number * (1 + number % SAMPLES)));
}

/* The next batch is on its way while this one is computed with, for which
 * nobody waits until the end. */
TEST(each_batch_is_computed_as_submitted) {
    struct fixture fixture;
    for (int order = 0; order < FAKE_DEVICE_ORDERS; order++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            open_fixture(&fixture, JOB_DEVICE_CUDA,
                         &(struct fake_device_settings){
                             .order = order, .seed = seed, .devices = 1});
            assert_false(batch_prefetch_ready(&fixture.batch_prefetch));
            put(&fixture, 0);
            for (uint32_t number = 0; number < BATCHES; number++) {
                assert_true(batch_prefetch_ready(&fixture.batch_prefetch));
                add_up(&fixture, number);
                put(&fixture, number + 1);
            }
            expect_sums(&fixture);
            expect_numbers(&fixture);
            close_fixture(&fixture);
        }
}

TEST(with_unified_memory_nothing_is_copied) {
    struct fixture fixture;
    open_fixture(&fixture, JOB_DEVICE_CPU,
                 &(struct fake_device_settings){.devices = 1});
    put(&fixture, 3);
    const struct batch *batch = batch_prefetch_pop(&fixture.batch_prefetch);
    assert_ptr_equal(batch->columns[0], fixture.inputs);
    assert_ptr_equal(batch->columns[1], fixture.labels);
    assert_int_equal(batch->count, 4);
    assert_null(batch->device_number);
    batch_prefetch_release(&fixture.batch_prefetch);
    close_fixture(&fixture);
}

TEST(an_allocation_failure_reports_the_size) {
    struct local_device device;
    struct local_device_request request = {.kind = JOB_DEVICE_CUDA,
                                           .threads = 1,
                                           .cuda = fake_device_ops(),
                                           .timeout = 60};
    struct batch_prefetch prefetch;
    struct batch_spec three = spec;
    three.columns[0].width = 3;
    fake_device_configure(
        &(struct fake_device_settings){.devices = 1, .fail_allocation = 4});
    assert_ok(local_device_open(&device, &request, NULL, &failure));
    assert_error(batch_prefetch_open(&prefetch, &device, 10, &three, &failure),
                 FAILURE_DEVICE_MEMORY);
    assert_string_equal(failure.text,
                        "no memory on device cuda 0 (Fake GPU) for 2 batches "
                        "of 10 samples, of 320 bytes");
    local_device_close(&device);
}
