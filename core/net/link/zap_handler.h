/* SPDX-License-Identifier: Apache-2.0 */
/* Answers libzmq's question who may connect (ZAP, RFC 27): the clients of the
 * job's keys, and nobody else. One for each context of ZeroMQ with servers that
 * have keys; it opens before them, and closes after them. */
#ifndef CAPSTAN_ZAP_HANDLER_H
#define CAPSTAN_ZAP_HANDLER_H

#include "core/net/link/link_keys.h"

struct zap_handler;

/* Starts the handler in the context ZMQ, on a thread of its own, and proves
 * with a key that nobody knows that a server OWN (link_keys_serve) refuses it.
 * KEYS is borrowed. */
enum status zap_handler_open(struct zap_handler **out, void *zmq,
                             const struct link_keys *keys,
                             struct link_party own,
                             struct failure *why) MUST_CHECK;

/* Closes *HANDLER (may be NULL) and clears it. */
void zap_handler_close(struct zap_handler **handler);

/* The parts of a request, and of its answer. */
enum {
    ZAP_VERSION,
    ZAP_ID,
    ZAP_DOMAIN_PART,
    ZAP_ADDRESS,
    ZAP_IDENTITY,
    ZAP_MECHANISM,
    ZAP_KEY,
    ZAP_PARTS
};

struct zap_part {
    const void *data;
    size_t size;
};

/* Is the request of COUNT PARTS one of CURVE by a client of KEYS? Then USER has
 * its party. */
bool zap_handler_admits(const struct link_keys *keys,
                        const struct zap_part *parts, size_t count,
                        struct link_party *user);

#endif
