/* SPDX-License-Identifier: Apache-2.0 */
/* Messages are sent in pieces: the next is written while the other side
 * processes one. */
#include "worker/collective/gloo_shm.h"

#include "core/base/spin_policy.h"
#include "core/base/time.h"
#include "core/net/shm/shm_connection.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { POLLS_PER_CLOCK = 32 }; /* polls of the ring per reading of the clock */
enum { SIDES = 2 };            /* threads that use a connection */
enum { CALLERS = 128 };        /* those of other users among them are left */
static const int64_t SPIN_TIME = 50 * TIME_US;

struct gloo_shm {
    struct shm_connection *shm_connection;
    int epoll; /* of its socket and its wakeup descriptor; -1: not open */
    struct spin_policy core;
    const char *trouble;
    atomic_bool is_shut_down;
};

bool gloo_shm_is_available(void) {
    struct rlimit space;
    return getrlimit(RLIMIT_AS, &space) || space.rlim_cur == RLIM_INFINITY;
}

int gloo_shm_listen(char name[GLOO_SHM_NAME], char *text, size_t size) {
    unsigned long long number = 0;
    int listener = -1;
    if (getrandom(&number, sizeof number, 0) == sizeof number) {
        snprintf(name, GLOO_SHM_NAME, "capstan-gloo-%016llx", number);
        listener = shm_connection_listen(name);
    }
    if (listener < 0)
        snprintf(text, size, "%s", strerror(errno));
    return listener;
}

/* Takes SHM_CONNECTION, which may be NULL. */
static struct gloo_shm *gloo_shm_open_connection(
    struct shm_connection *shm_connection) {
    struct gloo_shm *connection =
        shm_connection ? malloc(sizeof *connection) : NULL;
    if (!connection) {
        shm_connection_close(&shm_connection);
        return NULL;
    }
    *connection =
        (struct gloo_shm){.shm_connection = shm_connection, .epoll = -1};
    return connection;
}

static struct shm_connection_settings settings_of(
    const struct gloo_shm_ends *ends) {
    struct shm_connection_settings settings = {.max_frame = GLOO_SHM_WINDOW,
                                               .key = ends->key};
    snprintf(settings.self, sizeof settings.self, "rank %u", ends->self);
    snprintf(settings.peer, sizeof settings.peer, "rank %u", ends->peer);
    return settings;
}

struct gloo_shm *gloo_shm_connect(const char *name,
                                  const struct gloo_shm_ends *ends, char *text,
                                  size_t size) {
    struct shm_connection_settings settings = settings_of(ends);
    snprintf(text, size, "no memory");
    struct gloo_shm *connection = gloo_shm_open_connection(
        shm_connection_connect(name, &settings, text, size));
    if (connection)
        *text = 0;
    return connection;
}

struct gloo_shm *gloo_shm_accept(int listener, const struct gloo_shm_ends *ends,
                                 char *text, size_t size) {
    struct shm_connection_settings settings = settings_of(ends);
    struct shm_connection *called = NULL;
    int socket = 0, callers = 0;
    while (!called && socket >= 0 && callers++ < CALLERS) {
        socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (socket >= 0)
            called = shm_connection_accept(socket, &settings);
    }
    struct gloo_shm *connection = gloo_shm_open_connection(called);
    if (!called) {
        snprintf(text, size, "it has not called");
    } else if (!connection) {
        snprintf(text, size, "no memory");
    } else if (shm_connection_step(connection->shm_connection, time_now()) ==
               SHM_CONNECTION_FAILED) {
        snprintf(text, size, "%s", gloo_shm_error(connection));
        gloo_shm_close(&connection);
    }
    return connection;
}

/* The wakeup descriptor is polled edge-triggered and never read: the other side
 * shares it and could read it first. */
static bool open_epoll(struct gloo_shm *connection) {
    int wakeup_fd = shm_connection_wakeup(connection->shm_connection),
        socket = shm_connection_socket(connection->shm_connection);
    struct epoll_event ring = {.events = EPOLLIN | EPOLLET,
                               .data.fd = wakeup_fd};
    struct epoll_event socket_event = {.events = EPOLLIN, .data.fd = socket};
    connection->epoll = epoll_create1(EPOLL_CLOEXEC);
    return connection->epoll >= 0 &&
           !epoll_ctl(connection->epoll, EPOLL_CTL_ADD, wakeup_fd, &ring) &&
           !epoll_ctl(connection->epoll, EPOLL_CTL_ADD, socket, &socket_event);
}

bool gloo_shm_open(struct gloo_shm *connection, char *text, size_t size) {
    enum shm_connection_state state =
        shm_connection_step(connection->shm_connection, time_now());
    if (state == SHM_CONNECTION_OPEN && open_epoll(connection)) {
        shm_connection_set_headroom(connection->shm_connection,
                                    GLOO_SHM_WINDOW);
        return true;
    }
    snprintf(text, size, "%s",
             state == SHM_CONNECTION_OPEN ? strerror(errno)
             : state == SHM_CONNECTION_FAILED
                 ? shm_connection_error(connection->shm_connection)
                 : "another process is at the other end");
    return false;
}

