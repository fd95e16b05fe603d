/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers one parameter at a time; each of its blocks is wanted, requested or
 * received. A ps gets a few requests at once. After two seconds of its silence
 * all its requests are sent again, since they may be lost with a connection; a
 * duplicate reply is dropped. If a ps with missing blocks is silent for
 * timeouts.step, the transfer fails and names it. */
#include "chief/snapshot/weights_transfer.h"

#include "core/base/time.h"

#include <stdlib.h>
#include <string.h>

/* Requests to one ps at a time; bounds its queue of replies. */
enum { MAX_IN_FLIGHT = 16 };
static const int64_t RETRY_INTERVAL = 10 * TIME_MS; /* without a connection */
static const int64_t RESEND_AFTER = 2 * TIME_S;     /* of silence */

enum block_state { PENDING, REQUESTED, RECEIVED };

struct peer {
    int64_t last_reply;   /* or when waiting began */
    int64_t last_request; /* last request */
    uint32_t in_flight;
    bool blocked; /* a request could not be sent */
};

struct weights_transfer {
    struct weights_transfer_settings settings;
    int64_t limit;
    struct process process; /* of LINKS; without a log */
    struct ps_links *links;
    struct peer *peers;             /* [num_ps] */
    zmq_pollitem_t *items;          /* CANCEL, then the links */
    enum block_state *block_states; /* [blocks of the largest parameter] */
    uint64_t seq;

    /* The current parameter. */
    Capstan__DataHeader__Kind kind; /* PULL or ASSIGN */
    uint32_t first, count, missing; /* blocks */
    uint64_t snapshot;
    float *floats;
};

static enum status weights_transfer_open_links(
    struct weights_transfer *transfer, struct failure *why) {
    const struct weights_transfer_settings *s = &transfer->settings;
    transfer->process = (struct process){.zmq = s->zmq,
                                         .address = s->address,
                                         .run = s->run,
                                         .incarnation = s->incarnation};
    struct ps_links_settings links = {.process = &transfer->process,
                                      .num_ps = s->num_ps,
                                      .ps = s->ps,
                                      .inproc = s->inproc};
    return ps_links_open(&transfer->links, &links, why);
}

enum status weights_transfer_open(
    struct weights_transfer **out,
    const struct weights_transfer_settings *settings, struct failure *why) {
    const struct layout *layout = settings->layout;
    struct weights_transfer *transfer = calloc(1, sizeof *transfer);
    uint32_t most = 0;
    for (uint32_t p = 0; p < layout->num_parameters; p++)
        if (layout->num_blocks_of[p] > most)
            most = layout->num_blocks_of[p];
    if (transfer) {
        transfer->settings = *settings;
        transfer->limit = time_from_seconds(settings->step_timeout);
        transfer->peers = calloc(settings->num_ps, sizeof *transfer->peers);
        transfer->items = calloc(1 + (size_t)settings->num_ps * LINK_POLL_ITEMS,
                                 sizeof *transfer->items);
        transfer->block_states = calloc(most, sizeof *transfer->block_states);
    }
    enum status status;
    if (!transfer || !transfer->peers || !transfer->items ||
        !transfer->block_states)
        status = status_fail(why, FAILURE_NO_MEMORY,
                             "no memory for links to %u ps", settings->num_ps);
    else
        status = weights_transfer_open_links(transfer, why);
    if (status)
        weights_transfer_close(&transfer);
    *out = transfer;
    return status;
}

void weights_transfer_close(struct weights_transfer **where) {
    struct weights_transfer *transfer = *where;
    *where = NULL;
    if (!transfer)
        return;
    ps_links_close(&transfer->links);
    free(transfer->peers);
    free(transfer->items);
    free(transfer->block_states);
    free(transfer);
}

static size_t weights_transfer_block_bytes(
    const struct weights_transfer *transfer, uint32_t b) {
    return transfer->settings.layout->blocks[b].elements * sizeof(float);
}

static float *destination(const struct weights_transfer *transfer, uint32_t b) {
    return transfer->floats + transfer->settings.layout->blocks[b].offset;
}

static bool weights_transfer_fill(const struct weights_transfer *transfer,
                                  struct link *link, uint32_t b,
                                  struct link_payload *payload) {
    link_no_payload(payload);
    if (transfer->kind != CAPSTAN__DATA_HEADER__KIND__ASSIGN)
        return true;
    if (!link_reserve(link, 0, payload,
                      weights_transfer_block_bytes(transfer, b)))
        return false;
    memcpy(link_reserved(payload), destination(transfer, b), payload->bytes);
    return true;
}

