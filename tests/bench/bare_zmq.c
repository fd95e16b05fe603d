/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/bare_zmq.h"

#include "core/base/time.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum { LIMIT_MS = 30000 };

/* As long as the header of one small push; reply_bytes is the size of the
 * answer. */
struct header {
    uint64_t reply_bytes;
    char padding[32];
};

struct bare_zmq {
    void *socket;
    char *out, *in; /* rings */
    /* The state of an iteration. */
    size_t next;           /* byte of the vector to send next */
    size_t answered_bytes; /* bytes of the vector answered so far */
    size_t in_flight;      /* bytes, and */
    uint64_t messages;     /* messages not answered yet */
    uint64_t started, answered;
};

static void bare_zmq_set_int(void *socket, int option, int value) {
    zmq_setsockopt(socket, option, &value, sizeof value);
}

static void bare_zmq_configure(void *socket) {
    bare_zmq_set_int(socket, ZMQ_LINGER, 0);
    bare_zmq_set_int(socket, ZMQ_SNDHWM, 0);
    bare_zmq_set_int(socket, ZMQ_RCVHWM, 0);
}

void *bare_zmq_listen(void *zmq, uint16_t *port) {
    void *router = zmq_socket(zmq, ZMQ_ROUTER);
    char bound[128] = "";
    size_t size = sizeof bound;
    if (!router)
        return NULL;
    bare_zmq_configure(router);
    if (!zmq_bind(router, "tcp://127.0.0.1:*") &&
        !zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, bound, &size)) {
        *port = (uint16_t)strtoul(strrchr(bound, ':') + 1, NULL, 10);
        return router;
    }
    zmq_close(router);
    return NULL;
}

