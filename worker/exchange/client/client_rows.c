/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of tables. For the window a partition is two blocks behind those of the
 * weights: one for its pushes, with the numbers that messages use, and one for
 * its lookups. So rows are sent, asked for and sent again as blocks are. */
#include "worker/exchange/client/client_internal.h"

#include <string.h>
#include <sys/eventfd.h>

static uint32_t partitions(const struct client *client) {
    return client->settings.plan->layout->num_partitions;
}

uint32_t client_first_push(const struct client *client) {
    return client->settings.plan->layout->num_blocks;
}

uint32_t client_first_lookup(const struct client *client) {
    return client_first_push(client) + partitions(client);
}

void client_lookup(struct client *client, uint64_t clock, bool early,
                   uint64_t snapshot, struct row_batch *rows) {
    pthread_mutex_lock(&client->mutex);
    client->lookup = (struct client_rows){.rows = rows,
                                          .clock = clock,
                                          .early = early,
                                          .snapshot = snapshot,
                                          .requested = true};
    for (uint32_t p = 0; p < partitions(client); p++)
        client->lookup.missing += rows->parts[p].bytes > 0;
    pthread_mutex_unlock(&client->mutex);
    eventfd_write(client->wake, 1);
}

static bool rows_are_here(const struct client *client) {
    return !client->lookup.missing;
}

static bool push_has_room(const struct client *client) {
    return !client->push.requested;
}

static bool rows_are_pushed(const struct client *client) {
    return !client->push.requested && !client->sent_push.missing;
}

/* Waits until IS_MET; the mutex is held. */
static bool await_rows(struct client *client,
                       bool (*is_met)(const struct client *), int64_t until) {
    int64_t start = time_now();
    bool waits = !is_met(client) && !client->cancelled;
    while (!is_met(client) && !client->cancelled &&
           time_cond_wait(&client->arrived, &client->mutex, until))
        ;
    if (waits)
        client->waited += time_now() - start;
    return is_met(client) && !client->cancelled;
}

bool client_push_rows(struct client *client, uint64_t clock,
                      enum contribution contribution_kind,
                      struct row_batch *rows) {
    static const enum window_kind kinds[] = {
        [CONTRIBUTION_FULL] = WINDOW_PUSH,
        [CONTRIBUTION_ZERO] = WINDOW_PUSH_ZERO,
        [CONTRIBUTION_EMPTY] = WINDOW_PUSH_EMPTY,
        [CONTRIBUTION_OVERFLOWED] = WINDOW_PUSH_OVERFLOWED,
    };
    pthread_mutex_lock(&client->mutex);
    double scale = client->scaler.scale; /* of this step */
    bool has_room = await_rows(client, push_has_room, TIME_NEVER);
    if (has_room)
        client->push = (struct client_rows){.rows = rows,
                                            .clock = clock,
                                            .kind = kinds[contribution_kind],
                                            .overflow_scale = scale,
                                            .requested = true};
    pthread_mutex_unlock(&client->mutex);
    if (has_room)
        eventfd_write(client->wake, 1);
    return has_room;
}

bool client_wait_rows(struct client *client, int64_t until) {
    pthread_mutex_lock(&client->mutex);
    bool here = await_rows(client, rows_are_here, until);
    pthread_mutex_unlock(&client->mutex);
    return here;
}

bool client_wait_pushed(struct client *client, int64_t until) {
    pthread_mutex_lock(&client->mutex);
    bool pushed = await_rows(client, rows_are_pushed, until);
    pthread_mutex_unlock(&client->mutex);
    return pushed;
}

/* The bytes of partition P in a push of ROWS. */
static uint32_t pushed_bytes(const struct client_rows *rows, uint32_t p) {
    const struct row_batch_part *part = &rows->rows->parts[p];
    return part->bytes ? part->bytes + part->floats * (uint32_t)sizeof(float)
                       : 0;
}

/* A push waits until the one before is answered. */
void client_start_rows(struct client *client) {
    uint32_t first = client_first_push(client), count = partitions(client);
    bool pushes = client->push.requested && !client->sent_push.missing;
    bool looks_up = client->lookup.requested;
    if (pushes) {
        client->sent_push = client->push;
        client->sent_push.missing = count;
        client->push.requested = false;
        pthread_cond_broadcast(&client->arrived);
    }
    if (looks_up) {
        client->sent_lookup = client->lookup;
        client->sent_lookup.after = client->seq;
    }
    const struct client_rows *push = &client->sent_push,
                             *lookup = &client->sent_lookup;
    for (uint32_t p = 0; pushes && p < count; p++)
        client->block_bytes[first + p] =
            push->kind == WINDOW_PUSH ? pushed_bytes(push, p) : 0;
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
    client->lookup.requested = false;
}