static bool weights_transfer_send_request(struct weights_transfer *transfer,
                                          uint32_t b) {
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    struct link_payload payload;
    uint32_t p = transfer->settings.ps_of_block[b];
    header.kind = transfer->kind;
    header.seq = ++transfer->seq;
    header.snapshot = transfer->snapshot;
    header.n_blocks = 1;
    header.blocks = &b;
    return weights_transfer_fill(transfer, ps_links_all(transfer->links)[p], b,
                                 &payload) &&
           ps_links_send(transfer->links, p, &header, &payload);
}

/* Requests to a silent ps may have been lost with a connection. */
static void expire_requests(struct weights_transfer *transfer, uint32_t p,
                            int64_t now) {
    struct peer *peer = &transfer->peers[p];
    if (!peer->in_flight || now - peer->last_reply < RESEND_AFTER ||
        now - peer->last_request < RESEND_AFTER)
        return;
    for (uint32_t i = 0; i < transfer->count; i++)
        if (transfer->settings.ps_of_block[transfer->first + i] == p &&
            transfer->block_states[i] == REQUESTED)
            transfer->block_states[i] = PENDING;
    peer->in_flight = 0;
}

static void send_requests(struct weights_transfer *transfer, int64_t now) {
    for (uint32_t p = 0; p < transfer->settings.num_ps; p++) {
        expire_requests(transfer, p, now);
        transfer->peers[p].blocked = false;
    }
    for (uint32_t i = 0; i < transfer->count; i++) {
        uint32_t b = transfer->first + i;
        struct peer *peer = &transfer->peers[transfer->settings.ps_of_block[b]];
        if (transfer->block_states[i] != PENDING || peer->blocked ||
            peer->in_flight == MAX_IN_FLIGHT)
            continue;
        peer->blocked = !weights_transfer_send_request(transfer, b);
        if (peer->blocked)
            continue;
        transfer->block_states[i] = REQUESTED;
        peer->last_request = now;
        peer->in_flight++;
    }
}

/* Is it a block of this parameter and ps, with the right size if it carries
 * weights? */
static bool weights_transfer_is_valid(const struct weights_transfer *transfer,
                                      uint32_t p,
                                      const Capstan__DataHeader *header,
                                      size_t payload) {
    const struct weights_transfer_settings *s = &transfer->settings;
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__REFUSED)
        return true;
    if (header->n_blocks != 1 || header->blocks[0] < transfer->first ||
        header->blocks[0] - transfer->first >= transfer->count ||
        s->ps_of_block[header->blocks[0]] != p)
        return false;
    if (transfer->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN)
        return header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGNED;
    return header->kind == CAPSTAN__DATA_HEADER__KIND__WEIGHTS &&
           header->encoding == CAPSTAN__DATA_HEADER__ENCODING__FLOAT32 &&
           header->snapshot == transfer->snapshot &&
           payload == weights_transfer_block_bytes(transfer, header->blocks[0]);
}

static enum status weights_transfer_take(struct weights_transfer *transfer,
                                         uint32_t p,
                                         const Capstan__DataHeader *header,
                                         const void *payload,
                                         struct failure *why) {
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__REFUSED)
        return status_fail(why, FAILURE_PEER_REFUSED, "ps %u at %s refused: %s",
                           p, transfer->settings.ps[p].address, header->text);
    uint32_t b = header->blocks[0];
    enum block_state *block_state =
        &transfer->block_states[b - transfer->first];
    if (*block_state == RECEIVED) /* a duplicate */
        return STATUS_OK;
    if (transfer->kind == CAPSTAN__DATA_HEADER__KIND__PULL)
        memcpy(destination(transfer, b), payload,
               weights_transfer_block_bytes(transfer, b));
    if (*block_state == REQUESTED)
        transfer->peers[p].in_flight--;
    *block_state = RECEIVED;
    transfer->missing--;
    return STATUS_OK;
}

static enum status weights_transfer_receive(struct weights_transfer *transfer,
                                            uint32_t p, int64_t now,
                                            struct failure *why) {
    struct link_frame frame;
    Capstan__DataHeader *header;
    enum status status = STATUS_OK;
    while (!status && ps_links_receive(transfer->links, p, &header, &frame)) {
        if (weights_transfer_is_valid(transfer, p, header,
                                      frame.payload.size)) {
            transfer->peers[p].last_reply = now;
            status = weights_transfer_take(transfer, p, header,
                                           frame.payload.data, why);
        }
        link_release(&frame);
    }
    return status;
}

