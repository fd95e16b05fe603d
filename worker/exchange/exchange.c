/* SPDX-License-Identifier: Apache-2.0 */
/* Two tables of the same functions. Functions that only forward a pointer exist
 * because the table's functions take void pointers: calling client_pull through
 * a pointer of another type is undefined. Functions that only a resident
 * reducer has are not in the table: exchange_begin and those after it test for
 * it. */
#include "worker/exchange/exchange.h"

struct exchange_vtable {
    void (*pull)(void *context, uint64_t clock, uint64_t snapshot);
    void (*assign)(void *context, uint64_t clock);
    void (*set_values)(void *context, uint64_t clock, uint32_t group,
                       const double *values);
    void (*settle)(void *context);
    void (*announce)(void *context, uint32_t first, uint32_t count,
                     uint64_t clock, enum contribution contribution_kind);
    bool (*wait)(void *context, uint32_t parameter, int64_t until);
    uint64_t (*global_step)(void *context);
    bool (*over_network)(const void *context);
    double (*waited)(void *context);
    struct loss_scaler (*scaler)(void *context);
    void (*cancel)(void *context);
};

static void pull_client(void *client, uint64_t clock, uint64_t snapshot) {
    client_pull(client, clock, snapshot);
}

static void assign_client(void *client, uint64_t clock) {
    client_assign(client, clock);
}

static void set_values_client(void *client, uint64_t clock, uint32_t group,
                              const double *values) {
    client_set_values(client, clock, group, values);
}

static void settle_client(void *client) {
    client_settle(client);
}

static void announce_client(void *client, uint32_t first, uint32_t count,
                            uint64_t clock,
                            enum contribution contribution_kind) {
    client_announce(client, first, count, clock, contribution_kind);
}

static bool wait_client(void *client, uint32_t parameter, int64_t until) {
    return client_wait(client, parameter, until);
}

static uint64_t global_step_client(void *client) {
    return client_global_step(client);
}

static bool over_network_client(const void *client) {
    return client_over_network(client);
}

static double waited_client(void *client) {
    return client_waited(client);
}

static struct loss_scaler scaler_client(void *client) {
    return client_scaler(client);
}

static void cancel_client(void *client) {
    client_cancel(client);
}

static const struct exchange_vtable clients = {
    pull_client,     assign_client, set_values_client,  settle_client,
    announce_client, wait_client,   global_step_client, over_network_client,
    waited_client,   scaler_client, cancel_client,
};

/* Outside of a step the weights of all trainers are equal and do not change. */
static void pull_noop(void *reducer, uint64_t clock, uint64_t snapshot) {
    (void)reducer;
    (void)clock;
    (void)snapshot;
}

static void assign_noop(void *reducer, uint64_t clock) {
    (void)reducer;
    (void)clock;
}

static void set_values_reducer(void *reducer, uint64_t clock, uint32_t group,
                               const double *values) {
    reducer_set_values(reducer, clock, group, values);
}

static void settle_reducer(void *reducer) {
    reducer_settle(reducer);
}

static void announce_reducer(void *reducer, uint32_t first, uint32_t count,
                             uint64_t clock,
                             enum contribution contribution_kind) {
    reducer_announce(reducer, first, count, clock, contribution_kind);
}

static bool wait_reducer(void *reducer, uint32_t parameter, int64_t until) {
    return reducer_wait(reducer, parameter, until);
}

static uint64_t global_step_reducer(void *reducer) {
    return reducer_round(reducer);
}

/* Buckets gather small parameters themselves. */
static bool over_network_reducer(const void *reducer) {
    (void)reducer;
    return true;
}

static double waited_reducer(void *reducer) {
    return reducer_waited(reducer);
}

static struct loss_scaler scaler_reducer(void *reducer) {
    return reducer_scaler(reducer);
}

static void cancel_reducer(void *reducer) {
    reducer_cancel(reducer);
}

static const struct exchange_vtable reducers = {
    pull_noop,        assign_noop,    set_values_reducer,  settle_reducer,
    announce_reducer, wait_reducer,   global_step_reducer, over_network_reducer,
    waited_reducer,   scaler_reducer, cancel_reducer,
};

struct exchange exchange_client(struct client *client) {
    return (struct exchange){&clients, client, false, false};
}

struct exchange exchange_reducer(struct reducer *reducer) {
    return (struct exchange){&reducers, reducer, true,
                             reducer_is_resident(reducer)};
}

void exchange_pull(struct exchange exchange, uint64_t clock,
                   uint64_t snapshot) {
    exchange.vtable->pull(exchange.context, clock, snapshot);
}

void exchange_assign(struct exchange exchange, uint64_t clock) {
    exchange.vtable->assign(exchange.context, clock);
}

void exchange_set_values(struct exchange exchange, uint64_t clock,
                         uint32_t group, const double *values) {
    exchange.vtable->set_values(exchange.context, clock, group, values);
}

