/* SPDX-License-Identifier: Apache-2.0 */
/* The messages between a trainer and the ps: sends the window's requests,
 * checks replies, and copies their weights into place. Rows of tables: for the
 * window a partition is two blocks behind those of the weights: one for its
 * pushes, with the numbers that messages use, and one for its lookups. So rows
 * are sent, asked for and sent again as blocks are. */
#include "core/base/trace.h"
#include "proto/plan/encoding.h"
#include "worker/exchange/client/client_internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

static size_t elements_of(const struct client *client, uint32_t b) {
    assert(b < client->settings.plan->layout->num_blocks);
    return client->settings.plan->layout->blocks[b].elements;
}

static float *caller_weights(const struct client *client, uint32_t b) {
    const struct block *block = &client->settings.plan->layout->blocks[b];
    return client->settings.weight_of[block->parameter] + block->offset;
}

/* Where the answer to CLOCK goes. */
static float *client_destination(const struct client *client, uint32_t b,
                                 uint64_t clock) {
    const struct client_settings *s = &client->settings;
    const struct block *block = &s->plan->layout->blocks[b];
    if (client->source.tensor)
        return client->source.to + block->offset;
    if (!s->mean_of || clock < s->from || !s->mean_of[block->parameter])
        return caller_weights(client, b);
    return s->mean_of[block->parameter] + block->offset;
}

static bool sends_weights(const struct window_request *request) {
    return request->kind == WINDOW_ASSIGN || request->kind == WINDOW_STORE;
}

/* The memory of block B's gradient, and the float of it where it begins. */
static struct buffer *gradient_buffer(const struct client *client, uint32_t b,
                                      size_t *offset) {
    const struct block *block = &client->settings.plan->layout->blocks[b];
    struct buffer *arena = client->settings.gradients;
    *offset = block->offset;
    if (!arena)
        return client->gradient_of[block->parameter];
    *offset += client->settings.offsets[block->parameter];
    return arena;
}

/* The wire format of the answer to HEADER, or of that answer: snapshots and
 * state are always float32. */
static enum job_wire wire_of(const struct client *client,
                             const Capstan__DataHeader *header) {
    return header->snapshot || header->tensor ? JOB_WIRE_FLOAT32
                                              : client->settings.wire;
}

/* The format of block B in a message of format WIRE. */
static enum job_wire wire_of_block(const struct client *client, uint32_t b,
                                   enum job_wire wire) {
    return encoding_of_block(client->settings.plan->layout, b, wire);
}

/* The format of the floats that REQUEST carries. */
static enum job_wire wire_of_request(const struct client *client,
                                     const struct window_request *request) {
    return sends_weights(request) ? JOB_WIRE_FLOAT32 : client->settings.wire;
}

/* True if the gradients are contiguous in memory in their wire format, and sent
 * from there without a copy. */
static bool contiguous(const struct client *client,
                       const struct window_request *request) {
    const struct link *link = client->peers[request->ps].link;
    size_t end, offset;
    struct buffer *first = gradient_buffer(client, request->blocks[0], &end);
    if (sends_weights(request) || client->settings.wire != JOB_WIRE_FLOAT32 ||
        (link_shares(link) && !link_can_share(link, 0, first)))
        return false;
    for (uint32_t i = 0; i < request->count; i++) {
        uint32_t b = request->blocks[i];
        if (gradient_buffer(client, b, &offset) != first || offset != end)
            return false;
        end += elements_of(client, b);
    }
    return true;
}

/* The bytes of REQUEST's blocks: those of an assignment are float32 whatever
 * the wire. */
static size_t payload_bytes(const struct client *client,
                            const struct window_request *request) {
    size_t bytes = 0;
    if (!sends_weights(request))
        return request->bytes;
    for (uint32_t i = 0; i < request->count; i++)
        bytes += elements_of(client, request->blocks[i]) * sizeof(float);
    return bytes;
}

