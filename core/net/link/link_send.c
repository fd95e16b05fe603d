/* SPDX-License-Identifier: Apache-2.0 */
/* Sending: payloads, the messages that carry them, and how much of them the
 * kernel gets at a time. */
#include "core/net/link/link_internal.h"

#include <arpa/inet.h>
#include <limits.h>
#include <linux/tcp.h>
#include <math.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

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
                     ZMQ_DONTWAIT) >= 0)
        return true;
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

bool link_commit(struct link *link, uint32_t peer, const void *header,
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

void link_limit_rate(struct link *link, double gbits, unsigned connections) {
    if (gbits > 0 && gbits <= LINK_MAX_GBITS && connections)
        link->rate = gbits * 1e9 / 8 / connections;
}

bool link_needs_limit(const struct link *link) {
    return link->kind == LINK_CLIENT && link->rate > 0 && !link->limited;
}

/* The kernel doubles SO_SNDBUF for its own overhead (socket(7)), hence / 2. If
 * the descriptor has been reused meanwhile, it is another connection of this
 * process, which is limited a little earlier, or not TCP. */
void link_limit_connection(struct link *link, int descriptor) {
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
