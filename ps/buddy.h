/* SPDX-License-Identifier: Apache-2.0 */
/* A ps's side of copies in memory (strategy.replicas): reports those of its own
 * part, fetches another ps's when the chief orders it, or its own from another
 * one when the run goes on from them, and hands pieces to those that fetch. */
#ifndef CAPSTAN_BUDDY_H
#define CAPSTAN_BUDDY_H

#include "core/base/status.h"
#include "core/store/copies.h"
#include "proto/holder/snapshots.h"
#include "ps/ps_internal.h"

#include <stdbool.h>
#include <stdint.h>

/* With PS's plan: forgets what is of another run. If the plan restores
 * from memory and this ps lacks its part, begins to fetch it. */
enum status buddy_open(struct ps *ps, struct failure *why) MUST_CHECK;

/* Ends what is fetched. */
void buddy_close(struct ps *ps);

/* Is a part on its way to this ps? */
bool buddy_is_fetching(const struct ps *ps);

/* *OUT are the files of the part that this ps restores next, views; false: they
 * are not here yet, or none is restored from memory. */
bool buddy_restored(const struct ps *ps, struct shard_copy *out);

/* It is restored: begins with the next one. Without any left ps->part is the
 * plan's num_buddies. */
enum status buddy_end_part(struct ps *ps, struct failure *why) MUST_CHECK;

/* That part cannot be restored, as WHY says: this ps ends, and the run goes
 * back once more, to the copy that another ps has or to a checkpoint. */
enum status buddy_give_up(const struct ps *ps, struct failure *why) MUST_CHECK;

/* As of struct snapshot_agent_source; CONTEXT is the ps. */
void buddy_copied(void *context, const struct snapshots_report *report,
                  Capstan__SnapshotReport *message);

/* The chief's order. */
void buddy_order(struct ps *ps, const Capstan__BuddyOrder *order);

/* Is HEADER, of FRAME, for a copy in memory? Then it is answered. */
bool buddy_answer(struct ps *ps, struct link_frame *frame,
                  const Capstan__DataHeader *header);

/* For zmq_poll, as link_poll_items; *DEADLINE is no later than buddy_step is
 * due. */
int buddy_poll_items(struct ps *ps, zmq_pollitem_t *items, int64_t *deadline);

/* Takes and asks for pieces. The status is that of the fetch without which this
 * ps has no weights. */
enum status buddy_step(struct ps *ps, int64_t now,
                       struct failure *why) MUST_CHECK;

#endif
