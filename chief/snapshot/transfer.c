/* SPDX-License-Identifier: Apache-2.0 */
/* One parameter at a time: each of its blocks is wanted, asked for, or here. A
 * ps is asked for a few at once; after two seconds of its silence all that it
 * was asked for is wanted again, as a connection may have been lost with it:
 * asking twice does no harm, a block that is here is not taken again. A ps that
 * holds something still missing and is silent for timeouts.step ends it, by
 * name. */
#include "chief/snapshot/transfer.h"

#include "proto/base/time.h"
#include "proto/net/link/link.h"
#include "proto/net/link/resolve.h"
#include "proto/net/messages/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Blocks asked of one ps at a time: they bound what its answers may queue. */
enum { ASKED_AT_ONCE = 16 };
static const int64_t LOOK_UP_EVERY = 5 * TIME_S;
static const int64_t LOOK_AGAIN = 10 * TIME_MS; /* no connection, or no name */
static const int64_t ASK_AGAIN = 2 * TIME_S;    /* of silence */

enum stage { WANTED, ASKED, HERE };

struct line {
    struct link *link;
    struct resolve *resolve;
    char host[256];
    uint16_t port;
    int64_t looked_up;
    int64_t heard; /* or began to wait */
    int64_t asked; /* last request */
    uint32_t under_way;
    bool stuck; /* a request could not leave */
};

struct transfer {
    struct transfer_settings settings;
    int64_t limit;
    struct line *lines;    /* [num_ps] */
    zmq_pollitem_t *items; /* what ends me, then the links */
    enum stage *stages;    /* [blocks of the largest parameter] */
    uint64_t seq;

    /* The parameter under way. */
    Capstan__DataHeader__Kind kind; /* PULL or ASSIGN */
    uint32_t first, count, missing; /* blocks */
    uint64_t snapshot;
    float *floats;

    struct message_arena arena;
    unsigned char header[MESSAGE_MAX_HEADER];
};

static enum status open_lines(struct transfer *transfer, struct failure *why) {
    const struct transfer_settings *s = &transfer->settings;
    struct link_settings link = {.max_frame = MESSAGE_MAX_PAYLOAD,
                                 .receive_frames = 2 * ASKED_AT_ONCE,
                                 .linger_ms = 0};
    enum status status = STATUS_OK;
    for (uint32_t p = 0; !status && p < s->num_ps; p++) {
        struct line *line = &transfer->lines[p];
        status = link_open(&line->link, s->zmq, LINK_CLIENT, &link, why);
        if (!status && s->inside)
            status = link_connect_inside(line->link, s->inside, why);
        if (!status && !s->inside)
            resolve_split(s->ps[p].address, line->host, sizeof line->host,
                          &line->port);
    }
    return status;
}

enum status transfer_open(struct transfer **out,
                          const struct transfer_settings *settings,
                          struct failure *why) {
    const struct layout *layout = settings->layout;
    struct transfer *transfer = calloc(1, sizeof *transfer);
    uint32_t most = 0;
    for (uint32_t p = 0; p < layout->num_parameters; p++)
        if (layout->num_blocks_of[p] > most)
            most = layout->num_blocks_of[p];
    if (transfer) {
        transfer->settings = *settings;
        transfer->limit = time_from_seconds(settings->step_timeout);
        transfer->lines = calloc(settings->num_ps, sizeof *transfer->lines);
        transfer->items = calloc(1 + (size_t)settings->num_ps * LINK_POLL_ITEMS,
                                 sizeof *transfer->items);
        transfer->stages = calloc(most, sizeof *transfer->stages);
    }
    enum status status = STATUS_RETRY;
    if (!transfer || !transfer->lines || !transfer->items || !transfer->stages)
        status_fail(why, status, "no memory to talk to %u ps",
                    settings->num_ps);
    else
        status = open_lines(transfer, why);
    if (status)
        transfer_close(&transfer);
    *out = transfer;
    return status;
}

void transfer_close(struct transfer **where) {
    struct transfer *transfer = *where;
    *where = NULL;
    if (!transfer)
        return;
    for (uint32_t p = 0; transfer->lines && p < transfer->settings.num_ps;
         p++) {
        resolve_end(&transfer->lines[p].resolve);
        link_close(&transfer->lines[p].link);
    }
    free(transfer->lines);
    free(transfer->items);
    free(transfer->stages);
    free(transfer);
}

