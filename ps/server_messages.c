/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of trainers and the chief, and the partitions that pushes and
 * lookups of rows name: for gate, ledger and update core a partition is a
 * block, the last ones of this ps; what differs is that its bytes name rows,
 * and that it is read by lookups in place of replies. A handler returns NULL,
 * or the text that the message is refused with. A refused message may have been
 * handled in part, as its blocks are independent. Messages number blocks as the
 * plan does; block_index_check changes that to local numbers, and replies use
 * the plan's again. */
#include "core/base/time.h"
#include "core/base/trace.h"
#include "core/tensor/rule_form.h"
#include "proto/cluster/cluster.h"
#include "proto/holder/snapshots.h"
#include "proto/messages/ps_links.h"
#include "proto/plan/encoding.h"
#include "ps/server_internal.h"
#include <stdlib.h>
#include <string.h>

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

/* Gives the update core the contribution in HEADER to block or partition B. Of
 * a push of rows all partitions have bytes, also those without rows: the
 * gradient of their tables is not nothing, as torch.optim.SparseAdam counts. */
static enum update_core_result server_push_unit(
    struct server *server, uint32_t b, const Capstan__DataHeader *header) {
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

/* Does the state that the plan's optimizer has suffice for VALUES? */
static bool keeps_form(const struct server *server,
                       const Capstan__GroupValues *values) {
    struct optimizer_group group = server->settings.groups[values->group];
    enum rule_form form = rule_form_of(&group.optimizer);
    optimizer_group_put(&group, values->values);
    return rule_form_of(&group.optimizer) == form;
}

/* Keeps the values of groups in HEADER with PAYLOAD. False: they are not
 * allowed. */
static bool server_record_values(const struct server *server,
                                 struct gradient_payload *payload,
                                 const Capstan__DataHeader *header) {
    for (size_t i = 0; i < header->n_groups; i++) {
        const Capstan__GroupValues *group = header->groups[i];
        if (group->group >= server->settings.num_groups ||
            optimizer_group_check(group->values, group->n_values, NULL) ||
            !keeps_form(server, group))
            return false;
        gradient_inbox_set_values(payload, group->group, group->values);
    }
    return true;
}

static const char *server_push(struct server *server, struct link_frame *frame,
                               const Capstan__DataHeader *header) {
    struct gradient_payload *payload =
        gradient_inbox_receive(server->gradient_inbox, frame);
    if (!payload)
        return "no memory";
    const char *error = NULL;
    gradient_inbox_set_origin(
        payload,
        (struct gradient_origin){
            header->rank, header->clock,
            trace_begin(server->settings.process->trace, header->clock)});
    if (!server_record_values(server, payload, header))
        error = "values of an optimizer's group that are not allowed";
    const char *bytes = gradient_inbox_payload(payload)->data;
    bool counts = header->encoding != CAPSTAN__DATA_HEADER__ENCODING__EMPTY &&
                  header->encoding != CAPSTAN__DATA_HEADER__ENCODING__OVERFLOW;
    for (size_t i = 0; i < header->n_blocks && !error; i++) {
        uint32_t b = header->blocks[i], size = server->block_index.sizes[i];
        uint32_t assigned = server->block_index.assigned[i];
        record_ack_request(server, b, header);
        enum update_core_result result = server_push_unit(server, b, header);
        if (result == UPDATE_CORE_ACCEPTED) {
            gradient_inbox_add(server->gradient_inbox, b, header->rank, payload,
                               (struct link_bytes){size ? bytes : NULL, size},
                               counts);
            gradient_inbox_assign(server->gradient_inbox, b, header->rank,
                                  (struct link_bytes){bytes + size, assigned});
        }
        if (result == UPDATE_CORE_REFUSED)
            error = "a push whose clock is out of order";
        bytes += (size_t)size + assigned;
    }
    gradient_inbox_release(server->gradient_inbox, payload);
    return error;
}

/* Trainers name their epochs in pushes of blocks. */
static void record_epoch(struct server *server,
                         const Capstan__DataHeader *header) {
    if (header->rank == gate_lead(update_core_gate(server->update_core),
                                  update_core_highest(server->update_core)))
        reply_queue_set_epoch(server->reply_queue, header->epoch,
                              header->epoch_first);
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
            header->tensor >=
                shard_tensors(server->units.shard, header->blocks[i]))
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
                ? shard_tensor(server->units.shard, b, header->tensor)
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
            if (!shard_assign(server->units.shard, b, floats))
                server->assigned =
                    status_fail(&server->assigned_why, FAILURE_NO_MEMORY,
                                "no memory for the weights of a trainer");
        }
        floats += shard_block_bytes(server->units.shard, b);
    }
    return NULL;
}

