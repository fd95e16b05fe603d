/* SPDX-License-Identifier: Apache-2.0 */
/* The partitions of one ps: in each the rows of all tables, a row_table for
 * each stack. One thread at a time works on a partition. */
#ifndef CAPSTAN_ROW_SHARD_H
#define CAPSTAN_ROW_SHARD_H

#include "core/base/status.h"
#include "core/rows/row_table.h"
#include "core/tensor/layout.h"
#include "core/tensor/optimizer.h"
#include "proto/holder/unit.h"
#include "proto/plan/optimizer_group.h"

#include <stddef.h>
#include <stdint.h>

/* All borrowed. */
struct row_shard_settings {
    const struct layout *layout;
    const uint32_t *ids; /* the layout's unit of each partition, ascending */
    uint32_t count;
    uint32_t num_parts; /* most trainers of a round */
    uint64_t seed;
    const struct optimizer *optimizer;    /* of tables that name none */
    const struct optimizer_group *groups; /* which tables name */
    const struct rule_loops *loops;
    bool deltas; /* checkpoints may have only what changed, */
    bool copies; /* and copies in memory */
};

struct row_shard;

enum status row_shard_open(struct row_shard **out,
                           const struct row_shard_settings *settings,
                           struct failure *why) MUST_CHECK;

/* Frees *SHARD (may be NULL) and clears it. */
void row_shard_close(struct row_shard **shard);

/* The rows that a part of a message lists, checked. */
struct row_list {
    struct row_keys *keys; /* [num_stacks] */
    uint32_t num_stacks;
    size_t size;       /* bytes of the lists in the message */
    size_t rows;       /* of all stacks */
    size_t floats;     /* of one row for each */
    uint32_t *numbers; /* [rows], of the stacks in order: row_table_lookup's */
    bool looked_up;    /* `numbers` is set */
    bool places; /* before it is read: ids are places, and floats a struct row
                    each */
    size_t room; /* of `numbers` */
};

/* Reads LIST, zeroed or read before, from BYTES [SIZE], received for partition
 * P: lists of its rows as row_keys.h has them, then nothing, or all floats if
 * FLOATS. FAILURE_BAD_MESSAGE; FAILURE_NO_MEMORY. One thread. */
enum status row_shard_read(const struct row_shard *shard, uint32_t p,
                           const void *bytes, size_t size, bool floats,
                           struct row_list *list,
                           struct failure *why) MUST_CHECK;

/* Frees LIST (may be zeroed) and clears it. */
void row_list_free(struct row_list *list);

/* As row_shard_read, of a part with floats, whose list is not kept. */
enum status row_shard_check(struct row_shard *shard, uint32_t p,
                            const void *bytes, size_t size,
                            struct failure *why) MUST_CHECK;

/* What a trainer has pushed to a partition: lists, then floats; checked. */
struct row_part {
    const void *bytes;
    size_t size;
    const struct row_list *list; /* of the same bytes, read; NULL: none */
};

/* Sets the rows of PART, checked, in partition P, which has had STEP updates.
 * Fails as row_table_assign. No update of P is under way. */
enum status row_shard_assign(struct row_shard *shard, uint32_t p,
                             const struct row_part *part, uint64_t step,
                             struct failure *why) MUST_CHECK;

/* An update then removes rows that have expired; it fails as row_table_apply.
 */
extern const struct unit_table row_shard_units;

/* Fills OUT with the rows of partition P that LIST has. HELD [num_stacks] to
 * read instead of the present rows; NULL: those, and LIST learns their numbers.
 */
void row_shard_lookup(const struct row_shard *shard, uint32_t p,
                      struct row_table *const *held, struct row_list *list,
                      float *out);

/* Prefetches the tables of partition P, without their rows. */
void row_shard_prefetch(const struct row_shard *shard, uint32_t p);

/* Prefetches the first rows of LIST in partition P if it was looked up, else
 * their entries of the index. Reads the tables, so call row_shard_prefetch well
 * before. */
void row_shard_prefetch_rows(const struct row_shard *shard, uint32_t p,
                             const struct row_list *list);

/* The number of partitions. */
uint32_t row_shard_partitions(const struct row_shard *shard);

/* There is a full checkpoint of snapshot ID: later deltas are against it. */
void row_shard_set_base(struct row_shard *shard, uint64_t id);

/* There is a whole copy in memory of snapshot ID, of STEP: later copies have
 * what changed since, in partitions that know of it. ID 0: they are whole. */
void row_shard_set_copy_base(struct row_shard *shard, uint64_t id,
                             uint64_t step);

/* Bytes of pages that only snapshots keep. */
size_t row_shard_copied_bytes(const struct row_shard *shard);

/* Bytes that LIST's rows take in partition P if none of them is there. */
uint64_t row_shard_list_bytes(const struct row_shard *shard, uint32_t p,
                              const struct row_list *list);

/* The rows of STACK in partition P; view. */
struct row_table *row_shard_table(const struct row_shard *shard, uint32_t p,
                                  uint32_t stack);

/* For row_table_open_held. */
struct row_table_options row_shard_options(const struct row_shard *shard,
                                           uint32_t stack);

/* Rows of TABLE on this ps. Any thread. */
uint64_t row_shard_rows(const struct row_shard *shard, uint32_t table);

/* Sets the rows of each table in HEARTBEAT, how many are admitted and how many
 * have expired: in COUNTS [ROW_SHARD_COUNTS, num_tables], which HEARTBEAT
 * borrows. Any thread. */
enum { ROW_SHARD_COUNTS = 3 };
void row_shard_report(const struct row_shard *shard, uint64_t *counts,
                      Capstan__Heartbeat *heartbeat);

/* Bytes of the rows of all tables, without their index. Any thread. */
uint64_t row_shard_bytes(const struct row_shard *shard);

#endif
