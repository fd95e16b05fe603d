/* SPDX-License-Identifier: Apache-2.0 */
/* One epoll covers all connections: their sockets, and the wakeup of each open
 * one. Wakeups are sent only to a sleeping side, so two calls frame a wait:
 * shm_endpoint_prepare_wait asks for wakeups and moves queued messages on,
 * shm_endpoint_progress handles the events. Without a wait in between there are
 * no events to handle, and messages are found by polling the rings, which costs
 * no system call. */
#include "core/net/shm/shm_endpoint.h"

#include "core/base/time.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LISTENER = SHM_ENDPOINT_MAX, EVENTS = 64, STALLED_CHECKS = 6 };
enum { CALLERS = 64 }; /* that are accepted in a turn */
static const int64_t CHECK_INTERVAL = TIME_S / 2;

struct shm_endpoint {
    struct shm_connection_settings settings;
    int epoll, listener;
    struct shm_connection *connections[SHM_ENDPOINT_MAX];
    uint32_t numbers[SHM_ENDPOINT_MAX];
    bool watched[SHM_ENDPOINT_MAX]; /* its wakeup is in the epoll */
    uint32_t used, next;            /* slots below USED may hold a connection */
    uint32_t serial;
    bool wait_prepared;
    int64_t last_check;
    const char *error;
};

void shm_endpoint_name(char name[SHM_ENDPOINT_NAME], uint64_t key) {
    snprintf(name, SHM_ENDPOINT_NAME, "capstan-%016llx",
             (unsigned long long)key);
}

struct shm_endpoint *shm_endpoint_open(
    const struct shm_connection_settings *settings) {
    struct shm_endpoint *endpoint = calloc(1, sizeof *endpoint);
    if (!endpoint)
        return NULL;
    endpoint->settings = *settings;
    endpoint->listener = -1;
    endpoint->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (endpoint->epoll < 0)
        shm_endpoint_close(&endpoint);
    return endpoint;
}

void shm_endpoint_close(struct shm_endpoint **where) {
    struct shm_endpoint *endpoint = *where;
    *where = NULL;
    if (!endpoint)
        return;
    for (uint32_t i = 0; i < endpoint->used; i++)
        shm_connection_close(&endpoint->connections[i]);
    if (endpoint->listener >= 0)
        close(endpoint->listener);
    if (endpoint->epoll >= 0)
        close(endpoint->epoll);
    free(endpoint);
}

static bool shm_endpoint_watch(struct shm_endpoint *endpoint, int descriptor,
                               uint32_t events, uint32_t slot) {
    struct epoll_event event = {.events = events, .data.u32 = slot};
    return !epoll_ctl(endpoint->epoll, EPOLL_CTL_ADD, descriptor, &event);
}

bool shm_endpoint_listen(struct shm_endpoint *shm_endpoint, const char *name) {
    shm_endpoint->listener = shm_connection_listen(name);
    return shm_endpoint->listener >= 0 &&
           shm_endpoint_watch(shm_endpoint, shm_endpoint->listener, EPOLLIN,
                              LISTENER);
}

/* Puts CONNECTION (taken, may be NULL) into a free slot; 0: there is none.
 * Its number holds a serial besides the slot, so that a stale number does not
 * match a later connection. */
static uint32_t shm_endpoint_add(struct shm_endpoint *endpoint,
                                 struct shm_connection *connection) {
    uint32_t slot = 0;
    while (slot < SHM_ENDPOINT_MAX && endpoint->connections[slot])
        slot++;
    if (!connection || slot == SHM_ENDPOINT_MAX ||
        !shm_endpoint_watch(endpoint, shm_connection_socket(connection),
                            EPOLLIN, slot)) {
        shm_connection_close(&connection);
        return 0;
    }
    endpoint->connections[slot] = connection;
    endpoint->watched[slot] = false;
    endpoint->numbers[slot] =
        (endpoint->serial++ * SHM_ENDPOINT_MAX + slot) | SHM_ENDPOINT_FIRST;
    if (slot >= endpoint->used)
        endpoint->used = slot + 1;
    return endpoint->numbers[slot];
}

uint32_t shm_endpoint_connect(struct shm_endpoint *endpoint, const char *name,
                              char *text, size_t size) {
    struct shm_connection *connection =
        shm_connection_connect(name, &endpoint->settings, text, size);
    if (!connection)
        return 0;
    uint32_t number = shm_endpoint_add(endpoint, connection);
    if (!number)
        snprintf(text, size, "no free descriptor");
    return number;
}

int shm_endpoint_descriptor(const struct shm_endpoint *endpoint) {
    return endpoint->epoll;
}

void shm_endpoint_prepare_wait(struct shm_endpoint *endpoint) {
    endpoint->wait_prepared = true;
    for (uint32_t i = 0; i < endpoint->used; i++) {
        if (!endpoint->connections[i])
            continue;
        shm_connection_progress(endpoint->connections[i]);
        shm_connection_prepare_wait(endpoint->connections[i]);
    }
}

