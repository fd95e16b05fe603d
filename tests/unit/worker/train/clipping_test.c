/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "worker/train/trainer_internal.h"

#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PARAMETERS = 3 };

/* Three parameters, of a part of a block, of several, and of one float. */
struct fixture {
    struct layout *layout;
    float *gradients[PARAMETERS], *before[PARAMETERS];
    double norm;
};

static int setup(void **state) {
    static const struct parameter parameters[PARAMETERS] = {
        {.name = "bias", .num_dims = 1, .dims = {1000}},
        {.name = "weight", .num_dims = 2, .dims = {300, 701}},
        {.name = "scale"},
    };
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct failure why;
    double sum = 0;
    if (layout_build(&fixture->layout, parameters, PARAMETERS, &why))
        fail_msg("%s", why.text);
    srand(7);
    for (int p = 0; p < PARAMETERS; p++) {
        uint64_t elements = fixture->layout->parameters[p].elements;
        fixture->gradients[p] = malloc(elements * sizeof(float));
        fixture->before[p] = malloc(elements * sizeof(float));
        for (uint64_t i = 0; i < elements; i++) {
            float value = (float)rand() / (float)RAND_MAX - 0.25f;
            fixture->gradients[p][i] = fixture->before[p][i] = value;
            sum += (double)value * value;
        }
    }
    fixture->norm = sqrt(sum);
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    for (int p = 0; p < PARAMETERS; p++) {
        free(fixture->gradients[p]);
        free(fixture->before[p]);
    }
    layout_free(&fixture->layout);
    free(fixture);
    return 0;
}

FIXTURE(setup, teardown);

static void expect_times(const struct fixture *fixture, double factor) {
    for (int p = 0; p < PARAMETERS; p++)
        for (uint64_t i = 0; i < fixture->layout->parameters[p].elements; i++) {
            double expected = fixture->before[p][i] * factor;
            if (!(fabs(fixture->gradients[p][i] - expected) <=
                  1e-6 * fabs(expected)))
                fail_msg("parameter %d, element %llu: %.9g, not %.9g", p,
                         (unsigned long long)i, fixture->gradients[p][i],
                         expected);
        }
}

TEST(a_gradient_above_the_limit_is_scaled_to_it) {
    assert_true(fixture->layout->num_blocks > PARAMETERS);
    clipping_apply(fixture->layout, fixture->gradients, NULL, 0.5, NULL);
    expect_times(fixture, 0.5 / (fixture->norm + 1e-6));
}

TEST(a_gradient_below_the_limit_is_unchanged) {
    clipping_apply(fixture->layout, fixture->gradients, NULL,
                   fixture->norm * 1.001, NULL);
    expect_times(fixture, 1);
    clipping_apply(fixture->layout, fixture->gradients, NULL,
                   fixture->norm * 0.999, NULL);
    expect_times(fixture, 0.999);
}

/* As blocks of large models are. */
TEST(a_block_in_several_pieces_counts_as_a_whole) {
    struct parameter parameter = fixture->layout->parameters[1];
    struct block block = {.elements = (uint32_t)parameter.elements};
    struct layout layout = {.num_parameters = 1,
                            .num_blocks = 1,
                            .parameters = &parameter,
                            .blocks = &block};
    double sum = 0;
    for (uint32_t i = 0; i < block.elements; i++)
        sum += (double)fixture->before[1][i] * fixture->before[1][i];
    assert_true(block.elements > 2 * RULE_PIECE);
    clipping_apply(&layout, &fixture->gradients[1], NULL, 0.5, NULL);
    float expected = fixture->before[1][0] * (float)(0.5 / sqrt(sum));
    assert_true(fabsf(fixture->gradients[1][0] - expected) <=
                1e-6f * fabsf(expected));
}

TEST(every_processor_gives_the_same_bits) {
    size_t count, bytes = fixture->layout->parameters[1].elements * 4;
    const struct rule_loops *const *loops = rule_variants(&count);
    float *first = malloc(bytes);
    for (size_t v = 0; v < count; v++) {
        for (int p = 0; p < PARAMETERS; p++)
            memcpy(fixture->gradients[p], fixture->before[p],
                   fixture->layout->parameters[p].elements * sizeof(float));
        clipping_apply(fixture->layout, fixture->gradients, NULL, 2, loops[v]);
        if (v == 0)
            memcpy(first, fixture->gradients[1], bytes);
        assert_memory_equal(fixture->gradients[1], first, bytes);
    }
    free(first);
}

TEST(nonfinite_norms_do_not_clip) {
    fixture->gradients[1][5] = NAN;
    clipping_apply(fixture->layout, fixture->gradients, NULL, 0.5, NULL);
    assert_true(isnan(fixture->gradients[1][5]));
    fixture->gradients[1][5] = fixture->before[1][5];
    expect_times(fixture, 1);
}
