/* SPDX-License-Identifier: Apache-2.0 */
/* Reports metrics during the run: progress, TensorBoard scalars, epochs. */
#ifndef CAPSTAN_METRICS_H
#define CAPSTAN_METRICS_H

#include "chief/run.h"

/* Call it once there is a plan. If the run resumes, it makes TensorBoard
 * readers drop what an earlier run has written of later steps. */
void metrics_begin(struct run *run);

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

/* The evaluation of STEP is over, with RESULT. */
void metrics_report_evaluation(struct run *run, uint64_t step,
                               const struct evaluation_split_result *result);

/* Loss and samples of all trainers since the start. */
struct run_point metrics_total(const struct run *run);

/* Mean loss per sample between FROM and TO; NAN: no samples. */
double metrics_mean_loss(struct run_point from, struct run_point to);

/* Are steps with overflowed gradients skipped? And how many were? */
bool metrics_checks_overflow(const struct run *run);
uint64_t metrics_skipped_steps(const struct run *run);

/* As reported by the trainer that is furthest; NAN: none has reported. */
double metrics_loss_scale(const struct run *run);

#endif
