/* SPDX-License-Identifier: Apache-2.0 */
/* A series of points that never has more than a fixed number of them, however
 * many are added. Each point that it has was added as it is; none is a mean.
 * The first and the last added are always there. What lies between them is cut
 * into stretches of equally many points, and of each stretch two are kept: the
 * one of the least value and the one of the greatest. So a curve of the values
 * has each of its peaks, and no stretch is drawn better than another. */
#ifndef CAPSTAN_POINT_SERIES_H
#define CAPSTAN_POINT_SERIES_H

#include <stddef.h>
#include <stdint.h>

enum { POINT_SERIES_LEAST = 8 };

struct point_series;

/* For at most CAPACITY points (from POINT_SERIES_LEAST on) of SIZE bytes. NULL:
 * no memory. */
struct point_series *point_series_open(size_t size, uint32_t capacity);

/* Frees *SERIES (may be NULL) and clears it. */
void point_series_close(struct point_series **series);

/* Copies POINT. VALUE decides whether it is kept; NAN counts as the greatest,
 * so that a loss that is none stays seen. */
void point_series_add(struct point_series *series, const void *point,
                      double value);

/* How many are kept, and how many were added. */
uint32_t point_series_count(const struct point_series *series);
uint64_t point_series_added(const struct point_series *series);

/* Point INDEX (< count) in the order of adding; a view until the next one is
 * added. */
const void *point_series_get(const struct point_series *series, uint32_t index);

#endif
