/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads meet here. The compute thread queues requests (queue_request)
 * and wakes the communication thread, which alone uses the links and the
 * window: it sends the requests and decrements `outstanding` as blocks arrive.
 * Both hold the mutex for that. The arenas have no lock: a parameter's weights
 * are written only while some of its blocks are missing, and the compute thread
 * does not read them before client_wait returns; its gradients stay unchanged
 * until then. */
#include "worker/exchange/client/client.h"

#include "core/base/time.h"
#include "proto/plan/encoding.h"
#include "worker/exchange/client/client_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Which ps this trainer reaches. The chief is told with each heartbeat and
 * judges who is at fault, as it knows what the others reach; here a loss is
 * only waited for. A connection counts, not an answer: libzmq's own thread
 * keeps it also for a ps that computes, or writes a snapshot, for long. */

static const int64_t FLAP = 6 * TIME_S;

/* A path that loses large packets alone lets connections begin and small
 * requests pass; each connection ends 3 to 5 s after a large one. So a loss is
 * made good only once the ps has answered for a block by the new connection, or
 * that has lasted for as long as a loss may. */
void client_follow_peer(struct client_peer *peer, int64_t since,
                        uint64_t received, int64_t limit, int64_t now) {
    bool answered = received != peer->received;
    peer->received = received;
    if (since) {
        peer->flaps |= peer->lost && peer->back && now - peer->back < FLAP;
        peer->back = 0;
        if (!peer->lost)
            peer->lost = since;
        return;
    }
    if (!peer->back)
        peer->back = now;
    if (answered || now - peer->back >= limit) {
        peer->lost = 0;
        peer->flaps = false;
    }
}

/* A loss does not grow while there is a connection, unless that is one of
 * several that ended soon: the ps may only compute for long. */
int64_t client_peer_lost_for(const struct client_peer *peer, int64_t now) {
    if (!peer->lost)
        return 0;
    return (peer->back && !peer->flaps ? peer->back : now) - peer->lost;
}

/* A standstill of this process moves what the link says by its length. */
static void client_follow_connections(struct client *client, int64_t stall,
                                      int64_t now) {
    for (uint32_t p = 0; p < client->settings.plan->num_ps; p++) {
        struct client_peer *peer = &client->peers[p];
        int64_t since = 0;
        deadline_shift(&peer->lost, stall, now);
        deadline_shift(&peer->back, stall, now);
        if (!peer->holds)
            continue;
        link_is_lost(peer->link, &since);
        client_follow_peer(peer, since,
                           window_received_count(client->window, p),
                           client->lost_limit, now);
    }
}

/* The ps that has been out of reach for longest; `until` TIME_NEVER: none. */
static struct deadline client_lost(const struct client *client) {
    const struct client_peer *first = NULL;
    for (uint32_t p = 0; p < client->settings.plan->num_ps; p++) {
        const struct client_peer *peer = &client->peers[p];
        bool out = peer->lost && (!peer->back || peer->flaps);
        if (out && (!first || peer->lost < first->lost))
            first = peer;
    }
    if (!first)
        return (struct deadline){.until = TIME_NEVER};
    return deadline_start(first->name, "timeouts.peer", first->lost,
                          client->lost_limit);
}

void client_report_lost(const struct client *client, int64_t now,
                        Capstan__Heartbeat *heartbeat) {
    heartbeat->lost = client->lost_pointers;
    heartbeat->n_lost = 0;
    for (uint32_t p = 0; p < client->settings.plan->num_ps; p++) {
        int64_t time = client_peer_lost_for(&client->peers[p], now);
        if (!time)
            continue;
        Capstan__LostPs *lost = &client->lost[heartbeat->n_lost];
        capstan__lost_ps__init(lost);
        lost->ps = p;
        lost->seconds = time_to_seconds(time);
        client->lost_pointers[heartbeat->n_lost++] = lost;
    }
}

static const int64_t TRANSPORT_SETTLE_TIME = 2 * TIME_S;
static const int64_t RETRY_AFTER = 10 * TIME_MS; /* no connection yet */

