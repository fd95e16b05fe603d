/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a client; for client*.c only. */
#ifndef CAPSTAN_CLIENT_INTERNAL_H
#define CAPSTAN_CLIENT_INTERNAL_H

#include "proto/net/messages/ps_links.h"
#include "worker/exchange/client/client.h"
#include "worker/exchange/client/push_values.h"
#include "worker/exchange/client/window.h"

#include <pthread.h>

/* What a pull reads: a snapshot, or a state's TENSOR of one parameter, which
 * goes TO there; neither: the present weights. */
struct client_source {
    uint64_t snapshot;
    uint32_t tensor;
    float *to;
};

/* A request of the compute thread, in order: COUNT parameters from FIRST. */
struct client_request {
    uint64_t clock;
    struct client_source source;
    uint32_t first, count;
    enum window_kind kind;
};

struct client_peer {
    struct link *link;   /* view */
    char name[320];      /* "ps 1 at host:port" */
    char transport[128]; /* current transport, to be logged */
    int64_t transport_since;
    bool transport_logged; /* its first transport was logged */
};

struct client {
    struct client_settings settings;
    struct window *window;
    uint32_t *block_bytes; /* in a push */
    /* Gradients in their wire format, in memory that a ps on this host reads in
     * place: block B's at STAGED_AT[B]. Opened when first needed. */
    struct buffer *staging;
    size_t *staged_at;
    struct buffer **gradient_of; /* per parameter, if they are apart */
    struct client_peer *peers;
    struct ps_links *links;
    uint64_t seq;
    struct client_source source; /* of the last request */
    int64_t step_limit, logged_wait;
    int64_t stepped_at; /* time of the last step */
    char refusal[256];  /* last refusal logged */

    struct push_values *push_values; /* under the mutex */

    pthread_mutex_t mutex;
    pthread_cond_t arrived;
    int wake;
    struct client_request *requests; /* ring of num_parameters + 1 */
    uint32_t first_request, num_requests;
    uint32_t *outstanding; /* blocks to be received, per parameter */
    uint64_t global_step, due;
    uint32_t lead;
    bool names_epochs;           /* by client_set_epoch */
    uint64_t epoch, epoch_first; /* else as received */
    struct loss_scaler scaler;
    double overflow_scale; /* loss scale of the last overflowed push */
    bool cancelled, settled;
    int64_t waited;
};

/* Sends all due requests of the window. */
void client_send_due(struct client *client, int64_t now);

/* Processes all messages received from PS. */
void client_receive(struct client *client, uint32_t ps, int64_t now);

#endif
