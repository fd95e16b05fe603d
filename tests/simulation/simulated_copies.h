/* SPDX-License-Identifier: Apache-2.0 */
/* Copies in memory of a simulated cluster: the real sets of the chief and the
 * real files' list of a ps, with what ps/buddy.c and chief/snapshot/buddies.c
 * do around them. A file is the number of a simulated_part. */
#ifndef CAPSTAN_SIMULATED_COPIES_H
#define CAPSTAN_SIMULATED_COPIES_H

#include "tests/simulation/simulated.h"

/* Has ps P the part of ps PART of STEP in its memory, and if it is a delta its
 * base too? *OUT (may be NULL) is its number. */
bool simulated_copies_has(struct simulated *s, uint32_t p, uint64_t step,
                          uint32_t part, uint64_t *out);
/* The part of ps P in its memory, of STEP, of a snapshot that it has taken. */
void simulated_copies_written(struct simulated *s, uint32_t p, uint64_t step,
                              const struct simulated_snapshot *snapshot);
/* Ps P has left STEP out. */
void simulated_copies_skipped(struct simulated *s, uint32_t p, uint64_t step);
/* Fills in what ps P tells of copies as it joins. */
void simulated_copies_list(struct simulated *s, uint32_t p,
                           struct simulated_control *join);
/* Ps P has a plan, which restores its part from memory or not. */
void simulated_copies_plan(struct simulated *s, uint32_t p,
                           const struct simulated_control *plan);
void simulated_copies_order(struct simulated *s, uint32_t p,
                            const struct simulated_control *order);
/* Fetches; has ps P, which this may end, all that it restores from memory? */
bool simulated_copies_step(struct simulated *s, uint32_t p);

/* The chief's: what ps P has when it joins; from where the run starts, which
 * PLAN tells; training begins; a ps has told of a part. */
void simulated_copies_joined(struct simulated *s, uint32_t p,
                             const struct simulated_control *join);
void simulated_copies_choose(struct simulated *s,
                             struct simulated_control *plan);
void simulated_copies_begin(struct simulated *s);
/* The chief has the run of another one, and the copy that its ps tell of. */
void simulated_copies_adopted(struct simulated *s);
void simulated_copies_receive(struct simulated *s, uint32_t p,
                              const struct simulated_control *report);
/* With staleness, where ps count no rounds. */
bool simulated_copies_are_due(struct simulated *s);
/* No set is under way for longer than a step may. */
void simulated_copies_check(struct simulated *s);
void simulated_copies_close(struct simulated *s);

#endif
