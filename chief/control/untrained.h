/* SPDX-License-Identifier: Apache-2.0 */
/* What a run that goes on without a trainer does not train: the trainer's share
 * of the data, from its loss until another process has its place or the run
 * ends. */
#ifndef CAPSTAN_UNTRAINED_H
#define CAPSTAN_UNTRAINED_H

#include <stdbool.h>
#include <stdint.h>

struct run;
struct roster_slot;

/* Of a rank. In a synchronous run steps are the rounds that lack it, with
 * staleness the updates that others make meanwhile. */
struct run_absence {
    bool is_gone;
    uint64_t since; /* the last step before it left, the last time */
    uint64_t first; /* the first time */
    uint64_t steps; /* without it, up to its last return */
};

/* SLOT's trainer, which was not done, has left: if others train on, warns of
 * what that means. */
void untrained_leave(struct run *run, const struct roster_slot *slot);

/* RANK has its first clock: its share is trained again. */
void untrained_return(struct run *run, uint32_t rank);

#endif
