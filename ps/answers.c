/* SPDX-License-Identifier: Apache-2.0 */
/* Each rank has an outbox: blocks that are answers to one request, or receipts
 * of several, wait there until something does not join them, until they fill a
 * message, or until they are flushed. A block that can go without a copy (alone
 * in its message, or shown to a reader on this host) is borrowed. Where all
 * ranks get the same weights, what was gathered and converted for one is kept
 * for the next who is due the same blocks of the same version. */
#include "ps/answers.h"

#include "proto/tensor/encoding.h"
#include "ps/dense/pool.h"

#include <stdlib.h>
#include <string.h>

enum { ALONE_BYTES = 16 << 10, SHOWN_PIECES = 16 };
enum { RECEIPT_BYTES = 64 << 10 }; /* of gradients that a receipt waits for */

/* What an answer belongs to. */
struct request {
    uint64_t seq, clock;
    uint64_t version; /* of its blocks; 0: they may differ */
    bool receipt;     /* without weights */
};

/* Blocks waiting to leave together for one rank. */
struct outbox {
    uint32_t peer;
    struct request request;
    uint32_t count;
    size_t bytes; /* of the blocks */
    bool alone;   /* nothing joins its block */
    uint32_t blocks[MESSAGE_MAX_BLOCKS];
    struct buffer *weights[MESSAGE_MAX_BLOCKS]; /* held; NULL: a receipt */
};

/* The weights that were gathered last. */
struct gathered {
    struct buffer *buffer; /* or NULL */
    uint64_t version;
    uint32_t count;
    uint32_t blocks[MESSAGE_MAX_BLOCKS];
};

struct answers {
    struct answers_settings settings;
    struct pool *pool;
    struct gathered last;
    struct outbox *outboxes; /* a rank each */
    uint64_t step, skipped;
    double loss_scale;
    unsigned char header[MESSAGE_MAX_HEADER];
};

static void empty(struct outbox *outbox) {
    for (uint32_t i = 0; i < outbox->count; i++)
        buffer_release(&outbox->weights[i]);
    outbox->count = 0;
    outbox->bytes = 0;
}

struct answers *answers_open(const struct answers_settings *settings) {
    struct answers *answers = calloc(1, sizeof *answers);
    if (!answers)
        return NULL;
    answers->settings = *settings;
    answers->outboxes =
        calloc(settings->num_ranks + 1, sizeof *answers->outboxes);
    answers->pool = pool_open();
    if (!answers->outboxes || !answers->pool)
        answers_close(&answers);
    else
        pool_show(answers->pool, SHOWN_PIECES * MESSAGE_GROUP_BYTES);
    return answers;
}

void answers_close(struct answers **where) {
    struct answers *answers = *where;
    *where = NULL;
    if (!answers)
        return;
    for (uint32_t r = 0; answers->outboxes && r < answers->settings.num_ranks;
         r++)
        empty(&answers->outboxes[r]);
    buffer_release(&answers->last.buffer);
    pool_close(&answers->pool);
    free(answers->outboxes);
    free(answers);
}

void answers_meet(struct answers *answers, uint32_t rank, uint32_t peer) {
    if (answers->outboxes[rank].peer != peer)
        link_admit(answers->settings.link, peer);
    answers->outboxes[rank].peer = peer;
}

void answers_step(struct answers *answers, uint64_t step) {
    answers->step = step;
}

void answers_scaler(struct answers *answers, double scale, uint64_t skipped) {
    answers->loss_scale = scale;
    answers->skipped = skipped;
}

void answers_send(struct answers *answers, uint32_t peer,
                  Capstan__DataHeader *header, struct link_payload *payload) {
    header->run = answers->settings.run;
    header->incarnation = answers->settings.incarnation;
    size_t bytes = message_write_data(header, answers->header);
    link_commit(answers->settings.link, peer, answers->header, bytes, payload);
}

void answers_refuse(struct answers *answers, uint32_t peer,
                    Capstan__DataHeader *header) {
    size_t bytes = message_write_data(header, answers->header);
    link_answer(answers->settings.link, peer, answers->header, bytes);
}

static size_t bytes_of(const struct answers *answers, uint32_t b) {
    return encoding_bytes(answers->settings.wire,
                          shard_block(answers->settings.shard, b)->elements);
}

/* Weights of OUTBOX's blocks as they travel, one after the other. */
static void write_weights(const struct answers *answers,
                          const struct outbox *outbox, char *to) {
    const struct shard *shard = answers->settings.shard;
    for (uint32_t i = 0; i < outbox->count; i++) {
        uint32_t b = outbox->blocks[i];
        encoding_write(answers->settings.loops, answers->settings.wire,
                       buffer_data(outbox->weights[i]),
                       shard_block(shard, b)->elements, to);
        to += bytes_of(answers, b);
    }
}

static bool is_last(const struct gathered *last, const struct outbox *outbox) {
    return last->buffer && last->count == outbox->count &&
           last->version == outbox->request.version &&
           !memcmp(last->blocks, outbox->blocks,
                   outbox->count * sizeof *outbox->blocks);
}

