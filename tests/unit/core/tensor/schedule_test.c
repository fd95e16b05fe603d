/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/schedule.h"

#include "tests/lib/test.h"

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

TEST(a_constant_rate_is_the_optimizers) {
    struct schedule constant = {.type = SCHEDULE_CONSTANT, .lr = 0.3};
    expect(&constant, 1, 0.3);
    expect(&constant, UINT64_C(1) << 40, 0.3);
}

TEST(groups_follow_the_share_of_the_highest_rate) {
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

TEST(a_warmup_rises_with_the_logarithm_then_stays) {
    expect(&warmup, 1, 0.001);
    expect(&warmup, 10, 0.001 + 0.049 * 0.5); /* log 10 / log 100 */
    expect(&warmup, 50, 0.001 + 0.049 * 0.8494850021680094);
    expect(&warmup, 100, 0.05);
    expect(&warmup, 101, 0.05);
    expect(&warmup, 100000, 0.05);
}

TEST(a_linear_warmup_rises_linearly) {
    struct schedule linear = warmup;
    linear.warmup_linear = true;
    expect(&linear, 1, 0.001);
    expect(&linear, 51, 0.001 + 0.049 * 0.5);
    expect(&linear, 100, 0.001 + 0.049 * 0.99);
    expect(&linear, 101, 0.05);
    schedule_scale(&linear, 3);
    expect(&linear, 101, 0.15);
}

TEST(a_decay_falls_linearly_to_the_minimum_rate) {
    struct schedule decay = warmup;
    decay.type = SCHEDULE_WARMUP_DECAY;
    expect(&decay, 10, 0.001 + 0.049 * 0.5);
    expect(&decay, 101, 0.05);
    expect(&decay, 351, 0.001 + 0.049 * 0.75);
    expect(&decay, 1100, 0.001 + 0.049 * 0.001);
    expect(&decay, 1101, 0.001);
    expect(&decay, 5000, 0.001);
}

TEST(a_cosine_falls_to_its_minimum_ratio_and_stays) {
    expect(&cosine, 1, 0.2 * 0.1);
    expect(&cosine, 5, 0.2 * (0.1 + 0.9 * 0.6989700043360189));
    expect(&cosine, 35, 0.2 * (0.01 + 0.99 * 0.5 * (1 + 0.70710678118654757)));
    expect(&cosine, 60, 0.2 * (0.01 + 0.99 * 0.5));
    expect(&cosine, 110, 0.2 * 0.01);
    expect(&cosine, 160, 0.2 * 0.01);
}

TEST(fewer_than_two_warmup_steps_count_as_two) {
    struct schedule brief = warmup;
    for (brief.warmup_num_steps = 0; brief.warmup_num_steps < 3;
         brief.warmup_num_steps++) {
        expect(&brief, 1, 0.001);
        expect(&brief, 2, 0.05);
        expect(&brief, 3, 0.05);
    }
}

TEST(a_total_within_the_warmup_ends_at_the_minimum_rate) {
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

TEST(a_decay_to_zero_ends_at_its_total) {
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

/* Rates that TensorFlow 2.15.1 and torch print, before and at the steps
 * where something changes. */
TEST(decays_have_the_rates_of_tensorflow_and_torch) {
    static const uint64_t iterations[] = {0, 1, 7, 10, 11, 30, 31, 70};
    static const struct {
        struct schedule schedule;
        double rates[8];
    } cases[] = {
        {{.lr = 0.2,
          .type = SCHEDULE_EXPONENTIAL,
          .period = 10,
          .decay_rate = 0.5},
         {0.2, 0.1866065983, 0.1231144413, 0.1, 0.09330329915, 0.025,
          0.02332582479, 0.0015625}},
        {{.lr = 0.2,
          .type = SCHEDULE_EXPONENTIAL,
          .period = 10,
          .decay_rate = 0.5,
          .staircase = true},
         {0.2, 0.2, 0.2, 0.1, 0.1, 0.025, 0.025, 0.0015625}},
        {{.lr = 0.2,
          .type = SCHEDULE_INVERSE_TIME,
          .period = 10,
          .decay_rate = 0.5},
         {0.2, 0.1904761905, 0.1481481481, 0.1333333333, 0.1290322581, 0.08,
          0.07843137255, 0.04444444444}},
        {{.lr = 0.2,
          .type = SCHEDULE_POLYNOMIAL,
          .period = 30,
          .end_rate = 0.02,
          .power = 2},
         {0.2, 0.1882, 0.1258, 0.1, 0.0922, 0.02, 0.02, 0.02}},
        {{.lr = 0.2,
          .type = SCHEDULE_POLYNOMIAL,
          .period = 30,
          .end_rate = 0.02,
          .power = 2,
          .cycle = true},
         {0.2, 0.1882, 0.1258, 0.1, 0.0922, 0.02, 0.06205, 0.02888888846}},
        {{.lr = 0.2, .type = SCHEDULE_COSINE, .period = 30, .alpha = 0.1},
         {0.2, 0.1995069706, 0.1768830343, 0.155, 0.1466062979, 0.02, 0.02,
          0.02}},
        {{.lr = 0.2,
          .type = SCHEDULE_COSINE_RESTARTS,
          .period = 10,
          .t_mul = 2,
          .m_mul = 0.5,
          .alpha = 0.1},
         {0.2, 0.1955950865, 0.05709932753, 0.11, 0.1094459755, 0.065,
          0.06493064023, 0.0425}},
        {{.lr = 0.2,
          .type = SCHEDULE_COSINE_RESTARTS,
          .period = 10,
          .t_mul = 1,
          .m_mul = 0.5,
          .alpha = 0.1},
         {0.2, 0.1955950865, 0.05709932753, 0.11, 0.1077975434, 0.0425,
          0.04194938607, 0.0214062503}},
        {{.lr = 0.2,
          .type = SCHEDULE_PIECEWISE,
          .bounds = {2, {10, 30}},
          .values = {3, {0.2, 0.1, 0.01}}},
         {0.2, 0.2, 0.2, 0.2, 0.1, 0.1, 0.01, 0.01}},
        {{.lr = 0.2, .type = SCHEDULE_EXPONENTIAL_LR, .decay_rate = 0.9},
         {0.2, 0.18, 0.09565938, 0.06973568802, 0.06276211922, 0.008478231655,
          0.00763040849, 0.0001253157496}},
        {{.lr = 0.2, .type = SCHEDULE_STEP_LR, .period = 10, .decay_rate = 0.5},
         {0.2, 0.2, 0.2, 0.1, 0.1, 0.025, 0.025, 0.0015625}},
        {{.lr = 0.2,
          .type = SCHEDULE_MULTI_STEP_LR,
          .bounds = {2, {10, 30}},
          .decay_rate = 0.5},
         {0.2, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05}},
        {{.lr = 0.2, .type = SCHEDULE_POLYNOMIAL_LR, .period = 30, .power = 2},
         {0.2, 0.1868888889, 0.1175555556, 0.08888888889, 0.08022222222, 0, 0,
          0}},
        {{.lr = 0.2,
          .type = SCHEDULE_COSINE_ANNEALING_LR,
          .period = 30,
          .end_rate = 0.02},
         {0.2, 0.1995069706, 0.1768830343, 0.155, 0.1466062979, 0.02,
          0.02049302942, 0.155}},
        {{.lr = 0.2,
          .type = SCHEDULE_COSINE_WARM_RESTARTS,
          .period = 10,
          .t_mul = 2,
          .end_rate = 0.02},
         {0.2, 0.1955950865, 0.05709932729, 0.2, 0.1988919507, 0.2, 0.19972256,
          0.2}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int i = 0; i < 8; i++) {
            struct schedule schedule = cases[c].schedule;
            double expected = cases[c].rates[i];
            double rate = schedule_rate(&schedule, iterations[i] + 1);
            if (!(fabs(rate - expected) <= 1e-8))
                fail_msg("type %d at %d: %.17g, not %.17g", schedule.type,
                         (int)iterations[i], rate, expected);
            schedule_scale(&schedule, 3); /* but for what is no share */
            schedule.end_rate *= 3;
            rate = schedule_rate(&schedule, iterations[i] + 1);
            if (!(fabs(rate - 3 * expected) <= 1e-7))
                fail_msg("type %d at %d: %.17g when scaled", schedule.type,
                         (int)iterations[i], rate);
        }
}

/* A period begins at its first step, though pow and log are not exact. */
TEST(restarts_are_at_the_sum_of_the_periods) {
    for (int growth = 2; growth <= 7; growth++) {
        struct schedule schedule = {.type = SCHEDULE_COSINE_WARM_RESTARTS,
                                    .lr = 1,
                                    .period = 3,
                                    .t_mul = growth};
        uint64_t begin = 0, length = 3;
        for (int k = 0; k < 9; k++) {
            expect(&schedule, begin + 1, 1);
            assert_true(schedule_rate(&schedule, begin + length) < 0.26);
            begin += length;
            length *= (uint64_t)growth;
        }
    }
}

TEST(a_decay_with_an_end_is_known_to_end) {
    const char *key;
    struct schedule schedule = {.type = SCHEDULE_POLYNOMIAL,
                                .initial_lr = 0.1,
                                .period = 100,
                                .power = 1,
                                .end_rate = 0.0001};
    assert_true(schedule_ends_before(&schedule, 101));
    assert_false(schedule_ends_before(&schedule, 100));
    assert_int_equal(schedule_end(&schedule, &key), 100);
    assert_string_equal(key, "decay_steps");
    schedule.cycle = true;
    assert_false(schedule_ends_before(&schedule, 1000));
    schedule.type = SCHEDULE_EXPONENTIAL;
    assert_false(schedule_ends_before(&schedule, 1000));
}
