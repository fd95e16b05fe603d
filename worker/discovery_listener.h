/* SPDX-License-Identifier: Apache-2.0 */
/* How a worker and its chief find each other when the cluster description does
 * not say: the worker's own port takes the chief's call (discovery_guard.h),
 * and a worker that knows no chief asks a ps for it. */
#ifndef CAPSTAN_DISCOVERY_LISTENER_H
#define CAPSTAN_DISCOVERY_LISTENER_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cluster/cluster.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

struct discovery_listener_settings {
    void *zmq;
    const struct log *log;
    const struct cluster_task *self;  /* port to bind; NULL: none */
    const struct cluster_task *chief; /* named by the description, or NULL */
    const struct cluster *cluster;    /* its ps are asked, and who is listed may
                                         call; NULL: the chief is known */
};

struct discovery_listener;

/* Binds the port; STATUS_RETRY when it is in use. */
enum status discovery_listener_open(
    struct discovery_listener **out,
    const struct discovery_listener_settings *settings,
    struct failure *why) MUST_CHECK;

/* Closes the port and clears *CALLER. */
void discovery_listener_close(struct discovery_listener **discovery_listener);

/* The port bound, 0: none. */
uint16_t discovery_listener_port(
    const struct discovery_listener *discovery_listener);

/* For zmq_poll. */
zmq_pollitem_t discovery_listener_poll_item(
    struct discovery_listener *discovery_listener);

/* When discovery_listener_step is due next; TIME_NEVER: when something comes.
 */
int64_t discovery_listener_deadline(
    const struct discovery_listener *discovery_listener);

/* The chief is found: no ps is asked any more. */
void discovery_listener_stop_queries(
    struct discovery_listener *discovery_listener);

/* Asks and listens, also when the chief is found: what comes to the port is to
 * be read. True when ADDRESS was filled with the chief's. */
bool discovery_listener_step(struct discovery_listener *discovery_listener,
                             int64_t now, char *address, size_t size);

#endif
