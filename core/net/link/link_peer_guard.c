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
 * probe each second, also for a process that is stopped.
 *
 * libzmq takes what comes without a limit, as with a limit it aborts
 * (docs/wire.md). So a thread of the link's, the guard, compares what the
 * kernel has received of each connection (TCP_INFO) with what was viewed, also
 * while the link's own thread computes, and resets a connection that is too far
 * ahead. Between two looks a peer can send megabytes. So with keys the kernel
 * cuts segments short until the handshake has ended, by a filter that
 * connections have from the socket that listens. */
#include "core/base/limits.h"
#include "core/base/time.h"
#include "core/net/link/link_internal.h"

#include <errno.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* What peers that are not admitted may have unread: one, all together. */
enum { UNREAD_OF_ONE = 256 << 10, UNREAD_OF_ALL = 1 << 20 };
/* Milliseconds between two looks: while a peer is not admitted, else. */
enum { LOOK_AT_CROWD = 1, LOOK_OFTEN = 5, LOOK = 100 };
enum { GREETING_BYTES = 1 << 10 /* and more than a handshake */ };
/* A handshake by CURVE: more bytes than a segment of the client's has, and than
 * this side sends before READY (the greeting's 64 and 170 of WELCOME). */
enum { HANDSHAKE_SEGMENT = 1 << 10, HANDSHAKE_SENT = 256 };
static const int64_t SLICE = TIME_MS / 5;
/* Each takes about 28 KB of libzmq's memory. */
enum { MOST_IN_HANDSHAKE = 64, ZMTP_GREETING = 64 };
/* So long what ended connections may have left unread keeps others out. */
static const int64_t ENDED_LIMIT = TIME_S;
static const int64_t LOG_INTERVAL = 10 * TIME_S, HEARD_LIMIT = 2 * TIME_S;
/* Of a link that follows another, connections that last shorter than BRIEF are
 * told of from so long after the first on. */
static const int64_t BRIEF = TIME_S;
enum { CHECKS_PER_LIMIT = 8, FIRST_CONNECTIONS = 64 };
/* Half of the descriptors that limits.h reserves for the process itself. */
enum { FREE_DESCRIPTORS = LIMITS_OWN_DESCRIPTORS / 2 };

/* For the link's own thread, which lets the guard go first: a mutex alone would
 * go to it again and again while messages pour in. */
static void guard_lock(struct link *link) {
    while (atomic_load(&link->guard_waits))
        sched_yield();
    pthread_mutex_lock(&link->mutex);
}

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

/* By a reset, which also drops what the kernel has received: after a mere end
 * libzmq would read megabytes more. */
static void reset_connection(struct link *link, unsigned descriptor) {
    static const struct sockaddr none = {.sa_family = AF_UNSPEC};
    struct link_connection *connection = &link->connections[descriptor];
    connection->expired = true;
    if (is_same_socket(connection, (int)descriptor) &&
        connect((int)descriptor, &none, sizeof none))
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

/* Is DESCRIPTOR a connection of LINK's? libzmq may have closed it by now, and
 * this process reused it. */
static bool is_own_port(const struct link *link, int descriptor) {
    struct sockaddr_in6 own = {0};
    socklen_t size = sizeof own;
    return !getsockname(descriptor, (struct sockaddr *)&own, &size) &&
           ntohs(own.sin6_port) == link->port;
}

/* CONNECTION has ended. */
static void note_closed(struct link *link,
                        const struct link_connection *connection, int64_t now) {
    if (connection->admitted && !connection->expired &&
        now - connection->heard < HEARD_LIMIT && link->num_closed < LINK_CLOSED)
        link->closed[link->num_closed++] = connection->peer;
}

/* Has the kernel cut each segment to LISTENER, and to connections that are
 * accepted there from now on, after HANDSHAKE_SEGMENT bytes; TCP sends the rest
 * again. Where the kernel takes no filter, the guard's looks alone bound what
 * comes. */
static void cut_segments(int listener) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 12), /* the header's length is in
                                                   the upper half, in words */
        BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 2),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0x3c),
        BPF_STMT(BPF_ALU | BPF_ADD | BPF_K, HANDSHAKE_SEGMENT),
        BPF_STMT(BPF_RET | BPF_A, 0)};
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
}

