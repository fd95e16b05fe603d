/* SPDX-License-Identifier: Apache-2.0 */
/* Two tables of the same verbs. Functions that only pass a pointer on are there
 * because a table's function takes a void pointer: calling client_pull by a
 * pointer of another type would be undefined. What a resident reducer alone can
 * do is no verb of the table: partner_begin and those after it ask first. */
#include "worker/exchange/partner.h"

struct partner_verbs {
    void (*pull)(void *context, uint64_t clock, uint64_t snapshot);
    void (*announce)(void *context, uint32_t first, uint32_t count,
                     uint64_t clock, enum contribution what);
    bool (*wait)(void *context, uint32_t parameter);
    uint64_t (*global_step)(void *context);
    bool (*over_network)(const void *context);
    double (*waited)(void *context);
    struct loss_scaler (*scaler)(void *context);
    void (*cancel)(void *context);
};

static void pull_client(void *client, uint64_t clock, uint64_t snapshot) {
    client_pull(client, clock, snapshot);
}

static void announce_client(void *client, uint32_t first, uint32_t count,
                            uint64_t clock, enum contribution what) {
    client_announce(client, first, count, clock, what);
}

static bool wait_client(void *client, uint32_t parameter) {
    return client_wait(client, parameter);
}

static uint64_t step_of_client(void *client) {
    return client_global_step(client);
}

static bool client_is_over_network(const void *client) {
    return client_over_network(client);
}

static double client_has_waited(void *client) {
    return client_waited(client);
}

static struct loss_scaler scaler_of_client(void *client) {
    return client_scaler(client);
}

static void cancel_client(void *client) {
    client_cancel(client);
}

static const struct partner_verbs clients = {
    pull_client,      announce_client,        wait_client,
    step_of_client,   client_is_over_network, client_has_waited,
    scaler_of_client, cancel_client,
};

/* Outside of a step the weights of all trainers are the same and at rest. */
static void pull_nothing(void *reducer, uint64_t clock, uint64_t snapshot) {
    (void)reducer;
    (void)clock;
    (void)snapshot;
}

static void announce_reducer(void *reducer, uint32_t first, uint32_t count,
                             uint64_t clock, enum contribution what) {
    reducer_announce(reducer, first, count, clock, what);
}

static bool wait_reducer(void *reducer, uint32_t parameter) {
    return reducer_wait(reducer, parameter);
}

static uint64_t round_of_reducer(void *reducer) {
    return reducer_round(reducer);
}

/* Buckets gather small parameters themselves. */
static bool always_over_network(const void *reducer) {
    (void)reducer;
    return true;
}

static double reducer_has_waited(void *reducer) {
    return reducer_waited(reducer);
}

static struct loss_scaler scaler_of_reducer(void *reducer) {
    return reducer_scaler(reducer);
}

static void cancel_reducer(void *reducer) {
    reducer_cancel(reducer);
}

static const struct partner_verbs reducers = {
    pull_nothing,      announce_reducer,    wait_reducer,
    round_of_reducer,  always_over_network, reducer_has_waited,
    scaler_of_reducer, cancel_reducer,
};

struct partner partner_client(struct client *client) {
    return (struct partner){&clients, client, false, false};
}

struct partner partner_reducer(struct reducer *reducer) {
    return (struct partner){&reducers, reducer, true,
                            reducer_is_resident(reducer)};
}

void partner_pull(struct partner partner, uint64_t clock, uint64_t snapshot) {
    partner.verbs->pull(partner.context, clock, snapshot);
}

void partner_announce(struct partner partner, uint32_t first, uint32_t count,
                      uint64_t clock, enum contribution what) {
    partner.verbs->announce(partner.context, first, count, clock, what);
}

bool partner_wait(struct partner partner, uint32_t parameter) {
    return partner.verbs->wait(partner.context, parameter);
}

uint64_t partner_global_step(struct partner partner) {
    return partner.verbs->global_step(partner.context);
}

bool partner_over_network(struct partner partner) {
    return partner.verbs->over_network(partner.context);
}

double partner_waited(struct partner partner) {
    return partner.verbs->waited(partner.context);
}

struct loss_scaler partner_scaler(struct partner partner) {
    return partner.verbs->scaler(partner.context);
}

enum status partner_begin(struct partner partner,
                          const struct reducer_place *place,
                          struct failure *why) {
    return partner.resident ? reducer_begin(partner.context, place, why)
                            : STATUS_OK;
}

enum status partner_undo(struct partner partner, float by, bool *finite,
                         struct failure *why) {
    return partner.resident ? reducer_undo(partner.context, by, finite, why)
                            : STATUS_OK;
}

enum status partner_show(struct partner partner, struct failure *why) {
    return partner.resident ? reducer_show(partner.context, why) : STATUS_OK;
}

void partner_serve(struct partner partner) {
    if (partner.resident)
        reducer_serve(partner.context);
}

bool partner_lost(struct partner partner, struct failure *why) {
    return partner.resident && reducer_lost(partner.context, why);
}

void partner_end(struct partner partner) {
    if (partner.resident)
        reducer_end(partner.context);
}

void partner_cancel(struct partner partner) {
    partner.verbs->cancel(partner.context);
}
