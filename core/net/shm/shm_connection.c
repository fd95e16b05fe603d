/* SPDX-License-Identifier: Apache-2.0 */
/* A payload is sent in one of three ways. If it lies in a shareable segment,
 * the segment's descriptor is sent once and each message then carries a number
 * and an offset; the buffer is held until the reader releases the message. If
 * it was reserved, it lies in the ring already. Otherwise it is copied into the
 * ring, in parts if it is longer than the ring can have as a whole; the reader
 * joins them. A message that finds no room waits in a queue, in order, and the
 * writer asks for a wakeup when there is room.
 *
 * A wakeup is a system call, so it is sent only to a sleeping reader, and once
 * for all messages of a loop turn: at its end (shm_connection_prepare_wait), or
 * after 256 KiB. */
#include "core/net/shm/shm_connection.h"

#include "core/base/time.h"
#include "core/net/shm/shm_connection_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The handshake: the client sends a memory segment in which it says who it is,
 * with a challenge; the server writes its own challenge and its proof there and
 * sends a wakeup eventfd for each side; the client writes its proof there and
 * says so. Shared segments are sent the same way later.
 *
 * Only processes of the same user connect (SO_PEERCRED), and only over memory
 * whose size is sealed: a side that shrank it would kill the other by SIGBUS.
 * The proofs also show that both have mapped the same pages before either
 * trusts messages in them. Descriptors that come with a rejected packet are
 * closed. A segment is sent by the socket before a message in the ring refers
 * to it, so a reader that does not know its number reads the socket once more.
 */

enum { BACKLOG = 128, WAKEUPS = 2, PAGE = 4096 };
/* A packet of another version is refused: the version covers the ring's layout
 * too. */
enum { SHM_HANDSHAKE_VERSION = 3, SHM_HANDSHAKE_MAGIC = 0x6c614373 };
enum { HELLO = 1, WELCOME, SHARE, PROVED };
static const int64_t HANDSHAKE_LIMIT = TIME_S;

struct packet {
    uint32_t magic, version, kind, number;
    uint64_t bytes, capacity;
};

/* Of one side. The other copies it before it is checked. */
struct handshake_side {
    unsigned char challenge[PROOF_BYTES], proof[PROOF_BYTES];
    char party[SHM_CONNECTION_PARTY];
};

/* The first page; the client's ring and the server's follow. */
struct handshake_page {
    struct handshake_side client, server;
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
    if (count)
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

static struct shm_connection *shm_handshake_open_connection(
    int socket, const struct shm_connection_settings *settings,
    bool is_client) {
    uint64_t max_frame = settings->max_frame;
    struct shm_connection *connection = calloc(1, sizeof *connection);
    if (!connection) {
        close(socket);
        return NULL;
    }
    connection->socket = socket;
    connection->wakeup = connection->peer_wakeup = -1;
    connection->is_client = is_client;
    connection->settings = *settings;
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

static struct handshake_page *page_of(struct shm_connection *connection) {
    return shm_segment_base(connection->shm_segment);
}

static const unsigned char *proof_key_of(
    const struct shm_connection *connection) {
    static const unsigned char none[PROOF_KEY_BYTES];
    return connection->settings.key ? connection->settings.key : none;
}

enum { PROOF_NAME = 2 * SHM_CONNECTION_PARTY + 16 };

/* Under which FROM proves itself to TO. */
static void name_proof(char name[PROOF_NAME], const char *from,
                       const char *to) {
    snprintf(name, PROOF_NAME, "shm %s to %s", from, to);
}

static void write_challenge(struct shm_connection *connection,
                            struct handshake_side *own) {
    proof_challenge(connection->challenge);
    memcpy(own->challenge, connection->challenge, PROOF_BYTES);
}

/* Both challenges are known. */
static void write_proof(struct shm_connection *connection,
                        struct handshake_side *own) {
    const struct shm_connection_settings *s = &connection->settings;
    char name[PROOF_NAME];
    name_proof(name, s->self, s->peer);
    proof_make(own->proof, proof_key_of(connection), name,
               connection->challenge, connection->peer_challenge);
}

/* Fails the connection unless PEERS, a copy, proves who the other side is. */
static bool check_proof(struct shm_connection *connection,
                        const struct handshake_side *peers) {
    const struct shm_connection_settings *s = &connection->settings;
    char name[PROOF_NAME];
    name_proof(name, s->peer, s->self);
    if (proof_holds(peers->proof, proof_key_of(connection), name,
                    connection->challenge, connection->peer_challenge))
        return true;
    shm_connection_fail(
        connection, s->key ? "it does not prove that it has the run's secret"
                           : "the other side has not mapped the same memory");
    return false;
}

static bool send_hello(struct shm_connection *connection) {
    size_t bytes = PAGE + 2 * connection->capacity;
    connection->shm_segment = shm_segment_open(bytes, SHM_SEGMENT_BOTH_WRITE);
    if (!connection->shm_segment)
        return false;
    map_rings(connection);
    struct handshake_side *own = &page_of(connection)->client;
    write_challenge(connection, own);
    memcpy(own->party, connection->settings.self, sizeof own->party);
    struct packet packet = {.magic = SHM_HANDSHAKE_MAGIC,
                            .version = SHM_HANDSHAKE_VERSION,
                            .kind = HELLO,
                            .bytes = bytes,
                            .capacity = connection->capacity};
    int descriptor = shm_segment_descriptor(connection->shm_segment);
    return send_packet(connection, &packet, &descriptor, 1);
}

/* Is the other side, or who listens there, of this process's user? */
static bool is_of_own_user(int socket) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    return !getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) &&
           peer.uid == geteuid();
}

