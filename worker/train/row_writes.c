/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/row_writes.h"

#include "core/tensor/row_keys.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Of one call. */
struct written_rows {
    struct written_rows *next;
    uint32_t table, dim;
    size_t count;
    uint64_t *ids;
    float *values; /* [count, dim], in the same allocation */
};

void row_writes_drop(struct row_writes *writes) {
    for (struct written_rows *next; writes->first; writes->first = next) {
        next = writes->first->next;
        free(writes->first);
    }
    writes->last = NULL;
    writes->floats = 0;
    writes->listed = false;
}

void row_writes_close(struct row_writes *writes) {
    row_writes_drop(writes);
    for (int i = 0; i < ROW_WRITES_BATCHES; i++)
        row_batch_close(&writes->batches[i]);
}

enum status row_writes_add(struct row_writes *writes, uint32_t dim,
                           const struct external_rows *rows,
                           struct failure *why) {
    size_t ids = rows->count * sizeof(uint64_t);
    size_t values = rows->count * dim * sizeof(float);
    if (!rows->count)
        return STATUS_OK;
    if (rows->count > UINT32_MAX / dim ||
        writes->floats + (uint64_t)rows->count * dim > UINT32_MAX)
        return status_fail(why, FAILURE_JOB_TOO_LARGE,
                           "a step writes %zu rows of %" PRIu32
                           " floats after %" PRIu64 " floats; 2^32 - 1 at most",
                           rows->count, dim, writes->floats);
    struct written_rows *own = malloc(sizeof *own + ids + values);
    if (!own)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for %zu rows of a table", rows->count);
    *own = (struct written_rows){
        .table = rows->table, .dim = dim, .count = rows->count};
    own->ids = (uint64_t *)(own + 1);
    own->values = (float *)(own->ids + rows->count);
    memcpy(own->ids, rows->ids, ids);
    memcpy(own->values, rows->values, values);
    *(writes->last ? &writes->last->next : &writes->first) = own;
    writes->last = own;
    writes->floats += (uint64_t)rows->count * dim;
    writes->listed = false;
    return STATUS_OK;
}

bool row_writes_any(const struct row_writes *writes) {
    return writes->first;
}

/* The values of all writes, in their order, to the rows of BATCH. */
static void copy_values(const struct written_rows *writes,
                        struct row_batch *batch) {
    const uint32_t *positions = batch->positions;
    for (const struct written_rows *w = writes; w; w = w->next)
        for (size_t k = 0; k < w->count; k++)
            memcpy(batch->gradients + *positions++, w->values + k * w->dim,
                   w->dim * sizeof(float));
}

enum status row_writes_list(struct row_writes *writes,
                            struct row_batch_index *index,
                            struct row_batch **out, struct failure *why) {
    struct row_batch *batch = *out = &writes->batches[writes->current];
    enum status status = STATUS_OK;
    if (writes->listed)
        return STATUS_OK;
    if (!batch->parts)
        status = row_batch_open(batch, index, why);
    if (status)
        return status;
    row_batch_begin(batch);
    for (const struct written_rows *w = writes->first; !status && w;
         w = w->next)
        status = row_batch_add(batch, w->table, w->ids, w->count, why);
    if (!status)
        status = row_batch_finish(batch, why);
    if (status)
        return status;
    copy_values(writes->first, batch);
    writes->listed = true;
    return STATUS_OK;
}

void row_writes_overlay(const struct row_writes *writes,
                        struct row_batch *read) {
    row_batch_copy_rows(read, &writes->batches[writes->current]);
}

void row_writes_sent(struct row_writes *writes) {
    writes->current = (writes->current + 1) % ROW_WRITES_BATCHES;
    row_batch_close(&writes->batches[writes->current]);
    row_writes_drop(writes);
}
