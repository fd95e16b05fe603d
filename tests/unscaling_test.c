#include "worker/unscaling.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
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

static void each_gradient_is_divided(void **state) {
    (void)state;
    struct layout *layout = open_layout();
    assert_true(unscaling_apply(layout, gradients, 0x1p16));
    for (int i = 0; i < COUNT; i++) {
        assert_true(memory[0][i] == (float)(i - 11) * 16);
        assert_true(memory[1][i] == (i < 5 ? 3 * 0x1p-16f : 3));
    }
    assert_true(unscaling_apply(layout, gradients, 3));
    assert_true(memory[0][0] == -176 * (1.0f / 3));
    layout_free(&layout);
}

static void scale_1_changes_nothing(void **state) {
    (void)state;
    struct layout *layout = open_layout();
    float before[2][COUNT];
    memory[0][3] = FLT_MIN / 4;
    memory[0][4] = FLT_MAX;
    memory[0][5] = -0.0f;
    memcpy(before, memory, sizeof before);
    assert_true(unscaling_apply(layout, gradients, 1));
    assert_memory_equal(before, memory, sizeof before);
    layout_free(&layout);
}

static void an_infinity_or_nan_anywhere_is_found(void **state) {
    (void)state;
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < (p ? 5 : COUNT); i++)
            for (int k = 0; k < 3; k++) {
                struct layout *layout = open_layout();
                memory[p][i] = bad[k];
                assert_false(unscaling_apply(layout, gradients, 1 + k));
                layout_free(&layout);
            }
}

static void what_lies_beyond_a_parameter_is_not_looked_at(void **state) {
    (void)state;
    struct layout *layout = open_layout();
    memory[1][5] = NAN;
    assert_true(unscaling_apply(layout, gradients, 2));
    layout_free(&layout);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_gradient_is_divided),
        cmocka_unit_test(scale_1_changes_nothing),
        cmocka_unit_test(an_infinity_or_nan_anywhere_is_found),
        cmocka_unit_test(what_lies_beyond_a_parameter_is_not_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