static const float *floats_of(const struct client *client,
                              const struct window_request *request,
                              uint32_t b) {
    size_t offset;
    if (sends_weights(request))
        return caller_weights(client, b);
    struct buffer *buffer = gradient_buffer(client, b, &offset);
    return (const float *)buffer_data(buffer) + offset;
}

/* A ps's blocks follow each other, in the plan's order. */
static void open_staging(struct client *client) {
    const struct plan *plan = client->settings.plan;
    size_t bytes = 0;
    for (uint32_t p = 0; p < plan->num_ps; p++)
        for (uint32_t b = 0; b < plan->layout->num_blocks; b++)
            if (plan->block_ps[b] == p) {
                client->staged_at[b] = bytes;
                bytes += client->block_bytes[b];
            }
    client->staging = buffer_open_shared(bytes);
}

/* Room for REQUEST's gradients. In shared memory the ps reads them in place: a
 * ring is released in order, so it would copy them. */
static bool reserve(struct client *client, const struct window_request *request,
                    struct link_payload *payload, char **to) {
    struct link *link = client->peers[request->ps].link;
    uint32_t first = request->blocks[0];
    uint32_t last = request->blocks[request->count - 1];
    size_t bytes = payload_bytes(client, request);
    bool staged = !sends_weights(request) && link_shares(link);
    if (staged && !client->staging)
        open_staging(client);
    size_t end = client->staged_at[last] + client->block_bytes[last];
    if (staged && client->staging && end - client->staged_at[first] == bytes) {
        *to = (char *)buffer_data(client->staging) + client->staged_at[first];
        link_borrow(payload, client->staging, client->staged_at[first], bytes);
        return true;
    }
    if (!link_reserve(link, 0, payload, bytes))
        return false;
    *to = link_reserved(payload);
    return true;
}

/* Contiguous blocks are sent in place, others are gathered. */
static bool fill_payload(struct client *client,
                         const struct window_request *request,
                         struct link_payload *payload) {
    enum job_wire wire = wire_of_request(client, request);
    if (request->kind != WINDOW_PUSH && !sends_weights(request)) {
        link_no_payload(payload);
        return true;
    }
    if (contiguous(client, request)) {
        size_t offset;
        struct buffer *buffer =
            gradient_buffer(client, request->blocks[0], &offset);
        link_borrow(payload, buffer, offset * sizeof(float), request->bytes);
        return true;
    }
    char *to;
    if (!reserve(client, request, payload, &to))
        return false;
    for (uint32_t i = 0; i < request->count; i++) {
        uint32_t b = request->blocks[i];
        enum job_wire format = wire_of_block(client, b, wire);
        encoding_write(client->settings.process->loops, format,
                       floats_of(client, request, b), elements_of(client, b),
                       to);
        to += encoding_bytes(format, elements_of(client, b));
    }
    return true;
}

/* The encoding of the message HEADER for REQUEST. */
static Capstan__DataHeader__Encoding client_encoding(
    const struct client *client, const struct window_request *request,
    const Capstan__DataHeader *header) {
    if (request->kind == WINDOW_PUSH_EMPTY)
        return CAPSTAN__DATA_HEADER__ENCODING__EMPTY;
    if (request->kind == WINDOW_PUSH_OVERFLOWED)
        return CAPSTAN__DATA_HEADER__ENCODING__OVERFLOW;
    if (request->kind == WINDOW_PUSH_ZERO)
        return CAPSTAN__DATA_HEADER__ENCODING__ZERO;
    if (sends_weights(request) ||
        header->kind == CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS)
        return CAPSTAN__DATA_HEADER__ENCODING__FLOAT32;
    return encoding_name(wire_of(client, header));
}

static double overflow_scale_of(struct client *client) {
    waiter_enter(&client->waiter);
    double scale = client->overflow_scale;
    waiter_leave(&client->waiter);
    return scale;
}

/* Adds to HEADER, a push, the groups of REQUEST's blocks that are not as in the
 * plan; tables have the first. */