static enum status client_open_links(struct client *client,
                                     struct failure *why) {
    const struct client_settings *s = &client->settings;
    struct ps_links_settings links = {.process = s->process,
                                      .rank = s->rank,
                                      .num_ps = s->plan->num_ps,
                                      .ps = s->plan->ps,
                                      .inproc = s->inproc};
    enum status status = ps_links_open(&client->links, &links, why);
    for (uint32_t p = 0; !status && p < s->plan->num_ps; p++) {
        struct client_peer *peer = &client->peers[p];
        peer->link = ps_links_all(client->links)[p];
        link_limit_rate(peer->link, s->link_gbits, s->plan->num_ps);
        snprintf(peer->name, sizeof peer->name, "ps %u at %s",
                 s->plan->ps[p].index, s->plan->ps[p].address);
        peer->lost = peer->holds ? time_now() : 0; /* not connected yet */
    }
    return status;
}

static bool client_allocate(struct client *client) {
    const struct layout *layout = client->settings.plan->layout;
    const struct plan *plan = client->settings.plan;
    uint32_t all = layout->num_blocks + 2 * layout->num_partitions;
    client->block_bytes = calloc(all + 1, sizeof *client->block_bytes);
    client->block_ps = calloc(all + 1, sizeof *client->block_ps);
    client->staged_at =
        calloc(layout->num_blocks + 1, sizeof *client->staged_at);
    client->peers = calloc(plan->num_ps + 1, sizeof *client->peers);
    client->requests =
        calloc(layout->num_parameters + 1, sizeof *client->requests);
    client->outstanding =
        calloc(layout->num_parameters + 1, sizeof *client->outstanding);
    client->stored = calloc(layout->num_parameters + 1, sizeof *client->stored);
    client->gradient_of =
        calloc(layout->num_parameters + 1, sizeof *client->gradient_of);
    client->push_values = push_values_open(plan->num_groups);
    client->lost = calloc(plan->num_ps + 1, sizeof *client->lost);
    client->lost_pointers =
        calloc(plan->num_ps + 1, sizeof *client->lost_pointers);
    if (!client->lost || !client->lost_pointers || !client->block_bytes ||
        !client->block_ps || !client->staged_at || !client->peers ||
        !client->requests || !client->outstanding || !client->stored ||
        !client->gradient_of || !client->push_values)
        return false;
    for (uint32_t b = 0; b < layout->num_blocks; b++)
        client->block_bytes[b] = (uint32_t)encoding_bytes(
            encoding_of_block(layout, b, client->settings.wire),
            layout->blocks[b].elements);
    for (uint32_t b = 0; b < all; b++)
        client->block_ps[b] = plan->block_ps[b < layout_units(layout)
                                                 ? b
                                                 : b - layout->num_partitions];
    for (uint32_t b = 0; b < all; b++)
        client->peers[client->block_ps[b]].holds = true;
    struct window_settings window = {
        .num_blocks = all,
        .first_push = layout->num_blocks,
        .first_lookup = layout_units(layout),
        .num_ps = plan->num_ps,
        .block_ps = client->block_ps,
        .block_bytes = client->block_bytes,
        .credit =
            client->settings.credit ? client->settings.credit : MESSAGE_CREDIT,
        .group_bytes = message_group_bytes(client->settings.link_gbits),
        .query_after = TIME_S,
        .retry_after = RETRY_AFTER,
    };
    client->window = window_open(&window);
    return client->window;
}

void client_close(struct client **where) {
    struct client *client = *where;
    *where = NULL;
    if (!client)
        return;
    ps_links_close(&client->links);
    window_close(&client->window);
    buffer_release(&client->settings.weights);
    buffer_release(&client->settings.gradients);
    waiter_close(&client->waiter);
    if (client->wake >= 0)
        close(client->wake);
    buffer_release(&client->staging);
    free(client->staged_at);
    free(client->block_bytes);
    free(client->block_ps);
    free(client->gradient_of);
    push_values_close(&client->push_values);
    free(client->peers);
    free(client->requests);
    free(client->outstanding);
    free(client->stored);
    free(client->lost);
    free(client->lost_pointers);
    free(client);
}

/* The mutex is held. A parameter has at most one request at a time, so the ring
 * never overflows. */
