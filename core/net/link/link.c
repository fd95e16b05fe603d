/* SPDX-License-Identifier: Apache-2.0 */
/* A link: its socket, the transport beside it, sending, busy polling, and last
 * what is received. A server is a ROUTER, a client a DEALER, so that neither
 * has to alternate sends and receives. A message is a header frame and at most
 * one payload frame. Misbehaving peers: link_peer_guard.c.
 *
 * The socket itself reports nothing about connections, so a monitor socket is
 * read as well: a server's for accepted and ended connections, a client's for
 * new ones, as requests sent before on an earlier connection will not be
 * answered, and for what answers at its address. */
#include "core/net/link/link.h"

#include "core/base/fork_guard.h"
#include "core/base/secret_file.h"
#include "core/base/time.h"
#include "core/net/link/link_internal.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/tcp.h>
#include <math.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Chooses the transport of messages: shared memory where possible, else TCP.
 *
 * A client tries shared memory (LINK_SHM_HANDSHAKE, at most a second), uses it
 * once it is open (LINK_SHM), else uses TCP (LINK_TCP) for good. A
 * shared-memory connection that is lost after it has lasted a while is tried
 * once more, as the server may have closed it for inactivity; one lost at once
 * would be lost again. Nothing is sent until the transport is decided, so that
 * messages cannot overtake each other. A server uses both: it replies to each
 * peer by the transport that the peer uses. */

static const int64_t MIN_SHM_LIFETIME = 5 * TIME_S;
static const int64_t GREETING_TIME = TIME_S; /* half of ZMQ_HANDSHAKE_IVL */
/* libzmq connects again within seconds where a connection is accepted. */
static const int64_t ANSWER_AGE = 5 * TIME_S;
/* Where packets are dropped an attempt to connect takes 3 s to fail. */
static const int64_t REFUSED_WITHIN = TIME_S;
static const int64_t NOTICED_AFTER = 5 * TIME_S; /* by TCP, at the latest */
enum { HANDSHAKES_TO_JUDGE = 3 };
static const char PEER_LEFT[] = "it has closed its shared memory";

/* The shared-memory connection to PEER; NULL: there is none. View until
 * shm_endpoint_progress. */
static struct shm_connection *link_shm_connection(const struct link *link,
                                                  uint32_t peer) {
    if (link->kind == LINK_CLIENT)
        return link->transport == LINK_SHM
                   ? shm_endpoint_find(link->shm_endpoint, link->shm_connection)
                   : NULL;
    return link->shm_endpoint && peer >= SHM_ENDPOINT_FIRST
               ? shm_endpoint_find(link->shm_endpoint, peer)
               : NULL;
}

static void open_endpoint(struct link *link) {
    bool serves = link->kind == LINK_SERVER;
    struct shm_connection_settings settings = {
        .max_frame = (uint64_t)link->max_frame,
        .key = link_keys_proof(link->keys)};
    struct link_party self = serves ? link->party : link_keys_self(link->keys);
    if (link->keys)
        link_party_text(self, settings.self, sizeof settings.self);
    if (link->keys && !serves)
        link_party_text(link->party, settings.peer, sizeof settings.peer);
    link->shm_endpoint = shm_endpoint_open(&settings);
}

enum status link_listen_shm(struct link *link, uint64_t shm_key,
                            struct failure *why) {
    shm_endpoint_name(link->shm_name, shm_key);
    open_endpoint(link);
    if (link->shm_endpoint &&
        shm_endpoint_listen(link->shm_endpoint, link->shm_name))
        return STATUS_OK;
    int error = errno;
    shm_endpoint_close(&link->shm_endpoint);
    return status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                        "cannot offer shared memory to trainers on this host");
}

bool link_has_shm(const struct link *link) {
    return link->shm_endpoint && shm_endpoint_count(link->shm_endpoint);
}

/* Switches to TCP for good; WHY is for the log. A server that has probably
 * ended is no news of the transport, unless it is reached by TCP. */
static void fall_back_to_tcp(struct link *link, const char *why) {
    link->transport = LINK_TCP;
    link->transport_changed = why != PEER_LEFT;
    link->transport_pending = why == PEER_LEFT;
    snprintf(link->transport_text, sizeof link->transport_text, "over TCP: %s",
             why);
    if (link->address[0])
        zmq_connect(link->socket, link->address);
}

/* If a connection has worked before, the server is on this host: a failure then
 * means that it has left. */
static void link_transport_connect_shm(struct link *link) {
    char text[LINK_LOG_TEXT - 16];
    bool held = link->transport == LINK_SHM;
    link->transport = LINK_SHM_HANDSHAKE;
    link->shm_since = time_now();
    link->shm_connection = shm_endpoint_connect(
        link->shm_endpoint, link->shm_name, text, sizeof text);
    if (!link->shm_connection)
        fall_back_to_tcp(link, held ? PEER_LEFT : text);
}

void link_prefer_shm(struct link *link, uint64_t shm_key) {
    shm_endpoint_name(link->shm_name, shm_key);
    open_endpoint(link);
    if (link->shm_endpoint)
        link_transport_connect_shm(link);
}

static void on_shm_lost(struct link *link, int64_t now) {
    const char *reason = shm_endpoint_error(link->shm_endpoint);
    link->regained = false;
    if (!link->lost)
        link->lost = now;
    if (link->transport == LINK_SHM &&
        now - link->shm_since >= MIN_SHM_LIFETIME)
        link_transport_connect_shm(link);
    else
        fall_back_to_tcp(link, reason ? reason : PEER_LEFT);
}

/* Updates a client's transport from the state of its shared-memory connection.
 */