void exchange_settle(struct exchange exchange) {
    exchange.vtable->settle(exchange.context);
}

void exchange_announce(struct exchange exchange, uint32_t first, uint32_t count,
                       uint64_t clock, enum contribution contribution_kind) {
    exchange.vtable->announce(exchange.context, first, count, clock,
                              contribution_kind);
}

bool exchange_wait(struct exchange exchange, uint32_t parameter,
                   int64_t until) {
    return exchange.vtable->wait(exchange.context, parameter, until);
}

uint64_t exchange_due(struct exchange exchange, uint32_t *lead) {
    *lead = 0;
    return exchange.provides_first_weights ? reducer_due(exchange.context)
                                           : client_due(exchange.context, lead);
}

bool exchange_read_state(struct exchange exchange, uint32_t parameter,
                         uint64_t clock, unsigned slot, float *to) {
    if (exchange.provides_first_weights)
        return reducer_read_state(exchange.context, parameter, slot, to);
    client_pull_state(exchange.context, parameter, clock, slot, to);
    return true;
}

uint64_t exchange_rule_step(struct exchange exchange, uint32_t parameter) {
    return exchange.provides_first_weights
               ? reducer_rule_step(exchange.context, parameter)
               : client_rule_step(exchange.context);
}

void exchange_set_epoch(struct exchange exchange, uint64_t number,
                        uint64_t first) {
    if (!exchange.provides_first_weights)
        client_set_epoch(exchange.context, number, first);
}

bool exchange_epoch(struct exchange exchange, uint64_t *number,
                    uint64_t *first) {
    return !exchange.provides_first_weights &&
           client_epoch(exchange.context, number, first);
}

bool exchange_has_bytes(struct exchange exchange, uint32_t parameter) {
    return !exchange.provides_first_weights ||
           reducer_has_bytes(exchange.context, parameter);
}

void exchange_lookup(struct exchange exchange, uint64_t clock, bool early,
                     uint64_t snapshot, struct row_batch *rows) {
    if (exchange.provides_first_weights)
        row_reducer_lookup(reducer_rows(exchange.context), clock, rows);
    else
        client_lookup(exchange.context, clock, early, snapshot, rows);
}

bool exchange_wait_rows(struct exchange exchange, int64_t until) {
    return exchange.provides_first_weights
               ? row_reducer_wait_rows(reducer_rows(exchange.context), until)
               : client_wait_rows(exchange.context, until);
}

bool exchange_push_rows(struct exchange exchange, uint64_t clock,
                        enum contribution contribution_kind,
                        struct row_batch *rows) {
    return exchange.provides_first_weights
               ? row_reducer_push(reducer_rows(exchange.context), clock,
                                  contribution_kind, rows)
               : client_push_rows(exchange.context, clock, contribution_kind,
                                  rows);
}

bool exchange_wait_pushed(struct exchange exchange, int64_t until) {
    return exchange.provides_first_weights
               ? row_reducer_wait_pushed(reducer_rows(exchange.context), until)
               : client_wait_pushed(exchange.context, until);
}

uint64_t exchange_row_bytes(struct exchange exchange,
                            const struct row_batch *rows) {
    uint64_t gradients = rows->floats * sizeof(float);
    return exchange.provides_first_weights
               ? row_reducer_peers(reducer_rows(exchange.context)) *
                     (rows->lists + gradients)
               : 2 * rows->lists + gradients;
}

uint64_t exchange_global_step(struct exchange exchange) {
    return exchange.vtable->global_step(exchange.context);
}

bool exchange_over_network(struct exchange exchange) {
    return exchange.vtable->over_network(exchange.context);
}

double exchange_waited(struct exchange exchange) {
    return exchange.vtable->waited(exchange.context);
}

struct loss_scaler exchange_scaler(struct exchange exchange) {
    return exchange.vtable->scaler(exchange.context);
}

enum status exchange_begin(struct exchange exchange,
                           const struct reducer_device_arena *device_arena,
                           struct failure *why) {
    return exchange.resident
               ? reducer_begin(exchange.context, device_arena, why)
               : STATUS_OK;
}

enum status exchange_unscale(struct exchange exchange, float by, bool *finite,
                             struct failure *why) {
    return exchange.resident
               ? reducer_unscale(exchange.context, by, finite, why)
               : STATUS_OK;
}

enum status exchange_download_weights(struct exchange exchange,
                                      struct failure *why) {
    return exchange.resident ? reducer_download_weights(exchange.context, why)
                             : STATUS_OK;
}

void exchange_serve(struct exchange exchange) {
    if (exchange.resident)
        reducer_serve(exchange.context);
}

bool exchange_peer_lost(struct exchange exchange, struct failure *why) {
    return exchange.resident && reducer_peer_lost(exchange.context, why);
}

void exchange_end(struct exchange exchange) {
    if (exchange.resident)
        reducer_end(exchange.context);
}

void exchange_cancel(struct exchange exchange) {
    exchange.vtable->cancel(exchange.context);
}
