/* SPDX-License-Identifier: Apache-2.0 */
/* How a worker and its chief find each other when the cluster description does
 * not say: the worker's own port takes the chief's call (call_guard.h), and a
 * worker that knows no chief asks a ps for it. */
#ifndef CAPSTAN_CALLER_H
#define CAPSTAN_CALLER_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cluster/cluster.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

struct caller_settings {
    void *zmq;
    const struct log *log;
    const struct cluster_task *self; /* port to bind; NULL: none */
    const struct cluster *cluster;   /* its ps are asked, and who is listed may
                                        call; NULL: the chief is known */
};

struct caller;

/* Binds the port; STATUS_RETRY when it is in use. */
enum status caller_open(struct caller **out,
                        const struct caller_settings *settings,
                        struct failure *why) MUST_CHECK;

/* Closes the port and clears *CALLER. */
void caller_close(struct caller **caller);

/* The port bound, 0: none. */
uint16_t caller_port(const struct caller *caller);

/* For zmq_poll. */
zmq_pollitem_t caller_poll_item(struct caller *caller);

/* When caller_step is due next; TIME_NEVER: when something comes. */
int64_t caller_deadline(const struct caller *caller);

/* The chief is found: no ps is asked any more. */
void caller_found(struct caller *caller);

/* Asks and listens, also when the chief is found: what comes to the port is to
 * be read. True when ADDRESS was filled with the chief's. */
bool caller_step(struct caller *caller, int64_t now, char *address,
                 size_t size);

#endif
