/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake: the client sends a memory segment with a random challenge in
 * it; the server writes a reply computed from the challenge and sends a wakeup
 * eventfd for each side. Shared segments are sent the same way later.
 *
 * Only processes of the same user connect (SO_PEERCRED), and only over memory
 * whose size is sealed: a side that shrank it would kill the other by SIGBUS.
 * The reply proves that both have mapped the same pages before either trusts
 * messages in them. Descriptors that come with a rejected packet are closed. A
 * segment is sent by the socket before a message in the ring refers to it, so a
 * reader that does not know its number reads the socket once more. */
#include "core/base/time.h"
#include "core/net/shm/shm_connection_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 128, WAKEUPS = 2, PAGE = 4096 };
/* A packet of another version is refused: the version covers the ring's layout
 * too. */
enum { SHM_HANDSHAKE_VERSION = 2, SHM_HANDSHAKE_MAGIC = 0x6c614373 };
enum { HELLO = 1, WELCOME, SHARE };
static const int64_t HANDSHAKE_LIMIT = TIME_S;

struct packet {
    uint32_t magic, version, kind, number;
    uint64_t bytes, capacity;
};

/* The first page; the client's ring and the server's follow. */
struct handshake_page {
    _Atomic uint64_t challenge, reply;
    struct ring_shared to_server, to_client;
};

_Static_assert(sizeof(struct handshake_page) <= PAGE,
               "the fields fit into a page");

/* An abstract name begins with a zero byte, makes no file and ends with the
 * socket. It belongs to one network namespace: containers that do not share
 * theirs cannot connect. */
static socklen_t name_address(struct sockaddr_un *address, const char *name) {
    size_t size = strlen(name);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (size > sizeof address->sun_path - 1)
        size = sizeof address->sun_path - 1;
    memcpy(address->sun_path + 1, name, size);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + size);
}

static int open_socket(void) {
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

int shm_connection_listen(const char *name) {
    struct sockaddr_un address;
    socklen_t size = name_address(&address, name);
    int descriptor = open_socket();
    if (descriptor < 0)
        return -1;
    if (!bind(descriptor, (struct sockaddr *)&address, size) &&
        !listen(descriptor, BACKLOG))
        return descriptor;
    int error = errno;
    close(descriptor);
    errno = error;
    return -1;
}

static bool send_packet(struct shm_connection *connection,
                        const struct packet *packet, const int *descriptors,
                        size_t count) {
    char space[CMSG_SPACE(WAKEUPS * sizeof(int))] = {0};
    struct iovec part = {(void *)packet, sizeof *packet};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = space,
                             .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(rights), descriptors, count * sizeof(int));
    return sendmsg(connection->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) ==
           sizeof *packet;
}

/* Takes MESSAGE's descriptors; closes those beyond WAKEUPS. */
static size_t take_descriptors(struct msghdr *message, int *descriptors) {
    size_t count = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part;
         part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        size_t here = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < here; i++) {
            int descriptor;
            memcpy(&descriptor, CMSG_DATA(part) + i * sizeof descriptor,
                   sizeof descriptor);
            if (count < WAKEUPS)
                descriptors[count++] = descriptor;
            else
                close(descriptor);
        }
    }
    return count;
}

/* False: no packet. An invalid packet fails the connection. */
static bool receive_packet(struct shm_connection *connection,
                           struct packet *packet, int *descriptors,
                           size_t *count) {
    char space[CMSG_SPACE(WAKEUPS * sizeof(int))];
    struct iovec part = {packet, sizeof *packet};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = space,
                             .msg_controllen = sizeof space};
    ssize_t got =
        recvmsg(connection->socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    *count = got > 0 ? take_descriptors(&message, descriptors) : 0;
    connection->peer_closed = got <= 0;
    if (got <= 0)
        shm_connection_fail(connection,
                            "the other side has closed the connection");
    else if (got != sizeof *packet || message.msg_flags & MSG_TRUNC ||
             packet->magic != SHM_HANDSHAKE_MAGIC)
        shm_connection_fail(connection, "the other side uses another protocol");
    else if (packet->version != SHM_HANDSHAKE_VERSION)
        shm_connection_fail(connection,
                            "the other side is another release of capstan");
    else
        return true;
    for (size_t i = 0; i < *count; i++)
        close(descriptors[i]);
    return false;
}

