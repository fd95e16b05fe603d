/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a shard file. One thread at a time uses a writer. */
#ifndef CAPSTAN_SHARD_WRITER_H
#define CAPSTAN_SHARD_WRITER_H

#include "core/base/status.h"
#include "core/store/shard_file.h"

#include <stddef.h>
#include <stdint.h>

struct shard_writer;

/* Creates PATH.tmp for at most BYTES of values in ENTRIES entries; its folder
 * exists. On a network mount the file is built in a local temporary folder and
 * copied by shard_writer_finish. STATUS_FAILED if there is not enough space. */
enum status shard_writer_open(struct shard_writer **out, const char *path,
                              uint64_t bytes, uint64_t entries,
                              struct failure *why) MUST_CHECK;

/* The same, built in FOLDER: the folder of PATH, or a folder on a local
 * disk. */
enum status shard_writer_open_in(struct shard_writer **out, const char *folder,
                                 const char *path, uint64_t bytes,
                                 uint64_t entries,
                                 struct failure *why) MUST_CHECK;

/* Announces BYTES of values in ENTRIES entries more than the writer was opened
 * for; fails likewise. */
enum status shard_writer_expect(struct shard_writer *writer, uint64_t bytes,
                                uint64_t entries,
                                struct failure *why) MUST_CHECK;

/* Adds one value, in any order (ascending keys are appended), each key once.
 * Commits every 32 MiB. After a failure only shard_writer_abort may be
 * called. */
enum status shard_writer_put(struct shard_writer *writer, struct shard_key key,
                             const void *value, size_t bytes,
                             struct failure *why) MUST_CHECK;

/* Syncs, hashes, renames to PATH and syncs the folder; sets INFO except its
 * host. Closes *WRITER in every case; on failure nothing remains on disk. */
enum status shard_writer_finish(struct shard_writer **writer,
                                struct shard_info *info,
                                struct failure *why) MUST_CHECK;

/* Closes *WRITER (may be NULL) and removes its files. */
void shard_writer_abort(struct shard_writer **writer);

#endif
