/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a shard file. One thread at a time uses a reader. */
#ifndef CAPSTAN_SHARD_READER_H
#define CAPSTAN_SHARD_READER_H

#include "core/base/status.h"
#include "core/store/shard_file.h"

#include <stdbool.h>
#include <stddef.h>

struct shard_reader;

/* Checks size and hash of DIR/info->name against INFO before LMDB opens it;
 * STATUS_FAILED names the difference. A file on a network mount is first copied
 * to a local temporary folder, which lasts until the reader closes. */
enum status shard_reader_open(struct shard_reader **out, const char *dir,
                              const struct shard_info *info,
                              struct failure *why) MUST_CHECK;

/* The same with the copy in FOLDER, or in place if FOLDER is NULL. */
enum status shard_reader_open_in(struct shard_reader **out, const char *folder,
                                 const char *dir, const struct shard_info *info,
                                 struct failure *why) MUST_CHECK;

/* Closes *READER (may be NULL) and clears it. */
void shard_reader_close(struct shard_reader **reader);

/* Its file's path; view. */
const char *shard_reader_path(const struct shard_reader *reader);

/* Is there a value of KEY? */
bool shard_reader_has(struct shard_reader *reader, struct shard_key key);

/* Views the value of KEY until the reader closes; its XXH3 is checked. A
 * missing key is STATUS_FAILED. The view may be misaligned. */
enum status shard_reader_get(struct shard_reader *reader, struct shard_key key,
                             const void **value, size_t *bytes,
                             struct failure *why) MUST_CHECK;

#endif
