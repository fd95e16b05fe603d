#include "worker/client.h"

#include "proto/base/time.h"
#include "proto/math/encoding.h"
#include "proto/wire/link.h"
#include "proto/wire/message.h"
#include "proto/wire/resolve.h"
#include "worker/window.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static const int64_t LOOK_UP_EVERY = 5 * TIME_S;
static const int64_t RETRY_AFTER = 10 * TIME_MS; /* no connection yet */

/* What the compute thread asked for, in order: COUNT parameters from FIRST. */
struct wish {
    uint64_t clock, snapshot;
    uint32_t first, count;
    enum window_kind kind;
};

struct peer {
    struct link *link;
    struct resolve *resolve;
    int64_t looked_up;
    char host[256], name[320]; /* "ps 1 at host:port" */
    uint16_t port;
    bool connected; /* or on the way to it */
};

struct client {
    struct client_settings settings;
    struct window *window;
    uint32_t *block_bytes; /* in a push */
    struct peer *peers;
    uint64_t seq, snapshot;
    int64_t step_limit, said_wait;
    struct message_arena arena;
    unsigned char header[MESSAGE_MAX_HEADER];
    char refusal[256]; /* last one logged */

    pthread_mutex_t mutex;
    pthread_cond_t arrived;
    int wake;
    struct wish *wishes; /* ring of num_parameters + 1 */
    uint32_t first_wish, num_wishes;
    uint32_t *missing; /* blocks awaited, a parameter */
    uint64_t global_step;
    struct loss_scaler scaler;
    double void_scale; /* of the last void push */
    bool cancelled;
    int64_t waited;
};

static enum status open_peers(struct client *client, struct failure *why) {
    const struct client_settings *s = &client->settings;
    struct link_settings link = {
        .max_frame = MESSAGE_MAX_PAYLOAD, .receive_frames = 0, .linger_ms = 0};
    enum status status = STATUS_OK;
    for (uint32_t p = 0; !status && p < s->plan->num_ps; p++) {
        struct peer *peer = &client->peers[p];
        status = link_open(&peer->link, s->zmq, LINK_CLIENT, &link, why);
        if (!status && s->inside)
            status = link_connect_inside(peer->link, s->inside, why);
        else if (!status && s->lanes)
            link_prefer_lane(peer->link, s->run, s->plan->ps[p].incarnation);
        if (!status)
            link_pace(peer->link, s->link_gbits, s->plan->num_ps);
        resolve_split(s->plan->ps[p].address, peer->host, sizeof peer->host,
                      &peer->port);
        snprintf(peer->name, sizeof peer->name, "ps %u at %s", p,
                 s->plan->ps[p].address);
        peer->looked_up = -LOOK_UP_EVERY;
    }
    return status;
}

static bool allocate(struct client *client) {
    const struct layout *layout = client->settings.plan->layout;
    const struct plan *plan = client->settings.plan;
    client->block_bytes =
        calloc(layout->num_blocks + 1, sizeof *client->block_bytes);
    client->peers = calloc(plan->num_ps + 1, sizeof *client->peers);
    client->wishes = calloc(layout->num_parameters + 1, sizeof *client->wishes);
    client->missing =
        calloc(layout->num_parameters + 1, sizeof *client->missing);
    if (!client->block_bytes || !client->peers || !client->wishes ||
        !client->missing)
        return false;
    for (uint32_t b = 0; b < layout->num_blocks; b++)
        client->block_bytes[b] = (uint32_t)encoding_bytes(
            client->settings.wire, layout->blocks[b].elements);
    struct window_settings window = {
        .num_blocks = layout->num_blocks,
        .num_ps = plan->num_ps,
        .block_ps = plan->block_ps,
        .block_bytes = client->block_bytes,
        .credit =
            client->settings.credit ? client->settings.credit : WINDOW_CREDIT,
        .group_bytes = window_group(client->settings.link_gbits),
        .ask_after = TIME_S,
        .retry_after = RETRY_AFTER,
    };
    client->window = window_open(&window);
    return client->window;
}

