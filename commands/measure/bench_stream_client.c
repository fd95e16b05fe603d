/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/bench_stream_client.h"

#include "core/base/time.h"
#include "core/net/shm/buffer.h"
#include "proto/messages/ps_links.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bench_stream_client_server {
    struct link *link; /* view */
    bool over_shm;
    uint32_t *ids,
        count;     /* blocks of the iteration's vector, in the plan's order */
    uint32_t next; /* index in `ids` of the next block to send */
    size_t in_flight;  /* bytes, and */
    uint32_t messages; /* messages not answered, the oldest, and per message */
    uint32_t oldest,
        left[BENCH_ITERATION_CREDIT_MESSAGES]; /* its blocks not answered */
    int64_t answered_at;
    int64_t logged_wait; /* start of the wait that was logged last */
};

struct bench_stream_client {
    struct bench_stream_client_settings settings;
    struct bench_stream_client_server *servers;
    struct ps_links *links;
    zmq_pollitem_t *items;
    uint64_t *clocks; /* per block */
    uint64_t seq, clock;
    struct buffer *out;
    char *in;

    /* The iteration. */
    enum bench_iteration_kind kind;
    uint32_t first, count;
    uint64_t sent, answered; /* blocks */
    bool vector_sent;        /* a vector has been sent completely */
};

enum { POLL_MS = 1 };
static const float GRADIENT_VALUE = 1e-6f;

/* Follows the wait for ps P, which lasts since SINCE, at NOW: logs it once,
 * after a few seconds. STATUS_RETRY naming the ps: its time is up. */
static enum status bench_stream_client_check_wait(
    struct bench_stream_client *client, uint32_t p, int64_t since, int64_t now,
    struct failure *why) {
    struct bench_stream_client_server *server = &client->servers[p];
    int64_t limit = time_from_seconds(client->settings.timeout);
    char peer[340], text[512];
    if (now - since < limit && now - since < deadline_warn_after(limit))
        return STATUS_OK;
    snprintf(peer, sizeof peer, "ps %u at %s", p,
             client->settings.plan->ps[p].address);
    struct deadline deadline =
        deadline_start(peer, "the limit of capstan bench", since, limit);
    if (deadline_passed(&deadline, now))
        return status_fail(
            why, FAILURE_PEER_SILENT,
            "%s has not answered for %.0f s (%s): it is gone, or the network "
            "is",
            peer, client->settings.timeout, deadline.limit);
    if (server->logged_wait != since) {
        deadline_text(&deadline, now, text, sizeof text);
        log_warning(client->settings.process->log, "waiting_for_ps", "%s",
                    text);
    }
    server->logged_wait = since;
    return STATUS_OK;
}

/* Follows the choice of a transport to PS; true: shared memory. */
static bool follow_shm_choice(struct bench_stream_client *client, uint32_t p,
                              bool *chosen) {
    struct link *link = client->servers[p].link;
    char text[128];
    zmq_poll(client->items, link_poll_items(link, client->items), POLL_MS);
    bool over_shm = link_renewed(link);
    *chosen = link_transport(link, text, sizeof text);
    if (*chosen)
        log_info(client->settings.process->log, "transport_chosen", "ps %u: %s",
                 p, text);
    return *chosen && over_shm;
}

/* Nothing else is under way. */
static bool is_greeted(struct bench_stream_client *client, uint32_t p) {
    zmq_pollitem_t item = {link_socket(client->servers[p].link), 0, ZMQ_POLLIN,
                           0};
    struct link_frame frame;
    Capstan__DataHeader *header;
    bool greeted = ps_links_greet(client->links, p);
    if (!greeted && zmq_poll(&item, 1, POLL_MS) == 1)
        while (ps_links_receive(client->links, p, &header, &frame))
            link_release(&frame);
    return greeted;
}

