#include "worker/stream.h"

#include "proto/base/time.h"
#include "proto/wire/buffer.h"
#include "proto/wire/link.h"
#include "proto/wire/message.h"
#include "proto/wire/resolve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RESOLVE_POLL_MS = 1 };
static const float GRADIENT = 1e-6f;
static const int64_t LOOK_UP_EVERY = TIME_S / 4;

struct server {
    struct link *link;
    bool lane;            /* over shared memory */
    uint32_t *ids, count; /* of the lap's vector, in the plan's order */
    uint32_t next;        /* of `ids` to be sent of this vector */
    size_t under_way;     /* bytes, and */
    uint32_t messages;    /* messages without an answer, the oldest: */
    uint32_t oldest, left[LAP_CREDIT_MESSAGES]; /* its blocks without one */
    int64_t heard;
};

struct stream {
    struct stream_settings settings;
    struct server *servers;
    struct link **links; /* theirs */
    zmq_pollitem_t *items;
    uint64_t *clocks; /* of each block */
    uint64_t seq, clock;
    struct buffer *out;
    char *in;
    struct message_arena arena;
    unsigned char header[MESSAGE_MAX_HEADER];

    /* The lap. */
    enum lap_kind kind;
    uint32_t first, count;
    uint64_t sent, answered; /* blocks */
    bool between;            /* a vector is whole on its way */
};

static size_t block_bytes(const struct stream *stream, uint32_t id) {
    return stream->settings.plan->layout->blocks[id].elements * sizeof(float);
}

static enum status silent(const struct stream *stream, uint32_t p,
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
    struct server *server = &stream->servers[p];
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
    struct server *server = &stream->servers[p];
    char text[300];
    enum status status = find(stream, p, text, sizeof text, why);
    if (!status)
        status = link_open(&server->link, stream->settings.zmq, LINK_CLIENT,
                           &settings, why);
    stream->links[p] = server->link;
    if (!status && stream->settings.lanes)
        link_prefer_lane(server->link, stream->settings.run,
                         stream->settings.plan->ps[p].incarnation);
    if (!status)
        status = link_connect(server->link, text, why);
    if (status)
        return status;
    if (stream->settings.lanes && meet(stream, p))
        return STATUS_OK;
    zmq_pollitem_t item = {link_socket(server->link), 0, ZMQ_POLLOUT, 0};
    int64_t limit = time_from_seconds(stream->settings.timeout);
    return zmq_poll(&item, 1, time_poll_ms(0, limit)) == 1
               ? STATUS_OK
               : silent(stream, p, why);
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

/* Where the bytes of block ID of the lap's vector lie in a ring. */
static size_t place(const struct stream *stream, uint32_t id, size_t bytes) {
    const struct layout *layout = stream->settings.plan->layout;
    const struct block *block = &layout->blocks[id];
    size_t offset = block->offset * sizeof(float) % LAP_RING_BYTES;
    return offset + bytes <= LAP_RING_BYTES ? offset : 0;
}

/* The next blocks of SERVER that go in one message. */
static uint32_t group(const struct stream *stream, const struct server *server,
                      size_t *bytes) {
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

static bool commit(struct stream *stream, struct server *server, uint32_t n,
                   size_t bytes) {
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
        struct server *server = &stream->servers[p];
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
static void settle(struct stream *stream, struct server *server,
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
static void count_answer(struct server *server, size_t blocks) {
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
    struct server *server = &stream->servers[p];
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
        const struct server *server = &stream->servers[p];
        if (!server->messages)
            continue;
        if (now - server->heard >= limit)
            return silent(stream, p, why);
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
        struct server *server = &stream->servers[plan->block_ps[b]];
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
