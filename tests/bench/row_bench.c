/* SPDX-License-Identifier: Apache-2.0 */
/* Row updates and lookups of a table a second and core, beside the rate at
 * which this machine reads and writes lines of memory at random places of as
 * many bytes, with as many on their way at once; "then" are updates of rows
 * that a lookup has found, as those of training are. Batches have BATCH
 * different ids of all, drawn uniformly, which no cache keeps. */
#include "commands/measure/bench_iteration.h"
#include "core/rows/row_table.h"

#include "core/base/time.h"
#include "core/tensor/philox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 9000, BATCHES = 64, REPEATS = 5, GROUP = 32, LINE = 64 };

static const struct optimizer ftrl = {.type = OPTIMIZER_FTRL,
                                      .learning_rate_power = -0.5,
                                      .initial_accumulator_value = 0.1};
static const struct optimizer adagrad = {
    .type = OPTIMIZER_ADAGRAD, .eps = 1e-10, .initial_accumulator_value = 0.1};

static void *row_bench_memory(size_t bytes) {
    void *memory = aligned_alloc(LINE, (bytes + LINE - 1) / LINE * LINE);
    if (!memory) {
        fprintf(stderr, "row_bench: no memory\n");
        exit(1);
    }
    return memory;
}

static double rate_since(int64_t start) {
    return (double)BATCH * BATCHES / time_to_seconds(time_now() - start);
}

/* Lines that are read and written at random places of BYTES, a second. */
static double random_lines(size_t bytes) {
    char *memory = row_bench_memory(bytes);
    struct philox_sequence random;
    double rates[REPEATS];
    uint32_t lines = (uint32_t)(bytes / LINE), group[GROUP];
    memset(memory, 1, bytes);
    philox_sequence_open(&random, 1, 2);
    uint32_t *places = row_bench_memory(BATCH * BATCHES * sizeof *places);
    for (size_t i = 0; i < (size_t)BATCH * BATCHES; i++)
        places[i] = philox_below(&random, lines);
    for (int r = 0; r < REPEATS; r++) {
        int64_t start = time_now();
        for (size_t i = 0; i + GROUP <= (size_t)BATCH * BATCHES; i += GROUP) {
            memcpy(group, places + i, sizeof group);
            for (int g = 0; g < GROUP; g++)
                __builtin_prefetch(memory + (size_t)group[g] * LINE, 1);
            for (int g = 0; g < GROUP; g++)
                memory[(size_t)group[g] * LINE]++;
        }
        rates[r] = rate_since(start);
    }
    free(places);
    free(memory);
    return bench_iteration_median(rates, REPEATS);
}

struct row_bench {
    struct row_table *table;
    uint32_t dim;
    uint64_t *ids;     /* [BATCHES, BATCH] */
    uint32_t *numbers; /* [BATCHES, BATCH]: of a lookup */
    float *gradients;  /* [BATCH, dim] */
    float *weights;
};

static struct row_keys keys_of(const uint64_t *ids, size_t count) {
    static uint16_t tables[BATCH];
    return (struct row_keys){
        .count = (uint32_t)count, .ids = (uint64_t *)ids, .tables = tables};
}

/* NUMBERS: where a lookup has found the rows; NULL: there was none. */
static void row_bench_apply(const struct row_bench *bench, const uint64_t *ids,
                            const uint32_t *numbers, size_t count,
                            uint64_t step) {
    struct row_keys keys = keys_of(ids, count);
    struct row_table_update update = {.step = step,
                                      .rule_step = step,
                                      .rate = 0.05,
                                      .scale = 0.5f,
                                      .keys = &keys,
                                      .numbers = numbers,
                                      .gradients = bench->gradients};
    struct failure why;
    if (row_table_apply(bench->table, &update, &why)) {
        fprintf(stderr, "row_bench: %s\n", why.text);
        exit(1);
    }
}

/* Rows of all ids, in an order of their own. */
static void row_bench_fill(const struct row_bench *bench, uint32_t rows) {
    uint64_t ids[BATCH];
    for (uint32_t first = 0; first < rows; first += BATCH) {
        size_t count = rows - first < BATCH ? rows - first : BATCH;
        for (size_t i = 0; i < count; i++)
            ids[i] = first + i;
        row_bench_apply(bench, ids, NULL, count, 1);
    }
}

