/* SPDX-License-Identifier: Apache-2.0 */
/* The core of a ps: which contribution counts, when a block is updated, who is
 * answered. Pure: events in, actions out; no socket, no clock, no weights.
 * Blocks are those of this shard, numbered from 0 in the plan's order.
 *
 * After each event the caller carries out the actions in order
 * (update_core_next until false), then may give the next event. */
#ifndef CAPSTAN_UPDATE_CORE_H
#define CAPSTAN_UPDATE_CORE_H

#include "proto/tensor/loss_scaler.h"
#include "ps/consistency/gate.h"
#include "ps/consistency/ledger.h"

#include <stdbool.h>
#include <stdint.h>

struct update_core_settings {
    uint32_t num_blocks, num_ranks;
    uint64_t staleness;
    uint64_t start; /* version of every block at the start */
    bool clip;      /* synchronous: rounds wait for the global norm */
    struct job_fp16 fp16;
    struct loss_scaler scaler; /* of every block at the start */
    /* Synchronous: is a snapshot planned when ROUND closes? */
    bool (*planned)(const void *context, uint64_t round);
    const void *context;
};

enum update_core_kind {
    UPDATE_CORE_SUM,      /* block is complete: its square sums are wanted */
    UPDATE_CORE_UPDATE,   /* apply what is held for the block; now at `version`.
                          `voided`: nothing of it; also of SUM */
    UPDATE_CORE_SNAPSHOT, /* hold the block's buffers: it is at round `version`
                           */
    UPDATE_CORE_REPLY,    /* send the block to `rank`, for its request `seq` */
};

struct update_core_action {
    enum update_core_kind kind;
    uint32_t block, rank;
    uint64_t version, clock, seq;
    bool overflowed;
    uint64_t step;             /* UPDATE: those of the block that were applied,
                                  this one included */
    struct loss_scaler scaler; /* UPDATE: the block's from now on */
};

enum update_core_result {
    UPDATE_CORE_ACCEPTED,  /* counts: keep its bytes until the block's UPDATE */
    UPDATE_CORE_DUPLICATE, /* came before: answered, not applied; not even
                       answered while a later request of its sender waits */
    UPDATE_CORE_REFUSED    /* its clock is out of order */
};

struct update_core;

/* NULL: no memory. */
struct update_core *update_core_open(
    const struct update_core_settings *settings);

/* Frees *EXCHANGE (may be NULL) and clears it. */
void update_core_close(struct update_core **update_core);

/* The next action to carry out; false: all are. */
bool update_core_next(struct update_core *update_core,
                      struct update_core_action *action);

/* The view changed: all that is held is looked at again. A round that nobody
 * lives to contribute to closes without, for joiners who are awaited later. */
void update_core_set_view(struct update_core *update_core, uint64_t number,
                          const struct gate_slot *slots);

/* Is INCARNATION who holds RANK? Every push, pull and ask needs it first. */
bool update_core_is_current(const struct update_core *update_core,
                            uint32_t rank, uint64_t incarnation);

/* A contribution of RANK's CLOCK to BLOCK, to be answered as request SEQ. */
enum update_core_result update_core_push(struct update_core *update_core,
                                         uint32_t block, uint32_t rank,
                                         uint64_t clock, uint64_t seq);

/* The same of gradients that overflowed at loss scale AT: with synchronous
 * rounds nothing is applied of the round, else nothing of this push. All else
 * goes on as after any push. */
enum update_core_result update_core_push_overflowed(
    struct update_core *update_core, uint32_t block, uint32_t rank,
    uint64_t clock, uint64_t seq, double overflow_scale);

/* A read of BLOCK by a reader that has pushed CLOCK. */
void update_core_pull(struct update_core *update_core, uint32_t block,
                      uint32_t rank, uint64_t clock, uint64_t seq);

/* Was RANK's contribution of CLOCK to BLOCK taken? If so its answer, now or
 * later, goes to request SEQ; if not, it has to be sent again. */
bool update_core_query(struct update_core *update_core, uint32_t block,
                       uint32_t rank, uint64_t clock, uint64_t seq);

/* The global norm of ROUND is known (clip). */
void update_core_set_norm(struct update_core *update_core, uint64_t round);

/* Closes nothing above one more than the highest round closed, which it
 * returns, until the cut is told. */
uint64_t update_core_freeze(struct update_core *update_core);

/* The frozen cut is at ROUND: blocks are snapshot as they close it, or now
 * when they have. Lifts the freeze. ROUND 0 only lifts it (the cut falls on
 * a planned round). */
void update_core_set_snapshot_round(struct update_core *update_core,
                                    uint64_t round);

/* Updates that BLOCK has had, those before the run included. */
uint64_t update_core_version(const struct update_core *update_core,
                             uint32_t block);

/* BLOCK's loss scaler as its weights of VERSION, the present one or the one
 * before, have it. Saved with the block. */
struct loss_scaler update_core_scaler(const struct update_core *update_core,
                                      uint32_t block, uint64_t version);

/* The highest version of any block. */
uint64_t update_core_highest(const struct update_core *update_core);

/* BLOCK's ledger row as its weights of VERSION have it, num_ranks entries into
 * ROW: what was taken for a later round is not in it. Saved with the block. */
void update_core_ledger_row(const struct update_core *update_core,
                            uint32_t block, uint64_t version,
                            struct ledger_entry *row);

/* Ranks of the plan: entries of a row. */
uint32_t update_core_num_ranks(const struct update_core *update_core);

/* The ledger; view. */
struct ledger *update_core_ledger(struct update_core *update_core);

/* The gate with the view it has; view. */
const struct gate *update_core_gate(const struct update_core *update_core);

#endif
