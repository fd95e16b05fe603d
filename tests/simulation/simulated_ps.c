/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulation/simulated_ps.h"

#include "ps/units/row_lookups.h"
#include "tests/simulation/simulated_copies.h"
#include "tests/simulation/simulated_member.h"
#include "tests/simulation/simulated_net.h"
#include "tests/simulation/simulated_oracle.h"
#include "tests/simulation/simulated_snapshot_agent.h"

#include <string.h>

#define NOT_MINE UINT32_MAX

/* In a lookup's buffer: who asks, which rows of each part, what they are. */
struct lookup_rows {
    struct simulated_peer peer;
    uint64_t ids[SIMULATED_PARTITIONS];
    uint64_t values[SIMULATED_PARTITIONS], versions[SIMULATED_PARTITIONS];
};

void simulated_ps_open(struct simulated *s, uint32_t p, bool keeps) {
    struct simulated_ps *ps = &s->ps[p];
    if (!keeps) {
        copies_close(&s->copies[p]);
        s->memories[p] = s->lives;
    }
    struct ledger_entry kept = ps->kept;
    memset(ps, 0, sizeof *ps);
    if (keeps)
        ps->kept = kept;
    simulated_member_open(s, &ps->member, simulated_ps_process(p));
}

void simulated_ps_close(struct simulated *s, uint32_t p) {
    struct simulated_ps *ps = &s->ps[p];
    if (simulated_has_fault(s, SIMULATION_LEDGER_KEPT) && ps->update_core &&
        ps->count)
        ps->kept = ledger_row(update_core_ledger(ps->update_core), 0)[0];
    update_core_close(&s->ps[p].update_core);
    row_lookups_close(&s->ps[p].row_lookups);
    simulated_member_close(&s->ps[p].member);
}

static bool planned(const void *context, uint64_t round) {
    const struct simulated *s = context;
    return run_schedule_saves(&s->run_schedule, round) ||
           run_schedule_copies(&s->run_schedule, round);
}

static bool holds(const struct simulated *s, uint32_t p, uint32_t b,
                  bool resumes) {
    uint32_t place = simulated_place(s, s->ps[p].member.run, b);
    return place == p ||
           (place + 1 == p && resumes && simulated_is_partition(s, b) &&
            simulated_has_fault(s, SIMULATION_ROWS_ON_TWO_PS));
}

static void begin(struct simulated *s, uint32_t p) {
    struct simulated_ps *ps = &s->ps[p];
    const struct simulated_control ready = {0};
    struct update_core_settings settings = {
        .num_blocks = ps->count,
        .num_ranks = s->scenario.num_ranks,
        .staleness = s->scenario.staleness,
        .backup_workers = simulated_has_fault(s, SIMULATION_STRAGGLER_AWAITED)
                              ? 0
                              : s->scenario.backup_workers,
        .start = ps->start,
        .clip = s->scenario.clip,
        .planned = simulated_synchronous(s) ? planned : NULL,
        .context = s,
    };
    if (simulated_has_fault(s, SIMULATION_TOO_STALE) && settings.staleness &&
        settings.staleness != GATE_ASYNCHRONOUS)
        settings.staleness++;
    ps->norm_round = ps->start;
    ps->update_core = update_core_open(&settings);
    ps->row_lookups = row_lookups_open(ps->num_partitions, settings.num_ranks);
    simulated_member_send_reliable(s, &ps->member, simulated_ps_process(p),
                                   SIMULATED_READY, &ready);
}

static void take_plan(struct simulated *s, uint32_t p,
                      const struct simulated_control *plan) {
    struct simulated_ps *ps = &s->ps[p];
    if (ps->update_core || ps->has_plan)
        return;
    ps->has_plan = true;
    ps->start = plan->step;
    ps->base = plan->base;
    ps->known_from = plan->memory ? plan->step : plan->base;
    for (uint32_t b = 0; b < simulated_units(s); b++) {
        ps->local[b] = NOT_MINE;
        if (!holds(s, p, b, plan->step > 0))
            continue;
        ps->num_partitions += simulated_is_partition(s, b);
        ps->local[b] = ps->count;
        ps->values[ps->count] = plan->values[b];
        ps->ids[ps->count++] = b;
    }
    simulated_copies_plan(s, p, plan);
    if (!ps->fetch.is_on)
        begin(s, p);
}

static void answer_peer(struct simulated *s, uint32_t p, uint32_t rank,
                        const struct simulated_peer *peer,
                        struct simulated_message *message) {
    message->run = s->ps[p].member.run;
    message->incarnation = s->processes[simulated_ps_process(p)].incarnation;
    message->data.rank = rank;
    simulated_net_down(s, peer, simulated_worker_process(s, rank), message);
}

