/* SPDX-License-Identifier: Apache-2.0 */
/* How a block goes from one version to the next. A contribution is judged by
 * its clock alone: one that the ledger has is a copy and only answered, the
 * next one counts, any other is refused.
 *
 * Synchronous, a clock is the number of a round, and round v + 1 of a block at
 * version v closes when every live trainer of the view is in its row of the
 * ledger; with clipping it is summed then, and closes when the norm is known.
 * Blocks close on their own: nobody waits for a whole round. With staleness
 * each contribution is an update at once.
 *
 * Who may not read yet is kept as the newest request of its rank for the block;
 * there is no timer. Each event is followed by a look at what it may let go:
 * that block after a push, all of them after a view, a norm or the end of a
 * cut. Actions are queued in the order in which they have to be carried out, so
 * a snapshot stands between two updates. What was asked of the caller counts
 * here as done. */
#include "ps/consistency/update_core.h"

#include <stdlib.h>

/* A request for a block that could not be answered yet. */
struct reader {
    uint64_t clock, seq;
    bool waiting;
};

struct block_state {
    uint64_t version;           /* updates applied */
    uint32_t num_contributions; /* contributions of the open round */
    bool sum_requested;         /* its square sums were asked for */
    bool overflowed; /* the open round is, by gradients that overflowed at */
    double overflow_scale;               /* this scale */
    struct loss_scaler scaler, previous; /* after the last update, before it */
};

struct update_core {
    struct update_core_settings settings;
    struct gate gate;
    struct ledger ledger;
    struct block_state *blocks;
    struct reader *readers;  /* [num_blocks, num_ranks] */
    uint64_t highest;        /* highest version of any block */
    uint64_t limit;          /* no block closes above it */
    uint64_t snapshot_round; /* round of the asked cut, 0: none */
    uint64_t norm_round;     /* highest round whose norm is known */
    uint64_t lowest;         /* version of any block, when last looked at */
    bool has_leader;         /* a block waits for those behind it */
    bool recheck;            /* more rounds can perhaps be closed */
    struct update_core_action *actions;
    size_t first, count, capacity;
};

struct update_core *update_core_open(
    const struct update_core_settings *settings) {
    struct update_core *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->settings = *settings;
    x->highest = x->norm_round = settings->start;
    x->limit = UINT64_MAX;
    size_t blocks = settings->num_blocks, ranks = settings->num_ranks;
    x->capacity = blocks * (ranks + 3) + 1;
    x->blocks = calloc(blocks + 1, sizeof *x->blocks);
    x->readers = calloc(blocks * ranks + 1, sizeof *x->readers);
    x->actions = calloc(x->capacity, sizeof *x->actions);
    bool ledger =
        ledger_open(&x->ledger, settings->num_blocks, settings->num_ranks);
    bool gate = gate_open(&x->gate, settings->staleness, settings->num_ranks);
    if (!x->blocks || !x->readers || !x->actions || !ledger || !gate)
        update_core_close(&x);
    else
        for (size_t b = 0; b < blocks; b++)
            x->blocks[b] = (struct block_state){.version = settings->start,
                                                .scaler = settings->scaler,
                                                .previous = settings->scaler};
    if (x)
        x->ledger.by_rounds = settings->staleness == 0;
    return x;
}

void update_core_close(struct update_core **where) {
    struct update_core *x = *where;
    *where = NULL;
    if (!x)
        return;
    gate_close(&x->gate);
    ledger_close(&x->ledger);
    free(x->blocks);
    free(x->readers);
    free(x->actions);
    free(x);
}

/* At most one event's actions are queued: UPDATE, SUM and SNAPSHOT once a
 * block, REPLY once a reader, which is what `capacity` holds. */
static void update_core_enqueue(struct update_core *x,
                                struct update_core_action action) {
    x->actions[x->count++] = action;
}

static struct reader *reader_of(struct update_core *x, uint32_t b,
                                uint32_t rank) {
    return x->readers + (size_t)b * x->settings.num_ranks + rank;
}

static bool is_synchronous(const struct update_core *x) {
    return x->settings.staleness == 0;
}

/* Whoever waits is answered by the event that lets it: a push of its own, of
 * another, a closed round, a new view. */
static void reply_if_ready(struct update_core *x, uint32_t b, uint32_t rank) {
    struct reader *reader = reader_of(x, b, rank);
    uint64_t version = x->blocks[b].version;
    if (!reader->waiting ||
        !gate_may_read(&x->gate, &x->ledger, b, version, reader->clock))
        return;
    reader->waiting = false;
    update_core_enqueue(x,
                        (struct update_core_action){.kind = UPDATE_CORE_REPLY,
                                                    .block = b,
                                                    .rank = rank,
                                                    .version = version,
                                                    .clock = reader->clock,
                                                    .seq = reader->seq});
}

