/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/bench/bare_zmq.h"

#include "proto/base/time.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum { LIMIT_MS = 30000 };

/* As long as the header of one small push; how much is to come back. */
struct header {
    uint64_t back;
    char rest[32];
};

struct bare_zmq {
    void *socket;
    char *out, *in; /* rings */
    /* The lap. */
    size_t next;       /* byte of the vector to be sent next */
    size_t came;       /* bytes of the vector that were answered */
    size_t under_way;  /* bytes, and */
    uint64_t messages; /* messages without an answer */
    uint64_t begun, answered;
};

static void set_int(void *socket, int option, int value) {
    zmq_setsockopt(socket, option, &value, sizeof value);
}

static void configure(void *socket) {
    set_int(socket, ZMQ_LINGER, 0);
    set_int(socket, ZMQ_SNDHWM, 0);
    set_int(socket, ZMQ_RCVHWM, 0);
}

void *bare_zmq_listen(void *zmq, uint16_t *port) {
    void *router = zmq_socket(zmq, ZMQ_ROUTER);
    char bound[128] = "";
    size_t size = sizeof bound;
    if (!router)
        return NULL;
    configure(router);
    if (!zmq_bind(router, "tcp://127.0.0.1:*") &&
        !zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, bound, &size)) {
        *port = (uint16_t)strtoul(strrchr(bound, ':') + 1, NULL, 10);
        return router;
    }
    zmq_close(router);
    return NULL;
}

/* BYTES from FROM as a message: a small one is copied. */
static void fill(zmq_msg_t *message, char *from, size_t bytes) {
    if (bytes > LAP_COPY_BYTES) {
        zmq_msg_init_data(message, from, bytes, NULL, NULL);
        return;
    }
    zmq_msg_init_size(message, bytes);
    memcpy(zmq_msg_data(message), from, bytes);
}

static void send_frames(void *socket, const struct header *header, char *from,
                        size_t bytes) {
    zmq_msg_t payload;
    zmq_send(socket, header, sizeof *header, bytes ? ZMQ_SNDMORE : 0);
    if (!bytes)
        return;
    fill(&payload, from, bytes);
    zmq_msg_send(&payload, socket, 0);
}

/* The frames of one message after the first; whether there was a header. */
static bool receive_frames(void *socket, struct header *header) {
    zmq_msg_t part;
    int more = 1;
    bool first = true, sound = false;
    while (more) {
        zmq_msg_init(&part);
        if (zmq_msg_recv(&part, socket, 0) < 0)
            return false;
        if (first && zmq_msg_size(&part) == sizeof *header) {
            memcpy(header, zmq_msg_data(&part), sizeof *header);
            sound = true;
        }
        first = false;
        more = zmq_msg_more(&part);
        zmq_msg_close(&part);
    }
    return sound;
}

void bare_zmq_serve(void *router) {
    char *payload = calloc(1, LAP_GROUP_BYTES);
    zmq_msg_t identity;
    while (payload) {
        struct header header;
        zmq_msg_init(&identity);
        if (zmq_msg_recv(&identity, router, 0) < 0)
            break;
        if (receive_frames(router, &header) && header.back <= LAP_GROUP_BYTES) {
            zmq_msg_send(&identity, router, ZMQ_SNDMORE);
            send_frames(router, &header, payload, header.back);
        }
        zmq_msg_close(&identity);
    }
    free(payload);
}

enum status bare_zmq_open(struct bare_zmq **out, void *zmq, uint16_t port,
                          struct failure *why) {
    struct bare_zmq *bare = calloc(1, sizeof *bare);
    char endpoint[64];
    *out = NULL;
    if (!bare)
        return status_fail(why, STATUS_RETRY, "no memory for bare libzmq");
    bare->socket = zmq_socket(zmq, ZMQ_DEALER);
    bare->out = calloc(1, LAP_RING_BYTES);
    bare->in = malloc(LAP_RING_BYTES);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", port);
    if (!bare->socket || !bare->out || !bare->in ||
        zmq_connect(bare->socket, endpoint)) {
        bare_zmq_close(&bare);
        return status_fail(why, STATUS_RETRY, "no bare libzmq to port %u",
                           port);
    }
    configure(bare->socket);
    memset(bare->out, 1, LAP_RING_BYTES);
    memset(bare->in, 0, LAP_RING_BYTES);
    *out = bare;
    return STATUS_OK;
}

