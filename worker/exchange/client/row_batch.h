/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of tables that a batch reads, each once, by partition; their weights
 * and the sums of their gradients. Filled in three steps: row_batch_begin, then
 * row_batch_add for each list of ids, then row_batch_finish; of the batches
 * with one row_batch_index one at a time. One thread. */
#ifndef CAPSTAN_ROW_BATCH_H
#define CAPSTAN_ROW_BATCH_H

#include "core/base/status.h"
#include "core/tensor/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A partition's place in `bytes`, and in `weights` and `gradients`. */
struct row_batch_part {
    size_t first_byte;
    uint32_t bytes; /* of the lists, as row_keys.h has them; 0: no row */
    uint32_t first_float, floats;
};

struct row_batch_index;
struct row_batch_row;

struct row_batch {
    const struct layout *layout;
    struct row_batch_part *parts; /* [num_partitions] */
    unsigned char *bytes;         /* the lists of all partitions */
    float *weights, *gradients;   /* [floats], rows in the order of the lists */
    uint32_t *positions; /* [num_added]: where the row of each added id begins
                            in `weights` and `gradients` */
    size_t num_added, num_rows, floats;
    size_t lists; /* bytes of all lists */
    bool places;  /* of a lookup: places in partitions in place of ids, and
                     `weights` a struct row each (row_batch_places) */

    /* Private. */
    struct row_batch_index *index;
    struct row_batch_row *rows; /* [room_rows] */
    size_t room_added, room_rows, room_bytes, room_floats;
};

/* Grows *MEMORY, of ROOM entries of SIZE, so that WANTED have room; doubles it
 * at least. False: no memory. */
bool row_batch_grow(void **memory, size_t *room, size_t wanted, size_t size);

/* What is needed only while a batch over LAYOUT's tables (borrowed) is filled.
 */
enum status row_batch_index_open(struct row_batch_index **out,
                                 const struct layout *layout,
                                 struct failure *why) MUST_CHECK;

/* Frees *INDEX (may be NULL) and clears it; the layout may be gone. */
void row_batch_index_close(struct row_batch_index **index);

/* Over the tables of INDEX (borrowed). A zeroed BATCH may be closed. */
enum status row_batch_open(struct row_batch *batch,
                           struct row_batch_index *index,
                           struct failure *why) MUST_CHECK;
void row_batch_close(struct row_batch *batch);

/* Opens BATCH for a lookup of the rows at the COUNT places from FIRST on in
 * each partition, of TABLE's stack in LAYOUT: [num_partitions, COUNT,
 * ROW_FLOATS] `weights`, which are struct row. */
enum status row_batch_places(struct row_batch *batch,
                             const struct layout *layout, uint32_t table,
                             uint64_t first, uint32_t count,
                             struct failure *why) MUST_CHECK;

/* Empties BATCH. */
void row_batch_begin(struct row_batch *batch);

/* Adds COUNT ids of TABLE, of which any may be equal. */
enum status row_batch_add(struct row_batch *batch, uint32_t table,
                          const uint64_t *ids, size_t count,
                          struct failure *why) MUST_CHECK;

/* Orders the rows. FAILURE_JOB_TOO_LARGE if those of one partition are more
 * than a message has room for. */
enum status row_batch_finish(struct row_batch *batch,
                             struct failure *why) MUST_CHECK;

/* Adds the rows of FROM, which is finished. */
enum status row_batch_add_rows(struct row_batch *batch,
                               const struct row_batch *from,
                               struct failure *why) MUST_CHECK;

/* Copies the gradients of FROM's rows that BATCH has too, in place of their
 * weights there. Both are finished. */
void row_batch_copy_rows(struct row_batch *batch, const struct row_batch *from);

/* Sets all gradients to 0. */
void row_batch_clear_gradients(struct row_batch *batch);

/* Adds FROM's gradients to those of its rows in BATCH, which were added as the
 * FIRST ones and following; returns the number behind them. */
size_t row_batch_add_gradients(struct row_batch *batch, size_t first,
                               const struct row_batch *from);

#endif
