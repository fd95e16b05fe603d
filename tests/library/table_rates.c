/* SPDX-License-Identifier: Apache-2.0 */
/* Examples/s of a trainer whose ids are ready in memory, by the library alone:
 * a logistic regression over rows of one table, by the ids of 39 fields, as
 * tests/bench/tf_sparse.py has it.
 *
 *     capstan local --ps 1 --workers 2 -- build/tests/table_rates ftrl 2000
 *
 * ftrl: weights, dim 1; adagrad: embeddings, dim 16 or the third argument, and
 * an output vector.
 * Prints the median over ten parts of the steps after the first tenth. */
#include "library/capstan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 1024, FIELDS = 39, BATCHES = 64, ROWS = 1000000, PARTS = 10 };
enum { IDS = BATCH * FIELDS, MAX_DIM = 128 };

static uint64_t ids[BATCHES][IDS];
static float clicks[BATCHES][BATCH];
static uint32_t offsets[BATCH + 1]; /* of the samples in their ids */
static float sums[BATCH * MAX_DIM], gradients[BATCH * MAX_DIM];

/* SplitMix64. */
static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static double uniform(uint64_t *state) {
    return (double)(next_random(state) >> 11) * 0x1p-53;
}

/* Zipf's law with exponent 1.15 over ROWS ids, the frequent ones anywhere. */
static void draw(uint64_t seed) {
    static double shares[ROWS];
    static uint32_t places[ROWS];
    uint64_t random = 1;
    double sum = 0;
    for (uint32_t i = 0; i < ROWS; i++) {
        shares[i] = sum += pow(i + 1, -1.15);
        uint32_t j = (uint32_t)(next_random(&random) % (i + 1));
        places[i] = places[j];
        places[j] = i;
    }
    random = seed + 2;
    for (int b = 0; b < BATCHES; b++) {
        for (int i = 0; i < BATCH; i++)
            clicks[b][i] = uniform(&random) < 0.25;
        for (int i = 0; i < IDS; i++) {
            double at = uniform(&random) * sum;
            uint32_t low = 0, high = ROWS - 1;
            while (low < high) {
                uint32_t middle = (low + high) / 2;
                if (shares[middle] < at)
                    low = middle + 1;
                else
                    high = middle;
            }
            ids[b][i] = places[low];
        }
    }
}

static void must(capstan_run *run, int result) {
    if (!result)
        return;
    fprintf(stderr, "table_rates: %s\n", capstan_error(run));
    exit(result);
}

/* The sums of each sample's rows to their gradients and to that of OUTPUT
 * [dim + 1], whose last is the bias; the mean loss. */
static double compute(const float *click, uint32_t dim, const float *output,
                      float *gradient) {
    double loss = 0;
    memset(gradient, 0, (dim + 1) * sizeof *gradient);
    for (int s = 0; s < BATCH; s++) {
        const float *sum = sums + (size_t)s * dim;
        float *to = gradients + (size_t)s * dim, logit = output[dim];
        for (uint32_t d = 0; d < dim; d++)
            logit += sum[d] * (dim == 1 ? 1 : output[d]);
        float p = 1 / (1 + expf(-logit)), g = (p - click[s]) / BATCH;
        loss -= log(click[s] > 0 ? (double)p : 1 - (double)p);
        gradient[dim] += g;
        for (uint32_t d = 0; d < dim; d++) {
            gradient[d] += dim == 1 ? 0 : g * sum[d];
            to[d] = g * (dim == 1 ? 1 : output[d]);
        }
    }
    return loss / BATCH;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static struct capstan_rows bags_of(uint32_t table, const uint64_t *of,
                                   float *values) {
    return (struct capstan_rows){.table = table,
                                 .count = IDS,
                                 .ids = of,
                                 .values = values,
                                 .num_bags = BATCH,
                                 .offsets = offsets,
                                 .combiner = CAPSTAN_SUM};
}

static void train(capstan_run *run, uint32_t table, uint32_t dim, float *output,
                  uint64_t steps) {
    float gradient[MAX_DIM + 1];
    double rates[PARTS], begin = 0;
    enum capstan_outcome outcome = CAPSTAN_GOES_ON;
    uint64_t part = steps / (PARTS + 1);
    for (uint64_t s = 0; s < steps && outcome == CAPSTAN_GOES_ON; s++) {
        int b = (int)(s % BATCHES);
        struct capstan_rows list = bags_of(table, ids[b], sums);
        if (s >= part && s % part == 0) {
            if (begin > 0 && s / part - 2 < PARTS)
                rates[s / part - 2] =
                    (double)part * BATCH / (seconds() - begin);
            begin = seconds();
        }
        struct capstan_rows next = bags_of(table, ids[(s + 1) % BATCHES], NULL);
        if (s > 0) /* these rows were asked for ahead themselves */
            must(run, capstan_prefetch(run, &next, 1));
        must(run, capstan_lookup(run, &list, 1, -1));
        if (s == 0)
            must(run, capstan_prefetch(run, &next, 1));
        must(run, capstan_wait(run, CAPSTAN_ALL, -1));
        double loss = compute(clicks[b], dim, output, gradient);
        list.values = gradients;
        must(run, capstan_push_rows(run, &list, 1));
        must(run, capstan_push(run, 0, gradient, (dim + 1) * sizeof *gradient,
                               CAPSTAN_FULL));
        must(run, capstan_step(run, loss, BATCH, 0, &outcome, -1));
    }
    qsort(rates, PARTS - 1, sizeof *rates, ascending);
    printf("rank %d: %.0f examples/s, median of %d (%.0f to %.0f)\n",
           capstan_rank(run), rates[(PARTS - 1) / 2], PARTS - 1, rates[0],
           rates[PARTS - 2]);
}

int main(int argc, char **argv) {
    int ftrl = argc > 1 && !strcmp(argv[1], "ftrl");
    uint64_t steps = argc > 2 ? strtoull(argv[2], NULL, 10) : 1100;
    uint32_t dim = argc > 3 ? (uint32_t)atoi(argv[3]) : ftrl ? 1 : 16;
    uint32_t dims[] = {dim + 1}, number, tensor;
    float output[MAX_DIM + 1] = {0};
    const char *set[] = {"strategy.staleness=inf", NULL};
    capstan_run *run;
    if (dim < 1 || dim > MAX_DIM)
        return 2;
    must(run, capstan_open(&run, NULL, set, 0));
    if (!capstan_trains(run))
        return capstan_serve(run, -1);
    must(run, capstan_join(run, -1));
    draw((uint64_t)capstan_rank(run));
    for (uint32_t d = 0; d < dim; d++)
        output[d] = 0.1f;
    for (int b = 0; b <= BATCH; b++)
        offsets[b] = (uint32_t)(b * FIELDS);
    struct capstan_tensor dense = {
        .name = "output", .num_dims = 1, .dims = dims, .values = output};
    struct capstan_table table = {.name = "rows",
                                  .dim = dim,
                                  .init_range = ftrl ? 0 : 0.05f,
                                  .optimizer = ftrl ? "Ftrl" : "Adagrad"};
    must(run, capstan_declare(run, &dense, &tensor));
    must(run, capstan_declare_table(run, &table, &number));
    must(run, capstan_set_table(run, number, "lr", ftrl ? 0.1 : 0.05));
    must(run, capstan_start(run, -1));
    train(run, number, dim, output, steps);
    int result = capstan_end(run, CAPSTAN_DONE, NULL, -1);
    capstan_close(run);
    return result;
}