struct shm_connection *shm_connection_connect(
    const char *name, const struct shm_connection_settings *settings,
    char *text, size_t size) {
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
    if (descriptor >= 0 && !is_of_own_user(descriptor)) {
        snprintf(text, size, "another user listens at its name");
        close(descriptor);
        return NULL;
    }
    struct shm_connection *connection =
        descriptor < 0
            ? NULL
            : shm_handshake_open_connection(descriptor, settings, true);
    if (connection && send_hello(connection))
        return connection;
    snprintf(text, size, "no shared memory: %s", strerror(errno));
    shm_connection_close(&connection);
    return NULL;
}

struct shm_connection *shm_connection_accept(
    int socket, const struct shm_connection_settings *settings) {
    if (is_of_own_user(socket))
        return shm_handshake_open_connection(socket, settings, false);
    close(socket);
    return NULL;
}

/* Takes who the client says it is. False: not who is expected. */
static bool take_party(struct shm_connection *connection) {
    char *expected = connection->settings.peer;
    struct handshake_side client = page_of(connection)->client;
    memcpy(connection->peer_challenge, client.challenge, PROOF_BYTES);
    client.party[sizeof client.party - 1] = 0;
    if (!*expected)
        memcpy(expected, client.party, sizeof client.party);
    return !strcmp(expected, client.party);
}

/* The client writes nothing else before it has both wakeups. */
static void send_welcome(struct shm_connection *connection) {
    struct handshake_side *own = &page_of(connection)->server;
    struct packet packet = {.magic = SHM_HANDSHAKE_MAGIC,
                            .version = SHM_HANDSHAKE_VERSION,
                            .kind = WELCOME};
    connection->wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    connection->peer_wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int wakeups[WAKEUPS] = {connection->peer_wakeup, connection->wakeup};
    map_rings(connection);
    write_challenge(connection, own);
    write_proof(connection, own);
    if (connection->wakeup < 0 || connection->peer_wakeup < 0 ||
        !send_packet(connection, &packet, wakeups, WAKEUPS))
        shm_connection_fail(connection,
                            "cannot create or send the wakeup descriptors");
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
    if (!connection->shm_segment)
        shm_connection_fail(connection,
                            "memory that is not sealed, or cannot be mapped");
    else if (!take_party(connection))
        shm_connection_fail(connection, "it is another process than expected");
    else
        send_welcome(connection);
}

