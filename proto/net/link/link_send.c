/* SPDX-License-Identifier: Apache-2.0 */
/* What leaves by a link: payloads, and the messages that carry them. */
#include "proto/net/link/link_parts.h"

#include <arpa/inet.h>
#include <string.h>

void link_no_payload(struct link_payload *payload) {
    payload->data = NULL;
    payload->bytes = 0;
    payload->buffer = NULL;
    zmq_msg_init(link_message(&payload->room));
}

bool link_reserve(struct link *link, uint32_t peer,
                  struct link_payload *payload, size_t bytes) {
    zmq_msg_t *message = link_message(&payload->room);
    struct lane *lane = link_lane_of(link, peer);
    link_no_payload(payload);
    if (lane) {
        payload->bytes = bytes;
        payload->data = lane_reserve(lane, bytes);
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

bool link_shows(const struct link *link, uint32_t peer,
                const struct buffer *buffer) {
    return link_lane_of(link, peer) && buffer_memory(buffer);
}

void link_drop(struct link_payload *payload) {
    buffer_release(&payload->buffer);
    zmq_msg_close(link_message(&payload->room));
}

/* Called by libzmq, on one of its own threads: buffers count atomically. */
static void let_go(void *data, void *hint) {
    struct buffer *buffer = hint;
    (void)data;
    buffer_release(&buffer);
}

/* The part that ROUTER takes away: to whom. Fails at once where there is no
 * such connection (ZMQ_ROUTER_MANDATORY). */
static bool send_peer(struct link *link, uint32_t peer) {
    char identity[LINK_IDENTITY] = {0};
    uint32_t counted = htonl(peer - LINK_NUMBERS + link->first_peer);
    memcpy(identity + 1, &counted, sizeof counted);
    return zmq_send(link->socket, identity, sizeof identity,
                    ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0;
}

/* A borrowed payload becomes a message that holds its buffer until it has
 * left. False: no memory. */
static bool make_message(struct link_payload *payload) {
    struct buffer *buffer = payload->buffer;
    if (!buffer)
        return true;
    if (zmq_msg_init_data(link_message(&payload->room), payload->data,
                          payload->bytes, let_go, buffer))
        return false;
    payload->buffer = NULL; /* the message's now */
    return true;
}

/* One that nobody holds but this link was sent, or its connection is gone.
 * NULL: PEER, or all together, have not read enough. */
static struct link_answer *free_answer(struct link *link, uint32_t peer) {
    struct link_answer *found = NULL;
    unsigned unread = 0;
    for (int i = 0; i < LINK_ANSWERS; i++) {
        struct link_answer *answer = &link->answers[i];
        if (!answer->buffer || buffer_alone(answer->buffer))
            found = answer;
        else
            unread += answer->peer == peer;
    }
    if (!found || unread >= LINK_ANSWERS_OF_ONE)
        return NULL;
    if (!found->buffer)
        found->buffer = buffer_open(LINK_ANSWER, NULL, NULL);
    found->peer = peer;
    return found->buffer ? found : NULL;
}

bool link_answer(struct link *link, uint32_t peer, const void *header,
                 size_t bytes) {
    struct link_payload message;
    if (link_lane_of(link, peer)) /* a ring has an end */
        return link_commit(link, peer, header, bytes, NULL);
    struct link_answer *answer =
        bytes <= LINK_ANSWER ? free_answer(link, peer) : NULL;
    if (!answer)
        return false;
    memcpy(buffer_data(answer->buffer), header, bytes);
    link_borrow(&message, answer->buffer, 0, bytes);
    if (make_message(&message) && send_peer(link, peer) &&
        zmq_msg_send(link_message(&message.room), link->socket, ZMQ_DONTWAIT) >=
            0)
        return true;
    link_drop(&message);
    return false;
}

static bool commit_lane(struct lane *lane, const void *header, size_t bytes,
                        struct link_payload *payload) {
    if (!payload)
        return lane_send(lane, header, bytes, NULL);
    struct lane_payload sent = {payload->data, payload->bytes, payload->buffer};
    bool left = lane_send(lane, header, bytes, &sent);
    link_drop(payload);
    return left;
}

/* Whether a message can leave is decided by its first part: libzmq takes the
 * others then, so no half of one is ever on its way. */
static bool commit_tcp(struct link *link, uint32_t peer, const void *header,
                       size_t bytes, struct link_payload *payload) {
    int more = payload && payload->bytes ? ZMQ_SNDMORE : 0;
    bool made = !payload || make_message(payload);
    bool sent = made && (link->kind == LINK_CLIENT || send_peer(link, peer)) &&
                zmq_send(link->socket, header, bytes, more | ZMQ_DONTWAIT) >= 0;
    if (sent && more &&
        zmq_msg_send(link_message(&payload->room), link->socket,
                     ZMQ_DONTWAIT) >= 0)
        return true;
    if (payload)
        link_drop(payload);
    return sent;
}

bool link_commit(struct link *link, uint32_t peer, const void *header,
                 size_t bytes, struct link_payload *payload) {
    struct lane *lane = link_lane_of(link, peer);
    if (lane)
        return commit_lane(lane, header, bytes, payload);
    if (link->way == LINK_BY_TCP && peer < LANES_FIRST)
        return commit_tcp(link, peer, header, bytes, payload);
    if (payload)
        link_drop(payload);
    return false;
}
