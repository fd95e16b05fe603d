/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/bench_stream_client.h"

#include "commands/measure/bench_stream_client_internal.h"
#include "core/base/deadline.h"
#include "core/base/time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POLL_MS = 1 };
static const float GRADIENT_VALUE = 1e-6f;

enum status bench_stream_client_check_wait(struct bench_stream_client *client,
                                           uint32_t p, int64_t since,
                                           int64_t now, struct failure *why) {
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