static uint32_t partition_of(const struct server *server, uint32_t b) {
    return b - shard_blocks(server->units.shard);
}

enum status server_open_rows(struct server *server, struct failure *why) {
    const struct server_settings *s = &server->settings;
    uint32_t first = shard_blocks(server->units.shard);
    struct row_shard_settings rows = {
        .layout = s->layout,
        .ids = s->ids + first,
        .count = s->num_blocks - first,
        .num_parts = s->num_ranks,
        .seed = s->job->seed,
        .optimizer = s->groups ? &s->groups[0].optimizer : &s->job->optimizer,
        .groups = s->table_groups,
        .loops = s->process->loops,
        .deltas = s->job->checkpoint.delta_every_steps,
        .copies = s->run_schedule.buddy_steps};
    size_t variants;
    if (!rows.count)
        return STATUS_OK;
    if (!rows.loops)
        rows.loops = rule_variants(&variants)[0];
    server->row_lookups = row_lookups_open(rows.count, s->num_ranks);
    server->asked = calloc(s->num_ranks + 1, sizeof *server->asked);
    server->asked_parts = calloc((size_t)rows.count * s->num_ranks + 1,
                                 sizeof *server->asked_parts);
    if (!server->row_lookups || !server->asked || !server->asked_parts)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for lookups");
    return row_shard_open(&server->units.rows, &rows, why);
}

/* Tables over the pages of a snapshot, opened as they are read. */
static void close_held_rows(struct server *server) {
    const struct server_settings *s = &server->settings;
    if (!server->held_tables)
        return;
    size_t count = (size_t)row_shard_partitions(server->units.rows) *
                   s->layout->num_stacks;
    for (size_t i = 0; i < count; i++)
        row_table_close(&server->held_tables[i]);
    free(server->held_tables);
    server->held_tables = NULL;
}

void server_close_rows(struct server *server) {
    close_held_rows(server);
    row_lookups_close(&server->row_lookups);
    free(server->asked);
    free(server->asked_parts);
    row_shard_close(&server->units.rows);
}

/* The tables of partition P as they are in snapshot ID, [num_stacks]. */
static struct row_table *const *held_rows(struct server *server, uint64_t id,
                                          uint32_t p) {
    const struct server_settings *s = &server->settings;
    uint32_t stacks = s->layout->num_stacks;
    const struct shard_rows_source *rows = snapshots_rows(
        server->snapshots, id, p + shard_blocks(server->units.shard));
    struct failure ignored;
    if (server->held_id != id)
        close_held_rows(server);
    server->held_id = id;
    if (!server->held_tables)
        server->held_tables =
            calloc((size_t)row_shard_partitions(server->units.rows) * stacks,
                   sizeof *server->held_tables);
    if (!rows || !server->held_tables)
        return NULL;
    struct row_table **held = server->held_tables + (size_t)p * stacks;
    for (uint32_t k = 0; k < stacks; k++) {
        if (held[k])
            continue;
        struct row_table_options options =
            row_shard_options(server->units.rows, k);
        if (row_table_open_held(&held[k], &options, rows[k].pages,
                                rows[k].num_pages, rows[k].rows, &ignored))
            return NULL;
    }
    return held;
}

