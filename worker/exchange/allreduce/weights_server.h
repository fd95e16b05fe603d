/* SPDX-License-Identifier: Apache-2.0 */
/* All-reduce: lets the chief read the weights of rank 0, to export them, and
 * set them before the first round (init), as it does with a ps: the same
 * messages, over a link of its own. Before the first round what another rank
 * sends to measure the network goes back as it came. */
#ifndef CAPSTAN_WEIGHTS_SERVER_H
#define CAPSTAN_WEIGHTS_SERVER_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/tensor/layout.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

/* All borrowed. Parameter p's weights lie at weights + offsets[p]. */
struct weights_server_settings {
    void *zmq;
    const struct log *log;
    const char *inproc; /* the chief is in this process: the link's name */
    uint64_t run, incarnation;
    uint64_t chief; /* its incarnation: nobody else is answered */
    const struct layout *layout;
    float *weights;
    const uint64_t *offsets;
};

struct weights_server;

/* Binds any free port, and the name inside. */
enum status weights_server_open(struct weights_server **out,
                                const struct weights_server_settings *settings,
                                struct failure *why) MUST_CHECK;

/* Closes the link and clears *LENDER (may be NULL). */
void weights_server_close(struct weights_server **weights_server);

/* The port bound, 0: none. */
uint16_t weights_server_port(const struct weights_server *weights_server);

/* From now on reads of SNAPSHOT are answered with the weights as they lie:
 * nobody changes them meanwhile. 0: no reads. */
void weights_server_serve(struct weights_server *weights_server,
                          uint64_t snapshot);

/* From now on no weights are set, and no probe is sent back. */
void weights_server_freeze(struct weights_server *weights_server);

/* For zmq_poll. */
zmq_pollitem_t weights_server_poll_item(struct weights_server *weights_server);

/* Answers what has come. */
void weights_server_step(struct weights_server *weights_server);

#endif
