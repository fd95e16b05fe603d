/* SPDX-License-Identifier: Apache-2.0 */
#include "simulator/network.h"

#include <math.h>
#include <stdlib.h>

enum { CHUNK = 64 << 10, MIN_WINDOW = 4 * CHUNK };

struct connection {
    uint32_t from, to;
    struct connection *next;                    /* next in the queue of turns */
    struct network_message *sending, *arriving; /* the oldest incomplete one */
    struct network_message *last;
    uint64_t in_flight;
    bool is_queued; /* waiting for its turn */
};

struct host {
    struct connection *first, *last; /* the queue of turns */
    bool is_sending;
    int64_t idle_at; /* the receiving side */
    int64_t busy[2]; /* by direction */
};

struct network {
    struct timeline *timeline;
    struct network_settings settings;
    struct host *hosts;
    struct connection *connections;
    uint64_t window;
};

/* Slightly more than one connection needs to keep its link busy. */
static uint64_t window_of(const struct network_settings *settings) {
    double round_trip = 2e-9 * (double)settings->latency * settings->rate;
    if (!(settings->rate > 0))
        return UINT64_MAX;
    return MIN_WINDOW + (uint64_t)(2 * round_trip);
}

struct network *network_open(struct timeline *timeline,
                             const struct network_settings *settings) {
    struct network *network = calloc(1, sizeof *network);
    if (!network)
        return NULL;
    network->timeline = timeline;
    network->settings = *settings;
    network->window = window_of(settings);
    network->hosts = calloc(settings->hosts + 1, sizeof *network->hosts);
    network->connections =
        calloc(settings->connections + 1, sizeof *network->connections);
    if (!network->hosts || !network->connections)
        network_close(&network);
    return network;
}

static void drop_messages(struct network *network, struct connection *c) {
    while (network->settings.drop && c->arriving) {
        struct network_message *message = c->arriving;
        c->arriving = message->next;
        network->settings.drop(message);
    }
}

void network_close(struct network **where) {
    struct network *network = *where;
    *where = NULL;
    if (!network)
        return;
    for (uint32_t c = 0;
         network->connections && c < network->settings.connections; c++)
        drop_messages(network, &network->connections[c]);
    free(network->hosts);
    free(network->connections);
    free(network);
}

void network_connect(struct network *network, uint32_t c, uint32_t from,
                     uint32_t to) {
    network->connections[c] = (struct connection){.from = from, .to = to};
}

static void enqueue_connection(struct network *network, struct connection *c) {
    struct host *host = &network->hosts[c->from];
    if (c->is_queued || !c->sending || c->in_flight >= network->window)
        return;
    c->is_queued = true;
    c->next = NULL;
    if (host->first)
        host->last->next = c;
    else
        host->first = c;
    host->last = c;
}

static struct connection *dequeue_connection(struct host *host) {
    struct connection *c = host->first;
    if (c) {
        host->first = c->next;
        c->is_queued = false;
    }
    return c;
}

/* Time of BYTES on a link, rounded up. */
static int64_t link_time(const struct network *network, uint64_t bytes) {
    double rate = network->settings.rate;
    return rate > 0 ? (int64_t)ceil(1e9 * (double)bytes / rate) : 0;
}

static void deliver(struct network *network, struct connection *c) {
    struct network_message *message = c->arriving;
    c->arriving = message->next;
    if (!c->arriving)
        c->last = NULL;
    network->settings.deliver(network->settings.context, message);
}

static void network_serve(struct network *network, uint32_t h);

/* A piece of connection NUMBER's oldest message has arrived; its size follows
 * from the bytes still to arrive. */
static void network_on_arrival(void *context, uint64_t number) {
    struct network *network = context;
    struct connection *c = &network->connections[number];
    uint64_t bytes =
        c->arriving->to_arrive < CHUNK ? c->arriving->to_arrive : CHUNK;
    c->arriving->to_arrive -= bytes;
    c->in_flight -= bytes;
    if (!c->arriving->to_arrive)
        deliver(network, c);
    enqueue_connection(network, c);
    network_serve(network, c->from);
}

static void on_sent(void *context, uint64_t number) {
    struct network *network = context;
    network->hosts[number].is_sending = false;
    network_serve(network, (uint32_t)number);
}

/* The first byte of a piece arrives after the latency, the last once both links
 * have had time for all of it. All latencies are equal, so a receiver gets
 * pieces in the order in which they were sent. */
static void network_send_chunk(struct network *network, struct connection *c) {
    struct host *from = &network->hosts[c->from], *to = &network->hosts[c->to];
    uint64_t bytes = c->sending->to_send < CHUNK ? c->sending->to_send : CHUNK;
    int64_t now = timeline_now(network->timeline);
    int64_t time = link_time(network, bytes);
    int64_t arrival = now + network->settings.latency;
    c->sending->to_send -= bytes;
    c->in_flight += bytes;
    if (!c->sending->to_send)
        c->sending = c->sending->next;
    to->idle_at = (arrival > to->idle_at ? arrival : to->idle_at) + time;
    from->busy[NETWORK_OUT] += time;
    to->busy[NETWORK_IN] += time;
    from->is_sending = true;
    timeline_add(network->timeline, time, on_sent, network, c->from);
    timeline_add(network->timeline, to->idle_at - now, network_on_arrival,
                 network, (uint64_t)(c - network->connections));
    enqueue_connection(network, c);
}

static void network_serve(struct network *network, uint32_t h) {
    struct host *host = &network->hosts[h];
    if (host->is_sending)
        return;
    struct connection *c = dequeue_connection(host);
    if (c)
        network_send_chunk(network, c);
}

void network_send(struct network *network, uint32_t number, uint64_t bytes,
                  struct network_message *message) {
    struct connection *c = &network->connections[number];
    *message = (struct network_message){NULL, bytes, bytes};
    if (c->last)
        c->last->next = message;
    else
        c->arriving = message;
    c->last = message;
    if (!c->sending)
        c->sending = message;
    enqueue_connection(network, c);
    network_serve(network, c->from);
}

double network_busy(const struct network *network, uint32_t host,
                    enum network_direction direction) {
    return 1e-9 * (double)network->hosts[host].busy[direction];
}
