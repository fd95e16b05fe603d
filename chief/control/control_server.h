/* SPDX-License-Identifier: Apache-2.0 */
/* The chief's side of the control protocol: one reliable, ordered channel to
 * the member of each slot, all over one link. */
#ifndef CAPSTAN_CONTROL_SERVER_H
#define CAPSTAN_CONTROL_SERVER_H

#include "chief/control/roster.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/net/link/link.h"
#include "proto/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct control_server;

/* Borrows LINK and ROSTER. NULL: no memory. */
struct control_server *control_server_open(struct link *link,
                                           struct roster *roster,
                                           const struct log *log, uint64_t run,
                                           uint64_t incarnation);

/* Drops undelivered messages and clears *SERVER. */
void control_server_close(struct control_server **server);

/* The messages are those of RUN from now on. */
void control_server_set_run(struct control_server *server, uint64_t run);

/* A received message. SLOT is the sender's slot: a member (also when it joins
 * again), or for ExitReport the process that has ended. NULL: a join or a
 * message from a process without a slot; answer it through `peer` with
 * control_server_reply. */
struct control_message {
    struct roster_slot *slot;
    const Capstan__Control *control; /* view until the next call */
    uint32_t peer;
    char from[64]; /* numeric host that a join came from; "": not over TCP */
};

/* Reads the next message, in order for each sender; false: none is pending. */
bool control_server_receive(struct control_server *server, int64_t now,
                            struct control_message *incoming);

/* Binds SLOT to its new member at connection PEER, with an empty channel. */
void control_server_bind_peer(struct control_server *server,
                              struct roster_slot *slot, uint32_t peer);

/* Queues CONTROL for SLOT's member and resends it until it is acknowledged.
 * Fills in run, sender and sequence number. */
void control_server_send(struct control_server *server,
                         struct roster_slot *slot, Capstan__Control *control);

/* Sends CONTROL to all members of ROLE (CLUSTER_ROLES: of any;
 * CLUSTER_WORKER: all trainers, including the chief's). */
void control_server_broadcast(struct control_server *server,
                              enum cluster_role role,
                              Capstan__Control *control);

/* Sends CONTROL once to connection PEER, without sequence number, run and
 * incarnation. Drops it while the peer has not read an earlier reply. */
void control_server_reply(struct control_server *server, uint32_t peer,
                          Capstan__Control *control);

/* Sends heartbeats that are due, resends unacknowledged messages, and tells the
 * roster whose connections were closed. False: there was no memory for a
 * message, which its member waits for in vain. */
bool control_server_step(struct control_server *server, int64_t now,
                         int64_t heartbeat_interval);

/* Has SLOT's member acknowledged every message? */
bool control_server_is_drained(struct control_server *server,
                               const struct roster_slot *slot);

#endif