static void reply_all_ready(struct update_core *x, uint32_t b) {
    for (uint32_t r = 0; r < x->settings.num_ranks; r++)
        reply_if_ready(x, b, r);
}

/* The rule's step number counts what was applied, as if skipped steps had not
 * been. */
static void update_core_update(struct update_core *x, uint32_t b) {
    struct block_state *block = &x->blocks[b];
    block->version++;
    block->previous = block->scaler;
    if (block->overflowed)
        loss_scaler_overflow(&block->scaler, &x->settings.fp16,
                             block->overflow_scale);
    else
        loss_scaler_no_overflow(&block->scaler, &x->settings.fp16);
    if (block->version > x->highest)
        x->highest = block->version;
    update_core_enqueue(x, (struct update_core_action){
                               .kind = UPDATE_CORE_UPDATE,
                               .block = b,
                               .version = block->version,
                               .overflowed = block->overflowed,
                               .step = block->version - block->scaler.skipped,
                               .scaler = block->scaler,
                           });
    block->num_contributions = 0;
    block->sum_requested = block->overflowed = false;
}

/* In the queue it stands after the update to this version and before the next
 * one, so the block is held as it is at this version. */
static void update_core_snapshot(struct update_core *x, uint32_t b) {
    update_core_enqueue(
        x, (struct update_core_action){.kind = UPDATE_CORE_SNAPSHOT,
                                       .block = b,
                                       .version = x->blocks[b].version});
}

/* Is a block to be held as it is after ROUND: by the plan, or as the chief has
 * asked? */
static bool is_snapshot_round(const struct update_core *x, uint64_t round) {
    return round == x->snapshot_round ||
           (x->settings.planned &&
            x->settings.planned(x->settings.context, round));
}

/* Closes the block's open round if all is there that it needs. One that nobody
 * contributed to closes when only joiners live, who are awaited later: those
 * that it was begun with are dead, and the joiners wait for it. No block is
 * then ahead of another: a cut has one round after the other. */
static void try_close(struct update_core *x, uint32_t b) {
    struct block_state *block = &x->blocks[b];
    uint64_t round = block->version + 1;
    bool empty = !block->num_contributions;
    if ((empty && !gate_any_live(&x->gate)) || round > x->limit ||
        !gate_round_full(&x->gate, &x->ledger, b, round))
        return;
    if (empty && block->version > x->lowest) {
        x->has_leader = true;
        return;
    }
    if (x->settings.clip && x->norm_round < round) {
        if (!block->sum_requested)
            update_core_enqueue(x, (struct update_core_action){
                                       .kind = UPDATE_CORE_SUM,
                                       .block = b,
                                       .version = round,
                                       .overflowed = block->overflowed});
        block->sum_requested = true;
        return;
    }
    update_core_update(x, b);
    x->recheck |= gate_round_full(&x->gate, &x->ledger, b, round + 1);
    if (is_snapshot_round(x, round))
        update_core_snapshot(x, b);
    reply_all_ready(x, b);
}

static uint64_t lowest_version(const struct update_core *x) {
    uint64_t lowest = UINT64_MAX;
    for (uint32_t b = 0; b < x->settings.num_blocks; b++)
        if (x->blocks[b].version < lowest)
            lowest = x->blocks[b].version;
    return lowest;
}

/* After a change that may concern any block: a view, a norm, the end of a cut.
 * Blocks that closed may let those behind them close, hence `again`. */
static void recheck_all(struct update_core *x) {
    x->lowest = lowest_version(x);
    x->has_leader = false;
    for (uint32_t b = 0; b < x->settings.num_blocks; b++) {
        if (is_synchronous(x))
            try_close(x, b);
        else
            reply_all_ready(x, b);
    }
    x->recheck |= x->has_leader && lowest_version(x) > x->lowest;
}

bool update_core_next(struct update_core *x,
                      struct update_core_action *action) {
    while (x->first == x->count) {
        x->first = x->count = 0;
        if (!x->recheck)
            return false;
        x->recheck = false;
        recheck_all(x);
    }
    *action = x->actions[x->first++];
    return true;
}

void update_core_set_view(struct update_core *x, uint64_t number,
                          const struct gate_slot *slots) {
    x->gate.view = number;
    for (uint32_t r = 0; r < x->settings.num_ranks; r++) {
        if (slots[r].incarnation != x->gate.slots[r].incarnation)
            for (uint32_t b = 0; b < x->settings.num_blocks; b++)
                reader_of(x, b, r)->waiting = false;
        x->gate.slots[r] = slots[r];
    }
    recheck_all(x);
}

bool update_core_is_current(const struct update_core *x, uint32_t rank,
                            uint64_t incarnation) {
    return gate_is_current(&x->gate, rank, incarnation);
}

/* A late copy of an earlier request does not take the later one's place: who
 * has asked for more has had its answer. */
