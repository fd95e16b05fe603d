/* SPDX-License-Identifier: Apache-2.0 */
/* How a block goes from one version to the next. A contribution is judged by
 * its clock alone: a clock that the ledger has is a duplicate and only
 * answered, the next clock counts, any other is refused.
 *
 * Synchronous: a clock is a round number. Round v + 1 of a block at version v
 * closes when every live trainer of the view has contributed. With clipping,
 * the complete round is first summed and closes when the global norm is known.
 * Blocks close independently. With backup workers a round closes with its first
 * contributions; one of a closed round is late, which the clock tells, as of a
 * duplicate. With staleness each contribution is applied at once.
 *
 * A request that may not read yet is kept, the newest for each rank and block;
 * there is no timer. After each event the core rechecks what it may unblock:
 * that block after a push, all blocks after a view, a norm or a snapshot
 * command. Actions are queued in execution order, so a snapshot stands between
 * two updates. The core counts an action as done once it is queued.
 *
 * Where the trainers keep the weights, a block that is due for a snapshot asks
 * the lowest live rank for those of its round, and again after a view or a
 * query, as that rank may be another by then. Until they are here the block
 * closes no further round: so every trainer still has them. */
#include "ps/consistency/update_core.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A request that waits for a block's next version. */
struct reader {
    uint64_t clock, seq;
    bool waiting, early;
};

struct block_state {
    uint64_t version;   /* updates applied */
    uint64_t rule_step; /* those to which some rank brought bytes */
    uint64_t previous_rule_step;
    uint32_t num_contributions; /* to the open round */
    bool sum_requested;         /* SUM is queued for the open round */
    bool awaits_values;         /* nobody reads it yet */
    bool held_then;             /* a snapshot takes it once it has values */
    bool kept;                  /* by the trainers */
    bool wanted;                /* its weights of `version` */
    uint64_t stored;            /* version of the weights here, if `kept` */
    bool has_bytes;             /* a contribution to the open round has */
    bool overflowed;       /* the open round has gradients that overflowed */
    double overflow_scale; /* loss scale at which they did */
    struct loss_scaler scaler, previous; /* after the last update, before it */
};

struct update_core {
    struct update_core_settings settings;
    uint32_t enough; /* contributions that close a round; UINT32_MAX: those of
                        all live trainers alone */
    struct gate gate;
    struct ledger ledger;
    struct block_state *blocks;
    struct reader *readers;  /* [num_blocks, num_ranks, 2] */
    uint64_t highest;        /* highest version of any block, */
    uint64_t brought;        /* and of one that had bytes, or an overflow */
    uint64_t limit;          /* no block closes a round above it */
    uint64_t asked;          /* with a limit: lowest round of the snapshot */
    uint64_t snapshot_round; /* round of the requested snapshot; 0: none */
    uint64_t norm_round;     /* highest round whose norm is known */
    uint64_t lowest;   /* lowest version of any block at the last recheck */
    bool has_deferred; /* an empty round waits for the blocks behind it */
    bool recheck;      /* more rounds may be ready to close */
    struct update_core_action *actions;
    size_t first, count, capacity;
};