static enum status connect_server(struct bench_stream_client *client,
                                  uint32_t p, struct failure *why) {
    const struct bench_stream_client_settings *s = &client->settings;
    client->servers[p].link = ps_links_all(client->links)[p];
    bool chosen = !s->process->shm || !s->plan->ps[p].shm_key,
         connected = false;
    int64_t since = time_now(), now = since;
    for (; !connected; now = time_now()) {
        enum status status = ps_links_connect(client->links, p, now, now, why);
        if (!status)
            status = bench_stream_client_check_wait(client, p, since, now, why);
        if (status)
            return status;
        if (s->stop && atomic_load(s->stop))
            return status_fail(why, FAILURE_PEER_SILENT,
                               "stopped before ps %u at %s was connected", p,
                               s->plan->ps[p].address);
        if (!chosen)
            connected = client->servers[p].over_shm =
                follow_shm_choice(client, p, &chosen);
        else
            connected = is_greeted(client, p);
    }
    return STATUS_OK;
}

static enum status bench_stream_client_connect_all(
    struct bench_stream_client *client, struct failure *why) {
    const struct bench_stream_client_settings *s = &client->settings;
    struct ps_links_settings links = {.process = s->process,
                                      .rank = s->rank,
                                      .num_ps = s->plan->num_ps,
                                      .ps = s->plan->ps};
    enum status status = ps_links_open(&client->links, &links, why);
    for (uint32_t p = 0; !status && p < s->plan->num_ps; p++)
        status = connect_server(client, p, why);
    return status;
}

static bool bench_stream_client_allocate(struct bench_stream_client *client) {
    const struct plan *plan = client->settings.plan;
    uint32_t blocks = plan->layout->num_blocks;
    client->servers = calloc(plan->num_ps + 1, sizeof *client->servers);
    client->items = calloc((size_t)plan->num_ps * LINK_POLL_ITEMS + 1,
                           sizeof *client->items);
    client->clocks = calloc(blocks + 1, sizeof *client->clocks);
    client->out = buffer_open_shared(BENCH_ITERATION_RING_BYTES);
    client->in = malloc(BENCH_ITERATION_RING_BYTES);
    if (!client->servers || !client->items || !client->clocks || !client->out ||
        !client->in)
        return false;
    for (uint32_t b = 0; b < blocks; b++)
        client->clocks[b] = client->settings.from - 1;
    float *gradient = buffer_data(client->out);
    for (size_t i = 0; i < BENCH_ITERATION_RING_BYTES / sizeof(float); i++)
        gradient[i] = GRADIENT_VALUE;
    memset(client->in, 0, BENCH_ITERATION_RING_BYTES);
    for (uint32_t p = 0; p < plan->num_ps; p++) {
        client->servers[p].ids = calloc(blocks + 1, sizeof(uint32_t));
        if (!client->servers[p].ids)
            return false;
    }
    return true;
}

enum status bench_stream_client_open(
    struct bench_stream_client **out,
    const struct bench_stream_client_settings *settings, struct failure *why) {
    struct bench_stream_client *client = calloc(1, sizeof *client);
    enum status status;
    *out = NULL;
    if (!client)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a bench client");
    client->settings = *settings;
    client->clock = settings->from - 1;
    if (!bench_stream_client_allocate(client))
        status =
            status_fail(why, FAILURE_NO_MEMORY, "no memory for a bench client");
    else
        status = bench_stream_client_connect_all(client, why);
    if (status)
        bench_stream_client_close(&client);
    *out = client;
    return status;
}

void bench_stream_client_close(struct bench_stream_client **where) {
    struct bench_stream_client *client = *where;
    *where = NULL;
    if (!client)
        return;
    ps_links_close(&client->links);
    for (uint32_t p = 0; client->servers && p < client->settings.plan->num_ps;
         p++)
        free(client->servers[p].ids);
    free(client->servers);
    free(client->items);
    free(client->clocks);
    buffer_release(&client->out);
    free(client->in);
    free(client);
}

const char *bench_stream_client_transport(
    const struct bench_stream_client *client) {
    uint32_t num_ps = client->settings.plan->num_ps, shm = 0;
    for (uint32_t p = 0; p < num_ps; p++)
        shm += client->servers[p].over_shm;
    return shm == num_ps ? "shm" : shm ? "mixed" : "tcp";
}

