/* SPDX-License-Identifier: Apache-2.0 */
/* A process's membership in a run: it finds and joins the chief, keeps in
 * touch, hands on its orders in sequence, and notices when it is gone. Belongs
 * to one thread. */
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
    uint16_t port;            /* bound by this process, 0: none */
    uint64_t shm_key;         /* what it offers shared memory by, 0: nothing */
    const char *host;         /* as the cluster lists me, or NULL */
    const char *device;       /* "cpu" */
    const char *chief_inproc; /* chief in this process: its link's name */
    const struct cluster_task *chief; /* else; NULL: not known yet */
    uint16_t chief_ports; /* it may listen on so many from its own on; 0: 1 */
    const char *key;      /* cluster.h, or NULL */
    struct cluster_size size; /* as I know it */
    double join_timeout;      /* seconds */
    int record;               /* for my launcher (launch_record.h), 0: none */
};

struct control_client;

/* Nothing is sent yet. All pointers in SETTINGS are borrowed. */
enum status control_client_open(struct control_client **out,
                                const struct control_client_settings *settings,
                                struct failure *why) MUST_CHECK;

/* Leaves without a word (see control_client_leave) and clears *MEMBER. */
void control_client_close(struct control_client **control_client);

/* The chief's address became known (a call, a ps's word). */
void control_client_set_chief(struct control_client *control_client,
                              const char *host, uint16_t port);

/* The same from a call's text, "host:port" or "[v6]:port". */
void control_client_set_chief_address(struct control_client *control_client,
                                      const char *address);

/* Writes the chief's address for others; false when it is not known. */
bool control_client_chief_address(const struct control_client *control_client,
                                  char *text, size_t size);

/* Sends what is due at NOW. STATUS_RETRY names the chief when its deadline
 * (join, or peer once joined) has passed. */
enum status control_client_step(struct control_client *control_client,
                                int64_t now, struct failure *why) MUST_CHECK;

/* When control_client_step is due next. */
int64_t control_client_deadline(const struct control_client *control_client);

/* For zmq_poll: wait on this for ZMQ_POLLIN. */
void *control_client_socket(struct control_client *control_client);

/* The next order, or NULL; view until the next call. The first is the welcome.
 * A refusal is an error of the status it carries. */
enum status control_client_receive(struct control_client *control_client,
                                   int64_t now,
                                   const Capstan__Control **command,
                                   struct failure *why) MUST_CHECK;

/* Tells the chief BODY, in order, surely. Its run, sender and number are
 * filled in. */
void control_client_send_reliable(struct control_client *control_client,
                                  Capstan__Control *body);

/* What rides on every heartbeat; the role keeps it true. */
Capstan__Heartbeat *control_client_heartbeat(
    struct control_client *control_client);

/* Sends a heartbeat now: what follows is judged with these numbers. */
void control_client_send_heartbeat(struct control_client *control_client);

/* PEER of the job's timeouts, in seconds. */
void control_client_set_timeout(struct control_client *control_client,
                                double peer);

/* Says goodbye; the process leaves. */
void control_client_leave(struct control_client *control_client);

/* The chief ends the run: says goodbye and logs it. Returns what the process
 * ends with, WHY heard of. OK with *AGAIN set (unless that is NULL): the chief
 * leads another run, to be joined within so many seconds. */
enum status control_client_handle_stop(struct control_client *control_client,
                                       const Capstan__Stop *stop,
                                       double *restart_within,
                                       struct failure *why) MUST_CHECK;

/* Has the chief said welcome? */
bool control_client_is_joined(const struct control_client *control_client);
bool control_client_is_drained(
    const struct control_client *control_client); /* all it told has come */
uint64_t control_client_incarnation(
    const struct control_client *control_client);

/* The run joined, 0 before. */
uint64_t control_client_run(const struct control_client *control_client);

/* "the chief at host:port", for texts; view. */
const char *control_client_chief_name(
    const struct control_client *control_client);

#endif
