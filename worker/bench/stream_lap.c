/* SPDX-License-Identifier: Apache-2.0 */
/* A lap: vectors go out as fast as credit allows, and answers come in. Two
 * counts tell where it stands: blocks sent and blocks answered; a vector's time
 * is over when both are level. Credit is counted for each ps, in bytes and in
 * messages, so that none waits for another's answers. */
#include "proto/base/time.h"
#include "worker/bench/stream_parts.h"

#include <string.h>

static const int64_t LOOK_UP_EVERY = TIME_S / 4;

static size_t block_bytes(const struct stream *stream, uint32_t id) {
    return stream->settings.plan->layout->blocks[id].elements * sizeof(float);
}

/* Where the bytes of block ID of the lap's vector lie in a ring. */
static size_t place(const struct stream *stream, uint32_t id, size_t bytes) {
    const struct layout *layout = stream->settings.plan->layout;
    const struct block *block = &layout->blocks[id];
    size_t offset = block->offset * sizeof(float) % LAP_RING_BYTES;
    return offset + bytes <= LAP_RING_BYTES ? offset : 0;
}

/* The next blocks of SERVER that go in one message. */
static uint32_t group(const struct stream *stream,
                      const struct stream_server *server, size_t *bytes) {
    uint32_t n = 0;
    *bytes = 0;
    while (server->next + n < server->count && n < MESSAGE_MAX_BLOCKS) {
        size_t more = block_bytes(stream, server->ids[server->next + n]);
        if (n && *bytes + more > LAP_GROUP_BYTES)
            break;
        *bytes += more;
        n++;
    }
    return n;
}

static bool fill(struct stream *stream, struct link *link, uint32_t id,
                 size_t bytes, struct link_payload *payload) {
    size_t from = place(stream, id, bytes);
    if (stream->kind == LAP_PULL) {
        link_no_payload(payload);
        return true;
    }
    if (bytes > LAP_COPY_BYTES) {
        link_borrow(payload, stream->out, from, bytes);
        return true;
    }
    if (!link_reserve(link, 0, payload, bytes))
        return false;
    memcpy(link_reserved(payload), (char *)buffer_data(stream->out) + from,
           bytes);
    return true;
}

static bool commit(struct stream *stream, struct stream_server *server,
                   uint32_t n, size_t bytes) {
    uint32_t *ids = server->ids + server->next;
    struct link_payload payload;
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    bool pushes = stream->kind != LAP_PULL;
    header.kind = pushes ? CAPSTAN__DATA_HEADER__KIND__PUSH
                         : CAPSTAN__DATA_HEADER__KIND__PULL;
    header.run = stream->settings.run;
    header.incarnation = stream->settings.incarnation;
    header.rank = stream->settings.rank;
    header.seq = ++stream->seq;
    header.clock = stream->clocks[ids[0]] + pushes;
    header.receipt = stream->kind == LAP_PUSH;
    header.n_blocks = n;
    header.blocks = ids;
    if (!fill(stream, server->link, ids[0], bytes, &payload))
        return false;
    size_t size = message_write_data(&header, stream->header);
    if (!link_commit(server->link, 0, stream->header, size, &payload))
        return false;
    for (uint32_t i = 0; i < n; i++)
        stream->clocks[ids[i]] = header.clock;
    if (header.clock > stream->clock)
        stream->clock = header.clock;
    return true;
}

/* Sends one message to each ps that has room; returns how many left. */
static unsigned send_some(struct stream *stream, struct lap *lap, int64_t now) {
    unsigned left = 0;
    bool whole = true;
    for (uint32_t p = 0; p < stream->settings.plan->num_ps; p++) {
        struct stream_server *server = &stream->servers[p];
        size_t bytes;
        uint32_t n = group(stream, server, &bytes);
        bool room =
            server->messages < LAP_CREDIT_MESSAGES &&
            (!server->messages || server->under_way + bytes <= LAP_CREDIT);
        if (n && room && commit(stream, server, n, bytes)) {
            if (!server->messages)
                server->heard = now;
            server->next += n;
            server->under_way += bytes;
            server->left[(server->oldest + server->messages++) %
                         LAP_CREDIT_MESSAGES] = n;
            stream->sent += n;
            lap->messages++;
            left++;
        }
        whole &= server->next == server->count;
    }
    stream->between = whole;
    return left;
}

static enum status judge(const struct stream *stream, uint32_t p,
                         const Capstan__DataHeader *header, size_t payload,
                         struct failure *why) {
    const struct stream_settings *s = &stream->settings;
    bool push = stream->kind == LAP_PUSH;
    size_t bytes = 0;
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__REFUSED)
        return status_fail(why, STATUS_FAILED, "ps %u refuses: %s", p,
                           header->text);
    for (size_t i = 0; i < header->n_blocks; i++)
        if (header->blocks[i] < stream->first ||
            header->blocks[i] - stream->first >= stream->count)
            return status_fail(why, STATUS_FAILED,
                               "ps %u answers for block %u, which was not "
                               "asked for",
                               p, header->blocks[i]);
        else
            bytes += block_bytes(stream, header->blocks[i]);
    if (header->run == s->run &&
        header->incarnation == s->plan->ps[p].incarnation &&
        header->kind == (push ? CAPSTAN__DATA_HEADER__KIND__TAKEN
                              : CAPSTAN__DATA_HEADER__KIND__WEIGHTS) &&
        payload == (push ? 0 : bytes))
        return STATUS_OK;
    return status_fail(why, STATUS_FAILED,
                       "ps %u answers with kind %d and %zu bytes for %zu", p,
                       (int)header->kind, payload, bytes);
}

