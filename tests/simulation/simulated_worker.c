/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulation/simulated_worker.h"

#include "tests/simulation/simulated_member.h"
#include "tests/simulation/simulated_net.h"
#include "tests/simulation/simulated_oracle.h"

#include <string.h>

static const int64_t RETRY_AFTER = 10 * TIME_MS;

static uint32_t process_of(const struct simulated *s, uint32_t rank) {
    return simulated_worker_process(s, rank);
}

void simulated_worker_open(struct simulated *s, uint32_t rank, bool keeps) {
    struct simulated_worker *w = &s->workers[rank];
    uint64_t kept[SIMULATED_UNITS];
    bool has_kept = keeps && simulated_has_fault(s, SIMULATION_ROWS_KEPT) &&
                    w->looked_up == s->scenario.micro_batches && !w->rows;
    memcpy(kept, w->values, sizeof kept);
    memset(w, 0, sizeof *w);
    memcpy(w->kept, kept, sizeof kept);
    w->has_kept = has_kept;
    simulated_member_open(s, &w->member, process_of(s, rank));
}

void simulated_worker_close(struct simulated *s, uint32_t rank) {
    window_close(&s->workers[rank].window);
    simulated_member_close(&s->workers[rank].member);
}

static void want(struct simulated *s, uint32_t rank, uint32_t first,
                 uint32_t count, enum window_kind kind) {
    struct simulated_worker *w = &s->workers[rank];
    w->missing += count;
    window_enqueue(w->window, first, count, kind, w->clock);
}

/* As worker/exchange/client/client.c fills them; those of rows follow. */
static void fill_blocks(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    uint32_t units = simulated_units(s);
    memcpy(w->block_bytes, s->scenario.block_bytes,
           s->scenario.num_blocks * sizeof *w->block_bytes);
    for (uint32_t b = 0; b < units + s->scenario.num_partitions; b++)
        w->block_ps[b] = (uint16_t)simulated_place(
            s, w->member.run, b < units ? b : b - s->scenario.num_partitions);
}

/* First weights are read: whether they are those of the start is then seen. */
static void begin(struct simulated *s, uint32_t rank, uint64_t from) {
    struct simulated_worker *w = &s->workers[rank];
    const struct simulated_scenario *scenario = &s->scenario;
    struct window_settings settings = {
        .num_blocks = simulated_units(s) + scenario->num_partitions,
        .num_ps = scenario->num_ps,
        .first_push = scenario->num_blocks,
        .first_lookup = simulated_units(s),
        .block_ps = w->block_ps,
        .block_bytes = w->block_bytes,
        .credit = scenario->credit,
        .group_bytes = scenario->group_bytes,
        .query_after = TIME_S,
        .retry_after = RETRY_AFTER,
    };
    if (simulated_has_fault(s, SIMULATION_CREDIT_IGNORED))
        settings.credit = UINT64_MAX;
    if (simulated_has_fault(s, SIMULATION_NEVER_QUERIES))
        settings.query_after = TIME_NEVER / 4;
    fill_blocks(s, rank);
    w->window = window_open(&settings);
    w->training = w->pushed = true;
    w->member.trains = s->scenario.adopts;
    w->from = from;
    w->clock = from - 1;
    w->announced = scenario->num_parameters;
    if (w->has_kept) {
        memcpy(w->values, w->kept, sizeof w->kept);
        w->looked_up = scenario->micro_batches;
    }
    want(s, rank, 0, scenario->num_blocks, WINDOW_PULL);
}

/* It stays if there is nothing to train, and ends after a signal. */
static void leave_loop(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    const struct simulated_control control = {.clock = w->clock};
    simulated_trace(s, "rank %u leaves at %llu", rank,
                    (unsigned long long)w->clock);
    w->finished = true;
    if (!w->leaving) {
        simulated_member_send_reliable(s, &w->member, process_of(s, rank),
                                       SIMULATED_FINISHED, &control);
        return;
    }
    simulated_member_send_once(s, &w->member, process_of(s, rank),
                               SIMULATED_GOODBYE, &control);
    simulated_end(s, process_of(s, rank), false);
}

static bool goes_on(const struct simulated *s,
                    const struct simulated_worker *w) {
    return (simulated_synchronous(s) ? w->clock : w->step) < s->scenario.total;
}

/* The next micro batch of the step after this one. */
static void look_up(struct simulated *s, uint32_t rank, bool early) {
    struct simulated_worker *w = &s->workers[rank];
    uint32_t m = w->looked_up++, units = simulated_units(s);
    w->looks_up_early = early;
    w->looked_up_after = w->seq;
    for (uint32_t b = s->scenario.num_blocks; b < units; b++) {
        uint32_t lookup = b + s->scenario.num_partitions;
        w->ids[b] = simulated_oracle_rows(s, rank, w->clock + 1, m, b);
        if (!w->ids[b])
            continue;
        w->block_bytes[lookup] =
            simulated_oracle_bytes(s, rank, w->clock + 1, b);
        window_enqueue(w->window, lookup, 1, WINDOW_PULL, w->clock);
        w->rows++;
    }
}

