/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of one stack of tables in one partition: weights and optimizer state
 * by table and 64-bit id. Rows lie in pages, which are counted buffers: a
 * snapshot holds them, and an update copies a page that is held. A row that is
 * not there has an initial value that follows from seed, table and id; only
 * updates create rows. Used by one thread at a time, as one block of the update
 * core is. */
#ifndef CAPSTAN_ROW_TABLE_H
#define CAPSTAN_ROW_TABLE_H

#include "core/base/status.h"
#include "core/net/shm/buffer.h"
#include "core/tensor/layout.h"
#include "core/tensor/optimizer.h"
#include "core/tensor/row_keys.h"
#include "core/tensor/rule.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How many rows a table has here, in all partitions, how many of them are
 * admitted, and how many have expired. */
struct row_table_count {
    atomic_uint_least64_t rows, admitted, expired;
    uint64_t most; /* 0: no limit */
};

/* All borrowed. */
struct row_table_options {
    const struct layout *layout;
    uint32_t stack; /* of the layout's */
    uint64_t seed;
    const struct optimizer *optimizer;
    const struct rule_loops *loops;
    struct row_table_count *counts; /* [num_tables] */
    struct buffer_pool *pool;       /* of pages; NULL: none */
    bool lists_removed;             /* for deltas (row_table_removed) */
};

struct row_table;

enum status row_table_open(struct row_table **out,
                           const struct row_table_options *options,
                           struct failure *why) MUST_CHECK;

/* Frees *TABLE (may be NULL) and clears it; pages that others hold stay. */
void row_table_close(struct row_table **table);

/* The number of a row that is not there. */
#define ROW_TABLE_NO_ROW UINT32_MAX

/* Fills WEIGHTS [count, dim] with the rows of KEYS: zero for those that are not
 * admitted; and NUMBERS [count] (may be NULL) with their numbers, by which an
 * update finds them faster. */
void row_table_lookup(const struct row_table *table,
                      const struct row_keys *keys, uint32_t *numbers,
                      float *weights);

/* Fills OUT [count, ROW_FLOATS] with the struct row at the places that KEYS has
 * in place of ids, from 0 on: ROW_NO_TABLE behind the last. A row's place
 * changes when rows are removed. */
void row_table_at(const struct row_table *table, const struct row_keys *keys,
                  float *out);

/* Prefetches TABLE itself, without its rows. */
void row_table_prefetch(const struct row_table *table);

/* Prefetches the first rows of KEYS, at NUMBERS as in row_table_update, or
 * their entries of the index. */
void row_table_prefetch_rows(const struct row_table *table,
                             const struct row_keys *keys,
                             const uint32_t *numbers);

/* One update of the rows of KEYS, which creates those that are not there. */
struct row_table_update {
    uint64_t step;      /* this partition's update number, from 1 */
    uint64_t rule_step; /* the rule's: Adam's t */
    double rate;
    const struct optimizer *optimizer; /* with the table's slots; NULL: its */
    float scale;
    const struct row_keys *keys;
    const uint32_t *numbers; /* [count], as an earlier lookup or none has filled
                                them, perhaps for other keys; NULL: none */
    const void *gradients;   /* floats [count, dim], any alignment, summed over
                                the trainers */
    const uint16_t *pushes; /* [count]: trainers that pushed the row; NULL: 1 */
};

/* A row that this admits begins with its initial value; until then gradients
 * only count. FAILURE_TABLE_FULL with the name and the limit if there is no
 * room for a row; FAILURE_LOSS_NOT_FINITE if a gradient is not finite;
 * STATUS_RETRY without memory. Rows before the one at fault are updated. */
enum status row_table_apply(struct row_table *table,
                            const struct row_table_update *update,
                            struct failure *why) MUST_CHECK;

/* In update STEP: sets the weights of the rows of KEYS to FLOATS [count, dim],
 * of any alignment. A row that is not there or not admitted is admitted, and
 * its state begins; the state of others stays. Fails as row_table_apply, but
 * for values. */
enum status row_table_assign(struct row_table *table,
                             const struct row_keys *keys, const void *floats,
                             uint64_t step, struct failure *why) MUST_CHECK;

/* In update STEP: removes rows that were last updated before BEFORE; returns
 * how many. */
uint64_t row_table_expire(struct row_table *table, uint64_t before,
                          uint64_t step);

/* The rows that were removed and not forgotten, with the number of the update
 * as `touched`: *COUNT struct row without floats, in no order, perhaps twice or
 * there again. A view; who holds it keeps these. NULL: none. */
struct buffer *row_table_removed(const struct row_table *table,
                                 uint32_t *count);

/* Forgets those that were removed before update STEP. */
void row_table_forget_removed(struct row_table *table, uint64_t step);

/* Adds ROW, of which only id and table are read, as removed in update STEP. */
enum status row_table_restore_removed(struct row_table *table,
                                      const struct row *row, uint64_t step,
                                      struct failure *why) MUST_CHECK;

/* All rows, and those of them that are admitted. */
uint64_t row_table_rows(const struct row_table *table, uint64_t *admitted);

/* Bytes of a row, with what stands before its floats. */
size_t row_table_row_bytes(const struct row_table *table);

/* A page's rows and bytes; all pages but the last are full. */
uint32_t row_table_page_rows(const struct row_table *table);
size_t row_table_page_bytes(const struct row_table *table);

/* How many pages it has. */
size_t row_table_num_pages(const struct row_table *table);

/* The pages, [*COUNT]: views. Who holds one before the next update keeps what
 * is in it now. */
struct buffer *const *row_table_pages(struct row_table *table, size_t *count);

/* Adds the ROWS rows at BYTES (8-byte aligned), of a stack with the same dim
 * and optimizer, that are in PARTITION and not yet here.
 * FAILURE_CHECKPOINT_DAMAGED: a row of no table of the stack; else as
 * row_table_apply. */
enum status row_table_restore(struct row_table *table, const void *bytes,
                              uint32_t rows, uint32_t partition,
                              struct failure *why) MUST_CHECK;

/* The first ROWS rows of PAGES [COUNT], held, for reading: a snapshot's. */
enum status row_table_open_held(struct row_table **out,
                                const struct row_table_options *options,
                                struct buffer *const *pages, size_t count,
                                uint32_t rows, struct failure *why) MUST_CHECK;

#endif
