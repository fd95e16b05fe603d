/* SPDX-License-Identifier: Apache-2.0 */
/* A server's connections: which are open, which are admitted, and what to log
 * about misbehaving peers.
 *
 * libzmq's monitor reports the descriptors of accepted and ended connections; a
 * message carries the one by which it came. A connection not admitted in time
 * is shut down by its descriptor, which libzmq sees as its end. As the
 * descriptor may belong to another socket by then, the kernel's socket number
 * (SO_COOKIE) is compared first.
 *
 * A connection ends alike for libzmq when the peer's kernel closes it, as it
 * does when the process ends, and when this kernel gives it up, as nothing has
 * come for three seconds (keepalive). The kernel's time of the last packet
 * tells them apart: a living kernel acknowledges a heartbeat or a keepalive
 * probe each second, also for a process that is stopped. */
#include "proto/base/limits.h"
#include "proto/base/time.h"
#include "proto/net/link/link_internal.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

static const int64_t LOG_INTERVAL = 10 * TIME_S;
static const int64_t HEARD_INTERVAL = TIME_S / 4, HEARD_LIMIT = 2 * TIME_S;
enum { MAX_EVENTS = 1024, CHECKS_PER_LIMIT = 8, FIRST_CONNECTIONS = 64 };
/* Half of the descriptors that limits.h reserves for the process itself. */
enum { FREE_DESCRIPTORS = LIMITS_OWN_DESCRIPTORS / 2 };

/* The entry of DESCRIPTOR; NULL: no memory. */
static struct link_connection *connection_of(struct link *link,
                                             unsigned descriptor) {
    unsigned old = link->num_connections, count = old ? old : FIRST_CONNECTIONS;
    if (descriptor < old)
        return &link->connections[descriptor];
    while (count <= descriptor)
        count *= 2;
    struct link_connection *all =
        realloc(link->connections, count * sizeof *all);
    if (!all)
        return NULL;
    memset(all + old, 0, (count - old) * sizeof *all);
    link->connections = all;
    link->num_connections = count;
    return &all[descriptor];
}

uint64_t link_cookie(int descriptor) {
    uint64_t cookie = 0;
    socklen_t size = sizeof cookie;
    getsockopt(descriptor, SOL_SOCKET, SO_COOKIE, &cookie, &size);
    return cookie;
}

/* Is DESCRIPTOR still CONNECTION's socket? */
static bool is_same_socket(const struct link_connection *connection,
                           int descriptor) {
    return connection->since && connection->cookie &&
           link_cookie(descriptor) == connection->cookie;
}

static void shut_down(struct link *link, unsigned descriptor) {
    struct link_connection *connection = &link->connections[descriptor];
    connection->expired = true;
    if (is_same_socket(connection, (int)descriptor))
        shutdown((int)descriptor, SHUT_RDWR);
}

static bool may_be_closed(const struct link_connection *connection) {
    return connection->since && !connection->admitted && !connection->expired;
}

/* Files and threads need descriptors too. When unadmitted connections hold all
 * but a few, the oldest of them is closed. The kernel assigns the lowest free
 * descriptor, so a high one means that few are left. */
static void reserve_descriptors(struct link *link, unsigned descriptor) {
    struct rlimit limit;
    unsigned oldest = link->num_connections;
    if (getrlimit(RLIMIT_NOFILE, &limit) ||
        descriptor + FREE_DESCRIPTORS < limit.rlim_cur)
        return;
    link->violations[LINK_NO_DESCRIPTOR] = true;
    for (unsigned i = 0; i < link->num_connections; i++)
        if (may_be_closed(&link->connections[i]) &&
            (oldest == link->num_connections ||
             link->connections[i].since < link->connections[oldest].since))
            oldest = i;
    if (oldest < link->num_connections)
        shut_down(link, oldest);
}

void link_read_heard(int descriptor, uint64_t cookie, int64_t now,
                     int64_t *heard) {
    struct tcp_info info;
    socklen_t size = sizeof info;
    if (cookie && link_cookie(descriptor) == cookie &&
        !getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size))
        *heard = now - info.tcpi_last_ack_recv * TIME_MS;
}