/* A wakeup descriptor must not block its writer. */
static void shm_handshake_on_welcome(struct shm_connection *connection,
                                     const int *wakeups) {
    struct handshake_page *page = page_of(connection);
    struct handshake_side server = page->server;
    struct packet packet = {.magic = SHM_HANDSHAKE_MAGIC,
                            .version = SHM_HANDSHAKE_VERSION,
                            .kind = PROVED};
    connection->wakeup = wakeups[0];
    connection->peer_wakeup = wakeups[1];
    fcntl(connection->peer_wakeup, F_SETFL, O_NONBLOCK);
    memcpy(connection->peer_challenge, server.challenge, PROOF_BYTES);
    if (!check_proof(connection, &server))
        return;
    write_proof(connection, &page->client);
    if (send_packet(connection, &packet, NULL, 0))
        connection->state = SHM_CONNECTION_OPEN;
    else
        shm_connection_fail(connection, "cannot send its proof");
}

static void on_proved(struct shm_connection *connection) {
    struct handshake_side client = page_of(connection)->client;
    if (check_proof(connection, &client))
        connection->state = SHM_CONNECTION_OPEN;
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
    bool serves = in_handshake && !connection->is_client;
    if (packet->kind == HELLO && serves && !connection->shm_segment &&
        count == 1)
        on_hello(connection, packet, descriptors[0]);
    else if (packet->kind == WELCOME && in_handshake && connection->is_client &&
             count == WAKEUPS)
        shm_handshake_on_welcome(connection, descriptors);
    else if (packet->kind == PROVED && serves && connection->shm_segment &&
             !count)
        on_proved(connection);
    else if (packet->kind == SHARE &&
             connection->state == SHM_CONNECTION_OPEN && count == 1)
        on_segment(connection, packet, descriptors[0]);
    else {
        for (size_t i = 0; i < count; i++)
            close(descriptors[i]);
        shm_connection_fail(connection, "an unexpected packet");
    }
}