static void answer(struct simulated *s, uint32_t p, uint32_t rank,
                   struct simulated_message *message) {
    answer_peer(s, p, rank, &s->ps[p].peers[rank], message);
}

static void reply(struct simulated *s, uint32_t p,
                  const struct update_core_action *action) {
    struct simulated_ps *ps = &s->ps[p];
    uint32_t b = action->block, rank = action->rank;
    uint64_t clock = action->clock;
    struct simulated_reader *reader = &ps->readers[b][rank];
    struct simulated_message message = {.kind = SIMULATED_WEIGHTS};
    if (action->late && simulated_has_fault(s, SIMULATION_LATE_UNANSWERED))
        return;
    simulated_oracle_replied(s, p, b, rank, clock);
    if (reader->waiting && reader->clock <= clock)
        reader->waiting = false;
    message.data.seq = action->seq;
    message.data.clock = clock;
    message.data.late = action->late;
    message.data.count = 1;
    message.data.blocks[0] = ps->ids[b];
    message.data.values[0] = ps->values[b];
    message.data.versions[0] = update_core_version(ps->update_core, b);
    if (ps->ids[0] == 0)
        message.data.step = update_core_version(ps->update_core, 0);
    answer(s, p, rank, &message);
}

static struct simulated_gradients collect(const struct simulated *s, uint32_t p,
                                          uint32_t b) {
    struct simulated_gradients gradients = {.norm = s->ps[p].norm};
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++) {
        const struct simulated_contribution *c = &s->ps[p].held[b][r];
        if (!c->held || c->empty)
            continue;
        gradients.divisor++;
        if (!c->zero)
            gradients.values[gradients.count++] = c->value;
    }
    return gradients;
}

static void update(struct simulated *s, uint32_t p,
                   const struct update_core_action *action) {
    struct simulated_ps *ps = &s->ps[p];
    uint32_t b = action->block;
    uint64_t version = action->version;
    struct simulated_gradients gradients = collect(s, p, b);
    simulated_oracle_updating(s, p, b, version, action->overflowed);
    if (!action->overflowed)
        ps->values[b] =
            simulated_oracle_update(s, ps->values[b], version, &gradients);
    memset(ps->held[b], 0, sizeof ps->held[b]);
    simulated_oracle_updated(s, p, b, version);
    simulated_trace(s, "ps %u: block %u is at %llu, of %u", p, ps->ids[b],
                    (unsigned long long)version, gradients.count);
}

static void sum(struct simulated *s, uint32_t p,
                const struct update_core_action *action) {
    struct simulated_ps *ps = &s->ps[p];
    uint32_t b = action->block;
    struct simulated_gradients gradients = collect(s, p, b);
    struct simulated_control control_message = {.round = action->version};
    ps->sums[b] = action->overflowed ? 0 : simulated_oracle_square(&gradients);
    if (++ps->num_summed < ps->count)
        return;
    ps->num_summed = 0;
    memcpy(control_message.sums, ps->sums, sizeof control_message.sums);
    simulated_member_send_reliable(s, &ps->member, simulated_ps_process(p),
                                   SIMULATED_SUMS, &control_message);
}

/* As ps/server_messages.c: an answer has all parts of its lookup. */
static void send_rows(struct simulated *s, uint32_t p,
                      const struct row_lookup *lookup) {
    const struct lookup_rows *rows = buffer_data(lookup->floats);
    struct simulated_message message = {.kind = SIMULATED_ROWS};
    struct simulated_data *data = &message.data;
    data->seq = lookup->seq;
    data->clock = lookup->clock;
    data->count = lookup->num_parts;
    for (uint32_t i = 0; i < lookup->num_parts; i++) {
        data->blocks[i] = lookup->parts[i].block;
        data->values[i] = rows->values[i];
        data->versions[i] = rows->versions[i];
    }
    answer_peer(s, p, lookup->rank, &rows->peer, &message);
}

static void read_rows(struct simulated *s, uint32_t p,
                      const struct update_core_action *action) {
    struct simulated_ps *ps = &s->ps[p];
    uint32_t b = action->block, i, first = ps->count - ps->num_partitions;
    struct row_lookup *lookup = row_lookups_take(ps->row_lookups, b - first,
                                                 action->rank, action->seq, &i);
    if (!lookup)
        return; /* a late message has replaced it: it is asked for again */
    ps->lookups[b][action->rank].waiting = false;
    simulated_oracle_looked_up(s, p, b, action->rank, lookup->clock);
    struct lookup_rows *rows = buffer_data(lookup->floats);
    rows->values[i] = simulated_oracle_read(ps->values[b], rows->ids[i]);
    rows->versions[i] = action->version;
    if (++lookup->num_read == lookup->num_parts)
        send_rows(s, p, lookup);
    row_lookups_drop(ps->row_lookups, lookup);
}