static void read_all_heard(struct link *link, int64_t now) {
    if (now - link->heard_at < HEARD_INTERVAL)
        return;
    link->heard_at = now;
    for (unsigned i = 0; i < link->num_connections; i++) {
        struct link_connection *connection = &link->connections[i];
        if (connection->since && connection->admitted)
            link_read_heard((int)i, connection->cookie, now,
                            &connection->heard);
    }
}

/* CONNECTION has ended. */
static void note_closed(struct link *link,
                        const struct link_connection *connection, int64_t now) {
    if (connection->admitted && !connection->expired &&
        now - connection->heard < HEARD_LIMIT && link->num_closed < LINK_CLOSED)
        link->closed[link->num_closed++] = connection->peer;
}

bool link_next_closed(struct link *link, uint32_t *peer) {
    link_read_events(link);
    if (!link->num_closed)
        return false;
    *peer = link->closed[0];
    link->num_closed--;
    memmove(link->closed, link->closed + 1,
            link->num_closed * sizeof *link->closed);
    return true;
}

/* Handles the monitor's EVENT for DESCRIPTOR. */
static void take_event(struct link *link, uint16_t event, uint32_t descriptor) {
    struct link_connection *connection = connection_of(link, descriptor);
    if (!connection)
        return;
    memset(link->senders, 0, sizeof link->senders); /* it may be in there */
    link->ended_now += event == ZMQ_EVENT_DISCONNECTED &&
                       !connection->has_sent && !connection->expired;
    int64_t now = time_now();
    if (event == ZMQ_EVENT_DISCONNECTED)
        note_closed(link, connection, now);
    *connection = (struct link_connection){0};
    if (event != ZMQ_EVENT_ACCEPTED)
        return;
    *connection = (struct link_connection){
        .since = now, .cookie = link_cookie((int)descriptor)};
    reserve_descriptors(link, descriptor);
}

void link_read_events(struct link *link) {
    uint16_t event;
    uint32_t value;
    for (int i = 0; i < MAX_EVENTS && link->monitor &&
                    link_next_event(link, &event, &value);
         i++)
        take_event(link, event, value);
}

void link_admit_within(struct link *link, int64_t limit) {
    link->admit_limit = limit;
    link->admit_from = time_now();
}

/* The connection of a message that came by DESCRIPTOR. Its accept, and the end
 * of the descriptor's previous connection, may still be unread in the monitor.
 */
static struct link_connection *sender_connection(struct link *link,
                                                 int descriptor) {
    struct link_connection *connection =
        connection_of(link, (unsigned)descriptor);
    if (!connection || is_same_socket(connection, descriptor))
        return connection;
    link_read_events(link);
    return connection_of(link, (unsigned)descriptor);
}

/* The message was unread when the end of its connection was read. */
static void take_back_end(struct link *link) {
    unsigned *ended = link->ended_now ? &link->ended_now : &link->ended_before;
    *ended -= *ended > 0;
}

bool link_first_message(struct link *link, int descriptor) {
    struct link_connection *connection = sender_connection(link, descriptor);
    bool first = connection && !connection->has_sent;
    if (first && !connection->since)
        take_back_end(link);
    if (connection)
        connection->has_sent = true;
    return first;
}

void link_admit(struct link *link, uint32_t peer) {
    const struct link_sender *sender = &link->senders[peer % LINK_SENDERS];
    if (sender->peer != peer || sender->descriptor < 0 ||
        link_shm_connection(link, peer))
        return;
    struct link_connection *connection =
        sender_connection(link, sender->descriptor);
    if (!connection)
        return;
    connection->admitted = true;
    connection->peer = peer;
    connection->heard = time_now();
}

static void close_unadmitted(struct link *link, int64_t now) {
    if (!link->admit_limit ||
        now - link->last_admit_check < link->admit_limit / CHECKS_PER_LIMIT)
        return;
    link->last_admit_check = now;
    for (unsigned i = 0; i < link->num_connections; i++) {
        const struct link_connection *connection = &link->connections[i];
        int64_t from = connection->since > link->admit_from ? connection->since
                                                            : link->admit_from;
        if (may_be_closed(connection) && now - from >= link->admit_limit)
            shut_down(link, i);
    }
}