struct update_core *update_core_open(
    const struct update_core_settings *settings) {
    struct update_core *x = calloc(1, sizeof *x);
    assert(!settings->backup_workers ||
           (!settings->staleness &&
            settings->backup_workers < settings->num_ranks));
    if (!x)
        return NULL;
    x->settings = *settings;
    x->highest = x->norm_round = settings->start;
    x->limit = UINT64_MAX;
    x->enough = settings->backup_workers
                    ? settings->num_ranks - settings->backup_workers
                    : UINT32_MAX;
    size_t blocks = settings->num_blocks, ranks = settings->num_ranks;
    x->capacity = blocks * (2 * ranks + 4) + 1;
    x->blocks = calloc(blocks + 1, sizeof *x->blocks);
    x->readers = calloc(2 * blocks * ranks + 1, sizeof *x->readers);
    x->actions = calloc(x->capacity, sizeof *x->actions);
    bool ledger =
        ledger_open(&x->ledger, settings->num_blocks, settings->num_ranks);
    bool gate = gate_open(&x->gate, settings->staleness, settings->num_ranks);
    if (!x->blocks || !x->readers || !x->actions || !ledger || !gate)
        update_core_close(&x);
    else
        for (uint32_t b = 0; b < settings->num_blocks; b++)
            x->blocks[b] = (struct block_state){
                .version = settings->start,
                .scaler = settings->scaler,
                .previous = settings->scaler,
                .awaits_values = settings->awaits_values &&
                                 settings->awaits_values(settings->context, b),
                .stored = settings->start,
                .kept = settings->kept_by_trainers &&
                        settings->kept_by_trainers(settings->context, b)};
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

/* `capacity` covers one event: UPDATE, SUM, SNAPSHOT and WANT once a block,
 * REPLY and LOOKUP once a rank. */
static void update_core_enqueue(struct update_core *x,
                                struct update_core_action action) {
    x->actions[x->count++] = action;
}

static struct reader *reader_of(struct update_core *x, uint32_t b,
                                uint32_t rank) {
    return x->readers + 2 * ((size_t)b * x->settings.num_ranks + rank);
}

/* RANK's lookup of rows, if BLOCK is a partition. */
static struct reader *lookup_of(struct update_core *x, uint32_t b,
                                uint32_t rank) {
    return reader_of(x, b, rank) + 1;
}

static bool is_synchronous(const struct update_core *x) {
    return x->settings.staleness == 0;
}

/* A read of weights that are on their way from a trainer; pushes are answered
 * by the mean. */
static bool awaits_stored(const struct update_core *x, uint32_t b,
                          uint32_t rank, uint64_t clock) {
    return x->blocks[b].wanted && clock < x->gate.slots[rank].from;
}

/* Does the contribution of CLOCK come after those with which its round closes?
 * While a snapshot is agreed on, a round that has enough may still be open. */
static bool core_is_late(const struct update_core *x, uint32_t b, uint32_t rank,
                         uint64_t clock) {
    const struct block_state *block = &x->blocks[b];
    uint64_t closing = block->version + (block->num_contributions >= x->enough);
    return x->enough < UINT32_MAX && clock <= closing &&
           clock >= x->gate.slots[rank].from &&
           !ledger_has(&x->ledger, b, rank, x->gate.slots[rank].incarnation,
                       clock);
}

/* Replies to a waiting request if the gate lets it read. */
static void reply_if_ready(struct update_core *x, uint32_t b, uint32_t rank) {
    struct reader *reader = reader_of(x, b, rank);
    uint64_t version = x->blocks[b].version;
    if (!reader->waiting || x->blocks[b].awaits_values ||
        awaits_stored(x, b, rank, reader->clock) ||
        !gate_may_read(&x->gate, &x->ledger, b, version, reader->clock))
        return;
    reader->waiting = false;
    update_core_enqueue(x,
                        (struct update_core_action){
                            .kind = UPDATE_CORE_REPLY,
                            .block = b,
                            .rank = rank,
                            .version = version,
                            .clock = reader->clock,
                            .seq = reader->seq,
                            .late = core_is_late(x, b, rank, reader->clock)});
}

static void look_up_if_ready(struct update_core *x, uint32_t b, uint32_t rank) {
    struct reader *lookup = lookup_of(x, b, rank);
    uint64_t version = x->blocks[b].version;
    if (!lookup->waiting || x->blocks[b].awaits_values ||
        gate_clock(&x->gate, &x->ledger, b, rank) + lookup->early <
            lookup->clock ||
        !gate_may_read(&x->gate, &x->ledger, b, version, lookup->clock))
        return;
    lookup->waiting = false;
    update_core_enqueue(x,
                        (struct update_core_action){.kind = UPDATE_CORE_LOOKUP,
                                                    .block = b,
                                                    .rank = rank,
                                                    .version = version,
                                                    .clock = lookup->clock,
                                                    .seq = lookup->seq});
}

static void reply_all_ready(struct update_core *x, uint32_t b) {
    for (uint32_t r = 0; r < x->settings.num_ranks; r++) {
        reply_if_ready(x, b, r);
        look_up_if_ready(x, b, r);
    }
}

/* The rule's step number leaves out updates without gradients: skipped ones, as
 * if they had not happened, and those to which no rank brought bytes, as torch
 * does with a gradient of None. */
static void update_core_update(struct update_core *x, uint32_t b) {
    struct block_state *block = &x->blocks[b];
    block->version++;
    block->previous = block->scaler;
    block->previous_rule_step = block->rule_step;
    block->rule_step += block->has_bytes && !block->overflowed;
    if (block->overflowed)
        loss_scaler_overflow(&block->scaler, &x->settings.fp16,
                             block->overflow_scale);
    else
        loss_scaler_no_overflow(&block->scaler, &x->settings.fp16);
    if (block->version > x->highest)
        x->highest = block->version;
    bool brought = block->has_bytes || block->overflowed;
    if (brought && block->version > x->brought)
        x->brought = block->version;
    update_core_enqueue(x, (struct update_core_action){
                               .kind = UPDATE_CORE_UPDATE,
                               .block = b,
                               .version = block->version,
                               .overflowed = block->overflowed,
                               .step = block->version - block->scaler.skipped,
                               .rule_step = block->rule_step,
                               .scaler = block->scaler,
                           });
    block->num_contributions = 0;
    block->sum_requested = block->has_bytes = block->overflowed = false;
}

/* The rank that has contributed to BLOCK's last round, and so has its weights:
 * the lowest live one, else the lowest. UINT32_MAX: none. */
static uint32_t holder_of_weights(const struct update_core *x, uint32_t b) {
    uint64_t version = x->blocks[b].version;
    uint32_t rank_with = UINT32_MAX;
    for (uint32_t r = x->settings.num_ranks; r-- > 0;) {
        const struct gate_slot *slot = &x->gate.slots[r];
        bool live = rank_with < UINT32_MAX && x->gate.slots[rank_with].live;
        if (slot->incarnation && (slot->live || !live) &&
            ledger_has(&x->ledger, b, r, slot->incarnation, version))
            rank_with = r;
    }
    return rank_with;
}

static void want_weights(struct update_core *x, uint32_t b) {
    uint32_t rank_with = holder_of_weights(x, b);
    x->blocks[b].wanted = true;
    if (rank_with < UINT32_MAX)
        update_core_enqueue(
            x, (struct update_core_action){.kind = UPDATE_CORE_WANT,
                                           .block = b,
                                           .rank = rank_with,
                                           .version = x->blocks[b].version});
}

/* The queue places it after the update to this version and before the next one,
 * so the caller holds the block at this version. */
static void update_core_snapshot(struct update_core *x, uint32_t b) {
    if (x->blocks[b].kept && x->blocks[b].stored < x->blocks[b].version) {
        want_weights(x, b);
        return;
    }
    update_core_enqueue(
        x, (struct update_core_action){.kind = UPDATE_CORE_SNAPSHOT,
                                       .block = b,
                                       .version = x->blocks[b].version});
}

static bool is_planned(const struct update_core *x, uint64_t round) {
    return x->settings.planned &&
           x->settings.planned(x->settings.context, round);
}

/* Has the open round of block B all contributions that it closes with? */
static bool is_full(const struct update_core *x, uint32_t b) {
    const struct block_state *block = &x->blocks[b];
    return block->num_contributions >= x->enough ||
           gate_round_full(&x->gate, &x->ledger, b, block->version + 1);
}

/* Closes the block's open round if it is complete. An empty round closes when
 * only later joiners are live: its own trainers are dead, and the joiners wait
 * for it. A block with an empty round first waits for the blocks behind it, so
 * that no block runs ahead of a snapshot round. */
static void try_close(struct update_core *x, uint32_t b) {
    struct block_state *block = &x->blocks[b];
    uint64_t round = block->version + 1;
    bool empty = !block->num_contributions;
    if ((empty && !gate_any_live(&x->gate)) || round > x->limit ||
        block->wanted || !is_full(x, b))
        return;
    if (empty && block->version > x->lowest) {
        x->has_deferred = true;
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
    x->recheck |= is_full(x, b);
    if (round == x->snapshot_round || is_planned(x, round))
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

/* After a change that may affect any block: a view, a norm, a snapshot command.
 * A closed round may unblock the blocks that waited for it, hence `recheck`. */
static void recheck_all(struct update_core *x) {
    x->lowest = lowest_version(x);
    x->has_deferred = false;
    for (uint32_t b = 0; b < x->settings.num_blocks; b++) {
        if (is_synchronous(x))
            try_close(x, b);
        else
            reply_all_ready(x, b);
    }
    x->recheck |= x->has_deferred && lowest_version(x) > x->lowest;
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

bool update_core_want_again(struct update_core *x) {
    bool any = false;
    for (uint32_t b = 0; b < x->settings.num_blocks; b++) {
        if (x->blocks[b].wanted)
            want_weights(x, b);
        any |= x->blocks[b].wanted;
    }
    return any;
}

void update_core_set_view(struct update_core *x, uint64_t number,
                          const struct gate_slot *slots) {
    x->gate.view = number;
    for (uint32_t r = 0; r < x->settings.num_ranks; r++) {
        /* Requests of the rank's previous incarnation are void. */
        if (slots[r].incarnation != x->gate.slots[r].incarnation)
            for (uint32_t b = 0; b < x->settings.num_blocks; b++) {
                reader_of(x, b, r)->waiting = false;
                lookup_of(x, b, r)->waiting = false;
            }
        x->gate.slots[r] = slots[r];
    }
    (void)update_core_want_again(x);
    recheck_all(x);
}

bool update_core_is_current(const struct update_core *x, uint32_t rank,
                            uint64_t incarnation) {
    return gate_is_current(&x->gate, rank, incarnation);
}

/* A late duplicate does not replace a later request: a sender that has asked
 * for a later clock has had the earlier reply. */
static void set_waiting(struct update_core *x, uint32_t b, uint32_t rank,
                        uint64_t clock, uint64_t seq) {
    struct reader *reader = reader_of(x, b, rank);
    if (!reader->waiting || reader->clock <= clock)
        *reader = (struct reader){.clock = clock, .seq = seq, .waiting = true};
}

/* What a contribution is. */
struct contributed {
    bool bytes, overflowed;
    double overflow_scale;
};

static enum update_core_result contribute(struct update_core *x, uint32_t b,
                                          uint32_t rank, uint64_t clock,
                                          uint64_t seq,
                                          struct contributed with) {
    uint64_t incarnation = x->gate.slots[rank].incarnation;
    if (x->blocks[b].awaits_values)
        return UPDATE_CORE_DUPLICATE; /* as if lost: it is sent again */
    bool late = core_is_late(x, b, rank, clock);
    if (late || ledger_has(&x->ledger, b, rank, incarnation, clock)) {
        set_waiting(x, b, rank, clock, seq);
        reply_if_ready(x, b, rank);
        return late ? UPDATE_CORE_LATE : UPDATE_CORE_DUPLICATE;
    }
    /* Synchronous: the open round accepts a contribution also from a rank that
     * did not contribute to the round before. */
    uint64_t last = is_synchronous(x)
                        ? x->blocks[b].version
                        : gate_clock(&x->gate, &x->ledger, b, rank);
    if (clock != last + 1 || clock < x->gate.slots[rank].from)
        return UPDATE_CORE_REFUSED;
    ledger_record(&x->ledger, b, rank, incarnation, clock);
    set_waiting(x, b, rank, clock, seq);
    x->blocks[b].num_contributions++;
    x->blocks[b].has_bytes |= with.bytes;
    if (with.overflowed) {
        x->blocks[b].overflowed = true;
        x->blocks[b].overflow_scale = with.overflow_scale;
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
    return contribute(x, b, rank, clock, seq,
                      (struct contributed){.bytes = true});
}

enum update_core_result update_core_push_without_bytes(struct update_core *x,
                                                       uint32_t b,
                                                       uint32_t rank,
                                                       uint64_t clock,
                                                       uint64_t seq) {
    return contribute(x, b, rank, clock, seq, (struct contributed){0});
}

enum update_core_result update_core_push_overflowed(struct update_core *x,
                                                    uint32_t b, uint32_t rank,
                                                    uint64_t clock,
                                                    uint64_t seq,
                                                    double overflow_scale) {
    return contribute(x, b, rank, clock, seq,
                      (struct contributed){.overflowed = true,
                                           .overflow_scale = overflow_scale});
}

/* The weights of the snapshot that BLOCK waits for. */
static void store_weights(struct update_core *x, uint32_t b) {
    x->blocks[b].wanted = false;
    x->blocks[b].stored = x->blocks[b].version;
    update_core_snapshot(x, b);
    reply_all_ready(x, b);
    try_close(x, b);
}

enum update_core_result update_core_assign(struct update_core *x, uint32_t b,
                                           uint32_t rank, uint64_t clock,
                                           uint64_t seq) {
    if (x->blocks[b].kept && clock >= x->gate.slots[rank].from) {
        if (!x->blocks[b].wanted || clock != x->blocks[b].version)
            return UPDATE_CORE_DUPLICATE;
        store_weights(x, b);
        return UPDATE_CORE_ACCEPTED;
    }
    if (update_core_query(x, b, rank, clock, seq))
        return UPDATE_CORE_DUPLICATE;
    if (clock + 1 != x->gate.slots[rank].from)
        return UPDATE_CORE_REFUSED;
    if (!x->blocks[b].awaits_values) {
        update_core_pull(x, b, rank, clock, seq);
        return UPDATE_CORE_DUPLICATE;
    }
    ledger_record(&x->ledger, b, rank, x->gate.slots[rank].incarnation, clock);
    x->blocks[b].awaits_values = false;
    if (x->blocks[b].held_then)
        update_core_snapshot(x, b);
    x->blocks[b].held_then = false;
    set_waiting(x, b, rank, clock, seq);
    reply_all_ready(x, b);
    return UPDATE_CORE_ACCEPTED;
}

void update_core_pull(struct update_core *x, uint32_t b, uint32_t rank,
                      uint64_t clock, uint64_t seq) {
    set_waiting(x, b, rank, clock, seq);
    reply_if_ready(x, b, rank);
}

bool update_core_lookup(struct update_core *x, uint32_t b, uint32_t rank,
                        uint64_t clock, uint64_t seq, bool early) {
    struct reader *lookup = lookup_of(x, b, rank);
    if (lookup->waiting && lookup->clock > clock)
        return false;
    *lookup = (struct reader){clock, seq, true, early};
    look_up_if_ready(x, b, rank);
    return true;
}

/* Like a push sent again, without the bytes. */
bool update_core_query(struct update_core *x, uint32_t b, uint32_t rank,
                       uint64_t clock, uint64_t seq) {
    uint64_t incarnation = x->gate.slots[rank].incarnation;
    if (!ledger_has(&x->ledger, b, rank, incarnation, clock) &&
        !core_is_late(x, b, rank, clock))
        return false;
    set_waiting(x, b, rank, clock, seq);
    reply_if_ready(x, b, rank);
    if (x->blocks[b].wanted && holder_of_weights(x, b) == rank)
        want_weights(x, b);
    return true;
}

void update_core_set_norm(struct update_core *x, uint64_t round) {
    if (round > x->norm_round)
        x->norm_round = round;
    recheck_all(x);
}

/* The chief chooses the highest answer of all ps plus one: by then no block has
 * passed that round, and every block may still reach it. A planned round is not
 * closed before it is known whether the request replaces it, as all its blocks
 * belong to one snapshot. */
uint64_t update_core_freeze(struct update_core *x) {
    if (x->limit == UINT64_MAX) {
        x->asked = x->highest + 1;
        x->limit = x->asked - is_planned(x, x->asked);
    }
    return x->asked - 1;
}

/* Blocks that are already at ROUND were held there by the freeze: hold them
 * now. The others follow when they close it. */
void update_core_set_snapshot_round(struct update_core *x, uint64_t round) {
    x->limit = UINT64_MAX;
    x->snapshot_round = round;
    for (uint32_t b = 0; round && b < x->settings.num_blocks; b++)
        if (x->blocks[b].version == round)
            update_core_snapshot(x, b);
    recheck_all(x);
}

uint64_t update_core_due(const struct update_core *x) {
    return x->limit < UINT64_MAX ? x->asked : x->snapshot_round;
}

void update_core_hold_now(struct update_core *x) {
    for (uint32_t b = 0; b < x->settings.num_blocks; b++)
        if (x->blocks[b].awaits_values)
            x->blocks[b].held_then = true;
        else
            update_core_snapshot(x, b);
}

uint64_t update_core_version(const struct update_core *x, uint32_t b) {
    return x->blocks[b].version;
}

struct loss_scaler update_core_scaler(const struct update_core *x, uint32_t b,
                                      uint64_t version) {
    const struct block_state *block = &x->blocks[b];
    return version < block->version ? block->previous : block->scaler;
}

uint64_t update_core_rule_step(const struct update_core *x, uint32_t b,
                               uint64_t version) {
    const struct block_state *block = &x->blocks[b];
    return version < block->version ? block->previous_rule_step
                                    : block->rule_step;
}

void update_core_set_rule_step(struct update_core *x, uint32_t b,
                               uint64_t step) {
    x->blocks[b].rule_step = x->blocks[b].previous_rule_step = step;
}

uint64_t update_core_brought(const struct update_core *x) {
    return x->brought;
}

uint64_t update_core_highest(const struct update_core *x) {
    return x->highest;
}

void update_core_ledger_row(const struct update_core *x, uint32_t b,
                            uint64_t version, struct ledger_entry *row) {
    ledger_copy(&x->ledger, b, is_synchronous(x) ? version : UINT64_MAX, row);
}

struct ledger *update_core_ledger(struct update_core *x) {
    return &x->ledger;
}

bool update_core_awaits(const struct update_core *x, uint32_t rank,
                        uint64_t *round) {
    const struct gate_slot *slot = &x->gate.slots[rank];
    *round = UINT64_MAX;
    for (uint32_t b = 0; b < x->settings.num_blocks; b++)
        if (x->blocks[b].version < *round)
            *round = x->blocks[b].version;
    if ((*round)++ == UINT64_MAX)
        return false;
    for (uint32_t b = 0; b < x->settings.num_blocks; b++)
        if (x->blocks[b].version + 1 == *round && slot->live &&
            slot->from <= *round &&
            gate_clock(&x->gate, &x->ledger, b, rank) < *round)
            return true;
    return false;
}

/* The clock of the live rank that is furthest behind in block B; UINT64_MAX:
 * none is live. */
static uint64_t least_live_clock(const struct update_core *x, uint32_t b) {
    uint64_t slowest = UINT64_MAX;
    for (uint32_t r = 0; r < x->settings.num_ranks; r++) {
        uint64_t clock = gate_clock(&x->gate, &x->ledger, b, r);
        if (x->gate.slots[r].live && clock < slowest)
            slowest = clock;
    }
    return slowest;
}

static bool is_ahead(const struct update_core *x, const struct reader *reader,
                     uint64_t slowest) {
    return reader->waiting && reader->clock > slowest &&
           reader->clock - slowest > x->gate.staleness;
}

/* Marks the ranks that are ahead in block B; returns the step that the others
 * have to push for them, 0: none is. */
static uint64_t mark_ahead(struct update_core *x, uint32_t b, uint8_t *marks) {
    uint64_t slowest = least_live_clock(x, b), most = 0;
    for (uint32_t r = 0; r < x->settings.num_ranks; r++) {
        const struct reader *readers[] = {reader_of(x, b, r),
                                          lookup_of(x, b, r)};
        for (unsigned i = 0; i < 2; i++)
            if (is_ahead(x, readers[i], slowest)) {
                marks[r] |= UPDATE_CORE_AHEAD;
                if (readers[i]->clock > most)
                    most = readers[i]->clock;
            }
    }
    return most ? most - x->gate.staleness : 0;
}

bool update_core_waits(struct update_core *x, uint8_t *marks, uint64_t *step) {
    *step = 0;
    memset(marks, 0, x->settings.num_ranks);
    for (uint32_t b = 0; !is_synchronous(x) && b < x->settings.num_blocks;
         b++) {
        uint64_t wanted = mark_ahead(x, b, marks);
        for (uint32_t r = 0; wanted && r < x->settings.num_ranks; r++)
            if (x->gate.slots[r].live &&
                gate_clock(&x->gate, &x->ledger, b, r) < wanted)
                marks[r] |= UPDATE_CORE_BEHIND;
        if (wanted > *step)
            *step = wanted;
    }
    return *step > 0;
}

const struct gate *update_core_gate(const struct update_core *x) {
    return &x->gate;
}
