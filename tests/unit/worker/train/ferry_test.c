/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/ferry.h"

#include "tests/gpu/fake_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { PARAMETERS = 3, WIDTH = 5 };

/* Three parameters of 5 x 5. */
struct fixture {
    struct layout *layout;
    struct arena arena;
    struct device device;
    struct ferry ferry;
};

static void open_parts(struct fixture *fixture, enum job_device kind,
                       const struct fake_device_plan *plan) {
    struct parameter parameters[PARAMETERS] = {0};
    struct device_wish wish = {
        .kind = kind, .threads = 1, .cuda = fake_device_ops(), .timeout = 60};
    struct failure why;
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        snprintf(parameters[p].name, sizeof parameters[p].name, "p%u", p);
        parameters[p].num_dims = 2;
        parameters[p].dims[0] = parameters[p].dims[1] = WIDTH;
    }
    fake_device_arrange(plan);
    *fixture = (struct fixture){0};
    if (layout_build(&fixture->layout, parameters, PARAMETERS, &why) ||
        arena_open(&fixture->arena, fixture->layout, false, &why) ||
        device_open(&fixture->device, &wish, NULL, &why))
        fail_msg("%s", why.text);
}

static void open_ferry(struct fixture *fixture, enum job_device kind,
                       const struct fake_device_plan *plan) {
    struct failure why;
    open_parts(fixture, kind, plan);
    if (ferry_open(&fixture->ferry, &fixture->device, fixture->layout,
                   &fixture->arena, true, &why))
        fail_msg("%s", why.text);
}

/* The device may be lost. */
static void close_parts(struct fixture *fixture) {
    const struct device *device = &fixture->device;
    device->ops->synchronize(device->handle, NULL);
    ferry_close(&fixture->ferry);
    assert_null(fixture->ferry.device);
    device_close(&fixture->device);
    arena_close(&fixture->arena);
    layout_free(&fixture->layout);
}

static void fill(float *values, float value) {
    for (int i = 0; i < WIDTH * WIDTH; i++)
        values[i] = value;
}

/* gradient = weight weight^T of parameter P, by the device. */
static void square(struct fixture *fixture, uint32_t p) {
    const struct device *device = &fixture->device;
    ferry_bring(&fixture->ferry, p);
    ferry_land(&fixture->ferry);
    device->ops->linear_input_gradient(
        device->handle, fixture->ferry.weights[p], fixture->ferry.weights[p],
        fixture->ferry.gradients[p], WIDTH, WIDTH, WIDTH);
    ferry_take(&fixture->ferry, p);
}

static void expect_gradient(struct fixture *fixture, uint32_t p, float value) {
    struct failure why;
    if (ferry_await(&fixture->ferry, p, &why))
        fail_msg("%s", why.text);
    for (int i = 0; i < WIDTH * WIDTH; i++)
        if (!(fixture->arena.gradient_of[p][i] == value))
            fail_msg("parameter %u: found %g, expected %g", p,
                     (double)fixture->arena.gradient_of[p][i], (double)value);
}

