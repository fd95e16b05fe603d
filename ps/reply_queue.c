/* SPDX-License-Identifier: Apache-2.0 */
/* Each rank has an outbox. Blocks that answer one request, or acks of several
 * requests, wait there until a reply does not fit in the same message, until
 * the message is full, or until a flush. A block that needs no copy is
 * borrowed: alone in its message as float32, or in memory that a reader on this
 * host maps. Where all ranks get the same weights, the last gathered and
 * encoded message is cached for the next rank that is due the same blocks at
 * the same version. */
#include "ps/reply_queue.h"

#include "core/base/trace.h"
#include "core/net/shm/buffer.h"
#include "proto/plan/encoding.h"

#include <stdlib.h>
#include <string.h>

enum { UNBATCHED_BYTES = 16 << 10, SHARED_PIECES = 16 };
enum { ACK_BATCH_BYTES = 64 << 10 }; /* of gradients, before acks leave */

/* The request that a reply answers. */
struct request {
    uint64_t seq, clock;
    uint64_t version; /* of its blocks; 0: they may differ */
    bool ack_only;    /* an ack, without weights */
    bool mean;        /* gradients */
    bool late;        /* with backup workers */
};

/* Blocks waiting to leave in one message for one rank. */
struct outbox {
    uint32_t peer;
    struct request request;
    uint32_t count;
    size_t bytes;   /* of the blocks */
    bool unbatched; /* its block leaves alone */
    uint32_t blocks[MESSAGE_MAX_BLOCKS];
    struct buffer *weights[MESSAGE_MAX_BLOCKS]; /* held; NULL: an ack */
};

/* The last weights gathered, for the next rank. */
struct gathered_weights {
    struct buffer *buffer; /* or NULL */
    uint64_t version;
    bool mean;
    uint32_t count;
    uint32_t blocks[MESSAGE_MAX_BLOCKS];
};

struct reply_queue {
    struct reply_queue_settings settings;
    struct buffer_pool *buffer_pool;
    struct gathered_weights cached;
    struct outbox *outboxes; /* one a rank */
    uint64_t brought, step, skipped, due, epoch, epoch_first;
    uint32_t lead;
    double loss_scale;
    unsigned char header[MESSAGE_MAX_HEADER];
};

static void reply_queue_empty(struct outbox *outbox) {
    for (uint32_t i = 0; i < outbox->count; i++)
        buffer_release(&outbox->weights[i]);
    outbox->count = 0;
    outbox->bytes = 0;
}

struct reply_queue *reply_queue_open(
    const struct reply_queue_settings *settings) {
    struct reply_queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        return NULL;
    queue->settings = *settings;
    queue->outboxes = calloc(settings->num_ranks + 1, sizeof *queue->outboxes);
    queue->buffer_pool = buffer_pool_open();
    if (!queue->outboxes || !queue->buffer_pool)
        reply_queue_close(&queue);
    else
        buffer_pool_add_shared(queue->buffer_pool,
                               SHARED_PIECES * MESSAGE_GROUP_BYTES);
    return queue;
}

void reply_queue_close(struct reply_queue **where) {
    struct reply_queue *queue = *where;
    *where = NULL;
    if (!queue)
        return;
    for (uint32_t r = 0; queue->outboxes && r < queue->settings.num_ranks; r++)
        reply_queue_empty(&queue->outboxes[r]);
    buffer_release(&queue->cached.buffer);
    buffer_pool_close(&queue->buffer_pool);
    free(queue->outboxes);
    free(queue);
}

void reply_queue_set_peer(struct reply_queue *queue, uint32_t rank,
                          uint32_t peer) {
    if (queue->outboxes[rank].peer != peer)
        link_admit(queue->settings.link, peer);
    queue->outboxes[rank].peer = peer;
}

void reply_queue_set_step(struct reply_queue *queue, uint64_t step) {
    queue->step = step;
}

void reply_queue_set_brought(struct reply_queue *queue, uint64_t version) {
    queue->brought = version;
}

void reply_queue_set_due(struct reply_queue *queue, uint64_t round,
                         uint32_t lead) {
    queue->due = round;
    queue->lead = lead;
}

void reply_queue_set_epoch(struct reply_queue *queue, uint64_t epoch,
                           uint64_t first) {
    queue->epoch = epoch;
    queue->epoch_first = first;
}

void reply_queue_set_scaler(struct reply_queue *queue, double scale,
                            uint64_t skipped) {
    queue->loss_scale = scale;
    queue->skipped = skipped;
}

