/* SPDX-License-Identifier: Apache-2.0 */
/* What trainers and the chief ask of a ps, message by message. A function that
 * takes one returns NULL, or the words it is refused with; what a message has
 * done before it was refused stays done, as each of its blocks stands for
 * itself. Blocks come by their number in the plan and go on by their place in
 * this shard (holding_check); answers name them by the plan again. */
#include "proto/tensor/encoding.h"
#include "ps/service_parts.h"

/* The answer to HEADER for block B leaves without weights, when it asks so.
 * Another life of the rank counts its requests from 1 again. */
static void note_receipt(struct service *service, uint32_t b,
                         const Capstan__DataHeader *header) {
    uint64_t *last = service->receipts +
                     (size_t)b * service->settings.num_ranks + header->rank;
    if (header->receipt)
        *last = header->seq;
    else if (*last == header->seq)
        *last = 0;
}

static size_t bytes_of(const struct service *service, uint32_t b) {
    return encoding_bytes(service->settings.job->wire,
                          shard_block(service->shard, b)->elements);
}

static enum exchange_verdict count(struct exchange *exchange, uint32_t b,
                                   const Capstan__DataHeader *header) {
    if (header->encoding == CAPSTAN__DATA_HEADER__ENCODING__VOID)
        return exchange_void(exchange, b, header->rank, header->clock,
                             header->seq, header->loss_scale);
    return exchange_push(exchange, b, header->rank, header->clock, header->seq);
}

static const char *push(struct service *service, struct link_frame *frame,
                        const Capstan__DataHeader *header) {
    struct parcel *parcel = parcels_take(service->parcels, frame);
    if (!parcel)
        return "no memory";
    const char *problem = NULL;
    const struct link_bytes *payload = parcels_payload(parcel);
    const char *floats = payload->data;
    for (size_t i = 0; i < header->n_blocks && !problem; i++) {
        uint32_t b = header->blocks[i];
        note_receipt(service, b, header);
        enum exchange_verdict verdict = count(service->exchange, b, header);
        if (verdict == EXCHANGE_TAKEN)
            parcels_contribute(service->parcels, b, header->rank, parcel,
                               payload->size ? floats : NULL);
        if (verdict == EXCHANGE_REFUSED)
            problem = "a push out of the order of its clock";
        if (floats)
            floats += bytes_of(service, b);
    }
    parcels_let_go(service->parcels, parcel);
    return problem;
}

/* Asked blocks that did not come are named for sending again; none is a word
 * too: all are here, and wait for others. */
static void ask(struct service *service, uint32_t peer,
                Capstan__DataHeader *header) {
    size_t lacking = 0;
    for (size_t i = 0; i < header->n_blocks; i++) {
        uint32_t b = header->blocks[i];
        note_receipt(service, b, header);
        if (!exchange_ask(service->exchange, b, header->rank, header->clock,
                          header->seq))
            header->blocks[lacking++] = service->settings.ids[b];
    }
    Capstan__DataHeader answer = CAPSTAN__DATA_HEADER__INIT;
    answer.kind = CAPSTAN__DATA_HEADER__KIND__LACK;
    answer.seq = header->seq;
    answer.clock = header->clock;
    answer.n_blocks = lacking;
    answer.blocks = header->blocks;
    answers_send(service->answers, peer, &answer, NULL);
}

/* A read of a snapshot: answered at once, whatever the gate says. */
static const char *pull_snapshot(struct service *service, uint32_t peer,
                                 const Capstan__DataHeader *header) {
    struct snapshot *snapshot =
        service->snapshots
            ? snapshots_find(service->snapshots, header->snapshot)
            : NULL;
    if (!snapshot)
        return "a snapshot that is not held";
    for (size_t i = 0; i < header->n_blocks; i++) {
        uint32_t b = header->blocks[i];
        struct buffer *weights = snapshot_weights(snapshot, b);
        struct link_payload payload;
        if (!weights)
            return "a snapshot that is not complete";
        link_borrow(&payload, weights, 0, buffer_bytes(weights));
        uint32_t id = service->settings.ids[b];
        Capstan__DataHeader answer = CAPSTAN__DATA_HEADER__INIT;
        answer.kind = CAPSTAN__DATA_HEADER__KIND__WEIGHTS;
        answer.seq = header->seq;
        answer.clock = header->clock;
        answer.snapshot = header->snapshot;
        answer.n_blocks = 1;
        answer.blocks = &id;
        answers_send(service->answers, peer, &answer, &payload);
    }
    return NULL;
}

