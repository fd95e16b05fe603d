/* SPDX-License-Identifier: Apache-2.0 */
/* A shard file, a ps's part of a checkpoint. It is an LMDB file written once by
 * one process, built under a temporary name, renamed, and only read afterwards.
 * Its keys are (parameter, offset, slot), big-endian; each value is preceded by
 * its XXH3-64. Partition p of the tables has the keys (SHARD_ROWS | p, number
 * of the value, stack), whose values are rows (shard_rows.h), and one with slot
 * SHARD_ROW. If those rows are only the ones that changed since a base, there
 * are also keys with SHARD_REMOVED | stack, and one with SHARD_SINCE. */
#ifndef CAPSTAN_SHARD_FILE_H
#define CAPSTAN_SHARD_FILE_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SHARD_FILE_KEY_BYTES = 14,
    SHARD_FILE_HASH_BYTES = 8, /* before each value */
};

/* Slot 0 holds the weights, 1.. the rule's state, SHARD_ROW the block's update
 * number and ledger row (opaque bytes here; no restore needs it).
 * SHARD_RULE_STEP holds the updates that the rule of the block or partition has
 * counted, uint64; files of older releases, which counted all, have none.
 * SHARD_SINCE holds an update's number, uint64: rows that a later update of the
 * partition changed or removed are in the file. */
enum {
    SHARD_WEIGHTS = 0,
    SHARD_REMOVED = 0x8000,
    SHARD_RULE_STEP = 0xfffd,
    SHARD_SINCE = 0xfffe,
    SHARD_ROW = 0xffff
};
#define SHARD_ROWS (UINT32_C(1) << 31)

struct shard_key {
    uint32_t parameter;
    uint16_t slot;
    uint64_t offset; /* elements */
};

/* Rows of a table, and those of them that are admitted; in this order in
 * SnapshotReport. */
struct shard_rows_count {
    uint64_t rows, admitted;
};

/* A finished file as the manifest lists it. `name` is relative to the
 * checkpoint's folder. */
struct shard_info {
    char name[128];
    char host[256]; /* whose disk has it, "" if shared */
    uint64_t size;
    uint64_t hash[2]; /* XXH3-128 of the whole file: low, high */
};

/* Writes KEY in LMDB's sort order. */
void shard_file_key(struct shard_key key,
                    unsigned char bytes[SHARD_FILE_KEY_BYTES]);

/* Reads FD from start to end: sets INFO's size and hash, and appends the bytes
 * to COPY unless it is NULL. PATH is for error texts. */
struct atomic_file;
enum status shard_file_hash(int fd, const char *path, struct shard_info *info,
                            struct atomic_file *copy,
                            struct failure *why) MUST_CHECK;

/* Writes a shard file. One thread at a time uses a writer. */
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

/* The same in memory, without a folder: shard_writer_finish_memory ends it.
 * NAME is the file's in INFO. */
enum status shard_writer_open_memory(struct shard_writer **out,
                                     const char *name, uint64_t bytes,
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

/* The same of a writer in memory: *FD is the file, which the caller closes. A
 * reader opens it as /proc/self/fd/N. */
enum status shard_writer_finish_memory(struct shard_writer **writer, int *fd,
                                       struct shard_info *info,
                                       struct failure *why) MUST_CHECK;

/* Closes *WRITER (may be NULL) and removes its files. */
void shard_writer_abort(struct shard_writer **writer);

/* Reads a shard file. One thread at a time uses a reader. */
struct shard_reader;

/* Is DIR/info->name a file of INFO's size? Its bytes are not read. */
enum status shard_file_check_size(const char *dir,
                                  const struct shard_info *info,
                                  struct failure *why) MUST_CHECK;

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