static void settle(struct simulated *s, uint32_t p) {
    struct simulated_ps *ps = &s->ps[p];
    struct update_core_action action;
    while (update_core_next(ps->update_core, &action)) {
        if (action.kind == UPDATE_CORE_UPDATE)
            update(s, p, &action);
        else if (action.kind == UPDATE_CORE_SUM)
            sum(s, p, &action);
        else if (action.kind == UPDATE_CORE_SNAPSHOT)
            simulated_snapshot_agent_snapshot(s, p, action.block,
                                              action.version);
        else if (action.kind == UPDATE_CORE_LOOKUP)
            read_rows(s, p, &action);
        else
            reply(s, p, &action);
    }
    simulated_oracle_event_handled(s, p);
    simulated_oracle_copies_held(s, p);
}

static void note_reader(struct simulated_ps *ps, uint32_t b,
                        const struct simulated_data *data) {
    struct simulated_reader *reader = &ps->readers[b][data->rank];
    if (!reader->waiting || reader->clock < data->clock)
        *reader =
            (struct simulated_reader){.waiting = true, .clock = data->clock};
}

/* The newest counts. */
static void look_up(struct simulated *s, uint32_t p,
                    const struct simulated_peer *from,
                    const struct simulated_data *data) {
    struct simulated_ps *ps = &s->ps[p];
    uint32_t first = ps->count - ps->num_partitions;
    bool early = simulated_has_fault(s, SIMULATION_EARLY_ROWS);
    struct row_lookup *lookup =
        row_lookups_new(ps->row_lookups, data->count, NULL, 0);
    lookup->rank = data->rank;
    lookup->seq = data->seq;
    lookup->clock = data->clock;
    lookup->floats = buffer_open(sizeof(struct lookup_rows), NULL, NULL);
    struct lookup_rows *rows = buffer_data(lookup->floats);
    *rows = (struct lookup_rows){.peer = *from};
    for (uint32_t i = 0; i < data->count; i++) {
        uint32_t b = ps->local[data->blocks[i]];
        lookup->parts[i].block = data->blocks[i];
        rows->ids[i] = data->values[i];
        if (!update_core_lookup(ps->update_core, b, data->rank,
                                early ? 0 : data->clock, data->seq,
                                data->early))
            continue;
        ps->lookups[b][data->rank] =
            (struct simulated_reader){true, data->clock, data->early};
        row_lookups_wait(ps->row_lookups, lookup, b - first, i);
    }
    row_lookups_drop(ps->row_lookups, lookup);
}

static enum update_core_result count_push(struct simulated *s, uint32_t p,
                                          uint32_t b,
                                          const struct simulated_data *data) {
    struct update_core *core = s->ps[p].update_core;
    if (data->overflowed &&
        !simulated_has_fault(s, SIMULATION_OVERFLOW_AS_EMPTY))
        return update_core_push_overflowed(core, b, data->rank, data->clock,
                                           data->seq, 1);
    return update_core_push(core, b, data->rank, data->clock, data->seq);
}

/* As ps/server.c: what comes first is kept until the exchange has spoken. */
static void push(struct simulated *s, uint32_t p,
                 const struct simulated_message *message) {
    struct simulated_ps *ps = &s->ps[p];
    const struct simulated_data *data = &message->data;
    bool zero_as_empty = simulated_has_fault(s, SIMULATION_ZERO_AS_EMPTY);
    for (uint32_t i = 0; i < data->count; i++) {
        uint32_t b = ps->local[data->blocks[i]];
        struct simulated_contribution *mine = &ps->held[b][data->rank], saved;
        saved = *mine;
        *mine = (struct simulated_contribution){
            .held = true,
            .empty = data->empty || (data->zero[i] && zero_as_empty),
            .zero = data->zero[i] && !zero_as_empty,
            .overflowed = data->overflowed,
            .incarnation = message->incarnation,
            .clock = data->clock,
            .value = data->values[i],
        };
        enum update_core_result verdict = count_push(s, p, b, data);
        if (verdict == UPDATE_CORE_ACCEPTED)
            simulated_oracle_taken(s, p, b, data->rank, message);
        else if (verdict != UPDATE_CORE_LATE ||
                 !simulated_has_fault(s, SIMULATION_LATE_APPLIED))
            *mine = saved;
        s->late += verdict == UPDATE_CORE_LATE;
        if (verdict == UPDATE_CORE_REFUSED) {
            simulated_trace(s, "ps %u refuses clock %llu of rank %u", p,
                            (unsigned long long)data->clock, data->rank);
            return;
        }
        if (verdict == UPDATE_CORE_DUPLICATE &&
            simulated_is_partition(s, data->blocks[i]) &&
            simulated_has_fault(s, SIMULATION_ROWS_APPLIED_TWICE))
            ps->values[b] += data->values[i];
        note_reader(ps, b, data);
        if (simulated_has_fault(s, SIMULATION_EARLY_REPLY))
            reply(s, p,
                  &(struct update_core_action){.block = b,
                                               .rank = data->rank,
                                               .clock = data->clock,
                                               .seq = data->seq});
    }
}

