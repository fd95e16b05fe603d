/* SPDX-License-Identifier: Apache-2.0 */
/* What a member is made of: for member.c, its life in the run, and
 * member_join.c, the way there. */
#ifndef CAPSTAN_MEMBER_PARTS_H
#define CAPSTAN_MEMBER_PARTS_H

#include "proto/base/free_memory.h"
#include "proto/base/time.h"
#include "proto/base/wait.h"
#include "proto/net/link/doors.h"
#include "proto/net/link/resolve.h"
#include "proto/net/messages/channel.h"
#include "proto/net/messages/member.h"

static const int64_t MEMBER_JOIN_EVERY = TIME_S / 2;
static const int64_t MEMBER_LOOK_UP_EVERY = 5 * TIME_S;
static const int64_t MEMBER_LOOK_EVERY = TIME_S / 20; /* look-up, connection */

struct member {
    struct member_settings settings;
    struct doors doors; /* one, once joined */
    struct channel channel;
    struct resolve *resolve;
    uint64_t incarnation, run, end_key;
    char chief_host[256], chief_name[320];
    uint16_t chief_port;
    char host[256];
    bool joined, planned, said_stranger;
    int64_t opened, heard, join_sent, beat_sent, said_waiting;
    int64_t stepped;           /* when it last looked */
    int64_t still, stood;      /* the last standstill: how long, until when */
    int64_t silent;            /* the chief's silence that was told; 0: none */
    int64_t looked_up, looked; /* look-up started, last asked about */
    int64_t join_limit, peer_limit, beat_every;
    Capstan__Beat beat;
    Capstan__Control *order;
    struct free_memory_limit limits[FREE_MEMORY_LIMITS];
    Capstan__MemoryLimit told[FREE_MEMORY_LIMITS];  /* the same, */
    Capstan__MemoryLimit *list[FREE_MEMORY_LIMITS]; /* for a message */
    unsigned num_limits;
    int64_t limits_read;
};

/* What it waits for: the chief's welcome, then its heartbeats. */
struct wait member_wait(const struct member *member);

/* What it may still take of memory, read anew when the last time is EVERY ago,
 * as messages; views until the next call. Returns how many. */
unsigned member_memory(struct member *member, int64_t now, int64_t every,
                       Capstan__MemoryLimit ***limits);

/* Sends CONTROL, unnumbered; false: there is no connection, or no memory. */
bool member_send(struct member *member, Capstan__Control *control);

/* Asks to be let in; of who has joined: to be heard by this connection, too.
 * False: there is no connection, or no memory. */
bool member_send_join(struct member *member, int64_t now);

/* Looks the chief's name up, if that is due, and connects to what is found. */
void member_look_up(struct member *member, int64_t now);

/* member_step of who has not joined. */
enum status member_step_joining(struct member *member, int64_t now,
                                struct failure *why) MUST_CHECK;

#endif
