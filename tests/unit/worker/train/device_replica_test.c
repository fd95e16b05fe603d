/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/device_replica.h"

#include "tests/lib/assert_fails.h"
#include "tests/lib/local_group_fixture.h"
#include "tests/lib/test.h"

#include <math.h>
#include <string.h>

static const uint32_t widths[] = {7, 12, 9, 5, 0};
enum { ELEMENTS = 7 * 12 + 12 + 12 * 9 + 9 + 9 * 5 + 5 };

static void open_one(struct local_group_fixture *fixture,
                     const struct fake_device_settings *gpus) {
    local_group_fixture_open(fixture, widths);
    assert_ok(local_group_fixture_begin(fixture, gpus, NULL, 1, &failure));
    local_group_fixture_load(fixture, 0, 1);
}

TEST(a_step_counts_its_samples_and_their_losses) {
    struct local_group_fixture fixture;
    struct device_replica_result result;
    open_one(&fixture, NULL);
    assert_ok(local_group_fixture_compute(&fixture, &result, &failure));
    assert_int_equal(result.samples, 6);
    assert_int_equal(result.last_samples, 3);
    assert_true(result.correct <= 6);
    assert_false(result.nonfinite);
    assert_true(result.finite_loss_sum == result.loss);
    assert_true(result.last_loss > 0 && result.last_loss < result.loss);
    assert_true(fabs(result.loss / 6 - log(5)) < 0.5);
    local_group_fixture_close(&fixture);
}

TEST(a_step_has_the_same_bits_on_any_device) {
    float cpu[ELEMENTS], gpu[ELEMENTS];
    struct device_replica_result first, found;
    local_group_fixture_expect(widths, 1, 3, cpu, &first);
    for (int order = 0; order < FAKE_DEVICE_ORDERS; order++) {
        struct local_group_fixture fixture;
        open_one(&fixture,
                 &(struct fake_device_settings){.order = order, .devices = 1});
        for (int step = 0; step < 3; step++) {
            assert_ok(local_group_fixture_compute(&fixture, &found, &failure));
            assert_ok(local_group_fixture_gather(&fixture, true, &failure));
        }
        local_group_fixture_gradients(&fixture, gpu);
        assert_memory_equal(gpu, cpu, sizeof cpu);
        assert_true(found.loss == first.loss);
        assert_int_equal(found.correct, first.correct);
        local_group_fixture_close(&fixture);
    }
}

TEST(a_nonfinite_loss_marks_the_step_nonfinite) {
    const struct fake_device_settings gpu = {.devices = 1};
    const struct fake_device_settings *const kinds[] = {NULL, &gpu};
    for (int i = 0; i < 2; i++) {
        struct local_group_fixture fixture;
        struct device_replica_result result;
        open_one(&fixture, kinds[i]);
        fixture.arena.weight_of[5][0] = NAN;
        assert_ok(local_group_fixture_compute(&fixture, &result, &failure));
        assert_true(result.nonfinite);
        assert_true(isnan(result.loss));
        assert_true(result.finite_loss_sum == 0);
        assert_int_equal(result.samples, 0);
        assert_ok(local_group_fixture_gather(&fixture, false, &failure));
        assert_int_equal(fixture.num_announced, 0);
        local_group_fixture_close(&fixture);
    }
}

TEST(an_aborted_step_ends_after_a_batch) {
    struct local_group_fixture fixture;
    struct device_replica_result result;
    open_one(&fixture, NULL);
    fixture.aborted = true;
    assert_ok(local_group_fixture_compute(&fixture, &result, &failure));
    assert_int_equal(result.samples, 3);
    assert_int_equal(fixture.num_announced, 0);
    local_group_fixture_close(&fixture);
}
