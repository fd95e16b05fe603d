/* What the run's numbers say while it goes on: progress, TensorBoard scalars,
 * epochs. */
#ifndef CAPSTAN_MEASURES_H
#define CAPSTAN_MEASURES_H

#include "chief/run.h"

/* A trainer's heartbeat. */
void measures_beat(struct run *run, const struct roster_slot *slot,
                   const Capstan__Beat *beat, int64_t now);

/* With staleness: the global step as the ps counts it. */
void measures_step(struct run *run, uint64_t step);

/* Shows progress and writes metrics, when something is due. */
void measures_show(struct run *run, int64_t now);

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