/* Fails if a ps with a missing block is silent for too long. */
static enum status weights_transfer_check_silence(
    const struct weights_transfer *transfer, int64_t now, struct failure *why) {
    for (uint32_t i = 0; i < transfer->count; i++) {
        uint32_t p = transfer->settings.ps_of_block[transfer->first + i];
        int64_t silent = now - transfer->peers[p].last_reply;
        if (transfer->block_states[i] != RECEIVED && silent > transfer->limit)
            return status_fail(
                why, FAILURE_PEER_SILENT,
                "ps %u at %s has not answered for %.0f s (timeouts.step): if "
                "it really takes that long, set it to %.0f",
                p, transfer->settings.ps[p].address, time_to_seconds(silent),
                2 * time_to_seconds(transfer->limit));
    }
    return STATUS_OK;
}

static enum status wait_for_replies(struct weights_transfer *transfer,
                                    int64_t now, struct failure *why) {
    uint32_t num_ps = transfer->settings.num_ps;
    int64_t wait =
        transfer->limit < RESEND_AFTER ? transfer->limit : RESEND_AFTER;
    int count = 1;
    transfer->items[0] =
        (zmq_pollitem_t){NULL, transfer->settings.cancel, ZMQ_POLLIN, 0};
    for (uint32_t p = 0; p < num_ps; p++) {
        if (transfer->peers[p].blocked)
            wait = RETRY_INTERVAL;
        count += link_poll_items(ps_links_all(transfer->links)[p],
                                 transfer->items + count);
    }
    zmq_poll(transfer->items, count, time_poll_ms(now, now + wait));
    if (transfer->items[0].revents)
        return status_fail(why, FAILURE_RUN_ENDED,
                           "the run ended during the transfer");
    return STATUS_OK;
}

static void weights_transfer_begin(struct weights_transfer *transfer,
                                   uint32_t parameter) {
    const struct layout *layout = transfer->settings.layout;
    int64_t now = time_now();
    transfer->first = layout->first_block[parameter];
    transfer->count = transfer->missing = layout->num_blocks_of[parameter];
    for (uint32_t i = 0; i < transfer->count; i++)
        transfer->block_states[i] = PENDING;
    for (uint32_t p = 0; p < transfer->settings.num_ps; p++) {
        transfer->peers[p].last_reply = now;
        transfer->peers[p].in_flight = 0;
    }
}

static enum status weights_transfer_complete(struct weights_transfer *transfer,
                                             struct failure *why) {
    enum status status = STATUS_OK;
    while (!status && transfer->missing) {
        int64_t now = time_now();
        for (uint32_t p = 0; !status && p < transfer->settings.num_ps; p++) {
            struct failure reason;
            status = ps_links_connect(transfer->links, p, now,
                                      transfer->peers[p].last_reply, &reason);
            /* The deadline covers a name that cannot be found. */
            if (status && reason.code != FAILURE_ADDRESS_UNRESOLVED) {
                *why = reason;
                return status;
            }
            status = weights_transfer_receive(transfer, p, now, why);
        }
        if (!status)
            status = weights_transfer_check_silence(transfer, now, why);
        if (status || !transfer->missing)
            break;
        send_requests(transfer, now);
        status = wait_for_replies(transfer, now, why);
    }
    return status;
}

enum status weights_transfer_read(struct weights_transfer *transfer,
                                  uint32_t parameter, uint64_t snapshot,
                                  float *floats, struct failure *why) {
    transfer->kind = CAPSTAN__DATA_HEADER__KIND__PULL;
    transfer->snapshot = snapshot;
    transfer->floats = floats;
    weights_transfer_begin(transfer, parameter);
    return weights_transfer_complete(transfer, why);
}

enum status weights_transfer_assign(struct weights_transfer *transfer,
                                    uint32_t parameter, const float *floats,
                                    struct failure *why) {
    transfer->kind = CAPSTAN__DATA_HEADER__KIND__ASSIGN;
    transfer->snapshot = 0;
    transfer->floats = (float *)floats; /* only read when assigning */
    weights_transfer_begin(transfer, parameter);
    return weights_transfer_complete(transfer, why);
}
