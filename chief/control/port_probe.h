/* SPDX-License-Identifier: Apache-2.0 */
/* Does the port of a member refuse whose kernel has closed its connection to
 * the chief? Then the process has ended, which is known a second after it and
 * not by missed heartbeats. A connection that something between the two has
 * reset is no such end: its member joins again, or its port answers. Nor does a
 * refusal show one of an address that has never accepted a connection from
 * here: it may be that of a container, or not the one where the member listens.
 */
#ifndef CAPSTAN_PORT_PROBE_H
#define CAPSTAN_PORT_PROBE_H

#include "chief/control/roster.h"

#include <stdbool.h>
#include <stdint.h>

/* Zeroed: nothing is tried. */
struct port_probe {
    bool waits; /* for the answer to SOCKET's connection */
    int socket;
    int64_t of;   /* what `closed` of the slot was when it was tried */
    int64_t next; /* when it is tried again */
    unsigned refusals;
};

/* Once a turn of the chief's loop, for SLOT. Does not block. */
bool port_probe_refuses(struct port_probe *probe,
                        const struct roster_slot *slot, int64_t now);

/* Gives up what is under way. */
void port_probe_close(struct port_probe *probe);

#endif
