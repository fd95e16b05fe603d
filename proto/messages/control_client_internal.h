/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a control client, shared by control_client.c (the run) and
 * control_client_join.c (the join). */
#ifndef CAPSTAN_CONTROL_CLIENT_INTERNAL_H
#define CAPSTAN_CONTROL_CLIENT_INTERNAL_H

#include "core/base/deadline.h"
#include "core/base/free_memory.h"
#include "core/base/time.h"
#include "core/net/link/multi_connect.h"
#include "core/net/link/resolve.h"
#include "proto/messages/channel.h"
#include "proto/messages/control_client.h"

static const int64_t CONTROL_CLIENT_JOIN_INTERVAL = TIME_S / 2;
static const int64_t CONTROL_CLIENT_LOOKUP_INTERVAL = 5 * TIME_S;
static const int64_t CONTROL_CLIENT_POLL_INTERVAL =
    TIME_S / 20; /* of look-ups and connecting */

struct control_client {
    struct process *process;
    const struct member *member;
    uint16_t port;
    uint64_t shm_key;
    struct multi_connect multi_connect; /* one link, once joined */
    struct channel channel;
    struct resolve *resolve;
    uint64_t end_key;
    char chief_host[256], chief_name[320];
    char foreign_server[400]; /* what answers instead of the chief; "": nothing
                               */
    uint16_t chief_port;
    char host[256];
    bool joined, planned;
    bool rejoins;  /* by a new connection, which the chief has not answered */
    bool answered; /* by a chief that this process cannot join */
    int64_t opened, last_received, last_join, last_heartbeat, last_wait_log;
    int64_t foreign_at, last_foreign_log; /* of foreign_server; 0: none */
    int64_t last_step;        /* time of the last control_client_step */
    int64_t stall, stall_end; /* the last standstill: its length and its end */
    int64_t silence_logged; /* last_received of the silence that was logged; 0:
                               none */
    int64_t lookup_started, last_poll; /* of the last look-up */
    int64_t join_limit, peer_limit, heartbeat_interval;
    Capstan__Heartbeat heartbeat;
    Capstan__Control *command;
    struct free_memory_limit limits[FREE_MEMORY_LIMITS];
    /* The limits as messages, and pointers to them. */
    Capstan__MemoryLimit limit_messages[FREE_MEMORY_LIMITS];
    Capstan__MemoryLimit *limit_pointers[FREE_MEMORY_LIMITS];
    unsigned num_limits;
    int64_t limits_read;
};

/* What the client waits for: the chief's welcome, then its heartbeats. */
struct deadline control_client_chief_deadline(
    const struct control_client *client);

/* The memory that this process may still take, as messages; views until the
 * next call. Read again if the last reading is EVERY ns old. Returns how many.
 */
unsigned control_client_memory(struct control_client *client, int64_t now,
                               int64_t every, Capstan__MemoryLimit ***limits);

/* Sends CONTROL once, without a number. False: no connection or no memory. */
bool control_client_send_unreliable(struct control_client *client,
                                    Capstan__Control *control);

/* Sends a join: to enter the run or, once joined, to use a new connection.
 * False: no connection or no memory. */
bool control_client_send_join(struct control_client *client, int64_t now);

/* Before the join: the server of link INDEX is no chief that this process can
 * join; it does WHAT, a predicate. Is that new? Then the caller logs it. */
bool control_client_note_foreign(struct control_client *client, unsigned index,
                                 const char *what);

/* Looks the chief's name up, if that is due, and connects to the result. */
void control_client_look_up(struct control_client *client, int64_t now);

/* control_client_step before the join. */
enum status control_client_step_joining(struct control_client *client,
                                        int64_t now,
                                        struct failure *why) MUST_CHECK;

#endif
