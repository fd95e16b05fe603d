/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/loss_scaler.h"

#include "tests/lib/seed.h"
#include "tests/lib/test.h"

#include <math.h>

static struct job_fp16 dynamic(uint32_t power, uint64_t window,
                               uint32_t hysteresis) {
    return (struct job_fp16){.enabled = true,
                             .initial_scale_power = power,
                             .loss_scale_window = window,
                             .hysteresis = hysteresis,
                             .min_loss_scale = 1};
}

static void step(struct loss_scaler *scaler, const struct job_fp16 *fp16,
                 bool overflow) {
    if (overflow)
        loss_scaler_overflow(scaler, fp16, scaler->scale);
    else
        loss_scaler_no_overflow(scaler, fp16);
}

/* The scale after each step; x is one that overflowed. Made by DeepSpeed's own
 * class: DynamicLossScaler(init_scale=2**power, scale_window=window,
 * min_scale=least, delayed_shift=hysteresis, consecutive_hysteresis=...) of
 * version 0.16.2, and its cur_scale after each update_scale(overflow); 0 where
 * it raised. */
static const struct {
    uint32_t power;
    uint64_t window;
    uint32_t hysteresis;
    bool consecutive;
    double least;
    const char *steps;
    double scales[32];
} table[] = {
    {8,
     3,
     2,
     false,
     1,
     "......x....x.x..xxx..x.x.xx.xx..",
     {256,  256,  512,  512,  512,  1024, 1024, 1024, 1024, 2048, 2048,
      2048, 2048, 1024, 1024, 1024, 512,  256,  128,  128,  128,  64,
      64,   32,   32,   16,   8,    8,    4,    2,    2,    2}},
    {8,
     3,
     2,
     true,
     1,
     "x...x....xxxxxx.x.xx..x..x.x..x.",
     {256, 256, 256, 512, 512, 512, 512, 1024, 1024, 1024, 512,
      256, 128, 64,  32,  32,  32,  32,  32,   16,   16,   16,
      16,  16,  16,  16,  16,  16,  16,  16,   16,   16}},
    {4,
     2,
     1,
     false,
     1,
     "..xxx.x.......x...x.x........xxx",
     {16, 32, 16, 8, 4, 4, 2, 2, 4,  4,  8,  8,  16, 16, 8,  8,
      16, 16, 8,  8, 4, 4, 8, 8, 16, 16, 32, 32, 64, 32, 16, 8}},
    {10,
     5,
     3,
     false,
     2,
     "..xx...x....x.x..x....x.x.x.....",
     {1024, 1024, 1024, 1024, 1024, 1024, 1024, 512, 512, 512, 512,
      512,  256,  256,  128,  128,  128,  64,   64,  64,  64,  64,
      32,   32,   16,   16,   8,    8,    8,    8,   8,   16}},
    {10,
     4,
     3,
     true,
     0.5,
     "x.xxxxx...xxxx..x.....x.xx..x...",
     {1024, 1024, 1024, 1024, 512, 256, 128, 128, 128, 128, 128,
      128,  64,   32,   32,   32,  32,  32,  32,  32,  64,  64,
      64,   64,   64,   64,   64,  64,  64,  64,  64,  64}},
    {6,
     1,
     2,
     false,
     1,
     "x.x.x...x...x.......x..x...x...x",
     {64,     128,    128,     256,     256,     512,     1024,    2048,
      2048,   4096,   8192,    16384,   16384,   32768,   65536,   131072,
      262144, 524288, 1048576, 2097152, 2097152, 4194304, 8388608, 8388608,
      0x1p24, 0x1p25, 0x1p26,  0x1p26,  0x1p27,  0x1p28,  0x1p29,  0x1p29}},
    {16,
     1000,
     2,
     false,
     1,
     "....xx.....x..xx.xxx......x...x.",
     {65536, 65536, 65536, 65536, 65536, 32768, 32768, 32768,
      32768, 32768, 32768, 16384, 16384, 16384, 8192,  4096,
      4096,  2048,  1024,  512,   512,   512,   512,   512,
      512,   512,   256,   256,   256,   256,   128,   128}},
    {3, 4, 1, false, 6, ".x.x", {8, 6, 6, 0}},
};

TEST(each_step_matches_deepspeed) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct job_fp16 fp16 =
            dynamic(table[i].power, table[i].window, table[i].hysteresis);
        fp16.consecutive_hysteresis = table[i].consecutive;
        fp16.min_loss_scale = table[i].least;
        struct loss_scaler scaler = loss_scaler_init(&fp16);
        for (size_t k = 0; table[i].steps[k]; k++) {
            step(&scaler, &fp16, table[i].steps[k] == 'x');
            if (scaler.scale != table[i].scales[k])
                fail_msg("row %zu, step %zu: scale %g, expected %g", i, k,
                         scaler.scale, table[i].scales[k]);
        }
    }
}

