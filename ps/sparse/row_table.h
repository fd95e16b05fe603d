/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of one table in one partition: weights and optimizer state by 64-bit
 * id. Rows lie in pages, which are counted buffers: a snapshot holds them, and
 * an update copies a page that is held. A row that is not there has an initial
 * value that follows from seed, table and id; only updates create rows. Used by
 * one thread at a time, as one block of the update core is. */
#ifndef CAPSTAN_ROW_TABLE_H
#define CAPSTAN_ROW_TABLE_H

#include "proto/base/status.h"
#include "proto/config/job/optimizer.h"
#include "proto/net/shm/buffer.h"
#include "proto/tensor/rule.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ROW_TABLE_MAX_DIM = 4096 };

struct row_table_options {
    const char *name; /* borrowed */
    uint64_t seed;
    uint32_t table;   /* number of the table in the model */
    uint32_t dim;     /* 1 .. ROW_TABLE_MAX_DIM floats */
    float init_bound; /* initial weights are uniform in [-bound, bound) */
    const struct optimizer *optimizer; /* borrowed */
    const struct rule_loops *loops;
    uint32_t admit;    /* updates that a row needs to be admitted; 0: none */
    uint64_t max_rows; /* 0: no limit; at most 2^32 - 2 */
};

struct row_table;

enum status row_table_open(struct row_table **out,
                           const struct row_table_options *options,
                           struct failure *why) MUST_CHECK;

/* Frees *TABLE (may be NULL) and clears it; pages that others hold stay. */
void row_table_close(struct row_table **table);

/* Fills WEIGHTS [count, dim] with the rows of IDS: zero for those that are not
 * admitted. */
void row_table_lookup(const struct row_table *table, const uint64_t *ids,
                      size_t count, float *weights);

/* One update of the rows of IDS, all different, which creates those that are
 * not there. */
struct row_table_update {
    uint64_t
        step; /* this partition's update number, from 1, as the t of Adam */
    double rate;
    float scale;
    size_t count;
    const uint64_t *ids;
    const float *gradients; /* [count, dim], summed over the trainers */
    const uint32_t *pushes; /* [count]: trainers that pushed the row; NULL: 1 */
};

/* A row that this admits begins with its initial value; until then gradients
 * only count. FAILURE_TABLE_FULL with the name and the limit if there is no
 * room for a row; FAILURE_NOT_FINITE if a gradient is not finite; STATUS_RETRY
 * without memory. Rows before the one at fault are updated. */
enum status row_table_apply(struct row_table *table,
                            const struct row_table_update *update,
                            struct failure *why) MUST_CHECK;

/* Removes rows that were last updated before STEP; returns how many. */
uint64_t row_table_expire(struct row_table *table, uint64_t step);

/* All rows, and those of them that are admitted. */
uint64_t row_table_rows(const struct row_table *table, uint64_t *admitted);

/* A page's rows and bytes; all pages but the last are full. */
uint32_t row_table_page_rows(const struct row_table *table);
size_t row_table_page_bytes(const struct row_table *table);

/* The pages, [*COUNT]: views. Who holds one keeps what is in it now. */
struct buffer *const *row_table_pages(const struct row_table *table,
                                      size_t *count);

/* Adds the first ROWS rows of BYTES, a page of a table with the same dim and
 * optimizer; ids that PARTITION does not take are left out. Fails as
 * row_table_apply. */
enum status row_table_restore(struct row_table *table, const void *bytes,
                              uint32_t rows,
                              bool (*partition)(void *context, uint64_t id),
                              void *context, struct failure *why) MUST_CHECK;

#endif
