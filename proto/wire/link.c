#include "proto/wire/link.h"

#include "proto/base/time.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BANNED = 64, IDENTITY = 5, DESCRIPTORS = 65536 };
enum { SKIPPED_A_TURN = 256, SAYINGS = 8, SAYING = 128 };
static const int64_t SAY_EVERY = 10 * TIME_S;

/* Why a connection is not one of ours. */
enum stranger { NOT_STRANGE, NO_MESSAGE, MANY_PARTS, STRANGERS };

/* What was said of peers, and when. */
struct saying {
    char text[SAYING];
    int64_t at;
};

struct link {
    void *zmq, *socket, *monitor;
    enum link_kind kind;
    uint16_t port;
    char address[300]; /* endpoint connected to, or "" */
    uint32_t banned[BANNED];
    unsigned num_banned;
    bool *spoke; /* by descriptor: has sent a message; NULL: not watched */
    bool many_parts;
    struct saying sayings[SAYINGS];
};

_Static_assert(sizeof(zmq_msg_t) <= sizeof(struct link_room), "a message fits");

static zmq_msg_t *message_in(struct link_room *room) {
    return (zmq_msg_t *)room->bytes;
}

static struct link_bytes view_of(zmq_msg_t *message) {
    size_t size = zmq_msg_size(message);
    return (struct link_bytes){size ? zmq_msg_data(message) : NULL, size};
}

static void set_int(void *socket, int option, int value) {
    zmq_setsockopt(socket, option, &value, sizeof value);
}

/* Values and their reasons: docs/wire.md. */
static void configure(void *socket, const struct link_settings *settings) {
    set_int(socket, ZMQ_LINGER, settings->linger_ms);
    set_int(socket, ZMQ_SNDHWM, 0);
    set_int(socket, ZMQ_RCVHWM, settings->receive_frames);
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &settings->max_frame,
                   sizeof settings->max_frame);
    set_int(socket, ZMQ_HANDSHAKE_IVL, 2000);
    set_int(socket, ZMQ_HEARTBEAT_IVL, 500);
    set_int(socket, ZMQ_HEARTBEAT_TIMEOUT, 3000);
    set_int(socket, ZMQ_CONNECT_TIMEOUT, 2000);
    set_int(socket, ZMQ_RECONNECT_IVL, 100);
    set_int(socket, ZMQ_RECONNECT_IVL_MAX, 2000);
    set_int(socket, ZMQ_IMMEDIATE, 1);
    set_int(socket, ZMQ_IPV6, 1);
}

static void watch(struct link *link, int events) {
    char name[64];
    snprintf(name, sizeof name, "inproc://monitor-%p", (void *)link);
    if (zmq_socket_monitor(link->socket, name, events))
        return;
    link->monitor = zmq_socket(link->zmq, ZMQ_PAIR);
    set_int(link->monitor, ZMQ_LINGER, 0);
    zmq_connect(link->monitor, name);
}