static void set_waiting(struct update_core *x, uint32_t b, uint32_t rank,
                        uint64_t clock, uint64_t seq) {
    struct reader *reader = reader_of(x, b, rank);
    if (!reader->waiting || reader->clock <= clock)
        *reader = (struct reader){clock, seq, true};
}

/* A contribution counts by its clock alone: one that the ledger has is a copy,
 * however it came here, and is only to be answered; any other than the next one
 * cannot be, and is refused. */
static enum update_core_result contribute(struct update_core *x, uint32_t b,
                                          uint32_t rank, uint64_t clock,
                                          uint64_t seq,
                                          const double *overflow_scale) {
    uint64_t incarnation = x->gate.slots[rank].incarnation;
    if (ledger_has(&x->ledger, b, rank, incarnation, clock)) {
        set_waiting(x, b, rank, clock, seq);
        reply_if_ready(x, b, rank);
        return UPDATE_CORE_DUPLICATE;
    }
    /* Synchronous, a round's contribution is awaited while the round is open,
     * also from who was not there for the one before. */
    uint64_t last = is_synchronous(x)
                        ? x->blocks[b].version
                        : gate_clock(&x->gate, &x->ledger, b, rank);
    if (clock != last + 1 || clock < x->gate.slots[rank].from)
        return UPDATE_CORE_REFUSED;
    ledger_record(&x->ledger, b, rank, incarnation, clock);
    set_waiting(x, b, rank, clock, seq);
    x->blocks[b].num_contributions++;
    if (overflow_scale) {
        x->blocks[b].overflowed = true;
        x->blocks[b].overflow_scale = *overflow_scale;
    }
    if (is_synchronous(x)) {
        try_close(x, b);
    } else {
        update_core_update(x, b);
        reply_all_ready(x, b);
    }
    return UPDATE_CORE_ACCEPTED;
}

enum update_core_result update_core_push(struct update_core *x, uint32_t b,
                                         uint32_t rank, uint64_t clock,
                                         uint64_t seq) {
    return contribute(x, b, rank, clock, seq, NULL);
}

enum update_core_result update_core_push_overflowed(struct update_core *x,
                                                    uint32_t b, uint32_t rank,
                                                    uint64_t clock,
                                                    uint64_t seq,
                                                    double overflow_scale) {
    return contribute(x, b, rank, clock, seq, &overflow_scale);
}

void update_core_pull(struct update_core *x, uint32_t b, uint32_t rank,
                      uint64_t clock, uint64_t seq) {
    set_waiting(x, b, rank, clock, seq);
    reply_if_ready(x, b, rank);
}

/* As a push that was sent again, without the bytes. */
bool update_core_query(struct update_core *x, uint32_t b, uint32_t rank,
                       uint64_t clock, uint64_t seq) {
    uint64_t incarnation = x->gate.slots[rank].incarnation;
    if (!ledger_has(&x->ledger, b, rank, incarnation, clock))
        return false;
    set_waiting(x, b, rank, clock, seq);
    reply_if_ready(x, b, rank);
    return true;
}

void update_core_set_norm(struct update_core *x, uint64_t round) {
    if (round > x->norm_round)
        x->norm_round = round;
    recheck_all(x);
}

/* The chief will choose the highest answer of all ps and one: no block has
 * passed that round by then, and none is kept from coming to it. */
uint64_t update_core_freeze(struct update_core *x) {
    if (x->limit == UINT64_MAX)
        x->limit = x->highest + 1;
    return x->limit - 1;
}

/* Blocks already at the round, which the freeze kept from going beyond it, are
 * held now; the others as they close it. */
void update_core_set_snapshot_round(struct update_core *x, uint64_t round) {
    x->limit = UINT64_MAX;
    x->snapshot_round = round;
    for (uint32_t b = 0; round && b < x->settings.num_blocks; b++)
        if (x->blocks[b].version == round)
            update_core_snapshot(x, b);
    recheck_all(x);
}

uint64_t update_core_version(const struct update_core *x, uint32_t b) {
    return x->blocks[b].version;
}

struct loss_scaler update_core_scaler(const struct update_core *x, uint32_t b,
                                      uint64_t version) {
    const struct block_state *block = &x->blocks[b];
    return version < block->version ? block->previous : block->scaler;
}

uint64_t update_core_highest(const struct update_core *x) {
    return x->highest;
}

void update_core_ledger_row(const struct update_core *x, uint32_t b,
                            uint64_t version, struct ledger_entry *row) {
    ledger_copy(&x->ledger, b, is_synchronous(x) ? version : UINT64_MAX, row);
}

uint32_t update_core_num_ranks(const struct update_core *x) {
    return x->settings.num_ranks;
}

struct ledger *update_core_ledger(struct update_core *x) {
    return &x->ledger;
}

const struct gate *update_core_gate(const struct update_core *x) {
    return &x->gate;
}