bool link_next_event(struct link *link, uint16_t *event, uint32_t *value) {
    zmq_msg_t part, address;
    zmq_msg_init(&part);
    if (zmq_msg_recv(&part, link->monitor, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&part);
        return false;
    }
    const char *bytes = zmq_msg_data(&part);
    memcpy(event, bytes, sizeof *event);
    memcpy(value, bytes + sizeof *event, sizeof *value);
    zmq_msg_close(&part);
    zmq_msg_init(&address);
    zmq_msg_recv(&address, link->monitor, ZMQ_DONTWAIT);
    zmq_msg_close(&address);
    return true;
}

bool link_may_log(struct link *link, const char *text) {
    int64_t now = time_now();
    struct link_logged *old = NULL;
    for (int i = 0; i < LINK_LOGGED; i++) {
        struct link_logged *entry = &link->logged[i];
        if (!entry->at || now - entry->at >= LOG_INTERVAL)
            old = entry;
        else if (!strncmp(entry->text, text, LINK_LOG_TEXT - 1))
            return false;
    }
    if (!old)
        return false;
    snprintf(old->text, sizeof old->text, "%s", text);
    old->at = now;
    return true;
}

bool link_bad_peer(struct link *link, char *text, size_t size) {
    static const char *const texts[LINK_VIOLATIONS] = {
        [LINK_NO_MESSAGE] = "sent no Capstan message",
        [LINK_MANY_PARTS] = "sent a message of too many parts",
        [LINK_NO_DESCRIPTOR] =
            "is disconnected: connections hold nearly all the "
            "descriptors of this process (ulimit -n)",
    };
    if (link->kind == LINK_CLIENT)
        return false;
    link_read_events(link);
    close_unadmitted(link, time_now());
    read_all_heard(link, time_now());
    link->violations[LINK_NO_MESSAGE] |= link->ended_before > 0;
    link->ended_before = link->ended_now;
    link->ended_now = 0;
    const char *reason =
        link->shm_endpoint ? shm_endpoint_error(link->shm_endpoint) : NULL;
    if (reason && link_may_log(link, reason)) {
        snprintf(text, size, "that shares memory is disconnected: %s", reason);
        return true;
    }
    for (int i = 0; i < LINK_VIOLATIONS; i++) {
        bool noticed = link->violations[i];
        link->violations[i] = false;
        if (!noticed || !link_may_log(link, texts[i]))
            continue;
        snprintf(text, size, "%s", texts[i]);
        return true;
    }
    return false;
}

/* Uses the address that libzmq keeps with the message: the connection may be
 * gone and its descriptor reused. A dual-stack socket reports IPv4 addresses as
 * IPv6-mapped. */
bool link_peer_host(struct link_frame *frame, char *text, size_t size) {
    static const char mapped[] = "::ffff:";
    const char *address =
        frame->shm_connection
            ? NULL
            : zmq_msg_gets(link_message(&frame->header_storage),
                           "Peer-Address");
    text[0] = 0;
    if (!address)
        return false;
    if (!strncmp(address, mapped, strlen(mapped)))
        address += strlen(mapped);
    snprintf(text, size, "%s", address);
    return true;
}

bool link_is_local(struct link_frame *frame) {
    char from[64], own[64];
    struct ifaddrs *all = NULL;
    bool is_local = false;
    if (!link_peer_host(frame, from, sizeof from) || getifaddrs(&all))
        return false;
    for (const struct ifaddrs *each = all; each && !is_local;
         each = each->ifa_next) {
        int family = each->ifa_addr ? each->ifa_addr->sa_family : AF_UNSPEC;
        if (family != AF_INET && family != AF_INET6)
            continue;
        socklen_t length = family == AF_INET ? sizeof(struct sockaddr_in)
                                             : sizeof(struct sockaddr_in6);
        is_local = !getnameinfo(each->ifa_addr, length, own, sizeof own, NULL,
                                0, NI_NUMERICHOST) &&
                   !strcmp(own, from);
    }
    freeifaddrs(all);
    return is_local;
}
