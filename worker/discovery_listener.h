/* SPDX-License-Identifier: Apache-2.0 */
/* Lets a worker find its chief when the cluster description does not name one:
 * the chief announces itself to the worker's port (discovery_guard.h), and the
 * worker queries the listed ps. */
#ifndef CAPSTAN_DISCOVERY_LISTENER_H
#define CAPSTAN_DISCOVERY_LISTENER_H

#include "core/base/status.h"
#include "proto/messages/member.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

struct discovery_listener;

/* Binds the port of MEMBER (borrowed, as PROCESS); STATUS_RETRY when it is in
 * use. */
enum status discovery_listener_open(struct discovery_listener **out,
                                    const struct process *process,
                                    const struct member *member,
                                    struct failure *why) MUST_CHECK;

/* Closes the port and clears *LISTENER (may be NULL). */
void discovery_listener_close(struct discovery_listener **listener);

/* The port bound, 0: none. */
uint16_t discovery_listener_port(const struct discovery_listener *listener);

/* For zmq_poll. */
zmq_pollitem_t discovery_listener_poll_item(
    struct discovery_listener *listener);

/* The time of the next due discovery_listener_step; TIME_NEVER: only on an
 * event. */
int64_t discovery_listener_deadline(const struct discovery_listener *listener);

/* The chief is found: stops querying the ps. */
void discovery_listener_stop_queries(struct discovery_listener *listener);

/* Queries the ps and reads the port, which must be read even after the chief is
 * found. True when the chief's address was written to ADDRESS. */
bool discovery_listener_step(struct discovery_listener *listener, int64_t now,
                             char *address, size_t size);

#endif
