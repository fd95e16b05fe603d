/* SPDX-License-Identifier: Apache-2.0 */
/* The plan as everyone keeps it: unpacked and checked from the chief's
 * message. */
#ifndef CAPSTAN_PLAN_H
#define CAPSTAN_PLAN_H

#include "proto/base/status.h"
#include "proto/config/job/job.h"
#include "proto/net/messages/control.pb-c.h"
#include "proto/tensor/layout.h"
#include "proto/tensor/loss_scaler.h"
#include "proto/tensor/rule.h"
#include "proto/tensor/run_schedule.h"

#include <stdbool.h>
#include <stdint.h>

struct plan_ps_info {
    char address[300]; /* host:port of a ps's data link */
    uint64_t incarnation;
    uint64_t shm_key; /* what it offers shared memory by, 0: nothing */
};

struct plan {
    struct layout *layout;
    uint16_t *block_ps; /* of each block; NULL in all-reduce */
    uint32_t num_ps, num_ranks;
    uint32_t *replicas; /* of each rank, 1 or more; NULL: 1 each */
    struct plan_ps_info *ps;
    struct run_schedule run_schedule;
    char *restore_folder, *restore_manifest; /* NULL: initialise */
    char *checkpoint_dir;                    /* NULL: none */
    struct loss_scaler scaler; /* of the checkpoint; all 0: at its start */
    bool pull_first;
    bool allreduce;   /* no block lies on a ps */
    char backend[16]; /* all-reduce: the collectives' name */
    bool resident;    /* and what they reduce stays on the trainers' devices */
};

/* Solves the batch of JOB for the replicas of the plan. */
enum status plan_solve_batch(struct job *job, const Capstan__Plan *message,
                             struct failure *why) MUST_CHECK;

/* JOB, whose batch is solved, gives the rounds their checkpoint settings.
 * STATUS_FAILED names the field that is out of range. The caller ends it by
 * plan_close. */
enum status plan_read(struct plan **out, const Capstan__Plan *message,
                      const struct job *job, struct failure *why) MUST_CHECK;

/* STATUS_FAILED unless PLAN is of as many trainers as the chief has counted
 * before: ranks below that have a place in it. */
enum status plan_check_trainers(const struct plan *plan, uint32_t trainers,
                                struct failure *why) MUST_CHECK;

/* Frees *PLAN (may be NULL) and clears it. */
void plan_close(struct plan **plan);

/* Replicas of RANK. */
uint32_t plan_replicas(const struct plan *plan, uint32_t rank);

/* Replicas of all ranks before RANK: its own are numbered from there. */
uint32_t plan_first_replica(const struct plan *plan, uint32_t rank);

/* Replicas of all ranks. */
uint32_t plan_all_replicas(const struct plan *plan);

/* The state of a loss scaler as it travels; NULL: all 0. STATUS_FAILED for a
 * scale that is none. */
enum status plan_read_scaler(struct loss_scaler *out,
                             const Capstan__LossScaler *message,
                             struct failure *why) MUST_CHECK;

/* The other way: the message borrows nothing. */
Capstan__LossScaler plan_scaler_message(const struct loss_scaler *scaler);

/* Fills IDS (room for all blocks) with the blocks of PS in order; returns how
 * many. */
uint32_t plan_blocks(const struct plan *plan, uint32_t ps, uint32_t *ids);

/* Parameters of a message, checked by layout_build. */
enum status plan_layout(struct layout **out, Capstan__Parameter **parameters,
                        size_t count, struct failure *why) MUST_CHECK;

/* The other way: messages that view LAYOUT, COUNT of them behind *ARRAY; freed
 * by plan_free_parameters. NULL: no memory. */
Capstan__Parameter **plan_parameters(const struct layout *layout);

/* Frees what plan_parameters gave (may be NULL) and clears it. */
void plan_free_parameters(Capstan__Parameter ***parameters);

#endif
