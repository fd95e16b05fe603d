/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a checkpoint: its manifest, which makes it exist, then older ones
 * go. Both are done on a thread beside the chief's loop, one checkpoint after
 * the other: a disk may take longer than others wait for the chief. */
#ifndef CAPSTAN_CHECKPOINT_COMMIT_H
#define CAPSTAN_CHECKPOINT_COMMIT_H

#include "chief/run.h"

/* Follows up what has ended and starts what is due: cuts that all ps have
 * written (snapshot_coordinator_next_complete). */
void checkpoint_commit_step(struct run *run);

/* Polls readable when there is something to follow up; -1: nothing can be. */
int checkpoint_commit_descriptor(const struct run *run);

/* At the end: waits until all that is due is done, as long as the disk takes;
 * after timeouts.stop it says so. */
void checkpoint_commit_finish(struct run *run);

#endif
