/* SPDX-License-Identifier: Apache-2.0 */
/* One exchange without a ps around it: a test tells it events, and after each
 * sees which actions it asks for. */
#ifndef CAPSTAN_UPDATE_CORE_FIXTURE_H
#define CAPSTAN_UPDATE_CORE_FIXTURE_H

#include "ps/consistency/update_core.h"

enum { UPDATE_CORE_FIXTURE_RANKS = 3, UPDATE_CORE_FIXTURE_ACTIONS = 64 };

/* The exchange and the actions of its last event. SLOTS and VIEW are what it
 * was last told of the trainers. */
struct update_core_fixture {
    struct update_core *update_core;
    struct gate_slot slots[UPDATE_CORE_FIXTURE_RANKS];
    uint64_t view;
    struct update_core_action actions[UPDATE_CORE_FIXTURE_ACTIONS];
    unsigned count;
};

extern struct update_core_fixture update_core_fixture;

/* A scale of 256 that halves at the second overflow and doubles after three
 * steps without. */
extern const struct job_fp16 update_core_fixture_fp16;

/* Opens the exchange for trainers of incarnations 100, 101 and so on, all of
 * them alive from the first round. */
void update_core_fixture_open(const struct update_core_settings *settings);

/* The same for rounds of BLOCKS and RANKS and nothing else. */
void update_core_fixture_synchronous(uint32_t blocks, uint32_t ranks);

/* The same with losses scaled by update_core_fixture_fp16. */
void update_core_fixture_scaled(uint32_t blocks, uint32_t ranks,
                                uint64_t staleness, bool clip);

/* Closes it, opened or not. */
int update_core_fixture_teardown(void **state);

/* Takes the actions of the event that was told. */
void update_core_fixture_collect(void);

/* Tells the next view, of the slots as they are. */
void update_core_fixture_set_view(void);

/* Tells a push of RANK, one without bytes, and one whose gradients were not
 * finite at scale AT. */
enum update_core_result update_core_fixture_push(uint32_t b, uint32_t rank,
                                                 uint64_t clock, uint64_t seq);
enum update_core_result update_core_fixture_push_without_bytes(uint32_t b,
                                                               uint32_t rank,
                                                               uint64_t clock,
                                                               uint64_t seq);
enum update_core_result update_core_fixture_push_overflowed(
    uint32_t b, uint32_t rank, uint64_t clock, uint64_t seq, double at);

/* How many actions of KIND the last event had; *LAST (may be NULL) is the last
 * of them. */
unsigned update_core_fixture_count(enum update_core_kind kind,
                                   struct update_core_action *last);

/* The one update of the last event. */
struct update_core_action update_core_fixture_single_update(void);

#endif
