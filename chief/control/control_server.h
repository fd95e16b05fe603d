/* SPDX-License-Identifier: Apache-2.0 */
/* The chief's side of control messages: a channel to each slot's holder, in
 * order and surely, over one link. */
#ifndef CAPSTAN_CONTROL_SERVER_H
#define CAPSTAN_CONTROL_SERVER_H

#include "chief/control/roster.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/net/link/link.h"
#include "proto/net/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct control_server;

/* Borrows LINK and ROSTER. NULL: no memory. */
struct control_server *control_server_open(struct link *link,
                                           struct roster *roster,
                                           const struct log *log, uint64_t run,
                                           uint64_t incarnation);

/* Drops what was not delivered and clears *POST. */
void control_server_close(struct control_server **control_server);

/* What came. SLOT is its sender, a member, who may join again, or of Ended who
 * has; NULL: a join, or somebody unknown, whose `peer` control_server_reply
 * takes. */
struct control_message {
    struct roster_slot *slot;
    const Capstan__Control *control; /* view until the next call */
    uint32_t peer;
    char from[64]; /* numeric host that a join came from, "": not over TCP */
};

/* The next letter, in order for each sender; false: none is here. */
bool control_server_receive(struct control_server *control_server, int64_t now,
                            struct control_message *incoming);

/* SLOT was taken by a new holder that writes from PEER. */
void control_server_bind_peer(struct control_server *control_server,
                              struct roster_slot *slot, uint32_t peer);

/* Tells SLOT's holder, surely; run, sender and number are filled in. */
void control_server_send(struct control_server *control_server,
                         struct roster_slot *slot, Capstan__Control *control);

/* The same to all holders of ROLE (CLUSTER_ROLES: everyone; CLUSTER_WORKER:
 * all trainers, the chief's too). */
void control_server_broadcast(struct control_server *control_server,
                              enum cluster_role role,
                              Capstan__Control *control);

/* Once, unnumbered and in nobody's name, to a connection; not sent while it
 * does not read what it was answered before. */
void control_server_reply(struct control_server *control_server, uint32_t peer,
                          Capstan__Control *control);

/* Sends heartbeats and what was not acknowledged. */
void control_server_step(struct control_server *control_server, int64_t now,
                         int64_t heartbeat_interval);

/* Has SLOT's holder taken all it was told? */
bool control_server_is_drained(struct control_server *control_server,
                               const struct roster_slot *slot);

#endif
