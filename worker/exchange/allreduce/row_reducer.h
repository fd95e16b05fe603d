/* SPDX-License-Identifier: Apache-2.0 */
/* Tables in all-reduce: every rank has all rows. In each round the ranks gather
 * what each has pushed, and every rank applies all of it, partition by
 * partition and in rank order, as a ps does: with the same bits. Two threads
 * meet here, as in reducer.h: the compute thread looks rows up and pushes
 * gradients, the reducer's thread runs the rounds. */
#ifndef CAPSTAN_ROW_REDUCER_H
#define CAPSTAN_ROW_REDUCER_H

#include "core/base/status.h"
#include "core/tensor/schedule.h"
#include "proto/holder/row_shard.h"
#include "proto/plan/plan.h"
#include "worker/collective/group.h"
#include "worker/exchange/client/row_batch.h"
#include "worker/exchange/exchange.h"

#include <stdbool.h>
#include <stdint.h>

/* All borrowed. */
struct row_reducer_settings {
    const struct job *job;
    const struct plan *plan;
    const struct rule_loops *loops; /* NULL: the best for this CPU */
    uint32_t rank, num_ranks;
};

struct row_reducer;

/* Opens tables without rows. FAILURE_NO_MEMORY. */
enum status row_reducer_open(struct row_reducer **out,
                             const struct row_reducer_settings *settings,
                             struct failure *why) MUST_CHECK;

/* Clears *REDUCER (may be NULL). */
void row_reducer_close(struct row_reducer **reducer);

/* Any thread: ends every wait. */
void row_reducer_cancel(struct row_reducer *reducer);

/* row_shard_report of the rows. Any thread. */
void row_reducer_report(const struct row_reducer *reducer, uint64_t *counts,
                        Capstan__Heartbeat *heartbeat);

/* Seconds that the compute thread has waited, and that updates have taken. Any
 * thread. */
double row_reducer_waited(const struct row_reducer *reducer);
double row_reducer_update_seconds(const struct row_reducer *reducer);

/* FAIL is told of a lookup that fails; before the first one. */
void row_reducer_on_failure(struct row_reducer *reducer,
                            void (*fail)(void *context,
                                         const struct failure *why),
                            void *context);

/* The other ranks, to each of which a push goes. */
uint32_t row_reducer_peers(const struct row_reducer *reducer);

/* Any thread: later deltas are against snapshot ID. */
void row_reducer_set_base(struct row_reducer *reducer, uint64_t id);

/* Compute thread. As of the exchange; a lookup without CLOCK is of the rows
 * after the last push. */
void row_reducer_lookup(struct row_reducer *reducer, uint64_t clock,
                        struct row_batch *rows);
bool row_reducer_wait_rows(struct row_reducer *reducer, int64_t until);
bool row_reducer_push(struct row_reducer *reducer, uint64_t clock,
                      enum contribution kind, struct row_batch *rows);
void row_reducer_write(struct row_reducer *reducer, struct row_batch *rows);
bool row_reducer_wait_pushed(struct row_reducer *reducer, int64_t until);

/* Rank 0's rows to begin with, for which row_reducer_load waits if the plan's
 * tables have some and the run does not resume. */
void row_reducer_begin_with(struct row_reducer *reducer,
                            struct row_batch *rows);

/* The reducer's thread. */

/* A partition's numbers: the round, its update in it, and how many of its
 * updates the rule has counted. */
struct row_reducer_saved {
    uint64_t round, step, rule_step;
};

/* Rank 0's checkpoints, partition by partition. */
struct row_reducer_storage {
    void *context;
    /* Fills partition P of ROWS and *RULE_STEP from the checkpoint; NULL: there
     * is none. */
    enum status (*restore)(void *context, struct row_shard *rows, uint32_t p,
                           uint64_t *rule_step, struct failure *why);
    /* Partition P as it is after AS; holds what it needs. */
    enum status (*save)(void *context, const struct row_reducer_saved *as,
                        struct row_shard *rows, uint32_t p,
                        struct failure *why);
    /* Waits for the disk while copies of ROWS for checkpoints are at their
     * limit. */
    void (*await)(void *context, const struct row_shard *rows);
};

/* Before the first round: if the run resumes, all RANKS get the rows that
 * STORAGE restores on rank 0 (NULL on others), else those of
 * row_reducer_begin_with. */
enum status row_reducer_load(struct row_reducer *reducer, struct group *ranks,
                             const struct row_reducer_storage *storage,
                             struct failure *why) MUST_CHECK;

/* Below: a lost rank fails as in collective.h; bytes of another rank that do
 * not fit: FAILURE_BAD_MESSAGE; FAILURE_NO_MEMORY. */

/* Waits for this rank's push of ROUND, and gathers those of all RANKS. *PUSHED:
 * false: it was cancelled. */
enum status row_reducer_gather(struct row_reducer *reducer, struct group *ranks,
                               uint64_t round, bool *pushed,
                               struct failure *why) MUST_CHECK;

/* After row_reducer_gather: the sum of the squares of the mean gradients.
 * FAILURE_LOSS_NOT_FINITE: there is none. */
enum status row_reducer_square_sum(struct row_reducer *reducer, double *out,
                                   struct failure *why) MUST_CHECK;

/* How the gathered rows are applied; STORAGE as in row_reducer_load. Fails also
 * as row_table_apply. */
struct row_reducer_round {
    uint64_t round, step; /* STEP: without the skipped ones, from 1 */
    double rate;          /* of the run's optimizer */
    double factor;        /* of the tables' own rates */
    /* Of tables that name none, as the callers have set it; NULL: the plan's */
    const struct optimizer *optimizer;
    float clip;      /* factor of the mean gradient */
    bool overflowed; /* nothing is applied */
};
enum status row_reducer_apply(struct row_reducer *reducer,
                              const struct row_reducer_round *round,
                              const struct row_reducer_storage *storage,
                              struct failure *why) MUST_CHECK;

/* Hands all partitions, as they are after ROUND, to STORAGE. */
enum status row_reducer_save(struct row_reducer *reducer,
                             const struct row_reducer_storage *storage,
                             uint64_t round, uint64_t step,
                             struct failure *why) MUST_CHECK;

#endif