static struct shm_connection *shm_handshake_open_connection(int socket,
                                                            uint64_t max_frame,
                                                            bool is_client) {
    struct shm_connection *connection = calloc(1, sizeof *connection);
    if (!connection) {
        close(socket);
        return NULL;
    }
    connection->socket = socket;
    connection->wakeup = connection->peer_wakeup = -1;
    connection->is_client = is_client;
    connection->max_frame = max_frame;
    connection->whole =
        max_frame < SHM_CONNECTION_WHOLE ? max_frame : SHM_CONNECTION_WHOLE;
    connection->capacity = ring_capacity(connection->whole);
    connection->since = time_now();
    return connection;
}

static void map_rings(struct shm_connection *connection) {
    struct handshake_page *page = shm_segment_base(connection->shm_segment);
    unsigned char *first = (unsigned char *)page + PAGE;
    unsigned char *second = first + connection->capacity;
    struct ring_shared *out =
        connection->is_client ? &page->to_server : &page->to_client;
    struct ring_shared *in =
        connection->is_client ? &page->to_client : &page->to_server;
    ring_writer_init(&connection->writer, out,
                     connection->is_client ? first : second,
                     connection->capacity);
    ring_reader_init(&connection->reader, in,
                     connection->is_client ? second : first,
                     connection->capacity);
}

/* The server's reply to CHALLENGE. */
static uint64_t expected_reply(uint64_t challenge) {
    return challenge * UINT64_C(0x9e3779b97f4a7c15) + 1;
}

static bool send_hello(struct shm_connection *connection) {
    size_t bytes = PAGE + 2 * connection->capacity;
    connection->shm_segment = shm_segment_open(bytes, SHM_SEGMENT_BOTH_WRITE);
    if (!connection->shm_segment)
        return false;
    map_rings(connection);
    struct handshake_page *page = shm_segment_base(connection->shm_segment);
    if (getrandom(&connection->challenge, sizeof connection->challenge, 0) !=
        sizeof connection->challenge)
        return false;
    atomic_store(&page->challenge, connection->challenge);
    struct packet packet = {.magic = SHM_HANDSHAKE_MAGIC,
                            .version = SHM_HANDSHAKE_VERSION,
                            .kind = HELLO,
                            .bytes = bytes,
                            .capacity = connection->capacity};
    int descriptor = shm_segment_descriptor(connection->shm_segment);
    return send_packet(connection, &packet, &descriptor, 1);
}

struct shm_connection *shm_connection_connect(const char *name,
                                              uint64_t max_frame, char *text,
                                              size_t size) {
    struct sockaddr_un address;
    socklen_t length = name_address(&address, name);
    int descriptor = open_socket();
    if (descriptor >= 0 &&
        connect(descriptor, (struct sockaddr *)&address, length)) {
        bool absent = errno == ECONNREFUSED;
        snprintf(text, size, "%s",
                 absent ? "it is not on this host, or in another network "
                          "namespace"
                        : strerror(errno));
        close(descriptor);
        return NULL;
    }
    struct shm_connection *connection =
        descriptor < 0
            ? NULL
            : shm_handshake_open_connection(descriptor, max_frame, true);
    if (connection && send_hello(connection))
        return connection;
    snprintf(text, size, "no shared memory: %s", strerror(errno));
    shm_connection_close(&connection);
    return NULL;
}

struct shm_connection *shm_connection_accept(int socket, uint64_t max_frame) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (!getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) &&
        peer.uid == geteuid())
        return shm_handshake_open_connection(socket, max_frame, false);
    close(socket);
    return NULL;
}

/* The client writes nothing before it has both wakeups. */
static void send_welcome(struct shm_connection *connection) {
    struct handshake_page *page = shm_segment_base(connection->shm_segment);
    struct packet packet = {.magic = SHM_HANDSHAKE_MAGIC,
                            .version = SHM_HANDSHAKE_VERSION,
                            .kind = WELCOME};
    connection->wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    connection->peer_wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int wakeups[WAKEUPS] = {connection->peer_wakeup, connection->wakeup};
    map_rings(connection);
    atomic_store(&page->reply, expected_reply(atomic_load(&page->challenge)));
    if (connection->wakeup < 0 || connection->peer_wakeup < 0 ||
        !send_packet(connection, &packet, wakeups, WAKEUPS))
        shm_connection_fail(connection,
                            "cannot create or send the wakeup descriptors");
    else
        connection->state = SHM_CONNECTION_OPEN;
}