/* The rows of the next step's micro batches, one after the other. */
static bool has_rows(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    while (!w->rows && w->looked_up < s->scenario.micro_batches)
        look_up(s, rank, false);
    return !w->rows;
}

static void look_ahead(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    if (!w->looked_up && s->scenario.num_partitions && goes_on(s, w) &&
        simulated_chance(s, s->scenario.looks_ahead))
        look_up(s, rank, simulated_chance(s, s->scenario.looks_early));
}

/* Rows that arrive from now on are the next step's. */
static void compute(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    uint32_t blocks = s->scenario.num_blocks;
    w->clock++;
    w->announced = w->looked_up = 0;
    w->pushed = !s->scenario.num_partitions;
    for (uint32_t b = 0; b < simulated_units(s); b++)
        w->gradients[b] =
            simulated_oracle_gradient(s, rank, w->clock, b, w->values);
    memcpy(w->sent_gradients, w->gradients, blocks * sizeof *w->gradients);
    memset(w->values + blocks, 0,
           s->scenario.num_partitions * sizeof *w->values);
    w->busy_until = s->now + simulated_time(s, s->scenario.step_time);
}

/* What a trainer has missed it skips: it goes on with the block that is least
 * far, to which its next push is then never too early. */
static void skip_missed(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    uint64_t round = w->versions[0];
    bool furthest = simulated_has_fault(s, SIMULATION_STRAGGLER_TOO_FAR);
    if (!s->scenario.backup_workers ||
        simulated_has_fault(s, SIMULATION_STRAGGLER_GOES_ON))
        return;
    for (uint32_t b = 1; b < s->scenario.num_blocks; b++)
        if ((w->versions[b] > round) == furthest)
            round = w->versions[b];
    w->clock = round;
}

static void begin_step(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    skip_missed(s, rank);
    if (w->leaving || !goes_on(s, w)) {
        if (!w->receipts)
            leave_loop(s, rank);
    } else if (has_rows(s, rank)) {
        simulated_oracle_step(s, rank);
        compute(s, rank);
    }
}

static enum window_kind kind_of_push(const struct simulated *s, uint32_t rank) {
    uint64_t clock = s->workers[rank].clock;
    if (simulated_oracle_void(s, rank, clock))
        return WINDOW_PUSH_OVERFLOWED;
    return simulated_oracle_empty(s, rank, clock) ? WINDOW_PUSH_EMPTY
                                                  : WINDOW_PUSH;
}

/* Gradients become complete one parameter after another, the last first,
 * which is the plan's order of blocks. */
static void announce(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    uint32_t p = s->scenario.num_parameters - 1 - w->announced++;
    want(s, rank, s->scenario.first_block[p], s->scenario.blocks_of[p],
         kind_of_push(s, rank));
    w->busy_until = s->now + simulated_time(s, s->scenario.step_time) /
                                 s->scenario.num_parameters;
}

/* As worker/exchange/client/client_messages.c and worker/train/embedding.c. */
static void push_rows(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    uint32_t first = s->scenario.num_blocks, count = s->scenario.num_partitions;
    enum window_kind kind = kind_of_push(s, rank);
    bool any = false;
    for (uint32_t b = first; b < first + count; b++) {
        uint32_t bytes = simulated_oracle_bytes(s, rank, w->clock, b);
        any |= bytes > 0;
        w->block_bytes[b] = kind == WINDOW_PUSH ? bytes : 0;
        w->sent_gradients[b] = w->gradients[b];
    }
    w->pushed = true;
    w->receipts = count;
    window_enqueue(w->window, first, count,
                   kind == WINDOW_PUSH && !any ? WINDOW_PUSH_ZERO : kind,
                   w->clock);
}

/* Gradients wait for the receipts of the step before: a block would go, and be
 * asked for, before partitions, also before those of an older clock, which
 * other trainers may need to come so far. */
static void push_next(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    bool announced = w->announced == s->scenario.num_parameters;
    bool waits =
        w->receipts &&
        (announced || !simulated_has_fault(s, SIMULATION_ROWS_OVERTAKEN));
    if (!waits && s->now >= w->busy_until) {
        if (announced)
            push_rows(s, rank);
        else
            announce(s, rank);
        look_ahead(s, rank);
    }
    if (w->busy_until > s->now)
        simulated_net_wake(s, process_of(s, rank), w->busy_until);
}

static bool has_pushed(const struct simulated *s, uint32_t rank) {
    const struct simulated_worker *w = &s->workers[rank];
    return w->announced == s->scenario.num_parameters && w->pushed;
}