/* The epoll is closed before the wakeup descriptor, which the other side
 * shares. */
void gloo_shm_close(struct gloo_shm **where) {
    struct gloo_shm *connection = *where;
    *where = NULL;
    if (!connection)
        return;
    if (connection->epoll >= 0)
        close(connection->epoll);
    shm_connection_close(&connection->shm_connection);
    free(connection);
}

const char *gloo_shm_error(const struct gloo_shm *connection) {
    return connection->trouble;
}

static bool is_usable(struct gloo_shm *connection) {
    if (atomic_load_explicit(&connection->is_shut_down, memory_order_relaxed))
        connection->trouble = "its shared memory is cut off";
    else if (shm_connection_peer_closed(connection->shm_connection))
        connection->trouble = "it has ended, or has closed its shared memory";
    else
        connection->trouble = shm_connection_error(connection->shm_connection);
    return !connection->trouble;
}

/* Waits until the other side signals, ends or is shut down. With READS pending
 * messages are read before an end is reported. */
static void wait_wakeup(struct gloo_shm *connection, bool reads) {
    struct epoll_event events[2];
    int count = epoll_wait(connection->epoll, events, 2, -1);
    for (int i = 0; i < count; i++)
        if (events[i].data.fd ==
                shm_connection_socket(connection->shm_connection) &&
            !(reads && shm_connection_pending(connection->shm_connection)))
            shm_connection_step(connection->shm_connection, time_now());
}

/* Spins if that takes no core from another thread. */
static void spin(struct gloo_shm *connection) {
    int64_t now = time_now();
    if (!spin_policy(&connection->core, SIDES, now))
        return;
    for (int64_t end = now + SPIN_TIME; now < end; now = time_now())
        for (int poll = 0; poll < POLLS_PER_CLOCK; poll++) {
            if (shm_connection_pending(connection->shm_connection))
                return;
            __builtin_ia32_pause();
        }
}

/* Waits for the next message; false: the connection has failed. */
static bool wait_message(struct gloo_shm *connection,
                         struct shm_connection_view *view) {
    if (!shm_connection_pending(connection->shm_connection))
        spin(connection);
    while (is_usable(connection)) {
        if (shm_connection_view(connection->shm_connection, view))
            return true;
        if (!is_usable(connection))
            break;
        shm_connection_prepare_wait(connection->shm_connection);
        wait_wakeup(connection, true);
        shm_connection_finish_wait(connection->shm_connection);
    }
    return false;
}

const void *gloo_shm_view(struct gloo_shm *connection, size_t size) {
    struct shm_connection_view view;
    if (!wait_message(connection, &view))
        return NULL;
    if (view.payload_bytes == size)
        return view.payload;
    shm_connection_fail(connection->shm_connection,
                        "it sends an unexpected message");
    is_usable(connection);
    return NULL;
}

void gloo_shm_release(struct gloo_shm *connection) {
    shm_connection_release(connection->shm_connection);
}

/* BUFFER NULL: the piece is copied. */
static bool gloo_shm_send_chunk(struct gloo_shm *connection, const void *bytes,
                                size_t size, struct buffer *buffer) {
    void *reserved = NULL;
    while (is_usable(connection) &&
           !(reserved = shm_connection_try_reserve(connection->shm_connection,
                                                   buffer ? 0 : size))) {
        wait_wakeup(connection, false);
        shm_connection_progress(connection->shm_connection);
    }
    if (!reserved)
        return false;
    if (!buffer)
        memcpy(reserved, bytes, size);
    struct shm_connection_payload payload = {buffer ? bytes : reserved, size,
                                             buffer};
    shm_connection_send(connection->shm_connection, "", 0, &payload);
    shm_connection_notify(connection->shm_connection);
    return true;
}

bool gloo_shm_send_shared(struct gloo_shm *connection, const void *bytes,
                          size_t size, struct buffer *buffer) {
    if (buffer && !shm_connection_can_share(connection->shm_connection, buffer))
        buffer = NULL;
    for (size_t at = 0; at < size; at += GLOO_SHM_CHUNK) {
        size_t left = size - at;
        size_t chunk = left < GLOO_SHM_CHUNK ? left : GLOO_SHM_CHUNK;
        if (!gloo_shm_send_chunk(connection, (const char *)bytes + at, chunk,
                                 buffer))
            return false;
    }
    return true;
}

bool gloo_shm_send(struct gloo_shm *connection, const void *bytes,
                   size_t size) {
    return gloo_shm_send_shared(connection, bytes, size, NULL);
}

void gloo_shm_shutdown(struct gloo_shm *connection) {
    atomic_store(&connection->is_shut_down, true);
    shutdown(shm_connection_socket(connection->shm_connection), SHUT_RDWR);
}
