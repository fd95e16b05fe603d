/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a client; for client*.c only. */
#ifndef CAPSTAN_CLIENT_INTERNAL_H
#define CAPSTAN_CLIENT_INTERNAL_H

#include "core/base/health.h"
#include "core/base/time.h"
#include "core/base/waiter.h"
#include "proto/messages/ps_links.h"
#include "worker/exchange/client/client.h"
#include "worker/exchange/client/push_values.h"
#include "worker/exchange/client/window.h"

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

/* A push of rows, or a lookup. */
struct client_rows {
    struct row_batch *rows;
    struct row_batch *written; /* rows that a push sets; NULL: none */
    uint64_t clock, snapshot;
    enum window_kind kind; /* of a push */
    double overflow_scale; /* loss scale of an overflowed push */
    uint64_t after;        /* seq of the last request before a lookup's */
    uint32_t missing;      /* partitions that are not answered */
    bool early;            /* a lookup that does not await the own push */
    bool requested;        /* the communication thread has not taken it yet */
};

struct client_peer {
    struct link *link;   /* view */
    char name[320];      /* "ps 1 at host:port" */
    char transport[128]; /* current transport, to be logged */
    int64_t transport_since;
    bool transport_logged; /* its first transport was logged */
    bool holds;            /* blocks, or partitions */
    int64_t lost;          /* since when it is out of reach; 0: it is not */
    int64_t back;          /* since when it has a connection; 0: it has none */
    bool flaps;            /* connections since the loss have ended soon */
    uint64_t received;     /* blocks, at the last step */
    uint64_t pushed, answered; /* clocks that health has as such */
};

struct client {
    struct exchange exchange; /* first */
    struct client_settings settings;
    struct window *window;
    uint32_t *block_bytes; /* by the window's number: in a push, in the answer
                              to a lookup */
    uint16_t *block_ps;    /* likewise */
    /* Gradients in their wire format, in memory that a ps on this host reads in
     * place: block B's at STAGED_AT[B]. Opened when first needed. */
    struct buffer *staging;
    size_t *staged_at;
    struct buffer **gradient_of; /* per parameter, if they are apart */
    struct client_peer *peers;
    struct ps_links *links;
    uint64_t seq;
    struct client_source source; /* of the last request */
    int64_t step_limit, lost_limit, logged_wait;
    Capstan__LostPs *lost, **lost_pointers; /* [num_ps], for heartbeats */
    int64_t stepped_at;                     /* time of the last step */
    char refusal[256];                      /* last refusal logged */

    struct push_values *push_values; /* under the mutex, as what follows */

    struct waiter waiter; /* for answers; cancelled: at the end */
    int wake;
    struct client_request *requests; /* ring of num_parameters + 1 */
    uint32_t first_request, num_requests;
    uint32_t *outstanding;           /* blocks to be received, per parameter */
    bool *stored;                    /* has an answer had some, per parameter */
    struct client_rows push, lookup; /* as the compute thread asks */
    struct row_batch *written;       /* with the next push */
    struct client_rows sent_push, sent_lookup; /* copies for the other one */
    uint64_t global_step, brought, due;
    uint64_t pushed; /* clock of the last push */
    uint64_t round;  /* with backup workers: lowest of the blocks' last answers;
                        UINT64_MAX: none is here */
    bool late;       /* a block's answer to the last push says so */
    uint32_t lead;
    bool names_epochs;           /* by set_epoch */
    uint64_t epoch, epoch_first; /* else as received */
    struct loss_scaler scaler;
    uint64_t rule_step;    /* with the state that was read last */
    double overflow_scale; /* loss scale of the last overflowed push */
    bool settled;
    int64_t waited;
};

/* PEER is without a connection, or was at the last call, and
 * has been silent since SINCE; 0: it has one. RECEIVED of its blocks have been
 * answered. A loss counts from LIMIT on. Pure. */
void client_follow_peer(struct client_peer *peer, int64_t since,
                        uint64_t received, int64_t limit, int64_t now);

/* For how long PEER has been out of reach; 0: it is not. Pure. */
int64_t client_peer_lost_for(const struct client_peer *peer, int64_t now);

/* Sends all due requests of the window. */
void client_send_due(struct client *client, int64_t now);

/* Enqueues what is requested; the mutex is held. */
void client_start_rows(struct client *client);

/* Processes all messages received from PS. */
void client_receive(struct client *client, uint32_t ps, int64_t now);

#endif
