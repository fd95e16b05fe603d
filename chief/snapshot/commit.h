/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a checkpoint: its manifest, which makes it exist, then older ones
 * go. Both are done on a thread beside the chief's loop, one checkpoint after
 * the other: a disk may take longer than others wait for the chief. */
#ifndef CAPSTAN_COMMIT_H
#define CAPSTAN_COMMIT_H

#include "chief/run.h"

/* Follows up what has ended and starts what is due: cuts that all ps have
 * written (cuts_whole). */
void commit_step(struct run *run);

/* Polls readable when there is something to follow up; -1: nothing can be. */
int commit_descriptor(const struct run *run);

/* At the end: waits until all that is due is done, as long as the disk takes;
 * after timeouts.stop it says so. */
void commit_finish(struct run *run);

#endif
