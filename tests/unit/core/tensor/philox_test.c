/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/philox.h"

#include "tests/lib/test.h"

#include <math.h>

/* philox4x32-10 of Random123's kat_vectors. */
static const struct {
    uint32_t counter[4], key[2], words[4];
} known_answers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

static uint64_t join(const uint32_t halves[2]) {
    return (uint64_t)halves[1] << 32 | halves[0];
}

TEST(published_test_vectors_are_reproduced) {
    for (size_t i = 0; i < sizeof known_answers / sizeof *known_answers; i++) {
        uint32_t words[4];
        philox(join(known_answers[i].key), join(known_answers[i].counter + 2),
               join(known_answers[i].counter), words);
        assert_memory_equal(words, known_answers[i].words, sizeof words);
    }
}

TEST(a_value_is_24_bits_of_its_own_word) {
    float values[100];
    philox_uniform(7, 3, 1001, 0.5f, values, 100);
    for (uint64_t i = 0; i < 100; i++) {
        uint64_t element = 1001 + i;
        uint32_t words[4];
        philox(7, 3, element / 4, words);
        double exact = (words[element % 4] >> 8) / 0x1p23 - 1;
        assert_true(values[i] == (float)(exact * 0.5));
    }
}

TEST(a_value_does_not_depend_on_the_requested_range) {
    enum { COUNT = 700 };
    float whole[COUNT], pieces[COUNT];
    philox_uniform(1, 2, 5, 0.1f, whole, COUNT);
    size_t done = 0;
    for (size_t length = 0; done < COUNT; length = (length + 1) % 90) {
        size_t take = length < COUNT - done ? length : COUNT - done;
        philox_uniform(1, 2, 5 + done, 0.1f, pieces + done, take);
        done += take;
    }
    assert_memory_equal(whole, pieces, sizeof whole);
}

TEST(positions_beyond_32_bits_are_distinct) {
    float low, high;
    philox_uniform(1, 2, 4, 1, &low, 1);
    philox_uniform(1, 2, 4 + (UINT64_C(1) << 34), 1, &high, 1);
    assert_true(low != high);
}

TEST(values_are_uniform_within_the_bound) {
    enum { COUNT = 1 << 20 };
    float *values = malloc(COUNT * sizeof *values);
    const float bound = 1.9999999f; /* its neighbours are as close as can be */
    philox_uniform(11, 0, 0, bound, values, COUNT);
    double sum = 0, squares = 0;
    for (size_t i = 0; i < COUNT; i++) {
        assert_true(values[i] >= -bound && values[i] < bound);
        sum += values[i];
        squares += (double)values[i] * values[i];
    }
    /* four standard deviations of the mean and of the mean square */
    double variance = (double)bound * bound / 3;
    assert_true(fabs(sum / COUNT) < 4 * sqrt(variance / COUNT));
    assert_true(fabs(squares / COUNT - variance) <
                4 * variance * sqrt(0.8 / COUNT));
    free(values);
}

TEST(the_largest_word_stays_below_the_bound) {
    for (float bound = 1; bound < 2; bound += 0x1p-12f)
        assert_true((float)((1 << 23) - 1) * 0x1p-23f * bound < bound);
}

TEST(a_sequence_is_the_words_in_order) {
    struct philox_sequence sequence;
    philox_sequence_open(&sequence, 9, 4);
    for (uint64_t position = 0; position < 5; position++) {
        uint32_t words[4];
        philox(9, 4, position, words);
        for (int w = 0; w < 4; w++)
            assert_int_equal(philox_next(&sequence), words[w]);
    }
}

TEST(numbers_below_a_limit_are_unbiased) {
    struct philox_sequence sequence;
    philox_sequence_open(&sequence, 5, 0);
    /* Without rejection a third of the range would come twice as often. */
    const uint32_t limit = 3u << 30;
    unsigned thirds[3] = {0};
    for (int i = 0; i < 30000; i++) {
        uint32_t number = philox_below(&sequence, limit);
        assert_true(number < limit);
        thirds[number % 3]++;
    }
    for (int third = 0; third < 3; third++)
        assert_in_range(thirds[third], 9600, 10400);
    for (int i = 0; i < 100; i++)
        assert_int_equal(philox_below(&sequence, 1), 0);
}