uint64_t bench_stream_client_clock(const struct bench_stream_client *client) {
    return client->clock;
}

/* An iteration: vectors are sent as fast as credit allows, and answers
 * received. Two counters hold its state: blocks sent and blocks answered; a
 * vector is complete when they are equal. Credit is counted per ps, in bytes
 * and in messages, so that no ps waits for another's answers. */

static const int64_t STOP_INTERVAL = TIME_S / 4;

static size_t bench_stream_iteration_block_bytes(
    const struct bench_stream_client *client, uint32_t id) {
    return client->settings.plan->layout->blocks[id].elements * sizeof(float);
}

/* The offset of block ID of the iteration's vector in a ring buffer. */
static size_t ring_offset(const struct bench_stream_client *client, uint32_t id,
                          size_t bytes) {
    const struct layout *layout = client->settings.plan->layout;
    const struct block *block = &layout->blocks[id];
    size_t offset = block->offset * sizeof(float) % BENCH_ITERATION_RING_BYTES;
    return offset + bytes <= BENCH_ITERATION_RING_BYTES ? offset : 0;
}

/* The number of SERVER's next blocks that fit in one message. */
static uint32_t next_message(const struct bench_stream_client *client,
                             const struct bench_stream_client_server *server,
                             size_t *bytes) {
    uint32_t n = 0;
    *bytes = 0;
    while (server->next + n < server->count && n < MESSAGE_MAX_BLOCKS) {
        size_t more = bench_stream_iteration_block_bytes(
            client, server->ids[server->next + n]);
        if (n && *bytes + more > BENCH_ITERATION_GROUP_BYTES)
            break;
        *bytes += more;
        n++;
    }
    return n;
}

static bool bench_stream_iteration_fill(struct bench_stream_client *client,
                                        struct link *link, uint32_t id,
                                        size_t bytes,
                                        struct link_payload *payload) {
    size_t from = ring_offset(client, id, bytes);
    if (client->kind == BENCH_ITERATION_PULL) {
        link_no_payload(payload);
        return true;
    }
    if (bytes > BENCH_ITERATION_COPY_BYTES) {
        link_borrow(payload, client->out, from, bytes);
        return true;
    }
    if (!link_reserve(link, 0, payload, bytes))
        return false;
    memcpy(link_reserved(payload), (char *)buffer_data(client->out) + from,
           bytes);
    return true;
}

static bool bench_stream_iteration_send(struct bench_stream_client *client,
                                        uint32_t p, uint32_t n, size_t bytes) {
    uint32_t *ids = client->servers[p].ids + client->servers[p].next;
    struct link_payload payload;
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    bool pushes = client->kind != BENCH_ITERATION_PULL;
    header.kind = pushes ? CAPSTAN__DATA_HEADER__KIND__PUSH
                         : CAPSTAN__DATA_HEADER__KIND__PULL;
    header.seq = ++client->seq;
    header.clock = client->clocks[ids[0]] + pushes;
    header.ack_only = client->kind == BENCH_ITERATION_PUSH;
    header.n_blocks = n;
    header.blocks = ids;
    if (!bench_stream_iteration_fill(client, client->servers[p].link, ids[0],
                                     bytes, &payload) ||
        !ps_links_send(client->links, p, &header, &payload))
        return false;
    for (uint32_t i = 0; i < n; i++)
        client->clocks[ids[i]] = header.clock;
    if (header.clock > client->clock)
        client->clock = header.clock;
    return true;
}

/* Sends one message to each ps with credit; returns how many were sent. */
static unsigned send_messages(struct bench_stream_client *client,
                              struct bench_iteration *iteration, int64_t now) {
    unsigned left = 0;
    bool all_sent = true;
    for (uint32_t p = 0; p < client->settings.plan->num_ps; p++) {
        struct bench_stream_client_server *server = &client->servers[p];
        size_t bytes;
        uint32_t n = next_message(client, server, &bytes);
        bool has_credit = server->messages < BENCH_ITERATION_CREDIT_MESSAGES &&
                          (!server->messages ||
                           server->in_flight + bytes <= BENCH_ITERATION_CREDIT);
        if (n && has_credit &&
            bench_stream_iteration_send(client, p, n, bytes)) {
            if (!server->messages)
                server->answered_at = now;
            server->next += n;
            server->in_flight += bytes;
            server->left[(server->oldest + server->messages++) %
                         BENCH_ITERATION_CREDIT_MESSAGES] = n;
            client->sent += n;
            iteration->messages++;
            left++;
        }
        all_sent &= server->next == server->count;
    }
    client->vector_sent = all_sent;
    return left;
}