/* The handshake of CONNECTION, by DESCRIPTOR, has ended. */
static void take_whole_segments(struct link_connection *connection,
                                int descriptor) {
    int none = 0;
    setsockopt(descriptor, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none);
    connection->is_cut = false;
}

/* A handshake has failed for CAUSE; the end of its connection follows. */
static void note_refusal_of(struct link *link, uint32_t cause) {
    if (cause == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
        link->violations[link->keys ? LINK_WITHOUT_KEY : LINK_WITH_KEY] = true;
    else if (link->keys)
        link->violations[LINK_WRONG_KEY] = true;
    else
        return;
    link->refused++;
}

/* Has a connection ended without a message, and not by this side's doing? Not
 * that of a peer that has the secret: it is of this run, or left one before. */
static bool ended_silently(struct link *link,
                           const struct link_connection *connection) {
    bool proved = connection->since && link->keys && !connection->is_cut;
    bool silent = !connection->has_sent && !connection->expired && !proved;
    bool refused = silent && link->refused;
    link->refused -= refused;
    return silent && !refused;
}

/* Is it to be logged that CONNECTION ended without a message? */
static bool is_reported(struct link *link,
                        const struct link_connection *connection, int64_t now) {
    bool stayed = connection->since && now - connection->since >= BRIEF;
    if (stayed || !link->follows)
        return true;
    if (!link->left_at)
        link->left_at = now;
    return now - link->left_at >= BRIEF;
}

/* Handles the monitor's EVENT for DESCRIPTOR, or for a cause. */
static void take_event(struct link *link, uint16_t event, uint32_t descriptor) {
    if (event & (ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                 ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)) {
        note_refusal_of(link, descriptor);
        return;
    }
    if (event == ZMQ_EVENT_LISTENING) {
        if (link->keys)
            cut_segments((int)descriptor);
        return;
    }
    struct link_connection *connection = connection_of(link, descriptor);
    if (!connection)
        return;
    int64_t now = time_now();
    link->ended_now += event == ZMQ_EVENT_DISCONNECTED &&
                       ended_silently(link, connection) &&
                       is_reported(link, connection, now);
    if (event == ZMQ_EVENT_DISCONNECTED)
        note_closed(link, connection, now);
    /* With keys none has left messages but one that has the secret. */
    if (connection->since && !connection->admitted && !connection->expired &&
        !link->keys) {
        link->ended_unread += UNREAD_OF_ONE;
        link->ended_at = now;
    }
    *connection = (struct link_connection){0};
    if (event != ZMQ_EVENT_ACCEPTED || !is_own_port(link, (int)descriptor))
        return;
    *connection =
        (struct link_connection){.since = now,
                                 .cookie = link_cookie((int)descriptor),
                                 .is_cut = link->keys};
    reserve_descriptors(link, descriptor);
    if (link->guard_wake >= 0 && !link->looks_often)
        eventfd_write(link->guard_wake, 1); /* whichever thread reads this */
    if (link->admit_limit && link->ended_unread > UNREAD_OF_ALL)
        reset_connection(link, descriptor); /* before it can send */
}

/* The mutex is held. */
static void read_events(struct link *link) {
    uint16_t event;
    uint32_t value;
    while (link_next_event(link, &event, &value))
        take_event(link, event, value);
}

bool link_next_closed(struct link *link, uint32_t *peer) {
    guard_lock(link);
    read_events(link);
    bool any = link->num_closed;
    if (any) {
        *peer = link->closed[0];
        link->num_closed--;
        memmove(link->closed, link->closed + 1,
                link->num_closed * sizeof *link->closed);
    }
    pthread_mutex_unlock(&link->mutex);
    return any;
}

void link_admit_within(struct link *link, int64_t limit, uint64_t credit) {
    guard_lock(link);
    link->admit_limit = limit;
    link->admit_from = time_now();
    link->credit = credit;
    pthread_mutex_unlock(&link->mutex);
    if (link->guard_wake >= 0)
        eventfd_write(link->guard_wake, 1);
}

void link_set_credit(struct link *link, uint64_t credit) {
    guard_lock(link);
    link->credit = credit;
    pthread_mutex_unlock(&link->mutex);
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
    read_events(link);
    return connection_of(link, (unsigned)descriptor);
}

/* Records that a message came by CONNECTION. Is it its first? If the end of its
 * connection has been read already, it did not end without a message. */
static bool note_message(struct link *link,
                         struct link_connection *connection) {
    unsigned *ended = link->ended_now ? &link->ended_now : &link->ended_before;
    bool first = !connection->has_sent;
    connection->has_sent = true;
    if (first && !connection->since)
        *ended -= *ended > 0;
    return first;
}

/* The connection of PEER, whose message was viewed last; NULL: it has ended. */
static struct link_connection *peer_connection(struct link *link,
                                               uint32_t peer) {
    const struct link_sender *sender = &link->senders[peer % LINK_SENDERS];
    if (sender->peer != peer || sender->descriptor < 0 ||
        (unsigned)sender->descriptor >= link->num_connections)
        return NULL;
    struct link_connection *connection = &link->connections[sender->descriptor];
    return connection->cookie == sender->cookie ? connection : NULL;
}

/* Asks for a connection's descriptor at its first message only: libzmq keeps it
 * as text. */
bool link_count_message(struct link *link, uint32_t peer, zmq_msg_t *part,
                        uint64_t bytes) {
    bool first = false;
    guard_lock(link);
    struct link_connection *connection = peer_connection(link, peer);
    /* Known, but ended: its descriptor may be another's by now. */
    bool ended = link->senders[peer % LINK_SENDERS].peer == peer && !connection;
    if (!connection && !ended) {
        int descriptor = zmq_msg_get(part, ZMQ_SRCFD);
        if (descriptor >= 0)
            connection = sender_connection(link, descriptor);
        if (connection) {
            first = note_message(link, connection);
            if (connection->is_cut)
                take_whole_segments(connection, descriptor);
            link->senders[peer % LINK_SENDERS] =
                (struct link_sender){peer, descriptor, connection->cookie};
        }
    }
    if (connection)
        connection->delivered += bytes;
    pthread_mutex_unlock(&link->mutex);
    return first;
}

void link_count_all_read(struct link *link) {
    guard_lock(link);
    link->ended_unread = 0;
    pthread_mutex_unlock(&link->mutex);
}

void link_note_violation(struct link *link, enum link_violation violation) {
    guard_lock(link);
    link->violations[violation] = true;
    pthread_mutex_unlock(&link->mutex);
}

void link_admit(struct link *link, uint32_t peer) {
    guard_lock(link);
    struct link_connection *connection = peer_connection(link, peer);
    if (connection && connection->since) {
        connection->admitted = true;
        connection->peer = peer;
        connection->heard = time_now();
    }
    pthread_mutex_unlock(&link->mutex);
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

/* Reads what the kernel knows of CONNECTION. */
static void measure(struct link_connection *connection, int descriptor,
                    int64_t now) {
    struct tcp_info about = {0};
    socklen_t size = sizeof about;
    connection->ahead = 0;
    if (!is_same_socket(connection, descriptor) ||
        getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &about, &size))
        return;
    if (about.tcpi_bytes_received > connection->delivered)
        connection->ahead = about.tcpi_bytes_received - connection->delivered;
    if (connection->is_cut &&
        about.tcpi_bytes_sent - about.tcpi_bytes_retrans > HANDSHAKE_SENT)
        take_whole_segments(connection, descriptor);
    if (connection->admitted)
        connection->heard = now - about.tcpi_last_ack_recv * TIME_MS;
}

/* Measures the connection of DESCRIPTOR and ends it if it is too far ahead. */
static void bound_unread(struct link *link, unsigned descriptor, int64_t now) {
    struct link_connection *connection = &link->connections[descriptor];
    uint64_t most = connection->admitted
                        ? link->credit + (uint64_t)link->max_frame
                        : UNREAD_OF_ONE;
    measure(connection, (int)descriptor, now);
    if (connection->ahead <= most)
        return;
    link->violations[LINK_UNREAD] = true;
    reset_connection(link, descriptor);
}

/* Of peers that are not admitted those that have more unread than the mean, and
 * than a greeting takes. */
static void bound_unadmitted(struct link *link, uint64_t unread,
                             unsigned count) {
    if (unread + link->ended_unread <= UNREAD_OF_ALL)
        return;
    link->violations[LINK_UNREAD] = true;
    for (unsigned i = 0; i < link->num_connections; i++)
        if (may_be_closed(&link->connections[i]) &&
            link->connections[i].ahead > GREETING_BYTES &&
            link->connections[i].ahead * count >= unread)
            reset_connection(link, i);
}

/* Of two in a handshake: who has said no more than a greeting, as a member does
 * for a round trip alone, then the older. */
static bool gives_way(const struct link_connection *one,
                      const struct link_connection *other) {
    bool begins = one->ahead <= ZMTP_GREETING;
    return begins != (other->ahead <= ZMTP_GREETING)
               ? begins
               : one->since < other->since;
}

/* Ends one whose handshake has not ended. */
static void end_a_handshake(struct link *link) {
    unsigned first = link->num_connections;
    for (unsigned i = 0; i < link->num_connections; i++)
        if (may_be_closed(&link->connections[i]) &&
            link->connections[i].is_cut &&
            (first == link->num_connections ||
             gives_way(&link->connections[i], &link->connections[first])))
            first = i;
    if (first < link->num_connections)
        reset_connection(link, first);
}

/* The mutex is held. Returns the milliseconds until the next look; -1: at the
 * next connection. */
static int look_at_connections(struct link *link, int64_t now) {
    uint64_t unread = 0;
    unsigned unadmitted = 0, members = 0, in_handshake = 0;
    bool all = now - link->looked >= LOOK * TIME_MS;
    for (unsigned i = 0; i < link->num_connections; i++) {
        const struct link_connection *connection = &link->connections[i];
        if (!connection->since || connection->expired ||
            (!link->admit_limit && !connection->is_cut))
            continue;
        members += connection->admitted;
        if (all || !connection->admitted)
            bound_unread(link, i, now);
        if (!may_be_closed(connection))
            continue;
        unread += connection->ahead;
        in_handshake += connection->is_cut;
        unadmitted++;
    }
    link->violations[LINK_CROWD] |= in_handshake > MOST_IN_HANDSHAKE;
    for (; in_handshake > MOST_IN_HANDSHAKE; in_handshake--)
        end_a_handshake(link);
    if (all)
        link->looked = now;
    if (now - link->ended_at >= ENDED_LIMIT)
        link->ended_unread = 0;
    if (unadmitted)
        bound_unadmitted(link, unread, unadmitted);
    return in_handshake > MOST_IN_HANDSHAKE / 2 ? LOOK_AT_CROWD
           : unadmitted                         ? LOOK_OFTEN
           : members                            ? LOOK
                                                : -1;
}

static void *guard(void *context) {
    struct link *link = context;
    struct pollfd ready[] = {{.fd = link->guard_wake, .events = POLLIN},
                             {.events = POLLIN}};
    size_t size = sizeof ready[1].fd;
    eventfd_t wakes;
    zmq_getsockopt(link->monitor, ZMQ_FD, &ready[1].fd, &size);
    time_slice_set(SLICE); /* a look is short, and a late one costs memory */
    while (!atomic_load(&link->guard_ends)) {
        atomic_store(&link->guard_waits, true);
        pthread_mutex_lock(&link->mutex);
        atomic_store(&link->guard_waits, false);
        read_events(link);
        int wait = look_at_connections(link, time_now());
        /* With keys no new connection is reset as it comes. */
        link->looks_often = link->keys && wait >= 0 && wait <= LOOK_OFTEN;
        nfds_t count = link->looks_often ? 1 : 2;
        pthread_mutex_unlock(&link->mutex);
        if (poll(ready, count, wait) > 0 && ready[0].revents)
            eventfd_read(link->guard_wake, &wakes);
    }
    return NULL;
}

enum status link_guard_start(struct link *link, struct failure *why) {
    sigset_t all, before;
    if (link->guard_wake >= 0)
        return STATUS_OK;
    link->guard_wake = eventfd(0, EFD_CLOEXEC);
    if (link->guard_wake < 0)
        return status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                            "cannot open an eventfd");
    read_events(link); /* that it listens; no other thread does yet */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&link->guard, NULL, guard, link);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error)
        return STATUS_OK;
    close(link->guard_wake);
    link->guard_wake = -1;
    return status_errno(why, FAILURE_SYSTEM_BUSY, error,
                        "cannot start a thread");
}

