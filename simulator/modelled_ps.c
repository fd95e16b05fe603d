/* SPDX-License-Identifier: Apache-2.0 */
/* One thread, in ps.c's order: an answer that is ready leaves before anything
 * else is decided, updates that were decided are paid for with the next work, a
 * message is taken when nothing else is due. Actions are carried out until
 * there is an answer to send, as the time they cost is spent before it. */
#include "simulator/modelled_ps.h"

#include "ps/consistency/exchange.h"

#include <stdlib.h>

/* Blocks that leave together for one trainer, as in ps/answers.c. */
struct draft {
    struct letter head;
    uint32_t count, room;
    uint32_t *blocks;
};

struct modelled_ps {
    struct stage *stage;
    uint32_t index, num_blocks;
    uint32_t *ids; /* plan's number of each block */
    struct exchange *exchange;
    struct machine_thread serving;
    struct letters inbox, outbox;
    struct letter *at_hand; /* about to leave */
    struct draft *drafts;   /* [num_workers] */
    bool settling;
    double due; /* seconds of updates that were decided and not yet spent */
    double served;
    uint32_t num_summed;
};

static bool take_blocks(struct modelled_ps *ps) {
    const struct stage *stage = ps->stage;
    uint32_t num_blocks = stage->given.layout->num_blocks;
    ps->ids = calloc(num_blocks, sizeof *ps->ids);
    for (uint32_t b = 0; ps->ids && b < num_blocks; b++)
        if (stage->block_ps[b] == ps->index)
            ps->ids[ps->num_blocks++] = b;
    return ps->ids;
}

/* All workers are there from the first clock on. */
static bool admit(struct modelled_ps *ps) {
    uint32_t workers = ps->stage->given.num_workers;
    struct gate_slot *slots = calloc(workers, sizeof *slots);
    for (uint32_t r = 0; slots && r < workers; r++)
        slots[r] = (struct gate_slot){r + 1, 1, true};
    if (slots)
        exchange_view(ps->exchange, 1, slots);
    free(slots);
    return slots;
}

static bool open_exchange(struct modelled_ps *ps) {
    const struct model_case *given = &ps->stage->given;
    struct exchange_settings settings = {
        .num_blocks = ps->num_blocks,
        .num_ranks = given->num_workers,
        .staleness = given->staleness,
        .clip = given->clip && given->staleness == 0,
    };
    ps->exchange = exchange_open(&settings);
    return ps->exchange;
}

struct modelled_ps *modelled_ps_open(struct stage *stage, uint32_t index) {
    struct modelled_ps *ps = calloc(1, sizeof *ps);
    if (!ps)
        return NULL;
    ps->stage = stage;
    ps->index = index;
    ps->serving.machine =
        stage_machine(stage, stage->given.num_workers + index);
    ps->drafts = calloc(stage->given.num_workers, sizeof *ps->drafts);
    if (!ps->drafts || !take_blocks(ps) || !open_exchange(ps) || !admit(ps))
        modelled_ps_close(&ps);
    return ps;
}

void modelled_ps_close(struct modelled_ps **where) {
    struct modelled_ps *ps = *where;
    *where = NULL;
    if (!ps)
        return;
    for (uint32_t r = 0; ps->drafts && r < ps->stage->given.num_workers; r++)
        free(ps->drafts[r].blocks);
    exchange_close(&ps->exchange);
    letters_drop(&ps->inbox);
    letters_drop(&ps->outbox);
    free(ps->at_hand);
    free(ps->drafts);
    free(ps->ids);
    free(ps);
}

static void flush(struct modelled_ps *ps, uint32_t rank) {
    struct draft *draft = &ps->drafts[rank];
    if (!draft->count)
        return;
    struct letter *letter =
        letter_write(&draft->head, draft->blocks, draft->count);
    if (letter)
        letters_add(&ps->outbox, letter);
    else
        ps->stage->failed = true;
    draft->count = 0;
}

static bool make_room(struct draft *draft) {
    if (draft->count < draft->room)
        return true;
    uint32_t room = draft->room ? 2 * draft->room : 16;
    uint32_t *blocks = realloc(draft->blocks, room * sizeof *blocks);
    if (!blocks)
        return false;
    draft->blocks = blocks;
    draft->room = room;
    return true;
}

