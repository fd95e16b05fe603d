/* SPDX-License-Identifier: Apache-2.0 */
/* Coordinates consistent snapshots of all blocks at one step, for a checkpoint,
 * an evaluation, an export or a joiner. In synchronous runs most snapshots are
 * planned rounds; for the others the chief names a round
 * above the highest that any ps has closed. */
#ifndef CAPSTAN_SNAPSHOT_COORDINATOR_H
#define CAPSTAN_SNAPSHOT_COORDINATOR_H

#include "chief/control/roster.h"
#include "chief/snapshot/snapshot_round.h"
#include "core/store/manifest.h"
#include "core/tensor/loss_scaler.h"
#include "proto/messages/control.pb-c.h"
#include "proto/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct run;

struct run_snapshot {
    struct snapshot_round progress;
    uint64_t id, step;
    bool save, evaluate, export, joins, retain;
    bool copy;                    /* in memory */
    bool skipped;                 /* by a holder: an earlier one is written */
    bool last;                    /* an interrupted run ends with it */
    bool ordered;                 /* the order to write it was sent */
    Capstan__Snapshot__Form form; /* as ordered */
    bool delta; /* a part that was written has what changed since a base */
    bool evaluating, exporting; /* the reader has started */
    uint32_t readers;           /* evaluation and export that are not over */
    bool complete;              /* written by all ps */
    int64_t completed_at;
    bool written, failed;
    char problem[512];
    struct shard_info *files; /* [num_holders] */
    struct shard_rows_count
        *counts; /* [num_tables] of all files; in the memory of `files` */
    int64_t began;
    double seconds;
    struct loss_scaler scaler; /* of the weights that were written */
};

struct run_snapshots {
    struct run_snapshot *items; /* [count] */
    uint32_t count;
    uint64_t requested;
    int64_t gave_up_at; /* a holder lacked its part; 0: never */
};

struct snapshot_reason {
    bool save, evaluate, export, joins;
    bool copy;  /* in memory; with staleness */
    bool delta; /* save only what changed, if possible */
};

/* Requests a snapshot; false when another one is being agreed on. With END no
 * trainer pushes any more, and the snapshot is taken at once. */
bool snapshot_coordinator_request(struct run *run,
                                  struct snapshot_reason reason, bool end);

/* In training: requests a snapshot if one is due that is not in the plan: by
 * time or SIGUSR1, for an evaluation that lacks parts, for a joiner. */
void snapshot_coordinator_step(struct run *run, int64_t now);

/* SLOT, a holder, reports its highest round. */
void snapshot_coordinator_receive_round(
    struct run *run, const struct roster_slot *slot,
    const Capstan__SnapshotPrepared *prepared);

/* SLOT, a holder, holds or has written its part of a snapshot, or could not. */
void snapshot_coordinator_receive_report(struct run *run,
                                         const struct roster_slot *slot,
                                         const Capstan__SnapshotReport *report);

/* Notes in SNAPSHOT the file that SLOT, a holder, has written. */
void snapshot_coordinator_record_file(struct run *run,
                                      struct run_snapshot *snapshot,
                                      const struct roster_slot *slot,
                                      const Capstan__SnapshotReport *report);

/* Takes a snapshot that all holders hold and whose evaluation has not started.
 * The caller calls snapshot_coordinator_release when the evaluation is over.
 * False: there is none. */
bool snapshot_coordinator_take_evaluation(struct run *run, uint64_t *id,
                                          uint64_t *step);

/* An evaluation or the export that read snapshot ID is over. */
void snapshot_coordinator_release(struct run *run, uint64_t id);

/* Waits for the planned snapshot of ROUND, even if no holder has reported it
 * yet. */
void snapshot_coordinator_expect_planned(struct run *run, uint64_t round);

/* The oldest snapshot that all holders have written and that is not committed;
 * NULL: none. */
struct run_snapshot *snapshot_coordinator_next_complete(struct run *run);

/* SNAPSHOT's manifest is written, or its commit has failed. */
void snapshot_coordinator_saved(struct run *run, struct run_snapshot *snapshot);

/* The checkpoint of STEP is complete. A holder reports in order, so that parts
 * of planned ones before it which are not here do not come: some were of a
 * chief before this one. */
void snapshot_coordinator_drop_before(struct run *run, uint64_t step);

/* No trainer closes rounds any more: abandons requested snapshots that wait for
 * one. True when there was one. */
bool snapshot_coordinator_abandon(struct run *run);

/* Is a requested snapshot being taken or written? */
bool snapshot_coordinator_is_requesting(const struct run *run);

/* Is any snapshot, requested or planned, being taken or written? */
bool snapshot_coordinator_is_writing(const struct run *run);

/* Is a checkpoint being taken or written? */
bool snapshot_coordinator_is_saving(const struct run *run);

/* Does any snapshot still exist, even if only for readers? */
bool snapshot_coordinator_is_pending(const struct run *run);

/* Is there a snapshot whose evaluation is not over? */
bool snapshot_coordinator_is_evaluating(const struct run *run);

/* The snapshot ID that is in progress, or NULL. */
struct run_snapshot *snapshot_coordinator_find(struct run *run, uint64_t id);

/* SIGUSR1: takes a checkpoint as soon as possible; the run continues. WHO: for
 * the log. */
void snapshot_coordinator_receive_signal(struct run *run, const char *who);

#endif