static enum status check_reply(const struct bench_stream_client *client,
                               uint32_t p, const Capstan__DataHeader *header,
                               size_t payload, struct failure *why) {
    bool push = client->kind == BENCH_ITERATION_PUSH;
    size_t bytes = 0;
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__REFUSED)
        return status_fail(why, FAILURE_PEER_REFUSED, "ps %u refuses: %s", p,
                           header->text);
    for (size_t i = 0; i < header->n_blocks; i++)
        if (header->blocks[i] < client->first ||
            header->blocks[i] - client->first >= client->count)
            return status_fail(why, FAILURE_BAD_MESSAGE,
                               "ps %u answers for block %u, which was not "
                               "asked for",
                               p, header->blocks[i]);
        else
            bytes +=
                bench_stream_iteration_block_bytes(client, header->blocks[i]);
    if (header->kind == (push ? CAPSTAN__DATA_HEADER__KIND__ACK
                              : CAPSTAN__DATA_HEADER__KIND__WEIGHTS) &&
        payload == (push ? 0 : bytes))
        return STATUS_OK;
    return status_fail(why, FAILURE_BAD_MESSAGE,
                       "ps %u answers with kind %d and %zu bytes for %zu", p,
                       (int)header->kind, payload, bytes);
}

/* Copies an answer's weights as a trainer would. */
static void store_reply(struct bench_stream_client *client,
                        struct bench_stream_client_server *server,
                        const Capstan__DataHeader *header,
                        const char *weights) {
    for (size_t i = 0; i < header->n_blocks; i++) {
        size_t bytes =
            bench_stream_iteration_block_bytes(client, header->blocks[i]);
        if (client->kind != BENCH_ITERATION_PUSH) {
            memcpy(client->in + ring_offset(client, header->blocks[i], bytes),
                   weights, bytes);
            weights += bytes;
        }
        server->in_flight -= bytes;
    }
    client->answered += header->n_blocks;
}

/* A request is answered by one message or several, in order. */
static void count_answer(struct bench_stream_client_server *server,
                         size_t blocks) {
    while (blocks && server->messages) {
        uint32_t *left = &server->left[server->oldest];
        uint32_t counted = blocks < *left ? (uint32_t)blocks : *left;
        *left -= counted;
        blocks -= counted;
        if (*left)
            return;
        server->oldest = (server->oldest + 1) % BENCH_ITERATION_CREDIT_MESSAGES;
        server->messages--;
    }
}

static enum status bench_stream_iteration_receive(
    struct bench_stream_client *client, uint32_t p, int64_t now,
    unsigned *received, struct failure *why) {
    struct bench_stream_client_server *server = &client->servers[p];
    struct link_frame frame;
    Capstan__DataHeader *header;
    enum status status = STATUS_OK;
    while (!status && server->messages &&
           ps_links_receive(client->links, p, &header, &frame)) {
        status = check_reply(client, p, header, frame.payload.size, why);
        if (!status) {
            store_reply(client, server, header, frame.payload.data);
            count_answer(server, header->n_blocks);
            server->answered_at = now;
            ++*received;
        }
        link_release(&frame);
    }
    return status;
}

static enum status bench_stream_iteration_receive_all(
    struct bench_stream_client *client, int64_t now, unsigned *received,
    struct failure *why) {
    enum status status = STATUS_OK;
    for (uint32_t p = 0; !status && p < client->settings.plan->num_ps; p++)
        status = bench_stream_iteration_receive(client, p, now, received, why);
    return status;
}

