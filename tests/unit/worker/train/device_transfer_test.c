/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/device_transfer.h"

#include "tests/gpu/fake_device.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

enum { PARAMETERS = 3, WIDTH = 5 };

/* Three parameters of 5 x 5. */
struct fixture {
    struct layout *layout;
    struct arena arena;
    struct local_device device;
    struct device_transfer device_transfer;
};

static void open_parts(struct fixture *fixture, enum job_device kind,
                       const struct fake_device_settings *plan) {
    struct parameter parameters[PARAMETERS] = {0};
    struct local_device_request request = {
        .kind = kind, .threads = 1, .cuda = fake_device_ops(), .timeout = 60};
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        snprintf(parameters[p].name, sizeof parameters[p].name, "p%u", p);
        parameters[p].num_dims = 2;
        parameters[p].dims[0] = parameters[p].dims[1] = WIDTH;
    }
    fake_device_configure(plan);
    *fixture = (struct fixture){0};
    if (layout_build(&fixture->layout, parameters, PARAMETERS, &failure) ||
        arena_open(&fixture->arena, fixture->layout, false, &failure) ||
        local_device_open(&fixture->device, &request, NULL, &failure))
        fail_msg("%s", failure.text);
}

static void open_transfer(struct fixture *fixture, enum job_device kind,
                          const struct fake_device_settings *plan) {
    open_parts(fixture, kind, plan);
    assert_ok(device_transfer_open(&fixture->device_transfer, &fixture->device,
                                   fixture->layout, &fixture->arena, true,
                                   &failure));
}

/* The device may be lost. */
static void close_parts(struct fixture *fixture) {
    const struct local_device *device = &fixture->device;
    device->ops->synchronize(device->handle, NULL);
    device_transfer_close(&fixture->device_transfer);
    assert_null(fixture->device_transfer.device);
    local_device_close(&fixture->device);
    arena_close(&fixture->arena);
    layout_free(&fixture->layout);
}

static void fill(float *values, float value) {
    for (int i = 0; i < WIDTH * WIDTH; i++)
        values[i] = value;
}

/* gradient = weight weight^T of parameter P, by the device. */
static void square(struct fixture *fixture, uint32_t p) {
    const struct local_device *device = &fixture->device;
    device_transfer_upload(&fixture->device_transfer, p);
    device_transfer_wait(&fixture->device_transfer);
    device->ops->run(
        device->handle, STREAM_COMPUTE,
        op_linear_input_gradient(fixture->device_transfer.weights[p],
                                 fixture->device_transfer.weights[p],
                                 fixture->device_transfer.gradients[p], WIDTH,
                                 WIDTH, WIDTH));
    device_transfer_download(&fixture->device_transfer, p);
}

static void expect_gradient(struct fixture *fixture, uint32_t p, float value) {
    assert_ok(device_transfer_sync(&fixture->device_transfer, p, &failure));
    for (int i = 0; i < WIDTH * WIDTH; i++)
        if (!(fixture->arena.gradient_of[p][i] == value))
            fail_msg("parameter %u: found %g, expected %g", p,
                     (double)fixture->arena.gradient_of[p][i], (double)value);
}

TEST(a_round_trip_has_the_weights_of_its_step) {
    struct fixture fixture;
    for (int order = 0; order < FAKE_DEVICE_ORDERS; order++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            open_transfer(&fixture, JOB_DEVICE_CUDA,
                          &(struct fake_device_settings){
                              .order = order, .seed = seed, .devices = 1});
            for (uint32_t step = 1; step < 4; step++) {
                device_transfer_invalidate(&fixture.device_transfer);
                for (uint32_t p = 0; p < PARAMETERS; p++)
                    fill(fixture.arena.weight_of[p], (float)(step + p));
                for (uint32_t p = 0; p < PARAMETERS; p++)
                    square(&fixture, p);
                for (uint32_t p = 0; p < PARAMETERS; p++)
                    expect_gradient(&fixture, p,
                                    WIDTH * (float)((step + p) * (step + p)));
            }
            close_parts(&fixture);
        }
}

/* A layer's weights and bias set out as they come; the computing waits once. */
TEST(weights_uploaded_together_are_waited_for_once) {
    struct fixture fixture;
    for (int order = 0; order < FAKE_DEVICE_ORDERS; order++) {
        open_transfer(
            &fixture, JOB_DEVICE_CUDA,
            &(struct fake_device_settings){.order = order, .devices = 1});
        const struct device *handle = fixture.device.handle;
        uint64_t before = fake_device_calls(handle);
        for (uint32_t p = 0; p < PARAMETERS; p++) {
            fill(fixture.arena.weight_of[p], (float)(p + 1));
            device_transfer_upload(&fixture.device_transfer, p);
        }
        device_transfer_wait(&fixture.device_transfer);
        device_transfer_wait(&fixture.device_transfer);
        assert_int_equal(fake_device_calls(handle) - before, PARAMETERS + 1);
        for (uint32_t p = 0; p < PARAMETERS; p++)
            square(&fixture, p);
        for (uint32_t p = 0; p < PARAMETERS; p++)
            expect_gradient(&fixture, p, WIDTH * (float)((p + 1) * (p + 1)));
        close_parts(&fixture);
    }
}