enum status client_open(struct client **out,
                        const struct client_settings *settings,
                        struct failure *why) {
    struct client *client = calloc(1, sizeof *client);
    if (!client)
        return status_fail(why, STATUS_RETRY, "no memory for the exchange");
    client->settings = *settings;
    client->step_limit = time_from_seconds(settings->step_timeout);
    client->scaler = settings->scaler;
    buffer_hold(settings->weights);
    buffer_hold(settings->gradients);
    pthread_mutex_init(&client->mutex, NULL);
    pthread_cond_init(&client->arrived, NULL);
    client->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    enum status status = STATUS_RETRY;
    if (client->wake < 0 || !allocate(client))
        status_fail(why, STATUS_RETRY, "no memory for the exchange");
    else
        status = open_peers(client, why);
    if (status)
        client_close(&client);
    *out = client;
    return status;
}

void client_close(struct client **where) {
    struct client *client = *where;
    *where = NULL;
    if (!client)
        return;
    for (uint32_t p = 0; client->peers && p < client->settings.plan->num_ps;
         p++) {
        resolve_end(&client->peers[p].resolve);
        link_close(&client->peers[p].link);
    }
    window_close(&client->window);
    buffer_release(&client->settings.weights);
    buffer_release(&client->settings.gradients);
    pthread_mutex_destroy(&client->mutex);
    pthread_cond_destroy(&client->arrived);
    if (client->wake >= 0)
        close(client->wake);
    free(client->block_bytes);
    free(client->peers);
    free(client->wishes);
    free(client->missing);
    free(client);
}

/* The mutex is held. A parameter is wished for once at a time, so the ring
 * never overflows. */
static void wish(struct client *client, struct wish wish) {
    const struct layout *layout = client->settings.plan->layout;
    uint32_t room = layout->num_parameters + 1;
    client->wishes[(client->first_wish + client->num_wishes++) % room] = wish;
    for (uint32_t p = wish.first; p < wish.first + wish.count; p++)
        client->missing[p] = layout->num_blocks_of[p];
}

void client_pull(struct client *client, uint64_t clock, uint64_t snapshot) {
    uint32_t count = client->settings.plan->layout->num_parameters;
    pthread_mutex_lock(&client->mutex);
    wish(client, (struct wish){clock, snapshot, 0, count, WINDOW_PULL});
    pthread_mutex_unlock(&client->mutex);
    eventfd_write(client->wake, 1);
}

void client_announce(struct client *client, uint32_t first, uint32_t count,
                     uint64_t clock, enum contribution what) {
    static const enum window_kind kinds[] = {
        [CONTRIBUTION_WHOLE] = WINDOW_PUSH,
        [CONTRIBUTION_EMPTY] = WINDOW_PUSH_EMPTY,
        [CONTRIBUTION_VOID] = WINDOW_PUSH_VOID,
    };
    pthread_mutex_lock(&client->mutex);
    if (what == CONTRIBUTION_VOID)
        client->void_scale = client->scaler.scale;
    wish(client, (struct wish){clock, 0, first, count, kinds[what]});
    pthread_mutex_unlock(&client->mutex);
    eventfd_write(client->wake, 1);
}

bool client_wait(struct client *client, uint32_t parameter) {
    pthread_mutex_lock(&client->mutex);
    if (client->missing[parameter] && !client->cancelled) {
        int64_t start = time_now();
        while (client->missing[parameter] && !client->cancelled)
            pthread_cond_wait(&client->arrived, &client->mutex);
        client->waited += time_now() - start;
    }
    bool here = !client->cancelled;
    pthread_mutex_unlock(&client->mutex);
    return here;
}

uint64_t client_global_step(struct client *client) {
    pthread_mutex_lock(&client->mutex);
    uint64_t step = client->global_step;
    pthread_mutex_unlock(&client->mutex);
    return step;
}

struct loss_scaler client_scaler(struct client *client) {
    pthread_mutex_lock(&client->mutex);
    struct loss_scaler scaler = client->scaler;
    pthread_mutex_unlock(&client->mutex);
    return scaler;
}

bool client_over_network(const struct client *client) {
    return client->settings.link_gbits > 0;
}

double client_waited(struct client *client) {
    pthread_mutex_lock(&client->mutex);
    int64_t waited = client->waited;
    pthread_mutex_unlock(&client->mutex);
    return time_to_seconds(waited);
}

