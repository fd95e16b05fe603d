/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulation/simulated_ps.h"

#include "tests/simulation/simulated_cutter.h"
#include "tests/simulation/simulated_member.h"
#include "tests/simulation/simulated_net.h"
#include "tests/simulation/simulated_truth.h"

#include <string.h>

#define NOT_MINE UINT32_MAX

void simulated_ps_open(struct simulated *s, uint32_t p) {
    struct simulated_ps *ps = &s->ps[p];
    memset(ps, 0, sizeof *ps);
    simulated_member_open(s, &ps->member, simulated_ps_process(p));
}

void simulated_ps_close(struct simulated *s, uint32_t p) {
    exchange_close(&s->ps[p].exchange);
    simulated_member_close(&s->ps[p].member);
}

static bool planned(const void *context, uint64_t round) {
    const struct simulated *s = context;
    return rounds_saves(&s->rounds, round);
}

static void take_plan(struct simulated *s, uint32_t p,
                      const struct simulated_letter *plan) {
    struct simulated_ps *ps = &s->ps[p];
    const struct simulated_letter ready = {0};
    if (ps->exchange)
        return;
    for (uint32_t b = 0; b < s->scenario.num_blocks; b++) {
        ps->local[b] = NOT_MINE;
        if (s->scenario.block_ps[b] != p)
            continue;
        ps->local[b] = ps->count;
        ps->values[ps->count] = plan->values[b];
        ps->ids[ps->count++] = b;
    }
    struct exchange_settings settings = {
        .num_blocks = ps->count,
        .num_ranks = s->scenario.num_ranks,
        .staleness = s->scenario.staleness,
        .start = plan->step,
        .clip = s->scenario.clip,
        .planned = simulated_synchronous(s) ? planned : NULL,
        .context = s,
    };
    if (simulated_plants(s, SIMULATION_TOO_STALE) && settings.staleness &&
        settings.staleness != GATE_ASYNCHRONOUS)
        settings.staleness++;
    ps->norm_round = plan->step;
    ps->exchange = exchange_open(&settings);
    simulated_member_tell(s, &ps->member, simulated_ps_process(p),
                          SIMULATED_READY, &ready);
}

static void answer(struct simulated *s, uint32_t p, uint32_t rank,
                   struct simulated_message *message) {
    message->run = s->ps[p].member.run;
    message->incarnation = s->processes[simulated_ps_process(p)].incarnation;
    message->data.rank = rank;
    simulated_net_down(s, &s->ps[p].peers[rank],
                       simulated_worker_process(s, rank), message);
}

static void reply(struct simulated *s, uint32_t p, uint32_t b, uint32_t rank,
                  uint64_t clock, uint64_t seq) {
    struct simulated_ps *ps = &s->ps[p];
    struct simulated_reader *reader = &ps->readers[b][rank];
    struct simulated_message message = {.kind = SIMULATED_WEIGHTS};
    simulated_truth_replied(s, p, b, rank, clock);
    if (reader->waiting && reader->clock <= clock)
        reader->waiting = false;
    message.data.seq = seq;
    message.data.clock = clock;
    message.data.count = 1;
    message.data.blocks[0] = ps->ids[b];
    message.data.values[0] = ps->values[b];
    message.data.versions[0] = exchange_version(ps->exchange, b);
    if (ps->ids[0] == 0)
        message.data.step = exchange_version(ps->exchange, 0);
    answer(s, p, rank, &message);
}

static uint32_t collect(const struct simulated *s, uint32_t p, uint32_t b,
                        uint64_t *gradients) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++)
        if (s->ps[p].held[b][r].held && !s->ps[p].held[b][r].empty)
            gradients[count++] = s->ps[p].held[b][r].value;
    return count;
}

static void update(struct simulated *s, uint32_t p,
                   const struct exchange_action *action) {
    struct simulated_ps *ps = &s->ps[p];
    uint32_t b = action->block, count = 0;
    uint64_t version = action->version, gradients[SIMULATED_RANKS];
    simulated_truth_updating(s, p, b, version, action->voided);
    if (!action->voided) {
        count = collect(s, p, b, gradients);
        ps->values[b] =
            simulated_truth_update(s, ps->values[b], version, gradients, count,
                                   s->scenario.clip ? ps->norm : 0);
    }
    memset(ps->held[b], 0, sizeof ps->held[b]);
    simulated_truth_updated(s, p, b, version);
    simulated_say(s, "ps %u: block %u is at %llu, of %u", p, ps->ids[b],
                  (unsigned long long)version, count);
}