static const char *pull(struct service *service, uint32_t peer,
                        const Capstan__DataHeader *header) {
    if (header->snapshot)
        return pull_snapshot(service, peer, header);
    for (size_t i = 0; i < header->n_blocks; i++) {
        note_receipt(service, header->blocks[i], header);
        exchange_pull(service->exchange, header->blocks[i], header->rank,
                      header->clock, header->seq);
    }
    return NULL;
}

static const char *dispatch(struct service *service, struct link_frame *frame,
                            Capstan__DataHeader *header) {
    const char *problem =
        holding_check(&service->holding, header, frame->payload.size);
    if (problem)
        return problem;
    answers_meet(service->answers, header->rank, frame->peer);
    switch (header->kind) {
    case CAPSTAN__DATA_HEADER__KIND__PUSH:
        return push(service, frame, header);
    case CAPSTAN__DATA_HEADER__KIND__PULL:
        return pull(service, frame->peer, header);
    case CAPSTAN__DATA_HEADER__KIND__ASK:
        ask(service, frame->peer, header);
        return NULL;
    default:
        return "a kind of message that a ps does not take";
    }
}

/* Weights that the chief has read from a file, in the place of the initial
 * ones: nobody has read those before the first view. */
static const char *assign(struct service *service, struct link_frame *frame,
                          Capstan__DataHeader *header) {
    if (exchange_gate(service->exchange)->view)
        return "weights are assigned before the first view only";
    const char *floats = frame->payload.data;
    for (size_t i = 0; i < header->n_blocks; i++) {
        uint32_t b = header->blocks[i];
        shard_assign(service->shard, b, floats);
        floats += shard_block_bytes(service->shard, b);
        header->blocks[i] = service->settings.ids[b];
    }
    Capstan__DataHeader answer = CAPSTAN__DATA_HEADER__INIT;
    answer.kind = CAPSTAN__DATA_HEADER__KIND__ASSIGNED;
    answer.seq = header->seq;
    answer.n_blocks = header->n_blocks;
    answer.blocks = header->blocks;
    answers_send(service->answers, frame->peer, &answer, NULL);
    return NULL;
}

/* The chief holds no rank: it reads snapshots to export them, and assigns. */
static bool is_chiefs(const struct service *service,
                      const Capstan__DataHeader *header) {
    bool reads =
        header->kind == CAPSTAN__DATA_HEADER__KIND__PULL && header->snapshot;
    return header->incarnation == service->settings.chief &&
           (reads || header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN);
}

static const char *serve_chief(struct service *service,
                               struct link_frame *frame,
                               Capstan__DataHeader *header) {
    const char *problem =
        holding_check(&service->holding, header, frame->payload.size);
    if (problem)
        return problem;
    link_admit(service->settings.link, frame->peer);
    return header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN
               ? assign(service, frame, header)
               : pull_snapshot(service, frame->peer, header);
}

const char *service_take(struct service *service, struct link_frame *frame,
                         Capstan__DataHeader *header) {
    if (header->run != service->settings.run)
        return "another run: this ps serves a newer or older one";
    if (is_chiefs(service, header))
        return serve_chief(service, frame, header);
    if (!exchange_knows(service->exchange, header->rank, header->incarnation))
        return "not in this ps's view: the chief has not named you, or has "
               "declared you gone";
    return dispatch(service, frame, header);
}
