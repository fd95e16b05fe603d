/* SPDX-License-Identifier: Apache-2.0 */
/* One entry detects every duplicate, in any order: the accepted clocks of one
 * incarnation rise (`contribute` in update_core.c), so any clock up to the
 * entry's was accepted or can no longer be. A new incarnation replaces the
 * entry; the view rejects late messages of the previous one. */
#include "ps/consistency/ledger.h"

#include <assert.h>
#include <stdlib.h>

bool ledger_open(struct ledger *ledger, uint32_t num_blocks,
                 uint32_t num_ranks) {
    size_t count = (size_t)num_blocks * num_ranks;
    *ledger = (struct ledger){.num_blocks = num_blocks, .num_ranks = num_ranks};
    ledger->entries = calloc(count ? count : 1, sizeof *ledger->entries);
    return ledger->entries;
}

void ledger_close(struct ledger *ledger) {
    free(ledger->entries);
    ledger->entries = NULL;
}

struct ledger_entry *ledger_row(const struct ledger *ledger, uint32_t b) {
    assert(b < ledger->num_blocks);
    return ledger->entries + (size_t)b * ledger->num_ranks;
}

void ledger_copy(const struct ledger *ledger, uint32_t b, uint64_t version,
                 struct ledger_entry *copy) {
    const struct ledger_entry *row = ledger_row(ledger, b);
    for (uint32_t r = 0; r < ledger->num_ranks; r++) {
        copy[r] = row[r];
        /* A later clock is of the open round, which is not in the weights yet.
         */
        if (ledger->by_rounds && copy[r].clock > version)
            copy[r].clock = version;
    }
}

bool ledger_has(const struct ledger *ledger, uint32_t b, uint32_t rank,
                uint64_t incarnation, uint64_t clock) {
    assert(rank < ledger->num_ranks);
    const struct ledger_entry *entry = ledger_row(ledger, b) + rank;
    return entry->incarnation == incarnation && entry->clock >= clock;
}

void ledger_record(struct ledger *ledger, uint32_t b, uint32_t rank,
                   uint64_t incarnation, uint64_t clock) {
    ledger_row(ledger, b)[rank] = (struct ledger_entry){incarnation, clock};
}
