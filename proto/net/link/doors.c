/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/net/link/doors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status doors_open(struct doors *doors, void *zmq,
                       const struct link_settings *settings, unsigned count,
                       struct failure *why) {
    *doors = (struct doors){0};
    count = count < 1 ? 1 : count > DOORS_MAX ? DOORS_MAX : count;
    enum status status = STATUS_OK;
    for (; !status && doors->count < count; doors->count += !status)
        status = link_open(&doors->links[doors->count], zmq, LINK_CLIENT,
                           settings, why);
    if (status)
        doors_close(doors);
    return status;
}

void doors_close(struct doors *doors) {
    while (doors->count)
        link_close(&doors->links[--doors->count]);
}

enum status doors_connect(struct doors *doors, const char *address,
                          struct failure *why) {
    char text[300];
    const char *colon = strrchr(address, ':');
    unsigned long port = colon ? strtoul(colon + 1, NULL, 10) : 0;
    enum status status = link_connect(doors->links[0], address, why);
    for (unsigned i = 1; !status && i < doors->count; i++) {
        snprintf(text, sizeof text, "%.*s:%lu", (int)(colon - address), address,
                 port + i);
        status = link_connect(doors->links[i], text, why);
    }
    return status;
}

bool doors_commit(struct doors *doors, const void *bytes, size_t size) {
    bool sent = false;
    for (unsigned i = 0; i < doors->count; i++)
        sent |= link_commit(doors->links[i], 0, bytes, size, NULL);
    return sent;
}

bool doors_view(struct doors *doors, struct link_frame *frame,
                unsigned *which) {
    for (*which = 0; *which < doors->count; ++*which)
        if (link_view(doors->links[*which], frame))
            return true;
    return false;
}

void doors_choose(struct doors *doors, unsigned which) {
    struct link *chosen = doors->links[which];
    doors->links[which] = NULL;
    doors_close(doors);
    doors->links[0] = chosen;
    doors->count = 1;
}
