/* SPDX-License-Identifier: Apache-2.0 */
/* The core of a ps: which contributions count, when a block is updated, which
 * requests are answered. Pure: events in, actions out; no socket, no clock, no
 * weights. Blocks are those of this shard, numbered from 0 in the plan's order.
 *
 * After each event the caller carries out the actions in order
 * (update_core_next until false), then gives the next event. */
#ifndef CAPSTAN_UPDATE_CORE_H
#define CAPSTAN_UPDATE_CORE_H

#include "core/tensor/loss_scaler.h"
#include "ps/consistency/gate.h"
#include "ps/consistency/ledger.h"

#include <stdbool.h>
#include <stdint.h>

struct update_core_settings {
    uint32_t num_blocks, num_ranks; /* partitions of tables included */
    uint64_t staleness;
    /* Synchronous: a round closes with its first num_ranks less so many
     * contributions, or, if fewer trainers are live, with all of theirs. */
    uint32_t backup_workers;
    uint64_t start; /* version of every block at the start */
    bool clip;      /* synchronous: a round waits for the global norm */
    /* Is BLOCK read only after update_core_assign? NULL: none is. */
    bool (*awaits_values)(const void *context, uint32_t block);
    /* Do the trainers keep BLOCK's weights (optimizer None), so that a snapshot
     * of it waits for update_core_assign? NULL: of none. */
    bool (*kept_by_trainers)(const void *context, uint32_t block);
    struct job_fp16 fp16;
    struct loss_scaler scaler; /* of every block at the start */
    /* Synchronous: is a snapshot planned when ROUND closes? */
    bool (*planned)(const void *context, uint64_t round);
    const void *context;
};

enum update_core_kind {
    UPDATE_CORE_SUM, /* the block's round is complete: compute its square sum */
    UPDATE_CORE_UPDATE,   /* apply the block's pending gradients, giving
                             `version`. `overflowed`: apply none; also set in SUM
                           */
    UPDATE_CORE_SNAPSHOT, /* hold the block's buffers, which are at `version` */
    UPDATE_CORE_REPLY,    /* send the block to `rank`, as the reply to request
                             `seq` */
    UPDATE_CORE_WANT,     /* ask `rank` for the block's weights of `version` */
    UPDATE_CORE_LOOKUP,   /* read the partition's rows for `rank`'s lookup `seq`
                           */
};

struct update_core_action {
    enum update_core_kind kind;
    uint32_t block, rank;
    uint64_t version, clock, seq;
    bool overflowed;
    bool late;     /* REPLY: the weights lack the contribution of `clock` */
    uint64_t step; /* UPDATE: updates applied to the block, this one included;
                      overflowed rounds do not count */
    uint64_t rule_step; /* UPDATE: those to which some rank brought bytes */
    struct loss_scaler scaler; /* UPDATE: the block's scaler after it */
};

enum update_core_result {
    UPDATE_CORE_ACCEPTED,  /* counts: keep its bytes until the block's UPDATE */
    UPDATE_CORE_DUPLICATE, /* already accepted: answered, not applied. Not even
                              answered while a later request of its sender
                              waits, or its block awaits its first values: then
                              it is asked for again */
    UPDATE_CORE_LATE,      /* its round has closed, or closes, without it:
                              answered once that has closed, not applied */
    UPDATE_CORE_REFUSED    /* its clock is out of order */
};

struct update_core;

/* NULL: no memory. */
struct update_core *update_core_open(
    const struct update_core_settings *settings);

/* Clears *CORE (may be NULL). */
void update_core_close(struct update_core **core);

/* The next action to carry out; false: none left. */
bool update_core_next(struct update_core *core,
                      struct update_core_action *action);

/* Installs view NUMBER, with one of SLOTS a rank, and rechecks every waiting
 * request and open round. If no trainer that the open round awaits is live, it
 * closes with what has arrived; with nothing, it closes empty as soon as a
 * later joiner is live, who must not wait for it. */
void update_core_set_view(struct update_core *core, uint64_t number,
                          const struct gate_slot *slots);

/* Does INCARNATION hold RANK? Check this before every push, pull and query. */
bool update_core_is_current(const struct update_core *core, uint32_t rank,
                            uint64_t incarnation);

/* RANK's contribution with CLOCK to BLOCK. Its reply goes to request SEQ. */
enum update_core_result update_core_push(struct update_core *core,
                                         uint32_t block, uint32_t rank,
                                         uint64_t clock, uint64_t seq);

/* The same of a contribution without bytes: its update is one that the rule
 * does not count, unless another rank brings bytes to the round. */
enum update_core_result update_core_push_without_bytes(struct update_core *core,
                                                       uint32_t block,
                                                       uint32_t rank,
                                                       uint64_t clock,
                                                       uint64_t seq);