void link_guard_stop(struct link *link) {
    if (link->guard_wake < 0)
        return;
    atomic_store(&link->guard_ends, true);
    eventfd_write(link->guard_wake, 1);
    pthread_join(link->guard, NULL);
    close(link->guard_wake);
    link->guard_wake = -1;
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

/* A peer that first sees that only one side has keys leaves before it has said
 * whether it has some, as does one that is stopped. */
static const char *violation_text(const struct link *link, int violation) {
    static const char *const texts[LINK_VIOLATIONS] = {
        [LINK_NO_MESSAGE] =
            "sent no Capstan message: it was stopped, is another program, or "
            "has a secret, and this run has none",
        [LINK_MANY_PARTS] = "sent a message of too many parts",
        [LINK_NO_DESCRIPTOR] =
            "is disconnected: connections hold nearly all the "
            "descriptors of this process (ulimit -n)",
        [LINK_CROWD] = "is disconnected: too many connect at once",
        [LINK_UNREAD] = "is disconnected: it sends faster than it is read",
        [LINK_WRONG_KEY] = "is refused: its key is not of this run's secret: "
                           "is the secret file the same?",
        [LINK_WITHOUT_KEY] = "is refused: it has no secret, and this run has "
                             "one: give its process the same secret file",
        [LINK_WITH_KEY] = "is refused: it has a secret, and this run has none: "
                          "give all processes the same secret file, or none",
    };
    return link->keys && violation == LINK_NO_MESSAGE
               ? "sent no Capstan message: it was stopped, is another program, "
                 "or has no secret, and this run has one"
               : texts[violation];
}

bool link_bad_peer(struct link *link, char *text, size_t size) {
    bool noticed[LINK_VIOLATIONS];
    if (link->kind == LINK_CLIENT)
        return false;
    guard_lock(link);
    read_events(link);
    close_unadmitted(link, time_now());
    link->violations[LINK_NO_MESSAGE] |= link->ended_before > 0;
    link->ended_before = link->ended_now;
    link->ended_now = 0;
    memcpy(noticed, link->violations, sizeof noticed);
    pthread_mutex_unlock(&link->mutex);
    const char *reason =
        link->shm_endpoint ? shm_endpoint_error(link->shm_endpoint) : NULL;
    if (reason && link_may_log(link, reason)) {
        snprintf(text, size, "that shares memory is disconnected: %s", reason);
        return true;
    }
    for (int i = 0; i < LINK_VIOLATIONS; i++) {
        if (!noticed[i])
            continue;
        guard_lock(link);
        link->violations[i] = false;
        pthread_mutex_unlock(&link->mutex);
        int64_t now = time_now(), said = link->violation_logged[i];
        if (said && now - said < LOG_INTERVAL)
            continue;
        link->violation_logged[i] = now;
        snprintf(text, size, "%s", violation_text(link, i));
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
