/* SPDX-License-Identifier: Apache-2.0 */
/* All-reduce: lets the chief read the weights of rank 0, to export them, and
 * set them before the first round (init), as it does with a ps: the same
 * messages, over a link of its own. Before the first round what another rank
 * sends to measure the network goes back as it came. */
#ifndef CAPSTAN_LENDER_H
#define CAPSTAN_LENDER_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/tensor/layout.h"

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

/* All borrowed. Parameter p's weights lie at weights + offsets[p]. */
struct lender_settings {
    void *zmq;
    const struct log *log;
    const char *inside; /* the chief is in this process: the link's name */
    uint64_t run, incarnation;
    uint64_t chief; /* its incarnation: nobody else is answered */
    const struct layout *layout;
    float *weights;
    const uint64_t *offsets;
};

struct lender;

/* Binds any free port, and the name inside. */
enum status lender_open(struct lender **out,
                        const struct lender_settings *settings,
                        struct failure *why) MUST_CHECK;

/* Closes the link and clears *LENDER (may be NULL). */
void lender_close(struct lender **lender);

/* The port bound, 0: none. */
uint16_t lender_port(const struct lender *lender);

/* From now on reads of SNAPSHOT are answered with the weights as they lie:
 * nobody changes them meanwhile. 0: no reads. */
void lender_show(struct lender *lender, uint64_t snapshot);

/* From now on no weights are set, and no probe is sent back. */
void lender_settle(struct lender *lender);

/* For zmq_poll. */
zmq_pollitem_t lender_poll_item(struct lender *lender);

/* Answers what has come. */
void lender_step(struct lender *lender);

#endif
