/* SPDX-License-Identifier: Apache-2.0 */
/* A network that fails, between trainers and one ps: it forwards whole
 * messages and, by a seeded generator, drops, repeats and holds up requests
 * and answers, which reorders them, and cuts all connections. */
#ifndef CAPSTAN_FAULTY_PROXY_H
#define CAPSTAN_FAULTY_PROXY_H

#include <stdint.h>

enum {
    FAULTY_PROXY_RANKS = 8,
    FAULTY_PROXY_KINDS = 32,
    FAULTY_PROXY_LOST = 10
};

struct faulty_proxy_settings {
    uint16_t port; /* of the ps, on this machine */
    uint64_t seed;
    unsigned drop, repeat, delay, cut; /* of 10000 messages */
    unsigned max_delay_ms;             /* that one is held up */
    /* Bits 1 << kind. Of each of these kinds one message, number
     * FAULTY_PROXY_LOST from 1, is dropped in any case. */
    uint32_t lost_kinds;
};

/* What has come of one kind of message, and what was done to it. */
struct faulty_proxy_faults {
    unsigned received, dropped, repeated, delayed;
};

/* What it has done, and what the trainers meant to have done. */
struct faulty_proxy_counts {
    unsigned forwarded, cuts;
    /* By a data header's kind; 0: of another message. */
    struct faulty_proxy_faults faults[FAULTY_PROXY_KINDS];
    uint64_t clocks[FAULTY_PROXY_RANKS]; /* highest of a push, by rank */
};

struct faulty_proxy;

struct faulty_proxy_sender {
    uint64_t run, incarnation, clock;
};

/* Starts it on a free port of this machine, *PORT. Failures fail the test. */
struct faulty_proxy *faulty_proxy_open(
    const struct faulty_proxy_settings *settings, uint16_t *port);

/* Waits for a push of trainer RANK at CLOCK or above and fills SENDER with who
 * it was; late ones fail the test. */
void faulty_proxy_await(struct faulty_proxy *proxy, uint32_t rank,
                        uint64_t clock, double seconds,
                        struct faulty_proxy_sender *sender);

/* Ends it; COUNTS may be NULL. */
void faulty_proxy_close(struct faulty_proxy **proxy,
                        struct faulty_proxy_counts *counts);

#endif