static double rate_of_updates(const struct row_bench *bench, uint64_t step,
                              bool known) {
    int64_t start = time_now();
    for (unsigned b = 0; b < BATCHES; b++) {
        size_t first = (size_t)b * BATCH;
        row_bench_apply(bench, bench->ids + first,
                        known ? bench->numbers + first : NULL, BATCH, step + b);
    }
    return rate_since(start);
}

static double rate_of_lookups(const struct row_bench *bench) {
    int64_t start = time_now();
    for (unsigned b = 0; b < BATCHES; b++) {
        size_t first = (size_t)b * BATCH;
        struct row_keys keys = keys_of(bench->ids + first, BATCH);
        row_table_lookup(bench->table, &keys, bench->numbers + first,
                         bench->weights);
    }
    return rate_since(start);
}

static void row_bench_measure(const char *name, const struct optimizer *rule,
                              uint32_t dim, uint32_t rows) {
    struct row_bench bench = {.dim = dim};
    struct parameter parameter = {.name = "p", .num_dims = 1, .dims = {1}};
    struct table table = {.name = "t", .dim = dim, .init_bound = 0.01f};
    struct row_table_count one = {0};
    struct row_table_options options = {.optimizer = rule, .counts = &one};
    struct layout *layout;
    struct philox_sequence random;
    struct failure why;
    double updates[REPEATS], known[REPEATS], lookups[REPEATS];
    if (layout_build(&layout, &parameter, 1, &why) ||
        layout_add_tables(layout, &table, 1, 1, &why)) {
        fprintf(stderr, "row_bench: %s\n", why.text);
        exit(1);
    }
    options.layout = layout;
    if (rule_choose(&options.loops, NULL, &why) ||
        row_table_open(&bench.table, &options, &why)) {
        fprintf(stderr, "row_bench: %s\n", why.text);
        exit(1);
    }
    bench.ids = row_bench_memory(sizeof *bench.ids * BATCH * BATCHES);
    bench.numbers = row_bench_memory(sizeof *bench.numbers * BATCH * BATCHES);
    bench.gradients = row_bench_memory(sizeof(float) * BATCH * dim);
    bench.weights = row_bench_memory(sizeof(float) * BATCH * dim);
    philox_uniform(1, 0, 0, 1, bench.gradients, (size_t)BATCH * dim);
    row_bench_fill(&bench, rows);
    philox_sequence_open(&random, 1, 1);
    for (size_t i = 0; i < (size_t)BATCH * BATCHES; i++)
        bench.ids[i] = philox_below(&random, rows);
    for (unsigned r = 0; r < REPEATS; r++) {
        updates[r] = rate_of_updates(&bench, 2 * r * BATCHES + 2, false);
        lookups[r] = rate_of_lookups(&bench);
        known[r] = rate_of_updates(&bench, (2 * r + 1) * BATCHES + 2, true);
    }
    size_t bytes =
        row_table_num_pages(bench.table) * row_table_page_bytes(bench.table);
    printf("%-8s %5u %9u %8.0f %10.1f %10.1f %10.1f %10.1f\n", name, dim, rows,
           (double)bytes / 1e6, bench_iteration_median(updates, REPEATS) / 1e6,
           bench_iteration_median(lookups, REPEATS) / 1e6,
           bench_iteration_median(known, REPEATS) / 1e6,
           random_lines(bytes) / 1e6);
    row_table_close(&bench.table);
    layout_free(&layout);
    free(bench.ids);
    free(bench.numbers);
    free(bench.gradients);
    free(bench.weights);
}

int main(void) {
    printf("Rows of a table, one core, millions a second\n");
    printf("%-8s %5s %9s %8s %10s %10s %10s %10s\n", "rule", "dim", "rows",
           "MB", "updates", "lookups", "then", "lines");
    static const uint32_t rows[] = {4000, 100000, 1000000, 10000000};
    for (int i = 0; i < 4; i++)
        row_bench_measure("Ftrl", &ftrl, 1, rows[i]);
    for (int i = 0; i < 3; i++)
        row_bench_measure("Adagrad", &adagrad, 16, rows[i]);
    return 0;
}
