/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/bench/bench_stream_client.h"

#include "proto/base/time.h"
#include "proto/net/link/resolve.h"
#include "worker/bench/bench_stream_client_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RESOLVE_POLL_MS = 1 };
static const float GRADIENT_VALUE = 1e-6f;

enum status bench_stream_client_silent(
    const struct bench_stream_client *bench_stream_client, uint32_t p,
    struct failure *why) {
    return status_fail(why, FAILURE_PEER_SILENT,
                       "ps %u at %s has not answered for %.0f s", p,
                       bench_stream_client->settings.plan->ps[p].address,
                       bench_stream_client->settings.timeout);
}

/* Writes the resolved "host:port" or "[v6]:port" of ps P to TEXT. */
static enum status bench_stream_client_resolve_ps(
    const struct bench_stream_client *bench_stream_client, uint32_t p,
    char *text, size_t size, struct failure *why) {
    const char *address = bench_stream_client->settings.plan->ps[p].address;
    const char *colon = strrchr(address, ':');
    bool bracket = address[0] == '[';
    char host[256];
    int length = colon ? (int)(colon - address) - 2 * bracket : 0;
    snprintf(host, sizeof host, "%.*s", length, address + bracket);
    struct resolve *resolve =
        resolve_start(host, colon ? (uint16_t)strtoul(colon + 1, NULL, 10) : 0);
    int64_t limit =
        time_now() + time_from_seconds(bench_stream_client->settings.timeout);
    enum resolve_state state = resolve ? RESOLVE_WAITING : RESOLVE_FAILED;
    snprintf(text, size, "no answer");
    while (state == RESOLVE_WAITING && time_now() < limit) {
        zmq_poll(NULL, 0, RESOLVE_POLL_MS);
        state = resolve_poll(resolve, text, size);
    }
    resolve_end(&resolve);
    return state == RESOLVE_FOUND
               ? STATUS_OK
               : status_fail(why, FAILURE_ADDRESS_UNRESOLVED,
                             "cannot find host %s of ps %u: %s", host, p, text);
}

/* Waits for the choice of a transport; true: shared memory. */
static bool bench_stream_client_connect_shm(
    struct bench_stream_client *bench_stream_client, uint32_t p) {
    const struct bench_stream_client_settings *s =
        &bench_stream_client->settings;
    struct bench_stream_client_server *server =
        &bench_stream_client->servers[p];
    char text[128];
    while (!link_transport(server->link, text, sizeof text)) {
        int count = link_poll_items(server->link, bench_stream_client->items);
        zmq_poll(bench_stream_client->items, count, RESOLVE_POLL_MS);
        server->shm_key = link_renewed(server->link);
    }
    log_info(s->log, "transport_chosen", "ps %u: %s", p, text);
    return server->shm_key;
}

static enum status connect_server(
    struct bench_stream_client *bench_stream_client, uint32_t p,
    struct failure *why) {
    struct link_settings settings = {.max_frame = MESSAGE_MAX_PAYLOAD};
    struct bench_stream_client_server *server =
        &bench_stream_client->servers[p];
    char text[300];
    enum status status = bench_stream_client_resolve_ps(bench_stream_client, p,
                                                        text, sizeof text, why);
    if (!status)
        status = link_open(&server->link, bench_stream_client->settings.zmq,
                           LINK_CLIENT, &settings, why);
    bench_stream_client->links[p] = server->link;
    uint64_t shm_key = bench_stream_client->settings.shm
                           ? bench_stream_client->settings.plan->ps[p].shm_key
                           : 0;
    if (!status && shm_key)
        link_prefer_shm(server->link, shm_key);
    if (!status)
        status = link_connect(server->link, text, why);
    if (status)
        return status;
    if (shm_key && bench_stream_client_connect_shm(bench_stream_client, p))
        return STATUS_OK;
    zmq_pollitem_t item = {link_socket(server->link), 0, ZMQ_POLLOUT, 0};
    int64_t limit = time_from_seconds(bench_stream_client->settings.timeout);
    return zmq_poll(&item, 1, time_poll_ms(0, limit)) == 1
               ? STATUS_OK
               : bench_stream_client_silent(bench_stream_client, p, why);
}