static void queue_request(struct client *client,
                          struct client_request request) {
    const struct layout *layout = client->settings.plan->layout;
    uint32_t capacity = layout->num_parameters + 1;
    bool pushes = request.kind <= WINDOW_PUSH_OVERFLOWED;
    if (pushes ? request.clock != client->pushed
               : !request.source.snapshot && !request.source.tensor)
        client->round = UINT64_MAX;
    if (pushes && request.clock != client->pushed) {
        client->pushed = request.clock;
        client->late = false;
    }
    client->requests[(client->first_request + client->num_requests++) %
                     capacity] = request;
    for (uint32_t p = request.first; p < request.first + request.count; p++) {
        client->outstanding[p] = layout->num_blocks_of[p];
        client->stored[p] = false;
    }
}

static void client_ask(struct client *client, struct client_request request) {
    waiter_enter(&client->waiter);
    queue_request(client, request);
    waiter_leave(&client->waiter);
    eventfd_write(client->wake, 1);
}

static void client_pull(struct exchange *exchange, uint64_t clock,
                        uint64_t snapshot) {
    struct client *client = (struct client *)exchange;
    uint32_t count = client->settings.plan->layout->num_parameters;
    client_ask(client,
               (struct client_request){
                   clock, {.snapshot = snapshot}, 0, count, WINDOW_PULL});
}

/* The ps of a new run compute the same from the seed. */
static bool client_fetch(struct exchange *exchange, uint64_t clock) {
    const struct client *client = (const struct client *)exchange;
    const struct plan *plan = client->settings.plan;
    if (!plan->pull_first && clock <= plan->run_schedule.start)
        return false;
    client_pull(exchange, clock, 0);
    return true;
}

static bool client_read_state(struct exchange *exchange, uint32_t parameter,
                              uint64_t clock, unsigned slot, float *to) {
    struct client_source source = {.tensor = 1 + slot, .to = to};
    client_ask(
        (struct client *)exchange,
        (struct client_request){clock, source, parameter, 1, WINDOW_PULL});
    return true;
}

static void client_set_values(struct exchange *exchange, uint64_t clock,
                              uint32_t group, const double *values) {
    struct client *client = (struct client *)exchange;
    waiter_enter(&client->waiter);
    push_values_set(client->push_values, clock, group, values);
    waiter_leave(&client->waiter);
}

static void client_assign(struct exchange *exchange, uint64_t clock,
                          struct row_batch *rows) {
    struct client *client = (struct client *)exchange;
    const struct layout *layout = client->settings.plan->layout;
    client_ask(client,
               (struct client_request){
                   clock, {0}, 0, layout->num_parameters, WINDOW_ASSIGN});
    if (!rows)
        return;
    waiter_enter(&client->waiter);
    client->push = (struct client_rows){.rows = rows,
                                        .clock = clock,
                                        .kind = WINDOW_ASSIGN,
                                        .missing = layout->num_partitions,
                                        .requested = true};
    waiter_leave(&client->waiter);
    eventfd_write(client->wake, 1);
}

static void client_write_rows(struct exchange *exchange,
                              struct row_batch *rows) {
    struct client *client = (struct client *)exchange;
    waiter_enter(&client->waiter);
    client->written = rows;
    waiter_leave(&client->waiter);
}

static void client_settle(struct exchange *exchange) {
    struct client *client = (struct client *)exchange;
    waiter_enter(&client->waiter);
    client->settled = true;
    waiter_leave(&client->waiter);
    eventfd_write(client->wake, 1);
}

/* The communication thread reads `gradient_of` after the announcement, which
 * the mutex orders. */
static bool client_contribute(struct exchange *exchange,
                              const struct exchange_gradient *gradient) {
    struct client *client = (struct client *)exchange;
    if (gradient->kind != CONTRIBUTION_FULL)
        return false;
    buffer_set_memory(gradient->gradient, (void *)gradient->data,
                      gradient->bytes);
    client->gradient_of[gradient->parameter] = gradient->gradient;
    return true;
}

