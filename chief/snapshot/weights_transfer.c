/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers one parameter at a time; each of its blocks is wanted, requested or
 * received. A ps gets a few requests at once. After two seconds of its silence
 * all its requests are sent again, since they may be lost with a connection; a
 * duplicate reply is dropped. If a ps with missing blocks is silent for
 * timeouts.step, the transfer fails and names it. */
#include "chief/snapshot/weights_transfer.h"

#include "proto/base/time.h"
#include "proto/net/link/link.h"
#include "proto/net/link/resolve.h"
#include "proto/net/messages/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Requests to one ps at a time; bounds its queue of replies. */
enum { MAX_IN_FLIGHT = 16 };
static const int64_t RESOLVE_INTERVAL = 5 * TIME_S;
static const int64_t RETRY_INTERVAL =
    10 * TIME_MS; /* while no connection or address is known */
static const int64_t RESEND_AFTER = 2 * TIME_S; /* of silence */

enum block_state { PENDING, REQUESTED, RECEIVED };

struct peer {
    struct link *link;
    struct resolve *resolve;
    char host[256];
    uint16_t port;
    int64_t last_resolve;
    int64_t last_reply;   /* or when waiting began */
    int64_t last_request; /* last request */
    uint32_t in_flight;
    bool blocked; /* a request could not be sent */
};

struct weights_transfer {
    struct weights_transfer_settings settings;
    int64_t limit;
    struct peer *peers;             /* [num_ps] */
    zmq_pollitem_t *items;          /* CANCEL, then the links */
    enum block_state *block_states; /* [blocks of the largest parameter] */
    uint64_t seq;

    /* The current parameter. */
    Capstan__DataHeader__Kind kind; /* PULL or ASSIGN */
    uint32_t first, count, missing; /* blocks */
    uint64_t snapshot;
    float *floats;

    struct message_arena arena;
    unsigned char header[MESSAGE_MAX_HEADER];
};

static enum status weights_transfer_open_peers(
    struct weights_transfer *weights_transfer, struct failure *why) {
    const struct weights_transfer_settings *s = &weights_transfer->settings;
    struct link_settings link = {.max_frame = MESSAGE_MAX_PAYLOAD,
                                 .receive_frames = 2 * MAX_IN_FLIGHT,
                                 .linger_ms = 0};
    enum status status = STATUS_OK;
    for (uint32_t p = 0; !status && p < s->num_ps; p++) {
        struct peer *peer = &weights_transfer->peers[p];
        status = link_open(&peer->link, s->zmq, LINK_CLIENT, &link, why);
        if (!status && s->inproc)
            status = link_connect_inproc(peer->link, s->inproc, why);
        if (!status && !s->inproc)
            resolve_split(s->ps[p].address, peer->host, sizeof peer->host,
                          &peer->port);
    }
    return status;
}

enum status weights_transfer_open(
    struct weights_transfer **out,
    const struct weights_transfer_settings *settings, struct failure *why) {
    const struct layout *layout = settings->layout;
    struct weights_transfer *weights_transfer =
        calloc(1, sizeof *weights_transfer);
    uint32_t most = 0;
    for (uint32_t p = 0; p < layout->num_parameters; p++)
        if (layout->num_blocks_of[p] > most)
            most = layout->num_blocks_of[p];
    if (weights_transfer) {
        weights_transfer->settings = *settings;
        weights_transfer->limit = time_from_seconds(settings->step_timeout);
        weights_transfer->peers =
            calloc(settings->num_ps, sizeof *weights_transfer->peers);
        weights_transfer->items =
            calloc(1 + (size_t)settings->num_ps * LINK_POLL_ITEMS,
                   sizeof *weights_transfer->items);
        weights_transfer->block_states =
            calloc(most, sizeof *weights_transfer->block_states);
    }
    enum status status;
    if (!weights_transfer || !weights_transfer->peers ||
        !weights_transfer->items || !weights_transfer->block_states)
        status = status_fail(why, FAILURE_NO_MEMORY,
                             "no memory for links to %u ps", settings->num_ps);
    else
        status = weights_transfer_open_peers(weights_transfer, why);
    if (status)
        weights_transfer_close(&weights_transfer);
    *out = weights_transfer;
    return status;
}