void bare_zmq_close(struct bare_zmq **where) {
    struct bare_zmq *bare = *where;
    *where = NULL;
    if (!bare)
        return;
    if (bare->socket) {
        set_int(bare->socket, ZMQ_LINGER, 0);
        zmq_close(bare->socket);
    }
    free(bare->out);
    free(bare->in);
    free(bare);
}

static bool send_one(struct bare_zmq *bare, struct lap *lap) {
    size_t left = lap->bytes - bare->next;
    size_t bytes = left < LAP_GROUP_BYTES ? left : LAP_GROUP_BYTES;
    size_t at = bare->next % LAP_RING_BYTES;
    if (!left || bare->messages == LAP_CREDIT_MESSAGES ||
        (bare->messages && bare->under_way + bytes > LAP_CREDIT))
        return false;
    struct header header = {.back = lap->kind == LAP_PUSH ? 0 : bytes};
    send_frames(bare->socket, &header, bare->out + at,
                lap->kind == LAP_PULL ? 0 : bytes);
    bare->next += bytes;
    bare->under_way += bytes;
    bare->messages++;
    lap->messages++;
    return true;
}

/* One answer is here; its weights go into the ring. */
static bool receive_one(struct bare_zmq *bare, const struct lap *lap) {
    zmq_msg_t part;
    size_t left = lap->bytes - bare->came;
    size_t bytes = left < LAP_GROUP_BYTES ? left : LAP_GROUP_BYTES;
    zmq_msg_init(&part);
    if (zmq_msg_recv(&part, bare->socket, ZMQ_DONTWAIT) < 0)
        return false;
    while (zmq_msg_more(&part) && zmq_msg_recv(&part, bare->socket, 0) >= 0)
        memcpy(bare->in + bare->came % LAP_RING_BYTES, zmq_msg_data(&part),
               zmq_msg_size(&part) < bytes ? zmq_msg_size(&part) : bytes);
    zmq_msg_close(&part);
    bare->came += bytes;
    bare->under_way -= bytes;
    bare->messages--;
    if (bare->came == lap->bytes) {
        bare->came = 0;
        bare->answered++;
    }
    return true;
}

static bool wait_for_answer(struct bare_zmq *bare) {
    zmq_pollitem_t item = {bare->socket, 0, ZMQ_POLLIN, 0};
    return zmq_poll(&item, 1, LIMIT_MS) == 1;
}

enum status bare_zmq_lap(struct bare_zmq *bare, struct lap *lap,
                         struct failure *why) {
    int64_t start = time_now(), now = start, began = start;
    unsigned ahead = 0;
    bare->next = lap->bytes;
    bare->came = bare->under_way = bare->messages = 0;
    bare->begun = bare->answered = 0;
    lap->vectors = lap->messages = lap->samples = 0;
    for (;;) {
        bool moved = false;
        if (bare->next == lap->bytes &&
            bare->begun - bare->answered < lap->depth &&
            lap_goes_on(lap, bare->begun, now - start)) {
            bare->next = 0;
            bare->begun++;
            began = now;
        }
        moved = send_one(bare, lap);
        if (moved && ++ahead % LAP_SENDS_A_LOOK)
            continue;
        uint64_t before = bare->answered;
        while (bare->messages && receive_one(bare, lap))
            moved = true;
        if (!moved && bare->messages && !wait_for_answer(bare))
            return status_fail(why, STATUS_RETRY,
                               "bare libzmq of this machine gave nothing for "
                               "%d s",
                               LIMIT_MS / 1000);
        now = time_now();
        if (lap->depth == 1 && bare->answered > before)
            lap_note(lap, now - began);
        if (bare->answered == bare->begun &&
            !lap_goes_on(lap, bare->begun, now - start))
            break;
    }
    lap->vectors = bare->answered;
    lap->elapsed = now - start;
    return STATUS_OK;
}
