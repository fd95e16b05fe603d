/* SPDX-License-Identifier: Apache-2.0 */
/* How two sides meet: the client sends memory, the server answers a word that
 * it read there, with a bell for each side. Shown memory comes the same way.
 *
 * Only processes of the same user meet (SO_PEERCRED), and only over memory
 * whose size is sealed: a side that shrank it would kill the other by SIGBUS.
 * The word proves that both have mapped the same pages before a message is
 * trusted to them. Descriptors that come with a packet are closed whatever
 * becomes of it. A memory is shown by the socket before a message in the ring
 * speaks of it, so who does not know its number has only to listen to the
 * socket once more. */
#include "proto/base/time.h"
#include "proto/net/shm/lane_parts.h"

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

enum { BACKLOG = 128, BELLS = 2, PAGE = 4096 };
/* A packet of another version is refused: the ring's layout goes with it. */
enum { LANE_VERSION = 1, LANE_MAGIC = 0x6c614373 };
enum { HELLO = 1, WELCOME, SHOW };
static const int64_t MEETING = TIME_S;

struct packet {
    uint32_t magic, version, kind, number;
    uint64_t bytes, capacity;
};

/* A page of words, then the client's ring, then the server's. */
struct words {
    _Atomic uint64_t challenge, answer;
    struct ring_shared to_server, to_client;
};

_Static_assert(sizeof(struct words) <= PAGE, "words fit into a page");

/* A name of the abstract space: a zero byte first, no file, gone with the
 * socket. One network namespace's: containers that do not share theirs do not
 * find each other. */
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

int lane_listen(const char *name) {
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

static bool send_packet(struct lane *lane, const struct packet *packet,
                        const int *descriptors, size_t count) {
    char space[CMSG_SPACE(BELLS * sizeof(int))] = {0};
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
    return sendmsg(lane->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) ==
           sizeof *packet;
}

/* Descriptors that came with MESSAGE; those beyond BELLS are closed. */
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
            if (count < BELLS)
                descriptors[count++] = descriptor;
            else
                close(descriptor);
        }
    }
    return count;
}

/* False: nothing came. A packet of another make breaks the lane. */
static bool receive_packet(struct lane *lane, struct packet *packet,
                           int *descriptors, size_t *count) {
    char space[CMSG_SPACE(BELLS * sizeof(int))];
    struct iovec part = {packet, sizeof *packet};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = space,
                             .msg_controllen = sizeof space};
    ssize_t got =
        recvmsg(lane->socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    *count = got > 0 ? take_descriptors(&message, descriptors) : 0;
    lane->gone = got <= 0;
    if (got <= 0)
        lane_break(lane, "the other side has gone");
    else if (got != sizeof *packet || message.msg_flags & MSG_TRUNC ||
             packet->magic != LANE_MAGIC)
        lane_break(lane, "the other side speaks another protocol");
    else if (packet->version != LANE_VERSION)
        lane_break(lane, "the other side is another release of capstan");
    else
        return true;
    for (size_t i = 0; i < *count; i++)
        close(descriptors[i]);
    return false;
}

static struct lane *open_lane(int socket, uint64_t max_frame, bool calls) {
    struct lane *lane = calloc(1, sizeof *lane);
    if (!lane) {
        close(socket);
        return NULL;
    }
    lane->socket = socket;
    lane->bell = lane->their_bell = -1;
    lane->calls = calls;
    lane->max_frame = max_frame;
    lane->capacity = ring_capacity(max_frame);
    lane->since = time_now();
    return lane;
}

static void map_rings(struct lane *lane) {
    struct words *words = memory_base(lane->memory);
    unsigned char *first = (unsigned char *)words + PAGE;
    unsigned char *second = first + lane->capacity;
    struct ring_shared *out =
        lane->calls ? &words->to_server : &words->to_client;
    struct ring_shared *in =
        lane->calls ? &words->to_client : &words->to_server;
    ring_write_to(&lane->writer, out, lane->calls ? first : second,
                  lane->capacity);
    ring_read_from(&lane->reader, in, lane->calls ? second : first,
                   lane->capacity);
}

/* What a server makes of a challenge that it has read. */
static uint64_t answer_to(uint64_t challenge) {
    return challenge * UINT64_C(0x9e3779b97f4a7c15) + 1;
}

static bool say_hello(struct lane *lane) {
    size_t bytes = PAGE + 2 * lane->capacity;
    lane->memory = memory_open(bytes, MEMORY_BOTH_WRITE);
    if (!lane->memory)
        return false;
    map_rings(lane);
    struct words *words = memory_base(lane->memory);
    if (getrandom(&lane->challenge, sizeof lane->challenge, 0) !=
        sizeof lane->challenge)
        return false;
    atomic_store(&words->challenge, lane->challenge);
    struct packet packet = {.magic = LANE_MAGIC,
                            .version = LANE_VERSION,
                            .kind = HELLO,
                            .bytes = bytes,
                            .capacity = lane->capacity};
    int descriptor = memory_descriptor(lane->memory);
    return send_packet(lane, &packet, &descriptor, 1);
}

