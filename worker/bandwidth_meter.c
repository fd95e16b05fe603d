/* SPDX-License-Identifier: Apache-2.0 */
/* Only the last three quarters of a burst are timed: by then the path is full
 * and TCP has left slow start. On one host there is no network to measure; the
 * probe ends without a rate. */
#include "worker/bandwidth_meter.h"

#include "proto/base/time.h"
#include "proto/net/link/link.h"
#include "proto/net/link/resolve.h"
#include "proto/net/messages/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_BYTES = 64 << 10, MIN_MESSAGES = 4, MAX_MESSAGES = 512 };
static const int64_t TIME_LIMIT = 600 * TIME_MS;
static const int64_t MIN_DURATION = 25 * TIME_MS;
static const int64_t POLL_INTERVAL =
    5 * TIME_MS; /* link events do not cover these */

struct bandwidth_meter {
    struct link *link;
    struct resolve *resolve;
    uint64_t run, incarnation, burst;
    int64_t until,
        started_at; /* started_at: arrival of the first timed message */
    uint32_t count, sent, received;
    double rate;
    bool done;
    struct message_arena arena;
    unsigned char header[MESSAGE_MAX_HEADER];
};

static struct resolve *start_resolve(const char *address) {
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

enum status bandwidth_meter_open(
    struct bandwidth_meter **out,
    const struct bandwidth_meter_settings *settings, int64_t now,
    struct failure *why) {
    struct bandwidth_meter *probe = calloc(1, sizeof *probe);
    if (!probe)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a bandwidth probe");
    struct link_settings link = {
        .max_frame = MESSAGE_MAX_PAYLOAD, .receive_frames = 0, .linger_ms = 0};
    probe->run = settings->run;
    probe->incarnation = settings->incarnation;
    probe->until = now + TIME_LIMIT;
    probe->count = MIN_MESSAGES;
    enum status status =
        link_open(&probe->link, settings->zmq, LINK_CLIENT, &link, why);
    if (!status)
        probe->resolve = start_resolve(settings->address);
    if (!status && !probe->resolve)
        status = status_fail(why, FAILURE_ADDRESS_UNRESOLVED,
                             "cannot look up %s", settings->address);
    if (status)
        bandwidth_meter_close(&probe);
    *out = probe;
    return status;
}

void bandwidth_meter_close(struct bandwidth_meter **where) {
    struct bandwidth_meter *probe = *where;
    *where = NULL;
    if (!probe)
        return;
    resolve_end(&probe->resolve);
    link_close(&probe->link);
    free(probe);
}

zmq_pollitem_t bandwidth_meter_poll_item(struct bandwidth_meter *probe) {
    return (zmq_pollitem_t){link_socket(probe->link), 0, ZMQ_POLLIN, 0};
}

int64_t bandwidth_meter_deadline(const struct bandwidth_meter *probe) {
    if (probe->done)
        return TIME_NEVER;
    return probe->resolve || probe->sent < probe->count
               ? time_now() + POLL_INTERVAL
               : probe->until;
}

static void connect_when_found(struct bandwidth_meter *probe) {
    char text[300];
    struct failure why;
    if (!probe->resolve)
        return;
    enum resolve_state state = resolve_poll(probe->resolve, text, sizeof text);
    if (state == RESOLVE_WAITING)
        return;
    probe->done =
        state == RESOLVE_FAILED || link_connect(probe->link, text, &why);
    resolve_end(&probe->resolve);
}

static bool bandwidth_meter_send_one(struct bandwidth_meter *probe) {
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

/* The first quarter of a burst fills the path; the rest is timed. */
static void count_reply(struct bandwidth_meter *probe, int64_t now) {
    uint32_t first = probe->count / 4;
    probe->received++;
    if (probe->received == first)
        probe->started_at = now;
    if (probe->received < probe->count)
        return;
    int64_t elapsed = now - probe->started_at;
    if (elapsed > 0)
        probe->rate = (double)(probe->count - first) * MESSAGE_BYTES /
                      time_to_seconds(elapsed);
    probe->done |= elapsed >= MIN_DURATION || probe->count >= MAX_MESSAGES;
    probe->count *= 2;
    probe->sent = probe->received = 0;
    probe->burst++;
}

static bool is_reply(const struct bandwidth_meter *probe,
                     const Capstan__DataHeader *header, size_t payload) {
    return header->kind == CAPSTAN__DATA_HEADER__KIND__PROBE_REPLY &&
           header->run == probe->run && header->seq == probe->burst &&
           payload == MESSAGE_BYTES;
}

static void bandwidth_meter_receive(struct bandwidth_meter *probe) {
    struct link_frame frame;
    while (!probe->done && link_view(probe->link, &frame)) {
        Capstan__DataHeader *header;
        struct failure error;
        bool is_valid =
            !message_read_data(&header, &probe->arena, frame.header.data,
                               frame.header.size, &error) &&
            is_reply(probe, header, frame.payload.size);
        probe->done = is_valid && link_is_local(&frame);
        if (is_valid && !probe->done)
            count_reply(probe, time_now());
        link_release(&frame);
    }
}

bool bandwidth_meter_step(struct bandwidth_meter *probe, int64_t now) {
    connect_when_found(probe);
    bandwidth_meter_receive(probe);
    while (!probe->done && !probe->resolve && probe->sent < probe->count &&
           bandwidth_meter_send_one(probe))
        probe->sent++;
    probe->done |= now >= probe->until;
    return probe->done;
}

double bandwidth_meter_rate(const struct bandwidth_meter *probe) {
    return probe->rate;
}
