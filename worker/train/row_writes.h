/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of tables that a caller sets in a step, until they have left with
 * its push. Zeroed at first; one thread at a time. */
#ifndef CAPSTAN_ROW_WRITES_H
#define CAPSTAN_ROW_WRITES_H

#include "worker/exchange/client/row_batch.h"
#include "worker/train/external.h"

#include <stdbool.h>
#include <stdint.h>

enum { ROW_WRITES_BATCHES = 3 };

struct row_writes {
    struct written_rows *first, *last; /* of this step */
    /* Theirs, of the step before, and of the one before that. */
    struct row_batch batches[ROW_WRITES_BATCHES];
    int current;     /* number of theirs */
    uint64_t floats; /* of all of them */
    bool listed;     /* it has all of them */
};

void row_writes_close(struct row_writes *writes);

/* Adds ROWS, of DIM floats, which are copied. Of equal ids the last counts.
 * FAILURE_JOB_TOO_LARGE if a step writes more than a batch has room for. */
enum status row_writes_add(struct row_writes *writes, uint32_t dim,
                           const struct external_rows *rows,
                           struct failure *why) MUST_CHECK;

/* The step has written rows. */
bool row_writes_any(const struct row_writes *writes);

/* *BATCH has the step's rows, in place of gradients; over the tables of INDEX.
 * A view until the next write. */
enum status row_writes_list(struct row_writes *writes,
                            struct row_batch_index *index,
                            struct row_batch **batch,
                            struct failure *why) MUST_CHECK;

/* After row_writes_list: puts the rows that READ, which is looked up, has too
 * in place of its weights. */
void row_writes_overlay(const struct row_writes *writes,
                        struct row_batch *read);

/* Ends the step, whose batch is on its way if it has one; it stays as it is
 * until the second step after it ends, by when it has been taken. */
void row_writes_sent(struct row_writes *writes);

/* Forgets what the step has written. */
void row_writes_drop(struct row_writes *writes);

#endif
