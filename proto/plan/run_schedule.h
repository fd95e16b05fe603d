/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule of a run by step number: data shares, ends of epochs,
 * checkpoints and evaluations. A step is a round of all trainers in synchronous
 * runs, else one push of one trainer. Pure; every process computes the same. */
#ifndef CAPSTAN_RUN_SCHEDULE_H
#define CAPSTAN_RUN_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

/* Steps of a run that ends when its trainers do. */
#define RUN_SCHEDULE_ENDLESS (UINT64_C(1) << 62)

/* Micro batches of an epoch that is not counted in batches. */
#define RUN_SCHEDULE_NO_EPOCHS (UINT64_C(1) << 50)

struct run_schedule {
    uint64_t start;         /* steps done before this run */
    uint64_t start_batch;   /* steps whose samples were read before it */
    uint64_t total;         /* the run ends at this step */
    uint64_t accumulation;  /* micro batches in a step */
    uint64_t epoch_batches; /* micro batches of an epoch: of one trainer in
                               synchronous runs, of all otherwise; > 0 */
    bool checkpoints;       /* there is a checkpoint directory */
    uint64_t every_steps, every_epochs, delta_every_steps; /* 0: off */
    uint64_t buddy_steps; /* between copies in memory; 0: off */
};

/* Samples of one of REPLICAS (>= 1) replicas in an epoch of SAMPLES, as torch's
 * DistributedSampler cuts it: all data shares are equal, the last samples wrap
 * around. */
uint64_t run_schedule_share_samples(uint64_t samples, uint64_t replicas);

/* Number of micro batches of MICRO (>= 1) samples in a data share, with a short
 * last one kept or dropped; 0 if none is left. */
uint64_t run_schedule_share_batches(uint64_t samples, uint64_t replicas,
                                    uint64_t micro, bool drop_last);

/* Whole epochs whose samples have been read after STEP. */
uint64_t run_schedule_epochs(const struct run_schedule *run_schedule,
                             uint64_t step);

/* True if an epoch ends with STEP (> start). */
bool run_schedule_ends_epoch(const struct run_schedule *run_schedule,
                             uint64_t step);

/* The last step of a run of EPOCHS epochs. */
uint64_t run_schedule_total(const struct run_schedule *run_schedule,
                            uint64_t epochs);

/* True if the test set is evaluated after STEP (> start). */
bool run_schedule_evaluates(const struct run_schedule *run_schedule,
                            uint64_t step);

/* The first multiple of EVERY (> 0) steps at or after STEP, or the last
 * step. */
uint64_t run_schedule_next_multiple(const struct run_schedule *run_schedule,
                                    uint64_t every, uint64_t step);

/* Steps between two points of the metrics: GIVEN, the job's steps_per_print. If
 * that is 0, the largest of 1, 2, 5, 10, 20, ... by which the run has 50 points
 * or more (at most 125; of fewer than 100 steps each), and 100 in a run
 * without an end. */
uint64_t run_schedule_point_steps(const struct run_schedule *run_schedule,
                                  uint64_t given);

/* Steps between two copies in memory, each of COPIED bytes, where trainers send
 * SENT bytes in a step (0: it is not known how many): so many that copies take
 * at most a twentieth as much of the link. From 100, as more often their memory
 * and the processors' time cost more than the link, to 1000. */
uint64_t run_schedule_copy_steps(uint64_t copied, uint64_t sent);

/* True if an epoch's end, or a multiple of every_steps, delta_every_steps or
 * buddy_steps, lies in (BEFORE, NOW]. */
bool run_schedule_crosses_boundary(const struct run_schedule *run_schedule,
                                   uint64_t before, uint64_t now);

/* True if a checkpoint is planned at STEP (> start). */
bool run_schedule_saves(const struct run_schedule *run_schedule, uint64_t step);

/* True if a copy in memory is planned at STEP (> start), where there is no
 * checkpoint. */
bool run_schedule_copies(const struct run_schedule *run_schedule,
                         uint64_t step);

/* True if it may be a delta. */
bool run_schedule_saves_delta(const struct run_schedule *run_schedule,
                              uint64_t step);

#endif
