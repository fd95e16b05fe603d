/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of trainers and the chief. A handler returns NULL, or the text
 * that the message is refused with. A refused message may have been handled in
 * part, as its blocks are independent. Messages number blocks as the plan does;
 * block_index_check changes that to local numbers, and replies use the plan's
 * again. */
#include "proto/base/time.h"
#include "proto/net/messages/ps_links.h"
#include "proto/tensor/encoding.h"
#include "ps/server_internal.h"

/* Records whether the reply to HEADER for block B is to be an ack only. A new
 * incarnation of the rank counts its requests from 1 again. */
static void record_ack_request(struct server *server, uint32_t b,
                               const Capstan__DataHeader *header) {
    uint64_t *last = server->last_ack_request +
                     (size_t)b * server->settings.num_ranks + header->rank;
    if (header->ack_only)
        *last = header->seq;
    else if (*last == header->seq)
        *last = 0;
}

static size_t server_messages_block_bytes(const struct server *server,
                                          uint32_t b) {
    return encoding_bytes(
        shard_wire(server->shard, b, server->settings.job->wire),
        shard_block(server->shard, b)->elements);
}

enum update_core_result server_push_unit(struct server *server, uint32_t b,
                                         const Capstan__DataHeader *header) {
    struct update_core *core = server->update_core;
    switch (header->encoding) {
    case CAPSTAN__DATA_HEADER__ENCODING__OVERFLOW:
        return update_core_push_overflowed(core, b, header->rank, header->clock,
                                           header->seq, header->loss_scale);
    case CAPSTAN__DATA_HEADER__ENCODING__ZERO:
    case CAPSTAN__DATA_HEADER__ENCODING__EMPTY:
        return update_core_push_without_bytes(core, b, header->rank,
                                              header->clock, header->seq);
    default:
        return update_core_push(core, b, header->rank, header->clock,
                                header->seq);
    }
}

bool server_record_values(const struct server *server,
                          struct gradient_payload *payload,
                          const Capstan__DataHeader *header) {
    for (size_t i = 0; i < header->n_groups; i++) {
        const Capstan__GroupValues *group = header->groups[i];
        if (group->group >= server->settings.num_groups ||
            optimizer_group_check(group->values, group->n_values, NULL))
            return false;
        gradient_inbox_set_values(payload, group->group, group->values);
    }
    return true;
}

static const char *server_messages_push(struct server *server,
                                        struct link_frame *frame,
                                        const Capstan__DataHeader *header) {
    struct gradient_payload *gradient_payload =
        gradient_inbox_receive(server->gradient_inbox, frame);
    if (!gradient_payload)
        return "no memory";
    const char *error = NULL;
    if (!server_record_values(server, gradient_payload, header))
        error = "values of an optimizer's group that are not allowed";
    const struct link_bytes *payload = gradient_inbox_payload(gradient_payload);
    const char *floats = payload->data;
    if (header->rank == gate_lead(update_core_gate(server->update_core),
                                  update_core_highest(server->update_core)))
        reply_queue_set_epoch(server->reply_queue, header->epoch,
                              header->epoch_first);
    bool is_zero = header->encoding == CAPSTAN__DATA_HEADER__ENCODING__ZERO;
    for (size_t i = 0; i < header->n_blocks && !error; i++) {
        uint32_t b = header->blocks[i];
        record_ack_request(server, b, header);
        enum update_core_result result = server_push_unit(server, b, header);
        if (result == UPDATE_CORE_ACCEPTED)
            gradient_inbox_add(server->gradient_inbox, b, header->rank,
                               gradient_payload, payload->size ? floats : NULL,
                               payload->size || is_zero);
        if (result == UPDATE_CORE_REFUSED)
            error = "a push whose clock is out of order";
        if (floats)
            floats += server_messages_block_bytes(server, b);
    }
    gradient_inbox_release(server->gradient_inbox, gradient_payload);
    return error;
}

/* A snapshot or a state, without the gate. */
static bool reads_at_once(const Capstan__DataHeader *header) {
    return header->snapshot || header->tensor;
}