static void follow_shm(struct link *link) {
    if (link->transport == LINK_TCP)
        return;
    int64_t now = time_now();
    shm_endpoint_progress(link->shm_endpoint, now);
    struct shm_connection *connection =
        shm_endpoint_find(link->shm_endpoint, link->shm_connection);
    if (!connection) {
        on_shm_lost(link, now);
    } else if (link->transport == LINK_SHM_HANDSHAKE &&
               shm_connection_wakeup(connection) >= 0 &&
               !shm_connection_error(connection)) {
        link->transport = LINK_SHM;
        link->shm_since = now;
        link->renewed = link->regained = link->transport_changed = true;
        snprintf(link->transport_text, sizeof link->transport_text,
                 "over shared memory");
    }
}

bool link_is_over_shm(const struct link *link) {
    return link->transport == LINK_SHM;
}

bool link_transport(struct link *link, char *text, size_t size) {
    if (!link->transport_changed)
        return false;
    link->transport_changed = false;
    snprintf(text, size, "%s", link->transport_text);
    return true;
}

/* A connection has ended before its handshake. libzmq names the cause
 * "no detail" if it was closed or no greeting came in time (ZMQ_HANDSHAKE_IVL),
 * and reports nothing of one that began with other bytes. */
static void end_handshake(struct link *link, int64_t now) {
    if (link->handshake == LINK_HANDSHAKE_PENDING)
        link->answer = LINK_ANSWER_PROTOCOL;
    else if (++link->failed_handshakes >= HANDSHAKES_TO_JUDGE)
        link->answer = now - link->connected_at >= GREETING_TIME
                           ? LINK_ANSWER_SILENT
                       : link->keys ? LINK_ANSWER_REFUSES
                                    : LINK_ANSWER_CLOSED;
}

/* Nothing has come since the last packet; but a standstill of this process
 * before it saw the end does not count. */
static void note_loss(struct link *link, int64_t now) {
    int64_t earliest = now - NOTICED_AFTER;
    link->regained = false;
    if (!link->lost)
        link->lost = link->heard > earliest ? link->heard : earliest;
}

/* Both sides compare the mechanisms of their greetings, and a server that has
 * one with keys tells a client that it does not admit. */
static void note_refusal(struct link *link, uint16_t event, uint32_t value) {
    link->handshake = LINK_HANDSHAKE_NONE;
    if (value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
        link->answer = link->keys ? LINK_ANSWER_NO_KEYS : LINK_ANSWER_KEYS;
    else
        link->answer = event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH || link->keys
                           ? LINK_ANSWER_REFUSES
                           : LINK_ANSWER_PROTOCOL;
}

static void take_client_event(struct link *link, uint16_t event, uint32_t value,
                              int64_t now) {
    switch (event) {
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        note_refusal(link, event, value);
        break;
    case ZMQ_EVENT_CONNECT_RETRIED: /* also after a connection that ended */
        link->is_refused = now - link->connect_failed < REFUSED_WITHIN;
        link->connect_failed = now;
        break;
    case ZMQ_EVENT_CONNECTED:
        link->connect_failed = 0;
        link->connection++;
        link->descriptor = (int)value;
        link->cookie = link_cookie((int)value);
        link->handshake = LINK_HANDSHAKE_PENDING;
        link->connected_at = now;
        break;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        link->handshake = LINK_HANDSHAKE_NONE; /* its end says nothing */
        link->answer = LINK_ANSWER_LINK;
        link->answered_at = now;
        link->failed_handshakes = 0;
        link->renewed = link->regained = true;
        link->heard = now;
        link->transport_changed |= link->transport_pending;
        link->transport_pending = false;
        break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        link->handshake = LINK_HANDSHAKE_ENDED;
        break;
    default:
        if (link->handshake != LINK_HANDSHAKE_NONE)
            end_handshake(link, now);
        else if (link->answer == LINK_ANSWER_LINK)
            link->answer = LINK_ANSWER_UNKNOWN; /* whoever it was has gone */
        link->handshake = LINK_HANDSHAKE_NONE;
        note_loss(link, now);
    }
}

/* The same of a client. */
static void link_read_client_events(struct link *link) {
    uint16_t event;
    uint32_t value;
    while (link->kind == LINK_CLIENT && link_next_event(link, &event, &value))
        take_client_event(link, event, value, time_now());
}

enum link_answer link_answer(struct link *link, int64_t *since) {
    link_read_client_events(link);
    bool ended = link->answer == LINK_ANSWER_CLOSED ||
                 link->answer == LINK_ANSWER_SILENT ||
                 link->answer >= LINK_ANSWER_REFUSES;
    if (ended && time_now() - link->connected_at > ANSWER_AGE)
        link->answer = LINK_ANSWER_UNKNOWN; /* nothing accepts any more */
    *since = link->answered_at;
    return link->answer;
}

bool link_is_refused(struct link *link) {
    link_read_client_events(link);
    return link->is_refused && time_now() - link->connect_failed < ANSWER_AGE;
}

const char *link_answer_of_keys(enum link_answer answer) {
    static const char *const texts[] = {
        [LINK_ANSWER_REFUSES] = "refuses this process's key, or is another "
                                "task than listed: is its secret file the "
                                "same?",
        [LINK_ANSWER_NO_KEYS] =
            "has no secret, and this process has one: give all processes of "
            "the run the same secret file, or none",
        [LINK_ANSWER_KEYS] =
            "has a secret, and this process has none: give it the run's "
            "secret file (" SECRET_FILE_VARIABLE ", or --secret-file)",
    };
    return texts[answer];
}

static void follow_connection(struct link *link) {
    if (link->shm_endpoint && link->kind == LINK_CLIENT)
        follow_shm(link);
    link_read_client_events(link);
}

/* Sets *HEARD to when the kernel last got a packet by the socket DESCRIPTOR;
 * leaves it unless the socket still has number COOKIE. */
static void link_read_heard(int descriptor, uint64_t cookie, int64_t now,
                            int64_t *heard) {
    struct tcp_info info;
    socklen_t size = sizeof info;
    if (cookie && link_cookie(descriptor) == cookie &&
        !getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size))
        *heard = now - info.tcpi_last_ack_recv * TIME_MS;
}