static const struct row_batch_part *row_part_of(
    const struct client_rows *rows, const struct window_request *request,
    uint32_t first, uint32_t i) {
    return &rows->rows->parts[request->blocks[i] - first];
}

/* The lists of each partition, and in a push its gradients. */
static bool fill_rows(struct client *client,
                      const struct window_request *request, uint32_t first,
                      uint32_t *sizes, struct link_payload *payload) {
    bool push = first == client_first_push(client);
    const struct client_rows *rows =
        push ? &client->sent_push : &client->sent_lookup;
    size_t bytes = 0;
    for (uint32_t i = 0; i < request->count; i++) {
        const struct row_batch_part *part =
            row_part_of(rows, request, first, i);
        sizes[i] =
            push ? pushed_bytes(rows, request->blocks[i] - first) : part->bytes;
        bytes += sizes[i];
    }
    link_no_payload(payload);
    if (!bytes)
        return true;
    if (!link_reserve(client->peers[request->ps].link, 0, payload, bytes))
        return false;
    char *to = link_reserved(payload);
    for (uint32_t i = 0; i < request->count; i++) {
        const struct row_batch_part *part =
            row_part_of(rows, request, first, i);
        memcpy(to, rows->rows->bytes + part->first_byte, part->bytes);
        if (push && part->floats)
            memcpy(to + part->bytes, rows->rows->gradients + part->first_float,
                   part->floats * sizeof(float));
        to += sizes[i];
    }
    return true;
}

bool client_send_rows(struct client *client,
                      const struct window_request *request) {
    uint32_t blocks[WINDOW_MAX_BLOCKS], sizes[WINDOW_MAX_BLOCKS];
    struct link_payload payload;
    bool push = request->kind != WINDOW_PULL;
    uint32_t first =
        push ? client_first_push(client) : client_first_lookup(client);
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    bool has_rows = !push || request->kind == WINDOW_PUSH;
    for (uint32_t i = 0; i < request->count; i++)
        blocks[i] = request->blocks[i] - first + client_first_push(client);
    header.kind = push ? CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS
                       : CAPSTAN__DATA_HEADER__KIND__LOOKUP;
    header.seq = ++client->seq;
    header.clock = request->clock;
    header.n_blocks = request->count;
    header.blocks = blocks;
    header.snapshot = push ? 0 : client->sent_lookup.snapshot;
    header.early = !push && client->sent_lookup.early;
    header.encoding = client_encoding(client, request, &header);
    if (request->kind == WINDOW_PUSH_OVERFLOWED)
        header.loss_scale = client->sent_push.overflow_scale;
    if (push)
        client_add_values(client, request, &header);
    link_no_payload(&payload);
    if (has_rows) {
        header.n_sizes = request->count;
        header.sizes = sizes;
        if (!fill_rows(client, request, first, sizes, &payload))
            return false;
    }
    return ps_links_send(client->links, request->ps, &header, &payload);
}

/* One of the partitions that ROWS waits for is here. */
static void count_down(struct client *client, struct client_rows *rows) {
    pthread_mutex_lock(&client->mutex);
    if (!--rows->missing)
        pthread_cond_broadcast(&client->arrived);
    pthread_mutex_unlock(&client->mutex);
}

void client_take_receipt(struct client *client, uint32_t b, uint64_t clock,
                         int64_t now) {
    if (window_received(client->window, b, clock, now))
        count_down(client, &client->sent_push);
}

bool client_rows_are_valid(const struct client *client,
                           const Capstan__DataHeader *header, size_t payload) {
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

void client_take_rows(struct client *client, const Capstan__DataHeader *header,
                      const char *from, int64_t now) {
    const struct client_rows *lookup = &client->sent_lookup;
    for (size_t i = 0; i < header->n_blocks; i++) {
        uint32_t p = header->blocks[i] - client_first_push(client);
        if (window_received(client->window, client_first_lookup(client) + p,
                            header->clock, now)) {
            memcpy(lookup->rows->weights + lookup->rows->parts[p].first_float,
                   from, header->sizes[i]);
            count_down(client, &client->lookup);
        }
        from += header->sizes[i];
    }
}
