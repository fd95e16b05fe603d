/* SPDX-License-Identifier: Apache-2.0 */
/* Combined rows and their gradients against the definition in double. */
#include "worker/train/bags.h"

#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BAGS = 20, MOST_IDS = 100, ROWS = 30, MOST_DIM = 37, WIDTH = 40 };

static const uint32_t dims[] = {1, 3, 8, 16, 23, 37};
static const enum batch_combiner combiners[] = {BATCH_SUM, BATCH_MEAN,
                                                BATCH_SQRTN};

struct fixture {
    uint32_t offsets[BAGS + 1], positions[MOST_IDS];
    float weights[MOST_IDS], rows[ROWS * MOST_DIM], sums[BAGS * WIDTH];
};

static double uniform(void) {
    return (double)rand() / RAND_MAX;
}

/* Bags of 0 to 5 ids, rows that may be equal, and weights above 0. */
static void draw(struct fixture *fixture, uint32_t dim) {
    memset(fixture, 0, sizeof *fixture);
    for (uint32_t b = 0; b < BAGS; b++)
        fixture->offsets[b + 1] = fixture->offsets[b] + (uint32_t)rand() % 6;
    for (uint32_t j = 0; j < MOST_IDS; j++) {
        fixture->positions[j] = (uint32_t)rand() % ROWS * dim;
        fixture->weights[j] = (float)(uniform() + 0.1);
    }
    for (uint32_t i = 0; i < ROWS * MOST_DIM; i++)
        fixture->rows[i] = (float)(uniform() - 0.5);
    for (uint32_t i = 0; i < BAGS * WIDTH; i++)
        fixture->sums[i] = (float)(uniform() - 0.5);
}

/* What id J of bag B counts, by the definition. */
static double factor(const struct bags *bags, uint32_t b, uint32_t j) {
    double sum = 0, squares = 0;
    for (uint32_t k = bags->offsets[b]; k < bags->offsets[b + 1]; k++) {
        double weight = bags->weights ? (double)bags->weights[k] : 1;
        sum += weight;
        squares += weight * weight;
    }
    double weight = bags->weights ? (double)bags->weights[j] : 1;
    return bags->combiner == BATCH_SUM    ? weight
           : bags->combiner == BATCH_MEAN ? weight / sum
                                          : weight / sqrt(squares);
}

static void expect_rows(const struct fixture *fixture,
                        const struct bags *bags) {
    double expected[BAGS * WIDTH];
    float sums[BAGS * WIDTH];
    memcpy(sums, fixture->sums, sizeof sums);
    for (uint32_t i = 0; i < BAGS * WIDTH; i++)
        expected[i] = (double)sums[i];
    bags_add_rows(bags, fixture->rows, fixture->positions, sums);
    for (uint32_t b = 0; b < BAGS; b++)
        for (uint32_t j = bags->offsets[b]; j < bags->offsets[b + 1]; j++)
            for (uint32_t d = 0; d < bags->dim; d++)
                expected[b * WIDTH + d] +=
                    factor(bags, b, j) *
                    (double)fixture->rows[fixture->positions[j] + d];
    for (uint32_t i = 0; i < BAGS * WIDTH; i++)
        assert_true(fabs((double)sums[i] - expected[i]) < 1e-5);
}

static void expect_gradients(const struct fixture *fixture,
                             const struct bags *bags, bool own_rows) {
    static double expected[MOST_IDS * MOST_DIM];
    static float gradients[MOST_IDS * MOST_DIM];
    memset(expected, 0, sizeof expected);
    memset(gradients, 0, sizeof gradients);
    bags_add_gradients(bags, fixture->sums,
                       own_rows ? NULL : fixture->positions, gradients);
    for (uint32_t b = 0; b < BAGS; b++)
        for (uint32_t j = bags->offsets[b]; j < bags->offsets[b + 1]; j++)
            for (uint32_t d = 0; d < bags->dim; d++)
                expected[(own_rows ? j * bags->dim : fixture->positions[j]) +
                         d] +=
                    factor(bags, b, j) * (double)fixture->sums[b * WIDTH + d];
    for (uint32_t i = 0; i < MOST_IDS * MOST_DIM; i++)
        assert_true(fabs((double)gradients[i] - expected[i]) < 1e-5);
}

TEST(sums_and_gradients_are_those_of_the_definition) {
    static struct fixture fixture;
    srand(1);
    for (int turn = 0; turn < 6 * 3 * 2 * 10; turn++) {
        struct bags bags = {.count = BAGS,
                            .offsets = fixture.offsets,
                            .weights = turn / 18 % 2 ? fixture.weights : NULL,
                            .combiner = combiners[turn / 6 % 3],
                            .dim = dims[turn % 6],
                            .width = WIDTH};
        draw(&fixture, bags.dim);
        expect_rows(&fixture, &bags);
        expect_gradients(&fixture, &bags, false);
        expect_gradients(&fixture, &bags, true);
    }
}