/* Weights and means arrive in the caller's memory. */
static bool client_take(struct exchange *exchange, uint32_t parameter,
                        bool if_brought, float *to) {
    struct client *client = (struct client *)exchange;
    (void)if_brought, (void)to;
    waiter_enter(&client->waiter);
    bool stored = client->stored[parameter];
    waiter_leave(&client->waiter);
    return stored;
}

static void client_announce(struct exchange *exchange, uint32_t first,
                            uint32_t count, uint64_t clock,
                            enum contribution contribution_kind) {
    struct client *client = (struct client *)exchange;
    static const enum window_kind kinds[] = {
        [CONTRIBUTION_FULL] = WINDOW_PUSH,
        [CONTRIBUTION_ZERO] = WINDOW_PUSH_ZERO,
        [CONTRIBUTION_EMPTY] = WINDOW_PUSH_EMPTY,
        [CONTRIBUTION_OVERFLOWED] = WINDOW_PUSH_OVERFLOWED,
    };
    waiter_enter(&client->waiter);
    if (contribution_kind == CONTRIBUTION_OVERFLOWED)
        client->overflow_scale = client->scaler.scale;
    queue_request(client,
                  (struct client_request){
                      clock, {0}, first, count, kinds[contribution_kind]});
    waiter_leave(&client->waiter);
    eventfd_write(client->wake, 1);
}

static bool client_wait(struct exchange *exchange, uint32_t parameter,
                        int64_t until) {
    struct client *client = (struct client *)exchange;
    waiter_enter(&client->waiter);
    while (client->outstanding[parameter] &&
           waiter_wait(&client->waiter, until, &client->waited))
        ;
    bool ready = !client->outstanding[parameter] && !client->waiter.cancelled;
    waiter_leave(&client->waiter);
    return ready;
}

static void client_lookup(struct exchange *exchange, uint64_t clock, bool early,
                          uint64_t snapshot, struct row_batch *rows) {
    struct client *client = (struct client *)exchange;
    waiter_enter(&client->waiter);
    client->lookup = (struct client_rows){
        .rows = rows, .clock = clock, .early = early, .snapshot = snapshot};
    for (uint32_t p = 0; p < client->settings.plan->layout->num_partitions; p++)
        client->lookup.missing += rows->parts[p].bytes > 0;
    client->lookup.requested = client->lookup.missing;
    waiter_leave(&client->waiter);
    eventfd_write(client->wake, 1);
}

/* Waits until NEXT has left, and unless SENT is NULL that is answered; the
 * mutex is held. */
static bool await_rows(struct client *client, const struct client_rows *next,
                       const struct client_rows *sent, int64_t until) {
    bool waits;
    while ((waits = next->requested || (sent && sent->missing)) &&
           waiter_wait(&client->waiter, until, &client->waited))
        ;
    return !waits && !client->waiter.cancelled;
}

static bool client_push_rows(struct exchange *exchange, uint64_t clock,
                             enum contribution contribution_kind,
                             struct row_batch *rows) {
    struct client *client = (struct client *)exchange;
    static const enum window_kind kinds[] = {
        [CONTRIBUTION_FULL] = WINDOW_PUSH,
        [CONTRIBUTION_ZERO] = WINDOW_PUSH_ZERO,
        [CONTRIBUTION_EMPTY] = WINDOW_PUSH_EMPTY,
        [CONTRIBUTION_OVERFLOWED] = WINDOW_PUSH_OVERFLOWED,
    };
    uint32_t partitions = client->settings.plan->layout->num_partitions;
    waiter_enter(&client->waiter);
    double scale = client->scaler.scale; /* of this step */
    bool has_room = await_rows(client, &client->push, NULL, TIME_NEVER);
    if (has_room)
        client->push = (struct client_rows){.rows = rows,
                                            .written = client->written,
                                            .clock = clock,
                                            .kind = kinds[contribution_kind],
                                            .overflow_scale = scale,
                                            .missing = partitions,
                                            .requested = true};
    client->written = NULL;
    waiter_leave(&client->waiter);
    if (has_room)
        eventfd_write(client->wake, 1);
    return has_room;
}

