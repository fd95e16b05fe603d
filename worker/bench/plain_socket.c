/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/bench/plain_socket.h"

#include "proto/base/time.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LIMIT_S = 30 };

/* What the client asks for: TIMES vectors, each awaited or all in a row. */
struct order {
    uint32_t kind, awaited;
    uint64_t bytes, times;
};

struct plain_socket {
    int fd;
    char *out, *in; /* rings */
};

/* The piece of a vector of BYTES from byte DONE on that lies together in a
 * ring; its place there is *AT. */
static size_t piece(size_t bytes, size_t done, size_t *at) {
    *at = done % LAP_RING_BYTES;
    size_t left = bytes - done, room = LAP_RING_BYTES - *at;
    return left < room ? left : room;
}

static bool send_all(int fd, const char *ring, size_t bytes) {
    for (size_t done = 0, at; done < bytes;) {
        size_t part = piece(bytes, done, &at);
        ssize_t sent = send(fd, ring + at, part, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        done += (size_t)sent;
    }
    return true;
}

static bool receive_all(int fd, char *ring, size_t bytes) {
    for (size_t done = 0, at; done < bytes;) {
        size_t part = piece(bytes, done, &at);
        ssize_t came = recv(fd, ring + at, part, MSG_WAITALL);
        if (came <= 0)
            return false;
        done += (size_t)came;
    }
    return true;
}

int plain_socket_listen(uint16_t *port) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&address, size) &&
        !listen(fd, 1) &&
        !getsockname(fd, (struct sockaddr *)&address, &size)) {
        *port = ntohs(address.sin_port);
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool open_rings(struct plain_socket *plain) {
    int one = 1;
    setsockopt(plain->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    plain->out = malloc(LAP_RING_BYTES);
    plain->in = malloc(LAP_RING_BYTES);
    if (!plain->out || !plain->in)
        return false;
    memset(plain->out, 0, LAP_RING_BYTES);
    memset(plain->in, 0, LAP_RING_BYTES);
    return true;
}

void plain_socket_close(struct plain_socket **where) {
    struct plain_socket *plain = *where;
    *where = NULL;
    if (!plain)
        return;
    if (plain->fd >= 0)
        close(plain->fd);
    free(plain->out);
    free(plain->in);
    free(plain);
}

/* The server's side of one vector. */
static bool serve_vector(struct plain_socket *plain, const struct order *order,
                         bool last) {
    bool pushes = order->kind != LAP_PULL, pulls = order->kind != LAP_PUSH;
    if (!pushes && order->awaited && !receive_all(plain->fd, plain->in, 1))
        return false;
    if (pushes && !receive_all(plain->fd, plain->in, order->bytes))
        return false;
    if (pulls)
        return send_all(plain->fd, plain->out, order->bytes);
    return !(order->awaited || last) || send_all(plain->fd, plain->out, 1);
}

void plain_socket_serve(int listener) {
    struct plain_socket *plain = calloc(1, sizeof *plain);
    struct order order;
    if (!plain)
        return;
    plain->fd = accept(listener, NULL, NULL);
    bool sound = plain->fd >= 0 && open_rings(plain);
    while (sound &&
           recv(plain->fd, &order, sizeof order, MSG_WAITALL) == sizeof order)
        for (uint64_t i = 0; sound && i < order.times; i++)
            sound = serve_vector(plain, &order, i + 1 == order.times);
    plain_socket_close(&plain);
}

enum status plain_socket_open(struct plain_socket **out, uint16_t port,
                              struct failure *why) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = LIMIT_S};
    struct plain_socket *plain = calloc(1, sizeof *plain);
    *out = NULL;
    if (!plain)
        return status_fail(why, STATUS_RETRY, "no memory for a plain socket");
    plain->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(plain->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(plain->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (plain->fd < 0 ||
        connect(plain->fd, (struct sockaddr *)&address, sizeof address) ||
        !open_rings(plain)) {
        int error = errno;
        plain_socket_close(&plain);
        return status_errno(why, STATUS_RETRY, error,
                            "a plain socket to port %u", port);
    }
    *out = plain;
    return STATUS_OK;
}

/* One vector, and the wait for it. */
static bool move_awaited(struct plain_socket *plain, const struct lap *lap) {
    bool pushes = lap->kind != LAP_PULL, pulls = lap->kind != LAP_PUSH;
    return send_all(plain->fd, plain->out, pushes ? lap->bytes : 1) &&
           receive_all(plain->fd, plain->in, pulls ? lap->bytes : 1);
}

/* TOTAL bytes each way at once; vectors follow each other. */
static bool move_both_ways(struct plain_socket *plain, const struct lap *lap,
                           uint64_t times) {
    uint64_t total = lap->bytes * times, sent = 0, came = 0;
    uint64_t ahead = (uint64_t)lap->bytes * lap->depth;
    while (came < total) {
        size_t at, part;
        bool sends = sent < total && sent < came + ahead;
        struct pollfd item = {plain->fd, sends ? POLLIN | POLLOUT : POLLIN, 0};
        if (poll(&item, 1, LIMIT_S * 1000) <= 0)
            return false;
        if (item.revents & POLLOUT) {
            part = piece(lap->bytes, sent % lap->bytes, &at);
            ssize_t n = send(plain->fd, plain->out + at, part,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
            sent += n > 0 ? (uint64_t)n : 0;
        }
        if (item.revents & ~POLLOUT) {
            part = piece(lap->bytes, came % lap->bytes, &at);
            ssize_t n = recv(plain->fd, plain->in + at, part, MSG_DONTWAIT);
            if (n == 0 || (n < 0 && errno != EAGAIN))
                return false;
            came += n > 0 ? (uint64_t)n : 0;
        }
    }
    return true;
}

static bool move_in_a_row(struct plain_socket *plain, const struct lap *lap,
                          uint64_t times) {
    bool sound = true;
    if (lap->kind == LAP_PUSH_PULL)
        return move_both_ways(plain, lap, times);
    for (uint64_t i = 0; sound && i < times; i++)
        sound = lap->kind == LAP_PUSH
                    ? send_all(plain->fd, plain->out, lap->bytes)
                    : receive_all(plain->fd, plain->in, lap->bytes);
    return sound &&
           (lap->kind == LAP_PULL || receive_all(plain->fd, plain->in, 1));
}

static bool move(struct plain_socket *plain, struct lap *lap, uint64_t times) {
    if (lap->depth > 1)
        return move_in_a_row(plain, lap, times);
    for (uint64_t i = 0; i < times; i++) {
        int64_t start = time_now();
        if (!move_awaited(plain, lap))
            return false;
        lap_note(lap, time_now() - start);
    }
    return true;
}

/* The server is told in advance how many come: twice as many each time. */
enum status plain_socket_lap(struct plain_socket *plain, struct lap *lap,
                             struct failure *why) {
    uint64_t times = lap->times ? lap->times : 1;
    int64_t start = time_now();
    lap->vectors = lap->samples = 0;
    lap->elapsed = 0;
    while (lap_goes_on(lap, lap->vectors, lap->elapsed)) {
        struct order order = {(uint32_t)lap->kind, lap->depth <= 1, lap->bytes,
                              times};
        if (send(plain->fd, &order, sizeof order, MSG_NOSIGNAL) !=
                sizeof order ||
            !move(plain, lap, times))
            return status_fail(why, STATUS_RETRY,
                               "a plain socket of this machine gave nothing "
                               "for %d s",
                               LIMIT_S);
        lap->vectors += times;
        lap->elapsed = time_now() - start;
        if (lap->elapsed < lap->duration / 2)
            times *= 2;
    }
    lap->messages = lap->vectors;
    return STATUS_OK;
}
