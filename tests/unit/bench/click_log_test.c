/* SPDX-License-Identifier: Apache-2.0 */

#include <math.h>

#include "core/tensor/binary_scores.h"
#include "tests/bench/click_log.h"
#include "tests/lib/test.h"
#include "worker/data/csv_format.h"
#include "worker/data/libsvm_format.h"

enum { ROWS = 100000, IDS = 50 };

static struct click_log *open_log(const struct click_log_options *options) {
    struct click_log *log;
    assert_ok(click_log_open(&log, options, &failure));
    return log;
}

static struct click_log_options options_of(uint64_t seed, uint32_t ids) {
    struct click_log_options options = click_log_defaults();
    options.seed = seed;
    for (int f = 0; f < CLICK_LOG_FIELDS; f++)
        options.cardinality[f] = ids;
    return options;
}

TEST(a_row_depends_on_seed_and_number_alone) {
    struct click_log_options options = click_log_defaults();
    struct click_log *one = open_log(&options), *other = open_log(&options);
    options.seed = 2;
    struct click_log *different = open_log(&options);
    char text[CLICK_LOG_ROW_BYTES], again[CLICK_LOG_ROW_BYTES];
    struct click_row row;
    for (uint64_t i = 0; i < 1000; i++) {
        click_log_row(one, i, &row);
        size_t size = click_log_criteo(one, &row, text);
        click_log_row(other, 999 - i, &row);
        click_log_row(other, i, &row);
        assert_int_equal(click_log_criteo(other, &row, again), size);
        assert_memory_equal(text, again, size);
        click_log_row(different, i, &row);
        size_t others = click_log_criteo(different, &row, again);
        assert_false(others == size && !memcmp(text, again, size));
    }
    click_log_close(&one);
    click_log_close(&other);
    click_log_close(&different);
}

/* AUC over ROWS rows from FIRST, of the whole logit and of its linear part. */
static double auc_of(const struct click_log *log, uint64_t first, bool linear) {
    struct binary_scores scores = {0};
    double error;
    for (uint64_t i = 0; i < ROWS; i++) {
        struct click_row row;
        click_log_row(log, first + i, &row);
        float target = row.clicked;
        assert_true(binary_scores_add(
            &scores, linear ? &row.linear : &row.logit, &target, 1, ROWS));
    }
    /* A mean over ROWS rows of a variance below 1/4: 5 standard deviations. */
    assert_true(fabs(scores.predicted_sum - scores.target_sum) <
                (linear ? ROWS : 2.5 * sqrt(ROWS)));
    double auc = binary_scores_auc(&scores, ROWS, &error);
    binary_scores_clear(&scores);
    return auc;
}

/* 0.795 by the parts' standard deviations; 0.002 is one standard error. */
TEST(the_best_auc_is_about_the_same_for_every_seed_and_part) {
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct click_log_options options = click_log_defaults();
        options.seed = seed;
        struct click_log *log = open_log(&options);
        for (uint64_t first = 0; first <= 5000000; first += 5000000) {
            double auc = auc_of(log, first, false);
            assert_true(fabs(auc - 0.795) < 0.01);
        }
        click_log_close(&log);
    }
}

TEST(fields_follow_zipfs_distribution) {
    static const double exponents[] = {0, 0.8, 1.1, 2};
    struct click_log_options options = options_of(1, 1000);
    for (int f = 0; f < CLICK_LOG_FIELDS; f++)
        options.exponent[f] = exponents[f % 4];
    struct click_log *log = open_log(&options);
    uint32_t(*counts)[1000] = calloc(CLICK_LOG_FIELDS, sizeof *counts);
    double missing = 0;
    for (uint64_t i = 0; i < ROWS; i++) {
        struct click_row row;
        click_log_row(log, i, &row);
        for (int f = 0; f < CLICK_LOG_FIELDS; f++)
            if (row.categories[f] == CLICK_LOG_MISSING)
                missing++;
            else
                counts[f][row.categories[f]]++;
    }
    assert_true(fabs(missing / ROWS / CLICK_LOG_FIELDS - 1.0 / 32) < 0.001);
    for (int f = 0; f < CLICK_LOG_FIELDS; f++) {
        double sum = 0;
        for (int r = 0; r < 1000; r++)
            sum += pow(r + 1, -options.exponent[f]);
        for (int r = 0; r < 1000; r++) {
            double expected =
                ROWS * 31.0 / 32 * pow(r + 1, -options.exponent[f]) / sum;
            assert_true(fabs(counts[f][r] - expected) < 6 * sqrt(expected) + 6);
        }
    }
    free(counts);
    click_log_close(&log);
}

/* A logistic regression over the same numbers and categories. */
struct regression {
    double bias, effects[CLICK_LOG_NUMBERS], weights[CLICK_LOG_FIELDS][IDS];
    double squares[CLICK_LOG_FIELDS][IDS]; /* Adagrad's */
};

static double number_value(uint32_t number) {
    return number == CLICK_LOG_MISSING ? 0 : log1p(number) / 2.5 - 2;
}