static void ask(struct simulated *s, uint32_t p,
                const struct simulated_data *data) {
    struct simulated_ps *ps = &s->ps[p];
    struct simulated_message lack = {.kind = SIMULATED_MISSING};
    lack.data.clock = data->clock;
    lack.data.seq = data->seq;
    for (uint32_t i = 0; i < data->count; i++) {
        uint32_t b = ps->local[data->blocks[i]];
        if (update_core_query(ps->update_core, b, data->rank, data->clock,
                              data->seq))
            note_reader(ps, b, data);
        else
            lack.data.blocks[lack.data.count++] = data->blocks[i];
    }
    if (lack.data.count && !simulated_has_fault(s, SIMULATION_QUERY_IGNORED))
        answer(s, p, data->rank, &lack);
}

static bool knows(const struct simulated *s, uint32_t p,
                  const struct simulated_message *message) {
    const struct simulated_ps *ps = &s->ps[p];
    if (message->run != ps->member.run &&
        !simulated_has_fault(s, SIMULATION_NO_RUN_CHECK))
        return false;
    return update_core_is_current(ps->update_core, message->data.rank,
                                  message->incarnation) ||
           simulated_has_fault(s, SIMULATION_STALE_INCARNATION) ||
           simulated_has_fault(s, SIMULATION_NO_RUN_CHECK);
}

/* A ledger that forgets, now and then. */
static void perturb_ledger(struct simulated *s, uint32_t p, uint32_t rank) {
    struct simulated_ps *ps = &s->ps[p];
    if (!simulated_has_fault(s, SIMULATION_LEDGER_FORGETS) || !ps->count ||
        !simulated_chance(s, 100))
        return;
    uint32_t b = philox_below(&s->random, ps->count);
    ledger_row(update_core_ledger(ps->update_core), b)[rank].incarnation = 0;
}

static void serve(struct simulated *s, uint32_t p,
                  const struct simulated_peer *from,
                  const struct simulated_message *message) {
    struct simulated_ps *ps = &s->ps[p];
    const struct simulated_data *data = &message->data;
    if (!ps->update_core)
        return;
    if (!knows(s, p, message)) {
        simulated_oracle_refused(s, p, message);
        return;
    }
    for (uint32_t i = 0; i < data->count; i++)
        if (ps->local[data->blocks[i]] == NOT_MINE) {
            simulated_fail(s, "ps %u is asked for block %u of another", p,
                           data->blocks[i]);
            return;
        }
    ps->peers[data->rank] = *from;
    perturb_ledger(s, p, data->rank);
    if (message->kind == SIMULATED_PUSH)
        push(s, p, message);
    else if (message->kind == SIMULATED_QUERY)
        ask(s, p, data);
    else if (message->kind == SIMULATED_LOOKUP)
        look_up(s, p, from, data);
    else
        for (uint32_t i = 0; i < data->count; i++) {
            uint32_t b = ps->local[data->blocks[i]];
            update_core_pull(ps->update_core, b, data->rank, data->clock,
                             data->seq);
            note_reader(ps, b, data);
        }
    settle(s, p);
}

/* The view as it is planted to be heard. */
static void look_at_view(struct simulated *s, uint32_t p,
                         struct gate_slot *slots) {
    struct simulated_ps *ps = &s->ps[p];
    const struct gate *gate = update_core_gate(ps->update_core);
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++)
        if (simulated_has_fault(s, SIMULATION_WAITS_FOR_DEAD) &&
            gate->slots[r].live && !slots[r].live)
            slots[r] = gate->slots[r];
    if (simulated_has_fault(s, SIMULATION_VIEW_NOT_APPLIED))
        memcpy(gate->slots, slots, s->scenario.num_ranks * sizeof *slots);
}