static void a_round_trip_has_the_weights_of_its_step(void **state) {
    struct fixture fixture;
    (void)state;
    for (int order = 0; order < FAKE_DEVICE_ORDERS; order++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            open_ferry(&fixture, JOB_DEVICE_CUDA,
                       &(struct fake_device_plan){
                           .order = order, .seed = seed, .devices = 1});
            for (uint32_t step = 1; step < 4; step++) {
                ferry_renew(&fixture.ferry);
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
static void what_is_brought_together_is_waited_for_once(void **state) {
    struct fixture fixture;
    (void)state;
    for (int order = 0; order < FAKE_DEVICE_ORDERS; order++) {
        open_ferry(&fixture, JOB_DEVICE_CUDA,
                   &(struct fake_device_plan){.order = order, .devices = 1});
        const struct ops_device *handle = fixture.device.handle;
        uint64_t before = fake_device_calls(handle);
        for (uint32_t p = 0; p < PARAMETERS; p++) {
            fill(fixture.arena.weight_of[p], (float)(p + 1));
            ferry_bring(&fixture.ferry, p);
        }
        ferry_land(&fixture.ferry);
        ferry_land(&fixture.ferry);
        assert_int_equal(fake_device_calls(handle) - before, PARAMETERS + 1);
        for (uint32_t p = 0; p < PARAMETERS; p++)
            square(&fixture, p);
        for (uint32_t p = 0; p < PARAMETERS; p++)
            expect_gradient(&fixture, p, WIDTH * (float)((p + 1) * (p + 1)));
        close_parts(&fixture);
    }
}

static void weights_are_brought_once_until_they_are_renewed(void **state) {
    struct fixture fixture;
    enum { BYTES = WIDTH * WIDTH * sizeof(float) };
    (void)state;
    open_ferry(&fixture, JOB_DEVICE_CUDA,
               &(struct fake_device_plan){.devices = 1});
    const struct ops_device *handle = fixture.device.handle;
    fill(fixture.arena.weight_of[0], 1);
    ferry_bring(&fixture.ferry, 0);
    ferry_bring(&fixture.ferry, 0);
    assert_int_equal(fake_device_uploaded(handle), BYTES);
    ferry_renew(&fixture.ferry);
    ferry_bring(&fixture.ferry, 0);
    assert_int_equal(fake_device_uploaded(handle), 2 * BYTES);
    close_parts(&fixture);
}

/* What others have made of it meanwhile is what comes. */
static void a_gradient_may_stay_on_the_device_for_a_while(void **state) {
    struct fixture fixture;
    struct failure why;
    (void)state;
    for (int order = 0; order < FAKE_DEVICE_ORDERS; order++) {
        open_ferry(&fixture, JOB_DEVICE_CUDA,
                   &(struct fake_device_plan){.order = order, .devices = 1});
        const struct device *device = &fixture.device;
        struct ferry *ferry = &fixture.ferry;
        fill(fixture.arena.weight_of[0], 2);
        ferry_bring(ferry, 0);
        ferry_land(ferry);
        device->ops->linear_input_gradient(
            device->handle, ferry->weights[0], ferry->weights[0],
            ferry->gradients[0], WIDTH, WIDTH, WIDTH);
        ferry_note(ferry, 0);
        assert_int_equal(ferry_await(ferry, 0, &why), STATUS_OK);
        assert_int_equal(fake_device_downloaded(device->handle), 0);
        device->ops->linear_weight_gradient(
            device->handle, ferry->weights[0], ferry->weights[0],
            ferry->gradients[0], WIDTH, WIDTH, WIDTH, true);
        ferry_note(ferry, 0);
        ferry_fetch(ferry, 0);
        expect_gradient(&fixture, 0, 2 * WIDTH * 4);
        close_parts(&fixture);
    }
}

static void where_memory_is_one_nothing_is_copied(void **state) {
    struct fixture fixture;
    (void)state;
    open_ferry(&fixture, JOB_DEVICE_CPU,
               &(struct fake_device_plan){.devices = 1});
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        assert_ptr_equal(fixture.ferry.weights[p], fixture.arena.weight_of[p]);
        assert_ptr_equal(fixture.ferry.gradients[p],
                         fixture.arena.gradient_of[p]);
    }
    ferry_renew(&fixture.ferry);
    fill(fixture.arena.weight_of[1], 3);
    square(&fixture, 1);
    expect_gradient(&fixture, 1, WIDTH * 9);
    close_parts(&fixture);
}

static void a_lost_device_is_told_by_who_waits_for_it(void **state) {
    struct fixture fixture;
    struct failure why;
    (void)state;
    open_ferry(&fixture, JOB_DEVICE_CUDA,
               &(struct fake_device_plan){.devices = 1, .lose = 5});
    fill(fixture.arena.weight_of[2], 1);
    square(&fixture, 2);
    assert_int_equal(ferry_await(&fixture.ferry, 2, &why), STATUS_RETRY);
    assert_string_equal(why.text,
                        "device cuda 0 (Fake GPU) is lost: as arranged");
    close_parts(&fixture);
}

static void a_lack_of_memory_tells_how_much(void **state) {
    struct fixture fixture;
    struct failure why;
    (void)state;
    open_parts(&fixture, JOB_DEVICE_CUDA,
               &(struct fake_device_plan){.devices = 1, .refuse = 1});
    assert_int_equal(ferry_open(&fixture.ferry, &fixture.device, fixture.layout,
                                &fixture.arena, true, &why),
                     STATUS_FAILED);
    assert_string_equal(why.text,
                        "no memory on device cuda 0 (Fake GPU) for weights and "
                        "gradients of 1536 bytes");
    close_parts(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_round_trip_has_the_weights_of_its_step),
        cmocka_unit_test(what_is_brought_together_is_waited_for_once),
        cmocka_unit_test(weights_are_brought_once_until_they_are_renewed),
        cmocka_unit_test(a_gradient_may_stay_on_the_device_for_a_while),
        cmocka_unit_test(where_memory_is_one_nothing_is_copied),
        cmocka_unit_test(a_lost_device_is_told_by_who_waits_for_it),
        cmocka_unit_test(a_lack_of_memory_tells_how_much),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