/* Names are looked up late, and again while a ps stays silent. */
static enum status look_up(struct transfer *transfer, uint32_t p, int64_t now,
                           struct failure *why) {
    struct line *line = &transfer->lines[p];
    char text[300];
    if (transfer->settings.inside)
        return STATUS_OK;
    bool never = !line->looked_up;
    if (!line->resolve && (never || (now - line->looked_up >= LOOK_UP_EVERY &&
                                     now - line->heard >= LOOK_UP_EVERY))) {
        line->looked_up = now;
        line->resolve = resolve_start(line->host, line->port);
    }
    if (!line->resolve)
        return STATUS_OK;
    enum resolve_state state = resolve_poll(line->resolve, text, sizeof text);
    if (state == RESOLVE_WAITING)
        return STATUS_OK;
    resolve_end(&line->resolve);
    return state == RESOLVE_FOUND ? link_connect(line->link, text, why)
                                  : STATUS_OK; /* the deadline is near enough */
}

static size_t block_bytes(const struct transfer *transfer, uint32_t b) {
    return transfer->settings.layout->blocks[b].elements * sizeof(float);
}

static float *place_of(const struct transfer *transfer, uint32_t b) {
    return transfer->floats + transfer->settings.layout->blocks[b].offset;
}

static bool fill(const struct transfer *transfer, struct link *link, uint32_t b,
                 struct link_payload *payload) {
    link_no_payload(payload);
    if (transfer->kind != CAPSTAN__DATA_HEADER__KIND__ASSIGN)
        return true;
    if (!link_reserve(link, 0, payload, block_bytes(transfer, b)))
        return false;
    memcpy(link_reserved(payload), place_of(transfer, b), payload->bytes);
    return true;
}

static bool ask(struct transfer *transfer, uint32_t b) {
    const struct transfer_settings *s = &transfer->settings;
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    struct link_payload payload;
    header.kind = transfer->kind;
    header.run = s->run;
    header.incarnation = s->incarnation;
    header.seq = ++transfer->seq;
    header.snapshot = transfer->snapshot;
    header.n_blocks = 1;
    header.blocks = &b;
    struct link *link = transfer->lines[s->ps_of_block[b]].link;
    if (!fill(transfer, link, b, &payload))
        return false;
    size_t bytes = message_write_data(&header, transfer->header);
    return link_commit(link, 0, transfer->header, bytes, &payload);
}

/* What a silent ps was asked may have been lost with a connection. */
static void give_up_waiting(struct transfer *transfer, uint32_t p,
                            int64_t now) {
    struct line *line = &transfer->lines[p];
    if (!line->under_way || now - line->heard < ASK_AGAIN ||
        now - line->asked < ASK_AGAIN)
        return;
    for (uint32_t i = 0; i < transfer->count; i++)
        if (transfer->settings.ps_of_block[transfer->first + i] == p &&
            transfer->stages[i] == ASKED)
            transfer->stages[i] = WANTED;
    line->under_way = 0;
}

static void ask_wanted(struct transfer *transfer, int64_t now) {
    for (uint32_t p = 0; p < transfer->settings.num_ps; p++) {
        give_up_waiting(transfer, p, now);
        transfer->lines[p].stuck = false;
    }
    for (uint32_t i = 0; i < transfer->count; i++) {
        uint32_t b = transfer->first + i;
        struct line *line = &transfer->lines[transfer->settings.ps_of_block[b]];
        if (transfer->stages[i] != WANTED || line->stuck ||
            line->under_way == ASKED_AT_ONCE)
            continue;
        line->stuck = !ask(transfer, b);
        if (line->stuck)
            continue;
        transfer->stages[i] = ASKED;
        line->asked = now;
        line->under_way++;
    }
}

/* A block of this parameter and ps, of its size when it has weights. */
static bool is_sound(const struct transfer *transfer, uint32_t p,
                     const Capstan__DataHeader *header, size_t payload) {
    const struct transfer_settings *s = &transfer->settings;
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__REFUSED)
        return true; /* in nobody's name */
    if (header->run != s->run || header->incarnation != s->ps[p].incarnation)
        return false;
    if (header->n_blocks != 1 || header->blocks[0] < transfer->first ||
        header->blocks[0] - transfer->first >= transfer->count ||
        s->ps_of_block[header->blocks[0]] != p)
        return false;
    if (transfer->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN)
        return header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGNED;
    return header->kind == CAPSTAN__DATA_HEADER__KIND__WEIGHTS &&
           header->encoding == CAPSTAN__DATA_HEADER__ENCODING__FLOAT32 &&
           header->snapshot == transfer->snapshot &&
           payload == block_bytes(transfer, header->blocks[0]);
}

