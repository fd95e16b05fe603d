/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whether a discovery message ("the chief is at this address", CHIEF_AT
 * in data.proto) is accepted: the cluster description names no chief, and the
 * sender's host is listed. A description that lists only this process cannot
 * tell hosts apart and accepts all. Belongs to one thread. */
#ifndef CAPSTAN_DISCOVERY_GUARD_H
#define CAPSTAN_DISCOVERY_GUARD_H

#include "core/base/log.h"
#include "core/net/link/link.h"
#include "core/net/link/resolve.h"
#include "proto/cluster/cluster.h"

#include <stdbool.h>

enum { DISCOVERY_GUARD_SENDERS = 4 }; /* looked up at the same time */

struct discovery_guard {
    const struct cluster *cluster; /* borrowed; NULL: no message is accepted */
    const struct cluster_task *chief; /* borrowed; the one that the description
                                         names, or NULL */
    const struct log *log;
    struct discovery_guard_sender {
        char from[64], address[300]; /* the sender's host, "": free entry; the
                                        chief's address */
        struct resolve *lookup;      /* is the host listed? NULL: accepted */
    } senders[DISCOVERY_GUARD_SENDERS];
};

/* A message to join the chief at ADDRESS came in FRAME to LINK. */
void discovery_guard_receive(struct discovery_guard *guard, struct link *link,
                             struct link_frame *frame, const char *address);

/* True if a message that came to LINK is accepted: fills ADDRESS. */
bool discovery_guard_step(struct discovery_guard *guard, struct link *link,
                          char *address, size_t size);

/* Ends its look-ups. */
void discovery_guard_close(struct discovery_guard *guard);

#endif
