/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cpu/loss.h"

#include "tests/lib/loss_oracle.h"
#include "tests/lib/test.h"

#include <math.h>

enum { MAX_OUT = 1025 };

typedef double (*loss_function)(const float *z, uint32_t label, float *dz,
                                uint32_t out, float factor);

static void fill(float *z, uint32_t out, float bound, uint32_t seed) {
    for (uint32_t j = 0; j < out; j++) {
        seed = seed * 1664525 + 1013904223;
        z[j] = ((float)(seed >> 8) * 0x1p-23f - 1) * bound;
    }
}

static void assert_agrees(loss_function loss, enum job_loss kind,
                          const float *z, uint32_t label, uint32_t out) {
    const float factor = 0.125f;
    float dz[MAX_OUT];
    double expected_dz[MAX_OUT];
    double expected = loss_oracle(kind, z, label, expected_dz, out);
    double got = loss(z, label, dz, out, factor);
    if (!(fabs(got - expected) <= 1e-6 * (1 + fabs(expected))))
        fail_msg("loss: found %.9g, expected %.17g", got, expected);
    for (uint32_t j = 0; j < out; j++) {
        double gradient = factor * expected_dz[j];
        if (!(fabs(dz[j] - gradient) <= 3e-7 * (0.125 + fabs(gradient))))
            fail_msg("gradient %u of %u: found %.9g, expected %.17g", j, out,
                     (double)dz[j], gradient);
    }
    assert_true(loss(z, label, NULL, out, factor) == got);
}

static uint32_t bits_of(float target) {
    uint32_t bits;
    memcpy(&bits, &target, sizeof bits);
    return bits;
}

static void check(loss_function loss, enum job_loss kind) {
    static const uint32_t sizes[] = {1, 2, 7, 10, 255, 1025};
    static const float bounds[] = {0, 1e-3f, 1, 30, 1000};
    static const float targets[] = {0, 1, 0.25f, -3};
    float z[MAX_OUT];
    for (int s = 0; s < 6; s++) {
        for (int b = 0; b < 5; b++) {
            uint32_t out = sizes[s];
            fill(z, out, bounds[b], 1 + out);
            for (int t = 0;
                 out == 1 && loss != loss_softmax_cross_entropy && t < 4; t++)
                assert_agrees(loss, kind, z, bits_of(targets[t]), out);
            assert_agrees(loss, kind, z, 0, out);
            assert_agrees(loss, kind, z, out / 2, out);
            assert_agrees(loss, kind, z, out - 1, out);
        }
    }
}

TEST(softmax_cross_entropy_agrees_with_double) {
    check(loss_softmax_cross_entropy, JOB_SOFTMAX_CROSS_ENTROPY);
}

TEST(sigmoid_cross_entropy_agrees_with_double) {
    check(loss_sigmoid_cross_entropy, JOB_SIGMOID_CROSS_ENTROPY);
}

TEST(mse_agrees_with_double) {
    check(loss_mse, JOB_MSE);
}

TEST(no_finite_logit_overflows) {
    const float z[3] = {3e38f, -3e38f, 0};
    float dz[3];
    assert_true(loss_softmax_cross_entropy(z, 0, dz, 3, 1) == 0);
    assert_true(dz[0] == 0 && dz[1] == 0 && dz[2] == 0);
    assert_true(isfinite(loss_softmax_cross_entropy(z, 1, dz, 3, 1)));
    assert_true(isfinite(loss_softmax_cross_entropy(z, 2, dz, 3, 1)));
    assert_true(dz[0] == 1 && dz[1] == 0 && dz[2] == -1);
    assert_true(isfinite(loss_sigmoid_cross_entropy(z, 1, dz, 3, 3)));
    assert_true(dz[0] == 1 && dz[1] == -1 && dz[2] == 0.5f);
}

TEST(a_nan_propagates_to_every_loss) {
    for (uint32_t place = 0; place < 4; place++) {
        float z[4] = {0, 1, -1, 2}, dz[4];
        z[place] = NAN;
        assert_true(isnan(loss_softmax_cross_entropy(z, 1, dz, 4, 1)));
        assert_true(isnan(dz[place]));
        assert_true(isnan(loss_sigmoid_cross_entropy(z, 1, dz, 4, 1)));
        assert_true(isnan(dz[place]));
        assert_true(isnan(loss_mse(z, 1, dz, 4, 1)));
        assert_true(isnan(dz[place]));
    }
}

TEST(the_gradient_may_replace_the_logits) {
    static const loss_function losses[] = {
        loss_softmax_cross_entropy, loss_sigmoid_cross_entropy, loss_mse};
    for (int l = 0; l < 3; l++) {
        float z[7], in_place[7], dz[7];
        fill(z, 7, 3, 9);
        fill(in_place, 7, 3, 9);
        double apart = losses[l](z, 3, dz, 7, 0.5f);
        assert_true(losses[l](in_place, 3, in_place, 7, 0.5f) == apart);
        assert_memory_equal(in_place, dz, sizeof dz);
    }
}

TEST(the_first_of_equal_logits_is_the_answer) {
    const float z[4] = {1, 5, 5, -2};
    const float bad[2] = {NAN, 1};
    assert_true(loss_is_correct(z, 1, 4));
    assert_false(loss_is_correct(z, 2, 4));
    assert_false(loss_is_correct(z, 0, 4));
    assert_false(loss_is_correct(bad, 0, 2));
    assert_false(loss_is_correct(bad, 0, 1));
}
