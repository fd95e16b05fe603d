/* SPDX-License-Identifier: Apache-2.0 */
/* What the network allows at best: rounds a second when every ps and every
 * trainer has a host of its own, whose link passes as much each way. Pure. */
#ifndef CAPSTAN_NETWORK_BOUND_H
#define CAPSTAN_NETWORK_BOUND_H

#include <stdbool.h>
#include <stdint.h>

struct network_bound_case {
    uint32_t num_trainers, num_ps;
    double bytes;      /* of all weights on the wire, once */
    double link_gbits; /* 10^9 bits/s, Ethernet frames counted whole */
    bool synchronous;
    bool two_phase; /* clipped by the global norm: nothing is answered before
                   all has come */
    bool allreduce; /* a ring of the trainers; no ps */
};

/* Bytes of weights a second that LINK_GBITS carry: frames of 1514 bytes
 * (Ethernet 14, IPv4 20, TCP 20 with timestamps 12) hold 1448. Preamble, check
 * sum and gap between frames are not in the figure of a rate limit like tc's,
 * which counts frames; a bare cable has 1.6 % less. */
double network_bound_payload(double link_gbits);

/* The other way: LINK_GBITS of a link that carries PAYLOAD bytes a second. */
double network_bound_link_gbits(double payload);

/* Steps a second: rounds when synchronous, else pushes of all trainers. n
 * trainers, m ps, M bytes, B a second: a round takes max(M/B, nM/(mB)), twice
 * that when TWICE; 2(n-1)M/(nB) by a ring (Patarasuk and Yuan 2009). 0: the
 * link is not known, or there is nothing to send. */
double network_bound_steps_per_second(const struct network_bound_case *given);

#endif