static void sum(struct simulated *s, uint32_t p,
                const struct exchange_action *action) {
    struct simulated_ps *ps = &s->ps[p];
    uint64_t gradients[SIMULATED_RANKS];
    uint32_t b = action->block;
    uint32_t count = action->voided ? 0 : collect(s, p, b, gradients);
    struct simulated_letter letter = {.round = action->version};
    ps->sums[b] = simulated_truth_square(gradients, count);
    if (++ps->num_summed < ps->count)
        return;
    ps->num_summed = 0;
    memcpy(letter.sums, ps->sums, sizeof letter.sums);
    simulated_member_tell(s, &ps->member, simulated_ps_process(p),
                          SIMULATED_SUMS, &letter);
}

static void settle(struct simulated *s, uint32_t p) {
    struct simulated_ps *ps = &s->ps[p];
    struct exchange_action action;
    while (exchange_next(ps->exchange, &action)) {
        if (action.kind == EXCHANGE_UPDATE)
            update(s, p, &action);
        else if (action.kind == EXCHANGE_SUM)
            sum(s, p, &action);
        else if (action.kind == EXCHANGE_SNAPSHOT)
            simulated_cutter_snapshot(s, p, action.block, action.version);
        else
            reply(s, p, action.block, action.rank, action.clock, action.seq);
    }
    simulated_truth_settled(s, p);
}

static void note_reader(struct simulated_ps *ps, uint32_t b,
                        const struct simulated_data *data) {
    struct simulated_reader *reader = &ps->readers[b][data->rank];
    if (!reader->waiting || reader->clock < data->clock)
        *reader = (struct simulated_reader){true, data->clock};
}

static enum exchange_verdict count_push(struct simulated *s, uint32_t p,
                                        uint32_t b,
                                        const struct simulated_data *data) {
    struct exchange *exchange = s->ps[p].exchange;
    if (data->voided && !simulated_plants(s, SIMULATION_VOID_FOR_EMPTY))
        return exchange_void(exchange, b, data->rank, data->clock, data->seq,
                             1);
    return exchange_push(exchange, b, data->rank, data->clock, data->seq);
}

/* As ps/service.c: what comes first is kept until the exchange has spoken. */
static void push(struct simulated *s, uint32_t p,
                 const struct simulated_message *message) {
    struct simulated_ps *ps = &s->ps[p];
    const struct simulated_data *data = &message->data;
    for (uint32_t i = 0; i < data->count; i++) {
        uint32_t b = ps->local[data->blocks[i]];
        struct simulated_contribution *mine = &ps->held[b][data->rank], saved;
        saved = *mine;
        *mine = (struct simulated_contribution){
            .held = true,
            .empty = data->empty,
            .voided = data->voided,
            .incarnation = message->incarnation,
            .clock = data->clock,
            .value = data->values[i],
        };
        enum exchange_verdict verdict = count_push(s, p, b, data);
        if (verdict == EXCHANGE_TAKEN)
            simulated_truth_taken(s, p, b, data->rank, message);
        else
            *mine = saved;
        if (verdict == EXCHANGE_REFUSED) {
            simulated_say(s, "ps %u refuses clock %llu of rank %u", p,
                          (unsigned long long)data->clock, data->rank);
            return;
        }
        note_reader(ps, b, data);
        if (simulated_plants(s, SIMULATION_EARLY_REPLY))
            reply(s, p, b, data->rank, data->clock, data->seq);
    }
}

static void ask(struct simulated *s, uint32_t p,
                const struct simulated_data *data) {
    struct simulated_ps *ps = &s->ps[p];
    struct simulated_message lack = {.kind = SIMULATED_LACK};
    lack.data.clock = data->clock;
    lack.data.seq = data->seq;
    for (uint32_t i = 0; i < data->count; i++) {
        uint32_t b = ps->local[data->blocks[i]];
        if (exchange_ask(ps->exchange, b, data->rank, data->clock, data->seq))
            note_reader(ps, b, data);
        else
            lack.data.blocks[lack.data.count++] = data->blocks[i];
    }
    if (lack.data.count &&
        !simulated_plants(s, SIMULATION_ASK_TAKEN_FOR_GRANTED))
        answer(s, p, data->rank, &lack);
}

static bool knows(const struct simulated *s, uint32_t p,
                  const struct simulated_message *message) {
    const struct simulated_ps *ps = &s->ps[p];
    if (message->run != ps->member.run &&
        !simulated_plants(s, SIMULATION_NO_RUN_CHECK))
        return false;
    return exchange_knows(ps->exchange, message->data.rank,
                          message->incarnation) ||
           simulated_plants(s, SIMULATION_STALE_INCARNATION) ||
           simulated_plants(s, SIMULATION_NO_RUN_CHECK);
}

