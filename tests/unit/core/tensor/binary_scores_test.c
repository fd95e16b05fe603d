/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/binary_scores.h"

#include "core/tensor/philox.h"
#include "tests/lib/test.h"

#include <math.h>

enum { SAMPLES = 700, MANY = 100000 };

struct samples {
    float logits[SAMPLES], targets[SAMPLES];
};

/* Logits with ties, of both signs and some of no size, and targets. */
static void draw(struct samples *samples, uint64_t seed) {
    struct philox_sequence random;
    philox_sequence_open(&random, seed, 0);
    for (int i = 0; i < SAMPLES; i++) {
        int step = (int)philox_below(&random, 61) - 30;
        samples->logits[i] = step ? 0.1f * (float)step : -0.0f;
        samples->targets[i] =
            (float)((int)philox_below(&random, 60) < 30 + step);
        if (i % 50 == 0)
            samples->logits[i] = i % 100 ? INFINITY : -INFINITY;
    }
}

/* Of all pairs. */
static double auc_of_pairs(const struct samples *samples) {
    double pairs = 0, above = 0;
    for (int p = 0; p < SAMPLES; p++)
        for (int n = 0; n < SAMPLES; n++) {
            if (samples->targets[p] < 1 || samples->targets[n] > 0)
                continue;
            pairs++;
            above += samples->logits[p] > samples->logits[n];
            above += samples->logits[p] == samples->logits[n] ? 0.5 : 0;
        }
    return above / pairs;
}

TEST(auc_counts_the_pairs_in_order) {
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct samples samples;
        struct binary_scores scores = {0};
        double error, predicted = 0, targets = 0;
        draw(&samples, seed);
        for (int i = 0; i < SAMPLES; i += 100)
            assert_true(binary_scores_add(&scores, samples.logits + i,
                                          samples.targets + i, 100, SAMPLES));
        for (int i = 0; i < SAMPLES; i++) {
            predicted += 1 / (1 + exp(-(double)samples.logits[i]));
            targets += samples.targets[i];
        }
        assert_true(fabs(binary_scores_auc(&scores, SAMPLES, &error) -
                         auc_of_pairs(&samples)) < 1e-12);
        assert_true(error == 0);
        assert_true(scores.predicted_sum == predicted);
        assert_true(scores.target_sum == targets);
        binary_scores_clear(&scores);
        assert_null(scores.items);
    }
}

/* As the chief gets the parts of trainers. */
TEST(parts_add_up_to_the_whole) {
    struct samples samples;
    struct binary_scores whole = {0}, sum = {0};
    double error;
    draw(&samples, 99);
    assert_true(binary_scores_add(&whole, samples.logits, samples.targets,
                                  SAMPLES, SAMPLES));
    for (int i = 0; i < SAMPLES; i += 100) {
        struct binary_scores part = {0};
        size_t size;
        assert_true(binary_scores_add(&part, samples.logits + i,
                                      samples.targets + i, 100, SAMPLES));
        unsigned char *bytes = binary_scores_pack(&part, &size);
        assert_true(binary_scores_unpack(&sum, bytes, size));
        free(bytes);
        binary_scores_clear(&part);
    }
    double expected = binary_scores_auc(&whole, SAMPLES, &error);
    assert_true(binary_scores_auc(&sum, SAMPLES, &error) == expected);
    assert_int_equal(sum.count, whole.count);
    assert_memory_equal(sum.items, whole.items, sum.count * sizeof *sum.items);
    binary_scores_clear(&whole);
    binary_scores_clear(&sum);
}

TEST(many_samples_are_in_bins_with_a_bound) {
    static float logits[MANY], targets[MANY];
    struct binary_scores exact = {0}, bins = {0};
    double error, none;
    philox_uniform(1, 0, 0, 3, logits, MANY);
    for (int i = 0; i < MANY; i++)
        targets[i] = (float)(logits[i] + 2 * sinf((float)i) > 0);
    assert_true(binary_scores_add(&exact, logits, targets, MANY, MANY));
    assert_true(binary_scores_add(&bins, logits, targets, MANY,
                                  BINARY_SCORES_MAX_EXACT + 1));
    double whole = binary_scores_auc(&exact, MANY, &none);
    double binned =
        binary_scores_auc(&bins, BINARY_SCORES_MAX_EXACT + 1, &error);
    assert_true(bins.count < exact.count);
    assert_true(error > 0 && error < 1e-3);
    assert_true(fabs(whole - binned) <= error);
    binary_scores_clear(&exact);
    binary_scores_clear(&bins);
}

TEST(one_class_has_no_auc) {
    const float logits[] = {1, 2}, targets[] = {1, 1};
    struct binary_scores scores = {0};
    double error;
    assert_true(isnan(binary_scores_auc(&scores, 2, &error)));
    assert_true(binary_scores_add(&scores, logits, targets, 2, 2));
    assert_true(isnan(binary_scores_auc(&scores, 2, &error)));
    binary_scores_clear(&scores);
}

/* Any bytes are read or refused, and what is read fits into memory. */
TEST(other_bytes_are_refused_or_read) {
    struct philox_sequence random;
    static const unsigned char wrong[][6] = {
        {5, 3}, {0xff, 0xff, 0xff, 0xff, 0x1f, 0}, {5}, {5, 2, 1}, {0x80}};
    static const size_t sizes[] = {2, 6, 1, 3, 1};
    struct binary_scores scores = {0};
    for (int i = 0; i < 5; i++) {
        assert_false(binary_scores_unpack(&scores, wrong[i], sizes[i]));
        binary_scores_clear(&scores);
    }
    philox_sequence_open(&random, 4, 0);
    for (int i = 0; i < 20000; i++) {
        unsigned char bytes[16];
        size_t size = philox_below(&random, 17);
        for (size_t b = 0; b < size; b++)
            bytes[b] = (unsigned char)philox_below(&random, 256);
        (void)binary_scores_unpack(&scores, bytes, size);
        assert_true(scores.count <= 8);
        binary_scores_clear(&scores);
    }
}
