/* SPDX-License-Identifier: Apache-2.0 */
/* A ps's partitions: pushes and lookups of rows. For gate, ledger and update
 * core a partition is a block, the last ones of this ps; what differs is here:
 * its bytes name rows, and it is read by lookups in place of replies. */
#include "proto/store/snapshots.h"
#include "ps/server_internal.h"

#include <stdlib.h>
#include <string.h>

uint32_t server_first_partition(const struct server *server) {
    return server->settings.num_blocks - server->settings.num_partitions;
}

bool server_is_partition(const struct server *server, uint32_t b) {
    return b >= server_first_partition(server);
}

static uint32_t partition_of(const struct server *server, uint32_t b) {
    return b - server_first_partition(server);
}

enum status server_open_rows(struct server *server, struct failure *why) {
    const struct server_settings *s = &server->settings;
    struct row_shard_settings rows = {
        .layout = s->layout,
        .ids = s->ids + server_first_partition(server),
        .count = s->num_partitions,
        .num_parts = s->num_ranks,
        .seed = s->job->seed,
        .optimizer = s->groups ? &s->groups[0].optimizer : &s->job->optimizer,
        .groups = s->table_groups,
        .loops = s->process->loops,
        .deltas = s->job->checkpoint.delta_every_steps};
    size_t variants;
    if (!s->num_partitions)
        return STATUS_OK;
    if (!rows.loops)
        rows.loops = rule_variants(&variants)[0];
    server->row_lookups = row_lookups_open(s->num_partitions, s->num_ranks);
    server->asked = calloc(s->num_ranks + 1, sizeof *server->asked);
    server->asked_parts = calloc((size_t)s->num_partitions * s->num_ranks + 1,
                                 sizeof *server->asked_parts);
    if (!server->row_lookups || !server->asked || !server->asked_parts)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for lookups");
    return row_shard_open(&server->row_shard, &rows, why);
}

/* Tables over the pages of a snapshot, opened as they are read. */
static void close_held_rows(struct server *server) {
    const struct server_settings *s = &server->settings;
    if (!server->held_tables)
        return;
    size_t count = (size_t)s->num_partitions * s->layout->num_stacks;
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
    row_shard_close(&server->row_shard);
}

struct row_shard *server_row_shard(struct server *server) {
    return server->row_shard;
}

/* The tables of partition P as they are in snapshot ID, [num_stacks]. */
static struct row_table *const *held_rows(struct server *server, uint64_t id,
                                          uint32_t p) {
    const struct server_settings *s = &server->settings;
    uint32_t stacks = s->layout->num_stacks;
    const struct snapshots_rows *rows = snapshots_rows(
        server->snapshots, id, p + server_first_partition(server));
    struct failure ignored;
    if (server->held_id != id)
        close_held_rows(server);
    server->held_id = id;
    if (!server->held_tables)
        server->held_tables = calloc((size_t)s->num_partitions * stacks,
                                     sizeof *server->held_tables);
    if (!rows || !server->held_tables)
        return NULL;
    struct row_table **held = server->held_tables + (size_t)p * stacks;
    for (uint32_t k = 0; k < stacks; k++) {
        if (held[k])
            continue;
        struct row_table_options options =
            row_shard_options(server->row_shard, k);
        if (row_table_open_held(&held[k], &options, rows[k].pages,
                                rows[k].num_pages, rows[k].rows, &ignored))
            return NULL;
    }
    return held;
}

/* Changes HEADER's blocks to local numbers; they are partitions of this ps, in
 * order, with sizes that are PAYLOAD bytes together. */
static const char *check_partitions(const struct server *server,
                                    Capstan__DataHeader *header,
                                    size_t payload) {
    const struct block_index *index = &server->block_index;
    uint64_t bytes = 0;
    bool sized = header->n_sizes == header->n_blocks;
    if (!sized && header->n_sizes)
        return "rows without the sizes of their partitions";
    for (size_t i = 0; i < header->n_blocks; i++) {
        uint32_t id = header->blocks[i];
        if (id >= layout_units(server->settings.layout) ||
            index->local[id] == BLOCK_INDEX_NOT_LOCAL ||
            !server_is_partition(server, index->local[id]))
            return "a partition that is not on this ps";
        if (i && index->local[id] <= header->blocks[i - 1])
            return "partitions out of order";
        header->blocks[i] = index->local[id];
        bytes += sized ? header->sizes[i] : 0;
    }
    return bytes == payload ? NULL
                            : "a payload that is not the size of its rows";
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
    struct failure why;
    uint32_t probable = 0;
    for (uint32_t i = 0; i < header->n_sizes; i++, probable++) {
        uint32_t p = partition_of(server, header->blocks[i]);
        const struct row_part part = {bytes, header->sizes[i], NULL};
        bytes += part.size;
        if (part.size &&
            !row_lookups_find(server->row_lookups, header->rank, p, &part,
                              &probable) &&
            row_shard_check(server->row_shard, p, part.bytes, part.size, &why))
            return refusal(&why);
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

const char *server_push_rows(struct server *server, struct link_frame *frame,
                             Capstan__DataHeader *header) {
    bool has_rows = header->encoding == CAPSTAN__DATA_HEADER__ENCODING__FLOAT32;
    const char *error = check_partitions(server, header, frame->payload.size);
    if (!error && has_rows != (header->n_sizes == header->n_blocks))
        error = "rows without the sizes of their partitions";
    if (!error)
        error = check_rows(server, header, frame->payload.data);
    if (error)
        return error;
    struct gradient_payload *payload =
        gradient_inbox_receive(server->gradient_inbox, frame);
    if (!payload)
        return "no memory";
    const char *bytes = gradient_inbox_payload(payload)->data;
    if (!server_record_values(server, payload, header))
        error = "values of an optimizer's group that are not allowed";
    for (size_t i = 0; i < header->n_blocks && !error; i++) {
        uint32_t b = header->blocks[i], size = has_rows ? header->sizes[i] : 0;
        enum update_core_result result = server_push_unit(server, b, header);
        if (result == UPDATE_CORE_ACCEPTED)
            gradient_inbox_add_part(
                server->gradient_inbox, b, header->rank, payload,
                (struct link_bytes){size ? (void *)bytes : NULL, size},
                has_rows ||
                    header->encoding == CAPSTAN__DATA_HEADER__ENCODING__ZERO);
        if (result == UPDATE_CORE_REFUSED)
            error = "a push whose clock is out of order";
        bytes += size;
    }
    gradient_inbox_release(server->gradient_inbox, payload);
    return error;
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
            row_shard_list_bytes(server->row_shard, part->p, &part->list);
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
        if (row_shard_read(server->row_shard, part->p, bytes, header->sizes[i],
                           false, &part->list, &why))
            return refusal(&why);
        lookup->rows += part->list.rows;
        floats += part->list.floats;
        bytes += header->sizes[i];
    }
    if (!header->snapshot)
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
        row_shard_lookup(server->row_shard, part->p, held, &part->list,
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
    if (waits)
        row_lookups_remember(server->row_lookups, lookup);
}

const char *server_look_up(struct server *server, struct link_frame *frame,
                           Capstan__DataHeader *header) {
    const char *error = check_partitions(server, header, frame->payload.size);
    if (!error && header->n_sizes != header->n_blocks)
        error = "rows without the sizes of their partitions";
    if (error)
        return error;
    struct row_lookup *lookup =
        row_lookups_new(server->row_lookups, (uint32_t)header->n_blocks,
                        frame->payload.data, frame->payload.size);
    if (!lookup)
        return "no memory";
    error = fill_lookup(server, frame, header, lookup);
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