static bool client_wait_rows(struct exchange *exchange, int64_t until) {
    struct client *client = (struct client *)exchange;
    waiter_enter(&client->waiter);
    bool here =
        await_rows(client, &client->lookup, &client->sent_lookup, until);
    waiter_leave(&client->waiter);
    return here;
}

static bool client_wait_pushed(struct exchange *exchange, int64_t until) {
    struct client *client = (struct client *)exchange;
    waiter_enter(&client->waiter);
    bool pushed = await_rows(client, &client->push, &client->sent_push, until);
    waiter_leave(&client->waiter);
    return pushed;
}

static uint64_t client_global_step(struct exchange *exchange) {
    struct client *client = (struct client *)exchange;
    waiter_enter(&client->waiter);
    uint64_t step = client->global_step;
    waiter_leave(&client->waiter);
    return step;
}

static uint64_t client_round(struct exchange *exchange, bool *late) {
    struct client *client = (struct client *)exchange;
    waiter_enter(&client->waiter);
    uint64_t round = client->round == UINT64_MAX ? 0 : client->round;
    *late = client->late;
    waiter_leave(&client->waiter);
    return round;
}

static bool client_had_batch(struct exchange *exchange, uint64_t clock) {
    struct client *client = (struct client *)exchange;
    waiter_enter(&client->waiter);
    bool had = client->brought >= clock;
    waiter_leave(&client->waiter);
    return had;
}

static uint64_t client_due(struct exchange *exchange, uint32_t *lead) {
    struct client *client = (struct client *)exchange;
    waiter_enter(&client->waiter);
    uint64_t due = client->due;
    *lead = client->lead;
    waiter_leave(&client->waiter);
    return due;
}

static void client_set_epoch(struct exchange *exchange, uint64_t number,
                             uint64_t first) {
    struct client *client = (struct client *)exchange;
    waiter_enter(&client->waiter);
    client->names_epochs = true;
    client->epoch = number + 1;
    client->epoch_first = first;
    waiter_leave(&client->waiter);
}

static bool client_epoch(struct exchange *exchange, uint64_t *number,
                         uint64_t *first) {
    struct client *client = (struct client *)exchange;
    waiter_enter(&client->waiter);
    bool known = client->epoch > 0;
    *number = client->epoch - known;
    *first = client->epoch_first;
    waiter_leave(&client->waiter);
    return known;
}

static struct loss_scaler client_scaler(struct exchange *exchange) {
    struct client *client = (struct client *)exchange;
    waiter_enter(&client->waiter);
    struct loss_scaler scaler = client->scaler;
    waiter_leave(&client->waiter);
    return scaler;
}

static uint64_t client_rule_step(struct exchange *exchange,
                                 uint32_t parameter) {
    struct client *client = (struct client *)exchange;
    (void)parameter;
    waiter_enter(&client->waiter);
    uint64_t step = client->rule_step;
    waiter_leave(&client->waiter);
    return step;
}

static bool client_over_network(const struct exchange *exchange) {
    const struct client *client = (const struct client *)exchange;
    return client->settings.link_gbits > 0;
}

static bool client_needs_all(const struct exchange *exchange) {
    (void)exchange;
    return false;
}

/* Lists are sent to look rows up, and again to push them. */
static uint64_t client_row_bytes(const struct exchange *exchange,
                                 const struct row_batch *rows) {
    (void)exchange;
    return 2 * rows->lists + rows->floats * sizeof(float);
}

static double client_waited(struct exchange *exchange) {
    struct client *client = (struct client *)exchange;
    waiter_enter(&client->waiter);
    int64_t waited = client->waited;
    waiter_leave(&client->waiter);
    return time_to_seconds(waited);
}

/* Cancellation is permanent: every later wait returns at once. */
static void client_cancel(struct exchange *exchange) {
    waiter_cancel(&((struct client *)exchange)->waiter);
}

/* A client's gradients and weights are on the host. */

static enum status client_begin(struct exchange *exchange,
                                const struct reducer_device_arena *device_arena,
                                struct failure *why) {
    (void)exchange, (void)device_arena, (void)why;
    return STATUS_OK;
}

static enum status client_unscale(struct exchange *exchange, float by,
                                  bool *finite, struct failure *why) {
    (void)exchange, (void)by, (void)finite, (void)why;
    return STATUS_OK;
}

