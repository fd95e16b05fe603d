/* SPDX-License-Identifier: Apache-2.0 */
/* What the run's numbers say while it goes on: progress, TensorBoard scalars,
 * epochs. */
#ifndef CAPSTAN_METRICS_H
#define CAPSTAN_METRICS_H

#include "chief/run.h"

/* There is a plan: of a run that resumes, what an earlier one has written of
 * later steps counts no more. */
void metrics_begin(struct run *run);

/* A trainer's heartbeat. */
void metrics_receive_heartbeat(struct run *run, const struct roster_slot *slot,
                               const Capstan__Heartbeat *heartbeat,
                               int64_t now);

/* With staleness: the global step as the ps counts it. */
void metrics_update_step(struct run *run, uint64_t step);

/* Points that a trainer has reached. One is written once no trainer that is
 * here may still tell of it. */
void metrics_receive_points(struct run *run, const struct roster_slot *slot,
                            const Capstan__Points *points);

/* Writes the points up to STEP that are complete; are these all, or are they
 * left to metrics_end? */
bool metrics_write_until(struct run *run, uint64_t step);

/* Shows progress and writes points, when something is due. */
void metrics_show(struct run *run, int64_t now);

/* Writes what is left at the end, but for steps that the next run takes again.
 */
void metrics_end(struct run *run);

/* An evaluation of STEP is over, with RESULT. */
void metrics_report_evaluation(struct run *run, uint64_t step,
                               const struct evaluation_split_result *result);

/* Losses and samples of all trainers since the start. */
struct run_point metrics_total(const struct run *run);

/* The loss of a sample between FROM and TO; NAN: there is none. */
double metrics_mean_loss(struct run_point from, struct run_point to);

/* Are steps whose gradients overflow skipped, and how many were? */
bool metrics_checks_overflow(const struct run *run);
uint64_t metrics_skipped_steps(const struct run *run);

/* As the trainer that is furthest has read it; NAN where there is none. */
double metrics_loss_scale(const struct run *run);

#endif
