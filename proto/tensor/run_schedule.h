/* SPDX-License-Identifier: Apache-2.0 */
/* The course of a run by step number: where epochs end, what is saved and
 * evaluated when. A step is a round of all trainers in synchronous runs, one
 * push of one trainer otherwise. Pure; the same on every process. */
#ifndef CAPSTAN_RUN_SCHEDULE_H
#define CAPSTAN_RUN_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

struct run_schedule {
    uint64_t start;         /* steps behind the run when it started */
    uint64_t start_batch;   /* steps whose samples were read before it */
    uint64_t total;         /* the run ends at this step */
    uint64_t accumulation;  /* micro batches a step */
    uint64_t epoch_batches; /* micro batches of an epoch: of one trainer in
                               synchronous runs, of all otherwise; > 0 */
    bool checkpoints;       /* there is a checkpoint directory */
    uint64_t every_steps, every_epochs; /* 0: off */
};

/* Whole epochs whose samples have been read after STEP. */
uint64_t run_schedule_epochs(const struct run_schedule *run_schedule,
                             uint64_t step);

/* Does an epoch end with STEP (> start)? */
bool run_schedule_ends_epoch(const struct run_schedule *run_schedule,
                             uint64_t step);

/* The step that ends the run when EPOCHS are asked for. */
uint64_t run_schedule_total(const struct run_schedule *run_schedule,
                            uint64_t epochs);

/* Is STEP (> start) one after which the test set is evaluated? */
bool run_schedule_evaluates(const struct run_schedule *run_schedule,
                            uint64_t step);

/* The first point at STEP or after it: a multiple of EVERY (> 0) steps, or the
 * last step. */
uint64_t run_schedule_next_multiple(const struct run_schedule *run_schedule,
                                    uint64_t every, uint64_t step);

/* Does an epoch's end, or a multiple of every_steps, lie in (BEFORE, NOW]? */
bool run_schedule_crosses_boundary(const struct run_schedule *run_schedule,
                                   uint64_t before, uint64_t now);

/* Is STEP (> start) one at which a checkpoint stands in the plan? */
bool run_schedule_saves(const struct run_schedule *run_schedule, uint64_t step);

#endif
