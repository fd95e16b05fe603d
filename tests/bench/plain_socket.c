/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/plain_socket.h"

#include "core/base/time.h"

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

/* The client's request: `times` vectors, each awaited or in a row. */
struct request {
    uint32_t kind, is_ping_pong;
    uint64_t bytes, times;
};

struct plain_socket {
    int fd;
    char *out, *in; /* ring buffers */
};

/* The contiguous part in a ring buffer of a vector of BYTES from byte DONE on;
 * *AT is its offset there. */
static size_t piece(size_t bytes, size_t done, size_t *at) {
    *at = done % BENCH_ITERATION_RING_BYTES;
    size_t left = bytes - done, capacity = BENCH_ITERATION_RING_BYTES - *at;
    return left < capacity ? left : capacity;
}

static bool plain_socket_send_all(int fd, const char *ring, size_t bytes) {
    for (size_t done = 0, at; done < bytes;) {
        size_t part = piece(bytes, done, &at);
        ssize_t sent = send(fd, ring + at, part, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        done += (size_t)sent;
    }
    return true;
}

static bool plain_socket_receive_all(int fd, char *ring, size_t bytes) {
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
    plain->out = malloc(BENCH_ITERATION_RING_BYTES);
    plain->in = malloc(BENCH_ITERATION_RING_BYTES);
    if (!plain->out || !plain->in)
        return false;
    memset(plain->out, 0, BENCH_ITERATION_RING_BYTES);
    memset(plain->in, 0, BENCH_ITERATION_RING_BYTES);
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
static bool serve_vector(struct plain_socket *plain,
                         const struct request *request, bool last) {
    bool pushes = request->kind != BENCH_ITERATION_PULL,
         pulls = request->kind != BENCH_ITERATION_PUSH;
    if (!pushes && request->is_ping_pong &&
        !plain_socket_receive_all(plain->fd, plain->in, 1))
        return false;
    if (pushes &&
        !plain_socket_receive_all(plain->fd, plain->in, request->bytes))
        return false;
    if (pulls)
        return plain_socket_send_all(plain->fd, plain->out, request->bytes);
    return !(request->is_ping_pong || last) ||
           plain_socket_send_all(plain->fd, plain->out, 1);
}

void plain_socket_serve(int listener) {
    struct plain_socket *plain = calloc(1, sizeof *plain);
    struct request request;
    if (!plain)
        return;
    plain->fd = accept(listener, NULL, NULL);
    bool is_valid = plain->fd >= 0 && open_rings(plain);
    while (is_valid && recv(plain->fd, &request, sizeof request, MSG_WAITALL) ==
                           sizeof request)
        for (uint64_t i = 0; is_valid && i < request.times; i++)
            is_valid = serve_vector(plain, &request, i + 1 == request.times);
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
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a plain socket");
    plain->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(plain->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(plain->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (plain->fd < 0 ||
        connect(plain->fd, (struct sockaddr *)&address, sizeof address) ||
        !open_rings(plain)) {
        int error = errno;
        plain_socket_close(&plain);
        return status_errno(why, FAILURE_CONNECTION_FAILED, error,
                            "a plain socket to port %u", port);
    }
    *out = plain;
    return STATUS_OK;
}

/* Sends one vector and waits for the answer. */
static bool run_ping_pong(struct plain_socket *plain,
                          const struct bench_iteration *iteration) {
    bool pushes = iteration->kind != BENCH_ITERATION_PULL,
         pulls = iteration->kind != BENCH_ITERATION_PUSH;
    return plain_socket_send_all(plain->fd, plain->out,
                                 pushes ? iteration->bytes : 1) &&
           plain_socket_receive_all(plain->fd, plain->in,
                                    pulls ? iteration->bytes : 1);
}

/* TOTAL bytes in each direction at once; vectors are not separated. */
static bool run_duplex(struct plain_socket *plain,
                       const struct bench_iteration *iteration,
                       uint64_t times) {
    uint64_t total = iteration->bytes * times, sent = 0, came = 0;
    uint64_t ahead = (uint64_t)iteration->bytes * iteration->depth;
    while (came < total) {
        size_t at, part;
        bool sends = sent < total && sent < came + ahead;
        struct pollfd item = {plain->fd, sends ? POLLIN | POLLOUT : POLLIN, 0};
        if (poll(&item, 1, LIMIT_S * 1000) <= 0)
            return false;
        if (item.revents & POLLOUT) {
            part = piece(iteration->bytes, sent % iteration->bytes, &at);
            ssize_t n = send(plain->fd, plain->out + at, part,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
            sent += n > 0 ? (uint64_t)n : 0;
        }
        if (item.revents & ~POLLOUT) {
            part = piece(iteration->bytes, came % iteration->bytes, &at);
            ssize_t n = recv(plain->fd, plain->in + at, part, MSG_DONTWAIT);
            if (n == 0 || (n < 0 && errno != EAGAIN))
                return false;
            came += n > 0 ? (uint64_t)n : 0;
        }
    }
    return true;
}

static bool run_one_way(struct plain_socket *plain,
                        const struct bench_iteration *iteration,
                        uint64_t times) {
    bool is_valid = true;
    if (iteration->kind == BENCH_ITERATION_PUSH_PULL)
        return run_duplex(plain, iteration, times);
    for (uint64_t i = 0; is_valid && i < times; i++)
        is_valid =
            iteration->kind == BENCH_ITERATION_PUSH
                ? plain_socket_send_all(plain->fd, plain->out, iteration->bytes)
                : plain_socket_receive_all(plain->fd, plain->in,
                                           iteration->bytes);
    return is_valid && (iteration->kind == BENCH_ITERATION_PULL ||
                        plain_socket_receive_all(plain->fd, plain->in, 1));
}

static bool plain_socket_run_iteration(struct plain_socket *plain,
                                       struct bench_iteration *iteration,
                                       uint64_t times) {
    if (iteration->depth > 1)
        return run_one_way(plain, iteration, times);
    for (uint64_t i = 0; i < times; i++) {
        int64_t start = time_now();
        if (!run_ping_pong(plain, iteration))
            return false;
        bench_iteration_record(iteration, time_now() - start);
    }
    return true;
}

/* The server is told the number of vectors in advance, which doubles each
 * time. */
enum status plain_socket_run(struct plain_socket *plain,
                             struct bench_iteration *iteration,
                             struct failure *why) {
    uint64_t times = iteration->times ? iteration->times : 1;
    int64_t start = time_now();
    iteration->vectors = iteration->samples = 0;
    iteration->elapsed = 0;
    while (bench_iteration_continues(iteration, iteration->vectors,
                                     iteration->elapsed)) {
        struct request request = {(uint32_t)iteration->kind,
                                  iteration->depth <= 1, iteration->bytes,
                                  times};
        if (send(plain->fd, &request, sizeof request, MSG_NOSIGNAL) !=
                sizeof request ||
            !plain_socket_run_iteration(plain, iteration, times))
            return status_fail(why, FAILURE_PEER_SILENT,
                               "a plain socket of this machine gave nothing "
                               "for %d s",
                               LIMIT_S);
        iteration->vectors += times;
        iteration->elapsed = time_now() - start;
        if (iteration->elapsed < iteration->duration / 2)
            times *= 2;
    }
    iteration->messages = iteration->vectors;
    return STATUS_OK;
}