enum status link_open(struct link **out, void *zmq, enum link_kind kind,
                      const struct link_settings *settings,
                      struct failure *why) {
    struct link *link = calloc(1, sizeof *link);
    if (!link)
        return status_fail(why, STATUS_RETRY, "no memory for a link");
    link->zmq = zmq;
    link->kind = kind;
    link->socket =
        zmq_socket(zmq, kind == LINK_SERVER ? ZMQ_ROUTER : ZMQ_DEALER);
    if (!link->socket) {
        free(link);
        return status_errno(why, STATUS_RETRY, zmq_errno(),
                            "cannot open a socket");
    }
    configure(link->socket, settings);
    if (kind == LINK_SERVER) {
        set_int(link->socket, ZMQ_ROUTER_MANDATORY, 1);
        link->spoke = calloc(DESCRIPTORS, sizeof *link->spoke);
        if (link->spoke) /* else strangers are not told of */
            watch(link, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED);
    } else {
        watch(link, ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
    }
    *out = link;
    return STATUS_OK;
}

void link_close(struct link **where) {
    struct link *link = *where;
    *where = NULL;
    if (!link)
        return;
    if (link->monitor) {
        zmq_socket_monitor(link->socket, NULL, 0);
        zmq_close(link->monitor);
    }
    zmq_close(link->socket);
    free(link->spoke);
    free(link);
}

enum status link_bind(struct link *link, uint16_t port, struct failure *why) {
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, port ? "tcp://*:%u" : "tcp://*:*",
             port);
    if (zmq_bind(link->socket, endpoint)) {
        if (zmq_errno() == EADDRINUSE)
            return status_fail(
                why, STATUS_RETRY,
                "port %u is in use on this machine: end the process that has "
                "it (`ss -ltnp 'sport = :%u'` shows it) or give this task "
                "another port in the cluster description",
                port, port);
        return status_errno(why, STATUS_CONFIG, zmq_errno(),
                            "cannot listen on port %u", port);
    }
    char bound[128];
    size_t size = sizeof bound;
    zmq_getsockopt(link->socket, ZMQ_LAST_ENDPOINT, bound, &size);
    const char *colon = strrchr(bound, ':');
    link->port = colon ? (uint16_t)strtoul(colon + 1, NULL, 10) : port;
    return STATUS_OK;
}

enum status link_bind_inside(struct link *link, const char *name,
                             struct failure *why) {
    char endpoint[128];
    snprintf(endpoint, sizeof endpoint, "inproc://%s", name);
    if (zmq_bind(link->socket, endpoint))
        return status_errno(why, STATUS_FAILED, zmq_errno(),
                            "cannot listen on %s", endpoint);
    return STATUS_OK;
}

enum status link_connect_inside(struct link *link, const char *name,
                                struct failure *why) {
    char endpoint[128];
    snprintf(endpoint, sizeof endpoint, "inproc://%s", name);
    if (zmq_connect(link->socket, endpoint))
        return status_errno(why, STATUS_FAILED, zmq_errno(),
                            "cannot connect to %s", endpoint);
    return STATUS_OK;
}

enum status link_connect(struct link *link, const char *address,
                         struct failure *why) {
    char endpoint[300];
    snprintf(endpoint, sizeof endpoint, "tcp://%s", address);
    if (!strcmp(endpoint, link->address))
        return STATUS_OK;
    if (link->address[0])
        zmq_disconnect(link->socket, link->address);
    link->address[0] = 0;
    if (zmq_connect(link->socket, endpoint))
        return status_errno(why, STATUS_RETRY, zmq_errno(),
                            "cannot connect to %s", address);
    memcpy(link->address, endpoint, sizeof endpoint);
    return STATUS_OK;
}

uint16_t link_port(const struct link *link) {
    return link->port;
}

int link_poll_items(struct link *link, zmq_pollitem_t *items) {
    items[0] = (zmq_pollitem_t){link->socket, 0, ZMQ_POLLIN, 0};
    return 1;
}

void *link_socket(struct link *link) {
    return link->socket;
}

static bool is_banned(const struct link *link, uint32_t peer) {
    unsigned known = link->num_banned < BANNED ? link->num_banned : BANNED;
    for (unsigned i = 0; i < known; i++)
        if (link->banned[i] == peer)
            return true;
    return false;
}

void link_ban(struct link *link, uint32_t peer) {
    if (!is_banned(link, peer))
        link->banned[link->num_banned++ % BANNED] = peer;
}

static bool receive_part(struct link *link, zmq_msg_t *part) {
    zmq_msg_init(part);
    if (zmq_msg_recv(part, link->socket, ZMQ_DONTWAIT) >= 0)
        return true;
    zmq_msg_close(part);
    return false;
}

/* The parts that follow PART within its message are read and dropped. */
static void skip_rest(struct link *link, zmq_msg_t *part) {
    bool more = zmq_msg_more(part);
    zmq_msg_close(part);
    while (more && receive_part(link, part)) {
        more = zmq_msg_more(part);
        zmq_msg_close(part);
    }
}

