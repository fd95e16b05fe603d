/* SPDX-License-Identifier: Apache-2.0 */
/* One block a message, nothing kept: a snapshot that is shown is the weights as
 * they lie, as nobody trains while one is. A message of anyone else but the
 * chief, unless it is a probe, costs the connection. */
#include "worker/exchange/allreduce/lender.h"

#include "proto/base/time.h"
#include "proto/net/link/link.h"
#include "proto/net/messages/message.h"

#include <stdlib.h>
#include <string.h>

enum { RECEIVE_FRAMES = 64 };

struct lender {
    struct lender_settings settings;
    struct link *link;
    uint64_t shown; /* snapshot, 0: none */
    bool settled;
    struct message_arena arena;
    unsigned char header[MESSAGE_MAX_HEADER];
};

/* The chief connects when it reads or assigns. */
static const int64_t SPOKEN_WITHIN = 30 * TIME_S;

enum status lender_open(struct lender **out,
                        const struct lender_settings *settings,
                        struct failure *why) {
    struct link_settings link = {.max_frame = MESSAGE_MAX_PAYLOAD,
                                 .receive_frames = RECEIVE_FRAMES,
                                 .linger_ms = 0};
    struct lender *lender = calloc(1, sizeof *lender);
    *out = NULL;
    if (!lender)
        return status_fail(why, STATUS_RETRY, "no memory for a link");
    lender->settings = *settings;
    enum status status =
        link_open(&lender->link, settings->zmq, LINK_SERVER, &link, why);
    if (!status)
        status = link_bind(lender->link, 0, why);
    if (!status && settings->inside)
        status = link_bind_inside(lender->link, settings->inside, why);
    if (status)
        lender_close(&lender);
    else
        link_admit_within(lender->link, SPOKEN_WITHIN);
    *out = lender;
    return status;
}

void lender_close(struct lender **where) {
    struct lender *lender = *where;
    *where = NULL;
    if (!lender)
        return;
    link_close(&lender->link);
    free(lender);
}

uint16_t lender_port(const struct lender *lender) {
    return link_port(lender->link);
}

void lender_show(struct lender *lender, uint64_t snapshot) {
    lender->shown = snapshot;
}

void lender_settle(struct lender *lender) {
    lender->settled = true;
}

zmq_pollitem_t lender_poll_item(struct lender *lender) {
    zmq_pollitem_t items[LINK_POLL_ITEMS];
    link_poll_items(lender->link, items); /* no lane is offered: one item */
    return items[0];
}

static float *weights_of(const struct lender *lender, uint32_t b) {
    const struct block *block = &lender->settings.layout->blocks[b];
    return lender->settings.weights +
           lender->settings.offsets[block->parameter] + block->offset;
}

static size_t bytes_of(const struct lender *lender, uint32_t b) {
    return lender->settings.layout->blocks[b].elements * sizeof(float);
}

/* PAYLOAD is taken, NULL: none. What cannot leave is asked for again. */
static void answer(struct lender *lender, uint32_t peer,
                   const Capstan__DataHeader *question,
                   Capstan__DataHeader__Kind kind, const char *text,
                   struct link_payload *payload) {
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = kind;
    header.run = lender->settings.run;
    header.incarnation = lender->settings.incarnation;
    header.seq = question->seq;
    header.snapshot = question->snapshot;
    header.n_blocks = question->n_blocks;
    header.blocks = question->blocks;
    header.text = (char *)text;
    size_t bytes = message_write_data(&header, lender->header);
    link_commit(lender->link, peer, lender->header, bytes, payload);
}

static const char *read_block(struct lender *lender, uint32_t peer,
                              const Capstan__DataHeader *header) {
    struct link_payload payload;
    uint32_t b = header->blocks[0];
    if (!header->snapshot || header->snapshot != lender->shown)
        return "a snapshot that is not held";
    if (!link_reserve(lender->link, peer, &payload, bytes_of(lender, b)))
        return NULL; /* it is asked for again */
    memcpy(link_reserved(&payload), weights_of(lender, b), bytes_of(lender, b));
    answer(lender, peer, header, CAPSTAN__DATA_HEADER__KIND__WEIGHTS, "",
           &payload);
    return NULL;
}

static const char *set_block(struct lender *lender,
                             const struct link_frame *frame,
                             const Capstan__DataHeader *header) {
    uint32_t b = header->blocks[0];
    if (lender->settled)
        return "weights to begin with, after the beginning";
    if (frame->payload.size != bytes_of(lender, b))
        return "a payload of another size than its block";
    memcpy(weights_of(lender, b), frame->payload.data, bytes_of(lender, b));
    answer(lender, frame->peer, header, CAPSTAN__DATA_HEADER__KIND__ASSIGNED,
           "", NULL);
    return NULL;
}

/* What is wrong with it, NULL: nothing. */
static const char *take(struct lender *lender, const struct link_frame *frame,
                        const Capstan__DataHeader *header) {
    if (header->n_blocks != 1 ||
        header->blocks[0] >= lender->settings.layout->num_blocks)
        return "blocks that are not in the plan";
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__PULL)
        return read_block(lender, frame->peer, header);
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN)
        return set_block(lender, frame, header);
    return "a message that is the business of a ps";
}

static void send_back(struct lender *lender, const struct link_frame *frame,
                      const Capstan__DataHeader *header) {
    struct link_payload payload;
    size_t size = frame->payload.size;
    if (lender->settled || !size || size > MESSAGE_GROUP_BYTES ||
        !link_reserve(lender->link, frame->peer, &payload, size))
        return;
    memcpy(link_reserved(&payload), frame->payload.data, size);
    answer(lender, frame->peer, header, CAPSTAN__DATA_HEADER__KIND__PROBED, "",
           &payload);
}

static void take_frame(struct lender *lender, const struct link_frame *frame) {
    Capstan__DataHeader *header;
    struct failure why;
    bool sound = !message_read_data(&header, &lender->arena, frame->header.data,
                                    frame->header.size, &why);
    if (sound && header->run == lender->settings.run &&
        header->kind == CAPSTAN__DATA_HEADER__KIND__PROBE) {
        send_back(lender, frame, header);
        return;
    }
    if (!sound || header->run != lender->settings.run ||
        header->incarnation != lender->settings.chief) {
        if (link_may_say(lender->link, "a message that is not the chief's"))
            log_warning(lender->settings.log,
                        "a message that is not the chief's came to the port "
                        "where it reads weights; it is not answered");
        link_ban(lender->link, frame->peer);
        return;
    }
    link_admit(lender->link, frame->peer);
    const char *wrong = take(lender, frame, header);
    if (wrong)
        answer(lender, frame->peer, header, CAPSTAN__DATA_HEADER__KIND__REFUSED,
               wrong, NULL);
}

void lender_step(struct lender *lender) {
    struct link_frame frame;
    char text[128];
    while (link_view(lender->link, &frame)) {
        take_frame(lender, &frame);
        link_release(&frame);
    }
    while (link_stranger(lender->link, text, sizeof text))
        log_warning(lender->settings.log, "a stranger on port %u %s",
                    link_port(lender->link), text);
}
