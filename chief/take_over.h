/* SPDX-License-Identifier: Apache-2.0 */
/* A run that goes back (chief/rewind.h) awaits a ps that was lost for a while;
 * then the ps that are there take over its weights, from the newest checkpoint:
 * the run ends, and the one that follows has no such ps. */
#ifndef CAPSTAN_TAKE_OVER_H
#define CAPSTAN_TAKE_OVER_H

#include "proto/messages/message.h"

#include <stdbool.h>

struct roster_slot;
struct run;

/* RUN, whose roster is complete, goes on without those ps that were not back in
 * time. */
void take_over_leave_out(struct run *run);

/* The sender of JOIN is a ps that RUN goes on without: it waits, and its place
 * is in the next run when this one goes back. */
bool take_over_waits(struct run *run, const Capstan__Join *join);

/* Does a ps wait so? */
bool take_over_has_waiting(const struct run *run);

/* The launcher of the ps of SLOT starts none in its place. */
void take_over_note_last(struct run *run, const struct roster_slot *slot);

/* The ps that RUN has are short of memory, TEXT. False: it has all. Else
 * another run awaits the others. */
bool take_over_await_all(struct run *run, const char *text);

/* Can RUN go on with fewer ps than it was started with, as far as is known at
 * any time? */
bool take_over_may_begin(const struct run *run);

/* Is the ps of SLOT, which is lost, awaited in vain, as its launcher starts
 * none in its place and no other can take over? */
bool take_over_is_in_vain(const struct run *run,
                          const struct roster_slot *slot);

/* May RUN do without a ps that it lacks? */
bool take_over_may_follow(const struct run *run);

/* Writes which hosts have the shards, of the newest checkpoint, of ps that RUN
 * awaits: "the shard of ps 1 is on host b"; "": every host can read them, or
 * RUN does not go back. */
void take_over_name_hosts(struct run *run, char *text, size_t size);

/* Each turn of the chief's loop: while members join, leaves ps out that are not
 * back in time, if the others can take over, as from copies in memory if they
 * HAVE_COPIES. */
void take_over_step(struct run *run,
                    bool (*have_copies)(const struct run *run));

/* RUN goes back: those of its ps that are not here are lost. */
void take_over_note_lost(struct run *run);

/* RUN is over, and another follows: ps that wait have their places again once
 * it has gone back, and all ps if they are needed. */
void take_over_begin_next(struct run *run);

/* RUN is planned: who is lost next may be taken over from, or come back. */
void take_over_end(struct run *run);

#endif