static void note_speaker(struct link *link, zmq_msg_t *part) {
    int descriptor = link->spoke ? zmq_msg_get(part, ZMQ_SRCFD) : -1;
    if (descriptor >= 0 && descriptor < DESCRIPTORS)
        link->spoke[descriptor] = true;
}

/* ROUTER names connections by a zero byte and a counter. A stranger may name
 * itself, but only otherwise: nobody pays for what it sends, not even with time
 * when it sends without end. */
static bool receive_peer(struct link *link, uint32_t *peer) {
    zmq_msg_t identity;
    for (int i = 0; i < SKIPPED_A_TURN && receive_part(link, &identity); i++) {
        const char *name = zmq_msg_data(&identity);
        bool usable = zmq_msg_size(&identity) == IDENTITY && !name[0] &&
                      zmq_msg_more(&identity);
        if (usable)
            memcpy(peer, name + 1, sizeof *peer);
        if (usable && !is_banned(link, *peer)) {
            zmq_msg_close(&identity);
            return true;
        }
        skip_rest(link, &identity);
    }
    return false;
}

bool link_view(struct link *link, struct link_frame *frame) {
    zmq_msg_t *header = message_in(&frame->header_room);
    zmq_msg_t *payload = message_in(&frame->payload_room);
    for (;;) {
        frame->peer = 0;
        if (link->kind == LINK_SERVER && !receive_peer(link, &frame->peer))
            return false;
        if (!receive_part(link, header))
            return false;
        note_speaker(link, header);
        if (!zmq_msg_more(header)) {
            zmq_msg_init(payload);
            break;
        }
        if (!receive_part(link, payload)) {
            zmq_msg_close(header);
            return false;
        }
        if (!zmq_msg_more(payload))
            break;
        skip_rest(link, payload);
        zmq_msg_close(header);
        link_ban(link, frame->peer);
        link->many_parts = true;
    }
    frame->header = view_of(header);
    frame->payload = view_of(payload);
    return true;
}

void link_release(struct link_frame *frame) {
    zmq_msg_close(message_in(&frame->header_room));
    zmq_msg_close(message_in(&frame->payload_room));
}

void link_keep(struct link_frame *frame, struct link_held *held) {
    zmq_msg_t *message = message_in(&held->room);
    zmq_msg_init(message);
    zmq_msg_move(message, message_in(&frame->payload_room));
    held->payload = view_of(message);
    frame->payload = (struct link_bytes){0};
}

void link_let_go(struct link_held *held) {
    zmq_msg_close(message_in(&held->room));
}

/* What EVENT of the monitor on DESCRIPTOR says of its peer. */
static enum stranger judge(struct link *link, uint16_t event,
                           uint32_t descriptor) {
    if (descriptor >= DESCRIPTORS)
        return NOT_STRANGE;
    bool spoke = link->spoke[descriptor];
    link->spoke[descriptor] = false;
    return event == ZMQ_EVENT_DISCONNECTED && !spoke ? NO_MESSAGE : NOT_STRANGE;
}

/* The next event of the monitor; false: none. */
static bool next_event(struct link *link, uint16_t *event, uint32_t *value) {
    zmq_msg_t part, address;
    zmq_msg_init(&part);
    if (zmq_msg_recv(&part, link->monitor, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&part);
        return false;
    }
    const char *bytes = zmq_msg_data(&part);
    memcpy(event, bytes, sizeof *event);
    memcpy(value, bytes + sizeof *event, sizeof *value);
    zmq_msg_close(&part);
    zmq_msg_init(&address);
    zmq_msg_recv(&address, link->monitor, ZMQ_DONTWAIT);
    zmq_msg_close(&address);
    return true;
}

