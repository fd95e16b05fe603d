/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/bench/stream.h"

#include "proto/base/time.h"
#include "proto/net/link/resolve.h"
#include "worker/bench/stream_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RESOLVE_POLL_MS = 1 };
static const float GRADIENT = 1e-6f;

enum status stream_silent(const struct stream *stream, uint32_t p,
                          struct failure *why) {
    return status_fail(
        why, STATUS_RETRY, "ps %u at %s has not answered for %.0f s", p,
        stream->settings.plan->ps[p].address, stream->settings.timeout);
}

/* "host:port" or "[v6]:port" of ps P as numbers, into TEXT. */
static enum status find(const struct stream *stream, uint32_t p, char *text,
                        size_t size, struct failure *why) {
    const char *address = stream->settings.plan->ps[p].address;
    const char *colon = strrchr(address, ':');
    bool bracket = address[0] == '[';
    char host[256];
    int length = colon ? (int)(colon - address) - 2 * bracket : 0;
    snprintf(host, sizeof host, "%.*s", length, address + bracket);
    struct resolve *resolve =
        resolve_start(host, colon ? (uint16_t)strtoul(colon + 1, NULL, 10) : 0);
    int64_t limit = time_now() + time_from_seconds(stream->settings.timeout);
    enum resolve_state state = resolve ? RESOLVE_WAITING : RESOLVE_FAILED;
    snprintf(text, size, "no answer");
    while (state == RESOLVE_WAITING && time_now() < limit) {
        zmq_poll(NULL, 0, RESOLVE_POLL_MS);
        state = resolve_poll(resolve, text, size);
    }
    resolve_end(&resolve);
    return state == RESOLVE_FOUND
               ? STATUS_OK
               : status_fail(why, STATUS_RETRY,
                             "cannot find host %s of ps %u: %s", host, p, text);
}

/* Waits for one way or the other; true: a lane. */
static bool meet(struct stream *stream, uint32_t p) {
    const struct stream_settings *s = &stream->settings;
    struct stream_server *server = &stream->servers[p];
    char text[128];
    while (!link_way(server->link, text, sizeof text)) {
        int count = link_poll_items(server->link, stream->items);
        zmq_poll(stream->items, count, RESOLVE_POLL_MS);
        server->lane = link_renewed(server->link);
    }
    log_info(s->log, "ps %u: %s", p, text);
    return server->lane;
}

static enum status connect_server(struct stream *stream, uint32_t p,
                                  struct failure *why) {
    struct link_settings settings = {.max_frame = MESSAGE_MAX_PAYLOAD};
    struct stream_server *server = &stream->servers[p];
    char text[300];
    enum status status = find(stream, p, text, sizeof text, why);
    if (!status)
        status = link_open(&server->link, stream->settings.zmq, LINK_CLIENT,
                           &settings, why);
    stream->links[p] = server->link;
    uint64_t lane =
        stream->settings.lanes ? stream->settings.plan->ps[p].lane : 0;
    if (!status && lane)
        link_prefer_lane(server->link, lane);
    if (!status)
        status = link_connect(server->link, text, why);
    if (status)
        return status;
    if (lane && meet(stream, p))
        return STATUS_OK;
    zmq_pollitem_t item = {link_socket(server->link), 0, ZMQ_POLLOUT, 0};
    int64_t limit = time_from_seconds(stream->settings.timeout);
    return zmq_poll(&item, 1, time_poll_ms(0, limit)) == 1
               ? STATUS_OK
               : stream_silent(stream, p, why);
}

static bool allocate(struct stream *stream) {
    const struct plan *plan = stream->settings.plan;
    uint32_t blocks = plan->layout->num_blocks;
    stream->servers = calloc(plan->num_ps + 1, sizeof *stream->servers);
    stream->links = calloc(plan->num_ps + 1, sizeof *stream->links);
    stream->items = calloc((size_t)plan->num_ps * LINK_POLL_ITEMS + 1,
                           sizeof *stream->items);
    stream->clocks = calloc(blocks + 1, sizeof *stream->clocks);
    stream->out = buffer_open_shared(LAP_RING_BYTES);
    stream->in = malloc(LAP_RING_BYTES);
    if (!stream->servers || !stream->links || !stream->items ||
        !stream->clocks || !stream->out || !stream->in)
        return false;
    for (uint32_t b = 0; b < blocks; b++)
        stream->clocks[b] = stream->settings.from - 1;
    float *gradient = buffer_data(stream->out);
    for (size_t i = 0; i < LAP_RING_BYTES / sizeof(float); i++)
        gradient[i] = GRADIENT;
    memset(stream->in, 0, LAP_RING_BYTES);
    for (uint32_t p = 0; p < plan->num_ps; p++) {
        stream->servers[p].ids = calloc(blocks + 1, sizeof(uint32_t));
        if (!stream->servers[p].ids)
            return false;
    }
    return true;
}

enum status stream_open(struct stream **out,
                        const struct stream_settings *settings,
                        struct failure *why) {
    struct stream *stream = calloc(1, sizeof *stream);
    enum status status = STATUS_OK;
    *out = NULL;
    if (!stream)
        return status_fail(why, STATUS_RETRY, "no memory for a stream");
    stream->settings = *settings;
    stream->clock = settings->from - 1;
    if (!allocate(stream))
        status = status_fail(why, STATUS_RETRY, "no memory for a stream");
    for (uint32_t p = 0; !status && p < settings->plan->num_ps; p++)
        status = connect_server(stream, p, why);
    if (status)
        stream_close(&stream);
    *out = stream;
    return status;
}

void stream_close(struct stream **where) {
    struct stream *stream = *where;
    *where = NULL;
    if (!stream)
        return;
    for (uint32_t p = 0; stream->servers && p < stream->settings.plan->num_ps;
         p++) {
        link_close(&stream->servers[p].link);
        free(stream->servers[p].ids);
    }
    free(stream->servers);
    free(stream->links);
    free(stream->items);
    free(stream->clocks);
    buffer_release(&stream->out);
    free(stream->in);
    free(stream);
}

const char *stream_lane(const struct stream *stream) {
    uint32_t num_ps = stream->settings.plan->num_ps, lanes = 0;
    for (uint32_t p = 0; p < num_ps; p++)
        lanes += stream->servers[p].lane;
    return lanes == num_ps ? "shm" : lanes ? "mixed" : "tcp";
}

uint64_t stream_clock(const struct stream *stream) {
    return stream->clock;
}
