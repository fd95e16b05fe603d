/* SPDX-License-Identifier: Apache-2.0 */
/* What a page shows of a run: its points and evaluations, as columns of bounded
 * length (point_series.h). The chief's thread adds, and another one reads;
 * neither waits longer for the other than a copy of the points takes. */
#ifndef CAPSTAN_PAGE_POINTS_H
#define CAPSTAN_PAGE_POINTS_H

#include "chief/report/point.h"

#include <jansson.h>
#include <stddef.h>

/* A page draws so many points at most; evaluations have a room of their own. */
enum { PAGE_POINTS = 1500, PAGE_EVALUATIONS = 500 };

struct page_points;

/* NULL: no memory. */
struct page_points *page_points_open(void);

/* Frees *POINTS (may be NULL) and clears it. */
void page_points_close(struct page_points **points);

/* The outlet of a run that somebody may ask. */
enum status page_points_attach(struct point_outlet *outlet,
                               const struct run *run,
                               struct failure *why) MUST_CHECK;

/* Any thread: {"job", "added": points of the run, "points": columns,
 * "evaluations": columns}; the caller's. */
json_t *page_points_describe(struct page_points *points);

/* Adds the numbers of ROW, an object, as element INDEX of COLUMNS, an object of
 * arrays: {"step": [1, 2], "train_loss": [null, 0.5]}. */
void page_points_add_row(json_t *columns, size_t index, const json_t *row);

#endif
