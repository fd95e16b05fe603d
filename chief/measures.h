/* What the run's numbers say: progress, TensorBoard scalars, epochs, and the
 * summary at the end. */
#ifndef CAPSTAN_MEASURES_H
#define CAPSTAN_MEASURES_H

#include "chief/run.h"

#include <jansson.h>

/* A trainer's heartbeat. */
void measures_beat(struct run *run, const struct roster_slot *slot,
                   const Capstan__Beat *beat, int64_t now);

/* With staleness: the global step as the ps counts it. */
void measures_step(struct run *run, uint64_t step);

/* Shows progress and writes metrics, when something is due. */
void measures_show(struct run *run, int64_t now);

/* EVALUATION is over, with RESULT. */
void measures_epoch(struct run *run, const struct run_evaluation *evaluation,
                    const struct part_result *result);

/* All that is known of the run at its end, as docs/running.md has it; the
 * caller's. */
json_t *measures_object(const struct run *run);

/* The last lines for people, and with JSON the object on standard output. */
void measures_summary(struct run *run, bool json);

#endif