void reply_queue_send(struct reply_queue *queue, uint32_t peer,
                      Capstan__DataHeader *header,
                      struct link_payload *payload) {
    header->run = queue->settings.process->run;
    header->incarnation = queue->settings.process->incarnation;
    size_t bytes = message_write_data(header, queue->header);
    link_commit(queue->settings.link, peer, queue->header, bytes, payload);
}

void reply_queue_send_to(struct reply_queue *queue, uint32_t rank,
                         Capstan__DataHeader *header) {
    reply_queue_send(queue, queue->outboxes[rank].peer, header, NULL);
}

void reply_queue_refuse(struct reply_queue *queue, uint32_t peer,
                        Capstan__DataHeader *header) {
    size_t bytes = message_write_data(header, queue->header);
    link_reply(queue->settings.link, peer, queue->header, bytes);
}

static enum job_wire reply_queue_wire(const struct reply_queue *queue,
                                      uint32_t b) {
    return shard_wire(queue->settings.shard, b, queue->settings.wire);
}

/* Of a partition nothing is sent but acks. */
static size_t reply_queue_block_bytes(const struct reply_queue *queue,
                                      uint32_t b) {
    if (b >= shard_blocks(queue->settings.shard))
        return 0;
    return encoding_bytes(reply_queue_wire(queue, b),
                          shard_block(queue->settings.shard, b)->elements);
}

/* Encodes the weights of OUTBOX's blocks one after the other into TO. */
static void write_weights(const struct reply_queue *queue,
                          const struct outbox *outbox, char *to) {
    const struct shard *shard = queue->settings.shard;
    for (uint32_t i = 0; i < outbox->count; i++) {
        uint32_t b = outbox->blocks[i];
        encoding_write(queue->settings.process->loops,
                       reply_queue_wire(queue, b),
                       buffer_data(outbox->weights[i]),
                       shard_block(shard, b)->elements, to);
        to += reply_queue_block_bytes(queue, b);
    }
}

static bool is_cached(const struct gathered_weights *cached,
                      const struct outbox *outbox) {
    return cached->buffer && cached->count == outbox->count &&
           cached->version == outbox->request.version &&
           cached->mean == outbox->request.mean &&
           !memcmp(cached->blocks, outbox->blocks,
                   outbox->count * sizeof *outbox->blocks);
}

/* A buffer to gather in. In memory that readers on this host map while some is
 * free; its pieces have one size, so that any can be reused. */
struct buffer *reply_queue_take_buffer(struct reply_queue *queue,
                                       size_t bytes) {
    struct buffer *shared =
        bytes >= UNBATCHED_BYTES && bytes <= MESSAGE_GROUP_BYTES
            ? buffer_pool_take_shared(queue->buffer_pool, MESSAGE_GROUP_BYTES)
            : NULL;
    return shared ? shared : buffer_pool_take(queue->buffer_pool, bytes);
}

/* Gathers OUTBOX's weights into the cached buffer. */
static bool gather_cached(struct reply_queue *queue,
                          const struct outbox *outbox,
                          struct link_payload *payload) {
    struct gathered_weights *cached = &queue->cached;
    if (!is_cached(cached, outbox)) {
        buffer_release(&cached->buffer);
        cached->buffer = reply_queue_take_buffer(queue, outbox->bytes);
        if (!cached->buffer)
            return false;
        cached->count = outbox->count;
        cached->version = outbox->request.version;
        cached->mean = outbox->request.mean;
        memcpy(cached->blocks, outbox->blocks,
               outbox->count * sizeof *outbox->blocks);
        write_weights(queue, outbox, buffer_data(cached->buffer));
    }
    link_borrow(payload, cached->buffer, 0, outbox->bytes);
    return true;
}

/* OUTBOX's weights as one payload. A single float32 block is borrowed, others
 * are gathered. */
static bool reply_queue_gather(struct reply_queue *queue,
                               const struct outbox *outbox,
                               struct link_payload *payload) {
    const struct reply_queue_settings *s = &queue->settings;
    if (outbox->request.ack_only) {
        link_no_payload(payload);
        return true;
    }
    if (outbox->count == 1 &&
        reply_queue_wire(queue, outbox->blocks[0]) == JOB_WIRE_FLOAT32) {
        link_borrow(payload, outbox->weights[0], 0, outbox->bytes);
        return true;
    }
    if (s->same_weights)
        return gather_cached(queue, outbox, payload);
    if (!link_reserve(s->link, outbox->peer, payload, outbox->bytes))
        return false;
    write_weights(queue, outbox, link_reserved(payload));
    return true;
}

