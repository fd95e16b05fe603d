/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/port_probe.h"

#include "core/base/time.h"
#include "core/net/link/resolve.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

/* In this time a living member has joined again by a new connection. */
static const int64_t PROBE_AFTER = TIME_S / 2;

/* A firewall that is loaded anew may refuse for a moment. */
static const int64_t PROBE_AGAIN = TIME_S / 4;
enum { REFUSALS = 3 };

/* Begins to connect to ADDRESS, a numeric host:port. 0: it is under way or
 * there, else the error. */
static int probe_connect(struct port_probe *probe, const char *address) {
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                             .ai_socktype = SOCK_STREAM},
                    *found = NULL;
    char host[256], port[8];
    uint16_t number;
    if (!resolve_split(address, host, sizeof host, &number))
        return EINVAL;
    snprintf(port, sizeof port, "%u", number);
    if (getaddrinfo(host, port, &hints, &found))
        return EINVAL;
    probe->socket =
        socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    probe->waits = probe->socket >= 0;
    int error = !probe->waits ? errno
                : connect(probe->socket, found->ai_addr, found->ai_addrlen)
                    ? errno
                    : 0;
    freeaddrinfo(found);
    return error == EINPROGRESS ? 0 : error;
}

/* The error of the connection; 0: none, or not yet. */
static int probe_error(struct port_probe *probe) {
    struct pollfd item = {.fd = probe->socket, .events = POLLOUT};
    int error = 0;
    socklen_t size = sizeof error;
    if (!probe->waits || poll(&item, 1, 0) <= 0)
        return 0;
    getsockopt(probe->socket, SOL_SOCKET, SO_ERROR, &error, &size);
    port_probe_close(probe);
    return error;
}

bool port_probe_refuses(struct port_probe *probe,
                        const struct roster_slot *slot, int64_t now) {
    bool closed = slot->state == ROSTER_HELD && slot->closed && slot->accepts;
    int error = 0;
    if (!closed || probe->of != slot->closed) {
        port_probe_close(probe);
        probe->of = slot->closed;
        probe->next = slot->closed + PROBE_AFTER;
        probe->refusals = 0;
    }
    if (closed && !probe->waits && now >= probe->next) {
        probe->next = TIME_NEVER; /* unless it refuses */
        error = probe_connect(probe, slot->address);
    }
    if ((error ? error : probe_error(probe)) == ECONNREFUSED) {
        port_probe_close(probe);
        probe->next = now + PROBE_AGAIN;
        probe->refusals++;
    }
    return closed && probe->refusals >= REFUSALS;
}

void port_probe_close(struct port_probe *probe) {
    if (probe->waits)
        close(probe->socket);
    probe->waits = false;
}