void client_cancel(struct client *client) {
    pthread_mutex_lock(&client->mutex);
    client->cancelled = true;
    pthread_cond_broadcast(&client->arrived);
    pthread_mutex_unlock(&client->mutex);
}

int client_poll_items(struct client *client, zmq_pollitem_t *items, int room) {
    int count = 0;
    items[count++] = (zmq_pollitem_t){NULL, client->wake, ZMQ_POLLIN, 0};
    for (uint32_t p = 0;
         p < client->settings.plan->num_ps && count + LINK_POLL_ITEMS <= room;
         p++)
        count += link_poll_items(client->peers[p].link, items + count);
    return count;
}

int64_t client_deadline(const struct client *client) {
    return window_deadline(client->window);
}

static bool is_silent(struct client *client, uint32_t p, int64_t now) {
    uint32_t silent;
    int64_t since;
    return window_silent(client->window, &silent, &since) && silent == p &&
           now - since >= LOOK_UP_EVERY;
}

/* Names are looked up late, and again while a ps stays silent. */
static void look_up(struct client *client, uint32_t p, int64_t now) {
    struct peer *peer = &client->peers[p];
    char text[300];
    struct failure why;
    if (client->settings.inside)
        return;
    if (!peer->resolve && now - peer->looked_up >= LOOK_UP_EVERY &&
        (!peer->connected || is_silent(client, p, now))) {
        peer->looked_up = now;
        peer->resolve = resolve_start(peer->host, peer->port);
    }
    if (!peer->resolve)
        return;
    enum resolve_state state = resolve_poll(peer->resolve, text, sizeof text);
    if (state == RESOLVE_WAITING)
        return;
    if (state == RESOLVE_FAILED)
        log_warning(client->settings.log, "cannot find host %s of ps %u: %s",
                    peer->host, p, text);
    else if (link_connect(peer->link, text, &why))
        log_warning(client->settings.log, "ps %u: %s", p, why.text);
    else
        peer->connected = true;
    resolve_end(&peer->resolve);
}

static void grant_wishes(struct client *client) {
    const struct layout *layout = client->settings.plan->layout;
    eventfd_t count;
    eventfd_read(client->wake, &count);
    pthread_mutex_lock(&client->mutex);
    while (client->num_wishes) {
        struct wish wish = client->wishes[client->first_wish];
        client->first_wish =
            (client->first_wish + 1) % (layout->num_parameters + 1);
        client->num_wishes--;
        client->snapshot = wish.snapshot;
        uint32_t begin = layout->first_block[wish.first + wish.count - 1];
        uint32_t end =
            layout->first_block[wish.first] + layout->num_blocks_of[wish.first];
        window_want(client->window, begin, end - begin, wish.kind, wish.clock);
    }
    pthread_mutex_unlock(&client->mutex);
}

static size_t elements_of(const struct client *client, uint32_t b) {
    return client->settings.plan->layout->blocks[b].elements;
}

/* Where block B begins in both arenas, in floats. */
static size_t offset_of(const struct client *client, uint32_t b) {
    const struct block *block = &client->settings.plan->layout->blocks[b];
    return client->settings.offsets[block->parameter] + block->offset;
}

/* What weights travel in: those of a snapshot, or of now. */
static enum job_wire wire_of(const struct client *client, uint64_t snapshot) {
    return snapshot ? JOB_FLOAT32 : client->settings.wire;
}

/* Do they lie as they travel? */
static bool contiguous(const struct client *client,
                       const struct window_request *request) {
    size_t end = offset_of(client, request->blocks[0]);
    if (client->settings.wire != JOB_FLOAT32)
        return false;
    for (uint32_t i = 0; i < request->count; i++) {
        if (offset_of(client, request->blocks[i]) != end)
            return false;
        end += elements_of(client, request->blocks[i]);
    }
    return true;
}

/* Neighbouring blocks leave from where they lie, others are gathered. */
static bool fill_payload(struct client *client,
                         const struct window_request *request,
                         struct link_payload *payload) {
    if (request->kind != WINDOW_PUSH) {
        link_no_payload(payload);
        return true;
    }
    if (contiguous(client, request)) {
        link_borrow(payload, client->settings.gradients,
                    offset_of(client, request->blocks[0]) * sizeof(float),
                    request->bytes);
        return true;
    }
    if (!link_reserve(client->peers[request->ps].link, 0, payload,
                      request->bytes))
        return false;
    char *to = link_reserved(payload);
    const float *from = buffer_data(client->settings.gradients);
    for (uint32_t i = 0; i < request->count; i++) {
        uint32_t b = request->blocks[i];
        encoding_write(client->settings.loops, client->settings.wire,
                       from + offset_of(client, b), elements_of(client, b), to);
        to += client->block_bytes[b];
    }
    return true;
}

