/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/launch/port.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

/* A socket bound to any free port of every interface, IPv6 and IPv4 if there is
 * IPv6; -1 with errno. */
static int bind_any(int family) {
    struct sockaddr_storage any = {.ss_family = (sa_family_t)family};
    int no = 0;
    int port_socket = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (port_socket < 0)
        return -1;
    if (family == AF_INET6)
        setsockopt(port_socket, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    socklen_t size = family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                        : sizeof(struct sockaddr_in);
    if (!bind(port_socket, (struct sockaddr *)&any, size))
        return port_socket;
    int error = errno;
    close(port_socket);
    errno = error;
    return -1;
}

static uint16_t bound_port(int port_socket) {
    struct sockaddr_storage bound = {0};
    socklen_t size = sizeof bound;
    getsockname(port_socket, (struct sockaddr *)&bound, &size);
    return ntohs(bound.ss_family == AF_INET6
                     ? ((struct sockaddr_in6 *)&bound)->sin6_port
                     : ((struct sockaddr_in *)&bound)->sin_port);
}

enum status port_reserve(uint16_t *port, int *port_socket,
                         struct failure *why) {
    int yes = 1;
    *port_socket = bind_any(AF_INET6);
    if (*port_socket < 0)
        *port_socket = bind_any(AF_INET);
    if (*port_socket < 0)
        return status_errno(why, FAILURE_SYSTEM_BUSY, errno,
                            "finding a free TCP port on this machine");
    /* Only after the bind: before it, the socket could get a port that another
     * process has reserved. */
    setsockopt(*port_socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    *port = bound_port(*port_socket);
    return STATUS_OK;
}
