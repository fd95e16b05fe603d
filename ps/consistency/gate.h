/* SPDX-License-Identifier: Apache-2.0 */
/* The gate answers one question: may this reader have this block at this
 * clock? And for synchronous runs: has everybody who is awaited contributed to
 * this block's round? It counts contributions, not bytes. Pure. */
#ifndef CAPSTAN_GATE_H
#define CAPSTAN_GATE_H

#include "ps/consistency/ledger.h"

#include <stdbool.h>
#include <stdint.h>

#define GATE_ASYNCHRONOUS UINT64_MAX

/* A trainer as the view lists it. Who is not live (dead, or has left the
 * loop) counts as infinitely far. */
struct gate_slot {
    uint64_t incarnation; /* 0: nobody */
    uint64_t from;        /* clock of its first contribution */
    bool live;
};

struct gate {
    uint64_t staleness; /* 0, N, or GATE_ASYNCHRONOUS */
    uint64_t view;      /* number of the view */
    uint32_t num_ranks;
    struct gate_slot *slots;
};

/* False: no memory. All slots start empty. */
bool gate_open(struct gate *gate, uint64_t staleness, uint32_t num_ranks);

/* Frees the slots, not the struct. */
void gate_close(struct gate *gate);

/* Is INCARNATION who holds RANK in this view? */
bool gate_is_current(const struct gate *gate, uint32_t rank,
                     uint64_t incarnation);

/* Is anybody awaited, in this round or a later one? */
bool gate_any_live(const struct gate *gate);

/* The clock of a rank's last contribution to block B: one below its first
 * when there is none yet. */
uint64_t gate_clock(const struct gate *gate, const struct ledger *ledger,
                    uint32_t b, uint32_t rank);

/* Has every live trainer awaited in ROUND contributed to it? */
bool gate_round_full(const struct gate *gate, const struct ledger *ledger,
                     uint32_t b, uint64_t round);

/* May a reader that has pushed CLOCK have block B, which is at VERSION? */
bool gate_may_read(const struct gate *gate, const struct ledger *ledger,
                   uint32_t b, uint64_t version, uint64_t clock);

#endif
