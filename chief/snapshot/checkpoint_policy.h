/* SPDX-License-Identifier: Apache-2.0 */
/* Where a run starts from, and which checkpoints it keeps. */
#ifndef CAPSTAN_CHECKPOINT_POLICY_H
#define CAPSTAN_CHECKPOINT_POLICY_H

#include "chief/snapshot/kept_states.h"
#include "core/base/status.h"
#include "core/tensor/optimizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct run;
struct run_snapshot;

struct run_checkpoints {
    struct dir_lock *dir_lock; /* lock on checkpoint.dir, or NULL */
    uint64_t saved;            /* step of the newest complete checkpoint */
    bool has_saved;
    uint64_t uncounted;   /* samples of it that no trainer tells any more */
    double saved_seconds; /* from the first holder's copy of it to its end */
    int64_t complete_at;  /* when it was complete; 0: in an earlier run */
    uint64_t written;     /* how many this run has completed */
    int64_t saved_at;     /* the newest full one, or its request */
    char folder[4096];    /* of that checkpoint */
    bool requested; /* a full one, by a signal and the like, not taken yet */
    uint64_t every_seen; /* staleness: the last multiple of every_steps that
                            was due, */
    uint64_t delta_every_seen; /* and of delta_every_steps */
    bool has_base;             /* the newest full checkpoint: */
    struct manifest_name base; /* what later deltas are against */
    uint64_t base_id;          /* its snapshot; 0: of an earlier run */
    uint64_t last_failed;      /* highest step whose checkpoint failed */
    char last_problem[512]; /* why the last checkpoint was not written, or "" */
    struct checkpoint_commit *commit; /* in progress, or NULL */
    struct run_kept kept;
};

enum { CHECKPOINT_POLICY_RESUME_HINT_SIZE = 4400 /* bytes for any hint */ };

/* Locks the checkpoint directory for this run (dir_lock.h), so that each ps can
 * tell whether it sees the same directory. If another live run holds the lock:
 * STATUS_CONFIG. */
enum status checkpoint_policy_open(struct run *run,
                                   struct failure *why) MUST_CHECK;

/* Releases the directory lock. */
void checkpoint_policy_close(struct run *run);

/* Finds the checkpoint that the job's `resume` names and fills
 * run->plan.restored; the run's layout gets its number of partitions.
 * If there is a checkpoint that cannot be used, the run does not start afresh
 * but fails, as of checkpoint_policy_check. */
enum status checkpoint_policy_find_start(struct run *run,
                                         struct failure *why) MUST_CHECK;

/* Does the job match the checkpoint of MANIFEST? Another model, table,
 * optimizer or seed: STATUS_CONFIG, naming the first difference. */
enum status checkpoint_policy_check(const struct run *run,
                                    const struct manifest *manifest,
                                    struct failure *why) MUST_CHECK;

/* RUN, which is adopted, was at STEP when it last had a chief: locks the
 * directory for it, and goes on from its newest checkpoint. */
enum status checkpoint_policy_take_over(struct run *run, uint64_t step,
                                        struct failure *why) MUST_CHECK;

/* Tells the ps which checkpoints are complete, and which is the base. */
void checkpoint_policy_send_retained(struct run *run);

/* SNAPSHOT was not written or not committed: removes its files. */
void checkpoint_policy_discard(struct run *run,
                               const struct run_snapshot *snapshot);

#endif