void weights_transfer_close(struct weights_transfer **where) {
    struct weights_transfer *weights_transfer = *where;
    *where = NULL;
    if (!weights_transfer)
        return;
    for (uint32_t p = 0;
         weights_transfer->peers && p < weights_transfer->settings.num_ps;
         p++) {
        resolve_end(&weights_transfer->peers[p].resolve);
        link_close(&weights_transfer->peers[p].link);
    }
    free(weights_transfer->peers);
    free(weights_transfer->items);
    free(weights_transfer->block_states);
    free(weights_transfer);
}

/* Resolves names late, and again while a ps stays silent. */
static enum status resolve_peer(struct weights_transfer *weights_transfer,
                                uint32_t p, int64_t now, struct failure *why) {
    struct peer *peer = &weights_transfer->peers[p];
    char text[300];
    if (weights_transfer->settings.inproc)
        return STATUS_OK;
    bool never = !peer->last_resolve;
    if (!peer->resolve &&
        (never || (now - peer->last_resolve >= RESOLVE_INTERVAL &&
                   now - peer->last_reply >= RESOLVE_INTERVAL))) {
        peer->last_resolve = now;
        peer->resolve = resolve_start(peer->host, peer->port);
    }
    if (!peer->resolve)
        return STATUS_OK;
    enum resolve_state state = resolve_poll(peer->resolve, text, sizeof text);
    if (state == RESOLVE_WAITING)
        return STATUS_OK;
    resolve_end(&peer->resolve);
    return state == RESOLVE_FOUND ? link_connect(peer->link, text, why)
                                  : STATUS_OK; /* the step deadline covers a
                                                  name that does not resolve */
}

static size_t weights_transfer_block_bytes(
    const struct weights_transfer *weights_transfer, uint32_t b) {
    return weights_transfer->settings.layout->blocks[b].elements *
           sizeof(float);
}

static float *destination(const struct weights_transfer *weights_transfer,
                          uint32_t b) {
    return weights_transfer->floats +
           weights_transfer->settings.layout->blocks[b].offset;
}

static bool weights_transfer_fill(
    const struct weights_transfer *weights_transfer, struct link *link,
    uint32_t b, struct link_payload *payload) {
    link_no_payload(payload);
    if (weights_transfer->kind != CAPSTAN__DATA_HEADER__KIND__ASSIGN)
        return true;
    if (!link_reserve(link, 0, payload,
                      weights_transfer_block_bytes(weights_transfer, b)))
        return false;
    memcpy(link_reserved(payload), destination(weights_transfer, b),
           payload->bytes);
    return true;
}

static bool weights_transfer_send_request(
    struct weights_transfer *weights_transfer, uint32_t b) {
    const struct weights_transfer_settings *s = &weights_transfer->settings;
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    struct link_payload payload;
    header.kind = weights_transfer->kind;
    header.run = s->run;
    header.incarnation = s->incarnation;
    header.seq = ++weights_transfer->seq;
    header.snapshot = weights_transfer->snapshot;
    header.n_blocks = 1;
    header.blocks = &b;
    struct link *link = weights_transfer->peers[s->ps_of_block[b]].link;
    if (!weights_transfer_fill(weights_transfer, link, b, &payload))
        return false;
    size_t bytes = message_write_data(&header, weights_transfer->header);
    return link_commit(link, 0, weights_transfer->header, bytes, &payload);
}

/* Requests to a silent ps may have been lost with a connection. */
static void expire_requests(struct weights_transfer *weights_transfer,
                            uint32_t p, int64_t now) {
    struct peer *peer = &weights_transfer->peers[p];
    if (!peer->in_flight || now - peer->last_reply < RESEND_AFTER ||
        now - peer->last_request < RESEND_AFTER)
        return;
    for (uint32_t i = 0; i < weights_transfer->count; i++)
        if (weights_transfer->settings
                    .ps_of_block[weights_transfer->first + i] == p &&
            weights_transfer->block_states[i] == REQUESTED)
            weights_transfer->block_states[i] = PENDING;
    peer->in_flight = 0;
}

