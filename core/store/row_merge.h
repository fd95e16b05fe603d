/* SPDX-License-Identifier: Apache-2.0 */
/* All rows of one table of a checkpoint, ascending by id, whatever partitions
 * and files they are in. */
#ifndef CAPSTAN_ROW_MERGE_H
#define CAPSTAN_ROW_MERGE_H

#include "core/store/checkpoint_reader.h"
#include "core/store/shard_rows.h"

#include <stdint.h>

struct row_merge {
    uint32_t table;
    uint32_t count; /* cursors that have a row */
    struct row_merge_cursor {
        struct shard_rows_cursor rows;
        const struct row *row; /* the next one */
    } * heap;                  /* the lowest id first */
};

/* Begins at the first row of TABLE. Borrows READER, which reads MANIFEST. Fails
 * as checkpoint_reader_rows; the caller closes *MERGE in every case. */
enum status row_merge_open(struct row_merge *merge,
                           struct checkpoint_reader *reader,
                           const struct manifest *manifest, uint32_t table,
                           struct failure *why) MUST_CHECK;

/* The row with the next id, admitted or not; NULL: the end. A view until the
 * reader closes. */
const struct row *row_merge_next(struct row_merge *merge);

void row_merge_close(struct row_merge *merge);

#endif
