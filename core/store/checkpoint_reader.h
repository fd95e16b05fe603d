/* SPDX-License-Identifier: Apache-2.0 */
/* Reads checkpoints: verifies them, finds the newest complete one, reads
 * blocks and rows. Of a delta the blocks are its own, and its rows those of
 * both, itself and its base. */
#ifndef CAPSTAN_CHECKPOINT_READER_H
#define CAPSTAN_CHECKPOINT_READER_H

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/store/manifest.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct row_keys;
struct shard_rows_pair;

#define CHECKPOINT_READER_ANY UINT64_MAX

/* Reads every file of STEP, and of a delta those of its base: checks sizes,
 * hashes, and that each block has its weights, state and row. On STATUS_FAILED
 * WHY names the first problem. Files that are on other hosts
 * (checkpoint_reader_count_remote) are skipped. */
enum status checkpoint_reader_verify(const char *dir, uint64_t step,
                                     struct failure *why) MUST_CHECK;

/* The same for several steps, ascending: *BASE (all zero at first) becomes the
 * last full one that verifies, whose files are not read again for its deltas.
 */
enum status checkpoint_reader_verify_next(const char *dir, uint64_t step,
                                          struct manifest_name *base,
                                          struct failure *why) MUST_CHECK;

/* Reads the manifest of the newest checkpoint at or below UPTO
 * (CHECKPOINT_READER_ANY: of all) that verifies; the caller clears *OUT. LOG
 * (may be NULL) receives a warning for each one skipped. If DIR has no
 * checkpoint, *FOUND is false and *OUT is empty. If it has some and none
 * verifies: STATUS_FAILED, so that no run starts anew over them unnoticed. */
enum status checkpoint_reader_newest(const char *dir, uint64_t upto,
                                     struct manifest *out, bool *found,
                                     const struct log *log,
                                     struct failure *why) MUST_CHECK;

/* The same of all, but of the newest one's shard files, and its base's, only
 * the sizes: for a run that has seen it written, and whose ps check what they
 * read of it. */
enum status checkpoint_reader_newest_sized(const char *dir,
                                           struct manifest *out, bool *found,
                                           const struct log *log,
                                           struct failure *why) MUST_CHECK;

/* The number of files of MANIFEST in FOLDER, and of its base, that are missing
 * here and held by another host; *FIRST (may be NULL) is one of them, a view.
 */
uint32_t checkpoint_reader_count_remote(const char *folder,
                                        const struct manifest *manifest,
                                        const struct shard_info **first);

/* One thread at a time uses a reader. */
struct checkpoint_reader;

/* Borrows MANIFEST, which has its base if it is a delta. A file in FOLDER, or
 * in the base's folder beside it, is opened and checked when its first block is
 * read. FOLDER NULL: its name and those of its base's are the numbers of
 * descriptors of this process. */
enum status checkpoint_reader_open(struct checkpoint_reader **out,
                                   const char *folder,
                                   const struct manifest *manifest,
                                   struct failure *why) MUST_CHECK;

/* Closes *READER (may be NULL) and clears it. */
void checkpoint_reader_close(struct checkpoint_reader **reader);

/* Copies SLOT (SHARD_WEIGHTS, or 1 + the index of a state slot) of block B of
 * the manifest's layout to FLOATS. */
enum status checkpoint_reader_block(struct checkpoint_reader *reader,
                                    uint32_t b, uint16_t slot, float *floats,
                                    struct failure *why) MUST_CHECK;

/* The same of all blocks of parameter P: FLOATS has its elements. */
enum status checkpoint_reader_parameter(struct checkpoint_reader *reader,
                                        uint32_t p, uint16_t slot,
                                        float *floats,
                                        struct failure *why) MUST_CHECK;

/* Views the row (SHARD_ROW) of block B, or of partition B - num_blocks, until
 * the reader closes. */
enum status checkpoint_reader_row(struct checkpoint_reader *reader, uint32_t b,
                                  const void **row, size_t *bytes,
                                  struct failure *why) MUST_CHECK;

/* *STEP is how many updates the rule has counted of block B, or of partition
 * B - num_blocks; in a checkpoint of a release that counted all of them, the
 * step of the manifest without those that overflowed. */
enum status checkpoint_reader_rule_step(struct checkpoint_reader *reader,
                                        uint32_t b, uint64_t *step,
                                        struct failure *why) MUST_CHECK;

/* Views the rows of STACK in PARTITION until the reader closes. They are in the
 * files' mapping, not in memory of the reader. FAILURE_CHECKPOINT_DAMAGED names
 * the file and the partition. */
enum status checkpoint_reader_rows(struct checkpoint_reader *reader,
                                   uint32_t partition, uint32_t stack,
                                   struct shard_rows_pair *rows,
                                   struct failure *why) MUST_CHECK;

/* *SINCE is the number of an update of PARTITION: rows that a later one changes
 * are all that differs from the full checkpoint, this one or its base, if the
 * partition's updates go on from this one's step. False: there is none, as a
 * delta has all rows of the partition. */
enum status checkpoint_reader_since(struct checkpoint_reader *reader,
                                    uint32_t partition, bool *based,
                                    uint64_t *since,
                                    struct failure *why) MUST_CHECK;

/* Fills WEIGHTS [count, dim] with the rows of KEYS, which are in PARTITION, as
 * a ps with these rows does: initial values for those that are not there, zero
 * for those that are not admitted. Fails as checkpoint_reader_rows. */
enum status checkpoint_reader_lookup(struct checkpoint_reader *reader,
                                     uint32_t partition, uint32_t stack,
                                     const struct row_keys *keys,
                                     float *weights,
                                     struct failure *why) MUST_CHECK;

#endif