/* Lists the queried blocks that have not arrived, so that they are sent again.
 * An empty list is an answer too: all blocks are here and wait for other
 * trainers. A read at once leaves no trace, so it is always sent again. */
static void server_messages_query(struct server *server, uint32_t peer,
                                  Capstan__DataHeader *header) {
    size_t num_missing = 0;
    for (size_t i = 0; i < header->n_blocks; i++) {
        uint32_t b = header->blocks[i];
        record_ack_request(server, b, header);
        if (reads_at_once(header) ||
            !update_core_query(server->update_core, b, header->rank,
                               header->clock, header->seq))
            header->blocks[num_missing++] = server->settings.ids[b];
    }
    Capstan__DataHeader reply = CAPSTAN__DATA_HEADER__INIT;
    reply.kind = CAPSTAN__DATA_HEADER__KIND__MISSING;
    reply.seq = header->seq;
    reply.clock = header->clock;
    reply.n_blocks = num_missing;
    reply.blocks = header->blocks;
    reply_queue_send(server->reply_queue, peer, &reply, NULL);
}

static const char *check_read_at_once(const struct server *server,
                                      const Capstan__DataHeader *header) {
    for (size_t i = 0; header->tensor && i < header->n_blocks; i++)
        if (header->snapshot ||
            header->tensor >= shard_tensors(server->shard, header->blocks[i]))
            return "a tensor that the optimizer does not have";
    if (header->tensor)
        return NULL;
    return server->snapshots &&
                   snapshots_has(server->snapshots, header->snapshot)
               ? NULL
               : "a snapshot that is not held";
}

static const char *pull_at_once(struct server *server, uint32_t peer,
                                const Capstan__DataHeader *header) {
    const char *error = check_read_at_once(server, header);
    if (error)
        return error;
    if (header->tensor)
        work_items_wait(server->work_items); /* they write it */
    for (size_t i = 0; i < header->n_blocks; i++) {
        uint32_t b = header->blocks[i];
        struct buffer *floats =
            header->tensor
                ? shard_tensor(server->shard, b, header->tensor)
                : snapshots_weights(server->snapshots, header->snapshot, b);
        struct link_payload payload;
        if (!floats)
            return "a snapshot that is incomplete";
        link_borrow(&payload, floats, 0, buffer_bytes(floats));
        uint32_t id = server->settings.ids[b];
        Capstan__DataHeader reply = CAPSTAN__DATA_HEADER__INIT;
        reply.kind = CAPSTAN__DATA_HEADER__KIND__WEIGHTS;
        reply.seq = header->seq;
        reply.clock = header->clock;
        reply.snapshot = header->snapshot;
        reply.tensor = header->tensor;
        if (header->tensor)
            reply.step = update_core_rule_step(
                server->update_core, b,
                update_core_version(server->update_core, b));
        reply.n_blocks = 1;
        reply.blocks = &id;
        reply_queue_send(server->reply_queue, peer, &reply, &payload);
    }
    return NULL;
}

static const char *pull(struct server *server, uint32_t peer,
                        const Capstan__DataHeader *header) {
    if (reads_at_once(header))
        return pull_at_once(server, peer, header);
    for (size_t i = 0; i < header->n_blocks; i++) {
        record_ack_request(server, header->blocks[i], header);
        update_core_pull(server->update_core, header->blocks[i], header->rank,
                         header->clock, header->seq);
    }
    return NULL;
}

/* Rank 0's initial weights: until they are here nobody reads their blocks. Or
 * those of a snapshot's round, from a trainer that keeps them. */
static const char *assign_first(struct server *server,
                                const struct link_frame *frame,
                                const Capstan__DataHeader *header) {
    const char *floats = frame->payload.data;
    for (size_t i = 0; i < header->n_blocks; i++) {
        uint32_t b = header->blocks[i];
        enum update_core_result result = update_core_assign(
            server->update_core, b, header->rank, header->clock, header->seq);
        if (result == UPDATE_CORE_REFUSED)
            return "initial weights after the first push";
        if (result == UPDATE_CORE_ACCEPTED) {
            work_items_wait(server->work_items);
            server->wanted_at = time_now();
            server->no_memory |= !shard_assign(server->shard, b, floats);
        }
        floats += shard_block_bytes(server->shard, b);
    }
    return NULL;
}