static enum status client_download_weights(struct exchange *exchange,
                                           struct failure *why) {
    (void)exchange, (void)why;
    return STATUS_OK;
}

static void client_has_nothing_to_do(struct exchange *exchange) {
    (void)exchange;
}

static bool client_peer_lost(struct exchange *exchange, struct failure *why) {
    (void)exchange, (void)why;
    return false;
}

static const struct exchange client_exchange_table = {
    .fetch = client_fetch,
    .pull = client_pull,
    .assign = client_assign,
    .set_values = client_set_values,
    .settle = client_settle,
    .contribute = client_contribute,
    .announce = client_announce,
    .wait = client_wait,
    .take = client_take,
    .due = client_due,
    .read_state = client_read_state,
    .rule_step = client_rule_step,
    .set_epoch = client_set_epoch,
    .epoch = client_epoch,
    .lookup = client_lookup,
    .wait_rows = client_wait_rows,
    .push_rows = client_push_rows,
    .write_rows = client_write_rows,
    .wait_pushed = client_wait_pushed,
    .row_bytes = client_row_bytes,
    .global_step = client_global_step,
    .round = client_round,
    .had_batch = client_had_batch,
    .over_network = client_over_network,
    .needs_all = client_needs_all,
    .waited = client_waited,
    .scaler = client_scaler,
    .begin = client_begin,
    .unscale = client_unscale,
    .download_weights = client_download_weights,
    .serve = client_has_nothing_to_do,
    .peer_lost = client_peer_lost,
    .end = client_has_nothing_to_do,
    .cancel = client_cancel,
};

enum status client_open(struct client **out,
                        const struct client_settings *settings,
                        struct failure *why) {
    struct client *client = calloc(1, sizeof *client);
    if (!client)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for the ps client");
    client->exchange = client_exchange_table;
    client->exchange.trace = settings->process->trace;
    client->settings = *settings;
    client->step_limit = time_from_seconds(settings->step_timeout);
    client->lost_limit =
        ps_links_lost_limit(time_from_seconds(settings->peer_timeout));
    client->scaler = settings->scaler;
    client->round = UINT64_MAX;
    if (settings->weights)
        buffer_hold(settings->weights);
    if (settings->gradients)
        buffer_hold(settings->gradients);
    waiter_open(&client->waiter);
    client->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    enum status status;
    if (client->wake < 0)
        status = status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                              "cannot open an eventfd");
    else if (!client_allocate(client))
        status =
            status_fail(why, FAILURE_NO_MEMORY, "no memory for the ps client");
    else
        status = client_open_links(client, why);
    if (status)
        client_close(&client);
    *out = client;
    return status;
}

struct exchange *client_exchange(struct client *client) {
    return &client->exchange;
}

int client_poll_items(struct client *client, zmq_pollitem_t *items,
                      int capacity) {
    int count = 0;
    items[count++] = (zmq_pollitem_t){NULL, client->wake, ZMQ_POLLIN, 0};
    for (uint32_t p = 0; p < client->settings.plan->num_ps &&
                         count + LINK_POLL_ITEMS <= capacity;
         p++)
        count += link_poll_items(client->peers[p].link, items + count);
    return count;
}

int64_t client_deadline(const struct client *client) {
    return window_deadline(client->window);
}

/* Parameters ascend, blocks go from the last parameter to the first: a request
 * for parameters first..last is one run of blocks, beginning with the last
 * one's. */
static void start_requests(struct client *client) {
    const struct layout *layout = client->settings.plan->layout;
    eventfd_t count;
    eventfd_read(client->wake, &count);
    waiter_enter(&client->waiter);
    if (client->settled)
        window_settle(client->window);
    while (client->num_requests) {
        struct client_request request = client->requests[client->first_request];
        client->first_request =
            (client->first_request + 1) % (layout->num_parameters + 1);
        client->num_requests--;
        client->source = request.source;
        uint32_t begin = layout->first_block[request.first + request.count - 1];
        uint32_t end = layout->first_block[request.first] +
                       layout->num_blocks_of[request.first];
        window_enqueue(client->window, begin, end - begin, request.kind,
                       request.clock);
    }
    client_start_rows(client);
    waiter_leave(&client->waiter);
}