static void client_add_values(struct client *client,
                              const struct window_request *request,
                              Capstan__DataHeader *header) {
    const struct layout *layout = client->settings.plan->layout;
    if (!client->settings.plan->num_groups)
        return;
    waiter_enter(&client->waiter);
    push_values_begin(client->push_values, request->clock);
    for (uint32_t i = 0; i < request->count; i++) {
        uint32_t b = request->blocks[i];
        bool rows = b >= layout->num_blocks;
        uint32_t p = rows ? 0 : layout->blocks[b].parameter;
        push_values_add(client->push_values,
                        rows ? 0 : layout->parameters[p].group);
    }
    header->n_groups = push_values_list(client->push_values, &header->groups);
    waiter_leave(&client->waiter);
}

static void add_epoch(struct client *client, Capstan__DataHeader *header) {
    waiter_enter(&client->waiter);
    header->epoch = client->epoch;
    header->epoch_first = client->epoch_first;
    waiter_leave(&client->waiter);
}

static uint32_t partitions(const struct client *client) {
    return client->settings.plan->layout->num_partitions;
}

/* The window's numbers of the first partition. */
static uint32_t client_first_push(const struct client *client) {
    return client->settings.plan->layout->num_blocks;
}

static uint32_t client_first_lookup(const struct client *client) {
    return client_first_push(client) + partitions(client);
}

/* Lists and floats of partition P in ROWS; NULL: none. */
static uint32_t part_bytes(const struct row_batch *rows, uint32_t p) {
    const struct row_batch_part *part = rows ? &rows->parts[p] : NULL;
    return part && part->bytes
               ? part->bytes + part->floats * (uint32_t)sizeof(float)
               : 0;
}

/* What PUSH has bytes of, beside what it sets; NULL: nothing. */
static const struct row_batch *pushed_rows(const struct client_rows *push) {
    return push->kind == WINDOW_PUSH || push->kind == WINDOW_ASSIGN ? push->rows
                                                                    : NULL;
}

/* Takes what is requested as NEXT, once what was SENT is answered. */
static bool start_next(struct client *client, struct client_rows *next,
                       struct client_rows *sent) {
    if (!next->requested || sent->missing)
        return false;
    *sent = *next;
    sent->after = client->seq;
    next->requested = false;
    pthread_cond_broadcast(&client->waiter.changed);
    return true;
}

void client_start_rows(struct client *client) {
    uint32_t first = client_first_push(client), count = partitions(client);
    bool pushes = start_next(client, &client->push, &client->sent_push);
    bool looks_up = start_next(client, &client->lookup, &client->sent_lookup);
    const struct client_rows *push = &client->sent_push,
                             *lookup = &client->sent_lookup;
    for (uint32_t p = 0; pushes && p < count; p++)
        client->block_bytes[first + p] =
            part_bytes(pushed_rows(push), p) + part_bytes(push->written, p);
    if (pushes)
        window_enqueue(client->window, first, count, push->kind, push->clock);
    first = client_first_lookup(client);
    for (uint32_t p = 0; looks_up && p < count; p++) {
        const struct row_batch_part *part = &lookup->rows->parts[p];
        if (!part->bytes)
            continue;
        client->block_bytes[first + p] = part->floats * (uint32_t)sizeof(float);
        window_enqueue(client->window, first + p, 1, WINDOW_PULL,
                       lookup->clock);
    }
}

/* Copies partition P's lists of ROWS and, of a push, floats; where they end. */
static char *copy_part(const struct row_batch *rows, uint32_t p, bool floats,
                       char *to) {
    const struct row_batch_part *part = &rows->parts[p];
    memcpy(to, rows->bytes + part->first_byte, part->bytes);
    to += part->bytes;
    if (!floats || !part->floats)
        return to;
    memcpy(to, rows->gradients + part->first_float,
           part->floats * sizeof(float));
    return to + part->floats * sizeof(float);
}