static bool bench_stream_client_allocate(
    struct bench_stream_client *bench_stream_client) {
    const struct plan *plan = bench_stream_client->settings.plan;
    uint32_t blocks = plan->layout->num_blocks;
    bench_stream_client->servers =
        calloc(plan->num_ps + 1, sizeof *bench_stream_client->servers);
    bench_stream_client->links =
        calloc(plan->num_ps + 1, sizeof *bench_stream_client->links);
    bench_stream_client->items =
        calloc((size_t)plan->num_ps * LINK_POLL_ITEMS + 1,
               sizeof *bench_stream_client->items);
    bench_stream_client->clocks =
        calloc(blocks + 1, sizeof *bench_stream_client->clocks);
    bench_stream_client->out = buffer_open_shared(BENCH_ITERATION_RING_BYTES);
    bench_stream_client->in = malloc(BENCH_ITERATION_RING_BYTES);
    if (!bench_stream_client->servers || !bench_stream_client->links ||
        !bench_stream_client->items || !bench_stream_client->clocks ||
        !bench_stream_client->out || !bench_stream_client->in)
        return false;
    for (uint32_t b = 0; b < blocks; b++)
        bench_stream_client->clocks[b] = bench_stream_client->settings.from - 1;
    float *gradient = buffer_data(bench_stream_client->out);
    for (size_t i = 0; i < BENCH_ITERATION_RING_BYTES / sizeof(float); i++)
        gradient[i] = GRADIENT_VALUE;
    memset(bench_stream_client->in, 0, BENCH_ITERATION_RING_BYTES);
    for (uint32_t p = 0; p < plan->num_ps; p++) {
        bench_stream_client->servers[p].ids =
            calloc(blocks + 1, sizeof(uint32_t));
        if (!bench_stream_client->servers[p].ids)
            return false;
    }
    return true;
}

enum status bench_stream_client_open(
    struct bench_stream_client **out,
    const struct bench_stream_client_settings *settings, struct failure *why) {
    struct bench_stream_client *bench_stream_client =
        calloc(1, sizeof *bench_stream_client);
    enum status status = STATUS_OK;
    *out = NULL;
    if (!bench_stream_client)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a bench client");
    bench_stream_client->settings = *settings;
    bench_stream_client->clock = settings->from - 1;
    if (!bench_stream_client_allocate(bench_stream_client))
        status =
            status_fail(why, FAILURE_NO_MEMORY, "no memory for a bench client");
    for (uint32_t p = 0; !status && p < settings->plan->num_ps; p++)
        status = connect_server(bench_stream_client, p, why);
    if (status)
        bench_stream_client_close(&bench_stream_client);
    *out = bench_stream_client;
    return status;
}

void bench_stream_client_close(struct bench_stream_client **where) {
    struct bench_stream_client *bench_stream_client = *where;
    *where = NULL;
    if (!bench_stream_client)
        return;
    for (uint32_t p = 0; bench_stream_client->servers &&
                         p < bench_stream_client->settings.plan->num_ps;
         p++) {
        link_close(&bench_stream_client->servers[p].link);
        free(bench_stream_client->servers[p].ids);
    }
    free(bench_stream_client->servers);
    free(bench_stream_client->links);
    free(bench_stream_client->items);
    free(bench_stream_client->clocks);
    buffer_release(&bench_stream_client->out);
    free(bench_stream_client->in);
    free(bench_stream_client);
}

const char *bench_stream_client_transport(
    const struct bench_stream_client *bench_stream_client) {
    uint32_t num_ps = bench_stream_client->settings.plan->num_ps, shm = 0;
    for (uint32_t p = 0; p < num_ps; p++)
        shm += bench_stream_client->servers[p].shm_key;
    return shm == num_ps ? "shm" : shm ? "mixed" : "tcp";
}

uint64_t bench_stream_client_clock(
    const struct bench_stream_client *bench_stream_client) {
    return bench_stream_client->clock;
}