bool link_is_lost(struct link *link, int64_t *since) {
    follow_connection(link);
    *since = link->lost;
    if (link->regained)
        link->lost = 0;
    link->regained = false;
    if (!link->lost && link->transport == LINK_TCP)
        link_read_heard(link->descriptor, link->cookie, time_now(),
                        &link->heard);
    return *since;
}

uint64_t link_connection(struct link *link) {
    link_read_client_events(link);
    return link->transport == LINK_TCP ? link->connection : 0;
}

bool link_renewed(struct link *link) {
    follow_connection(link);
    bool renewed = link->renewed;
    link->renewed = false;
    link->limited &= !renewed;
    return renewed;
}

/* Sending: payloads, the messages that carry them, and how much of them the
 * kernel gets at a time. */

/* What the kernel gets of unsent data at a time: seconds at the link's rate,
 * and at least bytes, as TCP stalls with less than a train of segments. */
static const double BURST_SECONDS = 0.25e-3, MIN_BURST_BYTES = 12 << 10;

void link_no_payload(struct link_payload *payload) {
    payload->data = NULL;
    payload->bytes = 0;
    payload->buffer = NULL;
    zmq_msg_init(link_message(&payload->storage));
}

bool link_reserve(struct link *link, uint32_t peer,
                  struct link_payload *payload, size_t bytes) {
    zmq_msg_t *message = link_message(&payload->storage);
    struct shm_connection *shm_connection = link_shm_connection(link, peer);
    link_no_payload(payload);
    if (shm_connection) {
        payload->bytes = bytes;
        payload->data = shm_connection_reserve(shm_connection, bytes);
        return payload->data;
    }
    if (zmq_msg_init_size(message, bytes))
        return false;
    payload->data = zmq_msg_data(message);
    payload->bytes = bytes;
    return true;
}

void *link_reserved(struct link_payload *payload) {
    return payload->data;
}

void link_borrow(struct link_payload *payload, struct buffer *buffer,
                 size_t offset, size_t bytes) {
    link_no_payload(payload);
    payload->data = (char *)buffer_data(buffer) + offset;
    payload->bytes = bytes;
    payload->buffer = buffer_hold(buffer);
}

bool link_shares(const struct link *link) {
    return link->transport == LINK_SHM;
}

bool link_can_share(const struct link *link, uint32_t peer,
                    const struct buffer *buffer) {
    return link_shm_connection(link, peer) && buffer_segment(buffer);
}

void link_drop(struct link_payload *payload) {
    buffer_release(&payload->buffer);
    zmq_msg_close(link_message(&payload->storage));
}

/* libzmq calls this on its I/O threads; reference counts are atomic. */
static void release_buffer(void *data, void *hint) {
    struct buffer *buffer = hint;
    (void)data;
    buffer_release(&buffer);
}

/* The part by which ROUTER addresses the peer. Fails at once if the connection
 * is gone (ZMQ_ROUTER_MANDATORY). */