static void send_requests(struct weights_transfer *weights_transfer,
                          int64_t now) {
    for (uint32_t p = 0; p < weights_transfer->settings.num_ps; p++) {
        expire_requests(weights_transfer, p, now);
        weights_transfer->peers[p].blocked = false;
    }
    for (uint32_t i = 0; i < weights_transfer->count; i++) {
        uint32_t b = weights_transfer->first + i;
        struct peer *peer =
            &weights_transfer->peers[weights_transfer->settings.ps_of_block[b]];
        if (weights_transfer->block_states[i] != PENDING || peer->blocked ||
            peer->in_flight == MAX_IN_FLIGHT)
            continue;
        peer->blocked = !weights_transfer_send_request(weights_transfer, b);
        if (peer->blocked)
            continue;
        weights_transfer->block_states[i] = REQUESTED;
        peer->last_request = now;
        peer->in_flight++;
    }
}

/* Is it a block of this parameter and ps, with the right size if it carries
 * weights? */
static bool weights_transfer_is_valid(
    const struct weights_transfer *weights_transfer, uint32_t p,
    const Capstan__DataHeader *header, size_t payload) {
    const struct weights_transfer_settings *s = &weights_transfer->settings;
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__REFUSED)
        return true; /* a refusal carries no incarnation */
    if (header->run != s->run || header->incarnation != s->ps[p].incarnation)
        return false;
    if (header->n_blocks != 1 || header->blocks[0] < weights_transfer->first ||
        header->blocks[0] - weights_transfer->first >=
            weights_transfer->count ||
        s->ps_of_block[header->blocks[0]] != p)
        return false;
    if (weights_transfer->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN)
        return header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGNED;
    return header->kind == CAPSTAN__DATA_HEADER__KIND__WEIGHTS &&
           header->encoding == CAPSTAN__DATA_HEADER__ENCODING__FLOAT32 &&
           header->snapshot == weights_transfer->snapshot &&
           payload == weights_transfer_block_bytes(weights_transfer,
                                                   header->blocks[0]);
}

static enum status weights_transfer_take(
    struct weights_transfer *weights_transfer, uint32_t p,
    const Capstan__DataHeader *header, const void *payload,
    struct failure *why) {
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__REFUSED)
        return status_fail(why, FAILURE_PEER_REFUSED, "ps %u at %s refused: %s",
                           p, weights_transfer->settings.ps[p].address,
                           header->text);
    uint32_t b = header->blocks[0];
    enum block_state *block_state =
        &weights_transfer->block_states[b - weights_transfer->first];
    if (*block_state == RECEIVED) /* a duplicate */
        return STATUS_OK;
    if (weights_transfer->kind == CAPSTAN__DATA_HEADER__KIND__PULL)
        memcpy(destination(weights_transfer, b), payload,
               weights_transfer_block_bytes(weights_transfer, b));
    if (*block_state == REQUESTED)
        weights_transfer->peers[p].in_flight--;
    *block_state = RECEIVED;
    weights_transfer->missing--;
    return STATUS_OK;
}

static enum status weights_transfer_receive(
    struct weights_transfer *weights_transfer, uint32_t p, int64_t now,
    struct failure *why) {
    struct peer *peer = &weights_transfer->peers[p];
    struct link_frame frame;
    enum status status = STATUS_OK;
    while (!status && link_view(peer->link, &frame)) {
        Capstan__DataHeader *header;
        if (!message_read_data(&header, &weights_transfer->arena,
                               frame.header.data, frame.header.size, NULL) &&
            weights_transfer_is_valid(weights_transfer, p, header,
                                      frame.payload.size)) {
            peer->last_reply = now;
            status = weights_transfer_take(weights_transfer, p, header,
                                           frame.payload.data, why);
        }
        link_release(&frame);
    }
    return status;
}

