/* SPDX-License-Identifier: Apache-2.0 */
/* The plan as every process keeps it: unpacked from the chief's message and
 * checked. */
#ifndef CAPSTAN_PLAN_H
#define CAPSTAN_PLAN_H

#include "core/base/status.h"
#include "core/tensor/layout.h"
#include "core/tensor/loss_scaler.h"
#include "core/tensor/rule.h"
#include "proto/job/job.h"
#include "proto/messages/control.pb-c.h"
#include "proto/messages/ps_links.h"
#include "proto/plan/optimizer_group.h"
#include "proto/plan/run_schedule.h"

#include <stdbool.h>
#include <stdint.h>

enum { PLAN_MAX_TRAINERS = 1024 };

struct plan {
    struct layout *layout;
    uint16_t *block_ps; /* [layout_units]; NULL in all-reduce */
    uint32_t num_ps, num_ranks;
    uint32_t *replicas; /* of each rank, 1 or more; NULL: 1 each */
    struct ps_links_peer *ps;
    struct run_schedule run_schedule;
    char *restore_folder, *restore_manifest; /* NULL: a new run */
    char *restore_base;                      /* its base's; NULL: no delta */
    char *checkpoint_dir;                    /* NULL: none */
    uint32_t *buddies, num_buddies; /* restored from copies in memory, without a
                                       folder: the ps that has part i */
    struct loss_scaler scaler;      /* from the checkpoint; all 0: initial */
    struct optimizer_group
        *groups; /* [num_groups]; NULL: the job's optimizer */
    uint32_t num_groups;
    struct optimizer_group *table_groups; /* [num_table_groups], which tables
                                             name */
    uint32_t num_table_groups;
    bool pull_first;
    bool allreduce;   /* no block is on a ps */
    char backend[16]; /* all-reduce: name of the collectives */
    bool
        resident; /* all-reduce: reduced values stay on the trainers' devices */
};

/* Gives JOB what is the plan's: its batch, solved for the replicas, and the
 * optimizer of the first group. */
enum status plan_settle_job(struct job *job, const Capstan__Plan *message,
                            struct failure *why) MUST_CHECK;

/* Reads MESSAGE. JOB, whose batch is solved, gives the checkpoint settings of
 * the schedule, and scale_lr of the groups' rates. STATUS_FAILED names the
 * field that is out of range. The caller frees *OUT with plan_close. */
enum status plan_read(struct plan **out, const Capstan__Plan *message,
                      const struct job *job, struct failure *why) MUST_CHECK;

/* STATUS_FAILED unless PLAN has as many trainers as the chief has announced
 * before; ranks below that number are valid in it. */
enum status plan_check_trainers(const struct plan *plan, uint32_t trainers,
                                struct failure *why) MUST_CHECK;

/* Frees *PLAN (may be NULL) and clears it. */
void plan_close(struct plan **plan);

/* Replicas of RANK. */
uint32_t plan_replicas(const struct plan *plan, uint32_t rank);

/* Replicas of all ranks before RANK: the number of RANK's first replica. */
uint32_t plan_first_replica(const struct plan *plan, uint32_t rank);

/* Replicas of all ranks. */
uint32_t plan_all_replicas(const struct plan *plan);

/* Reads a loss scaler's state from a message; NULL: all 0. STATUS_FAILED if the
 * scale is invalid. */
enum status plan_read_scaler(struct loss_scaler *out,
                             const Capstan__LossScaler *message,
                             struct failure *why) MUST_CHECK;

/* Writes it to a message, which borrows nothing. */
Capstan__LossScaler plan_scaler_message(const struct loss_scaler *scaler);

/* Writes the place of ps INDEX among those of the plan. False: it has none. */
bool plan_find_ps(const struct plan *plan, uint32_t index, uint32_t *place);

/* Writes the blocks of the ps of place PS, then its partitions, to IDS
 * [layout_units] in order; returns how many. */
uint32_t plan_units(const struct plan *plan, uint32_t ps, uint32_t *ids);

/* Reads the parameters of a message; layout_build checks them. */
enum status plan_layout(struct layout **out, Capstan__Parameter **parameters,
                        size_t count, struct failure *why) MUST_CHECK;

/* Adds the tables of a message; layout_add_tables checks them. */
enum status plan_read_tables(struct layout *layout, Capstan__Table **tables,
                             size_t count, uint32_t num_partitions,
                             struct failure *why) MUST_CHECK;

/* The tables as messages that view LAYOUT; free(3) them in one piece. NULL: no
 * memory, or there are none. */
Capstan__Table **plan_tables(const struct layout *layout);

/* The parameters as messages that view LAYOUT, one for each parameter; free
 * them with plan_free_parameters. NULL: no memory. */
Capstan__Parameter **plan_parameters(const struct layout *layout);

/* Frees the result of plan_parameters (may be NULL) and clears it. */
void plan_free_parameters(Capstan__Parameter ***parameters);

#endif
