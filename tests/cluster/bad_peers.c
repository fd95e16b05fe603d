/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/bad_peers.h"
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

enum {
    GREETING = 64,
    KIND = 6,
    MORE = 1,
    LONG_FRAME = 2,
    COMMAND = 4,
    FLUSH_MS = 10000
};
enum { ANSWER_MS = 30000 };

int bad_peers_connect(uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (;;) {
        int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (!connect(descriptor, (struct sockaddr *)&address, sizeof address))
            return descriptor;
        int error = errno;
        close(descriptor);
        if (error != ECONNRESET) /* which one who is beset may do at once */
            return -1;
    }
}

/* Until all has left; false: the other side has closed. */
static bool write_all(int descriptor, const void *bytes, size_t size) {
    const char *from = bytes;
    while (size) {
        ssize_t sent = send(descriptor, from, size, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        from += sent;
        size -= (size_t)sent;
    }
    return true;
}

int bad_peers_send_bytes(uint16_t port, const void *bytes, size_t size) {
    int descriptor = bad_peers_connect(port);
    assert_true(descriptor >= 0);
    write_all(descriptor, bytes, size);
    return descriptor;
}

int bad_peers_send_garbage(uint16_t port) {
    unsigned char bytes[4096];
    uint32_t noise = 12345;
    for (size_t i = 0; i < sizeof bytes; i++) {
        noise = noise * 1664525 + 1013904223;
        bytes[i] = (unsigned char)(noise >> 24);
    }
    return bad_peers_send_bytes(port, bytes, sizeof bytes);
}

int bad_peers_send_http(uint16_t port) {
    static const char request[] = "GET /metrics HTTP/1.1\r\n"
                                  "Host: localhost\r\n"
                                  "Accept: */*\r\n\r\n";
    return bad_peers_send_bytes(port, request, sizeof request - 1);
}

static bool read_all(int descriptor, void *bytes, size_t size) {
    return recv(descriptor, bytes, size, MSG_WAITALL) == (ssize_t)size;
}

/* The greeting and READY of ZMTP 3.0, NULL mechanism (rfc.zeromq.org/spec/23),
 * as the kind of socket says them, and what it is answered: messages before
 * that are an error. False: the other side has closed. */
static bool try_handshake(int descriptor, const char kind[KIND]) {
    unsigned char greeting[GREETING] = {0xff, [9] = 0x7f, 3,   0,
                                        'N',  'U',        'L', 'L'};
    static const unsigned char ready[] =
        "\x05READY\x0bSocket-Type\x00\x00\x00\x06";
    unsigned char command[2] = {COMMAND, sizeof ready - 1 + KIND};
    write_all(descriptor, greeting, sizeof greeting);
    write_all(descriptor, command, sizeof command);
    write_all(descriptor, ready, sizeof ready - 1);
    write_all(descriptor, kind, KIND);
    unsigned char answer[UINT8_MAX];
    return read_all(descriptor, answer, GREETING) &&
           read_all(descriptor, command, sizeof command) &&
           read_all(descriptor, answer, command[1]);
}

static void shake_hands(int descriptor, const char kind[KIND]) {
    assert_true(try_handshake(descriptor, kind));
}

int bad_peers_begin_frame(uint16_t port, uint64_t size) {
    enum { PART = 1 << 20 };
    unsigned char head[9] = {LONG_FRAME};
    int descriptor = bad_peers_connect(port);
    char *part = calloc(1, PART);
    assert_true(descriptor >= 0);
    assert_non_null(part);
    for (int i = 0; i < 8; i++)
        head[i + 1] = (unsigned char)(size >> (56 - 8 * i));
    shake_hands(descriptor, "DEALER");
    write_all(descriptor, head, sizeof head);
    write_all(descriptor, part, PART);
    free(part);
    return descriptor;
}

int bad_peers_send_unread(uint16_t port, const void *bytes, size_t size,
                          unsigned count) {
    unsigned char message[2 + UINT8_MAX] = {0, (unsigned char)size};
    int descriptor = bad_peers_connect(port);
    assert_true(descriptor >= 0 && size <= UINT8_MAX);
    memcpy(message + 2, bytes, size);
    shake_hands(descriptor, "DEALER");
    for (unsigned i = 0; i < count; i++)
        write_all(descriptor, message, 2 + size);
    return descriptor;
}

int bad_peers_listen(uint16_t *port) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, size) ||
        listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&address, &size))
        fail_msg("no port to listen on");
    *port = ntohs(address.sin_port);
    return listener;
}

int bad_peers_accept(int listener) {
    struct pollfd who = {listener, POLLIN, 0};
    assert_int_equal(poll(&who, 1, ANSWER_MS), 1);
    int descriptor = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(descriptor >= 0);
    shake_hands(descriptor, "ROUTER");
    return descriptor;
}

enum { WAITING = 3 /* more than a queue of length 0 takes */ };

