/* SPDX-License-Identifier: Apache-2.0 */
/* What a member is made of: for control_client.c, its life in the run, and
 * control_client_join.c, the way there. */
#ifndef CAPSTAN_CONTROL_CLIENT_INTERNAL_H
#define CAPSTAN_CONTROL_CLIENT_INTERNAL_H

#include "proto/base/deadline.h"
#include "proto/base/free_memory.h"
#include "proto/base/time.h"
#include "proto/net/link/multi_connect.h"
#include "proto/net/link/resolve.h"
#include "proto/net/messages/channel.h"
#include "proto/net/messages/control_client.h"

static const int64_t CONTROL_CLIENT_JOIN_INTERVAL = TIME_S / 2;
static const int64_t CONTROL_CLIENT_LOOKUP_INTERVAL = 5 * TIME_S;
static const int64_t CONTROL_CLIENT_POLL_INTERVAL =
    TIME_S / 20; /* look-up, connection */

struct control_client {
    struct control_client_settings settings;
    struct multi_connect multi_connect; /* one, once joined */
    struct channel channel;
    struct resolve *resolve;
    uint64_t incarnation, run, end_key;
    char chief_host[256], chief_name[320];
    uint16_t chief_port;
    char host[256];
    bool joined, planned, warned_other_job;
    int64_t opened, last_received, last_join, last_heartbeat, last_wait_log;
    int64_t last_step;        /* when it last looked */
    int64_t stall, stall_end; /* the last standstill: how long, until when */
    int64_t silence_logged;   /* the chief's silence that was told; 0: none */
    int64_t lookup_started, last_poll; /* look-up started, last asked about */
    int64_t join_limit, peer_limit, heartbeat_interval;
    Capstan__Heartbeat heartbeat;
    Capstan__Control *command;
    struct free_memory_limit limits[FREE_MEMORY_LIMITS];
    Capstan__MemoryLimit limit_messages[FREE_MEMORY_LIMITS]; /* the same, */
    Capstan__MemoryLimit
        *limit_pointers[FREE_MEMORY_LIMITS]; /* for a message */
    unsigned num_limits;
    int64_t limits_read;
};

/* What it waits for: the chief's welcome, then its heartbeats. */
struct deadline control_client_chief_deadline(
    const struct control_client *control_client);

/* What it may still take of memory, read anew when the last time is EVERY ago,
 * as messages; views until the next call. Returns how many. */
unsigned control_client_memory(struct control_client *control_client,
                               int64_t now, int64_t every,
                               Capstan__MemoryLimit ***limits);

/* Sends CONTROL, unnumbered; false: there is no connection, or no memory. */
bool control_client_send_unreliable(struct control_client *control_client,
                                    Capstan__Control *control);

/* Asks to be let in; of who has joined: to be heard by this connection, too.
 * False: there is no connection, or no memory. */
bool control_client_send_join(struct control_client *control_client,
                              int64_t now);

/* Looks the chief's name up, if that is due, and connects to what is found. */
void control_client_look_up(struct control_client *control_client, int64_t now);

/* control_client_step of who has not joined. */
enum status control_client_step_joining(struct control_client *control_client,
                                        int64_t now,
                                        struct failure *why) MUST_CHECK;

#endif
