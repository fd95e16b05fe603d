/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint directory: step folders, listing, removal. A step folder is a
 * checkpoint if it has a manifest, and then it is complete: the manifest is
 * written only after all ps have reported that their files are durable.
 * Reading: checkpoint_reader.h. */
#ifndef CAPSTAN_CHECKPOINT_H
#define CAPSTAN_CHECKPOINT_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes "DIR/step-000001500"; an empty text if it does not fit. */
void checkpoint_folder(const char *dir, uint64_t step, char *path, size_t size);

/* Writes the folder of STEP that is beside FOLDER, that of another step. */
void checkpoint_sibling(const char *folder, uint64_t step, char *path,
                        size_t size);

/* Splits DIR/step-N, the folder of a checkpoint, in place: DIR is the folder
 * above it. False, and *STEP stays, if there is no checkpoint of that name. */
bool checkpoint_split_folder(char *dir, uint64_t *step);

/* Writes "ps-0-of-2-RUN.mdb", RUN as 16 hex digits; of a delta
 * "ps-0-of-2-RUN-delta.mdb", so that it is never written over a full one of the
 * same step. */
void checkpoint_shard_name(uint32_t index, uint32_t count, uint64_t run,
                           bool delta, char *name, size_t size);

/* Writes "DIR/.run-RUN", the path of the chief's file. A process that finds the
 * file uses the same directory as the chief (dir_lock.h). */
void checkpoint_run_file(const char *dir, uint64_t run, char *path,
                         size_t size);

/* Makes DIR and missing parents. */
enum status checkpoint_make_dir(const char *dir,
                                struct failure *why) MUST_CHECK;

/* Makes the folder of STEP, DIR and missing parents. Chief and ps may do so at
 * the same time. */
enum status checkpoint_make_folder(const char *dir, uint64_t step,
                                   struct failure *why) MUST_CHECK;

/* The steps that have a manifest, ascending; the caller frees *STEPS. A missing
 * DIR has none. */
enum status checkpoint_list(const char *dir, uint64_t **steps, size_t *count,
                            struct failure *why) MUST_CHECK;

/* The same for steps with a folder but no manifest: they are being written, or
 * their writing was interrupted. */
enum status checkpoint_incomplete(const char *dir, uint64_t **steps,
                                  size_t *count,
                                  struct failure *why) MUST_CHECK;

/* Removes STEP, its manifest first; other files than Capstan's stay. A missing
 * step is not a failure. */
enum status checkpoint_remove(const char *dir, uint64_t step,
                              struct failure *why) MUST_CHECK;

/* Removes all but the newest KEEP checkpoints (0: removes none) and the bases
 * of deltas among them, and steps without a manifest that are older than the
 * newest checkpoint. */
enum status checkpoint_prune(const char *dir, uint32_t keep,
                             struct failure *why) MUST_CHECK;

/* Removes the folders of all steps below the last of STEPS[COUNT] (ascending)
 * that are not in STEPS, with or without a manifest. For a ps with a folder of
 * its own, which the chief's manifests are not in. */
enum status checkpoint_retain(const char *dir, const uint64_t *steps,
                              size_t count, struct failure *why) MUST_CHECK;

/* Moves all steps from FROM on to DIR/aside-RUN and counts them in *MOVED. For
 * a run that starts before the checkpoints of an earlier run: without it, the
 * newest checkpoint and checkpoint_prune would go by those steps. The base of a
 * delta among them, if it is of an earlier step, is linked or copied there. */
enum status checkpoint_set_aside(const char *dir, uint64_t from, uint64_t run,
                                 size_t *moved, struct failure *why) MUST_CHECK;

#endif
