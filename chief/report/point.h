/* SPDX-License-Identifier: Apache-2.0 */
/* What the run tells at each of its points (docs/running.md, "Points"), and the
 * outlets that take it: each is a table of functions, and point.c lists
 * them. The chief's thread calls them: none may wait, for a disk or a peer. */
#ifndef CAPSTAN_POINT_H
#define CAPSTAN_POINT_H

#include "core/base/metric.h"
#include "core/base/status.h"

#include <jansson.h>
#include <stdint.h>

struct run;
struct histogram_sum;

/* Of one step there may be more than one: what an evaluation gives, and at the
 * last step the rows of tables, have points of their own. */
struct metric_point {
    uint64_t step;
    int64_t unix_ms;
    double values[METRIC_COUNT]; /* by METRIC_OF_POINT; NAN: absent */
};

/* Of STEP and this moment, all absent. */
struct metric_point metric_point_start(uint64_t step);

/* An outlet that cannot go on says so once in the log and takes no more. Each
 * function may be NULL. */
struct point_outlet {
    void *self;
    /* There is a plan: the run may have resumed from its start step. */
    void (*begin)(void *self, const struct run *run);
    void (*write)(void *self, const struct metric_point *point);
    /* A figure of a table's, by its TAG. */
    void (*write_tagged)(void *self, const char *tag, uint64_t step,
                         double value);
    /* Of a parameter's weights or gradients after STEP. */
    void (*write_histogram)(void *self, const char *tag, uint64_t step,
                            const struct histogram_sum *histogram);
    /* Points are complete for now: readers may see them. */
    void (*flush)(void *self);
    /* The run is over: SUMMARY is what --json prints; NULL: it goes back, and
     * another goes on for it. */
    void (*end)(void *self, const struct run *run, json_t *summary);
    void (*close)(void *self);
};

/* Fills in *OUTLET if RUN's job wants it, else leaves it empty. A problem that
 * the user can mend before the run begins: STATUS_CONFIG. */
typedef enum status point_outlet_open(struct point_outlet *outlet,
                                      const struct run *run,
                                      struct failure *why) MUST_CHECK;

enum { POINT_OUTLETS = 4 }; /* rows of outlet_openers */

struct point_outlets {
    struct point_outlet list[POINT_OUTLETS];
};

/* Opens all that RUN's job wants. */
enum status point_outlets_open(struct point_outlets *outlets,
                               const struct run *run,
                               struct failure *why) MUST_CHECK;

void point_outlets_begin(struct point_outlets *outlets, const struct run *run);
void point_outlets_write(struct point_outlets *outlets,
                         const struct metric_point *point);
void point_outlets_write_tagged(struct point_outlets *outlets, const char *tag,
                                uint64_t step, double value);
void point_outlets_write_histogram(struct point_outlets *outlets,
                                   const char *tag, uint64_t step,
                                   const struct histogram_sum *histogram);
void point_outlets_flush(struct point_outlets *outlets);
void point_outlets_end(struct point_outlets *outlets, const struct run *run,
                       json_t *summary);
void point_outlets_close(struct point_outlets *outlets);

#endif
