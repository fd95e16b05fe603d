/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks come from the ledger. A row may still hold an entry of the rank's
 * previous incarnation; gate_clock ignores it. A trainer without a contribution
 * counts as one below its first clock, so a joiner is awaited from its first
 * round on and not before. */
#include "ps/consistency/gate.h"

#include <assert.h>
#include <stdlib.h>

bool gate_open(struct gate *gate, uint64_t staleness, uint32_t num_ranks) {
    *gate = (struct gate){.staleness = staleness, .num_ranks = num_ranks};
    gate->slots = calloc(num_ranks ? num_ranks : 1, sizeof *gate->slots);
    return gate->slots;
}

void gate_close(struct gate *gate) {
    free(gate->slots);
    gate->slots = NULL;
}

bool gate_is_current(const struct gate *gate, uint32_t rank,
                     uint64_t incarnation) {
    return rank < gate->num_ranks && incarnation &&
           gate->slots[rank].incarnation == incarnation;
}

bool gate_any_live(const struct gate *gate) {
    for (uint32_t r = 0; r < gate->num_ranks; r++)
        if (gate->slots[r].live)
            return true;
    return false;
}

uint32_t gate_lead(const struct gate *gate, uint64_t round) {
    for (uint32_t r = 0; r < gate->num_ranks; r++)
        if (gate->slots[r].live && gate->slots[r].from <= round)
            return r;
    return 0;
}

uint64_t gate_clock(const struct gate *gate, const struct ledger *ledger,
                    uint32_t b, uint32_t rank) {
    assert(rank < gate->num_ranks && gate->num_ranks == ledger->num_ranks);
    const struct gate_slot *slot = &gate->slots[rank];
    const struct ledger_entry *entry = ledger_row(ledger, b) + rank;
    return entry->incarnation == slot->incarnation ? entry->clock
                                                   : slot->from - 1;
}

bool gate_round_full(const struct gate *gate, const struct ledger *ledger,
                     uint32_t b, uint64_t round) {
    for (uint32_t r = 0; r < gate->num_ranks; r++)
        if (gate->slots[r].live && gate->slots[r].from <= round &&
            gate_clock(gate, ledger, b, r) < round)
            return false;
    return true;
}

/* Stale-synchronous rule (Ho et al., NIPS 2013): a reader may be at most
 * STALENESS clocks ahead of the slowest live trainer. */
static bool within_staleness(const struct gate *gate,
                             const struct ledger *ledger, uint32_t b,
                             uint64_t clock) {
    for (uint32_t r = 0; r < gate->num_ranks; r++) {
        uint64_t peer_clock = gate_clock(gate, ledger, b, r);
        if (gate->slots[r].live && peer_clock < clock &&
            clock - peer_clock > gate->staleness)
            return false;
    }
    return true;
}

bool gate_may_read(const struct gate *gate, const struct ledger *ledger,
                   uint32_t b, uint64_t version, uint64_t clock) {
    /* Synchronous: the reader needs the result of the round that it pushed to.
     */
    if (gate->staleness == 0)
        return version >= clock;
    return gate->staleness == GATE_ASYNCHRONOUS ||
           within_staleness(gate, ledger, b, clock);
}
