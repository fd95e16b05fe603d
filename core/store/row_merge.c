/* SPDX-License-Identifier: Apache-2.0 */
/* In each partition the rows of a table ascend by id, so a heap of one cursor a
 * partition merges them (Knuth, TAOCP 5.4.1). */
#include "core/store/row_merge.h"

#include <stdbool.h>
#include <stdlib.h>

static void row_merge_sift_down(struct row_merge *merge, uint32_t at) {
    struct row_merge_cursor moved = merge->heap[at];
    for (uint32_t child; (child = 2 * at + 1) < merge->count; at = child) {
        const struct row_merge_cursor *heap = merge->heap;
        if (child + 1 < merge->count &&
            heap[child + 1].row->id < heap[child].row->id)
            child++;
        if (moved.row->id <= heap[child].row->id)
            break;
        merge->heap[at] = merge->heap[child];
    }
    merge->heap[at] = moved;
}

/* Moves CURSOR to its next row of the table; false: there is none. */
static bool advance_cursor(const struct row_merge *merge,
                           struct row_merge_cursor *cursor) {
    cursor->row = shard_rows_step(&cursor->rows);
    return cursor->row && cursor->row->table == merge->table;
}

enum status row_merge_open(struct row_merge *merge,
                           struct checkpoint_reader *reader,
                           const struct manifest *manifest, uint32_t table,
                           struct failure *why) {
    const struct layout *layout = manifest->layout;
    *merge = (struct row_merge){
        .table = table,
        .heap = calloc(layout->num_partitions, sizeof *merge->heap)};
    enum status status = STATUS_OK;
    if (!merge->heap)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory to merge rows");
    for (uint32_t p = 0; p < layout->num_partitions && !status; p++) {
        struct row_merge_cursor *cursor = &merge->heap[merge->count];
        struct shard_rows_pair rows;
        status = checkpoint_reader_rows(reader, p, layout->tables[table].stack,
                                        &rows, why);
        if (status)
            break;
        shard_rows_seek(&cursor->rows, &rows, table, 0);
        merge->count += advance_cursor(merge, cursor);
    }
    for (uint32_t c = merge->count / 2; c-- > 0 && !status;)
        row_merge_sift_down(merge, c);
    return status;
}

const struct row *row_merge_next(struct row_merge *merge) {
    if (!merge->count)
        return NULL;
    struct row_merge_cursor *first = &merge->heap[0];
    const struct row *row = first->row;
    if (!advance_cursor(merge, first))
        *first = merge->heap[--merge->count];
    if (merge->count)
        row_merge_sift_down(merge, 0);
    return row;
}

void row_merge_close(struct row_merge *merge) {
    free(merge->heap);
    merge->heap = NULL;
}