static bool send_peer(struct link *link, uint32_t peer) {
    char identity[LINK_IDENTITY] = {0};
    uint32_t counted = htonl(peer - LINK_NUMBERS + link->first_peer);
    memcpy(identity + 1, &counted, sizeof counted);
    return zmq_send(link->socket, identity, sizeof identity,
                    ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0;
}

/* Turns a borrowed payload into a message that holds its buffer until it has
 * left. False: no memory. */
static bool make_message(struct link_payload *payload) {
    struct buffer *buffer = payload->buffer;
    if (!buffer)
        return true;
    if (zmq_msg_init_data(link_message(&payload->storage), payload->data,
                          payload->bytes, release_buffer, buffer))
        return false;
    payload->buffer = NULL; /* the message owns it now */
    return true;
}

/* A reply slot whose buffer only this link holds: its message was sent, or its
 * connection is gone. NULL: PEER, or all peers together, have too many unread.
 */
static struct link_reply *free_reply(struct link *link, uint32_t peer) {
    struct link_reply *found = NULL;
    unsigned unread = 0;
    for (int i = 0; i < LINK_REPLIES; i++) {
        struct link_reply *reply = &link->replies[i];
        if (!reply->buffer || buffer_is_unique(reply->buffer))
            found = reply;
        else
            unread += reply->peer == peer;
    }
    if (!found || unread >= LINK_REPLIES_PER_PEER)
        return NULL;
    if (!found->buffer)
        found->buffer = buffer_open(LINK_REPLY_BYTES, NULL, NULL);
    found->peer = peer;
    return found->buffer ? found : NULL;
}

/* Of all links: roles of one process share them. */
static _Atomic uint64_t bytes_sent, bytes_received;

static void add_traffic(_Atomic uint64_t *counter, uint64_t bytes) {
    atomic_fetch_add_explicit(counter, bytes, memory_order_relaxed);
}

struct link_traffic link_traffic(void) {
    return (struct link_traffic){
        .sent = atomic_load_explicit(&bytes_sent, memory_order_relaxed),
        .received = atomic_load_explicit(&bytes_received, memory_order_relaxed),
    };
}

bool link_reply(struct link *link, uint32_t peer, const void *header,
                size_t bytes) {
    struct link_payload message;
    if (link_shm_connection(link, peer)) /* its queue is bounded */
        return link_commit(link, peer, header, bytes, NULL);
    struct link_reply *reply =
        bytes <= LINK_REPLY_BYTES ? free_reply(link, peer) : NULL;
    if (!reply)
        return false;
    memcpy(buffer_data(reply->buffer), header, bytes);
    link_borrow(&message, reply->buffer, 0, bytes);
    if (make_message(&message) && send_peer(link, peer) &&
        zmq_msg_send(link_message(&message.storage), link->socket,
                     ZMQ_DONTWAIT) >= 0) {
        add_traffic(&bytes_sent, bytes);
        return true;
    }
    link_drop(&message);
    return false;
}

static bool commit_shm(struct shm_connection *connection, const void *header,
                       size_t bytes, struct link_payload *payload) {
    if (!payload)
        return shm_connection_send(connection, header, bytes, NULL);
    struct shm_connection_payload sent = {payload->data, payload->bytes,
                                          payload->buffer};
    bool left = shm_connection_send(connection, header, bytes, &sent);
    link_drop(payload);
    return left;
}

/* The first part decides whether a message can leave: libzmq then accepts the
 * other parts too, so no partial message is sent. */
static bool commit_tcp(struct link *link, uint32_t peer, const void *header,
                       size_t bytes, struct link_payload *payload) {
    int more = payload && payload->bytes ? ZMQ_SNDMORE : 0;
    bool made = !payload || make_message(payload);
    bool sent = made && (link->kind == LINK_CLIENT || send_peer(link, peer)) &&
                zmq_send(link->socket, header, bytes, more | ZMQ_DONTWAIT) >= 0;
    if (sent && more &&
        zmq_msg_send(link_message(&payload->storage), link->socket,
                     ZMQ_DONTWAIT) >= 0)
        return true;
    if (payload)
        link_drop(payload);
    return sent;
}

static bool commit_by(struct link *link, uint32_t peer, const void *header,
                      size_t bytes, struct link_payload *payload) {
    struct shm_connection *shm_connection = link_shm_connection(link, peer);
    if (shm_connection)
        return commit_shm(shm_connection, header, bytes, payload);
    if (link->transport == LINK_TCP && peer < SHM_ENDPOINT_FIRST)
        return commit_tcp(link, peer, header, bytes, payload);
    if (payload)
        link_drop(payload);
    return false;
}

bool link_commit(struct link *link, uint32_t peer, const void *header,
                 size_t bytes, struct link_payload *payload) {
    size_t all = bytes + (payload ? payload->bytes : 0);
    bool left = commit_by(link, peer, header, bytes, payload);
    add_traffic(&bytes_sent, left ? all : 0);
    return left;
}

void link_limit_rate(struct link *link, double gbits, unsigned connections) {
    if (gbits > 0 && gbits <= LINK_MAX_GBITS && connections)
        link->rate = gbits * 1e9 / 8 / connections;
}

/* Is this a client whose connection is not limited yet? */
static bool link_needs_limit(const struct link *link) {
    return link->kind == LINK_CLIENT && link->rate > 0 && !link->limited;
}

/* The kernel doubles SO_SNDBUF for its own overhead (socket(7)), hence / 2. If
 * the descriptor has been reused meanwhile, it is another connection of this
 * process, which is limited a little earlier, or not TCP. */
static void link_limit_connection(struct link *link, int descriptor) {
    struct tcp_info about = {0};
    socklen_t size = sizeof about;
    if (link->rate <= 0 ||
        getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &about, &size))
        return;
    double seconds = fmax(BURST_SECONDS, 2e-6 * about.tcpi_min_rtt);
    int bytes =
        (int)fmin(fmax(link->rate * seconds / 2, MIN_BURST_BYTES), INT_MAX / 4);
    setsockopt(descriptor, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    link->limited = true;
}

/* After a frame has come, a link polls for the next one for a while before it
 * sleeps: a wakeup takes longer than most replies. It does so only with cores
 * to spare (spin_policy.h), as it could otherwise take the other side's core.
 */

enum { POLLS_PER_CLOCK = 32 }; /* of the rings, a reading of the clock */
static const int64_t BUSY_POLL = 50 * TIME_US, TCP_BUSY_POLL = 200 * TIME_US;

static bool has_pending(struct link *const *links, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (links[i]->shm_endpoint &&
            shm_endpoint_pending(links[i]->shm_endpoint))
            return true;
    return false;
}

/* Polls the sockets, then yields the core: libzmq's I/O threads, which deliver
 * the frame, may need it. */
static bool has_pending_tcp(struct link *const *links, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        int events = 0;
        size_t size = sizeof events;
        if (links[i]->transport == LINK_TCP &&
            !zmq_getsockopt(links[i]->socket, ZMQ_EVENTS, &events, &size) &&
            events & ZMQ_POLLIN)
            return true;
    }
    sched_yield();
    return false;
}

bool link_busy_poll(struct link *const *links, unsigned count) {
    int64_t now = time_now();
    unsigned threads = 1;
    bool received = false, tcp = false;
    for (unsigned i = 0; i < count; i++) {
        received |= links[i]->received;
        tcp |= links[i]->received_tcp;
        links[i]->received = links[i]->received_tcp = false;
        threads += links[i]->shm_endpoint
                       ? shm_endpoint_count(links[i]->shm_endpoint)
                       : 0;
    }
    if ((!received && !tcp) ||
        !spin_policy(&links[0]->spin_policy, threads, now))
        return false;
    int64_t end = now + (tcp ? TCP_BUSY_POLL : BUSY_POLL);
    for (; now < end; now = time_now()) {
        for (int poll = 0; poll < POLLS_PER_CLOCK; poll++) {
            if (has_pending(links, count))
                return true;
            __builtin_ia32_pause();
        }
        if (tcp && has_pending_tcp(links, count))
            return true;
    }
    return false;
}

