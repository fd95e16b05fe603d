/* SPDX-License-Identifier: Apache-2.0 */
/* What must be true of every history: the judges of a simulated cluster. They
 * know what no process knows, and see every step. */
#ifndef CAPSTAN_SIMULATED_ORACLE_H
#define CAPSTAN_SIMULATED_ORACLE_H

#include "tests/simulation/simulated.h"

/* A number from two, each bit of which depends on all bits of both. */
uint64_t simulated_oracle_mix(uint64_t a, uint64_t b);

/* What an update applies: COUNT gradients in rank order, divided by DIVISOR. */
struct simulated_gradients {
    uint64_t values[SIMULATED_RANKS];
    uint32_t count, divisor;
    double norm; /* 0: no clipping */
};

/* Symbols: weights of plan unit B at the start; a gradient of RANK's step
 * CLOCK computed on WEIGHTS; whether that step contributes no bytes, or voids
 * its round; gradients' square; weights after one update. */
uint64_t simulated_oracle_start(const struct simulated *s, uint32_t b);
uint64_t simulated_oracle_gradient(const struct simulated *s, uint32_t rank,
                                   uint64_t clock, uint32_t b,
                                   const uint64_t *weights);
bool simulated_oracle_empty(const struct simulated *s, uint32_t rank,
                            uint64_t clock);
bool simulated_oracle_void(const struct simulated *s, uint32_t rank,
                           uint64_t clock);
double simulated_oracle_square(const struct simulated_gradients *gradients);
uint64_t simulated_oracle_update(const struct simulated *s, uint64_t value,
                                 uint64_t version,
                                 const struct simulated_gradients *gradients);

/* Of partition B: which rows the micro batch M of RANK's step CLOCK looks up
 * (0: none); what a lookup of ROWS reads; the same of all micro batches before
 * it, READ, and it; whether the step has gradients for any. */
uint64_t simulated_oracle_rows(const struct simulated *s, uint32_t rank,
                               uint64_t clock, uint32_t m, uint32_t b);
uint64_t simulated_oracle_read(uint64_t value, uint64_t rows);
uint64_t simulated_oracle_add_read(uint64_t read, uint64_t rows);
bool simulated_oracle_touches(const struct simulated *s, uint32_t rank,
                              uint64_t clock, uint32_t b);

/* Bytes of RANK's contribution of CLOCK to unit B, if it has any. */
uint32_t simulated_oracle_bytes(const struct simulated *s, uint32_t rank,
                                uint64_t clock, uint32_t b);

/* A run begins from its start: what whole synchronous runs must come to. */
void simulated_oracle_begin(struct simulated *s);

/* Ps P turned MESSAGE away: its sender is none that was told to start. */
void simulated_oracle_refused(struct simulated *s, uint32_t p,
                              const struct simulated_message *message);

/* Ps P took a contribution (update_core_push said so). */
void simulated_oracle_taken(struct simulated *s, uint32_t p, uint32_t b,
                            uint32_t rank,
                            const struct simulated_message *push);
/* Ps P is about to update block B to VERSION from what it holds, or from
 * nothing, as that is VOIDED; then it has. */
void simulated_oracle_updating(struct simulated *s, uint32_t p, uint32_t b,
                               uint64_t version, bool overflowed);
void simulated_oracle_updated(struct simulated *s, uint32_t p, uint32_t b,
                              uint64_t version);
/* Ps P answers RANK's CLOCK: its push, or its lookup. */
void simulated_oracle_replied(struct simulated *s, uint32_t p, uint32_t b,
                              uint32_t rank, uint64_t clock);
void simulated_oracle_looked_up(struct simulated *s, uint32_t p, uint32_t b,
                                uint32_t rank, uint64_t clock);
/* Ps P has handled an event: nobody waits who need not, no more is held than
 * credits allow. */
void simulated_oracle_event_handled(struct simulated *s, uint32_t p);
/* Ps P has put block B and ROW of the ledger into a snapshot. */
void simulated_oracle_saved(struct simulated *s, uint32_t p, uint32_t b,
                            uint64_t version, const struct ledger_entry *row);
/* All ps are ready: each unit is on one, as it is on the disk. */
void simulated_oracle_placed(struct simulated *s);

/* The run starts from its copy in MEMORY or from the disk: from the newer. */
void simulated_oracle_chosen(struct simulated *s, bool memory);
/* The chief has taken a run over: as its members have it. */
void simulated_oracle_adopted(struct simulated *s);
/* The chief takes the copy of STEP for complete: two ps have each part. */
void simulated_oracle_copied(struct simulated *s, uint64_t step);
/* Ps P has still what it had of the newest complete copy. */
void simulated_oracle_copies_held(struct simulated *s, uint32_t p);

/* A cut is complete: one round of all blocks. */
void simulated_oracle_cut(struct simulated *s, const struct simulated_cut *cut);

/* Worker RANK took the answer to a push, which is applied or LATE, sends
 * blocks, begins a step. */
void simulated_oracle_answered(struct simulated *s, uint32_t rank, uint32_t b,
                               uint64_t clock, bool late);
/* Worker RANK took rows of partition B, VALUE at VERSION. */
void simulated_oracle_took_rows(struct simulated *s, uint32_t rank, uint32_t b,
                                uint64_t version, uint64_t value);
void simulated_oracle_sent(struct simulated *s, uint32_t rank,
                           const struct window_request *request);
void simulated_oracle_step(struct simulated *s, uint32_t rank);

/* The run is over and well: weights are those that they must be. */
void simulated_oracle_end(struct simulated *s);

#endif
