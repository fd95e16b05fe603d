/* SPDX-License-Identifier: Apache-2.0 */
/* A process's side of the control connection: finds the chief, joins the run,
 * sends and receives heartbeats, delivers the chief's commands in order, and
 * notices when the chief is gone. Belongs to one thread. */
#ifndef CAPSTAN_CONTROL_CLIENT_H
#define CAPSTAN_CONTROL_CLIENT_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cluster/cluster_size.h"
#include "proto/net/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct control_client_settings {
    void *zmq;
    const struct log *log;
    enum cluster_role role;
    uint32_t index;
    uint16_t port;    /* bound by this process; 0: none */
    uint64_t shm_key; /* of this process's shared memory; 0: none */
    const char *host; /* this process's host as the cluster lists it, or NULL */
    const char *device;               /* "cpu" */
    const char *chief_inproc;         /* the chief's endpoint inside, or NULL */
    const struct cluster_task *chief; /* else its address; NULL: unknown */
    uint16_t chief_ports;     /* number of ports, from its own on, that it may
                                 listen on; 0: 1 */
    const char *key;          /* the job's key (cluster.h), or NULL */
    struct cluster_size size; /* as configured in this process */
    double join_timeout;      /* seconds */
    int record;               /* for the launcher (launch_record.h); 0: none */
};

struct control_client;

/* Sends nothing yet. All pointers in SETTINGS are borrowed. */
enum status control_client_open(struct control_client **out,
                                const struct control_client_settings *settings,
                                struct failure *why) MUST_CHECK;

/* Closes without a goodbye (see control_client_leave) and clears
 * *CONTROL_CLIENT. */
void control_client_close(struct control_client **control_client);

/* Sets the chief's address, learned from a discovery message. Ignored after the
 * join. */
void control_client_set_chief(struct control_client *control_client,
                              const char *host, uint16_t port);

/* The same from text, "host:port" or "[v6]:port". */
void control_client_set_chief_address(struct control_client *control_client,
                                      const char *address);

/* Writes the chief's address, for other processes; false: it is not known. */
bool control_client_chief_address(const struct control_client *control_client,
                                  char *text, size_t size);

/* Sends what is due at NOW. STATUS_RETRY naming the chief if its deadline has
 * passed (timeouts.join, or timeouts.peer after the join). */
enum status control_client_step(struct control_client *control_client,
                                int64_t now, struct failure *why) MUST_CHECK;

/* When control_client_step is due next. */
int64_t control_client_deadline(const struct control_client *control_client);

/* For zmq_poll with ZMQ_POLLIN. */
void *control_client_socket(struct control_client *control_client);

/* The next command of the chief, or NULL; view until the next call. The first
 * is the welcome. A refusal returns the status that it carries. */
enum status control_client_receive(struct control_client *control_client,
                                   int64_t now,
                                   const Capstan__Control **command,
                                   struct failure *why) MUST_CHECK;

/* Sends BODY to the chief, in order and exactly once. Fills in its run, sender
 * and number. */
void control_client_send_reliable(struct control_client *control_client,
                                  Capstan__Control *body);

/* The heartbeat's fields; the role keeps them up to date. */
Capstan__Heartbeat *control_client_heartbeat(
    struct control_client *control_client);

/* Sends a heartbeat now, so that the chief judges later messages by these
 * numbers. */
void control_client_send_heartbeat(struct control_client *control_client);

/* Sets the job's timeouts.peer, in seconds. */
void control_client_set_timeout(struct control_client *control_client,
                                double peer);

/* Sends a goodbye: the process leaves. */
void control_client_leave(struct control_client *control_client);

/* Handles the chief's stop: sends a goodbye and logs. Returns the process's
 * exit status, with WHY marked as reported. If another run of this chief
 * follows: OK, and *RESTART_WITHIN (may be NULL) is set to the seconds within
 * which to join it. */
enum status control_client_handle_stop(struct control_client *control_client,
                                       const Capstan__Stop *stop,
                                       double *restart_within,
                                       struct failure *why) MUST_CHECK;

/* Has the chief sent a welcome? */
bool control_client_is_joined(const struct control_client *control_client);

/* Has the chief acknowledged all reliable messages? */
bool control_client_is_drained(const struct control_client *control_client);

uint64_t control_client_incarnation(
    const struct control_client *control_client);

/* The run joined, 0 before. */
uint64_t control_client_run(const struct control_client *control_client);

/* "the chief at host:port", for texts; view. */
const char *control_client_chief_name(
    const struct control_client *control_client);

#endif
