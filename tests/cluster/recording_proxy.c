/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/recording_proxy.h"

#include "tests/cluster/bad_peers.h"
#include "tests/lib/test.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SIDES = RECORDING_SIDES };

struct connection {
    int sides[SIDES]; /* -1: it has ended */
    struct recording recordings[SIDES];
};

struct recording_proxy {
    uint16_t to;
    int listener, stop;
    pthread_t thread;
    pthread_mutex_t mutex; /* of what follows */
    struct connection connections[RECORDING_PROXY_CONNECTIONS];
    unsigned count;
};

static void record(struct recording_proxy *proxy, struct recording *recording,
                   const void *bytes, size_t size) {
    size_t room = sizeof recording->bytes - recording->size;
    size = size < room ? size : room;
    pthread_mutex_lock(&proxy->mutex);
    memcpy(recording->bytes + recording->size, bytes, size);
    recording->size += size;
    pthread_mutex_unlock(&proxy->mutex);
}

static void end_connection(struct connection *connection) {
    for (int i = 0; i < SIDES; i++) {
        close(connection->sides[i]);
        connection->sides[i] = -1;
    }
}

/* What has come from SIDE goes to the other one. */
static void pass_on(struct recording_proxy *proxy,
                    struct connection *connection, int side) {
    char bytes[1 << 16];
    ssize_t size = recv(connection->sides[side], bytes, sizeof bytes, 0);
    if (size > 0)
        record(proxy, &connection->recordings[side], bytes, (size_t)size);
    for (ssize_t sent = 0, more; size > 0 && sent < size; sent += more) {
        more = send(connection->sides[!side], bytes + sent,
                    (size_t)(size - sent), MSG_NOSIGNAL);
        if (more <= 0)
            size = 0;
    }
    if (size <= 0)
        end_connection(connection);
}

/* Where nobody listens yet, the client is sent away, and comes again. */
static void take_client(struct recording_proxy *proxy) {
    int client = accept4(proxy->listener, NULL, NULL, SOCK_CLOEXEC);
    int server = bad_peers_connect(proxy->to);
    if (client < 0 || server < 0 ||
        proxy->count == RECORDING_PROXY_CONNECTIONS) {
        close(client);
        close(server);
        return;
    }
    pthread_mutex_lock(&proxy->mutex);
    proxy->connections[proxy->count++] =
        (struct connection){.sides = {client, server}};
    pthread_mutex_unlock(&proxy->mutex);
}

/* One turn; false: stop. */
static bool proxy_turn(struct recording_proxy *proxy) {
    struct pollfd items[2 + SIDES * RECORDING_PROXY_CONNECTIONS] = {
        {proxy->stop, POLLIN, 0}, {proxy->listener, POLLIN, 0}};
    unsigned num_sides = SIDES * proxy->count;
    for (unsigned i = 0; i < num_sides; i++)
        items[2 + i] = (struct pollfd){
            proxy->connections[i / SIDES].sides[i % SIDES], POLLIN, 0};
    poll(items, 2 + num_sides, -1);
    for (unsigned i = 0; i < num_sides; i++) {
        struct connection *connection = &proxy->connections[i / SIDES];
        if (items[2 + i].revents && connection->sides[i % SIDES] >= 0)
            pass_on(proxy, connection, (int)(i % SIDES));
    }
    if (items[1].revents)
        take_client(proxy);
    return !items[0].revents;
}

static void *run_proxy(void *context) {
    while (proxy_turn(context))
        continue;
    return NULL;
}

struct recording_proxy *recording_proxy_open(uint16_t to, uint16_t *port) {
    struct recording_proxy *proxy = calloc(1, sizeof *proxy);
    assert_non_null(proxy);
    proxy->to = to;
    proxy->listener = bad_peers_listen(port);
    proxy->stop = eventfd(0, EFD_CLOEXEC);
    pthread_mutex_init(&proxy->mutex, NULL);
    assert_int_equal(pthread_create(&proxy->thread, NULL, run_proxy, proxy), 0);
    return proxy;
}

unsigned recording_proxy_copy(struct recording_proxy *proxy,
                              enum recording_side side,
                              struct recording *recordings) {
    pthread_mutex_lock(&proxy->mutex);
    unsigned count = proxy->count;
    for (unsigned i = 0; i < count; i++)
        recordings[i] = proxy->connections[i].recordings[side];
    pthread_mutex_unlock(&proxy->mutex);
    return count;
}

void recording_proxy_close(struct recording_proxy **where) {
    struct recording_proxy *proxy = *where;
    *where = NULL;
    if (!proxy)
        return;
    eventfd_write(proxy->stop, 1);
    pthread_join(proxy->thread, NULL);
    for (unsigned i = 0; i < proxy->count; i++)
        end_connection(&proxy->connections[i]);
    close(proxy->listener);
    close(proxy->stop);
    pthread_mutex_destroy(&proxy->mutex);
    free(proxy);
}
