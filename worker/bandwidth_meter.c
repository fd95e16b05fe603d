/* SPDX-License-Identifier: Apache-2.0 */
/* Only the last three quarters of a burst are timed: by then the path is full
 * and TCP has left slow start. On one host there is no network to measure; the
 * probe ends without a rate. */
#include "worker/bandwidth_meter.h"

#include "core/base/time.h"
#include "proto/messages/ps_links.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_BYTES = 64 << 10, MIN_MESSAGES = 4, MAX_MESSAGES = 512 };
static const int64_t TIME_LIMIT = 600 * TIME_MS;
static const int64_t MIN_DURATION = 25 * TIME_MS;
static const int64_t POLL_INTERVAL =
    5 * TIME_MS; /* link events do not cover these */

struct bandwidth_meter {
    struct ps_links_peer ps;
    struct ps_links *links;
    uint64_t burst;
    int64_t until,
        started_at; /* started_at: arrival of the first timed message */
    uint32_t count, sent, received;
    double rate;
    bool done;
};

enum status bandwidth_meter_open(
    struct bandwidth_meter **out,
    const struct bandwidth_meter_settings *settings, int64_t now,
    struct failure *why) {
    struct bandwidth_meter *probe = calloc(1, sizeof *probe);
    if (!probe)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a bandwidth probe");
    struct ps_links_settings links = {
        .process = settings->process, .num_ps = 1, .ps = &probe->ps};
    snprintf(probe->ps.address, sizeof probe->ps.address, "%s",
             settings->address);
    probe->ps.index = settings->index;
    probe->until = now + TIME_LIMIT;
    probe->count = MIN_MESSAGES;
    enum status status = ps_links_open(&probe->links, &links, why);
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
    ps_links_close(&probe->links);
    free(probe);
}

zmq_pollitem_t bandwidth_meter_poll_item(struct bandwidth_meter *probe) {
    return (zmq_pollitem_t){link_socket(ps_links_all(probe->links)[0]), 0,
                            ZMQ_POLLIN, 0};
}

int64_t bandwidth_meter_deadline(const struct bandwidth_meter *probe) {
    if (probe->done)
        return TIME_NEVER;
    return probe->sent < probe->count ? time_now() + POLL_INTERVAL
                                      : probe->until;
}

static bool bandwidth_meter_send_one(struct bandwidth_meter *probe) {
    struct link_payload payload;
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = CAPSTAN__DATA_HEADER__KIND__PROBE;
    header.seq = probe->burst;
    if (!link_reserve(ps_links_all(probe->links)[0], 0, &payload,
                      MESSAGE_BYTES))
        return false;
    memset(link_reserved(&payload), 0, MESSAGE_BYTES);
    return ps_links_send(probe->links, 0, &header, &payload);
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
           header->seq == probe->burst && payload == MESSAGE_BYTES;
}

static void bandwidth_meter_receive(struct bandwidth_meter *probe) {
    struct link_frame frame;
    Capstan__DataHeader *header;
    while (!probe->done && ps_links_receive(probe->links, 0, &header, &frame)) {
        bool is_valid = is_reply(probe, header, frame.payload.size);
        probe->done = is_valid && link_is_local(&frame);
        if (is_valid && !probe->done)
            count_reply(probe, time_now());
        link_release(&frame);
    }
}

bool bandwidth_meter_step(struct bandwidth_meter *probe, int64_t now) {
    struct failure why;
    probe->done |= ps_links_connect(probe->links, 0, now, now, &why) != 0;
    bandwidth_meter_receive(probe);
    while (!probe->done && probe->sent < probe->count &&
           bandwidth_meter_send_one(probe))
        probe->sent++;
    probe->done |= now >= probe->until;
    return probe->done;
}

double bandwidth_meter_rate(const struct bandwidth_meter *probe) {
    return probe->rate;
}
