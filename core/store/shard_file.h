/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by writing and reading of a shard file, a ps's part of a checkpoint.
 * It is an LMDB file written once by one process (shard_writer.h), built under
 * a temporary name, renamed, and only read afterwards (shard_reader.h). Its
 * keys are (parameter, offset, slot), big-endian; each value is preceded by its
 * XXH3-64. Partition p of the tables has the keys (SHARD_ROWS | p, number of
 * the value, stack), whose values are rows (shard_rows.h), and one with slot
 * SHARD_ROW. If those rows are only the ones that changed since a base, there
 * are also keys with SHARD_REMOVED | stack, and one with SHARD_SINCE. */
#ifndef CAPSTAN_SHARD_FILE_H
#define CAPSTAN_SHARD_FILE_H

#include "core/base/status.h"

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

#endif
