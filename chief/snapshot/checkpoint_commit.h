/* SPDX-License-Identifier: Apache-2.0 */
/* Commits a checkpoint: writes the manifest, which makes the checkpoint valid,
 * then prunes older ones. A background thread commits one checkpoint after the
 * other, because a disk may take longer than peers wait for the chief. */
#ifndef CAPSTAN_CHECKPOINT_COMMIT_H
#define CAPSTAN_CHECKPOINT_COMMIT_H

#include "chief/run.h"
#include "core/base/health.h"

/* Handles a commit that has ended and starts the next one: snapshots that all
 * ps have written (snapshot_coordinator_next_complete). While the run is not
 * ending, WRITE_METRICS writes those of a snapshot's steps first. */
void checkpoint_commit_step(struct run *run,
                            bool (*write_metrics)(struct run *, uint64_t));

/* The manifest that a checkpoint of SNAPSHOT, which is written, would have, a
 * delta of BASE (NULL: it is whole); the caller frees it. NULL: no memory. */
char *checkpoint_commit_text(const struct run *run,
                             const struct run_snapshot *snapshot,
                             const struct manifest_name *base);

/* Becomes readable when a commit has ended; -1: none is in progress. */
int checkpoint_commit_descriptor(const struct run *run);

/* At the end of the run: waits until all commits are done, as long as the disk
 * takes. Logs a warning after timeouts.stop, and reports to HEALTH (NULL:
 * nowhere). */
void checkpoint_commit_finish(struct run *run, struct health *health);

#endif
