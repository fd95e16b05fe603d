/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint directory: step folders, listing and cleaning up. A folder
 * without a manifest is no checkpoint, and one with a manifest is whole:
 * whoever writes the manifest has the word of all ps that their files are
 * durable. Reading: checkpoint_reader.h. */
#ifndef CAPSTAN_CHECKPOINT_H
#define CAPSTAN_CHECKPOINT_H

#include "proto/base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Writes "DIR/step-000001500"; nothing when that is too long. */
void checkpoint_folder(const char *dir, uint64_t step, char *path, size_t size);

/* Writes "ps-0-of-2-RUN.mdb", RUN as 16 hex digits. */
void checkpoint_shard_name(uint32_t index, uint32_t count, uint64_t run,
                           char *name, size_t size);

/* Writes "DIR/.run-RUN": the chief leaves this file there, and who finds it
 * sees the same directory (dir_lock.h). */
void checkpoint_run_file(const char *dir, uint64_t run, char *path,
                         size_t size);

/* Makes DIR and its parents where they are missing. */
enum status checkpoint_make_dir(const char *dir,
                                struct failure *why) MUST_CHECK;

/* Makes the folder of STEP, DIR and its parents where they are missing. Chief
 * and ps may do so at the same time. */
enum status checkpoint_make_folder(const char *dir, uint64_t step,
                                   struct failure *why) MUST_CHECK;

/* The steps that have a manifest, ascending; the caller frees *STEPS. A DIR
 * that does not exist has none. */
enum status checkpoint_list(const char *dir, uint64_t **steps, size_t *count,
                            struct failure *why) MUST_CHECK;

/* The same of the steps that have a folder and no manifest: they are being
 * written, or are what is left of it. */
enum status checkpoint_incomplete(const char *dir, uint64_t **steps,
                                  size_t *count,
                                  struct failure *why) MUST_CHECK;

/* Removes STEP, manifest first; files that are not Capstan's stay. One that
 * is not there is no failure. */
enum status checkpoint_remove(const char *dir, uint64_t step,
                              struct failure *why) MUST_CHECK;

/* Removes all but the newest KEEP (0: none is removed) and the remains of
 * steps older than the newest that have no manifest. */
enum status checkpoint_prune(const char *dir, uint32_t keep,
                             struct failure *why) MUST_CHECK;

/* Removes the folders of all steps below the last of STEPS[COUNT] (ascending)
 * that are not among them, with or without a manifest: for a ps whose folder is
 * its own, where the chief's manifests are not. */
enum status checkpoint_retain(const char *dir, const uint64_t *steps,
                              size_t count, struct failure *why) MUST_CHECK;

/* Moves all steps from FROM on to DIR/aside-RUN and counts them in *MOVED. For
 * a run that starts before checkpoints of an earlier one: "newest" and
 * checkpoint_prune go by the step and would take those for its own. */
enum status checkpoint_set_aside(const char *dir, uint64_t from, uint64_t run,
                                 size_t *moved, struct failure *why) MUST_CHECK;

#endif