/* Planted: what rank 0 has pushed for the first unit before it has gone back
 * counts as if it had pushed it now. */
static void keep_ledger(struct simulated *s, uint32_t p,
                        const struct gate_slot *slots) {
    struct simulated_ps *ps = &s->ps[p];
    if (!simulated_has_fault(s, SIMULATION_LEDGER_KEPT) || !ps->count)
        return;
    struct ledger_entry *row =
        ledger_row(update_core_ledger(ps->update_core), 0);
    if (ps->kept.clock > row[0].clock)
        row[0] = (struct ledger_entry){slots[0].incarnation, ps->kept.clock};
    ps->kept = (struct ledger_entry){0};
}

static void take_view(struct simulated *s, uint32_t p,
                      const struct simulated_control *view) {
    struct simulated_ps *ps = &s->ps[p];
    struct gate_slot slots[SIMULATED_RANKS];
    memcpy(slots, view->slots, sizeof slots);
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++)
        if (ps->slots[r].incarnation != view->slots[r].incarnation)
            for (uint32_t b = 0; b < ps->count; b++) {
                ps->readers[b][r].waiting = false;
                ps->lookups[b][r].waiting = false;
                s->truth.taken[ps->ids[b]][r] = 0;
            }
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++)
        s->truth.from[view->slots[r].incarnation] = view->slots[r].from;
    memcpy(ps->slots, view->slots, sizeof ps->slots);
    if (view->number < ps->view)
        simulated_fail(s, "ps %u takes view %llu after %llu", p,
                       (unsigned long long)view->number,
                       (unsigned long long)ps->view);
    ps->view = view->number;
    ps->member.trains = s->scenario.adopts;
    look_at_view(s, p, slots);
    keep_ledger(s, p, slots);
    if (!simulated_has_fault(s, SIMULATION_VIEW_NOT_APPLIED))
        update_core_set_view(ps->update_core, view->number, slots);
}

static void take_norm(struct simulated *s, uint32_t p,
                      const struct simulated_control *control_message) {
    struct simulated_ps *ps = &s->ps[p];
    bool other = simulated_has_fault(s, SIMULATION_OTHER_NORM);
    ps->norm = control_message->norm;
    ps->norm_round = control_message->round + other;
    update_core_set_norm(ps->update_core, control_message->round + other);
}

static void obey(struct simulated *s, uint32_t p,
                 const struct simulated_message *order) {
    struct simulated_ps *ps = &s->ps[p];
    const struct simulated_control nothing = {0};
    if (order->kind == SIMULATED_STOP) {
        simulated_member_send_once(s, &ps->member, simulated_ps_process(p),
                                   SIMULATED_GOODBYE, &nothing);
        if (order->control_message.back)
            simulated_go_back(s, simulated_ps_process(p));
        else
            simulated_end(s, simulated_ps_process(p),
                          order->control_message.ok);
        return;
    }
    if (order->kind == SIMULATED_PLAN)
        take_plan(s, p, &order->control_message);
    if (!ps->update_core)
        return;
    if (order->kind == SIMULATED_VIEW)
        take_view(s, p, &order->control_message);
    else if (order->kind == SIMULATED_COPY_ORDER)
        simulated_copies_order(s, p, &order->control_message);
    else if (order->kind == SIMULATED_NORM)
        take_norm(s, p, &order->control_message);
    else
        simulated_snapshot_agent_order(s, p, order);
    settle(s, p);
}

void simulated_ps_receive(struct simulated *s, uint32_t p,
                          const struct simulated_peer *from,
                          const struct simulated_message *message) {
    struct simulated_ps *ps = &s->ps[p];
    if (message->kind < SIMULATED_JOIN)
        serve(s, p, from, message);
    else if (simulated_member_receive(s, &ps->member, simulated_ps_process(p),
                                      message))
        obey(s, p, message);
}

void simulated_ps_step(struct simulated *s, uint32_t p) {
    struct simulated_ps *ps = &s->ps[p];
    struct simulated_control heartbeat = {.number = ps->view};
    if (!ps->member.joined || ps->member.rejoins)
        simulated_copies_list(s, p, &heartbeat);
    memcpy(heartbeat.slots, ps->slots, sizeof heartbeat.slots);
    heartbeat.ok =
        ps->update_core && update_core_highest(ps->update_core) > ps->start;
    if (simulated_copies_step(s, p) && ps->has_plan && !ps->update_core)
        begin(s, p);
    if (!s->processes[simulated_ps_process(p)].running)
        return;
    simulated_snapshot_agent_step(s, p);
    simulated_member_step(s, &ps->member, simulated_ps_process(p), &heartbeat);
}