bool link_may_say(struct link *link, const char *text) {
    int64_t now = time_now();
    struct saying *old = NULL;
    for (int i = 0; i < SAYINGS; i++) {
        struct saying *saying = &link->sayings[i];
        if (!saying->at || now - saying->at >= SAY_EVERY)
            old = saying;
        else if (!strncmp(saying->text, text, SAYING - 1))
            return false;
    }
    if (!old)
        return false;
    snprintf(old->text, sizeof old->text, "%s", text);
    old->at = now;
    return true;
}

bool link_stranger(struct link *link, char *text, size_t size) {
    static const char *const texts[STRANGERS] = {
        [NO_MESSAGE] = "said nothing we understand",
        [MANY_PARTS] = "sent a message of too many parts",
    };
    uint16_t event;
    uint32_t value;
    enum stranger stranger = link->many_parts ? MANY_PARTS : NOT_STRANGE;
    link->many_parts = false;
    if (link->kind == LINK_CLIENT)
        return false;
    while (!stranger || !link_may_say(link, texts[stranger])) {
        if (!link->monitor || !next_event(link, &event, &value))
            return false;
        stranger = judge(link, event, value);
    }
    snprintf(text, size, "%s", texts[stranger]);
    return true;
}

bool link_renewed(struct link *link) {
    uint16_t event;
    uint32_t value;
    bool renewed = false;
    while (link->kind == LINK_CLIENT && link->monitor &&
           next_event(link, &event, &value))
        renewed = true;
    return renewed;
}

void link_no_payload(struct link_payload *payload) {
    payload->data = NULL;
    payload->bytes = 0;
    payload->buffer = NULL;
    zmq_msg_init(message_in(&payload->room));
}

bool link_reserve(struct link *link, uint32_t peer,
                  struct link_payload *payload, size_t bytes) {
    zmq_msg_t *message = message_in(&payload->room);
    (void)link;
    (void)peer;
    link_no_payload(payload);
    if (zmq_msg_init_size(message, bytes))
        return false;
    payload->data = zmq_msg_data(message);
    payload->bytes = bytes;
    return true;
}

void *link_reserved(struct link_payload *payload) {
    return payload->data;
}

void link_borrow(struct link_payload *payload, struct buffer *buffer,
                 size_t offset, size_t bytes) {
    link_no_payload(payload);
    payload->data = (char *)buffer_data(buffer) + offset;
    payload->bytes = bytes;
    payload->buffer = buffer_hold(buffer);
}

void link_drop(struct link_payload *payload) {
    buffer_release(&payload->buffer);
    zmq_msg_close(message_in(&payload->room));
}

static void let_go(void *data, void *hint) {
    struct buffer *buffer = hint;
    (void)data;
    buffer_release(&buffer);
}

static bool send_peer(struct link *link, uint32_t peer) {
    char identity[IDENTITY] = {0};
    memcpy(identity + 1, &peer, sizeof peer);
    return zmq_send(link->socket, identity, sizeof identity,
                    ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0;
}

/* A borrowed payload becomes a message that holds its buffer until it has
 * left. False: no memory. */
static bool make_message(struct link_payload *payload) {
    struct buffer *buffer = payload->buffer;
    if (!buffer)
        return true;
    if (zmq_msg_init_data(message_in(&payload->room), payload->data,
                          payload->bytes, let_go, buffer))
        return false;
    payload->buffer = NULL; /* the message's now */
    return true;
}

bool link_commit(struct link *link, uint32_t peer, const void *header,
                 size_t bytes, struct link_payload *payload) {
    int more = payload && payload->bytes ? ZMQ_SNDMORE : 0;
    bool made = !payload || make_message(payload);
    bool sent = made && (link->kind == LINK_CLIENT || send_peer(link, peer)) &&
                zmq_send(link->socket, header, bytes, more | ZMQ_DONTWAIT) >= 0;
    if (sent && more &&
        zmq_msg_send(message_in(&payload->room), link->socket, ZMQ_DONTWAIT) >=
            0)
        return true;
    if (payload)
        link_drop(payload);
    return sent;
}