/* A ledger that forgets, now and then. */
static void perturb_ledger(struct simulated *s, uint32_t p, uint32_t rank) {
    struct simulated_ps *ps = &s->ps[p];
    if (!simulated_plants(s, SIMULATION_LEDGER_FORGETS) || !ps->count ||
        !simulated_chance(s, 100))
        return;
    uint32_t b = philox_below(&s->random, ps->count);
    ledger_row(exchange_ledger(ps->exchange), b)[rank].incarnation = 0;
}

static void serve(struct simulated *s, uint32_t p,
                  const struct simulated_peer *from,
                  const struct simulated_message *message) {
    struct simulated_ps *ps = &s->ps[p];
    const struct simulated_data *data = &message->data;
    if (!ps->exchange)
        return;
    if (!knows(s, p, message)) {
        simulated_truth_refused(s, p, message);
        return;
    }
    ps->peers[data->rank] = *from;
    perturb_ledger(s, p, data->rank);
    if (message->kind == SIMULATED_PUSH)
        push(s, p, message);
    else if (message->kind == SIMULATED_ASK)
        ask(s, p, data);
    else
        for (uint32_t i = 0; i < data->count; i++) {
            uint32_t b = ps->local[data->blocks[i]];
            exchange_pull(ps->exchange, b, data->rank, data->clock, data->seq);
            note_reader(ps, b, data);
        }
    settle(s, p);
}

/* The view as it is planted to be heard. */
static void look_at_view(struct simulated *s, uint32_t p,
                         struct gate_slot *slots) {
    struct simulated_ps *ps = &s->ps[p];
    const struct gate *gate = exchange_gate(ps->exchange);
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++)
        if (simulated_plants(s, SIMULATION_DEAD_AWAITED) &&
            gate->slots[r].live && !slots[r].live)
            slots[r] = gate->slots[r];
    if (simulated_plants(s, SIMULATION_VIEW_NOT_LOOKED_AT))
        memcpy(gate->slots, slots, s->scenario.num_ranks * sizeof *slots);
}

static void take_view(struct simulated *s, uint32_t p,
                      const struct simulated_letter *view) {
    struct simulated_ps *ps = &s->ps[p];
    struct gate_slot slots[SIMULATED_RANKS];
    memcpy(slots, view->slots, sizeof slots);
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++)
        if (ps->slots[r].incarnation != view->slots[r].incarnation)
            for (uint32_t b = 0; b < ps->count; b++) {
                ps->readers[b][r].waiting = false;
                s->truth.taken[ps->ids[b]][r] = 0;
            }
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++)
        s->truth.from[view->slots[r].incarnation] = view->slots[r].from;
    memcpy(ps->slots, view->slots, sizeof ps->slots);
    ps->view = view->number;
    look_at_view(s, p, slots);
    if (!simulated_plants(s, SIMULATION_VIEW_NOT_LOOKED_AT))
        exchange_view(ps->exchange, view->number, slots);
}

static void take_norm(struct simulated *s, uint32_t p,
                      const struct simulated_letter *letter) {
    struct simulated_ps *ps = &s->ps[p];
    bool other = simulated_plants(s, SIMULATION_OTHER_NORM);
    ps->norm = letter->norm;
    ps->norm_round = letter->round + other;
    exchange_norm(ps->exchange, letter->round + other);
}

static void obey(struct simulated *s, uint32_t p,
                 const struct simulated_message *order) {
    struct simulated_ps *ps = &s->ps[p];
    const struct simulated_letter nothing = {0};
    if (order->kind == SIMULATED_STOP) {
        simulated_member_say(s, &ps->member, simulated_ps_process(p),
                             SIMULATED_BYE, &nothing);
        simulated_end(s, simulated_ps_process(p), order->letter.ok);
        return;
    }
    if (order->kind == SIMULATED_PLAN)
        take_plan(s, p, &order->letter);
    if (!ps->exchange)
        return;
    if (order->kind == SIMULATED_VIEW)
        take_view(s, p, &order->letter);
    else if (order->kind == SIMULATED_NORM)
        take_norm(s, p, &order->letter);
    else
        simulated_cutter_obey(s, p, order);
    settle(s, p);
}

void simulated_ps_take(struct simulated *s, uint32_t p,
                       const struct simulated_peer *from,
                       const struct simulated_message *message) {
    struct simulated_ps *ps = &s->ps[p];
    if (message->kind < SIMULATED_JOIN)
        serve(s, p, from, message);
    else if (simulated_member_take(s, &ps->member, simulated_ps_process(p),
                                   message))
        obey(s, p, message);
}

void simulated_ps_step(struct simulated *s, uint32_t p) {
    struct simulated_ps *ps = &s->ps[p];
    struct simulated_letter beat = {.number = ps->view};
    simulated_cutter_step(s, p);
    simulated_member_step(s, &ps->member, simulated_ps_process(p), &beat);
}