/* Why rows are refused. */
static const char *refusal(const struct failure *why) {
    return why->code == FAILURE_NO_MEMORY
               ? "no memory"
               : "rows that are damaged, or of another partition";
}

/* Checks the rows of all parts before any of them counts. */
static const char *check_rows(struct server *server,
                              const Capstan__DataHeader *header,
                              const char *bytes) {
    const struct block_index *index = &server->block_index;
    struct failure why;
    uint32_t probable = 0;
    for (uint32_t i = 0; i < header->n_blocks; i++, probable++) {
        uint32_t p = partition_of(server, header->blocks[i]);
        const struct row_part part = {bytes, index->sizes[i], NULL};
        const char *assigned = bytes + part.size;
        bytes = assigned + index->assigned[i];
        if (part.size &&
            !row_lookups_find(server->row_lookups, header->rank, p, &part,
                              &probable) &&
            row_shard_check(server->units.rows, p, part.bytes, part.size, &why))
            return refusal(&why);
        if (index->assigned[i] &&
            row_shard_check(server->units.rows, p, assigned, index->assigned[i],
                            &why))
            return refusal(&why);
    }
    return NULL;
}

/* Rank 0's rows: until they are here nobody reads their partitions. */
static const char *assign_rows(struct server *server,
                               const Capstan__DataHeader *header,
                               const char *bytes) {
    for (size_t i = 0; i < header->n_blocks && !server->assigned; i++) {
        uint32_t b = header->blocks[i];
        const struct row_part part = {bytes, header->sizes[i], NULL};
        enum update_core_result result = update_core_assign(
            server->update_core, b, header->rank, header->clock, header->seq);
        if (result == UPDATE_CORE_REFUSED)
            return "rows to begin with after the first push";
        if (result == UPDATE_CORE_ACCEPTED && part.size) {
            work_items_wait(server->work_items);
            server->assigned = row_shard_assign(
                server->units.rows, partition_of(server, b), &part,
                update_core_version(server->update_core, b),
                &server->assigned_why);
        }
        bytes += part.size;
    }
    return NULL;
}

void server_use_lookup(struct server *server, struct work_item *item,
                       uint32_t rank, struct row_part *part) {
    uint32_t p = partition_of(server, item->action.block), number = p;
    struct row_lookup *lookup =
        row_lookups_find(server->row_lookups, rank, p, part, &number);
    if (!lookup)
        return;
    part->list = &lookup->parts[number].list;
    item->lookups[item->num_lookups++] = row_lookups_hold(lookup);
}

struct server_round server_largest_round(const struct server *server) {
    return server->most_asked;
}

/* Has RANK looked up PART with CLOCK just before? A read is sent again until it
 * is answered. */
static bool is_repeated(struct server *server, uint32_t rank, uint64_t clock,
                        const struct row_lookup_part *part) {
    struct server_asked_part *last =
        server->asked_parts + (size_t)part->p * server->settings.num_ranks +
        rank;
    struct server_asked_part now = {clock, part->list.size, 0};
    size_t end =
        part->list.size < sizeof now.end ? part->list.size : sizeof now.end;
    memcpy(&now.end, part->bytes + part->list.size - end, end);
    bool same = now.clock == last->clock && now.size == last->size &&
                now.end == last->end;
    *last = now;
    return same;
}

/* A trainer looks up the rows of a step in several messages of one clock. */
static void count_asked(struct server *server,
                        const struct row_lookup *lookup) {
    struct server_asked *of = &server->asked[lookup->rank];
    struct server_round all = {0}, *most = &server->most_asked;
    if (of->clock != lookup->clock)
        *of = (struct server_asked){.clock = lookup->clock};
    for (uint32_t i = 0; i < lookup->num_parts; i++) {
        const struct row_lookup_part *part = &lookup->parts[i];
        if (is_repeated(server, lookup->rank, lookup->clock, part))
            continue;
        of->bytes.rows +=
            row_shard_list_bytes(server->units.rows, part->p, &part->list);
        of->bytes.floats += part->list.floats * sizeof(float);
    }
    for (uint32_t r = 0; r < server->settings.num_ranks; r++) {
        all.rows += server->asked[r].bytes.rows;
        all.floats += server->asked[r].bytes.floats;
    }
    most->rows = all.rows > most->rows ? all.rows : most->rows;
    most->floats = all.floats > most->floats ? all.floats : most->floats;
}

