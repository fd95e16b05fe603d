/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts: one moment of all blocks, for a checkpoint, an evaluation, an export
 * or a joiner. In synchronous runs most stand in the plan; the others are
 * agreed on with the ps. */
#ifndef CAPSTAN_SNAPSHOT_COORDINATOR_H
#define CAPSTAN_SNAPSHOT_COORDINATOR_H

#include "chief/run.h"

struct snapshot_reason {
    bool save, evaluate, export, joins;
};

/* Asks for a cut; false when none can be had now (one is being agreed on). At
 * the END no trainer pushes any more: the cut is now. */
bool snapshot_coordinator_request(struct run *run,
                                  struct snapshot_reason reason, bool end);

/* Answers of SLOT, a ps. */
void snapshot_coordinator_receive_round(struct run *run,
                                        const struct roster_slot *slot,
                                        const Capstan__SnapshotPrepared *mark);

/* SLOT, a ps, holds, has written, or could not write its part of a cut. */
void snapshot_coordinator_receive_done(struct run *run,
                                       const struct roster_slot *slot,
                                       const Capstan__SnapshotDone *done);

/* A cut that all ps hold now and that an evaluation, or the export, shall read
 * and has not yet begun to: it has now, and calls snapshot_coordinator_release
 * when it is over. False: none. */
bool snapshot_coordinator_take_evaluation(struct run *run, uint64_t *id,
                                          uint64_t *step);

/* The same of the last cut, for the export; it has no step of its own to tell.
 */
bool snapshot_coordinator_take_export(struct run *run, uint64_t *id);

/* An evaluation or the export, which read the cut, is over. */
void snapshot_coordinator_release(struct run *run, uint64_t id);

/* The planned cut of ROUND is on its way, heard of or not: it is awaited. */
void snapshot_coordinator_expect_planned(struct run *run, uint64_t round);

/* The oldest cut that all ps have written and is not saved yet; NULL: none. */
struct run_snapshot *snapshot_coordinator_next_complete(struct run *run);

/* CUT, a whole one, has its manifest, or will have none. */
void snapshot_coordinator_saved(struct run *run, struct run_snapshot *snapshot);

/* Nobody closes rounds any more: cuts that wait for one are given up. True
 * when there was one. */
bool snapshot_coordinator_abandon(struct run *run);

/* Is an asked cut being taken or written? */
bool snapshot_coordinator_is_requesting(const struct run *run);

/* Is any cut being taken or written, also a planned one? */
bool snapshot_coordinator_is_writing(const struct run *run);

/* Is a checkpoint being taken or written? */
bool snapshot_coordinator_is_saving(const struct run *run);

/* Is any cut still there, if only to be read? */
bool snapshot_coordinator_is_pending(const struct run *run);

/* Is a cut there that was asked for an evaluation, which is not over? */
bool snapshot_coordinator_is_evaluating(const struct run *run);

/* The cut of ID that is under way, or NULL. */
struct run_snapshot *snapshot_coordinator_find(struct run *run, uint64_t id);

#endif