static Capstan__DataHeader__Encoding encoding_of(
    const struct client *client, const struct window_request *request,
    uint64_t snapshot) {
    if (request->kind == WINDOW_PUSH_EMPTY)
        return CAPSTAN__DATA_HEADER__ENCODING__EMPTY;
    if (request->kind == WINDOW_PUSH_VOID)
        return CAPSTAN__DATA_HEADER__ENCODING__VOID;
    return encoding_name(wire_of(client, snapshot));
}

static double void_scale_of(struct client *client) {
    pthread_mutex_lock(&client->mutex);
    double scale = client->void_scale;
    pthread_mutex_unlock(&client->mutex);
    return scale;
}

static bool send_request(struct client *client,
                         struct window_request *request) {
    static const Capstan__DataHeader__Kind kinds[] = {
        [WINDOW_PUSH] = CAPSTAN__DATA_HEADER__KIND__PUSH,
        [WINDOW_PUSH_EMPTY] = CAPSTAN__DATA_HEADER__KIND__PUSH,
        [WINDOW_PUSH_VOID] = CAPSTAN__DATA_HEADER__KIND__PUSH,
        [WINDOW_PULL] = CAPSTAN__DATA_HEADER__KIND__PULL,
        [WINDOW_ASK] = CAPSTAN__DATA_HEADER__KIND__ASK,
    };
    struct link_payload payload;
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    header.kind = kinds[request->kind];
    header.run = client->settings.run;
    header.incarnation = client->settings.incarnation;
    header.rank = client->settings.rank;
    header.seq = ++client->seq;
    header.clock = request->clock;
    header.n_blocks = request->count;
    header.blocks = request->blocks;
    if (request->kind == WINDOW_PULL)
        header.snapshot = client->snapshot;
    header.encoding = encoding_of(client, request, header.snapshot);
    if (request->kind == WINDOW_PUSH_VOID)
        header.loss_scale = void_scale_of(client);
    if (!fill_payload(client, request, &payload))
        return false;
    size_t bytes = message_write_data(&header, client->header);
    return link_commit(client->peers[request->ps].link, 0, client->header,
                       bytes, &payload);
}

/* Copies the weights of a reply's awaited blocks into place. Its step is known
 * before anybody who waits for them goes on. */
static void take_weights(struct client *client,
                         const Capstan__DataHeader *header, const char *from,
                         int64_t now) {
    const struct layout *layout = client->settings.plan->layout;
    float *weights = buffer_data(client->settings.weights);
    enum job_wire wire = wire_of(client, header->snapshot);
    pthread_mutex_lock(&client->mutex);
    if (header->step > client->global_step)
        client->global_step = header->step;
    pthread_mutex_unlock(&client->mutex);
    for (size_t i = 0; i < header->n_blocks; i++) {
        uint32_t b = header->blocks[i], p = layout->blocks[b].parameter;
        if (header->snapshot == client->snapshot &&
            window_arrived(client->window, b, header->clock, now)) {
            encoding_read(client->settings.loops, wire, from,
                          elements_of(client, b),
                          weights + offset_of(client, b));
            pthread_mutex_lock(&client->mutex);
            if (b == 0 && !header->snapshot)
                client->scaler = (struct loss_scaler){
                    .scale = header->loss_scale, .skipped = header->skipped};
            if (!--client->missing[p])
                pthread_cond_signal(&client->arrived);
            pthread_mutex_unlock(&client->mutex);
        }
        from += encoding_bytes(wire, elements_of(client, b));
    }
}

/* Blocks are of this ps; weights are in what they were asked for, and have
 * their size. */