TEST(weights_are_uploaded_once_until_they_change) {
    struct fixture fixture;
    enum { BYTES = WIDTH * WIDTH * sizeof(float) };
    open_transfer(&fixture, JOB_DEVICE_CUDA,
                  &(struct fake_device_settings){.devices = 1});
    const struct device *handle = fixture.device.handle;
    fill(fixture.arena.weight_of[0], 1);
    device_transfer_upload(&fixture.device_transfer, 0);
    device_transfer_upload(&fixture.device_transfer, 0);
    assert_int_equal(fake_device_uploaded(handle), BYTES);
    device_transfer_invalidate(&fixture.device_transfer);
    device_transfer_upload(&fixture.device_transfer, 0);
    assert_int_equal(fake_device_uploaded(handle), 2 * BYTES);
    close_parts(&fixture);
}

/* What others have made of it meanwhile is what comes. */
TEST(a_gradient_may_stay_on_the_device_for_a_while) {
    struct fixture fixture;
    for (int order = 0; order < FAKE_DEVICE_ORDERS; order++) {
        open_transfer(
            &fixture, JOB_DEVICE_CUDA,
            &(struct fake_device_settings){.order = order, .devices = 1});
        const struct local_device *device = &fixture.device;
        struct device_transfer *transfer = &fixture.device_transfer;
        fill(fixture.arena.weight_of[0], 2);
        device_transfer_upload(transfer, 0);
        device_transfer_wait(transfer);
        device->ops->run(device->handle, STREAM_COMPUTE,
                         op_linear_input_gradient(
                             transfer->weights[0], transfer->weights[0],
                             transfer->gradients[0], WIDTH, WIDTH, WIDTH));
        device_transfer_record(transfer, 0);
        assert_ok(device_transfer_sync(transfer, 0, &failure));
        assert_int_equal(fake_device_downloaded(device->handle), 0);
        device->ops->run(device->handle, STREAM_COMPUTE,
                         op_linear_weight_gradient(transfer->weights[0],
                                                   transfer->weights[0],
                                                   transfer->gradients[0],
                                                   WIDTH, WIDTH, WIDTH, true));
        device_transfer_record(transfer, 0);
        device_transfer_download_recorded(transfer, 0);
        expect_gradient(&fixture, 0, 2 * WIDTH * 4);
        close_parts(&fixture);
    }
}

TEST(with_unified_memory_nothing_is_copied) {
    struct fixture fixture;
    open_transfer(&fixture, JOB_DEVICE_CPU,
                  &(struct fake_device_settings){.devices = 1});
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        assert_ptr_equal(fixture.device_transfer.weights[p],
                         fixture.arena.weight_of[p]);
        assert_ptr_equal(fixture.device_transfer.gradients[p],
                         fixture.arena.gradient_of[p]);
    }
    device_transfer_invalidate(&fixture.device_transfer);
    fill(fixture.arena.weight_of[1], 3);
    square(&fixture, 1);
    expect_gradient(&fixture, 1, WIDTH * 9);
    close_parts(&fixture);
}

TEST(a_wait_reports_a_lost_device) {
    struct fixture fixture;
    open_transfer(&fixture, JOB_DEVICE_CUDA,
                  &(struct fake_device_settings){.devices = 1, .lose_at = 5});
    fill(fixture.arena.weight_of[2], 1);
    square(&fixture, 2);
    assert_error(device_transfer_sync(&fixture.device_transfer, 2, &failure),
                 FAILURE_DEVICE_LOST);
    close_parts(&fixture);
}

TEST(an_allocation_failure_reports_the_size) {
    struct fixture fixture;
    open_parts(
        &fixture, JOB_DEVICE_CUDA,
        &(struct fake_device_settings){.devices = 1, .fail_allocation = 1});
    assert_error(device_transfer_open(&fixture.device_transfer, &fixture.device,
                                      fixture.layout, &fixture.arena, true,
                                      &failure),
                 FAILURE_DEVICE_MEMORY);
    assert_string_equal(failure.text,
                        "no memory on device cuda 0 (Fake GPU) for weights and "
                        "gradients of 1536 bytes");
    close_parts(&fixture);
}
