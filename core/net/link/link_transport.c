/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the transport of messages: shared memory where possible, else TCP.
 *
 * A client tries shared memory (LINK_SHM_HANDSHAKE, at most a second), uses it
 * once it is open (LINK_SHM), else uses TCP (LINK_TCP) for good. A
 * shared-memory connection that is lost after it has lasted a while is tried
 * once more, as the server may have closed it for inactivity; one lost at once
 * would be lost again. Nothing is sent until the transport is decided, so that
 * messages cannot overtake each other. A server uses both: it replies to each
 * peer by the transport that the peer uses. */
#include "core/base/time.h"
#include "core/net/link/link_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const int64_t MIN_SHM_LIFETIME = 5 * TIME_S;
static const int64_t GREETING_TIME = TIME_S; /* half of ZMQ_HANDSHAKE_IVL */
/* libzmq connects again within seconds where a connection is accepted. */
static const int64_t ANSWER_AGE = 5 * TIME_S;
static const int64_t NOTICED_AFTER = 5 * TIME_S; /* by TCP, at the latest */
enum { HANDSHAKES_TO_JUDGE = 3 };
static const char PEER_LEFT[] = "it has closed its shared memory";

struct shm_connection *link_shm_connection(const struct link *link,
                                           uint32_t peer) {
    if (link->kind == LINK_CLIENT)
        return link->transport == LINK_SHM
                   ? shm_endpoint_find(link->shm_endpoint, link->shm_connection)
                   : NULL;
    return link->shm_endpoint && peer >= SHM_ENDPOINT_FIRST
               ? shm_endpoint_find(link->shm_endpoint, peer)
               : NULL;
}

enum status link_listen_shm(struct link *link, uint64_t shm_key,
                            struct failure *why) {
    shm_endpoint_name(link->shm_name, shm_key);
    link->shm_endpoint = shm_endpoint_open((uint64_t)link->max_frame);
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
    link->shm_endpoint = shm_endpoint_open((uint64_t)link->max_frame);
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
        link->answer = now - link->connected_at < GREETING_TIME
                           ? LINK_ANSWER_CLOSED
                           : LINK_ANSWER_SILENT;
}

/* Nothing has come since the last packet; but a standstill of this process
 * before it saw the end does not count. */
static void note_loss(struct link *link, int64_t now) {
    int64_t earliest = now - NOTICED_AFTER;
    link->regained = false;
    if (!link->lost)
        link->lost = link->heard > earliest ? link->heard : earliest;
}

static void take_client_event(struct link *link, uint16_t event, uint32_t value,
                              int64_t now) {
    switch (event) {
    case ZMQ_EVENT_CONNECTED:
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

void link_read_client_events(struct link *link) {
    uint16_t event;
    uint32_t value;
    while (link->kind == LINK_CLIENT && link_next_event(link, &event, &value))
        take_client_event(link, event, value, time_now());
}

enum link_answer link_answer(struct link *link, int64_t *since) {
    link_read_client_events(link);
    bool ended = link->answer == LINK_ANSWER_CLOSED ||
                 link->answer == LINK_ANSWER_SILENT;
    if (ended && time_now() - link->connected_at > ANSWER_AGE)
        link->answer = LINK_ANSWER_UNKNOWN; /* nothing accepts any more */
    *since = link->answered_at;
    return link->answer;
}

static void follow_connection(struct link *link) {
    if (link->shm_endpoint && link->kind == LINK_CLIENT)
        follow_shm(link);
    link_read_client_events(link);
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
