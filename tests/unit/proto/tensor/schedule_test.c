/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/tensor/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

static const struct schedule warmup = {
    .type = SCHEDULE_WARMUP,
    .lr = 99, /* the optimiser's: not this schedule's */
    .warmup_min_lr = 0.001,
    .warmup_max_lr = 0.05,
    .warmup_num_steps = 100,
    .total_num_steps = 1100,
};

static const struct schedule cosine = {
    .type = SCHEDULE_WARMUP_COSINE,
    .lr = 0.2,
    .warmup_min_ratio = 0.1,
    .cos_min_ratio = 0.01,
    .warmup_num_steps = 10,
    .total_num_steps = 110,
};

static void expect(const struct schedule *schedule, uint64_t step,
                   double expected) {
    double rate = schedule_rate(schedule, step);
    if (!(fabs(rate - expected) <= 1e-14))
        fail_msg("step %u: %.17g, not %.17g", (unsigned)step, rate, expected);
}

static void a_constant_rate_is_the_optimizers(void **state) {
    (void)state;
    struct schedule constant = {.type = SCHEDULE_CONSTANT, .lr = 0.3};
    expect(&constant, 1, 0.3);
    expect(&constant, UINT64_C(1) << 40, 0.3);
}

static void groups_follow_the_share_of_the_highest_rate(void **state) {
    (void)state;
    struct schedule from_zero = {.type = SCHEDULE_WARMUP_COSINE,
                                 .lr = 0,
                                 .warmup_linear = true,
                                 .warmup_num_steps = 10,
                                 .total_num_steps = 110};
    struct schedule constant = {.type = SCHEDULE_CONSTANT, .lr = 0.3};
    assert_true(schedule_factor(&constant, 7) == 1);
    constant.lr = 0;
    assert_true(schedule_factor(&constant, 7) == 1);
    assert_true(schedule_factor(&warmup, 100) == 1);
    assert_true(fabs(schedule_factor(&warmup, 1) - 0.001 / 0.05) < 1e-14);
    assert_true(fabs(schedule_factor(&from_zero, 6) - 0.5) < 1e-14);
}

static void a_warmup_rises_with_the_logarithm_then_stays(void **state) {
    (void)state;
    expect(&warmup, 1, 0.001);
    expect(&warmup, 10, 0.001 + 0.049 * 0.5); /* log 10 / log 100 */
    expect(&warmup, 50, 0.001 + 0.049 * 0.8494850021680094);
    expect(&warmup, 100, 0.05);
    expect(&warmup, 101, 0.05);
    expect(&warmup, 100000, 0.05);
}

static void a_linear_warmup_rises_linearly(void **state) {
    (void)state;
    struct schedule linear = warmup;
    linear.warmup_linear = true;
    expect(&linear, 1, 0.001);
    expect(&linear, 51, 0.001 + 0.049 * 0.5);
    expect(&linear, 100, 0.001 + 0.049 * 0.99);
    expect(&linear, 101, 0.05);
}

static void a_decay_falls_linearly_to_the_minimum_rate(void **state) {
    (void)state;
    struct schedule decay = warmup;
    decay.type = SCHEDULE_WARMUP_DECAY;
    expect(&decay, 10, 0.001 + 0.049 * 0.5);
    expect(&decay, 101, 0.05);
    expect(&decay, 351, 0.001 + 0.049 * 0.75);
    expect(&decay, 1100, 0.001 + 0.049 * 0.001);
    expect(&decay, 1101, 0.001);
    expect(&decay, 5000, 0.001);
}

static void a_cosine_falls_to_its_minimum_ratio_and_stays(void **state) {
    (void)state;
    expect(&cosine, 1, 0.2 * 0.1);
    expect(&cosine, 5, 0.2 * (0.1 + 0.9 * 0.6989700043360189));
    expect(&cosine, 35, 0.2 * (0.01 + 0.99 * 0.5 * (1 + 0.70710678118654757)));
    expect(&cosine, 60, 0.2 * (0.01 + 0.99 * 0.5));
    expect(&cosine, 110, 0.2 * 0.01);
    expect(&cosine, 160, 0.2 * 0.01);
}

static void fewer_than_two_warmup_steps_count_as_two(void **state) {
    (void)state;
    struct schedule brief = warmup;
    for (brief.warmup_num_steps = 0; brief.warmup_num_steps < 3;
         brief.warmup_num_steps++) {
        expect(&brief, 1, 0.001);
        expect(&brief, 2, 0.05);
        expect(&brief, 3, 0.05);
    }
}

static void a_total_within_the_warmup_ends_at_the_minimum_rate(void **state) {
    (void)state;
    struct schedule brief = warmup;
    brief.type = SCHEDULE_WARMUP_DECAY;
    brief.total_num_steps = 50;
    expect(&brief, 10, 0.001 + 0.049 * 0.5);
    expect(&brief, 101, 0.001);
    struct schedule wave = cosine;
    wave.total_num_steps = 5;
    expect(&wave, 11, 0.2 * 0.01);
    expect(&wave, 12, 0.2 * 0.01);
}

static void a_decay_to_zero_ends_at_its_total(void **state) {
    (void)state;
    struct schedule decay = warmup;
    decay.type = SCHEDULE_WARMUP_DECAY;
    decay.total_num_steps = 1000;
    assert_false(schedule_ends_before(&decay, 1001)); /* at a fiftieth */
    decay.warmup_min_lr = 0;
    assert_false(schedule_ends_before(&decay, 1000));
    assert_true(schedule_ends_before(&decay, 1001));
    struct schedule wave = cosine;
    assert_false(schedule_ends_before(&wave, 1000));
    wave.cos_min_ratio = 0.0001;
    assert_true(schedule_ends_before(&wave, 1000));
    assert_false(schedule_ends_before(&warmup, 1000000));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_constant_rate_is_the_optimizers),
        cmocka_unit_test(groups_follow_the_share_of_the_highest_rate),
        cmocka_unit_test(a_warmup_rises_with_the_logarithm_then_stays),
        cmocka_unit_test(a_linear_warmup_rises_linearly),
        cmocka_unit_test(a_decay_falls_linearly_to_the_minimum_rate),
        cmocka_unit_test(a_cosine_falls_to_its_minimum_ratio_and_stays),
        cmocka_unit_test(fewer_than_two_warmup_steps_count_as_two),
        cmocka_unit_test(a_decay_to_zero_ends_at_its_total),
        cmocka_unit_test(a_total_within_the_warmup_ends_at_the_minimum_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