static const char *dispatch(struct server *server, struct link_frame *frame,
                            Capstan__DataHeader *header) {
    bool of_rows = header->kind == CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS ||
                   header->kind == CAPSTAN__DATA_HEADER__KIND__LOOKUP;
    const char *error = of_rows
                            ? NULL
                            : block_index_check(&server->block_index, header,
                                                frame->payload.size);
    if (error)
        return error;
    reply_queue_set_peer(server->reply_queue, header->rank, frame->peer);
    switch (header->kind) {
    case CAPSTAN__DATA_HEADER__KIND__PUSH:
        return server_messages_push(server, frame, header);
    case CAPSTAN__DATA_HEADER__KIND__PULL:
        return pull(server, frame->peer, header);
    case CAPSTAN__DATA_HEADER__KIND__ASSIGN:
        return assign_first(server, frame, header);
    case CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS:
        return server_push_rows(server, frame, header);
    case CAPSTAN__DATA_HEADER__KIND__LOOKUP:
        return server_look_up(server, frame, header);
    case CAPSTAN__DATA_HEADER__KIND__QUERY:
        server_messages_query(server, frame->peer, header);
        return NULL;
    default:
        return "a message kind that a ps does not accept";
    }
}

/* Weights that the chief has read from a file replace the initial ones. Allowed
 * before the first view only: no reader has seen the initial ones. */
static const char *assign(struct server *server, struct link_frame *frame,
                          Capstan__DataHeader *header) {
    if (update_core_gate(server->update_core)->view)
        return "weights are assigned before the first view only";
    const char *floats = frame->payload.data;
    for (size_t i = 0; i < header->n_blocks; i++) {
        uint32_t b = header->blocks[i];
        if (!shard_assign(server->shard, b, floats))
            return "no memory";
        floats += shard_block_bytes(server->shard, b);
        header->blocks[i] = server->settings.ids[b];
    }
    Capstan__DataHeader reply = CAPSTAN__DATA_HEADER__INIT;
    reply.kind = CAPSTAN__DATA_HEADER__KIND__ASSIGNED;
    reply.seq = header->seq;
    reply.n_blocks = header->n_blocks;
    reply.blocks = header->blocks;
    reply_queue_send(server->reply_queue, frame->peer, &reply, NULL);
    return NULL;
}

/* The chief holds no rank. It may only pull snapshots, to export them, and
 * assign weights. */
static bool is_from_chief(const struct server *server,
                          const Capstan__DataHeader *header) {
    bool reads =
        header->kind == CAPSTAN__DATA_HEADER__KIND__PULL && header->snapshot;
    return header->incarnation == server->settings.chief &&
           (reads || header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN);
}

static const char *serve_chief(struct server *server, struct link_frame *frame,
                               Capstan__DataHeader *header) {
    const char *error =
        block_index_check(&server->block_index, header, frame->payload.size);
    if (error)
        return error;
    link_admit(server->settings.link, frame->peer);
    return header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN
               ? assign(server, frame, header)
               : pull_at_once(server, frame->peer, header);
}

/* Bandwidth is measured before the first view only: probes must not slow
 * training down. */
static void answer_probe(struct server *server, const struct link_frame *frame,
                         const Capstan__DataHeader *header) {
    bool echoes = !update_core_gate(server->update_core)->view;
    ps_links_answer_probe(server->settings.link, server->settings.process,
                          echoes, frame, header);
}

const char *server_receive(struct server *server, struct link_frame *frame,
                           Capstan__DataHeader *header) {
    if (header->run != server->settings.process->run)
        return "another run: this ps serves a newer or older one";
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__PROBE) {
        answer_probe(server, frame, header);
        return NULL;
    }
    if (is_from_chief(server, header))
        return serve_chief(server, frame, header);
    if (!update_core_is_current(server->update_core, header->rank,
                                header->incarnation))
        return "not in this ps's view: the chief has not named you, or has "
               "declared you gone";
    return dispatch(server, frame, header);
}