static const char *fill_lookup(struct server *server,
                               const struct link_frame *frame,
                               const Capstan__DataHeader *header,
                               struct row_lookup *lookup) {
    size_t floats = 0;
    const char *bytes = lookup->bytes;
    lookup->peer = frame->peer;
    lookup->rank = header->rank;
    lookup->seq = header->seq;
    lookup->clock = header->clock;
    for (uint32_t i = 0; i < lookup->num_parts; i++) {
        struct failure why;
        struct row_lookup_part *part = &lookup->parts[i];
        part->block = server->settings.ids[header->blocks[i]];
        part->p = partition_of(server, header->blocks[i]);
        part->bytes = bytes;
        part->at = (uint32_t)floats;
        part->list.places = header->places;
        if (row_shard_read(server->units.rows, part->p, bytes, header->sizes[i],
                           false, &part->list, &why))
            return refusal(&why);
        lookup->rows += part->list.rows;
        floats += part->list.floats;
        bytes += header->sizes[i];
    }
    if (!header->snapshot && !header->places)
        count_asked(server, lookup);
    if (floats * sizeof(float) > MESSAGE_MAX_PAYLOAD)
        return "more rows than one answer can have";
    lookup->floats = reply_queue_take_buffer(server->reply_queue,
                                             floats * sizeof(float) + 1);
    return lookup->floats ? NULL : "no memory";
}

/* All parts have been read. Acks of earlier pushes go first: the trainer's next
 * push waits for them, and rows take long on a slow link. */
static void send_lookup(struct server *server, const struct row_lookup *lookup,
                        uint64_t snapshot) {
    uint32_t blocks[MESSAGE_MAX_BLOCKS], sizes[MESSAGE_MAX_BLOCKS];
    struct link_payload payload;
    size_t floats = 0;
    Capstan__DataHeader reply = CAPSTAN__DATA_HEADER__INIT;
    for (uint32_t i = 0; i < lookup->num_parts; i++) {
        blocks[i] = lookup->parts[i].block;
        sizes[i] = (uint32_t)(lookup->parts[i].list.floats * sizeof(float));
        floats += lookup->parts[i].list.floats;
    }
    reply.kind = CAPSTAN__DATA_HEADER__KIND__ROWS;
    reply.rank = lookup->rank;
    reply.seq = lookup->seq;
    reply.clock = lookup->clock;
    reply.snapshot = snapshot;
    reply.n_blocks = reply.n_sizes = lookup->num_parts;
    reply.blocks = blocks;
    reply.sizes = sizes;
    link_borrow(&payload, lookup->floats, 0, floats * sizeof(float));
    reply_queue_flush_rank(server->reply_queue, lookup->rank);
    reply_queue_send(server->reply_queue, lookup->peer, &reply, &payload);
}

static float *floats_of_part(const struct row_lookup *lookup, uint32_t part) {
    return (float *)buffer_data(lookup->floats) + lookup->parts[part].at;
}

/* From a snapshot, without the gate. */
static const char *look_up_now(struct server *server,
                               const Capstan__DataHeader *header,
                               struct row_lookup *lookup) {
    for (uint32_t i = 0; i < lookup->num_parts; i++) {
        struct row_lookup_part *part = &lookup->parts[i];
        struct row_table *const *held =
            held_rows(server, header->snapshot, part->p);
        if (!held)
            return "a snapshot that is not held, or no memory for its index";
        row_shard_lookup(server->units.rows, part->p, held, &part->list,
                         floats_of_part(lookup, i));
    }
    send_lookup(server, lookup, header->snapshot);
    return NULL;
}

