/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of tables in a shard file. The rows of one stack in one partition are a
 * list of values, ascending by table, then id. A value is as many rows
 * (row_keys.h) as SHARD_ROWS_VALUE_BYTES hold, at least one; only the last has
 * fewer, perhaps none, and so ends the list. A delta has two lists: the rows
 * that changed since its base, and without their floats those that were
 * removed, if there are any. */
#ifndef CAPSTAN_SHARD_ROWS_H
#define CAPSTAN_SHARD_ROWS_H

#include "core/base/status.h"
#include "core/net/shm/buffer.h"
#include "core/store/shard_file.h"
#include "core/tensor/layout.h"
#include "core/tensor/row_keys.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHARD_ROWS_VALUE_BYTES = 256 << 10 };

/* The rows of one stack in one partition: `page_rows` of `row_bytes` each in
 * every page but the last. Of a delta only those are written that an update
 * after SINCE has touched, and which ones were removed since. Views. */
struct shard_rows_source {
    struct buffer *const *pages; /* [num_pages] */
    size_t num_pages;
    uint32_t rows, page_rows;
    size_t row_bytes;
    bool delta; /* the same in all stacks of a partition, as SINCE */
    uint64_t since;
    struct buffer
        *removed; /* struct row [num_removed], any order; NULL: none */
    uint32_t num_removed;
};

/* Announces and writes the rows of all stacks of PARTITION, ROWS [num_stacks],
 * or of a delta those changed and removed. Adds all rows to COUNTS
 * [num_tables]. In memory are 16 bytes a written row of one stack. */
enum status shard_rows_write(struct shard_writer *writer,
                             const struct layout *layout, uint32_t partition,
                             const struct shard_rows_source *rows,
                             struct shard_rows_count *counts,
                             struct failure *why) MUST_CHECK;

/* Which list, and how large its rows are. */
struct shard_rows_key {
    const struct layout *layout;
    uint32_t partition, stack;
    size_t row_bytes;
    bool removed; /* the list of rows that were removed; `row_bytes` is then
                     that of struct row */
};

/* COUNT rows at ROWS, 8-byte aligned. */
struct shard_rows_value {
    const void *rows;
    uint32_t count;
};

/* A list in a file: views until its reader closes. */
struct shard_rows {
    struct shard_rows_value *values; /* [count] */
    size_t count;
    void *copy; /* of a value that is not aligned in the file, or NULL */
    size_t row_bytes;
};

/* Finds and checks the values of KEY; FAILURE_CHECKPOINT_DAMAGED names file,
 * partition and what is wrong. The caller clears *OUT in every case. */
enum status shard_rows_read(struct shard_rows *out, struct shard_reader *reader,
                            const struct shard_rows_key *key,
                            struct failure *why) MUST_CHECK;

void shard_rows_clear(struct shard_rows *rows);

/* The first row of ROWS at or after table T's ID, as the number of its value
 * and its place in it; the end is value `count`, place 0. */
struct shard_rows_place {
    size_t value;
    uint32_t place;
};
struct shard_rows_place shard_rows_find(const struct shard_rows *rows,
                                        uint32_t t, uint64_t id);

/* The row at *PLACE, which moves on to the next; NULL: the end. */
const struct row *shard_rows_next(const struct shard_rows *rows,
                                  struct shard_rows_place *place);

/* The rows of one stack in one partition of a checkpoint: those of one list, or
 * of a delta and its base. */
struct shard_rows_pair {
    const struct shard_rows *rows;           /* of a delta: those changed */
    const struct shard_rows *removed, *base; /* NULL: `rows` are all */
};

/* A walk over a pair's rows, each as the delta leaves it. */
struct shard_rows_cursor {
    struct shard_rows_pair pair;
    struct shard_rows_place place, removed_place, base_place;
    const struct row *row, *removed, *base; /* the next of each list, or NULL */
};

/* Begins at the first row at or after table T's ID. PAIR's lists are borrowed.
 */
void shard_rows_seek(struct shard_rows_cursor *cursor,
                     const struct shard_rows_pair *pair, uint32_t t,
                     uint64_t id);

/* The row at CURSOR, which moves on to the next; NULL: the end. */
const struct row *shard_rows_step(struct shard_rows_cursor *cursor);

#endif
