/* SPDX-License-Identifier: Apache-2.0 */
/* The chief's side of control messages: a channel to each slot's holder, in
 * order and surely, over one link. */
#ifndef CAPSTAN_POST_H
#define CAPSTAN_POST_H

#include "chief/control/roster.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/net/link/link.h"
#include "proto/net/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct post;

/* Borrows LINK and ROSTER. NULL: no memory. */
struct post *post_open(struct link *link, struct roster *roster,
                       const struct log *log, uint64_t run,
                       uint64_t incarnation);

/* Drops what was not delivered and clears *POST. */
void post_close(struct post **post);

/* What came. SLOT is its sender, a member, who may join again, or of Ended who
 * has; NULL: a join, or somebody unknown, whose `peer` post_answer takes. */
struct post_letter {
    struct roster_slot *slot;
    const Capstan__Control *control; /* view until the next call */
    uint32_t peer;
    char from[64]; /* numeric host that a join came from, "": not over TCP */
};

/* The next letter, in order for each sender; false: none is here. */
bool post_receive(struct post *post, int64_t now, struct post_letter *letter);

/* SLOT was taken by a new holder that writes from PEER. */
void post_meet(struct post *post, struct roster_slot *slot, uint32_t peer);

/* Tells SLOT's holder, surely; run, sender and number are filled in. */
void post_tell(struct post *post, struct roster_slot *slot,
               Capstan__Control *control);

/* The same to all holders of ROLE (CLUSTER_ROLES: everyone; CLUSTER_WORKER:
 * all trainers, the chief's too). */
void post_tell_all(struct post *post, enum cluster_role role,
                   Capstan__Control *control);

/* Once, unnumbered and in nobody's name, to a connection; not sent while it
 * does not read what it was answered before. */
void post_answer(struct post *post, uint32_t peer, Capstan__Control *control);

/* Sends heartbeats and what was not acknowledged. */
void post_step(struct post *post, int64_t now, int64_t beat_every);

/* Has SLOT's holder taken all it was told? */
bool post_settled(struct post *post, const struct roster_slot *slot);

#endif