static struct deadline unanswered(const struct client *client) {
    uint32_t ps;
    int64_t since;
    if (!window_silent(client->window, &ps, &since))
        return (struct deadline){.until = TIME_NEVER};
    return deadline_start(client->peers[ps].name, "timeouts.step", since,
                          client->step_limit);
}

struct deadline client_silent(const struct client *client) {
    struct deadline lost = client_lost(client);
    return lost.until != TIME_NEVER ? lost : unanswered(client);
}

/* Warns of a ps that is out of reach as the chief does of a silent peer, and of
 * one that does not answer at a tenth of the limit, as of a slow trainer. */
static void log_wait(struct client *client, int64_t now) {
    struct deadline deadline = client_silent(client);
    bool lost = client_lost(client).until != TIME_NEVER;
    int64_t after = lost ? deadline_warn_after(client->lost_limit)
                         : client->step_limit / 10;
    char text[512];
    if (deadline.until == TIME_NEVER || client->logged_wait == deadline.since ||
        now - deadline.since < after)
        return;
    client->logged_wait = deadline.since;
    health_note(client->settings.process->health, EVENT_WARNED, 0,
                "a ps that does not answer", EVENT_NO_INDEX);
    deadline_text(&deadline, now, text, sizeof text);
    log_warning(client->settings.process->log, "waiting_for_ps", "%s", text);
}

/* What a loss of the connection means, the chief decides. */
static enum status client_check_silence(struct client *client, int64_t now,
                                        struct failure *why) {
    struct deadline deadline = unanswered(client);
    log_wait(client, now);
    if (!deadline_passed(&deadline, now))
        return STATUS_OK;
    return status_fail(why, FAILURE_PEER_SILENT,
                       "%s has not answered for %.0f s (%s): if steps really "
                       "take that long, set it to %.0f",
                       deadline.peer, time_to_seconds(now - deadline.since),
                       deadline.limit, 2 * time_to_seconds(client->step_limit));
}

static void client_log_lookup(const struct client *client,
                              const struct failure *why) {
    if (why->code == FAILURE_ADDRESS_UNRESOLVED)
        log_warning(client->settings.process->log, "host_not_found", "%s",
                    why->text);
    else
        log_warning(client->settings.process->log, "connect_failed", "%s",
                    why->text);
}

/* A change is logged once it has lasted: at the end of a run a ps may leave
 * shortly before this process does. */
static void client_log_transport(const struct client *client, uint32_t p,
                                 int64_t now) {
    struct client_peer *peer = &client->peers[p];
    if (link_transport(peer->link, peer->transport, sizeof peer->transport))
        peer->transport_since = now;
    if (!peer->transport[0] ||
        (peer->transport_logged &&
         now - peer->transport_since < TRANSPORT_SETTLE_TIME))
        return;
    const struct log *log = client->settings.process->log;
    uint32_t index = client->settings.plan->ps[p].index;
    if (link_is_over_shm(peer->link))
        log_detail(log, "transport_chosen", "ps %u: %s", index,
                   peer->transport);
    else
        log_info(log, "transport_chosen", "ps %u: %s", index, peer->transport);
    peer->transport[0] = 0;
    peer->transport_logged = true;
}

enum status client_step(struct client *client, int64_t now,
                        struct failure *why) {
    int64_t stall = deadline_stall(client->stepped_at, now);
    window_add_pause(client->window, stall);
    client->stepped_at = now;
    uint32_t silent = UINT32_MAX;
    int64_t since;
    window_silent(client->window, &silent, &since);
    for (uint32_t p = 0; p < client->settings.plan->num_ps; p++) {
        if (ps_links_connect(client->links, p, now, p == silent ? since : now,
                             why))
            client_log_lookup(client, why);
        client_log_transport(client, p, now);
        if (link_renewed(client->peers[p].link))
            window_reconnected(client->window, p);
        client_receive(client, p, now);
    }
    client_follow_connections(client, stall, now);
    start_requests(client);
    client_send_due(client, now);
    return client_check_silence(client, now, why);
}