/* Answers to one request leave together, up to a limit. */
static void answer(struct modelled_ps *ps,
                   const struct exchange_action *action) {
    struct draft *draft = &ps->drafts[action->rank];
    uint32_t id = ps->ids[action->block];
    uint64_t bytes = ps->stage->block_bytes[id];
    if (draft->count &&
        (draft->head.seq != action->seq || draft->head.clock != action->clock ||
         draft->head.bytes + bytes > ps->stage->given.group_bytes))
        flush(ps, action->rank);
    if (!draft->count)
        draft->head =
            (struct letter){.kind = LETTER_WEIGHTS,
                            .from = ps->stage->given.num_workers + ps->index,
                            .to = action->rank,
                            .clock = action->clock,
                            .seq = action->seq};
    if (!make_room(draft)) {
        ps->stage->failed = true;
        return;
    }
    draft->blocks[draft->count++] = id;
    draft->head.bytes += bytes;
}

/* One fused pass over the weights and the gradients that it sums. */
static double pass(const struct modelled_ps *ps, uint32_t block,
                   bool over_weights) {
    const struct model_case *given = &ps->stage->given;
    uint32_t id = ps->ids[block];
    uint32_t gradients = given->staleness ? 1 : given->num_workers;
    double weights = sizeof(float) * (double)given->layout->blocks[id].elements;
    return given->costs.gradient_byte * gradients * ps->stage->block_bytes[id] +
           (over_weights ? given->costs.update_byte * weights : 0);
}

static void carry_out(struct modelled_ps *ps,
                      const struct exchange_action *action) {
    if (action->kind == EXCHANGE_UPDATE) {
        ps->due += pass(ps, action->block, true);
    } else if (action->kind == EXCHANGE_REPLY) {
        answer(ps, action);
    } else if (action->kind == EXCHANGE_SUM) {
        ps->due += pass(ps, action->block, false);
        if (++ps->num_summed == ps->num_blocks) {
            ps->num_summed = 0;
            stage_summed(ps->stage, action->version);
        }
    }
}

static void serve(void *context);

/* The serving thread works for SECONDS, and for what is due before. */
static void work(struct modelled_ps *ps, double seconds) {
    seconds += ps->due;
    ps->due = 0;
    ps->served += seconds;
    machine_run(&ps->serving, seconds, serve, ps);
}

static void prepare(struct modelled_ps *ps) {
    const struct model_costs *costs = &ps->stage->given.costs;
    struct letter *letter = letters_take(&ps->outbox);
    bool copied = letter->count > 1 || ps->stage->given.bf16;
    double byte = copied ? costs->copy_byte : 0;
    ps->at_hand = letter;
    work(ps, costs->message + byte * (double)letter->bytes);
}

static void handle(struct modelled_ps *ps) {
    struct letter *letter = letters_take(&ps->inbox);
    if (letter->kind == LETTER_NORM)
        exchange_norm(ps->exchange, letter->clock);
    for (uint32_t i = 0; i < letter->count; i++)
        if (exchange_push(ps->exchange, ps->stage->local[letter->blocks[i]],
                          letter->from, letter->clock,
                          letter->seq) != EXCHANGE_TAKEN)
            ps->stage->failed = true;
    ps->stage->result->taken += letter->bytes;
    ps->settling = true;
    free(letter);
    work(ps, ps->stage->given.costs.message);
}

/* Until there is an answer to send, or nothing more to decide. */
static void settle(struct modelled_ps *ps) {
    struct exchange_action action;
    while (!ps->outbox.first && ps->settling) {
        ps->settling = exchange_next(ps->exchange, &action);
        if (ps->settling)
            carry_out(ps, &action);
    }
    for (uint32_t r = 0; !ps->settling && r < ps->stage->given.num_workers; r++)
        flush(ps, r);
}

static void serve(void *context) {
    struct modelled_ps *ps = context;
    struct letter *letter = ps->at_hand;
    ps->at_hand = NULL;
    if (letter) {
        ps->stage->result->answered += letter->bytes;
        stage_post(ps->stage, letter);
    }
    if (ps->settling)
        settle(ps);
    if (ps->outbox.first)
        prepare(ps);
    else if (ps->due > 0)
        work(ps, 0);
    else if (ps->inbox.first)
        handle(ps);
}

void modelled_ps_take(struct modelled_ps *ps, struct letter *letter) {
    letters_add(&ps->inbox, letter);
    if (!ps->serving.running)
        serve(ps);
}

double modelled_ps_busy(const struct modelled_ps *ps) {
    return ps->served;
}
