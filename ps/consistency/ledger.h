/* SPDX-License-Identifier: Apache-2.0 */
/* Exactly-once application: for each block and rank, the incarnation and the
 * clock of the last accepted contribution. A row belongs to its block and is
 * saved with the block's weights. Pure; fixed size. */
#ifndef CAPSTAN_LEDGER_H
#define CAPSTAN_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

struct ledger_entry {
    uint64_t incarnation, clock;
};

struct ledger {
    uint32_t num_blocks, num_ranks;
    bool by_rounds;               /* clocks are round numbers (synchronous) */
    struct ledger_entry *entries; /* [num_blocks, num_ranks] */
};

/* False: no memory. */
bool ledger_open(struct ledger *ledger, uint32_t num_blocks,
                 uint32_t num_ranks);

/* Frees the entries, not the struct. */
void ledger_close(struct ledger *ledger);

/* Block B's row: num_ranks entries, borrowed. */
struct ledger_entry *ledger_row(const struct ledger *ledger, uint32_t b);

/* Copies block B's row as it belongs to the weights at VERSION into
 * COPY[num_ranks]: contributions to later rounds are left out. */
void ledger_copy(const struct ledger *ledger, uint32_t b, uint64_t version,
                 struct ledger_entry *copy);

/* Was this contribution, or a later one of the same incarnation, accepted? */
bool ledger_has(const struct ledger *ledger, uint32_t b, uint32_t rank,
                uint64_t incarnation, uint64_t clock);

/* Records the contribution as accepted. */
void ledger_record(struct ledger *ledger, uint32_t b, uint32_t rank,
                   uint64_t incarnation, uint64_t clock);

#endif