struct lane *lane_call(const char *name, uint64_t max_frame, char *text,
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
    struct lane *lane =
        descriptor < 0 ? NULL : open_lane(descriptor, max_frame, true);
    if (lane && say_hello(lane))
        return lane;
    snprintf(text, size, "no shared memory: %s", strerror(errno));
    lane_close(&lane);
    return NULL;
}

struct lane *lane_meet(int socket, uint64_t max_frame) {
    struct ucred who;
    socklen_t size = sizeof who;
    if (!getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) &&
        who.uid == geteuid())
        return open_lane(socket, max_frame, false);
    close(socket);
    return NULL;
}

/* The client waits for both bells; until then it writes nothing. */
static void welcome(struct lane *lane) {
    struct words *words = memory_base(lane->memory);
    struct packet packet = {
        .magic = LANE_MAGIC, .version = LANE_VERSION, .kind = WELCOME};
    lane->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    lane->their_bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int bells[BELLS] = {lane->their_bell, lane->bell};
    map_rings(lane);
    atomic_store(&words->answer, answer_to(atomic_load(&words->challenge)));
    if (lane->bell < 0 || lane->their_bell < 0 ||
        !send_packet(lane, &packet, bells, BELLS))
        lane_break(lane, "no bells");
    else
        lane->state = LANE_OPEN;
}

static void take_hello(struct lane *lane, const struct packet *packet,
                       int descriptor) {
    if (packet->capacity != lane->capacity ||
        packet->bytes != PAGE + 2 * lane->capacity) {
        close(descriptor);
        lane_break(lane, "the other side has other limits");
        return;
    }
    lane->memory = memory_take(descriptor, packet->bytes, MEMORY_BOTH_WRITE);
    if (lane->memory)
        welcome(lane);
    else
        lane_break(lane, "memory that is not sealed, or cannot be mapped");
}

/* A bell that blocks would be rung once too often. */
static void take_welcome(struct lane *lane, const int *bells) {
    struct words *words = memory_base(lane->memory);
    lane->bell = bells[0];
    lane->their_bell = bells[1];
    fcntl(lane->their_bell, F_SETFL, O_NONBLOCK);
    if (atomic_load(&words->answer) == answer_to(lane->challenge))
        lane->state = LANE_OPEN;
    else
        lane_break(lane, "what is written there is not read");
}

static void take_memory(struct lane *lane, const struct packet *packet,
                        int descriptor) {
    if (lane->num_seen == LANE_MEMORIES || packet->number != lane->num_seen) {
        close(descriptor);
        lane_break(lane, "more memory than is taken");
        return;
    }
    struct memory *memory =
        memory_take(descriptor, packet->bytes, MEMORY_MAKER_WRITES);
    if (memory)
        lane->seen[lane->num_seen++] = memory;
    else
        lane_break(lane, "memory that is not sealed, or cannot be mapped");
}

static void take_packet(struct lane *lane, const struct packet *packet,
                        const int *descriptors, size_t count) {
    bool meets = lane->state == LANE_MEETING;
    if (packet->kind == HELLO && meets && !lane->calls && count == 1)
        take_hello(lane, packet, descriptors[0]);
    else if (packet->kind == WELCOME && meets && lane->calls && count == BELLS)
        take_welcome(lane, descriptors);
    else if (packet->kind == SHOW && lane->state == LANE_OPEN && count == 1)
        take_memory(lane, packet, descriptors[0]);
    else {
        for (size_t i = 0; i < count; i++)
            close(descriptors[i]);
        lane_break(lane, "a packet that has no place here");
    }
}

void lane_listen_to(struct lane *lane) {
    struct packet packet;
    int descriptors[BELLS];
    size_t count;
    while (lane->state != LANE_BROKEN &&
           receive_packet(lane, &packet, descriptors, &count))
        take_packet(lane, &packet, descriptors, count);
}

enum lane_state lane_step(struct lane *lane, int64_t now) {
    lane_listen_to(lane);
    if (lane->state == LANE_MEETING && now - lane->since > MEETING)
        lane_break(lane, "no answer within 1 s");
    return lane->state;
}

bool lane_show(struct lane *lane, const struct memory *memory,
               unsigned number) {
    struct packet packet = {.magic = LANE_MAGIC,
                            .version = LANE_VERSION,
                            .kind = SHOW,
                            .number = number,
                            .bytes = memory_bytes(memory)};
    int descriptor = memory_descriptor(memory);
    return descriptor >= 0 && send_packet(lane, &packet, &descriptor, 1);
}
