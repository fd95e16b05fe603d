/* SPDX-License-Identifier: Apache-2.0 */
/* A baseline for the client: the same frames over libzmq's DEALER and ROUTER
 * alone. */
#ifndef CAPSTAN_BARE_ZMQ_H
#define CAPSTAN_BARE_ZMQ_H

#include "commands/measure/bench_iteration.h"
#include "core/base/status.h"

#include <stdint.h>

/* A ROUTER of ZMQ on a free port of this host's own address; NULL on
 * failure. */
void *bare_zmq_listen(void *zmq, uint16_t *port);

/* Answers all messages to ROUTER, forever. */
void bare_zmq_serve(void *router);

struct bare_zmq;

/* Connects to PORT of this host. */
enum status bare_zmq_open(struct bare_zmq **out, void *zmq, uint16_t port,
                          struct failure *why) MUST_CHECK;

/* Closes it and clears *BARE (may be NULL). */
void bare_zmq_close(struct bare_zmq **bare);

/* Runs ITERATION: every message is answered as by a ps. */
enum status bare_zmq_run(struct bare_zmq *bare,
                         struct bench_iteration *iteration,
                         struct failure *why) MUST_CHECK;

#endif