/* Memory to gather in, shown to readers on this host when there is some left:
 * pieces of one size, so that any can be used again. */
static struct buffer *take(struct answers *answers, size_t bytes) {
    struct buffer *shown =
        bytes >= ALONE_BYTES && bytes <= MESSAGE_GROUP_BYTES
            ? pool_take_shown(answers->pool, MESSAGE_GROUP_BYTES)
            : NULL;
    return shown ? shown : pool_take(answers->pool, bytes);
}

/* Gathers OUTBOX's weights where the next reader of the same blocks finds
 * them. */
static bool share(struct answers *answers, const struct outbox *outbox,
                  struct link_payload *payload) {
    struct gathered *last = &answers->last;
    if (!is_last(last, outbox)) {
        buffer_release(&last->buffer);
        last->buffer = take(answers, outbox->bytes);
        if (!last->buffer)
            return false;
        last->count = outbox->count;
        last->version = outbox->request.version;
        memcpy(last->blocks, outbox->blocks,
               outbox->count * sizeof *outbox->blocks);
        write_weights(answers, outbox, buffer_data(last->buffer));
    }
    link_borrow(payload, last->buffer, 0, outbox->bytes);
    return true;
}

/* Weights of OUTBOX's blocks as one payload: a lone block that travels as it
 * lies is borrowed, others are gathered. */
static bool gather(struct answers *answers, const struct outbox *outbox,
                   struct link_payload *payload) {
    const struct answers_settings *s = &answers->settings;
    if (outbox->request.receipt) {
        link_no_payload(payload);
        return true;
    }
    if (outbox->count == 1 && s->wire == JOB_FLOAT32) {
        link_borrow(payload, outbox->weights[0], 0, outbox->bytes);
        return true;
    }
    if (s->alike)
        return share(answers, outbox, payload);
    if (!link_reserve(s->link, outbox->peer, payload, outbox->bytes))
        return false;
    write_weights(answers, outbox, link_reserved(payload));
    return true;
}

static void flush(struct answers *answers, uint32_t rank) {
    struct outbox *outbox = &answers->outboxes[rank];
    struct link_payload payload;
    if (!outbox->count)
        return;
    if (gather(answers, outbox, &payload)) {
        for (uint32_t i = 0; i < outbox->count; i++)
            outbox->blocks[i] = answers->settings.ids[outbox->blocks[i]];
        Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
        header.kind = outbox->request.receipt
                          ? CAPSTAN__DATA_HEADER__KIND__TAKEN
                          : CAPSTAN__DATA_HEADER__KIND__WEIGHTS;
        header.rank = rank;
        header.seq = outbox->request.seq;
        header.clock = outbox->request.clock;
        header.n_blocks = outbox->count;
        header.blocks = outbox->blocks;
        header.step = answers->step;
        header.loss_scale = answers->loss_scale;
        header.skipped = answers->skipped;
        header.encoding = encoding_name(answers->settings.wire);
        answers_send(answers, outbox->peer, &header, &payload);
    }
    empty(outbox);
}

void answers_flush(struct answers *answers) {
    for (uint32_t r = 0; r < answers->settings.num_ranks; r++)
        flush(answers, r);
}

void answers_flush_most(struct answers *answers) {
    for (uint32_t r = 0; r < answers->settings.num_ranks; r++) {
        const struct outbox *outbox = &answers->outboxes[r];
        if (!outbox->request.receipt || outbox->bytes >= RECEIPT_BYTES)
            flush(answers, r);
    }
}

/* Does an answer to NEXT go with those to DUE? */
static bool joins(const struct request *due, const struct request *next) {
    if (due->receipt || next->receipt)
        return due->receipt && next->receipt;
    return due->seq == next->seq && due->clock == next->clock &&
           due->version == next->version;
}

/* WEIGHTS: taken; NULL for a receipt. */
static void put(struct answers *answers, const struct exchange_action *reply,
                struct buffer *weights) {
    const struct answers_settings *s = &answers->settings;
    struct outbox *outbox = &answers->outboxes[reply->rank];
    size_t bytes = bytes_of(answers, reply->block);
    struct request as = {reply->seq, reply->clock,
                         s->alike ? reply->version : 0, !weights};
    /* Gathering is a copy, and dearer than a message that needs none. */
    bool alone = weights && bytes >= ALONE_BYTES && s->wire == JOB_FLOAT32 &&
                 link_shows(s->link, outbox->peer, weights);
    if (outbox->count &&
        (!joins(&outbox->request, &as) || alone || outbox->alone ||
         outbox->bytes + bytes > MESSAGE_GROUP_BYTES ||
         outbox->count == MESSAGE_MAX_BLOCKS))
        flush(answers, reply->rank);
    outbox->request = as;
    outbox->alone = alone;
    outbox->weights[outbox->count] = weights;
    outbox->blocks[outbox->count++] = reply->block;
    outbox->bytes += bytes;
}

void answers_weights(struct answers *answers,
                     const struct exchange_action *reply,
                     struct buffer *weights) {
    put(answers, reply, weights);
}

void answers_taken(struct answers *answers,
                   const struct exchange_action *reply) {
    put(answers, reply, NULL);
}