/* The answer's blocks are here: their weights go where a trainer's would. */
static void settle(struct stream *stream, struct stream_server *server,
                   const Capstan__DataHeader *header, const char *weights) {
    for (size_t i = 0; i < header->n_blocks; i++) {
        size_t bytes = block_bytes(stream, header->blocks[i]);
        if (stream->kind != LAP_PUSH) {
            memcpy(stream->in + place(stream, header->blocks[i], bytes),
                   weights, bytes);
            weights += bytes;
        }
        server->under_way -= bytes;
    }
    stream->answered += header->n_blocks;
}

/* A request is answered by one message or several, in order. */
static void count_answer(struct stream_server *server, size_t blocks) {
    while (blocks && server->messages) {
        uint32_t *left = &server->left[server->oldest];
        uint32_t here = blocks < *left ? (uint32_t)blocks : *left;
        *left -= here;
        blocks -= here;
        if (*left)
            return;
        server->oldest = (server->oldest + 1) % LAP_CREDIT_MESSAGES;
        server->messages--;
    }
}

static enum status receive(struct stream *stream, uint32_t p, int64_t now,
                           unsigned *came, struct failure *why) {
    struct stream_server *server = &stream->servers[p];
    struct link_frame frame;
    enum status status = STATUS_OK;
    while (!status && server->messages && link_view(server->link, &frame)) {
        Capstan__DataHeader *header;
        status = message_read_data(&header, &stream->arena, frame.header.data,
                                   frame.header.size, why);
        if (!status)
            status = judge(stream, p, header, frame.payload.size, why);
        if (!status) {
            settle(stream, server, header, frame.payload.data);
            count_answer(server, header->n_blocks);
            server->heard = now;
            ++*came;
        }
        link_release(&frame);
    }
    return status;
}

static enum status receive_all(struct stream *stream, int64_t now,
                               unsigned *came, struct failure *why) {
    enum status status = STATUS_OK;
    for (uint32_t p = 0; !status && p < stream->settings.plan->num_ps; p++)
        status = receive(stream, p, now, came, why);
    return status;
}

/* A while at most, to look whether it should stop. */
static enum status wait_for_answers(struct stream *stream,
                                    struct failure *why) {
    uint32_t num_ps = stream->settings.plan->num_ps;
    int64_t limit = time_from_seconds(stream->settings.timeout);
    if (link_linger(stream->links, num_ps))
        return STATUS_OK;
    int64_t now = time_now(), oldest = now;
    for (uint32_t p = 0; p < num_ps; p++) {
        const struct stream_server *server = &stream->servers[p];
        if (!server->messages)
            continue;
        if (now - server->heard >= limit)
            return stream_silent(stream, p, why);
        oldest = server->heard < oldest ? server->heard : oldest;
    }
    if (oldest + limit > now + LOOK_UP_EVERY)
        oldest = now + LOOK_UP_EVERY - limit;
    int count = 0;
    for (uint32_t p = 0; p < num_ps; p++)
        count +=
            link_poll_items(stream->servers[p].link, stream->items + count);
    zmq_poll(stream->items, count, time_poll_ms(now, oldest + limit));
    return STATUS_OK;
}

/* Shares the vector's blocks out to their ps. */
static void choose(struct stream *stream, uint32_t first, uint32_t count) {
    const struct plan *plan = stream->settings.plan;
    for (uint32_t p = 0; p < plan->num_ps; p++)
        stream->servers[p].count = stream->servers[p].next = 0;
    for (uint32_t b = first; b < first + count; b++) {
        struct stream_server *server = &stream->servers[plan->block_ps[b]];
        server->ids[server->count++] = b;
    }
    for (uint32_t p = 0; p < plan->num_ps; p++)
        stream->servers[p].next = stream->servers[p].count;
    stream->first = first;
    stream->count = count;
    stream->sent = stream->answered = 0;
    stream->between = true;
}

static void begin_vector(struct stream *stream) {
    for (uint32_t p = 0; p < stream->settings.plan->num_ps; p++)
        stream->servers[p].next = 0;
    stream->between = false;
}

/* What is under way then stays so: the stream is of no use any more. */
static bool is_stopped(const struct lap *lap) {
    return lap->stop && atomic_load(lap->stop);
}

enum status stream_lap(struct stream *stream, uint32_t first, uint32_t count,
                       struct lap *lap, struct failure *why) {
    uint64_t begun = 0, depth = lap->depth ? lap->depth : 1;
    unsigned ahead = 0;
    enum status status = STATUS_OK;
    choose(stream, first, count);
    stream->kind = lap->kind;
    lap->bytes = 0;
    for (uint32_t b = first; b < first + count; b++)
        lap->bytes += block_bytes(stream, b);
    lap->vectors = lap->messages = lap->samples = 0;
    int64_t start = time_now(), now = start, began = start;
    for (;;) {
        unsigned moved = 0;
        if (stream->between && begun - stream->answered / count < depth &&
            lap_goes_on(lap, begun, now - start)) {
            begin_vector(stream);
            begun++;
            began = now;
        }
        if (!stream->between)
            moved = send_some(stream, lap, now);
        if (moved && ++ahead % LAP_SENDS_A_LOOK)
            continue;
        status = receive_all(stream, now, &moved, why);
        if (status)
            break;
        if (!moved)
            status = wait_for_answers(stream, why);
        now = time_now();
        if (depth == 1 && stream->between && stream->answered == stream->sent &&
            moved)
            lap_note(lap, now - began);
        bool over = stream->between && stream->answered == stream->sent &&
                    !lap_goes_on(lap, begun, now - start);
        if (status || over || is_stopped(lap))
            break;
    }
    lap->vectors = stream->answered / count;
    lap->elapsed = now - start;
    return status;
}
