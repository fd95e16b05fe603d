/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/trainer_internal.h"

#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { COUNT = 37 };

static float memory[2][COUNT];
static float *const gradients[] = {memory[0], memory[1]};

static struct layout *open_layout(void) {
    struct parameter parameters[] = {
        {.name = "weight", .num_dims = 1, .dims = {COUNT}},
        {.name = "bias", .num_dims = 1, .dims = {5}}};
    struct layout *layout;
    assert_int_equal(layout_build(&layout, parameters, 2, NULL), STATUS_OK);
    for (int i = 0; i < COUNT; i++) {
        memory[0][i] = (float)(i - 11) * 0x1p20f;
        memory[1][i] = 3;
    }
    return layout;
}

/* The step's scale is SCALE. */
static struct grad_scaler scaled(const struct job *job, double scale) {
    return (struct grad_scaler){.job = job, .scaler = {.scale = scale}};
}

static const struct job fp16 = {
    .fp16 = {.enabled = true, .min_loss_scale = 0.25}};

static bool undo(const struct layout *layout, double scale) {
    struct grad_scaler scaler = scaled(&fp16, scale);
    return grad_scaler_unscale(&scaler, layout, gradients, NULL);
}

TEST(each_gradient_is_divided) {
    struct layout *layout = open_layout();
    assert_true(undo(layout, 0x1p16));
    for (int i = 0; i < COUNT; i++) {
        assert_true(memory[0][i] == (float)(i - 11) * 16);
        assert_true(memory[1][i] == (i < 5 ? 3 * 0x1p-16f : 3));
    }
    assert_true(undo(layout, 3));
    assert_true(memory[0][0] == -176 * (1.0f / 3));
    layout_free(&layout);
}

TEST(scale_1_changes_nothing) {
    struct layout *layout = open_layout();
    float before[2][COUNT];
    memory[0][3] = FLT_MIN / 4;
    memory[0][4] = FLT_MAX;
    memory[0][5] = -0.0f;
    memcpy(before, memory, sizeof before);
    assert_true(undo(layout, 1));
    assert_memory_equal(before, memory, sizeof before);
    layout_free(&layout);
}

TEST(an_infinity_or_nan_is_found_at_any_position) {
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < (p ? 5 : COUNT); i++)
            for (int k = 0; k < 3; k++) {
                struct layout *layout = open_layout();
                memory[p][i] = bad[k];
                assert_false(undo(layout, 1 + k));
                layout_free(&layout);
            }
}

TEST(memory_beyond_a_parameter_is_not_checked) {
    struct layout *layout = open_layout();
    memory[1][5] = NAN;
    assert_true(undo(layout, 2));
    layout_free(&layout);
}

TEST(the_loss_is_scaled_only_in_fp16) {
    const struct job others[] = {
        {.bf16 = {.enabled = true, .check_overflow = true}}, {.seed = 1}};
    struct grad_scaler scaler = scaled(&fp16, 4096);
    assert_true(grad_scaler_factor(&scaler) == 4096);
    for (int i = 0; i < 2; i++) {
        struct layout *layout = open_layout();
        float before = memory[0][0];
        scaler = scaled(&others[i], 4096);
        assert_true(grad_scaler_factor(&scaler) == 1);
        assert_true(grad_scaler_unscale(&scaler, layout, gradients, NULL));
        assert_true(memory[0][0] == before);
        layout_free(&layout);
    }
}

TEST(gradients_are_checked_when_the_job_says_so) {
    struct job job = {.bf16 = {.check_overflow = true}};
    assert_false(grad_scaler_checks_gradients(&job));
    job.bf16.enabled = true;
    assert_true(grad_scaler_checks_gradients(&job));
    assert_false(grad_scaler_is_dynamic(&job));
    job.bf16.check_overflow = false;
    assert_false(grad_scaler_checks_gradients(&job));
    job.bf16.enabled = false;
    job.fp16.enabled = true;
    assert_true(grad_scaler_checks_gradients(&job) &&
                grad_scaler_is_dynamic(&job));
    job.fp16.loss_scale = 8;
    assert_true(grad_scaler_checks_gradients(&job) &&
                !grad_scaler_is_dynamic(&job));
}

TEST(without_a_scale_there_is_no_step) {
    struct grad_scaler scaler = scaled(&fp16, 0.5);
    struct loss_scaler now = {.scale = 0.25, .skipped = 3}, none = {0};
    assert_ok(grad_scaler_begin(&scaler, &now, 4, &failure));
    assert_true(grad_scaler_factor(&scaler) == 0.25f);
    assert_error(grad_scaler_begin(&scaler, &none, 5, &failure),
                 FAILURE_LOSS_SCALE_TOO_LOW);
    assert_contains(failure.text, "fp16.min_loss_scale, 0.25");
    assert_contains(failure.text, "before step 5");
    const struct job precise = {.seed = 1};
    scaler = scaled(&precise, 1);
    assert_ok(grad_scaler_begin(&scaler, &none, 6, &failure));
}