/* After OUTBOX has the plan's numbers. */
static void trace_reply(const struct reply_queue *queue,
                        const struct outbox *outbox, uint32_t rank,
                        int64_t start) {
    struct trace_record record = {.start = start,
                                  .duration = time_now() - start,
                                  .step = outbox->request.clock,
                                  .rank = (uint16_t)rank,
                                  .kind = TRACE_REPLY};
    for (uint32_t i = 0; i < outbox->count; i++) {
        record.block = outbox->blocks[i];
        trace_add(queue->settings.process->trace, &record);
    }
}

void reply_queue_flush_rank(struct reply_queue *queue, uint32_t rank) {
    struct outbox *outbox = &queue->outboxes[rank];
    struct link_payload payload;
    if (!outbox->count)
        return;
    int64_t start =
        trace_begin(queue->settings.process->trace, outbox->request.clock);
    if (reply_queue_gather(queue, outbox, &payload)) {
        for (uint32_t i = 0; i < outbox->count; i++)
            outbox->blocks[i] = queue->settings.ids[outbox->blocks[i]];
        Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
        header.kind = outbox->request.ack_only
                          ? CAPSTAN__DATA_HEADER__KIND__ACK
                          : CAPSTAN__DATA_HEADER__KIND__WEIGHTS;
        header.rank = rank;
        header.seq = outbox->request.seq;
        header.clock = outbox->request.clock;
        header.n_blocks = outbox->count;
        header.blocks = outbox->blocks;
        header.step = queue->step;
        if (queue->settings.tells_rounds)
            header.round = outbox->request.version;
        header.late = outbox->request.late;
        header.brought = queue->brought;
        header.loss_scale = queue->loss_scale;
        header.skipped = queue->skipped;
        header.due = queue->due;
        header.lead = queue->lead;
        header.epoch = queue->epoch;
        header.epoch_first = queue->epoch_first;
        header.encoding = encoding_name(queue->settings.wire);
        reply_queue_send(queue, outbox->peer, &header, &payload);
        if (start)
            trace_reply(queue, outbox, rank, start);
    }
    reply_queue_empty(outbox);
}

void reply_queue_flush(struct reply_queue *queue) {
    for (uint32_t r = 0; r < queue->settings.num_ranks; r++)
        reply_queue_flush_rank(queue, r);
}

void reply_queue_flush_ready(struct reply_queue *queue) {
    for (uint32_t r = 0; r < queue->settings.num_ranks; r++) {
        const struct outbox *outbox = &queue->outboxes[r];
        if (!outbox->request.ack_only || outbox->bytes >= ACK_BATCH_BYTES)
            reply_queue_flush_rank(queue, r);
    }
}

/* Can a reply to NEXT leave in one message with those to PENDING? */
static bool can_batch(const struct request *pending,
                      const struct request *next) {
    if (pending->ack_only || next->ack_only)
        return pending->ack_only && next->ack_only &&
               pending->mean == next->mean &&
               (!next->mean || pending->clock == next->clock);
    return pending->seq == next->seq && pending->clock == next->clock &&
           pending->version == next->version && pending->mean == next->mean &&
           pending->late == next->late;
}

/* WEIGHTS: taken; NULL for an ack. */
static void reply_queue_put(struct reply_queue *queue,
                            const struct update_core_action *reply,
                            struct buffer *weights, bool mean) {
    const struct reply_queue_settings *s = &queue->settings;
    struct outbox *outbox = &queue->outboxes[reply->rank];
    size_t bytes = reply_queue_block_bytes(queue, reply->block);
    struct request answered = {
        reply->seq, reply->clock, s->same_weights ? reply->version : 0,
        !weights,   mean,         reply->late};
    /* Gathering copies; a message of its own for a mapped block does not. */
    bool unbatched =
        weights && bytes >= UNBATCHED_BYTES &&
        reply_queue_wire(queue, reply->block) == JOB_WIRE_FLOAT32 &&
        link_can_share(s->link, outbox->peer, weights);
    if (outbox->count &&
        (!can_batch(&outbox->request, &answered) || unbatched ||
         outbox->unbatched || outbox->bytes + bytes > MESSAGE_GROUP_BYTES ||
         outbox->count == MESSAGE_MAX_BLOCKS))
        reply_queue_flush_rank(queue, reply->rank);
    outbox->request = answered;
    outbox->unbatched = unbatched;
    outbox->weights[outbox->count] = weights;
    outbox->blocks[outbox->count++] = reply->block;
    outbox->bytes += bytes;
}

void reply_queue_put_weights(struct reply_queue *queue,
                             const struct update_core_action *reply,
                             struct buffer *weights, bool mean) {
    reply_queue_put(queue, reply, weights, mean);
}

void reply_queue_put_ack(struct reply_queue *queue,
                         const struct update_core_action *reply, bool mean) {
    reply_queue_put(queue, reply, NULL, mean);
}
