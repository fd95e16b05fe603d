/* SPDX-License-Identifier: Apache-2.0 */
/* All-reduce: lets the chief read rank 0's weights for an export and set them
 * before the first round (init), by the same messages as with a ps, over its
 * own link. Before the first round it echoes other ranks' bandwidth probes. */
#ifndef CAPSTAN_WEIGHTS_SERVER_H
#define CAPSTAN_WEIGHTS_SERVER_H

#include "core/base/status.h"
#include "core/tensor/layout.h"
#include "proto/messages/member.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

/* All borrowed. Parameter p's weights lie at weights + offsets[p]. */
struct weights_server_settings {
    const struct process *process;
    const char *inproc; /* the link's name if the chief is in this process */
    uint64_t chief;     /* the chief's incarnation: no other peer is answered */
    const struct layout *layout;
    float *weights;
    const uint64_t *offsets;
};

struct weights_server;

/* Binds any free port, and the inproc name. */
enum status weights_server_open(struct weights_server **out,
                                const struct weights_server_settings *settings,
                                struct failure *why) MUST_CHECK;

/* Closes the link and clears *SERVER (may be NULL). */
void weights_server_close(struct weights_server **server);

/* The port bound, 0: none. */
uint16_t weights_server_port(const struct weights_server *server);

/* From now on reads of SNAPSHOT are answered with the current weights, which
 * must not change meanwhile. 0: no reads. */
void weights_server_serve(struct weights_server *server, uint64_t snapshot);

/* From now on weights cannot be set and probes are not echoed. */
void weights_server_freeze(struct weights_server *server);

/* For zmq_poll. */
zmq_pollitem_t weights_server_poll_item(struct weights_server *server);

/* Answers all received requests. */
void weights_server_step(struct weights_server *server);

#endif
