/* SPDX-License-Identifier: Apache-2.0 */
/* The first point, then two of each full stretch, then of the last stretch at
 * most three: its least, its greatest, and the last point that was added. When
 * there is no room for another stretch, two neighbours become one, whose least
 * and greatest are among the four that the two have kept. */
#include "core/base/point_series.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct point_series {
    size_t size;
    uint32_t most;    /* full stretches that there is room for, even */
    uint32_t full;    /* stretches */
    uint32_t open;    /* points that are kept of the last stretch */
    uint64_t length;  /* of a stretch, in points that were added */
    uint64_t in_open; /* points that were added to the last stretch */
    uint64_t added;
    double *values; /* [1 + 2 * most + 3], as the points */
    unsigned char *points;
};

struct point_series *point_series_open(size_t size, uint32_t capacity) {
    assert(size && capacity >= POINT_SERIES_LEAST);
    struct point_series *series = calloc(1, sizeof *series);
    if (!series)
        return NULL;
    series->size = size;
    series->length = 2;
    series->most = (capacity - 4) / 4 * 2;
    series->values = calloc(capacity, sizeof *series->values);
    series->points = calloc(capacity, size);
    if (!series->values || !series->points)
        point_series_close(&series);
    return series;
}

void point_series_close(struct point_series **where) {
    struct point_series *series = *where;
    *where = NULL;
    if (!series)
        return;
    free(series->values);
    free(series->points);
    free(series);
}

static void move_point(struct point_series *series, uint32_t to,
                       uint32_t from) {
    if (to == from)
        return;
    series->values[to] = series->values[from];
    memcpy(series->points + to * series->size,
           series->points + from * series->size, series->size);
}

/* Of the COUNT (from 2 on) points from FROM the first of the least value and
 * the last of the greatest move to TO, in their order. */
static void keep_extremes(struct point_series *series, uint32_t to,
                          uint32_t from, uint32_t count) {
    uint32_t least = from, greatest = from;
    assert(to <= from && count >= 2);
    for (uint32_t i = from + 1; i < from + count; i++) {
        if (series->values[i] < series->values[least])
            least = i;
        if (series->values[i] >= series->values[greatest])
            greatest = i;
    }
    move_point(series, to, least < greatest ? least : greatest);
    move_point(series, to + 1, least < greatest ? greatest : least);
}

/* The last stretch is full, and another one begins. */
static void end_stretch(struct point_series *series) {
    uint32_t begin = 1 + 2 * series->full;
    keep_extremes(series, begin, begin, series->open);
    series->full++;
    series->open = 0;
    series->in_open = 0;
    if (series->full < series->most)
        return;
    for (uint32_t i = 0; i < series->full / 2; i++)
        keep_extremes(series, 1 + 2 * i, 1 + 4 * i, 4);
    series->full /= 2;
    series->length *= 2;
}

void point_series_add(struct point_series *series, const void *point,
                      double value) {
    if (series->in_open == series->length)
        end_stretch(series);
    uint32_t begin = 1 + 2 * series->full, at = begin + series->open;
    if (series->open == 3) {
        keep_extremes(series, begin, begin, 3);
        series->open = 2;
        at--;
    }
    if (!series->added)
        at = 0;
    series->values[at] = isnan(value) ? INFINITY : value;
    memcpy(series->points + at * series->size, point, series->size);
    if (series->added++) {
        series->open++;
        series->in_open++;
    }
}

uint32_t point_series_count(const struct point_series *series) {
    return series->added ? 1 + 2 * series->full + series->open : 0;
}

uint64_t point_series_added(const struct point_series *series) {
    return series->added;
}

const void *point_series_get(const struct point_series *series,
                             uint32_t index) {
    assert(index < point_series_count(series));
    return series->points + index * series->size;
}