/* Who has a port of this host, as /proc tells. The tables of sockets have each
 * local port with the number of its socket; each process's folder of
 * descriptors has the sockets that it holds. */

enum { LISTENING = 0x0a /* as the kernel numbers states of TCP */ };

/* One that listens on PORT, else one that has it for a connection, which holds
 * the port as well. 0: none, or TABLE cannot be read. */
static uint64_t find_socket_of(const char *table, uint16_t port) {
    char line[512];
    uint64_t number = 0;
    unsigned kind = 0;
    FILE *file = fopen(table, "re");
    while (file && kind != LISTENING && fgets(line, sizeof line, file)) {
        unsigned found, state;
        uint64_t inode;
        if (sscanf(line,
                   " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s "
                   "%*s %*s %" SCNu64,
                   &found, &state, &inode) == 3 &&
            found == port && inode && (state == LISTENING || !number)) {
            number = inode;
            kind = state;
        }
    }
    if (file)
        fclose(file);
    return number;
}

static bool holds_socket(const char *process, uint64_t number) {
    char path[512], target[64], expected[64];
    bool holds = false;
    snprintf(path, sizeof path, "/proc/%.32s/fd", process);
    snprintf(expected, sizeof expected, "socket:[%" PRIu64 "]", number);
    DIR *folder = opendir(path);
    struct dirent *entry;
    while (folder && !holds && (entry = readdir(folder))) {
        snprintf(path, sizeof path, "/proc/%.32s/fd/%.32s", process,
                 entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        holds = !strcmp(target, expected);
    }
    if (folder)
        closedir(folder);
    return holds;
}

static void describe_process(const char *process, char *text, size_t size) {
    char path[64], name[64] = "";
    snprintf(path, sizeof path, "/proc/%.32s/comm", process);
    FILE *file = fopen(path, "re");
    if (file) {
        if (!fgets(name, sizeof name, file))
            name[0] = 0;
        fclose(file);
    }
    name[strcspn(name, "\n")] = 0;
    snprintf(text, size, " (pid %.32s, %s)", process, name);
}

/* " (pid 123, python)" of a process that has TCP PORT here, or "" if it is
 * not known, such as another user's. */
static void port_holder_text(uint16_t port, char *text, size_t size) {
    uint64_t number = find_socket_of("/proc/net/tcp", port);
    struct dirent *entry;
    text[0] = 0;
    if (!number)
        number = find_socket_of("/proc/net/tcp6", port);
    DIR *folder = number ? opendir("/proc") : NULL;
    while (folder && !text[0] && (entry = readdir(folder)))
        if (atoi(entry->d_name) > 0 && holds_socket(entry->d_name, number))
            describe_process(entry->d_name, text, size);
    if (folder)
        closedir(folder);
}

enum { MAX_SKIPPED = 256 };
enum { SHM_FRAMES_PER_TURN = 16 }; /* then TCP has its turn */

static struct link_bytes view_of(zmq_msg_t *message) {
    size_t size = zmq_msg_size(message);
    return (struct link_bytes){size ? zmq_msg_data(message) : NULL, size};
}

static void link_set_int(void *socket, int option, int value) {
    zmq_setsockopt(socket, option, &value, sizeof value);
}

/* TCP keepalive detects dead peers. ZMQ heartbeats are off: libzmq aborts the
 * process if it has to handle or send a ping while a full queue keeps the
 * connection from being read (libzmq issues 4364 and 4767). */
static void set_keepalive(void *socket) {
    link_set_int(socket, ZMQ_TCP_KEEPALIVE, 1);
    link_set_int(socket, ZMQ_TCP_KEEPALIVE_IDLE, 1);
    link_set_int(socket, ZMQ_TCP_KEEPALIVE_INTVL, 1);
    link_set_int(socket, ZMQ_TCP_KEEPALIVE_CNT, 3);
    link_set_int(socket, ZMQ_TCP_MAXRT, 3000);
}

/* docs/wire.md gives the reason for each value. */
static void link_configure(void *socket, const struct link_settings *settings) {
    int64_t longest =
        settings->max_frame + (settings->keys ? LINK_CURVE_BYTES : 0);
    link_set_int(socket, ZMQ_LINGER, settings->flush_ms);
    link_set_int(socket, ZMQ_SNDHWM, 0);
    link_set_int(socket, ZMQ_RCVHWM, 0);
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &longest, sizeof longest);
    link_set_int(socket, ZMQ_HANDSHAKE_IVL, 2000);
    set_keepalive(socket);
    link_set_int(socket, ZMQ_CONNECT_TIMEOUT, 2000);
    link_set_int(socket, ZMQ_RECONNECT_IVL, 20);
    link_set_int(socket, ZMQ_RECONNECT_IVL_MAX, 200);
    link_set_int(socket, ZMQ_IMMEDIATE, 1);
    link_set_int(socket, ZMQ_IPV6, 1);
    zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, "capstan", strlen("capstan"));
}

/* A name of its own: libzmq frees that of a closed socket only later, when the
 * next link may have this one's memory. */
