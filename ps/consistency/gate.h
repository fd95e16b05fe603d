/* SPDX-License-Identifier: Apache-2.0 */
/* The gate answers: may a reader at this clock have this block? And in
 * synchronous runs: has every awaited trainer contributed to this block's
 * round? It reads clocks from the ledger and touches no bytes. Pure. */
#ifndef CAPSTAN_GATE_H
#define CAPSTAN_GATE_H

#include "ps/consistency/ledger.h"

#include <stdbool.h>
#include <stdint.h>

#define GATE_ASYNCHRONOUS UINT64_MAX

/* A trainer as the view lists it. A trainer that is not live (dead, or
 * finished) blocks no reader and no round. */
struct gate_slot {
    uint64_t incarnation; /* 0: empty slot */
    uint64_t from;        /* clock of its first contribution */
    bool live;
};

struct gate {
    uint64_t staleness; /* 0, N, or GATE_ASYNCHRONOUS */
    uint64_t view;      /* number of the view */
    uint32_t num_ranks;
    struct gate_slot *slots;
};

/* Opens with all slots empty. False: no memory. */
bool gate_open(struct gate *gate, uint64_t staleness, uint32_t num_ranks);

/* Frees the slots, not the struct. */
void gate_close(struct gate *gate);

/* Does INCARNATION hold RANK in this view? */
bool gate_is_current(const struct gate *gate, uint32_t rank,
                     uint64_t incarnation);

/* Is any trainer live? Its first round may lie ahead. */
bool gate_any_live(const struct gate *gate);

/* The lowest live rank that takes part in ROUND; 0 without any. */
uint32_t gate_lead(const struct gate *gate, uint64_t round);

/* The clock of RANK's last contribution to block B; one below its first clock
 * if it has none. */
uint64_t gate_clock(const struct gate *gate, const struct ledger *ledger,
                    uint32_t b, uint32_t rank);

/* Has every live trainer that takes part in ROUND contributed to it? */
bool gate_round_full(const struct gate *gate, const struct ledger *ledger,
                     uint32_t b, uint64_t round);

/* May a reader that has pushed CLOCK read block B, which is at VERSION? */
bool gate_may_read(const struct gate *gate, const struct ledger *ledger,
                   uint32_t b, uint64_t version, uint64_t clock);

#endif