static void on_hello(struct shm_connection *connection,
                     const struct packet *packet, int descriptor) {
    if (packet->capacity != connection->capacity ||
        packet->bytes != PAGE + 2 * connection->capacity) {
        close(descriptor);
        shm_connection_fail(connection, "the other side has other limits");
        return;
    }
    connection->shm_segment =
        shm_segment_map(descriptor, packet->bytes, SHM_SEGMENT_BOTH_WRITE);
    if (connection->shm_segment)
        send_welcome(connection);
    else
        shm_connection_fail(connection,
                            "memory that is not sealed, or cannot be mapped");
}

/* A wakeup descriptor must not block its writer. */
static void shm_handshake_on_welcome(struct shm_connection *connection,
                                     const int *wakeups) {
    struct handshake_page *page = shm_segment_base(connection->shm_segment);
    connection->wakeup = wakeups[0];
    connection->peer_wakeup = wakeups[1];
    fcntl(connection->peer_wakeup, F_SETFL, O_NONBLOCK);
    if (atomic_load(&page->reply) == expected_reply(connection->challenge))
        connection->state = SHM_CONNECTION_OPEN;
    else
        shm_connection_fail(connection,
                            "the other side has not mapped the same memory");
}

static void on_segment(struct shm_connection *connection,
                       const struct packet *packet, int descriptor) {
    if (connection->num_mapped == SHM_CONNECTION_SEGMENTS ||
        packet->number != connection->num_mapped) {
        close(descriptor);
        shm_connection_fail(connection, "more memory segments than allowed");
        return;
    }
    struct shm_segment *segment =
        shm_segment_map(descriptor, packet->bytes, SHM_SEGMENT_OWNER_WRITES);
    if (segment)
        connection->mapped[connection->num_mapped++] = segment;
    else
        shm_connection_fail(connection,
                            "memory that is not sealed, or cannot be mapped");
}

static void on_packet(struct shm_connection *connection,
                      const struct packet *packet, const int *descriptors,
                      size_t count) {
    bool in_handshake = connection->state == SHM_CONNECTION_HANDSHAKE;
    if (packet->kind == HELLO && in_handshake && !connection->is_client &&
        count == 1)
        on_hello(connection, packet, descriptors[0]);
    else if (packet->kind == WELCOME && in_handshake && connection->is_client &&
             count == WAKEUPS)
        shm_handshake_on_welcome(connection, descriptors);
    else if (packet->kind == SHARE &&
             connection->state == SHM_CONNECTION_OPEN && count == 1)
        on_segment(connection, packet, descriptors[0]);
    else {
        for (size_t i = 0; i < count; i++)
            close(descriptors[i]);
        shm_connection_fail(connection, "an unexpected packet");
    }
}

void shm_connection_receive_packets(struct shm_connection *connection) {
    struct packet packet;
    int descriptors[WAKEUPS];
    size_t count;
    while (connection->state != SHM_CONNECTION_FAILED &&
           receive_packet(connection, &packet, descriptors, &count))
        on_packet(connection, &packet, descriptors, count);
}

enum shm_connection_state shm_connection_step(struct shm_connection *connection,
                                              int64_t now) {
    shm_connection_receive_packets(connection);
    if (connection->state == SHM_CONNECTION_HANDSHAKE &&
        now - connection->since > HANDSHAKE_LIMIT)
        shm_connection_fail(connection, "no answer within 1 s");
    return connection->state;
}

bool shm_connection_share(struct shm_connection *shm_connection,
                          const struct shm_segment *shm_segment,
                          unsigned number) {
    struct packet packet = {.magic = SHM_HANDSHAKE_MAGIC,
                            .version = SHM_HANDSHAKE_VERSION,
                            .kind = SHARE,
                            .number = number,
                            .bytes = shm_segment_bytes(shm_segment)};
    int descriptor = shm_segment_descriptor(shm_segment);
    return descriptor >= 0 &&
           send_packet(shm_connection, &packet, &descriptor, 1);
}