/* Fills MESSAGE with BYTES from FROM; small messages are copied. */
static void bare_zmq_fill(zmq_msg_t *message, char *from, size_t bytes) {
    if (bytes > BENCH_ITERATION_COPY_BYTES) {
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
    bare_zmq_fill(&payload, from, bytes);
    zmq_msg_send(&payload, socket, 0);
}

/* Receives the frames of one message after the first; true if there was a
 * header. */
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
    char *payload = calloc(1, BENCH_ITERATION_GROUP_BYTES);
    zmq_msg_t identity;
    while (payload) {
        struct header header;
        zmq_msg_init(&identity);
        if (zmq_msg_recv(&identity, router, 0) < 0)
            break;
        if (receive_frames(router, &header) &&
            header.reply_bytes <= BENCH_ITERATION_GROUP_BYTES) {
            zmq_msg_send(&identity, router, ZMQ_SNDMORE);
            send_frames(router, &header, payload, header.reply_bytes);
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
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for bare libzmq");
    bare->socket = zmq_socket(zmq, ZMQ_DEALER);
    bare->out = calloc(1, BENCH_ITERATION_RING_BYTES);
    bare->in = malloc(BENCH_ITERATION_RING_BYTES);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", port);
    if (!bare->socket || !bare->out || !bare->in ||
        zmq_connect(bare->socket, endpoint)) {
        bare_zmq_close(&bare);
        return status_fail(why, FAILURE_CONNECTION_FAILED,
                           "cannot connect bare libzmq to port %u", port);
    }
    bare_zmq_configure(bare->socket);
    memset(bare->out, 1, BENCH_ITERATION_RING_BYTES);
    memset(bare->in, 0, BENCH_ITERATION_RING_BYTES);
    *out = bare;
    return STATUS_OK;
}

void bare_zmq_close(struct bare_zmq **where) {
    struct bare_zmq *bare = *where;
    *where = NULL;
    if (!bare)
        return;
    if (bare->socket) {
        bare_zmq_set_int(bare->socket, ZMQ_LINGER, 0);
        zmq_close(bare->socket);
    }
    free(bare->out);
    free(bare->in);
    free(bare);
}

static bool bare_zmq_send_one(struct bare_zmq *bare,
                              struct bench_iteration *iteration) {
    size_t left = iteration->bytes - bare->next;
    size_t bytes =
        left < BENCH_ITERATION_GROUP_BYTES ? left : BENCH_ITERATION_GROUP_BYTES;
    size_t at = bare->next % BENCH_ITERATION_RING_BYTES;
    if (!left || bare->messages == BENCH_ITERATION_CREDIT_MESSAGES ||
        (bare->messages && bare->in_flight + bytes > BENCH_ITERATION_CREDIT))
        return false;
    struct header header = {
        .reply_bytes = iteration->kind == BENCH_ITERATION_PUSH ? 0 : bytes};
    send_frames(bare->socket, &header, bare->out + at,
                iteration->kind == BENCH_ITERATION_PULL ? 0 : bytes);
    bare->next += bytes;
    bare->in_flight += bytes;
    bare->messages++;
    iteration->messages++;
    return true;
}

/* Receives one answer; its weights go into the ring buffer. */
static bool receive_one(struct bare_zmq *bare,
                        const struct bench_iteration *iteration) {
    zmq_msg_t part;
    size_t left = iteration->bytes - bare->answered_bytes;
    size_t bytes =
        left < BENCH_ITERATION_GROUP_BYTES ? left : BENCH_ITERATION_GROUP_BYTES;
    zmq_msg_init(&part);
    if (zmq_msg_recv(&part, bare->socket, ZMQ_DONTWAIT) < 0)
        return false;
    while (zmq_msg_more(&part) && zmq_msg_recv(&part, bare->socket, 0) >= 0)
        memcpy(bare->in + bare->answered_bytes % BENCH_ITERATION_RING_BYTES,
               zmq_msg_data(&part),
               zmq_msg_size(&part) < bytes ? zmq_msg_size(&part) : bytes);
    zmq_msg_close(&part);
    bare->answered_bytes += bytes;
    bare->in_flight -= bytes;
    bare->messages--;
    if (bare->answered_bytes == iteration->bytes) {
        bare->answered_bytes = 0;
        bare->answered++;
    }
    return true;
}

static bool wait_for_answer(struct bare_zmq *bare) {
    zmq_pollitem_t item = {bare->socket, 0, ZMQ_POLLIN, 0};
    return zmq_poll(&item, 1, LIMIT_MS) == 1;
}

enum status bare_zmq_run(struct bare_zmq *bare,
                         struct bench_iteration *iteration,
                         struct failure *why) {
    int64_t start = time_now(), now = start, started_at = start;
    unsigned unpolled = 0;
    bare->next = iteration->bytes;
    bare->answered_bytes = bare->in_flight = bare->messages = 0;
    bare->started = bare->answered = 0;
    iteration->vectors = iteration->messages = iteration->samples = 0;
    for (;;) {
        bool moved = false;
        if (bare->next == iteration->bytes &&
            bare->started - bare->answered < iteration->depth &&
            bench_iteration_continues(iteration, bare->started, now - start)) {
            bare->next = 0;
            bare->started++;
            started_at = now;
        }
        moved = bare_zmq_send_one(bare, iteration);
        if (moved && ++unpolled % BENCH_ITERATION_SENDS_PER_POLL)
            continue;
        uint64_t before = bare->answered;
        while (bare->messages && receive_one(bare, iteration))
            moved = true;
        if (!moved && bare->messages && !wait_for_answer(bare))
            return status_fail(why, FAILURE_PEER_SILENT,
                               "bare libzmq of this machine gave nothing for "
                               "%d s",
                               LIMIT_MS / 1000);
        now = time_now();
        if (iteration->depth == 1 && bare->answered > before)
            bench_iteration_record(iteration, now - started_at);
        if (bare->answered == bare->started &&
            !bench_iteration_continues(iteration, bare->started, now - start))
            break;
    }
    iteration->vectors = bare->answered;
    iteration->elapsed = now - start;
    return STATUS_OK;
}
