/* SPDX-License-Identifier: Apache-2.0 */
/* A process's membership in a run: it finds and joins the chief, keeps in
 * touch, hands on its orders in sequence, and notices when it is gone. Belongs
 * to one thread. */
#ifndef CAPSTAN_MEMBER_H
#define CAPSTAN_MEMBER_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cluster/cluster_size.h"
#include "proto/net/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct member_settings {
    void *zmq;
    const struct log *log;
    enum cluster_role role;
    uint32_t index;
    uint16_t port;            /* bound by this process, 0: none */
    uint64_t lane;            /* what it offers shared memory by, 0: nothing */
    const char *host;         /* as the cluster lists me, or NULL */
    const char *device;       /* "cpu" */
    const char *chief_inside; /* chief in this process: its link's name */
    const struct cluster_task *chief; /* else; NULL: not known yet */
    uint16_t chief_ports; /* it may listen on so many from its own on; 0: 1 */
    const char *key;      /* cluster.h, or NULL */
    struct cluster_size size; /* as I know it */
    double join_timeout;      /* seconds */
    int record;               /* for my launcher (member_record.h), 0: none */
};

struct member;

/* Nothing is sent yet. All pointers in SETTINGS are borrowed. */
enum status member_open(struct member **out,
                        const struct member_settings *settings,
                        struct failure *why) MUST_CHECK;

/* Leaves without a word (see member_bye) and clears *MEMBER. */
void member_close(struct member **member);

/* The chief's address became known (a call, a ps's word). */
void member_meet(struct member *member, const char *host, uint16_t port);

/* The same from a call's text, "host:port" or "[v6]:port". */
void member_called(struct member *member, const char *address);

/* Writes the chief's address for others; false when it is not known. */
bool member_chief_address(const struct member *member, char *text, size_t size);

/* Sends what is due at NOW. STATUS_RETRY names the chief when its deadline
 * (join, or peer once joined) has passed. */
enum status member_step(struct member *member, int64_t now,
                        struct failure *why) MUST_CHECK;

/* When member_step is due next. */
int64_t member_deadline(const struct member *member);

/* For zmq_poll: wait on this for ZMQ_POLLIN. */
void *member_socket(struct member *member);

/* The next order, or NULL; view until the next call. The first is the welcome.
 * A refusal is an error of the status it carries. */
enum status member_receive(struct member *member, int64_t now,
                           const Capstan__Control **order,
                           struct failure *why) MUST_CHECK;

/* Tells the chief BODY, in order, surely. Its run, sender and number are
 * filled in. */
void member_tell(struct member *member, Capstan__Control *body);

/* What rides on every heartbeat; the role keeps it true. */
Capstan__Beat *member_beat(struct member *member);

/* Sends a heartbeat now: what follows is judged with these numbers. */
void member_beat_now(struct member *member);

/* PEER of the job's timeouts, in seconds. */
void member_timeout(struct member *member, double peer);

/* Says goodbye; the process leaves. */
void member_bye(struct member *member);

/* The chief ends the run: says goodbye and logs it. Returns what the process
 * ends with, WHY heard of. OK with *AGAIN set (unless that is NULL): the chief
 * leads another run, to be joined within so many seconds. */
enum status member_stop(struct member *member, const Capstan__Stop *stop,
                        double *again, struct failure *why) MUST_CHECK;

/* Has the chief said welcome? */
bool member_joined(const struct member *member);
bool member_settled(const struct member *member); /* all it told has come */
uint64_t member_incarnation(const struct member *member);

/* The run joined, 0 before. */
uint64_t member_run(const struct member *member);

/* "the chief at host:port", for texts; view. */
const char *member_chief_name(const struct member *member);

#endif