static enum status take(struct transfer *transfer, uint32_t p,
                        const Capstan__DataHeader *header, const void *payload,
                        struct failure *why) {
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__REFUSED)
        return status_fail(why, STATUS_FAILED, "ps %u at %s refused: %s", p,
                           transfer->settings.ps[p].address, header->text);
    uint32_t b = header->blocks[0];
    enum stage *stage = &transfer->stages[b - transfer->first];
    if (*stage == HERE) /* asked twice */
        return STATUS_OK;
    if (transfer->kind == CAPSTAN__DATA_HEADER__KIND__PULL)
        memcpy(place_of(transfer, b), payload, block_bytes(transfer, b));
    if (*stage == ASKED)
        transfer->lines[p].under_way--;
    *stage = HERE;
    transfer->missing--;
    return STATUS_OK;
}

static enum status receive(struct transfer *transfer, uint32_t p, int64_t now,
                           struct failure *why) {
    struct line *line = &transfer->lines[p];
    struct link_frame frame;
    enum status status = STATUS_OK;
    while (!status && link_view(line->link, &frame)) {
        Capstan__DataHeader *header;
        if (!message_read_data(&header, &transfer->arena, frame.header.data,
                               frame.header.size, NULL) &&
            is_sound(transfer, p, header, frame.payload.size)) {
            line->heard = now;
            status = take(transfer, p, header, frame.payload.data, why);
        }
        link_release(&frame);
    }
    return status;
}

/* A ps that holds a block still missing, silent for too long. */
static enum status check_silence(const struct transfer *transfer, int64_t now,
                                 struct failure *why) {
    for (uint32_t i = 0; i < transfer->count; i++) {
        uint32_t p = transfer->settings.ps_of_block[transfer->first + i];
        int64_t silent = now - transfer->lines[p].heard;
        if (transfer->stages[i] != HERE && silent > transfer->limit)
            return status_fail(
                why, STATUS_RETRY,
                "ps %u at %s has not answered for %.0f s (timeouts.step): if "
                "it really takes that long, set it to %.0f",
                p, transfer->settings.ps[p].address, time_to_seconds(silent),
                2 * time_to_seconds(transfer->limit));
    }
    return STATUS_OK;
}

static enum status await(struct transfer *transfer, int64_t now,
                         struct failure *why) {
    uint32_t num_ps = transfer->settings.num_ps;
    int64_t wait = transfer->limit < ASK_AGAIN ? transfer->limit : ASK_AGAIN;
    int count = 1;
    transfer->items[0] =
        (zmq_pollitem_t){NULL, transfer->settings.cancel, ZMQ_POLLIN, 0};
    for (uint32_t p = 0; p < num_ps; p++) {
        const struct line *line = &transfer->lines[p];
        if (line->stuck || line->resolve)
            wait = LOOK_AGAIN;
        count += link_poll_items(line->link, transfer->items + count);
    }
    zmq_poll(transfer->items, count, time_poll_ms(now, now + wait));
    if (transfer->items[0].revents)
        return status_fail(why, STATUS_RETRY, "the run has ended meanwhile");
    return STATUS_OK;
}

static void begin(struct transfer *transfer, uint32_t parameter) {
    const struct layout *layout = transfer->settings.layout;
    int64_t now = time_now();
    transfer->first = layout->first_block[parameter];
    transfer->count = transfer->missing = layout->num_blocks_of[parameter];
    for (uint32_t i = 0; i < transfer->count; i++)
        transfer->stages[i] = WANTED;
    for (uint32_t p = 0; p < transfer->settings.num_ps; p++) {
        transfer->lines[p].heard = now;
        transfer->lines[p].under_way = 0;
    }
}

static enum status complete(struct transfer *transfer, struct failure *why) {
    enum status status = STATUS_OK;
    while (!status && transfer->missing) {
        int64_t now = time_now();
        for (uint32_t p = 0; !status && p < transfer->settings.num_ps; p++) {
            status = look_up(transfer, p, now, why);
            if (!status)
                status = receive(transfer, p, now, why);
        }
        if (!status)
            status = check_silence(transfer, now, why);
        if (status || !transfer->missing)
            break;
        ask_wanted(transfer, now);
        status = await(transfer, now, why);
    }
    return status;
}

enum status transfer_read(struct transfer *transfer, uint32_t parameter,
                          uint64_t snapshot, float *floats,
                          struct failure *why) {
    transfer->kind = CAPSTAN__DATA_HEADER__KIND__PULL;
    transfer->snapshot = snapshot;
    transfer->floats = floats;
    begin(transfer, parameter);
    return complete(transfer, why);
}

enum status transfer_assign(struct transfer *transfer, uint32_t parameter,
                            const float *floats, struct failure *why) {
    transfer->kind = CAPSTAN__DATA_HEADER__KIND__ASSIGN;
    transfer->snapshot = 0;
    transfer->floats = (float *)floats; /* only read when assigning */
    begin(transfer, parameter);
    return complete(transfer, why);
}