/* A push whose gradients overflowed at OVERFLOW_SCALE. Synchronous: the whole
 * round is applied without gradients; else only this push is. Everything else
 * happens as after any push. */
enum update_core_result update_core_push_overflowed(
    struct update_core *core, uint32_t block, uint32_t rank, uint64_t clock,
    uint64_t seq, double overflow_scale);

/* RANK's initial weights of BLOCK, which awaits them, in place of its
 * contribution of CLOCK, the one before its first. Of a block that has weights
 * it is a read. Or the weights of round CLOCK that UPDATE_CORE_WANT asked for,
 * which are not answered. */
enum update_core_result update_core_assign(struct update_core *core,
                                           uint32_t block, uint32_t rank,
                                           uint64_t clock, uint64_t seq);

/* A read of BLOCK by a reader that has pushed CLOCK. */
void update_core_pull(struct update_core *core, uint32_t block, uint32_t rank,
                      uint64_t clock, uint64_t seq);

/* A lookup of rows of BLOCK, a partition, by a reader whose last push has
 * CLOCK. It may come before that push, and waits for it: what a trainer has
 * pushed it reads. An EARLY one waits for its last push but one, and for others
 * as if it had made the last. The newest lookup of a rank counts; it does not
 * take the place of the reply to its push. False: it is a late duplicate, as
 * one of a later clock waits. */
bool update_core_lookup(struct update_core *core, uint32_t block, uint32_t rank,
                        uint64_t clock, uint64_t seq, bool early);

/* Was RANK's contribution with CLOCK to BLOCK accepted, or is it late? If so,
 * its reply goes to request SEQ, now or later. If not, the sender must send it
 * again. */
bool update_core_query(struct update_core *core, uint32_t block, uint32_t rank,
                       uint64_t clock, uint64_t seq);

/* The global norm of ROUND is known (clip). */
void update_core_set_norm(struct update_core *core, uint64_t round);

/* Closes no round above the highest closed one plus one, and not that one if it
 * is planned, until update_core_set_snapshot_round. Returns the highest closed
 * round. */
uint64_t update_core_freeze(struct update_core *core);

/* Takes the snapshot at ROUND and lifts the freeze: each block is held when it
 * closes ROUND, or now if it has. ROUND 0 only lifts the freeze (the snapshot
 * falls on a planned round). */
void update_core_set_snapshot_round(struct update_core *core, uint64_t round);

/* The round of a requested snapshot; while it is not known, the lowest that it
 * can be, which this ps closes if it is; 0: none. So whoever reads the block at
 * that round learns of the snapshot. */
uint64_t update_core_due(const struct update_core *core);

/* Takes the snapshot of each block as it is; of one that awaits its first
 * values, when it has them. */
void update_core_hold_now(struct update_core *core);

/* Repeats UPDATE_CORE_WANT for each block that waits for weights; false: none
 * does. */
bool update_core_want_again(struct update_core *core);

/* BLOCK's version, counting updates before this run. */
uint64_t update_core_version(const struct update_core *core, uint32_t block);

/* BLOCK's loss scaler at VERSION, its present version or the one before. Saved
 * with the block. */
struct loss_scaler update_core_scaler(const struct update_core *core,
                                      uint32_t block, uint64_t version);

/* The rule's step number of BLOCK at VERSION, as update_core_scaler. */
uint64_t update_core_rule_step(const struct update_core *core, uint32_t block,
                               uint64_t version);

/* Before the first push: BLOCK's rule goes on from STEP, that of a checkpoint.
 */
void update_core_set_rule_step(struct update_core *core, uint32_t block,
                               uint64_t step);

/* The highest version of any block to which a trainer brought bytes, or an
 * overflow; 0: none in this run. */
uint64_t update_core_brought(const struct update_core *core);

/* The highest version of any block. */
uint64_t update_core_highest(const struct update_core *core);

/* Copies BLOCK's ledger row at VERSION into ROW[num_ranks]: contributions to a
 * later round are left out. Saved with the block. */
void update_core_ledger_row(const struct update_core *core, uint32_t block,
                            uint64_t version, struct ledger_entry *row);

/* The ledger, borrowed. */
struct ledger *update_core_ledger(struct update_core *core);

/* Synchronous: does the lowest round that is open, *ROUND, wait for RANK's
 * contribution to some block? */
bool update_core_awaits(const struct update_core *core, uint32_t rank,
                        uint64_t *round);

/* With a bound of staleness: sets MARKS[num_ranks] of who is so far ahead that
 * a request of it waits, and of the live ones that it waits for, which have not
 * pushed *STEP. False: no request waits so. */
enum { UPDATE_CORE_AHEAD = 1, UPDATE_CORE_BEHIND = 2 };
bool update_core_waits(struct update_core *core, uint8_t *marks,
                       uint64_t *step);

/* The gate with the current view, borrowed. */
const struct gate *update_core_gate(const struct update_core *core);

#endif