/* Fails if a ps with a missing block is silent for too long. */
static enum status weights_transfer_check_silence(
    const struct weights_transfer *weights_transfer, int64_t now,
    struct failure *why) {
    for (uint32_t i = 0; i < weights_transfer->count; i++) {
        uint32_t p =
            weights_transfer->settings.ps_of_block[weights_transfer->first + i];
        int64_t silent = now - weights_transfer->peers[p].last_reply;
        if (weights_transfer->block_states[i] != RECEIVED &&
            silent > weights_transfer->limit)
            return status_fail(
                why, FAILURE_PEER_SILENT,
                "ps %u at %s has not answered for %.0f s (timeouts.step): if "
                "it really takes that long, set it to %.0f",
                p, weights_transfer->settings.ps[p].address,
                time_to_seconds(silent),
                2 * time_to_seconds(weights_transfer->limit));
    }
    return STATUS_OK;
}

static enum status wait_for_replies(struct weights_transfer *weights_transfer,
                                    int64_t now, struct failure *why) {
    uint32_t num_ps = weights_transfer->settings.num_ps;
    int64_t wait = weights_transfer->limit < RESEND_AFTER
                       ? weights_transfer->limit
                       : RESEND_AFTER;
    int count = 1;
    weights_transfer->items[0] = (zmq_pollitem_t){
        NULL, weights_transfer->settings.cancel, ZMQ_POLLIN, 0};
    for (uint32_t p = 0; p < num_ps; p++) {
        const struct peer *peer = &weights_transfer->peers[p];
        if (peer->blocked || peer->resolve)
            wait = RETRY_INTERVAL;
        count += link_poll_items(peer->link, weights_transfer->items + count);
    }
    zmq_poll(weights_transfer->items, count, time_poll_ms(now, now + wait));
    if (weights_transfer->items[0].revents)
        return status_fail(why, FAILURE_RUN_ENDED,
                           "the run ended during the transfer");
    return STATUS_OK;
}

static void weights_transfer_begin(struct weights_transfer *weights_transfer,
                                   uint32_t parameter) {
    const struct layout *layout = weights_transfer->settings.layout;
    int64_t now = time_now();
    weights_transfer->first = layout->first_block[parameter];
    weights_transfer->count = weights_transfer->missing =
        layout->num_blocks_of[parameter];
    for (uint32_t i = 0; i < weights_transfer->count; i++)
        weights_transfer->block_states[i] = PENDING;
    for (uint32_t p = 0; p < weights_transfer->settings.num_ps; p++) {
        weights_transfer->peers[p].last_reply = now;
        weights_transfer->peers[p].in_flight = 0;
    }
}

static enum status weights_transfer_complete(
    struct weights_transfer *weights_transfer, struct failure *why) {
    enum status status = STATUS_OK;
    while (!status && weights_transfer->missing) {
        int64_t now = time_now();
        for (uint32_t p = 0; !status && p < weights_transfer->settings.num_ps;
             p++) {
            status = resolve_peer(weights_transfer, p, now, why);
            if (!status)
                status =
                    weights_transfer_receive(weights_transfer, p, now, why);
        }
        if (!status)
            status = weights_transfer_check_silence(weights_transfer, now, why);
        if (status || !weights_transfer->missing)
            break;
        send_requests(weights_transfer, now);
        status = wait_for_replies(weights_transfer, now, why);
    }
    return status;
}

enum status weights_transfer_read(struct weights_transfer *weights_transfer,
                                  uint32_t parameter, uint64_t snapshot,
                                  float *floats, struct failure *why) {
    weights_transfer->kind = CAPSTAN__DATA_HEADER__KIND__PULL;
    weights_transfer->snapshot = snapshot;
    weights_transfer->floats = floats;
    weights_transfer_begin(weights_transfer, parameter);
    return weights_transfer_complete(weights_transfer, why);
}

enum status weights_transfer_assign(struct weights_transfer *weights_transfer,
                                    uint32_t parameter, const float *floats,
                                    struct failure *why) {
    weights_transfer->kind = CAPSTAN__DATA_HEADER__KIND__ASSIGN;
    weights_transfer->snapshot = 0;
    weights_transfer->floats = (float *)floats; /* only read when assigning */
    weights_transfer_begin(weights_transfer, parameter);
    return weights_transfer_complete(weights_transfer, why);
}