/* Each part when the gate lets it be read. */
static void look_up_in_time(struct server *server,
                            const Capstan__DataHeader *header,
                            struct row_lookup *lookup) {
    bool waits = false;
    for (uint32_t i = 0; i < lookup->num_parts; i++)
        if (update_core_lookup(server->update_core, header->blocks[i],
                               header->rank, header->clock, header->seq,
                               header->early)) {
            row_lookups_wait(server->row_lookups, lookup, lookup->parts[i].p,
                             i);
            waits = true;
        }
    if (waits && !header->places)
        row_lookups_remember(server->row_lookups, lookup);
}

static const char *server_look_up(struct server *server,
                                  struct link_frame *frame,
                                  Capstan__DataHeader *header) {
    struct row_lookup *lookup =
        row_lookups_new(server->row_lookups, (uint32_t)header->n_blocks,
                        frame->payload.data, frame->payload.size);
    if (!lookup)
        return "no memory";
    const char *error = fill_lookup(server, frame, header, lookup);
    if (!error && header->snapshot)
        error = look_up_now(server, header, lookup);
    else if (!error)
        look_up_in_time(server, header, lookup);
    row_lookups_drop(server->row_lookups, lookup);
    return error;
}

bool server_take_lookup(struct server *server, struct work_item *item) {
    item->lookup = row_lookups_take(
        server->row_lookups, partition_of(server, item->action.block),
        item->action.rank, item->action.seq, &item->part);
    return item->lookup;
}

void server_answer_lookup(struct server *server, struct work_item *item) {
    struct row_lookup *lookup = item->lookup;
    if (++lookup->num_read == lookup->num_parts)
        send_lookup(server, lookup, 0);
    row_lookups_end_part(lookup);
    row_lookups_drop(server->row_lookups, lookup);
    item->lookup = NULL;
}

static const char *dispatch(struct server *server, struct link_frame *frame,
                            Capstan__DataHeader *header) {
    const char *error =
        block_index_check(&server->block_index, header, frame->payload.size);
    if (error)
        return error;
    reply_queue_set_peer(server->reply_queue, header->rank, frame->peer);
    switch (header->kind) {
    case CAPSTAN__DATA_HEADER__KIND__PUSH:
        record_epoch(server, header);
        return server_push(server, frame, header);
    case CAPSTAN__DATA_HEADER__KIND__PULL:
        return pull(server, frame->peer, header);
    case CAPSTAN__DATA_HEADER__KIND__ASSIGN:
        return assign_first(server, frame, header);
    case CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS:
        error = check_rows(server, header, frame->payload.data);
        return error ? error : server_push(server, frame, header);
    case CAPSTAN__DATA_HEADER__KIND__ASSIGN_ROWS:
        error = check_rows(server, header, frame->payload.data);
        return error ? error : assign_rows(server, header, frame->payload.data);
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
        if (!shard_assign(server->units.shard, b, floats))
            return "no memory";
        floats += shard_block_bytes(server->units.shard, b);
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

static bool has_key_of_chief(const struct server *server,
                             struct link_frame *frame) {
    return link_is_from(server->settings.link, frame,
                        cluster_party(CLUSTER_CHIEF, 0));
}

bool server_may_speak(const struct server *server, struct link_frame *frame,
                      const Capstan__DataHeader *header) {
    const struct server_settings *s = &server->settings;
    if (has_key_of_chief(server, frame))
        return true;
    return s->parties && header->rank < s->num_ranks &&
           link_is_from(s->link, frame, s->parties[header->rank]);
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
        return has_key_of_chief(server, frame)
                   ? serve_chief(server, frame, header)
                   : "an order of the chief's, by the key of another process";
    if (!update_core_is_current(server->update_core, header->rank,
                                header->incarnation))
        return "not in this ps's view: the chief has not named you, or has "
               "declared you gone";
    if (!server_may_speak(server, frame, header))
        return "a message by the key of another process than that trainer's";
    return dispatch(server, frame, header);
}