static bool link_watch(struct link *link, int events) {
    static atomic_uint number;
    char name[64];
    snprintf(name, sizeof name, "inproc://monitor-%u",
             atomic_fetch_add(&number, 1));
    if (zmq_socket_monitor(link->socket, name, events))
        return false;
    link->monitor = zmq_socket(link->zmq, ZMQ_PAIR);
    if (!link->monitor)
        return false;
    link_set_int(link->monitor, ZMQ_LINGER, 0);
    link_set_int(link->monitor, ZMQ_RCVHWM, 0); /* else libzmq blocks */
    return !zmq_connect(link->monitor, name);
}

enum {
    EVENTS = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
             ZMQ_EVENT_HANDSHAKE_FAILED_AUTH,
    CLIENT_EVENTS = EVENTS | ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CONNECT_RETRIED |
                    ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                    ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    SERVER_EVENTS = EVENTS | ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPTED
};

static bool open_sockets(struct link *link,
                         const struct link_settings *settings) {
    bool serves = link->kind == LINK_SERVER;
    link->socket = zmq_socket(link->zmq, serves ? ZMQ_ROUTER : ZMQ_DEALER);
    if (!link->socket)
        return false;
    link_configure(link->socket, settings);
    if (serves)
        link_set_int(link->socket, ZMQ_ROUTER_MANDATORY, 1);
    return link_watch(link, serves ? SERVER_EVENTS : CLIENT_EVENTS);
}

static enum status give_keys(struct link *link,
                             const struct link_settings *settings,
                             struct failure *why) {
    if (!settings->keys)
        return STATUS_OK;
    return link->kind == LINK_SERVER
               ? link_keys_serve(settings->keys, link->socket, settings->party,
                                 why)
               : link_keys_connect(settings->keys, link->socket,
                                   settings->party, why);
}

enum status link_open(struct link **out, void *zmq, enum link_kind kind,
                      const struct link_settings *settings,
                      struct failure *why) {
    struct link *link = calloc(1, sizeof *link);
    if (!link)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a link");
    link->zmq = zmq;
    link->kind = kind;
    link->guard_wake = -1;
    link->keys = settings->keys;
    link->party = settings->party;
    pthread_mutex_init(&link->mutex, NULL);
    link->max_frame = settings->max_frame;
    link->follows = settings->follows;
    link->lost = link->heard = time_now();
    snprintf(link->source, sizeof link->source, "%s",
             settings->address ? settings->address : "");
    enum status status =
        open_sockets(link, settings)
            ? give_keys(link, settings, why)
            : status_errno(why, FAILURE_SYSTEM_REFUSED, zmq_errno(),
                           "cannot open a socket");
    if (status)
        link_close(&link);
    *out = link;
    return status;
}

void link_close(struct link **where) {
    struct link *link = *where;
    *where = NULL;
    if (!link)
        return;
    link_guard_stop(link);
    if (link->socket)
        zmq_socket_monitor(link->socket, NULL, 0);
    if (link->monitor)
        zmq_close(link->monitor);
    if (link->port)
        fork_guard_remove_port(link->port);
    if (link->inproc[0]) /* closing alone frees the name only later */
        zmq_unbind(link->socket, link->inproc);
    if (link->socket)
        zmq_close(link->socket);
    shm_endpoint_close(&link->shm_endpoint);
    for (int i = 0; i < LINK_REPLIES; i++)
        buffer_release(&link->replies[i].buffer);
    free(link->connections);
    pthread_mutex_destroy(&link->mutex);
    free(link);
}

enum status link_bind(struct link *link, uint16_t port, struct failure *why) {
    char endpoint[128], number[8] = "*";
    if (port)
        snprintf(number, sizeof number, "%u", port);
    snprintf(endpoint, sizeof endpoint,
             strchr(link->source, ':') ? "tcp://[%s]:%s" : "tcp://%s:%s",
             link->source[0] ? link->source : "*", number);
    if (zmq_bind(link->socket, endpoint)) {
        if (zmq_errno() == EADDRINUSE) {
            char holder[128];
            port_holder_text(port, holder, sizeof holder);
            return status_fail(
                why, FAILURE_PORT_IN_USE,
                "port %u is in use on this machine%s: end the process that has "
                "it (`ss -ltnp 'sport = :%u'` shows it) or give this task "
                "another port in the cluster description",
                port, holder, port);
        }
        return status_errno(why, FAILURE_CANNOT_LISTEN, zmq_errno(),
                            "cannot listen on %s", endpoint);
    }
    char bound[128];
    size_t size = sizeof bound;
    zmq_getsockopt(link->socket, ZMQ_LAST_ENDPOINT, bound, &size);
    const char *colon = strrchr(bound, ':');
    link->port = colon ? (uint16_t)strtoul(colon + 1, NULL, 10) : port;
    fork_guard_add_port(link->port);
    return link_guard_start(link, why);
}

enum status link_bind_inproc(struct link *link, const char *name,
                             struct failure *why) {
    char endpoint[128];
    snprintf(endpoint, sizeof endpoint, "inproc://%s", name);
    if (zmq_bind(link->socket, endpoint))
        return status_errno(why, FAILURE_SYSTEM_REFUSED, zmq_errno(),
                            "cannot listen on %s", endpoint);
    memcpy(link->inproc, endpoint, sizeof endpoint);
    return STATUS_OK;
}

enum status link_connect_inproc(struct link *link, const char *name,
                                struct failure *why) {
    char endpoint[128];
    snprintf(endpoint, sizeof endpoint, "inproc://%s", name);
    if (zmq_connect(link->socket, endpoint))
        return status_errno(why, FAILURE_SYSTEM_REFUSED, zmq_errno(),
                            "cannot connect to %s", endpoint);
    link->lost = 0;
    return STATUS_OK;
}

/* A connection has one family at both ends, and from a loopback address it
 * reaches this machine only. */
