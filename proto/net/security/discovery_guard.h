/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a call ("the chief is at this address", data.proto's CALL) that came
 * to this process's port counts. It does where the cluster description names no
 * chief, and from a listed host; a description that lists nobody but this
 * process cannot tell hosts apart. Belongs to one thread. */
#ifndef CAPSTAN_DISCOVERY_GUARD_H
#define CAPSTAN_DISCOVERY_GUARD_H

#include "proto/base/log.h"
#include "proto/config/cluster/cluster.h"
#include "proto/net/link/link.h"
#include "proto/net/link/resolve.h"

#include <stdbool.h>

enum { DISCOVERY_GUARD_SENDERS = 4 }; /* looked up at once */

struct discovery_guard {
    const struct cluster *cluster; /* borrowed; NULL: no call counts */
    const struct log *log;
    struct discovery_guard_sender {
        char from[64], address[300]; /* its host, "": none; what it told */
        struct resolve *lookup;      /* is it listed? NULL: it counts */
    } senders[DISCOVERY_GUARD_SENDERS];
};

/* A call to ADDRESS came by FRAME to LINK. */
void discovery_guard_receive(struct discovery_guard *guard, struct link *link,
                             struct link_frame *frame, const char *address);

/* True when a call that came to LINK was found to count: fills ADDRESS. */
bool discovery_guard_step(struct discovery_guard *guard, struct link *link,
                          char *address, size_t size);

/* Ends what it looks up. */
void discovery_guard_close(struct discovery_guard *guard);

#endif