/* The lists of each partition, and in a push the floats; then what it sets. */
static bool fill_rows(struct client *client,
                      const struct window_request *request, uint32_t first,
                      const Capstan__DataHeader *header,
                      struct link_payload *payload) {
    bool push = first == client_first_push(client);
    const struct client_rows *rows =
        push ? &client->sent_push : &client->sent_lookup;
    const struct row_batch *pushed = push ? pushed_rows(rows) : rows->rows;
    size_t bytes = 0;
    for (uint32_t i = 0; i < request->count; i++) {
        uint32_t p = request->blocks[i] - first;
        if (header->n_sizes)
            header->sizes[i] =
                push ? part_bytes(pushed, p) : pushed->parts[p].bytes;
        bytes += header->n_sizes ? header->sizes[i] : 0;
        if (header->n_assigned)
            header->assigned[i] = part_bytes(rows->written, p);
        bytes += header->n_assigned ? header->assigned[i] : 0;
    }
    link_no_payload(payload);
    if (!bytes)
        return true;
    if (!link_reserve(client->peers[request->ps].link, 0, payload, bytes))
        return false;
    char *to = link_reserved(payload);
    for (uint32_t i = 0; i < request->count; i++) {
        if (header->n_sizes)
            to = copy_part(pushed, request->blocks[i] - first, push, to);
        if (header->n_assigned)
            to = copy_part(rows->written, request->blocks[i] - first, true, to);
    }
    return true;
}

/* What began at START (0: it is not traced) for the blocks of HEADER. */
static void trace_blocks(struct client *client, int64_t start,
                         enum trace_kind kind,
                         const Capstan__DataHeader *header) {
    struct trace_record record = {.start = start,
                                  .duration = start ? time_now() - start : 0,
                                  .step = header->clock,
                                  .kind = (uint8_t)kind};
    for (size_t i = 0; start && i < header->n_blocks; i++) {
        record.block = header->blocks[i];
        trace_add(client->exchange.trace, &record);
    }
}

/* Sends HEADER; what began at START is traced if it is a push or a lookup. */
static bool send_traced(struct client *client, uint32_t ps, int64_t start,
                        Capstan__DataHeader *header,
                        struct link_payload *payload) {
    bool pushes = header->kind == CAPSTAN__DATA_HEADER__KIND__PUSH ||
                  header->kind == CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS;
    bool sent = ps_links_send(client->links, ps, header, payload);
    if (sent && (pushes || header->kind == CAPSTAN__DATA_HEADER__KIND__LOOKUP))
        trace_blocks(client, start, pushes ? TRACE_PUSH : TRACE_LOOKUP, header);
    return sent;
}

/* Sends a request for partitions. False: it cannot leave now. */
static bool client_send_rows(struct client *client,
                             const struct window_request *request) {
    uint32_t blocks[WINDOW_MAX_BLOCKS], sizes[WINDOW_MAX_BLOCKS];
    uint32_t assigned[WINDOW_MAX_BLOCKS];
    struct link_payload payload;
    bool push = request->kind != WINDOW_PULL;
    uint32_t first =
        push ? client_first_push(client) : client_first_lookup(client);
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    bool assigns = request->kind == WINDOW_ASSIGN;
    bool has_rows = !push || assigns || request->kind == WINDOW_PUSH;
    int64_t start = trace_begin(client->exchange.trace, request->clock);
    for (uint32_t i = 0; i < request->count; i++)
        blocks[i] = request->blocks[i] - first + client_first_push(client);
    header.kind = assigns ? CAPSTAN__DATA_HEADER__KIND__ASSIGN_ROWS
                  : push  ? CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS
                          : CAPSTAN__DATA_HEADER__KIND__LOOKUP;
    header.seq = ++client->seq;
    header.clock = request->clock;
    header.n_blocks = request->count;
    header.blocks = blocks;
    header.snapshot = push ? 0 : client->sent_lookup.snapshot;
    header.early = !push && client->sent_lookup.early;
    header.places = !push && client->sent_lookup.rows->places;
    header.encoding = client_encoding(client, request, &header);
    if (request->kind == WINDOW_PUSH_OVERFLOWED)
        header.loss_scale = client->sent_push.overflow_scale;
    if (push && !assigns)
        client_add_values(client, request, &header);
    header.n_sizes = has_rows ? request->count : 0;
    header.sizes = sizes;
    header.n_assigned = push && client->sent_push.written ? request->count : 0;
    header.assigned = assigned;
    if (!fill_rows(client, request, first, &header, &payload))
        return false;
    return send_traced(client, request->ps, start, &header, &payload);
}