struct bad_peers_program {
    int listener, waiting[WAITING];
    bool greets;
    pthread_t thread;
};

static void *greet(void *context) {
    static const char greeting[] = "220 mail.example ESMTP\r\n";
    const struct bad_peers_program *program = context;
    int peer;
    while ((peer = accept4(program->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        write_all(peer, greeting, sizeof greeting - 1);
        close(peer);
    }
    return NULL;
}

/* The system drops who comes after those. */
static void fill_queue(struct bad_peers_program *program, uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < WAITING; i++) {
        program->waiting[i] =
            socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int result = connect(program->waiting[i], (struct sockaddr *)&address,
                             sizeof address);
        assert_true(!result || errno == EINPROGRESS);
    }
}

struct bad_peers_program *bad_peers_start(enum bad_peers_manner manner,
                                          uint16_t *port) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(*port),
                                  .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t size = sizeof address;
    int yes = 1;
    struct bad_peers_program *program = calloc(1, sizeof *program);
    assert_non_null(program);
    program->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(program->listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(program->listener, (struct sockaddr *)&address, size) ||
        listen(program->listener, manner == BAD_PEERS_FULL ? 0 : 64) ||
        getsockname(program->listener, (struct sockaddr *)&address, &size))
        fail_msg("port %u cannot be listened on", *port);
    *port = ntohs(address.sin_port);
    for (int i = 0; i < WAITING; i++)
        program->waiting[i] = -1;
    if (manner == BAD_PEERS_FULL)
        fill_queue(program, *port);
    program->greets = manner == BAD_PEERS_GREETS;
    if (program->greets)
        assert_int_equal(pthread_create(&program->thread, NULL, greet, program),
                         0);
    return program;
}

void bad_peers_stop(struct bad_peers_program **program) {
    struct bad_peers_program *ends = *program;
    *program = NULL;
    if (!ends)
        return;
    shutdown(ends->listener, SHUT_RDWR);
    if (ends->greets)
        pthread_join(ends->thread, NULL);
    close(ends->listener);
    for (int i = 0; i < WAITING; i++)
        if (ends->waiting[i] >= 0)
            close(ends->waiting[i]);
    free(ends);
}

void bad_peers_reset(int connection) {
    struct linger at_once = {1, 0};
    setsockopt(connection, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(connection);
}

bool bad_peers_ping_and_reset(uint16_t port, unsigned count) {
    static const unsigned char message[] = {0, 1, 0},
                               ping[] = {COMMAND, 7,   4, 'P', 'I',
                                         'N',     'G', 0, 0};
    int descriptor = bad_peers_connect(port);
    assert_true(descriptor >= 0);
    bool open = try_handshake(descriptor, "DEALER");
    for (unsigned i = 0; i < count && open; i++)
        open = write_all(descriptor, message, sizeof message);
    open = open && write_all(descriptor, ping, sizeof ping);
    bad_peers_reset(descriptor);
    return open;
}

void bad_peers_send_parts(uint16_t port, unsigned parts, size_t size) {
    unsigned char *part = calloc(1, size + sizeof(uint64_t) + 1);
    int descriptor = bad_peers_connect(port);
    assert_true(descriptor >= 0);
    assert_non_null(part);
    part[0] = LONG_FRAME | MORE;
    for (int i = 0; i < 8; i++)
        part[i + 1] = (unsigned char)((uint64_t)size >> (56 - 8 * i));
    bool open = try_handshake(descriptor, "DEALER");
    for (unsigned i = 0; i < parts && open; i++)
        open = write_all(descriptor, part, size + sizeof(uint64_t) + 1);
    close(descriptor);
    free(part);
}

void bad_peers_open_and_close(uint16_t port, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        int descriptor = bad_peers_connect(port);
        char greeting;
        if (descriptor < 0)
            return;
        recv(descriptor, &greeting, 1, 0); /* no faster than it is taken */
        if (i % 2)
            bad_peers_reset(descriptor);
        else
            close(descriptor);
    }
}

void bad_peers_send_messages(uint16_t port,
                             const struct bad_peers_message *message) {
    void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_DEALER);
    char endpoint[64], *payload = calloc(1, message->payload + 1);
    int flush = FLUSH_MS, unlimited = 0;
    assert_non_null(payload);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", port);
    zmq_setsockopt(socket, ZMQ_LINGER, &flush, sizeof flush);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &unlimited, sizeof unlimited);
    zmq_connect(socket, endpoint);
    for (unsigned i = 0; i < message->times; i++)
        for (unsigned part = 0; part < message->parts; part++)
            zmq_send(socket, part ? payload : message->header,
                     part ? message->payload : message->bytes,
                     part + 1 < message->parts ? ZMQ_SNDMORE : 0);
    zmq_close(socket);
    zmq_ctx_term(context);
    free(payload);
}