static void advance(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    if (!w->training || w->finished)
        return;
    if (has_pushed(s, rank) && !w->missing)
        begin_step(s, rank);
    if (!w->finished && !has_pushed(s, rank))
        push_next(s, rank);
}

static enum simulated_kind kind_of(const struct simulated *s,
                                   const struct window_request *request) {
    if (request->kind == WINDOW_QUERY)
        return SIMULATED_QUERY;
    if (request->kind != WINDOW_PULL)
        return SIMULATED_PUSH;
    return request->blocks[0] < s->scenario.num_blocks ? SIMULATED_PULL
                                                       : SIMULATED_LOOKUP;
}

/* Planted: one credit for all ps together. */
static bool has_shared_credit(const struct simulated *s, uint32_t rank,
                              const struct window_request *request) {
    const struct simulated_worker *w = &s->workers[rank];
    uint64_t bytes = request->bytes, under_way = 0;
    if (!simulated_has_fault(s, SIMULATION_SHARED_CREDIT) ||
        request->kind != WINDOW_PUSH)
        return true;
    for (uint32_t b = 0; b < simulated_units(s); b++)
        if (w->under_way[b])
            under_way += w->block_bytes[b];
    return !under_way || under_way + bytes <= s->scenario.credit;
}

static bool send(struct simulated *s, uint32_t rank,
                 const struct window_request *request) {
    struct simulated_worker *w = &s->workers[rank];
    struct simulated_message message = {
        .kind = kind_of(s, request),
        .run = w->member.run,
        .incarnation = s->processes[process_of(s, rank)].incarnation};
    struct simulated_data *data = &message.data;
    data->rank = rank;
    data->seq = ++w->seq;
    data->clock = request->clock;
    data->overflowed = request->kind == WINDOW_PUSH_OVERFLOWED;
    data->early = w->looks_up_early;
    data->empty = data->overflowed || request->kind == WINDOW_PUSH_EMPTY;
    for (uint32_t i = 0; i < request->count; i++) {
        uint32_t b = request->blocks[i];
        if (message.kind == SIMULATED_PUSH &&
            simulated_has_fault(s, SIMULATION_RESEND_AS_NEW) &&
            w->first_sent[b] == request->clock)
            data->clock = request->clock + 1;
        bool lookup = message.kind == SIMULATED_LOOKUP;
        uint32_t unit = lookup ? b - s->scenario.num_partitions : b;
        data->blocks[data->count] = unit;
        data->zero[data->count] = !data->empty && !w->block_bytes[unit];
        data->values[data->count++] =
            lookup ? w->ids[unit] : w->sent_gradients[b];
    }
    return has_shared_credit(s, rank, request) &&
           simulated_net_up(s, simulated_net_data(rank, request->ps),
                            process_of(s, rank),
                            simulated_ps_process(request->ps), &message);
}

static void note_sent(struct simulated *s, uint32_t rank,
                      struct window_request *request) {
    struct simulated_worker *w = &s->workers[rank];
    for (uint32_t i = 0; i < request->count / 2 && rank % 2 &&
                         simulated_has_fault(s, SIMULATION_OTHER_ORDER);
         i++) {
        uint32_t b = request->blocks[i], j = request->count - 1 - i;
        request->blocks[i] = request->blocks[j];
        request->blocks[j] = b;
    }
    if (kind_of(s, request) != SIMULATED_PUSH)
        return;
    simulated_oracle_sent(s, rank, request);
    for (uint32_t i = 0; i < request->count; i++)
        w->under_way[request->blocks[i]] = true;
}

static void send_due(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    struct window_request request;
    while (window_next(w->window, s->now, &request)) {
        if (send(s, rank, &request)) {
            w->blocked_since = 0;
            note_sent(s, rank, &request);
            continue;
        }
        window_requeue(w->window, &request, s->now);
        if (!w->blocked_since)
            w->blocked_since = s->now;
        simulated_net_wake(s, process_of(s, rank), s->now + RETRY_AFTER);
    }
}

/* Every wait has an end, and none comes to it. */
static void check_waits(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    uint32_t ps = 0;
    int64_t since, deadline = window_deadline(w->window);
    bool silent = window_silent(w->window, &ps, &since);
    if (window_outstanding(w->window) && !silent && !w->blocked_since &&
        deadline == TIME_NEVER)
        simulated_fail(s, "rank %u waits for an answer without a deadline",
                       rank);
    if (silent && deadline == TIME_NEVER && !w->blocked_since)
        simulated_fail(s, "rank %u never looks after ps %u again", rank, ps);
    if (w->blocked_since && (!silent || w->blocked_since < since))
        since = w->blocked_since;
    if ((silent || w->blocked_since) && s->now - since > SIMULATED_STEP_LIMIT)
        simulated_fail(s, "rank %u waited for ps %u since %.3f s", rank, ps,
                       time_to_seconds(since));
    if (deadline != TIME_NEVER && !w->blocked_since)
        simulated_net_wake(s, process_of(s, rank), deadline);
}