static bool can_be_source(const char *source, const char *address) {
    bool v6 = strchr(source, ':');
    return *source && v6 == (*address == '[') &&
           (strncmp(source, "127.", 4) || !strncmp(address, "127.", 4));
}

enum status link_connect(struct link *link, const char *address,
                         struct failure *why) {
    char endpoint[sizeof link->address];
    const char *source = link->source;
    if (!can_be_source(source, address))
        snprintf(endpoint, sizeof endpoint, "tcp://%s", address);
    else
        snprintf(endpoint, sizeof endpoint,
                 *address == '[' ? "tcp://[%s]:0;%s" : "tcp://%s:0;%s", source,
                 address);
    link_read_client_events(link); /* those of the address before */
    bool gave_up = link->answer == LINK_ANSWER_PROTOCOL ||
                   link->answer >= LINK_ANSWER_REFUSES;
    if (!strcmp(endpoint, link->address) && !gave_up)
        return STATUS_OK;
    link->handshake = LINK_HANDSHAKE_NONE;
    link->answer = LINK_ANSWER_UNKNOWN;
    link->failed_handshakes = 0;
    bool over_tcp = link->transport == LINK_TCP;
    if (link->address[0] && over_tcp)
        zmq_disconnect(link->socket, link->address);
    link->address[0] = 0;
    if (over_tcp && zmq_connect(link->socket, endpoint))
        return status_errno(why, FAILURE_CONNECTION_FAILED, zmq_errno(),
                            "cannot connect to %s", address);
    memcpy(link->address, endpoint, sizeof endpoint);
    return STATUS_OK;
}

enum status link_expect(struct link *link, struct link_party server,
                        struct failure *why) {
    return link->keys ? link_keys_connect(link->keys, link->socket, server, why)
                      : STATUS_OK;
}

uint16_t link_port(const struct link *link) {
    return link->port;
}

int link_poll_items(struct link *link, zmq_pollitem_t *items) {
    int count = 0;
    if (link->transport == LINK_TCP)
        items[count++] = (zmq_pollitem_t){link->socket, 0, ZMQ_POLLIN, 0};
    if (!link->shm_endpoint)
        return count;
    shm_endpoint_prepare_wait(link->shm_endpoint);
    items[count++] = (zmq_pollitem_t){
        NULL, shm_endpoint_descriptor(link->shm_endpoint), ZMQ_POLLIN, 0};
    return count;
}

void *link_socket(struct link *link) {
    return link->socket;
}

/* Knows the last LINK_BANNED bans. A peer whose ban has dropped out of the list
 * is judged again by its next message. */
static bool is_banned(const struct link *link, uint32_t peer) {
    unsigned known =
        link->num_banned < LINK_BANNED ? link->num_banned : LINK_BANNED;
    for (unsigned i = 0; i < known; i++)
        if (link->banned[i] == peer)
            return true;
    return false;
}

void link_ban(struct link *link, uint32_t peer) {
    struct shm_connection *connection = link_shm_connection(link, peer);
    if (connection)
        shm_connection_fail(connection, "its messages are refused");
    else if (!is_banned(link, peer))
        link->banned[link->num_banned++ % LINK_BANNED] = peer;
}

/* True: the caller closes PART. libzmq delivers the parts of a message
 * together, so after the first part the others are here. */
static bool receive_part(struct link *link, zmq_msg_t *part) {
    zmq_msg_init(part);
    if (zmq_msg_recv(part, link->socket, ZMQ_DONTWAIT) >= 0)
        return true;
    zmq_msg_close(part);
    return false;
}

/* Reads and drops the parts that follow PART in its message. */
static void skip_rest(struct link *link, zmq_msg_t *part) {
    bool more = zmq_msg_more(part);
    zmq_msg_close(part);
    while (more && receive_part(link, part)) {
        more = zmq_msg_more(part);
        zmq_msg_close(part);
    }
}

/* Bytes of PART on the wire (ZMTP 3.0). */
static uint64_t wire_bytes(const struct link *link, const zmq_msg_t *part) {
    size_t size = zmq_msg_size(part) + (link->keys ? LINK_CURVE_BYTES : 0);
    return size + (size > UINT8_MAX ? 9 : 2);
}

/* HEADER, and PAYLOAD unless NULL, have come from PEER. */
static void record_sender(struct link *link, uint32_t peer, zmq_msg_t *header,
                          const zmq_msg_t *payload) {
    uint64_t bytes =
        wire_bytes(link, header) + (payload ? wire_bytes(link, payload) : 0);
    if (link->kind == LINK_SERVER
            ? link_count_message(link, peer, header, bytes)
            : link_needs_limit(link))
        link_limit_connection(link, zmq_msg_get(header, ZMQ_SRCFD));
}

/* ROUTER numbers connections from a random start. Peer numbers start in the
 * middle of the range below shared-memory numbers, as the first peer to speak
 * may not be the first that connected. Correct for 2^30 connections after the
 * first. */
static uint32_t peer_number(struct link *link, const char *name) {
    uint32_t counted;
    memcpy(&counted, name + 1, sizeof counted);
    counted = ntohl(counted);
    if (!link->has_peers)
        link->first_peer = counted;
    link->has_peers = true;
    return (counted - link->first_peer + LINK_NUMBERS) % SHM_ENDPOINT_FIRST;
}

/* ROUTER's own identities are a zero byte and a counter; a peer that sets its
 * own identity cannot imitate one. Such messages are dropped, and at most
 * MAX_SKIPPED a call, so that an endless sender cannot stall the caller. */
