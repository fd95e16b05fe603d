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

void simulated_worker_open(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    memset(w, 0, sizeof *w);
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

/* First weights are read: whether they are those of the start is then seen. */
static void begin(struct simulated *s, uint32_t rank, uint64_t from) {
    struct simulated_worker *w = &s->workers[rank];
    const struct simulated_scenario *scenario = &s->scenario;
    struct window_settings settings = {
        .num_blocks = scenario->num_blocks,
        .num_ps = scenario->num_ps,
        .block_ps = scenario->block_ps,
        .block_bytes = scenario->block_bytes,
        .credit = scenario->credit,
        .group_bytes = scenario->group_bytes,
        .query_after = TIME_S,
        .retry_after = RETRY_AFTER,
    };
    if (simulated_has_fault(s, SIMULATION_CREDIT_IGNORED))
        settings.credit = UINT64_MAX;
    if (simulated_has_fault(s, SIMULATION_NEVER_QUERIES))
        settings.query_after = TIME_NEVER / 4;
    w->window = window_open(&settings);
    w->training = true;
    w->from = from;
    w->clock = from - 1;
    w->announced = scenario->num_parameters;
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

static void begin_step(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    if (w->leaving || !goes_on(s, w)) {
        leave_loop(s, rank);
        return;
    }
    simulated_oracle_step(s, rank);
    w->clock++;
    w->announced = 0;
    for (uint32_t b = 0; b < s->scenario.num_blocks; b++)
        w->gradients[b] =
            simulated_oracle_gradient(s, rank, w->clock, b, w->values);
    w->busy_until = s->now + simulated_time(s, s->scenario.step_time);
}

/* Gradients become complete one parameter after another, the last first,
 * which is the plan's order of blocks. */
static void announce(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    uint32_t p = s->scenario.num_parameters - 1 - w->announced++;
    bool empty = simulated_oracle_empty(s, rank, w->clock);
    bool overflowed = simulated_oracle_void(s, rank, w->clock);
    want(s, rank, s->scenario.first_block[p], s->scenario.blocks_of[p],
         overflowed ? WINDOW_PUSH_OVERFLOWED
         : empty    ? WINDOW_PUSH_EMPTY
                    : WINDOW_PUSH);
    w->busy_until = s->now + simulated_time(s, s->scenario.step_time) /
                                 s->scenario.num_parameters;
}

static void advance(struct simulated *s, uint32_t rank) {
    struct simulated_worker *w = &s->workers[rank];
    if (!w->training || w->finished)
        return;
    if (w->announced == s->scenario.num_parameters && !w->missing)
        begin_step(s, rank);
    if (w->announced < s->scenario.num_parameters) {
        if (s->now >= w->busy_until)
            announce(s, rank);
        simulated_net_wake(s, process_of(s, rank), w->busy_until);
    }
}

static enum simulated_kind kind_of(enum window_kind kind) {
    if (kind == WINDOW_QUERY)
        return SIMULATED_QUERY;
    return kind == WINDOW_PULL ? SIMULATED_PULL : SIMULATED_PUSH;
}

/* Planted: one credit for all ps together. */
static bool has_shared_credit(const struct simulated *s, uint32_t rank,
                              const struct window_request *request) {
    const struct simulated_worker *w = &s->workers[rank];
    uint64_t bytes = request->bytes, under_way = 0;
    if (!simulated_has_fault(s, SIMULATION_SHARED_CREDIT) ||
        request->kind != WINDOW_PUSH)
        return true;
    for (uint32_t b = 0; b < s->scenario.num_blocks; b++)
        if (w->under_way[b])
            under_way += s->scenario.block_bytes[b];
    return !under_way || under_way + bytes <= s->scenario.credit;
}

static bool send(struct simulated *s, uint32_t rank,
                 const struct window_request *request) {
    struct simulated_worker *w = &s->workers[rank];
    struct simulated_message message = {
        .kind = kind_of(request->kind),
        .run = w->member.run,
        .incarnation = s->processes[process_of(s, rank)].incarnation};
    struct simulated_data *data = &message.data;
    data->rank = rank;
    data->seq = ++w->seq;
    data->clock = request->clock;
    data->overflowed = request->kind == WINDOW_PUSH_OVERFLOWED;
    data->empty = data->overflowed || request->kind == WINDOW_PUSH_EMPTY;
    for (uint32_t i = 0; i < request->count; i++) {
        uint32_t b = request->blocks[i];
        if (message.kind == SIMULATED_PUSH &&
            simulated_has_fault(s, SIMULATION_RESEND_AS_NEW) &&
            w->first_sent[b] == request->clock)
            data->clock = request->clock + 1;
        data->blocks[data->count] = b;
        data->values[data->count++] = w->gradients[b];
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
    if (kind_of(request->kind) != SIMULATED_PUSH)
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
    if (window_outstanding(w->window) && !silent && !w->blocked_since)
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
        if (simulated_has_fault(s, SIMULATION_REPLY_APPLIED_TWICE))
            awaited = w->missing > 0;
        if (!awaited)
            continue;
        simulated_oracle_answered(s, rank, b, data->clock);
        w->under_way[b] = false;
        w->values[b] = data->values[i];
        w->versions[b] = data->versions[i];
        w->missing--;
    }
    if (data->step > w->step)
        w->step = data->step;
}

static void take_data(struct simulated *s, uint32_t rank,
                      const struct simulated_message *message) {
    struct simulated_worker *w = &s->workers[rank];
    const struct simulated_data *data = &message->data;
    if (!w->training || message->run != w->member.run)
        return;
    if (message->kind == SIMULATED_WEIGHTS)
        take_weights(s, rank, data);
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
        simulated_end(s, process_of(s, rank), order->control_message.ok);
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
