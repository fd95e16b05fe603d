/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a shard file. One writer belongs to one thread at a time. */
#ifndef CAPSTAN_SHARD_WRITER_H
#define CAPSTAN_SHARD_WRITER_H

#include "proto/base/status.h"
#include "proto/store/shard_file.h"

#include <stddef.h>
#include <stdint.h>

struct shard_writer;

/* Starts PATH.tmp for at most BYTES of values in ENTRIES entries; its folder
 * exists. On a network mount the file is built in a local temporary folder
 * instead and copied by shard_writer_finish. STATUS_FAILED when there is not
 * the room. */
enum status shard_writer_open(struct shard_writer **out, const char *path,
                              uint64_t bytes, uint64_t entries,
                              struct failure *why) MUST_CHECK;

/* The same, built in FOLDER: the folder of PATH, or one on a local disk. */
enum status shard_writer_open_in(struct shard_writer **out, const char *folder,
                                 const char *path, uint64_t bytes,
                                 uint64_t entries,
                                 struct failure *why) MUST_CHECK;

/* Adds one value; any order (ascending keys are appended), each key once.
 * Commits every 32 MiB. After a failure only shard_writer_abort may follow.
 */
enum status shard_writer_put(struct shard_writer *writer, struct shard_key key,
                             const void *value, size_t bytes,
                             struct failure *why) MUST_CHECK;

/* Syncs, hashes, renames to PATH, syncs the folder; fills INFO (its holder is
 * left empty). Ends *WRITER either way; on failure nothing remains on disk. */
enum status shard_writer_finish(struct shard_writer **writer,
                                struct shard_info *info,
                                struct failure *why) MUST_CHECK;

/* Ends *WRITER (may be NULL) and removes what it left. */
void shard_writer_abort(struct shard_writer **writer);

#endif
