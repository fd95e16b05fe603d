/* SPDX-License-Identifier: Apache-2.0 */
/* Upper bound on rounds per second that the network allows, if every ps and
 * every trainer has a host of its own with equal links. Pure. */
#ifndef CAPSTAN_NETWORK_BOUND_H
#define CAPSTAN_NETWORK_BOUND_H

#include <stdbool.h>
#include <stdint.h>

struct network_bound_case {
    uint32_t num_trainers, num_ps;
    double bytes;      /* of all weights on the wire, once */
    double row_bytes;  /* of tables' rows, that a trainer sends a step: as many
                          come back from ps, or from the other ranks */
    double link_gbits; /* 10^9 bits/s, counting whole Ethernet frames */
    bool synchronous;
    bool two_phase; /* global-norm clipping: pulls are answered only after all
                       pushes of the round */
    bool allreduce; /* ring all-reduce among the trainers, no ps */
};

/* Payload bytes per second of a link of LINK_GBITS: frames of 1514 bytes
 * (Ethernet 14, IPv4 20, TCP 20 with timestamps 12) carry 1448. Preamble,
 * checksum and gap between frames are not counted, as in rate limits like tc's;
 * on a bare cable the payload is 1.6 % less. */
double network_bound_payload(double link_gbits);

/* The inverse: LINK_GBITS of a link that carries PAYLOAD bytes per second. */
double network_bound_link_gbits(double payload);

/* Steps per second: rounds if synchronous, else pushes of all trainers. With n
 * trainers, m ps, M bytes and B bytes per second, a round takes max(M/B,
 * nM/(mB)), twice that if `two_phase`; a ring takes 2(n-1)M/(nB) (Patarasuk and
 * Yuan 2009). 0: the bandwidth is unknown, or there is nothing to send. */
double network_bound_steps_per_second(const struct network_bound_case *given);

#endif
