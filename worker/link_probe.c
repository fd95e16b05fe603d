/* SPDX-License-Identifier: Apache-2.0 */
/* A burst is timed from its first quarter to its end: by then the way is full
 * and the connection has found its pace. On one host there is no network to
 * measure: the probe ends without a rate. */
#include "worker/link_probe.h"

#include "proto/base/time.h"
#include "proto/net/link/link.h"
#include "proto/net/link/resolve.h"
#include "proto/net/messages/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_BYTES = 64 << 10, FEWEST = 4, MOST = 512 };
static const int64_t LIMIT = 600 * TIME_MS;
static const int64_t LONG_ENOUGH = 25 * TIME_MS;
static const int64_t LOOK_EVERY = 5 * TIME_MS; /* no event tells of these */

struct link_probe {
    struct link *link;
    struct resolve *resolve;
    uint64_t run, incarnation, burst;
    int64_t until, began; /* began: when the first timed message came */
    uint32_t count, sent, received;
    double rate;
    bool over;
    struct message_arena arena;
    unsigned char header[MESSAGE_MAX_HEADER];
};

static struct resolve *look_up(const char *address) {
    char host[256];
    const char *colon = strrchr(address, ':');
    size_t size = colon ? (size_t)(colon - address) : 0;
    bool bracket = address[0] == '[';
    if (!colon || size >= sizeof host || size < 2u * bracket)
        return NULL;
    snprintf(host, sizeof host, "%.*s", (int)size - 2 * bracket,
             address + bracket);
    return resolve_start(host, (uint16_t)strtoul(colon + 1, NULL, 10));
}

enum status link_probe_open(struct link_probe **out,
                            const struct link_probe_settings *settings,
                            int64_t now, struct failure *why) {
    struct link_probe *probe = calloc(1, sizeof *probe);
    if (!probe)
        return status_fail(why, STATUS_RETRY, "no memory for a probe");
    struct link_settings link = {
        .max_frame = MESSAGE_MAX_PAYLOAD, .receive_frames = 0, .linger_ms = 0};
    probe->run = settings->run;
    probe->incarnation = settings->incarnation;
    probe->until = now + LIMIT;
    probe->count = FEWEST;
    enum status status =
        link_open(&probe->link, settings->zmq, LINK_CLIENT, &link, why);
    if (!status)
        probe->resolve = look_up(settings->address);
    if (!status && !probe->resolve)
        status = status_fail(why, STATUS_RETRY, "cannot look up %s",
                             settings->address);
    if (status)
        link_probe_close(&probe);
    *out = probe;
    return status;
}

void link_probe_close(struct link_probe **where) {
    struct link_probe *probe = *where;
    *where = NULL;
    if (!probe)
        return;
    resolve_end(&probe->resolve);
    link_close(&probe->link);
    free(probe);
}

zmq_pollitem_t link_probe_poll_item(struct link_probe *probe) {
    return (zmq_pollitem_t){link_socket(probe->link), 0, ZMQ_POLLIN, 0};
}

int64_t link_probe_deadline(const struct link_probe *probe) {
    if (probe->over)
        return TIME_NEVER;
    return probe->resolve || probe->sent < probe->count
               ? time_now() + LOOK_EVERY
               : probe->until;
}

static void connect_when_found(struct link_probe *probe) {
    char text[300];
    struct failure why;
    if (!probe->resolve)
        return;
    enum resolve_state state = resolve_poll(probe->resolve, text, sizeof text);
    if (state == RESOLVE_WAITING)
        return;
    probe->over =
        state == RESOLVE_FAILED || link_connect(probe->link, text, &why);
    resolve_end(&probe->resolve);
}

static bool send_one(struct link_probe *probe) {
    struct link_payload payload;
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = CAPSTAN__DATA_HEADER__KIND__PROBE;
    header.run = probe->run;
    header.incarnation = probe->incarnation;
    header.seq = probe->burst;
    if (!link_reserve(probe->link, 0, &payload, MESSAGE_BYTES))
        return false;
    memset(link_reserved(&payload), 0, MESSAGE_BYTES);
    size_t bytes = message_write_data(&header, probe->header);
    return link_commit(probe->link, 0, probe->header, bytes, &payload);
}

/* The first quarter of a burst fills the way, the rest is timed. */
static void take_one(struct link_probe *probe, int64_t now) {
    uint32_t first = probe->count / 4;
    probe->received++;
    if (probe->received == first)
        probe->began = now;
    if (probe->received < probe->count)
        return;
    int64_t took = now - probe->began;
    if (took > 0)
        probe->rate = (double)(probe->count - first) * MESSAGE_BYTES /
                      time_to_seconds(took);
    probe->over |= took >= LONG_ENOUGH || probe->count >= MOST;
    probe->count *= 2;
    probe->sent = probe->received = 0;
    probe->burst++;
}

static bool is_answer(const struct link_probe *probe,
                      const Capstan__DataHeader *header, size_t payload) {
    return header->kind == CAPSTAN__DATA_HEADER__KIND__PROBED &&
           header->run == probe->run && header->seq == probe->burst &&
           payload == MESSAGE_BYTES;
}

static void receive(struct link_probe *probe) {
    struct link_frame frame;
    while (!probe->over && link_view(probe->link, &frame)) {
        Capstan__DataHeader *header;
        struct failure bad;
        bool answer =
            !message_read_data(&header, &probe->arena, frame.header.data,
                               frame.header.size, &bad) &&
            is_answer(probe, header, frame.payload.size);
        probe->over = answer && link_is_near(&frame);
        if (answer && !probe->over)
            take_one(probe, time_now());
        link_release(&frame);
    }
}

bool link_probe_step(struct link_probe *probe, int64_t now) {
    connect_when_found(probe);
    receive(probe);
    while (!probe->over && !probe->resolve && probe->sent < probe->count &&
           send_one(probe))
        probe->sent++;
    probe->over |= now >= probe->until;
    return probe->over;
}

double link_probe_rate(const struct link_probe *probe) {
    return probe->rate;
}
