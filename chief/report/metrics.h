/* SPDX-License-Identifier: Apache-2.0 */
/* Reports metrics during the run: progress, epochs, and points, which the
 * outlets take. */
#ifndef CAPSTAN_METRICS_H
#define CAPSTAN_METRICS_H

#include "chief/control/roster.h"
#include "chief/report/evaluations.h"
#include "chief/report/point.h"
#include "chief/report/progress.h"
#include "core/base/health.h"
#include "core/tensor/binary_scores.h"
#include "proto/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct run;

/* Progress of the trainers: loss and samples summed over all of them, and
 * seconds of the one that has trained longest, without evaluations. */
struct run_point {
    double loss, seconds;
    uint64_t samples;
    uint64_t step; /* of points that are written */
};

/* A point is a multiple of run_schedule_point_steps, or the last step. The
 * ring holds what trainers have reported for points that are not written yet;
 * seconds 0: nothing. */
enum { RUN_POINTS = 16384, RUN_DECILES = 10 };
struct run_points {
    struct run_point *sums; /* [RUN_POINTS], a ring indexed by point number */
    uint64_t start; /* the points up to here are none of this run's, or of the
                       chief's before this one */
    uint64_t next; /* number of the first point that is not written; 0: there is
                      no plan yet */
    uint64_t max_step; /* highest step that any trainer has reported */
    /* Progress since the start. `last` is the last point written; the rate is
     * measured from `from`, which is at least a second old, and then from
     * `to`. */
    struct run_point from, to, last;
};

struct run_metrics {
    bool began;            /* a trainer has taken a step */
    uint64_t reported;     /* staleness: global step by the ps that counts it */
    uint64_t reached;      /* highest step seen */
    uint64_t epochs_ended; /* highest epoch end that was logged */
    struct run_point epoch_start;
    /* The shown loss and rate are measured from `shown_from`, the next ones
     * from `shown`. */
    struct run_point shown_from, shown;
    int64_t shown_at; /* time of `shown` */
    double shown_rate, shown_loss, epoch_loss;
    struct run_points points;
    struct run_point deciles[RUN_DECILES]; /* at each tenth of the steps */
    bool diverged;                         /* a loss was NaN */
    struct progress progress;
    struct point_outlets outlets;
    struct histogram_board *histograms; /* NULL: none have come */
    struct metric_point latest; /* values of all points; unix_ms 0: none yet */
};

/* Call it once there is a plan: the first point is after step START. */
void metrics_begin(struct run *run, uint64_t start);

/* Handles a trainer's heartbeat. */
void metrics_receive_heartbeat(struct run *run, const struct roster_slot *slot,
                               const Capstan__Heartbeat *heartbeat,
                               int64_t now);

/* With staleness: stores the global step as the ps counts it. */
void metrics_update_step(struct run *run, uint64_t step);

/* Stores the points that a trainer has reached. A point is written once no live
 * trainer can still report it. */
void metrics_receive_points(struct run *run, const struct roster_slot *slot,
                            const Capstan__Points *points);

/* Writes the complete points up to STEP. True when all are written, or when the
 * rest is left to metrics_end. */
bool metrics_write_until(struct run *run, uint64_t step);

/* Shows progress and writes points that are due. */
void metrics_show(struct run *run, int64_t now);

/* Writes the rest at the end, except steps that a resumed run will repeat. */
void metrics_end(struct run *run);

/* The evaluation of STEP is over, with RESULT and the SCORES of two classes,
 * which it sorts. */
void metrics_report_evaluation(struct run *run, uint64_t step,
                               const struct evaluation_split_result *result,
                               struct binary_scores *scores);

/* Adds to REPORT what the run tells at NOW: its latest points, and what changes
 * between them. */
void metrics_add_samples(const struct run *run, struct health_report *report,
                         int64_t now);

/* Mean loss per sample between FROM and TO; NAN: no samples. */
double metrics_mean_loss(struct run_point from, struct run_point to);

/* How the run stands: progress, TensorBoard and the summary show it. A NAN is
 * unknown. */
struct run_facts {
    struct run_point total; /* since the start */
    double loss; /* of the last epoch that ended in this run, else of all */
    double steps_per_second, examples_per_second; /* since the start */
    /* Seconds since the start, summed over all trainers, updates over all ps.
     */
    struct {
        double input, compute, waiting, rule, training, updates;
    } seconds;
    bool checks_overflow; /* steps with overflowed gradients are skipped */
    uint64_t skipped_steps;
    double loss_scale;    /* as reported by the trainer that is furthest */
    uint64_t rows;        /* in tables */
    double row_bytes;     /* of them that a trainer sends in a step */
    double network_limit; /* steps a second that the network allows */
};

/* After STEP. */
struct run_facts metrics_facts(const struct run *run, uint64_t step);

#endif