static double predict(const struct regression *model,
                      const struct click_row *row) {
    double logit = model->bias;
    for (int j = 0; j < CLICK_LOG_NUMBERS; j++)
        logit += model->effects[j] * number_value(row->numbers[j]);
    for (int f = 0; f < CLICK_LOG_FIELDS; f++)
        if (row->categories[f] != CLICK_LOG_MISSING)
            logit += model->weights[f][row->categories[f]];
    return logit;
}

static void learn(struct regression *model, const struct click_row *row) {
    double slope = 1 / (1 + exp(-predict(model, row))) - row->clicked;
    model->bias -= 0.0005 * slope;
    for (int j = 0; j < CLICK_LOG_NUMBERS; j++)
        model->effects[j] -= 0.0005 * slope * number_value(row->numbers[j]);
    for (int f = 0; f < CLICK_LOG_FIELDS; f++) {
        uint32_t id = row->categories[f];
        if (id == CLICK_LOG_MISSING)
            continue;
        model->squares[f][id] += slope * slope;
        model->weights[f][id] -= 0.04 * slope / sqrt(1 + model->squares[f][id]);
    }
}

/* The best AUC is 0.79, that of the planted model's linear part 0.68. */
TEST(a_logistic_regression_stays_at_the_linear_parts_auc) {
    struct click_log_options options = options_of(3, IDS);
    struct click_log *log = open_log(&options);
    struct regression *model = calloc(1, sizeof *model);
    struct binary_scores scores = {0};
    struct click_row row;
    double error;
    for (uint64_t i = 0; i < 3 * ROWS; i++) {
        click_log_row(log, ROWS + i, &row);
        learn(model, &row);
    }
    for (uint64_t i = 0; i < ROWS; i++) {
        click_log_row(log, i, &row);
        float logit = (float)predict(model, &row), target = row.clicked;
        assert_true(binary_scores_add(&scores, &logit, &target, 1, ROWS));
    }
    double reached = binary_scores_auc(&scores, ROWS, &error);
    double linear = auc_of(log, 0, true), best = auc_of(log, 0, false);
    print_message("regression %.4f, linear part %.4f, best %.4f\n", reached,
                  linear, best);
    assert_true(fabs(best - 0.795) < 0.01);
    assert_true(fabs(linear - 0.68) < 0.015);
    assert_true(fabs(reached - linear) < 0.01);
    binary_scores_clear(&scores);
    free(model);
    click_log_close(&log);
}

TEST(both_formats_are_read_as_the_row) {
    struct click_log_options options = click_log_defaults();
    struct csv_format_options criteo = {.criteo = true};
    struct click_log *log = open_log(&options);
    struct csv_format *lines;
    struct libsvm_format pairs = {0};
    assert_ok(csv_format_open(&lines, &criteo, &failure));
    for (uint64_t i = 0; i < 1000; i++) {
        char text[CLICK_LOG_ROW_BYTES], other[CLICK_LOG_ROW_BYTES];
        struct click_row row;
        struct csv_format_row cells;
        bool empty;
        click_log_row(log, i, &row);
        struct record line = {.bytes = text,
                              .size = click_log_criteo(log, &row, text) - 1};
        assert_int_equal(text[line.size], '\n');
        assert_ok(csv_format_read(lines, &line, &cells, &failure));
        line = (struct record){.bytes = other,
                               .size = click_log_libsvm(log, &row, other) - 1};
        assert_ok(libsvm_format_read(&pairs, &line, &empty, &failure));
        assert_true(cells.label == row.clicked && pairs.label == row.clicked);
        uint32_t pair = 0;
        for (int j = 0; j < CLICK_LOG_NUMBERS; j++) {
            bool missing = row.numbers[j] == CLICK_LOG_MISSING;
            assert_int_equal(cells.cells[j].count, !missing);
            if (missing)
                continue;
            assert_int_equal(strtoul(cells.cells[j].texts->bytes, NULL, 10),
                             row.numbers[j]);
            assert_int_equal(pairs.pairs.integers[pair], j + 1);
            assert_true(!(
                fabs(pairs.pairs.floats[pair] - log1p(row.numbers[j])) > 1e-3));
            pair++;
        }
        int64_t first = CLICK_LOG_NUMBERS + 1;
        for (int f = 0; f < CLICK_LOG_FIELDS; f++) {
            const struct record_cell *cell =
                &cells.cells[CLICK_LOG_NUMBERS + f];
            bool missing = row.categories[f] == CLICK_LOG_MISSING;
            assert_int_equal(cell->count, !missing);
            if (!missing) {
                assert_int_equal(cell->texts->size, 8);
                assert_int_equal(pairs.pairs.integers[pair++],
                                 first + row.categories[f]);
            }
            first += options.cardinality[f];
        }
        assert_int_equal(pair, pairs.pairs.count);
    }
    libsvm_format_close(&pairs);
    csv_format_close(&lines);
    click_log_close(&log);
}

TEST(options_outside_their_range_are_refused) {
    struct click_log_options options = options_of(1, 0);
    struct click_log *log;
    assert_int_equal(click_log_open(&log, &options, &failure), STATUS_CONFIG);
    options = options_of(1, 10);
    options.exponent[25] = NAN;
    assert_int_equal(click_log_open(&log, &options, &failure), STATUS_CONFIG);
    assert_null(log);
}