/* One of the partitions that ROWS waits for is here. */
static void count_down(struct client *client, struct client_rows *rows) {
    waiter_enter(&client->waiter);
    if (!--rows->missing)
        pthread_cond_broadcast(&client->waiter.changed);
    waiter_leave(&client->waiter);
}

/* A ps has taken partition block B's push of CLOCK. */
static void client_take_receipt(struct client *client, uint32_t b,
                                uint64_t clock, int64_t now) {
    if (window_received(client->window, b, clock, now))
        count_down(client, &client->sent_push);
}

/* Are HEADER and PAYLOAD bytes an answer to the present lookup? */
static bool client_rows_are_valid(const struct client *client,
                                  const Capstan__DataHeader *header,
                                  size_t payload) {
    const struct client_rows *lookup = &client->sent_lookup;
    size_t bytes = 0;
    if (header->n_sizes != header->n_blocks || !lookup->rows ||
        header->seq <= lookup->after || /* answers an earlier lookup */
        header->clock != lookup->clock || header->snapshot != lookup->snapshot)
        return false;
    for (size_t i = 0; i < header->n_blocks; i++) {
        uint32_t p = header->blocks[i] - client_first_push(client);
        if (header->blocks[i] < client_first_push(client) ||
            p >= partitions(client) ||
            header->sizes[i] != lookup->rows->parts[p].floats * sizeof(float))
            return false;
        bytes += header->sizes[i];
    }
    return bytes == payload;
}

/* Stores the rows that such an answer has at FROM. With the last the batch is
 * the caller's again, whatever comes twice. */
static void client_take_rows(struct client *client,
                             const Capstan__DataHeader *header,
                             const char *from, int64_t now) {
    const struct client_rows *lookup = &client->sent_lookup;
    uint32_t left = lookup->missing;
    for (size_t i = 0; left && i < header->n_blocks; i++) {
        uint32_t p = header->blocks[i] - client_first_push(client);
        if (window_received(client->window, client_first_lookup(client) + p,
                            header->clock, now)) {
            memcpy(lookup->rows->weights + lookup->rows->parts[p].first_float,
                   from, header->sizes[i]);
            left = lookup->missing - 1;
            count_down(client, &client->sent_lookup);
        }
        from += header->sizes[i];
    }
    if (!left)
        client->sent_lookup.rows = NULL;
}

/* Of the messages of a step with PS the first of a kind. */
static void note_once(struct client *client, enum event_kind kind,
                      uint64_t clock, uint32_t ps, uint64_t *noted) {
    if (clock <= *noted)
        return;
    *noted = clock;
    health_note(client->settings.process->health, kind, clock, "ps", ps);
}

