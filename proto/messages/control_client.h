/* SPDX-License-Identifier: Apache-2.0 */
/* A process's side of the control connection: finds the chief, joins the run,
 * sends and receives heartbeats, delivers the chief's commands in order, and
 * notices when the chief is gone. Belongs to one thread. */
#ifndef CAPSTAN_CONTROL_CLIENT_H
#define CAPSTAN_CONTROL_CLIENT_H

#include "core/base/health.h"
#include "core/base/status.h"
#include "proto/messages/member.h"
#include "proto/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct control_client_settings {
    struct process *process; /* its run and incarnation are set here */
    const struct member *member;
    uint16_t port;    /* bound by this process; 0: none */
    uint64_t shm_key; /* of this process's shared memory; 0: none */
};

struct control_client;

/* Sends nothing yet. All pointers in SETTINGS are borrowed. */
enum status control_client_open(struct control_client **out,
                                const struct control_client_settings *settings,
                                struct failure *why) MUST_CHECK;

/* Closes without a goodbye (see control_client_leave) and clears
 * *CLIENT. */
void control_client_close(struct control_client **client);

/* Sets the chief's address, learned from a discovery message. Ignored after the
 * join. */
void control_client_set_chief(struct control_client *client, const char *host,
                              uint16_t port);

/* The same from text, "host:port" or "[v6]:port". */
void control_client_set_chief_address(struct control_client *client,
                                      const char *address);

/* Writes the chief's address, for other processes; false: it is not known. */
bool control_client_chief_address(const struct control_client *client,
                                  char *text, size_t size);

/* Sends what is due at NOW. STATUS_RETRY naming the chief if its deadline has
 * passed (timeouts.join, or timeouts.peer after the join). */
enum status control_client_step(struct control_client *client, int64_t now,
                                struct failure *why) MUST_CHECK;

/* Has the chief, whose part in the end of a process that got a signal is
 * awaited, been silent for STOP seconds, at least 5? Logs it. */
bool control_client_is_abandoned(const struct control_client *client,
                                 double stop);

/* When control_client_step is due next. */
int64_t control_client_deadline(const struct control_client *client);

/* For zmq_poll with ZMQ_POLLIN. */
void *control_client_socket(struct control_client *client);

/* Fills in the state, joining or joined, the run, the chief as a peer, and its
 * deadline. */
void control_client_report(const struct control_client *client,
                           struct health_report *report, int64_t now);

/* The next command of the chief, or NULL; view until the next call. The first
 * is the welcome. A refusal returns the status that it carries. */
enum status control_client_receive(struct control_client *client, int64_t now,
                                   const Capstan__Control **command,
                                   struct failure *why) MUST_CHECK;

/* There is no memory for a message, which the chief would wait for in vain:
 * from now on control_client_receive fails. */
void control_client_drop(struct control_client *client);

/* Sends BODY to the chief, in order and exactly once. Fills in its run, sender
 * and number. */
void control_client_send_reliable(struct control_client *client,
                                  Capstan__Control *body);

/* Sends that this trainer has finished its loop with push CLOCK; EARLY: the
 * others go on without it; LEAVING: on a signal, and a goodbye follows. */
void control_client_send_finished(struct control_client *client, uint64_t clock,
                                  bool early, bool leaving);

/* Sends that this role fails with WHY. */
void control_client_send_failed(struct control_client *client,
                                const struct failure *why);

/* The heartbeat's fields; the role keeps them up to date. */
Capstan__Heartbeat *control_client_heartbeat(struct control_client *client);

/* Sends a heartbeat now, so that the chief judges later messages by these
 * numbers. */
void control_client_send_heartbeat(struct control_client *client);

/* Sets the job's timeouts.peer, in seconds. */
void control_client_set_timeout(struct control_client *client, double peer);

/* Sends the records of steps that are traced and a goodbye: the process
 * leaves. */
void control_client_leave(struct control_client *client);

/* As control_client_leave, because of WHY: its launcher may start another
 * process in its place if WHY may be over by then, and the chief is there. */
void control_client_leave_failed(struct control_client *client,
                                 const struct failure *why);

/* Handles the chief's stop: sends a last heartbeat and a goodbye, and logs.
 * Returns the process's exit status, with WHY marked as reported. If another
 * run of this chief follows: OK, and the member's restart_within is set. */
enum status control_client_handle_stop(struct control_client *client,
                                       const Capstan__Stop *stop,
                                       struct failure *why) MUST_CHECK;

/* Is its chief silent or gone, and does it go on without it? */
bool control_client_is_orphaned(const struct control_client *client);

/* Has the chief sent a welcome? */
bool control_client_is_joined(const struct control_client *client);

/* Has the chief acknowledged all reliable messages? */
bool control_client_is_drained(const struct control_client *client);

/* "the chief at host:port", for texts; view. */
const char *control_client_chief_name(const struct control_client *client);

#endif
