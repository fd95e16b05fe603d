/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads meet here. The compute thread writes down what it wants (a
 * client_wish) and wakes the communication thread, which alone touches the
 * links and the window: it asks, and counts down `missing` as blocks come.
 * Both do that with the mutex held. The arenas themselves have no lock:
 * a parameter's weights are written only while some of its blocks are missing,
 * which is while the compute thread waits for it or has yet to, and its
 * gradients stay as they are until then. */
#include "worker/exchange/client/client.h"

#include "proto/base/time.h"
#include "proto/tensor/encoding.h"
#include "worker/exchange/client/client_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

static const int64_t LOOK_UP_EVERY = 5 * TIME_S;
static const int64_t WAY_LASTS = 2 * TIME_S;
static const int64_t RETRY_AFTER = 10 * TIME_MS; /* no connection yet */

static enum status open_peers(struct client *client, struct failure *why) {
    const struct client_settings *s = &client->settings;
    struct link_settings link = {
        .max_frame = MESSAGE_MAX_PAYLOAD, .receive_frames = 0, .linger_ms = 0};
    enum status status = STATUS_OK;
    for (uint32_t p = 0; !status && p < s->plan->num_ps; p++) {
        struct client_peer *peer = &client->peers[p];
        status = link_open(&peer->link, s->zmq, LINK_CLIENT, &link, why);
        if (!status && s->inside)
            status = link_connect_inside(peer->link, s->inside, why);
        else if (!status && s->lanes && s->plan->ps[p].lane)
            link_prefer_lane(peer->link, s->plan->ps[p].lane);
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
        .group_bytes = message_group(client->settings.link_gbits),
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
    enum status status;
    if (client->wake < 0)
        status =
            status_errno(why, STATUS_FAILED, errno, "cannot open an eventfd");
    else if (!allocate(client))
        status = status_fail(why, STATUS_RETRY, "no memory for the exchange");
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
static void wish(struct client *client, struct client_wish wish) {
    const struct layout *layout = client->settings.plan->layout;
    uint32_t room = layout->num_parameters + 1;
    client->wishes[(client->first_wish + client->num_wishes++) % room] = wish;
    for (uint32_t p = wish.first; p < wish.first + wish.count; p++)
        client->missing[p] = layout->num_blocks_of[p];
}

void client_pull(struct client *client, uint64_t clock, uint64_t snapshot) {
    uint32_t count = client->settings.plan->layout->num_parameters;
    pthread_mutex_lock(&client->mutex);
    wish(client, (struct client_wish){clock, snapshot, 0, count, WINDOW_PULL});
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
    wish(client, (struct client_wish){clock, 0, first, count, kinds[what]});
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

/* A wait that is over stays over: every later one ends at once. */
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
    struct client_peer *peer = &client->peers[p];
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

/* Parameters ascend, blocks go from the last parameter to the first: a wish for
 * parameters first..last is one run of blocks, from those of the last one on.
 */
static void grant_wishes(struct client *client) {
    const struct layout *layout = client->settings.plan->layout;
    eventfd_t count;
    eventfd_read(client->wake, &count);
    pthread_mutex_lock(&client->mutex);
    while (client->num_wishes) {
        struct client_wish wish = client->wishes[client->first_wish];
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

/* A change is said when it has lasted: at the end of a run a ps may leave a
 * moment before this process does. */
static void say_way(const struct client *client, uint32_t p, int64_t now) {
    struct client_peer *peer = &client->peers[p];
    if (link_way(peer->link, peer->way, sizeof peer->way))
        peer->way_since = now;
    if (!peer->way[0] || (peer->met && now - peer->way_since < WAY_LASTS))
        return;
    log_info(client->settings.log, "ps %u: %s", p, peer->way);
    peer->way[0] = 0;
    peer->met = true;
}

enum status client_step(struct client *client, int64_t now,
                        struct failure *why) {
    window_stood_still(client->window, wait_stood_still(client->stepped, now));
    client->stepped = now;
    for (uint32_t p = 0; p < client->settings.plan->num_ps; p++) {
        look_up(client, p, now);
        say_way(client, p, now);
        if (link_renewed(client->peers[p].link))
            window_reconnected(client->window, p);
        client_receive(client, p, now);
    }
    grant_wishes(client);
    client_send_due(client, now);
    return check_silence(client, now, why);
}