/* Handles the packets that the socket has received. */
static void shm_connection_receive_packets(struct shm_connection *connection) {
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

enum { MAX_QUEUED = 1 << 16, NOT_SHARED = SHM_CONNECTION_SEGMENTS };
enum { WAKEUP_BYTES = 256 << 10 };

static void drop_queued(struct shm_connection *connection) {
    struct shm_connection_pending *queued = connection->first;
    connection->first = queued->next;
    connection->num_queued--;
    buffer_release(&queued->buffer);
    free(queued->owned);
    free(queued);
}

static void drop_in_flight(struct shm_connection *connection) {
    buffer_release(&connection->in_flight[connection->first_in_flight].buffer);
    connection->first_in_flight =
        (connection->first_in_flight + 1) % connection->in_flight_capacity;
    connection->num_in_flight--;
}

void shm_connection_close(struct shm_connection **where) {
    struct shm_connection *connection = *where;
    *where = NULL;
    if (!connection)
        return;
    while (connection->first)
        drop_queued(connection);
    while (connection->num_in_flight)
        drop_in_flight(connection);
    for (unsigned i = 0; i < connection->num_shared; i++)
        shm_segment_release(&connection->shared[i]);
    for (unsigned i = 0; i < connection->num_mapped; i++)
        shm_segment_release(&connection->mapped[i]);
    shm_segment_release(&connection->shm_segment);
    close(connection->socket);
    if (connection->wakeup >= 0)
        close(connection->wakeup);
    if (connection->peer_wakeup >= 0)
        close(connection->peer_wakeup);
    free(connection->spare_buffer);
    free(connection->joined.bytes);
    free(connection->in_flight);
    free(connection);
}

const char *shm_connection_error(const struct shm_connection *connection) {
    return connection->error;
}

bool shm_connection_peer_closed(const struct shm_connection *shm_connection) {
    return shm_connection->peer_closed;
}

void shm_connection_fail(struct shm_connection *connection, const char *text) {
    if (connection->state == SHM_CONNECTION_FAILED)
        return;
    connection->state = SHM_CONNECTION_FAILED;
    connection->error = text;
}

const char *shm_connection_peer(const struct shm_connection *connection) {
    return connection->settings.peer;
}

int shm_connection_socket(const struct shm_connection *connection) {
    return connection->socket;
}

int shm_connection_wakeup(const struct shm_connection *connection) {
    return connection->wakeup;
}

static void signal_wakeup(int wakeup) {
    eventfd_write(wakeup, 1); /* if it fails, a wakeup is pending */
}

static void signal_peer(struct shm_connection *connection) {
    connection->wakeup_due = false;
    signal_wakeup(connection->peer_wakeup);
}

void shm_connection_notify(struct shm_connection *connection) {
    if (connection->wakeup_due)
        signal_peer(connection);
}

void shm_connection_prepare_wait(struct shm_connection *connection) {
    shm_connection_notify(connection);
    if (connection->state == SHM_CONNECTION_OPEN &&
        !ring_prepare_wait(&connection->reader))
        signal_wakeup(connection->wakeup);
}

void shm_connection_finish_wait(struct shm_connection *connection) {
    if (connection->state == SHM_CONNECTION_OPEN)
        ring_finish_wait(&connection->reader);
}

/* Segment NUMBER, which the other side shares before it refers to it; NULL: it
 * has not. */
static struct shm_segment *mapped_segment(struct shm_connection *connection,
                                          uint32_t number) {
    if (number >= connection->num_mapped)
        shm_connection_receive_packets(connection);
    return number < connection->num_mapped ? connection->mapped[number] : NULL;
}

static bool view_segment(struct shm_connection *connection,
                         const struct ring_payload *payload,
                         struct shm_connection_view *view) {
    if (!payload->bytes)
        return true;
    view->shm_segment = mapped_segment(connection, payload->shm_segment);
    size_t capacity =
        view->shm_segment ? shm_segment_bytes(view->shm_segment) : 0;
    if (payload->bytes > capacity ||
        payload->offset > capacity - payload->bytes)
        return false;
    view->payload =
        (const char *)shm_segment_base(view->shm_segment) + payload->offset;
    return true;
}

bool shm_connection_pending(const struct shm_connection *shm_connection) {
    return shm_connection->state == SHM_CONNECTION_OPEN &&
           ring_pending(&shm_connection->reader);
}

static void release_message(struct shm_connection *connection) {
    if (ring_next_done(&connection->reader))
        signal_wakeup(connection->peer_wakeup);
}

/* Adds BYTES at DATA to the payload that comes in parts. */
static bool join(struct shm_connection *connection, const void *data,
                 size_t bytes) {
    size_t used = connection->joined.used + bytes;
    if (used > connection->joined.room) {
        size_t room =
            2 * used < connection->max_frame ? 2 * used : connection->max_frame;
        char *more = realloc(connection->joined.bytes, room);
        if (!more) {
            shm_connection_fail(connection, "no memory for a long message");
            return false;
        }
        connection->joined.bytes = more;
        connection->joined.room = room;
    }
    if (bytes)
        memcpy(connection->joined.bytes + connection->joined.used, data, bytes);
    connection->joined.used = used;
    return true;
}

/* Moves parts out of the ring, up to the end of their message. False: it is not
 * there yet. */
static bool next_whole(struct shm_connection *connection,
                       struct ring_message *message) {
    while (connection->state == SHM_CONNECTION_OPEN) {
        enum ring_state state = ring_next(&connection->reader, message);
        if (state == RING_BROKEN)
            shm_connection_fail(connection, "an invalid ring");
        if (state != RING_MESSAGE)
            return false;
        size_t before =
            connection->joined.complete ? 0 : connection->joined.used;
        if (message->payload.bytes > connection->max_frame - before ||
            message->header_bytes > connection->max_frame)
            shm_connection_fail(connection, "a frame that is too long");
        else if (!message->payload.more)
            return true;
        else if (!message->payload.bytes || connection->joined.complete)
            shm_connection_fail(connection, "an invalid ring");
        else if (join(connection, message->inside, message->payload.bytes))
            release_message(connection);
    }
    return false;
}

/* The payload of the message whose earlier parts are joined. */
static void view_joined(struct shm_connection *connection,
                        struct shm_connection_view *view) {
    if (!connection->joined.complete &&
        !join(connection, view->payload, view->payload_bytes))
        return;
    connection->joined.complete = true;
    view->payload = connection->joined.bytes;
    view->payload_bytes = connection->joined.used;
    view->shm_segment = NULL;
}

bool shm_connection_view(struct shm_connection *shm_connection,
                         struct shm_connection_view *view) {
    struct ring_message message;
    if (!next_whole(shm_connection, &message))
        return false;
    memcpy(shm_connection->header, message.header, message.header_bytes);
    *view =
        (struct shm_connection_view){.header = shm_connection->header,
                                     .header_bytes = message.header_bytes,
                                     .payload = message.inside,
                                     .payload_bytes = message.payload.bytes};
    if (!message.payload.inside &&
        !view_segment(shm_connection, &message.payload, view))
        shm_connection_fail(shm_connection,
                            "a payload outside the memory that it has shared");
    else if (shm_connection->joined.used)
        view_joined(shm_connection, view);
    return shm_connection->state == SHM_CONNECTION_OPEN;
}

void shm_connection_release(struct shm_connection *connection) {
    free(connection->joined.bytes);
    memset(&connection->joined, 0, sizeof connection->joined);
    release_message(connection);
}

static void *spare_buffer(struct shm_connection *connection, size_t bytes) {
    free(connection->spare_buffer);
    connection->spare_buffer = malloc(bytes ? bytes : 1);
    return connection->spare_buffer;
}

/* While messages are queued, the payload may not lie in the ring, where it
 * would overtake them. */
void *shm_connection_reserve(struct shm_connection *connection, size_t bytes) {
    connection->reserved = NULL;
    if (bytes > connection->max_frame ||
        connection->state != SHM_CONNECTION_OPEN)
        return NULL;
    if (!connection->first)
        connection->reserved = ring_reserve(&connection->writer, bytes);
    return connection->reserved ? connection->reserved
                                : spare_buffer(connection, bytes);
}

void *shm_connection_try_reserve(struct shm_connection *connection,
                                 size_t bytes) {
    connection->reserved = NULL;
    if (bytes > connection->max_frame ||
        connection->state != SHM_CONNECTION_OPEN || connection->first)
        return NULL;
    connection->reserved = ring_reserve(&connection->writer, bytes);
    if (connection->reserved)
        return connection->reserved;
    ring_request_room(&connection->writer);
    connection->reserved = ring_reserve(&connection->writer, bytes);
    return connection->reserved;
}

/* A reservation needs room for the longest header besides its payload. */
void shm_connection_set_headroom(struct shm_connection *connection,
                                 uint64_t bytes) {
    connection->writer.headroom = bytes + 2 * RING_HEADER;
}

/* The number by which the other side knows SEGMENT, shared now if need be;
 * NOT_SHARED: it cannot be shared. */
static unsigned share_number(struct shm_connection *connection,
                             struct shm_segment *segment) {
    for (unsigned i = 0; i < connection->num_shared; i++)
        if (connection->shared[i] == segment)
            return i;
    unsigned number = connection->num_shared;
    if (number == SHM_CONNECTION_SEGMENTS ||
        !shm_connection_share(connection, segment, number))
        return NOT_SHARED;
    connection->shared[connection->num_shared++] = shm_segment_hold(segment);
    return number;
}

bool shm_connection_can_share(struct shm_connection *shm_connection,
                              const struct buffer *buffer) {
    struct shm_segment *shm_segment = buffer_segment(buffer);
    return shm_segment && shm_connection->state == SHM_CONNECTION_OPEN &&
           share_number(shm_connection, shm_segment) != NOT_SHARED;
}

static bool grow_in_flight(struct shm_connection *connection) {
    if (connection->num_in_flight < connection->in_flight_capacity)
        return true;
    size_t capacity = connection->in_flight_capacity
                          ? 2 * connection->in_flight_capacity
                          : 64;
    struct shm_connection_in_flight *in_flight =
        malloc(capacity * sizeof *in_flight);
    if (!in_flight)
        return false;
    for (size_t i = 0; i < connection->num_in_flight; i++)
        in_flight[i] = connection->in_flight[(connection->first_in_flight + i) %
                                             connection->in_flight_capacity];
    free(connection->in_flight);
    connection->in_flight = in_flight;
    connection->in_flight_capacity = capacity;
    connection->first_in_flight = 0;
    return true;
}

/* Fills SHARED if PAYLOAD can be sent by reference. False: it must be copied.
 */
static bool can_share(struct shm_connection *connection,
                      const struct shm_connection_payload *payload,
                      struct ring_payload *shared) {
    struct shm_segment *segment =
        payload->buffer ? buffer_segment(payload->buffer) : NULL;
    if (!segment || !grow_in_flight(connection))
        return false;
    unsigned number = share_number(connection, segment);
    *shared = (struct ring_payload){
        .offset = (uint64_t)((const char *)payload->data -
                             (const char *)shm_segment_base(segment)),
        .bytes = payload->bytes,
        .shm_segment = number};
    return number != NOT_SHARED;
}

/* Delays the wakeup until WAKEUP_BYTES are sent or the turn ends, so that the
 * reader takes several messages at once. */
static void commit_message(struct shm_connection *connection,
                           const void *header, size_t bytes,
                           const struct ring_payload *payload) {
    if (ring_commit(&connection->writer, header, bytes, payload)) {
        connection->wakeup_due = true;
        connection->unsignalled_bytes = 0;
    }
    connection->unsignalled_bytes += payload->bytes;
    if (connection->wakeup_due && connection->unsignalled_bytes >= WAKEUP_BYTES)
        signal_peer(connection);
}

/* Holds BUFFER until the reader's tail has passed the message's end, which is
 * the writer's head now. Positions only grow, so the oldest is released first.
 */
static void add_in_flight(struct shm_connection *connection,
                          struct buffer *buffer) {
    size_t at = (connection->first_in_flight + connection->num_in_flight++) %
                connection->in_flight_capacity;
    connection->in_flight[at] = (struct shm_connection_in_flight){
        connection->writer.head, buffer_hold(buffer)};
}

/* Writes the message into the ring; false: no room now. */
static bool shm_connection_put(struct shm_connection *connection,
                               const void *header, size_t bytes,
                               const struct shm_connection_payload *payload) {
    struct ring_payload where;
    bool is_shared = payload->bytes && can_share(connection, payload, &where);
    if (!is_shared)
        where = (struct ring_payload){.bytes = payload->bytes, .inside = true};
    void *room =
        ring_reserve(&connection->writer, is_shared ? 0 : payload->bytes);
    if (!room)
        return false;
    if (!is_shared && payload->bytes)
        memcpy(room, payload->data, payload->bytes);
    commit_message(connection, header, bytes, &where);
    if (is_shared)
        add_in_flight(connection, payload->buffer);
    return true;
}

/* Keeps PAYLOAD while it waits: holds its buffer, takes the spare buffer that
 * was reserved for it, or else copies it. False: no memory. */
static bool own_payload(struct shm_connection *connection,
                        struct shm_connection_pending *queued,
                        const struct shm_connection_payload *payload) {
    queued->bytes = payload->bytes;
    queued->data = payload->data;
    if (payload->buffer)
        queued->buffer = buffer_hold(payload->buffer);
    if (payload->buffer || !payload->bytes)
        return true;
    if (payload->data == connection->spare_buffer) {
        queued->owned = connection->spare_buffer;
        connection->spare_buffer = NULL;
        return true;
    }
    queued->data = queued->owned = malloc(payload->bytes);
    if (queued->owned)
        memcpy(queued->owned, payload->data, payload->bytes);
    return queued->owned;
}

static bool shm_connection_enqueue(
    struct shm_connection *connection, const void *header, size_t header_bytes,
    const struct shm_connection_payload *payload) {
    struct shm_connection_pending *queued =
        malloc(sizeof *queued + header_bytes);
    if (queued)
        *queued = (struct shm_connection_pending){.header_bytes = header_bytes};
    if (!queued || !own_payload(connection, queued, payload)) {
        free(queued);
        shm_connection_fail(connection, "no memory for a queued message");
        return false;
    }
    memcpy(queued->header, header, header_bytes);
    if (connection->first)
        connection->last->next = queued;
    else
        connection->first = queued;
    connection->last = queued;
    if (++connection->num_queued > MAX_QUEUED)
        shm_connection_fail(connection, "it does not read its messages");
    return connection->state == SHM_CONNECTION_OPEN;
}

/* Was the payload reserved in the ring? */
static bool is_reserved(struct shm_connection *connection,
                        const struct shm_connection_payload *payload) {
    bool reserved = payload->bytes && payload->data == connection->reserved;
    connection->reserved = NULL;
    return reserved;
}

bool shm_connection_send(struct shm_connection *shm_connection,
                         const void *header, size_t header_bytes,
                         const struct shm_connection_payload *payload) {
    static const struct shm_connection_payload none;
    if (!payload)
        payload = &none;
    if (shm_connection->state != SHM_CONNECTION_OPEN ||
        header_bytes > RING_HEADER ||
        payload->bytes > shm_connection->max_frame)
        return false;
    if (is_reserved(shm_connection, payload)) {
        struct ring_payload inside = {.bytes = payload->bytes, .inside = true};
        commit_message(shm_connection, header, header_bytes, &inside);
        return true;
    }
    shm_connection_progress(shm_connection);
    if (!shm_connection->first &&
        shm_connection_put(shm_connection, header, header_bytes, payload))
        return true;
    bool is_queued =
        shm_connection_enqueue(shm_connection, header, header_bytes, payload);
    if (shm_connection->wakeup_due)
        signal_peer(shm_connection);
    shm_connection_progress(
        shm_connection); /* requests a wakeup, then looks for room again */
    return is_queued;
}

/* Writes what the ring has room for of a payload that it cannot have whole;
 * true: what is left of it fits. */
static bool put_parts(struct shm_connection *connection,
                      struct shm_connection_pending *queued) {
    const struct ring_payload part = {
        .bytes = connection->whole / 4, .inside = true, .more = true};
    bool shared =
        queued->buffer && shm_connection_can_share(connection, queued->buffer);
    while (!shared && queued->bytes > connection->whole) {
        void *room = ring_reserve(&connection->writer, part.bytes);
        if (!room)
            return false;
        memcpy(room, queued->data, part.bytes);
        commit_message(connection, NULL, 0, &part);
        queued->data += part.bytes;
        queued->bytes -= part.bytes;
    }
    return true;
}

static bool put_queued(struct shm_connection *connection,
                       struct shm_connection_pending *queued) {
    if (!put_parts(connection, queued))
        return false;
    struct shm_connection_payload payload = {queued->data, queued->bytes,
                                             queued->buffer};
    return shm_connection_put(connection, queued->header, queued->header_bytes,
                              &payload);
}

void shm_connection_progress(struct shm_connection *connection) {
    if (connection->state != SHM_CONNECTION_OPEN)
        return;
    if (connection->num_in_flight) {
        uint64_t released = ring_released(&connection->writer);
        while (connection->num_in_flight &&
               connection->in_flight[connection->first_in_flight].position <=
                   released)
            drop_in_flight(connection);
    }
    if (connection->first)
        ring_request_room(&connection->writer);
    while (connection->first && put_queued(connection, connection->first))
        drop_queued(connection);
}

/* Counts checks in a row without progress. A slow reader moves its tail between
 * two checks; a stopped one does not. */
unsigned shm_connection_stalled(struct shm_connection *connection) {
    if (connection->state != SHM_CONNECTION_OPEN)
        return 0;
    uint64_t tail = ring_released(&connection->writer);
    bool same =
        tail == connection->stalled_tail && tail != connection->writer.head;
    connection->num_stalled = same ? connection->num_stalled + 1 : 0;
    connection->stalled_tail = tail;
    return connection->num_stalled;
}
