/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/point_series.h"

#include "tests/lib/seed.h"
#include "tests/lib/test.h"

#include <math.h>

static struct point_series *open_series(uint32_t capacity) {
    struct point_series *series = point_series_open(sizeof(uint64_t), capacity);
    assert_non_null(series);
    return series;
}

static uint64_t number_at(const struct point_series *series, uint32_t index) {
    return *(const uint64_t *)point_series_get(series, index);
}

/* Adds the COUNT points of VALUES, whose contents are their numbers. */
static void add_all(struct point_series *series, const double *values,
                    uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        point_series_add(series, &i, values[i]);
}

static bool has_number(const struct point_series *series, uint64_t number) {
    for (uint32_t i = 0; i < point_series_count(series); i++)
        if (number_at(series, i) == number)
            return true;
    return false;
}

TEST(a_series_that_has_room_keeps_every_point) {
    enum { MANY = 1000 };
    struct point_series *series = open_series(2000);
    double values[MANY];
    assert_int_equal(point_series_count(series), 0);
    for (int i = 0; i < MANY; i++)
        values[i] = i % 7;
    add_all(series, values, MANY);
    assert_int_equal(point_series_count(series), MANY);
    for (uint32_t i = 0; i < MANY; i++)
        assert_int_equal(number_at(series, i), i);
    point_series_close(&series);
    assert_null(series);
}

/* After each of 50,000 points: at most 2,000, in order, the first and the last,
 * and at least a quarter of the room is used. */
TEST(a_long_series_is_thinned_with_its_ends_kept) {
    enum { MANY = 50000, MOST = 2000 };
    struct point_series *series = open_series(MOST);
    for (uint64_t i = 0; i < MANY; i++) {
        point_series_add(series, &i, sin((double)i));
        uint32_t count = point_series_count(series);
        assert_true(count <= MOST);
        assert_true(count > i || count >= MOST / 2 - 4);
        assert_int_equal(number_at(series, 0), 0);
        assert_int_equal(number_at(series, count - 1), i);
    }
    for (uint32_t i = 1; i < point_series_count(series); i++)
        assert_true(number_at(series, i - 1) < number_at(series, i));
    assert_int_equal(point_series_added(series), MANY);
    point_series_close(&series);
}

/* The stretches follow each other: of 64 points no stretch is left out, and
 * two neighbours that are kept are never further apart than two stretches. */
TEST(a_long_series_is_thinned_evenly) {
    enum { MANY = 50000, MOST = 2000 };
    static double values[MANY];
    struct point_series *series = open_series(MOST);
    for (int i = 0; i < MANY; i++)
        values[i] = fmod(i * 0.61803398875, 1);
    add_all(series, values, MANY);
    for (uint32_t i = 1; i < point_series_count(series); i++)
        assert_true(number_at(series, i) - number_at(series, i - 1) <= 2 * 64);
    point_series_close(&series);
}

TEST(a_peak_a_dip_and_a_loss_that_is_none_stay) {
    enum { MANY = 50000 };
    static double values[MANY];
    struct point_series *series = open_series(100);
    for (int i = 0; i < MANY; i++)
        values[i] = 1 + 1.0 / (i + 1);
    values[12345] = 9;
    values[23456] = -9;
    values[34567] = NAN;
    add_all(series, values, MANY);
    assert_true(has_number(series, 12345));
    assert_true(has_number(series, 23456));
    assert_true(has_number(series, 34567));
    point_series_close(&series);
}

/* Random values, capacities and lengths: what lies between two kept points is
 * never above all that are kept, nor below. */
TEST(the_extremes_of_random_series_are_those_of_all_points) {
    struct philox_sequence random;
    seed_open(&random);
    for (int round = 0; round < 300; round++) {
        uint64_t many = 1 + philox_next(&random) % 5000;
        uint32_t most = POINT_SERIES_LEAST + philox_next(&random) % 100;
        struct point_series *series = open_series(most);
        double *values = calloc(many, sizeof *values);
        uint64_t least = 0, greatest = 0;
        for (uint64_t i = 0; i < many; i++) {
            values[i] = philox_next(&random) % 1000;
            least = values[i] < values[least] ? i : least;
            greatest = values[i] > values[greatest] ? i : greatest;
        }
        add_all(series, values, many);
        double low = INFINITY, high = -INFINITY;
        for (uint32_t i = 0; i < point_series_count(series); i++) {
            low = fmin(low, values[number_at(series, i)]);
            high = fmax(high, values[number_at(series, i)]);
        }
        assert_true(point_series_count(series) <= most);
        assert_true(low == values[least] && high == values[greatest]);
        assert_true(has_number(series, many - 1));
        free(values);
        point_series_close(&series);
    }
}
