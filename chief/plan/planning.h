/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the plan from the model specs: what is trained, which ps holds which
 * block, and where the run starts. */
#ifndef CAPSTAN_PLANNING_H
#define CAPSTAN_PLANNING_H

#include "chief/control/roster.h"
#include "chief/plan/memory_plan.h"
#include "core/base/status.h"
#include "core/store/manifest.h"
#include "core/tensor/layout.h"
#include "proto/messages/message.h"
#include "proto/plan/optimizer_group.h"
#include "proto/plan/run_schedule.h"

#include <stdbool.h>
#include <stdint.h>

struct run;

struct run_plan {
    struct layout *layout; /* from rank 0's model spec; NULL: not declared */
    uint64_t digest, train_samples, test_samples;
    uint64_t features;          /* their digest; 0: none */
    uint64_t features_unplaced; /* the same wherever floats are placed */
    uint64_t share_samples;     /* of records: of all trainers' shares */
    uint64_t batches_per_epoch; /* of one replica */
    uint32_t num_replicas;      /* of all trainers; 0: there is no plan yet */
    struct optimizer_group *groups; /* [num_groups], from rank 0's model spec;
                                       NULL: the job's optimizer */
    uint32_t num_groups;
    struct optimizer_group *table_groups; /* [num_table_groups], likewise */
    uint32_t num_table_groups;
    uint32_t *ps_of_block;
    /* ps 0 .. num_holders - 1 hold blocks, because placement fills the lowest
     * first; in all-reduce 1. */
    uint32_t num_holders;
    struct run_schedule schedule;
    char backend[16]; /* collective backend; "auto" until there is a plan */
    bool resident;    /* gradients and optimizer state stay on the trainers'
                         devices */
    struct memory_plan_limits *limits; /* [roster.count] */
    int64_t memory_wait_since; /* since when the plan waits for memory, 0: it
                                  does not */
    struct manifest restored;  /* the checkpoint that the run resumes from, if
                                  has_restored */
    bool has_restored;
    bool from_memory; /* copies of it, in place of restore_folder */
    char restore_folder[4096];
    /* External model: the last epochs that rank 0 has told, by number. */
    struct {
        uint64_t number, first_step;
        bool is_known;
    } epochs[MESSAGE_EPOCHS];
    uint64_t lineage;
    bool init_wanted; /* all ps wait for the weights of job.init */
    bool init_done;
};

/* Makes the plan once all members have joined and all trainers have sent their
 * model spec. True when it is made and fits into memory: the checkpoint to
 * start from may be read. */
bool planning_prepare(struct run *run);

/* Sets the schedule from where the run starts (run->plan.restored). */
bool planning_schedule(struct run *run);

/* Takes the plan of a run that is adopted, which a ps has; rank 0 has declared
 * the model. STATUS_FAILED: it is not one of this job and cluster. */
enum status planning_take_over(struct run *run, const Capstan__Plan *message,
                               struct failure *why) MUST_CHECK;

/* Sends the plan to all members. */
void planning_send(struct run *run);

/* Starts training once all ps hold their blocks, with the weights of job.init
 * if set. */
void planning_step(struct run *run);

/* SLOT's trainer joined during training and has sent its model spec: sends it
 * the plan. KEEPS: another trainer keeps something (kept_states_any). */
void planning_admit_joiner(struct run *run, struct roster_slot *slot,
                           bool keeps);

/* Rank 0 of an external model has begun an epoch, or has started in one. */
void planning_receive_epoch(struct run *run, const struct roster_slot *slot,
                            const Capstan__Epoch *epoch);

/* RUN is adopted: rank 0 had begun these COUNT, and no other is known. The
 * newest checkpoint is known by then. */
void planning_take_epochs(struct run *run, Capstan__Epoch *const *epochs,
                          size_t count);

/* A ps holds its blocks. Once all do, job.init is loaded into them, unless the
 * run resumes. */
void planning_receive_ready(struct run *run, struct roster_slot *slot,
                            const Capstan__Ready *ready);

#endif