TEST(a_fixed_scale_is_constant_and_overflows_are_counted) {
    struct job_fp16 fp16 = dynamic(16, 1, 1);
    fp16.loss_scale = 128;
    struct loss_scaler scaler = loss_scaler_init(&fp16);
    for (int i = 0; i < 6; i++) {
        step(&scaler, &fp16, i % 2);
        assert_true(scaler.scale == 128);
    }
    assert_int_equal(scaler.skipped, 3);
}

TEST(without_fp16_the_scale_is_1) {
    const struct job_fp16 none = {0};
    struct loss_scaler scaler = loss_scaler_init(&none);
    assert_true(scaler.scale == 1);
    step(&scaler, &none, true);
    step(&scaler, &none, false);
    assert_true(scaler.scale == 1);
    assert_int_equal(scaler.skipped, 1);
}

/* However it overflows, the scale stays a power of two between its ends, and a
 * window without an overflow doubles it. */
TEST(a_dynamic_scale_stays_within_its_limits) {
    struct philox_sequence random;
    seed_open(&random);
    for (int history = 0; history < 300; history++) {
        struct job_fp16 fp16 =
            dynamic(philox_below(&random, 128), 1 + philox_below(&random, 6),
                    1 + philox_below(&random, 4));
        fp16.consecutive_hysteresis = philox_below(&random, 2);
        struct loss_scaler scaler = loss_scaler_init(&fp16);
        uint32_t chance = philox_below(&random, 101);
        uint64_t skipped = 0;
        for (int k = 0; k < 400 && scaler.scale > 0; k++) {
            struct loss_scaler before = scaler;
            bool overflow = philox_below(&random, 100) < chance;
            int exponent;
            step(&scaler, &fp16, overflow);
            skipped += overflow;
            assert_int_equal(scaler.skipped, skipped);
            assert_true(scaler.good < fp16.loss_scale_window);
            assert_true(scaler.hysteresis >= 1 &&
                        scaler.hysteresis <= fp16.hysteresis);
            assert_true(overflow ? scaler.scale <= before.scale
                                 : scaler.scale >= before.scale);
            if (scaler.scale == 0)
                assert_true(overflow && before.scale == 1);
            else
                assert_true(frexp(scaler.scale, &exponent) == 0.5 &&
                            exponent >= 1 && exponent <= 128);
        }
    }
}

TEST(overflows_of_an_earlier_scale_are_only_counted) {
    struct job_fp16 fp16 = dynamic(16, 1000, 1);
    struct loss_scaler scaler = loss_scaler_init(&fp16);
    for (int i = 0; i < 4; i++)
        loss_scaler_overflow(&scaler, &fp16, 65536);
    assert_true(scaler.scale == 32768);
    assert_int_equal(scaler.skipped, 4);
}

/* Interrupted anywhere, it goes on as if it had not been. */
TEST(a_saved_scaler_resumes) {
    struct philox_sequence random;
    seed_open(&random);
    struct job_fp16 fp16 = dynamic(20, 5, 3);
    struct loss_scaler whole = loss_scaler_init(&fp16), cut = whole;
    for (int k = 0; k < 500 && whole.scale > 0; k++) {
        bool overflow = philox_below(&random, 6) == 0;
        step(&whole, &fp16, overflow);
        cut = loss_scaler_restore(&fp16, &cut);
        step(&cut, &fp16, overflow);
        assert_true(cut.scale == whole.scale);
        assert_int_equal(cut.good, whole.good);
        assert_int_equal(cut.hysteresis, whole.hysteresis);
        assert_int_equal(cut.skipped, whole.skipped);
    }
}

TEST(state_without_a_dynamic_scale_starts_over) {
    struct job_fp16 fp16 = dynamic(16, 1000, 2), fixed = fp16;
    fixed.loss_scale = 64;
    const struct loss_scaler kept[] = {
        {0},
        {.scale = 64, .skipped = 3},                  /* it was fixed */
        {.scale = 0, .hysteresis = 1, .skipped = 40}, /* it was at its end */
    };
    for (size_t i = 0; i < 3; i++) {
        struct loss_scaler next = loss_scaler_restore(&fp16, &kept[i]);
        assert_true(next.scale == 65536 && next.hysteresis == 2);
        assert_int_equal(next.skipped, kept[i].skipped);
    }
    struct loss_scaler saved = {.scale = 8, .hysteresis = 1, .skipped = 5};
    assert_true(loss_scaler_restore(&fixed, &saved).scale == 64);
    assert_int_equal(loss_scaler_restore(&fixed, &saved).skipped, 5);
    saved.good = 2500; /* of a longer window */
    assert_int_equal(loss_scaler_restore(&fp16, &saved).good, 500);
}
