/* SPDX-License-Identifier: Apache-2.0 */
/* What must be true of every history: the judges of a simulated cluster. They
 * know what no process knows, and see every step. */
#ifndef CAPSTAN_SIMULATED_ORACLE_H
#define CAPSTAN_SIMULATED_ORACLE_H

#include "tests/simulation/simulated.h"

/* A number from two, each bit of which depends on all bits of both. */
uint64_t simulated_oracle_mix(uint64_t a, uint64_t b);

/* Symbols: weights of plan block B at the start; a gradient of RANK's step
 * CLOCK computed on WEIGHTS; whether that step contributes no bytes, or voids
 * its round; a gradient's square; weights after one update, COUNT gradients in
 * rank order and NORM (0: no clipping) applied. */
uint64_t simulated_oracle_start(const struct simulated *s, uint32_t b);
uint64_t simulated_oracle_gradient(const struct simulated *s, uint32_t rank,
                                   uint64_t clock, uint32_t b,
                                   const uint64_t *weights);
bool simulated_oracle_empty(const struct simulated *s, uint32_t rank,
                            uint64_t clock);
bool simulated_oracle_void(const struct simulated *s, uint32_t rank,
                           uint64_t clock);
double simulated_oracle_square(const uint64_t *gradients, uint32_t count);
uint64_t simulated_oracle_update(const struct simulated *s, uint64_t value,
                                 uint64_t version, const uint64_t *gradients,
                                 uint32_t count, double norm);

/* A run begins from the disk: what whole synchronous runs must come to. */
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
/* Ps P answers RANK's CLOCK. */
void simulated_oracle_replied(struct simulated *s, uint32_t p, uint32_t b,
                              uint32_t rank, uint64_t clock);
/* Ps P has handled an event: nobody waits who need not, no more is held than
 * credits allow. */
void simulated_oracle_event_handled(struct simulated *s, uint32_t p);
/* Ps P has put block B and ROW of the ledger into a snapshot. */
void simulated_oracle_saved(struct simulated *s, uint32_t p, uint32_t b,
                            uint64_t version, const struct ledger_entry *row);
/* A cut is complete: one round of all blocks. */
void simulated_oracle_cut(struct simulated *s, const struct simulated_cut *cut);

/* Worker RANK took the answer to a push, sends blocks, begins a step. */
void simulated_oracle_answered(struct simulated *s, uint32_t rank, uint32_t b,
                               uint64_t clock);
void simulated_oracle_sent(struct simulated *s, uint32_t rank,
                           const struct window_request *request);
void simulated_oracle_step(struct simulated *s, uint32_t rank);

/* The run is over and well: weights are those that they must be. */
void simulated_oracle_end(struct simulated *s);

#endif
