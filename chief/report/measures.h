/* SPDX-License-Identifier: Apache-2.0 */
/* What the run's numbers say while it goes on: progress, TensorBoard scalars,
 * epochs. */
#ifndef CAPSTAN_MEASURES_H
#define CAPSTAN_MEASURES_H

#include "chief/run.h"

/* There is a plan: of a run that resumes, what an earlier one has written of
 * later steps counts no more. */
void measures_begin(struct run *run);

/* A trainer's heartbeat. */
void measures_beat(struct run *run, const struct roster_slot *slot,
                   const Capstan__Beat *beat, int64_t now);

/* With staleness: the global step as the ps counts it. */
void measures_step(struct run *run, uint64_t step);

/* Points that a trainer has reached. One is written once no trainer that is
 * here may still tell of it. */
void measures_points(struct run *run, const struct roster_slot *slot,
                     const Capstan__Points *points);

/* Writes the points up to STEP that are complete; are these all, or are they
 * left to measures_end? */
bool measures_reach(struct run *run, uint64_t step);

/* Shows progress and writes points, when something is due. */
void measures_show(struct run *run, int64_t now);

/* Writes what is left at the end, but for steps that the next run takes again.
 */
void measures_end(struct run *run);

/* An evaluation of STEP is over, with RESULT. */
void measures_epoch(struct run *run, uint64_t step,
                    const struct part_result *result);

/* Losses and samples of all trainers since the start. */
struct run_point measures_total(const struct run *run);

/* The loss of a sample between FROM and TO; NAN: there is none. */
double measures_mean_loss(struct run_point from, struct run_point to);

/* Are steps whose gradients overflow skipped, and how many were? */
bool measures_checks_overflow(const struct run *run);
uint64_t measures_skipped(const struct run *run);

/* As the trainer that is furthest has read it; NAN where there is none. */
double measures_loss_scale(const struct run *run);

#endif