static bool client_messages_send_request(struct client *client,
                                         struct window_request *request) {
    static const Capstan__DataHeader__Kind kinds[] = {
        [WINDOW_PUSH] = CAPSTAN__DATA_HEADER__KIND__PUSH,
        [WINDOW_PUSH_ZERO] = CAPSTAN__DATA_HEADER__KIND__PUSH,
        [WINDOW_PUSH_EMPTY] = CAPSTAN__DATA_HEADER__KIND__PUSH,
        [WINDOW_PUSH_OVERFLOWED] = CAPSTAN__DATA_HEADER__KIND__PUSH,
        [WINDOW_ASSIGN] = CAPSTAN__DATA_HEADER__KIND__ASSIGN,
        [WINDOW_STORE] = CAPSTAN__DATA_HEADER__KIND__ASSIGN,
        [WINDOW_PULL] = CAPSTAN__DATA_HEADER__KIND__PULL,
        [WINDOW_QUERY] = CAPSTAN__DATA_HEADER__KIND__QUERY,
    };
    struct link_payload payload;
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    assert(request->count && request->count <= WINDOW_MAX_BLOCKS);
    if (!ps_links_greet(client->links, request->ps))
        return false; /* before the payload is made */
    if (request->kind != WINDOW_QUERY &&
        request->blocks[0] >= client_first_push(client))
        return client_send_rows(client, request);
    int64_t start = trace_begin(client->exchange.trace, request->clock);
    header.kind = kinds[request->kind];
    header.seq = ++client->seq;
    header.clock = request->clock;
    header.n_blocks = request->count;
    header.blocks = request->blocks;
    if (request->kind == WINDOW_PULL || request->kind == WINDOW_QUERY) {
        header.snapshot = client->source.snapshot;
        header.tensor = client->source.tensor;
    }
    header.encoding = client_encoding(client, request, &header);
    if (request->kind == WINDOW_PUSH_OVERFLOWED)
        header.loss_scale = overflow_scale_of(client);
    if (header.kind == CAPSTAN__DATA_HEADER__KIND__PUSH) {
        client_add_values(client, request, &header);
        add_epoch(client, &header);
    }
    bool sent = fill_payload(client, request, &payload) &&
                send_traced(client, request->ps, start, &header, &payload);
    if (sent && header.kind == CAPSTAN__DATA_HEADER__KIND__PUSH)
        note_once(client, EVENT_PUSHED, header.clock, request->ps,
                  &client->peers[request->ps].pushed);
    return sent;
}

/* Stored before waiting threads are woken. */
static void store_progress(struct client *client,
                           const Capstan__DataHeader *header) {
    waiter_enter(&client->waiter);
    if (header->step > client->global_step)
        client->global_step = header->step;
    if (header->brought > client->brought)
        client->brought = header->brought;
    if (header->due > client->due)
        client->due = header->due;
    client->lead = header->lead;
    if (!client->names_epochs) {
        client->epoch = header->epoch;
        client->epoch_first = header->epoch_first;
    }
    waiter_leave(&client->waiter);
}

/* Copies the weights of a reply's missing blocks into place; FROM NULL: the
 * round left them as they are. Who waits is woken once, as there may be many
 * small parameters. */
static void store_answer(struct client *client,
                         const Capstan__DataHeader *header, const char *from,
                         int64_t now) {
    const struct layout *layout = client->settings.plan->layout;
    const struct client_source *source = &client->source;
    enum job_wire wire = wire_of(client, header);
    bool present = !header->snapshot && !header->tensor, complete = false;
    if (present)
        store_progress(client, header);
    for (size_t i = 0; i < header->n_blocks; i++) {
        if (header->blocks[i] >= layout->num_blocks) {
            client_take_receipt(client, header->blocks[i], header->clock, now);
            continue;
        }
        uint32_t b = header->blocks[i], p = layout->blocks[b].parameter;
        enum job_wire format = wire_of_block(client, b, wire);
        if (header->snapshot == source->snapshot &&
            header->tensor == source->tensor &&
            window_received(client->window, b, header->clock, now)) {
            if (from)
                encoding_read(client->settings.process->loops, format, from,
                              elements_of(client, b),
                              client_destination(client, b, header->clock));
            waiter_enter(&client->waiter);
            client->stored[p] |= from != NULL;
            if (present && header->round < client->round)
                client->round = header->round;
            client->late |= header->late;
            if (b == 0 && present)
                client->scaler = (struct loss_scaler){
                    .scale = header->loss_scale, .skipped = header->skipped};
            if (header->tensor && !layout->blocks[b].offset)
                client->rule_step = header->step;
            complete |= !--client->outstanding[p];
            waiter_leave(&client->waiter);
        }
        if (from)
            from += encoding_bytes(format, elements_of(client, b));
    }
    if (complete)
        pthread_cond_broadcast(&client->waiter.changed);
}

