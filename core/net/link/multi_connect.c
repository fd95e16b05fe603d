/* SPDX-License-Identifier: Apache-2.0 */
#include "core/net/link/multi_connect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status multi_connect_open(struct multi_connect *multi_connect, void *zmq,
                               const struct link_settings *settings,
                               unsigned count, struct failure *why) {
    *multi_connect = (struct multi_connect){0};
    count = count < 1                   ? 1
            : count > MULTI_CONNECT_MAX ? MULTI_CONNECT_MAX
                                        : count;
    enum status status = STATUS_OK;
    for (; !status && multi_connect->count < count;
         multi_connect->count += !status)
        status = link_open(&multi_connect->links[multi_connect->count], zmq,
                           LINK_CLIENT, settings, why);
    if (status)
        multi_connect_close(multi_connect);
    return status;
}

void multi_connect_close(struct multi_connect *multi_connect) {
    while (multi_connect->count)
        link_close(&multi_connect->links[--multi_connect->count]);
}

enum status multi_connect_connect(struct multi_connect *multi_connect,
                                  const char *address, struct failure *why) {
    char text[300];
    const char *colon = strrchr(address, ':');
    unsigned long port = colon ? strtoul(colon + 1, NULL, 10) : 0;
    enum status status = link_connect(multi_connect->links[0], address, why);
    for (unsigned i = 1; !status && i < multi_connect->count; i++) {
        snprintf(text, sizeof text, "%.*s:%lu", (int)(colon - address), address,
                 port + i);
        status = link_connect(multi_connect->links[i], text, why);
    }
    return status;
}

bool multi_connect_commit(struct multi_connect *multi_connect,
                          const void *bytes, size_t size) {
    bool sent = false;
    for (unsigned i = 0; i < multi_connect->count; i++)
        sent |= link_commit(multi_connect->links[i], 0, bytes, size, NULL);
    return sent;
}

bool multi_connect_view(struct multi_connect *multi_connect,
                        struct link_frame *frame, unsigned *index) {
    for (*index = 0; *index < multi_connect->count; ++*index)
        if (link_view(multi_connect->links[*index], frame))
            return true;
    return false;
}

void multi_connect_choose(struct multi_connect *multi_connect, unsigned index) {
    struct link *chosen = multi_connect->links[index];
    multi_connect->links[index] = NULL;
    multi_connect_close(multi_connect);
    multi_connect->links[0] = chosen;
    multi_connect->count = 1;
}