static void take_weights(struct simulated *s, uint32_t rank,
                         const struct simulated_data *data) {
    struct simulated_worker *w = &s->workers[rank];
    for (uint32_t i = 0; i < data->count; i++) {
        uint32_t b = data->blocks[i];
        bool awaited = window_received(w->window, b, data->clock, s->now);
        if (simulated_has_fault(s, SIMULATION_REPLY_APPLIED_TWICE) &&
            !simulated_is_partition(s, b))
            awaited = w->missing > 0;
        if (!awaited)
            continue;
        simulated_oracle_answered(s, rank, b, data->clock, data->late);
        w->under_way[b] = false;
        if (simulated_is_partition(s, b)) {
            w->receipts--;
            continue;
        }
        w->values[b] = data->values[i];
        w->versions[b] = data->versions[i];
        w->missing--;
    }
    if (data->step > w->step)
        w->step = data->step;
}

/* A lookup that was repeated may be answered twice, the second time when the
 * next one is under way, which may have the same clock. */
static void take_rows(struct simulated *s, uint32_t rank,
                      const struct simulated_data *data) {
    struct simulated_worker *w = &s->workers[rank];
    if (data->seq <= w->looked_up_after &&
        !simulated_has_fault(s, SIMULATION_OLD_ROWS))
        return;
    for (uint32_t i = 0; i < data->count; i++) {
        uint32_t b = data->blocks[i];
        if (!window_received(w->window, b + s->scenario.num_partitions,
                             data->clock, s->now))
            continue;
        simulated_oracle_took_rows(s, rank, b, data->versions[i],
                                   data->values[i]);
        w->values[b] = simulated_oracle_add_read(w->values[b], data->values[i]);
        w->rows--;
    }
}

static void take_data(struct simulated *s, uint32_t rank,
                      const struct simulated_message *message) {
    struct simulated_worker *w = &s->workers[rank];
    const struct simulated_data *data = &message->data;
    if (!w->training || message->run != w->member.run)
        return;
    if (message->kind == SIMULATED_WEIGHTS)
        take_weights(s, rank, data);
    if (message->kind == SIMULATED_ROWS)
        take_rows(s, rank, data);
    for (uint32_t i = 0; message->kind == SIMULATED_MISSING && i < data->count;
         i++) {
        w->under_way[data->blocks[i]] = false;
        window_missing(w->window, data->blocks[i], data->clock);
    }
}

static void obey(struct simulated *s, uint32_t rank,
                 const struct simulated_message *order) {
    struct simulated_worker *w = &s->workers[rank];
    const struct simulated_control nothing = {0};
    const struct gate_slot *me = &order->control_message.slots[rank];
    if (order->kind == SIMULATED_STOP) {
        simulated_member_send_once(s, &w->member, process_of(s, rank),
                                   SIMULATED_GOODBYE, &nothing);
        if (order->control_message.back)
            simulated_go_back(s, process_of(s, rank));
        else
            simulated_end(s, process_of(s, rank), order->control_message.ok);
    } else if (order->kind == SIMULATED_ADOPTED && w->finished) {
        const struct simulated_control control = {.clock = w->clock};
        simulated_member_send_reliable(s, &w->member, process_of(s, rank),
                                       SIMULATED_FINISHED, &control);
    } else if (order->kind == SIMULATED_WELCOME) {
        simulated_member_send_reliable(s, &w->member, process_of(s, rank),
                                       SIMULATED_READY, &nothing);
    } else if (order->kind == SIMULATED_VIEW && !w->training &&
               me->incarnation ==
                   s->processes[process_of(s, rank)].incarnation) {
        begin(s, rank, me->from);
    }
}

void simulated_worker_receive(struct simulated *s, uint32_t rank,
                              const struct simulated_message *message) {
    struct simulated_worker *w = &s->workers[rank];
    if (message->kind < SIMULATED_JOIN)
        take_data(s, rank, message);
    else if (simulated_member_receive(s, &w->member, process_of(s, rank),
                                      message))
        obey(s, rank, message);
}

void simulated_worker_step(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    struct simulated_control heartbeat = {.clock = w->clock, .step = w->step};
    advance(s, rank);
    if (w->training) {
        send_due(s, rank);
        check_waits(s, rank);
    }
    simulated_member_step(s, &w->member, process_of(s, rank), &heartbeat);
}

void simulated_worker_reconnected(struct simulated *s, uint32_t rank,
                                  uint32_t ps) {
    if (s->workers[rank].window)
        window_reconnected(s->workers[rank].window, ps);
    simulated_net_wake(s, process_of(s, rank), s->now);
}
