/* SPDX-License-Identifier: Apache-2.0 */
/* The core of a ps: which contribution counts, when a block is updated, who is
 * answered. Pure: events in, actions out; no socket, no clock, no weights.
 * Blocks are those of this shard, numbered from 0 in the plan's order.
 *
 * After each event the caller carries out the actions in order
 * (exchange_next until false), then may give the next event. */
#ifndef CAPSTAN_EXCHANGE_H
#define CAPSTAN_EXCHANGE_H

#include "proto/tensor/loss_scaler.h"
#include "ps/consistency/gate.h"
#include "ps/consistency/ledger.h"

#include <stdbool.h>
#include <stdint.h>

struct exchange_settings {
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

enum exchange_kind {
    EXCHANGE_SUM,      /* block is complete: its square sums are wanted */
    EXCHANGE_UPDATE,   /* apply what is held for the block; now at `version`.
                          `voided`: nothing of it; also of SUM */
    EXCHANGE_SNAPSHOT, /* hold the block's buffers: it is at round `version` */
    EXCHANGE_REPLY,    /* send the block to `rank`, for its request `seq` */
};

struct exchange_action {
    enum exchange_kind kind;
    uint32_t block, rank;
    uint64_t version, clock, seq;
    bool voided;
    uint64_t step;             /* UPDATE: those of the block that were applied,
                                  this one included */
    struct loss_scaler scaler; /* UPDATE: the block's from now on */
};

enum exchange_verdict {
    EXCHANGE_TAKEN,  /* counts: keep its bytes until the block's UPDATE */
    EXCHANGE_KNOWN,  /* came before: answered, not applied; not even answered
                        while a later request of its sender waits */
    EXCHANGE_REFUSED /* its clock is out of order */
};

struct exchange;

/* NULL: no memory. */
struct exchange *exchange_open(const struct exchange_settings *settings);

/* Frees *EXCHANGE (may be NULL) and clears it. */
void exchange_close(struct exchange **exchange);

/* The next action to carry out; false: all are. */
bool exchange_next(struct exchange *exchange, struct exchange_action *action);

/* The view changed: all that is held is looked at again. A round that nobody
 * lives to contribute to closes without, for joiners who are awaited later. */
void exchange_view(struct exchange *exchange, uint64_t number,
                   const struct gate_slot *slots);

/* Is INCARNATION who holds RANK? Every push, pull and ask needs it first. */
bool exchange_knows(const struct exchange *exchange, uint32_t rank,
                    uint64_t incarnation);

/* A contribution of RANK's CLOCK to BLOCK, to be answered as request SEQ. */
enum exchange_verdict exchange_push(struct exchange *exchange, uint32_t block,
                                    uint32_t rank, uint64_t clock,
                                    uint64_t seq);

/* The same of gradients that overflowed at loss scale AT: with synchronous
 * rounds nothing is applied of the round, else nothing of this push. All else
 * goes on as after any push. */
enum exchange_verdict exchange_void(struct exchange *exchange, uint32_t block,
                                    uint32_t rank, uint64_t clock, uint64_t seq,
                                    double at);

/* A read of BLOCK by a reader that has pushed CLOCK. */
void exchange_pull(struct exchange *exchange, uint32_t block, uint32_t rank,
                   uint64_t clock, uint64_t seq);

/* Was RANK's contribution of CLOCK to BLOCK taken? If so its answer, now or
 * later, goes to request SEQ; if not, it has to be sent again. */
bool exchange_ask(struct exchange *exchange, uint32_t block, uint32_t rank,
                  uint64_t clock, uint64_t seq);

/* The global norm of ROUND is known (clip). */
void exchange_norm(struct exchange *exchange, uint64_t round);

/* Closes nothing above one more than the highest round closed, which it
 * returns, until the cut is told. */
uint64_t exchange_freeze(struct exchange *exchange);

/* The frozen cut is at ROUND: blocks are snapshot as they close it, or now
 * when they have. Lifts the freeze. ROUND 0 only lifts it (the cut falls on
 * a planned round). */
void exchange_cut(struct exchange *exchange, uint64_t round);

/* Updates that BLOCK has had, those before the run included. */
uint64_t exchange_version(const struct exchange *exchange, uint32_t block);

/* BLOCK's loss scaler as its weights of VERSION, the present one or the one
 * before, have it. Saved with the block. */
struct loss_scaler exchange_scaler(const struct exchange *exchange,
                                   uint32_t block, uint64_t version);

/* The highest version of any block. */
uint64_t exchange_highest(const struct exchange *exchange);

/* BLOCK's ledger row as its weights of VERSION have it, num_ranks entries into
 * ROW: what was taken for a later round is not in it. Saved with the block. */
void exchange_row(const struct exchange *exchange, uint32_t block,
                  uint64_t version, struct ledger_entry *row);

/* Ranks of the plan: entries of a row. */
uint32_t exchange_ranks(const struct exchange *exchange);

/* The ledger; view. */
struct ledger *exchange_ledger(struct exchange *exchange);

/* The gate with the view it has; view. */
const struct gate *exchange_gate(const struct exchange *exchange);

#endif
