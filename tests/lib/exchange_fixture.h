/* SPDX-License-Identifier: Apache-2.0 */
/* One exchange without a ps around it: a test tells it events, and after each
 * sees which actions it asks for. */
#ifndef CAPSTAN_EXCHANGE_FIXTURE_H
#define CAPSTAN_EXCHANGE_FIXTURE_H

#include "ps/consistency/exchange.h"

enum { EXCHANGE_FIXTURE_RANKS = 3, EXCHANGE_FIXTURE_ACTIONS = 64 };

/* The exchange and the actions of its last event. SLOTS and VIEW are what it
 * was last told of the trainers. */
struct exchange_fixture {
    struct exchange *exchange;
    struct gate_slot slots[EXCHANGE_FIXTURE_RANKS];
    uint64_t view;
    struct exchange_action actions[EXCHANGE_FIXTURE_ACTIONS];
    unsigned count;
};

extern struct exchange_fixture exchange_fixture;

/* A scale of 256 that halves at the second overflow and doubles after three
 * steps without. */
extern const struct job_fp16 exchange_fixture_fp16;

/* Opens the exchange for trainers of incarnations 100, 101 and so on, all of
 * them alive from the first round. */
void exchange_fixture_open(const struct exchange_settings *settings);

/* The same for rounds of BLOCKS and RANKS and nothing else. */
void exchange_fixture_synchronous(uint32_t blocks, uint32_t ranks);

/* The same with losses scaled by exchange_fixture_fp16. */
void exchange_fixture_scaled(uint32_t blocks, uint32_t ranks,
                             uint64_t staleness, bool clip);

/* Closes it, opened or not. */
int exchange_fixture_teardown(void **state);

/* Takes the actions of the event that was told. */
void exchange_fixture_settle(void);

/* Tells the next view, of the slots as they are. */
void exchange_fixture_see(void);

/* Tells a push of RANK, and one whose gradients were not finite at scale AT. */
enum exchange_verdict exchange_fixture_push(uint32_t b, uint32_t rank,
                                            uint64_t clock, uint64_t seq);
enum exchange_verdict exchange_fixture_void(uint32_t b, uint32_t rank,
                                            uint64_t clock, uint64_t seq,
                                            double at);

/* How many actions of KIND the last event had; *LAST (may be NULL) is the last
 * of them. */
unsigned exchange_fixture_acted(enum exchange_kind kind,
                                struct exchange_action *last);

/* The one update of the last event. */
struct exchange_action exchange_fixture_updated(void);

#endif