/* Checks that the blocks belong to this ps and that weights have the requested
 * wire format and size. A refusal is a text without blocks. */
static bool client_messages_is_valid(const struct client *client, uint32_t ps,
                                     const Capstan__DataHeader *header,
                                     size_t payload) {
    const struct plan *plan = client->settings.plan;
    enum job_wire wire = wire_of(client, header);
    size_t bytes = 0;
    bool weights = header->kind == CAPSTAN__DATA_HEADER__KIND__WEIGHTS;
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__REFUSED)
        return !payload;
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__ROWS)
        return client_rows_are_valid(client, header, payload);
    for (size_t i = 0; i < header->n_blocks; i++) {
        bool dense =
            weights || header->kind == CAPSTAN__DATA_HEADER__KIND__WANTED;
        uint32_t known =
            dense ? plan->layout->num_blocks : layout_units(plan->layout);
        if (header->blocks[i] >= known ||
            plan->block_ps[header->blocks[i]] != ps)
            return false;
        if (!weights)
            continue;
        bytes += encoding_bytes(wire_of_block(client, header->blocks[i], wire),
                                elements_of(client, header->blocks[i]));
    }
    if (!weights)
        return !payload;
    return header->encoding == encoding_name(wire) && payload == bytes;
}

static void handle_reply(struct client *client, uint32_t ps,
                         const Capstan__DataHeader *header,
                         const struct link_frame *frame, int64_t now) {
    int64_t start = header->snapshot || header->tensor
                        ? 0
                        : trace_begin(client->exchange.trace, header->clock);
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__WEIGHTS &&
        !header->snapshot && !header->tensor)
        note_once(client, EVENT_ANSWERED, header->clock, ps,
                  &client->peers[ps].answered);
    switch (header->kind) {
    case CAPSTAN__DATA_HEADER__KIND__WEIGHTS:
        store_answer(client, header, frame->payload.data, now);
        trace_blocks(client, start, TRACE_ARRIVAL, header);
        break;
    case CAPSTAN__DATA_HEADER__KIND__ACK:
        store_answer(client, header, NULL, now);
        trace_blocks(client, start, TRACE_ARRIVAL, header);
        break;
    case CAPSTAN__DATA_HEADER__KIND__ROWS:
        client_take_rows(client, header, frame->payload.data, now);
        trace_blocks(client, start, TRACE_ROWS, header);
        break;
    case CAPSTAN__DATA_HEADER__KIND__WANTED:
        for (size_t i = 0; i < header->n_blocks; i++)
            window_wanted(client->window, header->blocks[i], header->clock);
        break;
    case CAPSTAN__DATA_HEADER__KIND__MISSING:
        window_answered(client->window, ps, now);
        for (size_t i = 0; i < header->n_blocks; i++)
            window_missing(client->window, header->blocks[i], header->clock);
        break;
    case CAPSTAN__DATA_HEADER__KIND__REFUSED:
        if (strncmp(client->refusal, header->text, sizeof client->refusal - 1))
            log_warning(client->settings.process->log, "request_refused",
                        "ps %u refused: %s",
                        client->settings.plan->ps[ps].index, header->text);
        snprintf(client->refusal, sizeof client->refusal, "%s", header->text);
        break;
    default:
        break;
    }
}

void client_receive(struct client *client, uint32_t ps, int64_t now) {
    struct link_frame frame;
    Capstan__DataHeader *header;
    while (ps_links_receive(client->links, ps, &header, &frame)) {
        if (client_messages_is_valid(client, ps, header, frame.payload.size))
            handle_reply(client, ps, header, &frame, now);
        link_release(&frame);
    }
}

void client_send_due(struct client *client, int64_t now) {
    struct window_request request;
    while (window_next(client->window, now, &request))
        if (!client_messages_send_request(client, &request))
            window_requeue(client->window, &request, now);
}