static bool receive_peer(struct link *link, uint32_t *peer) {
    zmq_msg_t identity;
    int i = 0;
    for (; i < MAX_SKIPPED && receive_part(link, &identity); i++) {
        const char *name = zmq_msg_data(&identity);
        bool usable = zmq_msg_size(&identity) == LINK_IDENTITY && !name[0] &&
                      zmq_msg_more(&identity);
        if (usable)
            *peer = peer_number(link, name);
        if (usable && !is_banned(link, *peer)) {
            zmq_msg_close(&identity);
            return true;
        }
        skip_rest(link, &identity);
    }
    if (i < MAX_SKIPPED)
        link_count_all_read(link);
    return false;
}

static bool view_shm(struct link *link, struct link_frame *frame) {
    struct shm_endpoint_message message;
    shm_endpoint_progress(link->shm_endpoint, time_now());
    if (!shm_endpoint_view(link->shm_endpoint, &message))
        return false;
    link->received = true;
    frame->peer = link->kind == LINK_SERVER ? message.number : 0;
    frame->shm_connection = message.shm_connection;
    frame->shm_segment = message.view.shm_segment;
    frame->header =
        (struct link_bytes){message.view.header, message.view.header_bytes};
    frame->payload =
        (struct link_bytes){message.view.payload, message.view.payload_bytes};
    return true;
}

/* ZAP names each peer that it admits, and libzmq what it has named with each of
 * its messages. One from this process has no address. */
static bool has_named_sender(const struct link *link, zmq_msg_t *part) {
    if (!link->keys || link->kind == LINK_CLIENT)
        return true;
    const char *user = zmq_msg_gets(part, "User-Id");
    return (user && *user) || !zmq_msg_gets(part, "Peer-Address");
}

static bool view_tcp(struct link *link, struct link_frame *frame) {
    zmq_msg_t *header = link_message(&frame->header_storage);
    zmq_msg_t *payload = link_message(&frame->payload_storage);
    for (;;) {
        frame->peer = 0;
        if (link->kind == LINK_SERVER && !receive_peer(link, &frame->peer))
            return false;
        if (!receive_part(link, header))
            return false;
        if (!has_named_sender(link, header)) {
            skip_rest(link, header);
            link_ban(link, frame->peer);
            link_note_violation(link, LINK_WRONG_KEY);
            continue;
        }
        if (!zmq_msg_more(header)) {
            record_sender(link, frame->peer, header, NULL);
            zmq_msg_init(payload);
            break;
        }
        if (!receive_part(link, payload)) {
            zmq_msg_close(header);
            return false;
        }
        record_sender(link, frame->peer, header, payload);
        if (!zmq_msg_more(payload))
            break;
        skip_rest(link, payload);
        zmq_msg_close(header);
        link_ban(link, frame->peer);
        link_note_violation(link, LINK_MANY_PARTS);
    }
    frame->shm_connection = NULL;
    frame->shm_segment = NULL;
    frame->header = view_of(header);
    frame->payload = view_of(payload);
    return true;
}

/* Shared memory first, as polling it costs no system call. TCP has its turn
 * after SHM_FRAMES_PER_TURN frames. */
static bool view_any(struct link *link, struct link_frame *frame) {
    if (link->shm_endpoint && link->shm_frames < SHM_FRAMES_PER_TURN &&
        view_shm(link, frame)) {
        link->shm_frames++;
        return true;
    }
    link->shm_frames = 0;
    if (link->transport == LINK_TCP && view_tcp(link, frame)) {
        link->received_tcp = true;
        return true;
    }
    return link->shm_endpoint && view_shm(link, frame);
}

bool link_view(struct link *link, struct link_frame *frame) {
    if (!view_any(link, frame))
        return false;
    add_traffic(&bytes_received, frame->header.size + frame->payload.size);
    return true;
}

bool link_is_from(const struct link *link, struct link_frame *frame,
                  struct link_party party) {
    char text[64];
    const char *user =
        !link->keys ? NULL
        : frame->shm_connection
            ? shm_connection_peer(frame->shm_connection)
            : zmq_msg_gets(link_message(&frame->header_storage), "User-Id");
    if (!user)
        return true;
    link_party_text(party, text, sizeof text);
    return !strcmp(user, text);
}

void link_release(struct link_frame *frame) {
    if (frame->shm_connection) {
        shm_connection_release(frame->shm_connection);
        return;
    }
    zmq_msg_close(link_message(&frame->header_storage));
    zmq_msg_close(link_message(&frame->payload_storage));
}

/* A payload in a ring is copied: ring memory is released in order, so keeping
 * it would hold up all later messages. */
static bool hold_shm(struct link_frame *frame, struct link_held *held) {
    held->payload = frame->payload;
    if (frame->shm_segment) {
        held->shm_segment = shm_segment_hold(frame->shm_segment);
    } else if (frame->payload.size) {
        held->copy = malloc(frame->payload.size);
        if (!held->copy)
            return false;
        memcpy(held->copy, frame->payload.data, frame->payload.size);
        held->payload.data = held->copy;
    }
    frame->payload = (struct link_bytes){0};
    return true;
}

bool link_hold(struct link_frame *frame, struct link_held *held) {
    zmq_msg_t *message = link_message(&held->storage);
    zmq_msg_init(message);
    held->shm_segment = NULL;
    held->copy = NULL;
    if (frame->shm_connection)
        return hold_shm(frame, held);
    zmq_msg_move(message, link_message(&frame->payload_storage));
    held->payload = view_of(message);
    frame->payload = (struct link_bytes){0};
    return true;
}

void link_release_held(struct link_held *held) {
    shm_segment_release(&held->shm_segment);
    free(held->copy);
    held->copy = NULL;
    zmq_msg_close(link_message(&held->storage));
}