static bool is_sound(const struct client *client, uint32_t ps,
                     const Capstan__DataHeader *header, size_t payload) {
    const struct plan *plan = client->settings.plan;
    enum job_wire wire = wire_of(client, header->snapshot);
    size_t bytes = 0;
    if (header->run != client->settings.run ||
        header->incarnation != plan->ps[ps].incarnation)
        return false;
    for (size_t i = 0; i < header->n_blocks; i++) {
        if (header->blocks[i] >= plan->layout->num_blocks ||
            plan->block_ps[header->blocks[i]] != ps)
            return false;
        bytes += encoding_bytes(wire, elements_of(client, header->blocks[i]));
    }
    if (header->kind != CAPSTAN__DATA_HEADER__KIND__WEIGHTS)
        return !payload;
    return header->encoding == encoding_name(wire) && payload == bytes;
}

static void take_answer(struct client *client, uint32_t ps,
                        const Capstan__DataHeader *header,
                        const struct link_frame *frame, int64_t now) {
    switch (header->kind) {
    case CAPSTAN__DATA_HEADER__KIND__WEIGHTS:
        take_weights(client, header, frame->payload.data, now);
        break;
    case CAPSTAN__DATA_HEADER__KIND__LACK:
        window_heard(client->window, ps, now);
        for (size_t i = 0; i < header->n_blocks; i++)
            window_lacking(client->window, header->blocks[i], header->clock);
        break;
    case CAPSTAN__DATA_HEADER__KIND__REFUSED:
        if (strncmp(client->refusal, header->text, sizeof client->refusal - 1))
            log_warning(client->settings.log, "ps %u refused: %s", ps,
                        header->text);
        snprintf(client->refusal, sizeof client->refusal, "%s", header->text);
        break;
    default:
        break;
    }
}

static void receive(struct client *client, uint32_t ps, int64_t now) {
    struct link_frame frame;
    while (link_view(client->peers[ps].link, &frame)) {
        Capstan__DataHeader *header;
        struct failure bad;
        if (message_read_data(&header, &client->arena, frame.header.data,
                              frame.header.size, &bad))
            log_warning(client->settings.log, "from ps %u: %s", ps, bad.text);
        else if (is_sound(client, ps, header, frame.payload.size))
            take_answer(client, ps, header, &frame, now);
        link_release(&frame);
    }
}

struct wait client_silent(const struct client *client) {
    uint32_t ps;
    int64_t since;
    if (!window_silent(client->window, &ps, &since))
        return (struct wait){.until = TIME_NEVER};
    return wait_for(client->peers[ps].name, "timeouts.step", since,
                    client->step_limit);
}

/* At a tenth of its time, as the chief names slow trainers. */
static void say_wait(struct client *client, const struct wait *wait,
                     int64_t now) {
    char text[512];
    if (wait->until == TIME_NEVER || client->said_wait == wait->since ||
        now - wait->since < client->step_limit / 10)
        return;
    client->said_wait = wait->since;
    wait_text(wait, now, text, sizeof text);
    log_warning(client->settings.log, "%s", text);
}

static enum status check_silence(struct client *client, int64_t now,
                                 struct failure *why) {
    struct wait wait = client_silent(client);
    say_wait(client, &wait, now);
    if (!wait_over(&wait, now))
        return STATUS_OK;
    return status_fail(why, STATUS_RETRY,
                       "%s has not answered for %.0f s (%s): if steps really "
                       "take that long, set it to %.0f",
                       wait.peer, time_to_seconds(now - wait.since), wait.limit,
                       2 * time_to_seconds(client->step_limit));
}

static void send_due(struct client *client, int64_t now) {
    struct window_request request;
    while (window_next(client->window, now, &request))
        if (!send_request(client, &request))
            window_unsent(client->window, &request, now);
}

static void say_way(const struct client *client, uint32_t p) {
    char text[128];
    if (link_way(client->peers[p].link, text, sizeof text))
        log_info(client->settings.log, "ps %u: %s", p, text);
}

enum status client_step(struct client *client, int64_t now,
                        struct failure *why) {
    for (uint32_t p = 0; p < client->settings.plan->num_ps; p++) {
        look_up(client, p, now);
        say_way(client, p);
        if (link_renewed(client->peers[p].link))
            window_reconnected(client->window, p);
        receive(client, p, now);
    }
    grant_wishes(client);
    send_due(client, now);
    return check_silence(client, now, why);
}