/* No more in a turn, as every user of the host can connect without end. */
static void accept_callers(struct shm_endpoint *endpoint) {
    for (int i = 0; i < CALLERS; i++) {
        int socket = accept4(endpoint->listener, NULL, NULL,
                             SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (socket < 0)
            return;
        shm_endpoint_add(endpoint,
                         shm_connection_accept(socket, &endpoint->settings));
    }
}

static void step_slot(struct shm_endpoint *endpoint, uint32_t slot,
                      int64_t now) {
    struct shm_connection *connection = endpoint->connections[slot];
    if (connection &&
        shm_connection_step(connection, now) == SHM_CONNECTION_OPEN &&
        !endpoint->watched[slot])
        endpoint->watched[slot] =
            shm_endpoint_watch(endpoint, shm_connection_wakeup(connection),
                               EPOLLIN | EPOLLET, slot);
}

static void take_events(struct shm_endpoint *endpoint, int64_t now) {
    struct epoll_event events[EVENTS];
    int count = epoll_wait(endpoint->epoll, events, EVENTS, 0);
    for (int i = 0; i < count; i++) {
        if (events[i].data.u32 == LISTENER)
            accept_callers(endpoint);
        else
            step_slot(endpoint, events[i].data.u32, now);
    }
}

/* Ends handshakes at their deadline. A server also disconnects a client that
 * has stopped reading: it would hold its blocks' buffers without limit. A
 * client waits for its server with a deadline of its own. */
static void check_all(struct shm_endpoint *endpoint, int64_t now) {
    endpoint->last_check = now;
    for (uint32_t i = 0; i < endpoint->used; i++) {
        struct shm_connection *connection = endpoint->connections[i];
        if (!connection)
            continue;
        step_slot(endpoint, i, now);
        if (endpoint->listener >= 0 &&
            shm_connection_stalled(connection) >= STALLED_CHECKS)
            shm_connection_fail(connection, "has read nothing for 3 s");
    }
}

/* Remove the wakeup from the epoll explicitly: epoll watches the open file,
 * which the other side keeps open after the descriptor is closed here. */
static void close_slot(struct shm_endpoint *endpoint, uint32_t slot) {
    if (endpoint->watched[slot])
        epoll_ctl(endpoint->epoll, EPOLL_CTL_DEL,
                  shm_connection_wakeup(endpoint->connections[slot]), NULL);
    shm_connection_close(&endpoint->connections[slot]);
}

static void close_broken(struct shm_endpoint *endpoint) {
    for (uint32_t i = 0; i < endpoint->used; i++) {
        struct shm_connection *connection = endpoint->connections[i];
        if (!connection || !shm_connection_error(connection))
            continue;
        if (!shm_connection_peer_closed(connection))
            endpoint->error = shm_connection_error(connection);
        close_slot(endpoint, i);
    }
    while (endpoint->used && !endpoint->connections[endpoint->used - 1])
        endpoint->used--;
}

void shm_endpoint_progress(struct shm_endpoint *endpoint, int64_t now) {
    if (!endpoint->wait_prepared)
        return;
    endpoint->wait_prepared = false;
    for (uint32_t i = 0; i < endpoint->used; i++)
        if (endpoint->connections[i])
            shm_connection_finish_wait(endpoint->connections[i]);
    take_events(endpoint, now);
    if (now - endpoint->last_check >= CHECK_INTERVAL)
        check_all(endpoint, now);
    close_broken(endpoint);
}

struct shm_connection *shm_endpoint_find(struct shm_endpoint *endpoint,
                                         uint32_t number) {
    uint32_t slot = number % SHM_ENDPOINT_MAX;
    return endpoint->connections[slot] && endpoint->numbers[slot] == number
               ? endpoint->connections[slot]
               : NULL;
}

unsigned shm_endpoint_count(const struct shm_endpoint *endpoint) {
    unsigned count = 0;
    for (uint32_t i = 0; i < endpoint->used; i++)
        count += endpoint->connections[i] != NULL;
    return count;
}

bool shm_endpoint_pending(struct shm_endpoint *shm_endpoint) {
    for (uint32_t i = 0; i < shm_endpoint->used; i++)
        if (shm_endpoint->connections[i] &&
            shm_connection_pending(shm_endpoint->connections[i]))
            return true;
    return false;
}

bool shm_endpoint_view(struct shm_endpoint *shm_endpoint,
                       struct shm_endpoint_message *message) {
    for (uint32_t i = 0; i < shm_endpoint->used; i++) {
        uint32_t slot = shm_endpoint->next++ % shm_endpoint->used;
        struct shm_connection *shm_connection = shm_endpoint->connections[slot];
        if (!shm_connection ||
            !shm_connection_view(shm_connection, &message->view))
            continue;
        message->shm_connection = shm_connection;
        message->number = shm_endpoint->numbers[slot];
        return true;
    }
    return false;
}

const char *shm_endpoint_error(struct shm_endpoint *endpoint) {
    const char *error = endpoint->error;
    endpoint->error = NULL;
    return error;
}
