/* SPDX-License-Identifier: Apache-2.0 */
/* What a client is made of: for client*.c only. */
#ifndef CAPSTAN_CLIENT_INTERNAL_H
#define CAPSTAN_CLIENT_INTERNAL_H

#include "proto/net/link/link.h"
#include "proto/net/link/resolve.h"
#include "proto/net/messages/message.h"
#include "worker/exchange/client/client.h"
#include "worker/exchange/client/window.h"

#include <pthread.h>

/* What the compute thread asked for, in order: COUNT parameters from FIRST. */
struct client_request {
    uint64_t clock, snapshot;
    uint32_t first, count;
    enum window_kind kind;
};

struct client_peer {
    struct link *link;
    struct resolve *resolve;
    int64_t resolved_at;
    char host[256], name[320]; /* "ps 1 at host:port" */
    uint16_t port;
    bool connected;      /* or on the way to it */
    char transport[128]; /* how messages go, to be said */
    int64_t transport_since;
    bool transport_logged; /* its first way was said */
};

struct client {
    struct client_settings settings;
    struct window *window;
    uint32_t *block_bytes; /* in a push */
    struct client_peer *peers;
    uint64_t seq, snapshot;
    int64_t step_limit, logged_wait;
    int64_t stepped_at; /* when it last looked */
    struct message_arena arena;
    unsigned char header[MESSAGE_MAX_HEADER];
    char refusal[256]; /* last one logged */

    pthread_mutex_t mutex;
    pthread_cond_t arrived;
    int wake;
    struct client_request *requests; /* ring of num_parameters + 1 */
    uint32_t first_request, num_requests;
    uint32_t *missing; /* blocks awaited, a parameter */
    uint64_t global_step;
    struct loss_scaler scaler;
    double overflow_scale; /* of the last void push */
    bool cancelled;
    int64_t waited;
};

/* Sends what the window has due. */
void client_send_due(struct client *client, int64_t now);

/* Takes all that has come from PS. */
void client_receive(struct client *client, uint32_t ps, int64_t now);

#endif