/* Waits for at most STOP_INTERVAL, in order to check for a stop. */
static enum status wait_for_answers(struct bench_stream_client *client,
                                    struct failure *why) {
    uint32_t num_ps = client->settings.plan->num_ps;
    int64_t limit = time_from_seconds(client->settings.timeout);
    if (link_busy_poll(ps_links_all(client->links), num_ps))
        return STATUS_OK;
    int64_t now = time_now(), oldest = now;
    for (uint32_t p = 0; p < num_ps; p++) {
        const struct bench_stream_client_server *server = &client->servers[p];
        if (!server->messages)
            continue;
        enum status status = bench_stream_client_check_wait(
            client, p, server->answered_at, now, why);
        if (status)
            return status;
        oldest = server->answered_at < oldest ? server->answered_at : oldest;
    }
    if (oldest + limit > now + STOP_INTERVAL)
        oldest = now + STOP_INTERVAL - limit;
    int count = 0;
    for (uint32_t p = 0; p < num_ps; p++)
        count +=
            link_poll_items(client->servers[p].link, client->items + count);
    zmq_poll(client->items, count, time_poll_ms(now, oldest + limit));
    return STATUS_OK;
}

/* Assigns the vector's blocks to their ps. */
static void assign_blocks(struct bench_stream_client *client, uint32_t first,
                          uint32_t count) {
    const struct plan *plan = client->settings.plan;
    for (uint32_t p = 0; p < plan->num_ps; p++)
        client->servers[p].count = client->servers[p].next = 0;
    for (uint32_t b = first; b < first + count; b++) {
        struct bench_stream_client_server *server =
            &client->servers[plan->block_ps[b]];
        server->ids[server->count++] = b;
    }
    for (uint32_t p = 0; p < plan->num_ps; p++)
        client->servers[p].next = client->servers[p].count;
    client->first = first;
    client->count = count;
    client->sent = client->answered = 0;
    client->vector_sent = true;
}

static void begin_vector(struct bench_stream_client *client) {
    for (uint32_t p = 0; p < client->settings.plan->num_ps; p++)
        client->servers[p].next = 0;
    client->vector_sent = false;
}

/* Messages in flight are abandoned: the client is then unusable. */
static bool is_stopped(const struct bench_iteration *iteration) {
    return iteration->stop && atomic_load(iteration->stop);
}

enum status bench_stream_iteration(struct bench_stream_client *client,
                                   uint32_t first, uint32_t count,
                                   struct bench_iteration *iteration,
                                   struct failure *why) {
    uint64_t started = 0, depth = iteration->depth ? iteration->depth : 1;
    unsigned unpolled = 0;
    enum status status = STATUS_OK;
    assign_blocks(client, first, count);
    client->kind = iteration->kind;
    iteration->bytes = 0;
    for (uint32_t b = first; b < first + count; b++)
        iteration->bytes += bench_stream_iteration_block_bytes(client, b);
    iteration->vectors = iteration->messages = iteration->samples = 0;
    int64_t start = time_now(), now = start, started_at = start;
    for (;;) {
        unsigned moved = 0;
        if (client->vector_sent && started - client->answered / count < depth &&
            bench_iteration_continues(iteration, started, now - start)) {
            begin_vector(client);
            started++;
            started_at = now;
        }
        if (!client->vector_sent)
            moved = send_messages(client, iteration, now);
        if (moved && ++unpolled % BENCH_ITERATION_SENDS_PER_POLL)
            continue;
        status = bench_stream_iteration_receive_all(client, now, &moved, why);
        if (status)
            break;
        if (!moved)
            status = wait_for_answers(client, why);
        now = time_now();
        if (depth == 1 && client->vector_sent &&
            client->answered == client->sent && moved)
            bench_iteration_record(iteration, now - started_at);
        bool over = client->vector_sent && client->answered == client->sent &&
                    !bench_iteration_continues(iteration, started, now - start);
        if (status || over || is_stopped(iteration))
            break;
    }
    iteration->vectors = client->answered / count;
    iteration->elapsed = now - start;
    return status;
}
