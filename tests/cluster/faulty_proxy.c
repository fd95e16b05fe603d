/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/faulty_proxy.h"

#include "commands/launch/port.h"
#include "core/base/time.h"
#include "core/tensor/philox.h"
#include "proto/messages/message.h"
#include "tests/lib/test.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

enum { CLIENTS = 256, PARTS = 4, IDENTITY = 16 };
static const int64_t BIND_LIMIT = 10 * TIME_S;

/* A connection of a trainer and the one that stands for it at the ps. */
struct client {
    char identity[IDENTITY];
    size_t size;
    void *back;
};

struct queued_message {
    struct queued_message *next;
    int64_t due;
    unsigned client, count, kind;
    bool answer; /* goes to the client */
    zmq_msg_t parts[PARTS];
};

struct faulty_proxy {
    struct faulty_proxy_settings settings;
    struct faulty_proxy_counts counts;
    struct philox_sequence chance;
    void *zmq, *front;
    uint16_t port;
    int holder, stop;
    pthread_t thread;
    struct client clients[CLIENTS];
    unsigned num_clients;
    struct queued_message *held;
    struct message_arena arena;
    pthread_mutex_t mutex;
    pthread_cond_t pushed;
    struct faulty_proxy_sender senders[FAULTY_PROXY_RANKS];
};

static void *open_socket(struct faulty_proxy *proxy, int kind) {
    int zero = 0;
    void *socket = zmq_socket(proxy->zmq, kind);
    zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &zero, sizeof zero);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &zero, sizeof zero);
    return socket;
}

/* After a cut the port is free once the old socket is really closed. */
static bool open_front(struct faulty_proxy *proxy) {
    int64_t deadline = time_now() + BIND_LIMIT;
    const char *endpoint = textf("tcp://*:%u", proxy->port);
    proxy->front = open_socket(proxy, ZMQ_ROUTER);
    while (zmq_bind(proxy->front, endpoint)) {
        if (time_now() > deadline)
            return false;
        zmq_poll(NULL, 0, 1);
    }
    return true;
}

static void free_queued_message(struct queued_message *message) {
    for (unsigned i = 0; i < message->count; i++)
        zmq_msg_close(&message->parts[i]);
    free(message);
}

/* Every connection ends, and what was on its way is lost. */
static void hang_up(struct faulty_proxy *proxy) {
    while (proxy->held) {
        struct queued_message *message = proxy->held;
        proxy->held = message->next;
        free_queued_message(message);
    }
    for (unsigned i = 0; i < proxy->num_clients; i++)
        zmq_close(proxy->clients[i].back);
    proxy->num_clients = 0;
    zmq_close(proxy->front);
}

static unsigned find_client(struct faulty_proxy *proxy, zmq_msg_t *identity) {
    size_t size = zmq_msg_size(identity);
    for (unsigned i = 0; i < proxy->num_clients; i++)
        if (proxy->clients[i].size == size &&
            !memcmp(proxy->clients[i].identity, zmq_msg_data(identity), size))
            return i;
    if (proxy->num_clients == CLIENTS || size > IDENTITY)
        return CLIENTS;
    struct client *client = &proxy->clients[proxy->num_clients];
    client->size = size;
    memcpy(client->identity, zmq_msg_data(identity), size);
    client->back = open_socket(proxy, ZMQ_DEALER);
    zmq_connect(client->back,
                textf("tcp://127.0.0.1:%u", proxy->settings.port));
    return proxy->num_clients++;
}

/* Reads one message whole; what has too many parts is not ours. */
static struct queued_message *receive(void *socket) {
    struct queued_message *message = calloc(1, sizeof *message);
    bool more = true;
    while (message && more && message->count < PARTS) {
        zmq_msg_t *part = &message->parts[message->count];
        zmq_msg_init(part);
        if (zmq_msg_recv(part, socket, ZMQ_DONTWAIT) < 0)
            break;
        message->count++;
        more = zmq_msg_more(part);
    }
    if (message && !more)
        return message;
    if (message)
        free_queued_message(message);
    return NULL;
}

static void send_parts(void *socket, const struct queued_message *message) {
    for (unsigned i = 0; i < message->count; i++) {
        zmq_msg_t part;
        zmq_msg_init(&part);
        zmq_msg_copy(&part, (zmq_msg_t *)&message->parts[i]);
        int more = i + 1 < message->count ? ZMQ_SNDMORE : 0;
        if (zmq_msg_send(&part, socket, more | ZMQ_DONTWAIT) < 0)
            zmq_msg_close(&part);
    }
}

static void forward(struct faulty_proxy *proxy,
                    const struct queued_message *message) {
    struct client *client = &proxy->clients[message->client];
    proxy->counts.forwarded++;
    if (message->answer)
        zmq_send(proxy->front, client->identity, client->size,
                 ZMQ_SNDMORE | ZMQ_DONTWAIT);
    send_parts(message->answer ? proxy->front : client->back, message);
}

static bool happens(struct faulty_proxy *proxy, unsigned chance) {
    return philox_below(&proxy->chance, 10000) < chance;
}

static void hold(struct faulty_proxy *proxy, struct queued_message *message) {
    uint32_t ms =
        1 + philox_below(&proxy->chance, proxy->settings.max_delay_ms + 1);
    message->due = time_now() + ms * TIME_MS;
    message->next = proxy->held;
    proxy->held = message;
    proxy->counts.faults[message->kind].delayed++;
}

/* Takes MESSAGE. A repeated one is also held up: its twin overtakes it. */
static void pass(struct faulty_proxy *proxy, struct queued_message *message) {
    struct faulty_proxy_faults *faults = &proxy->counts.faults[message->kind];
    bool lost = proxy->settings.lost_kinds >> message->kind & 1;
    bool drops = happens(proxy, proxy->settings.drop);
    if ((++faults->received == FAULTY_PROXY_LOST && lost) || drops) {
        faults->dropped++;
        free_queued_message(message);
        return;
    }
    bool repeats = happens(proxy, proxy->settings.repeat);
    bool delays = happens(proxy, proxy->settings.delay);
    faults->repeated += repeats;
    if (repeats || !delays)
        forward(proxy, message);
    if (repeats || delays)
        hold(proxy, message);
    else
        free_queued_message(message);
}

/* A view until the next call; NULL: not a message of ours. */
static const Capstan__DataHeader *read_header(struct faulty_proxy *proxy,
                                              struct queued_message *message) {
    Capstan__DataHeader *header;
    if (message_read_data(&header, &proxy->arena,
                          zmq_msg_data(&message->parts[0]),
                          zmq_msg_size(&message->parts[0]), &failure) ||
        (unsigned)header->kind >= FAULTY_PROXY_KINDS)
        return NULL;
    message->kind = header->kind;
    return header;
}

static void note_push(struct faulty_proxy *proxy,
                      const Capstan__DataHeader *header) {
    if (!header ||
        (header->kind != CAPSTAN__DATA_HEADER__KIND__PUSH &&
         header->kind != CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS) ||
        header->rank >= FAULTY_PROXY_RANKS)
        return;
    pthread_mutex_lock(&proxy->mutex);
    proxy->senders[header->rank] = (struct faulty_proxy_sender){
        header->run, header->incarnation, header->clock};
    pthread_cond_broadcast(&proxy->pushed);
    pthread_mutex_unlock(&proxy->mutex);
    uint64_t *clock = &proxy->counts.clocks[header->rank];
    if (header->clock > *clock)
        *clock = header->clock;
}

static bool pass_request(struct faulty_proxy *proxy) {
    struct queued_message *message = receive(proxy->front);
    if (!message)
        return false;
    message->client = find_client(proxy, &message->parts[0]);
    for (unsigned i = 0; i + 1 < message->count; i++)
        zmq_msg_move(&message->parts[i], &message->parts[i + 1]);
    zmq_msg_close(&message->parts[--message->count]);
    if (message->client == CLIENTS || !message->count) {
        free_queued_message(message);
        return true;
    }
    note_push(proxy, read_header(proxy, message));
    pass(proxy, message);
    return true;
}

static void pass_answers(struct faulty_proxy *proxy, unsigned client) {
    struct queued_message *message;
    while ((message = receive(proxy->clients[client].back))) {
        message->client = client;
        message->answer = true;
        (void)read_header(proxy, message);
        pass(proxy, message);
    }
}

static void release_due(struct faulty_proxy *proxy, int64_t now) {
    struct queued_message **where = &proxy->held;
    while (*where) {
        struct queued_message *message = *where;
        if (message->due > now) {
            where = &message->next;
            continue;
        }
        *where = message->next;
        forward(proxy, message);
        free_queued_message(message);
    }
}

static int next_due(const struct faulty_proxy *proxy, int64_t now) {
    int64_t due = TIME_NEVER;
    for (const struct queued_message *message = proxy->held; message;
         message = message->next)
        if (message->due < due)
            due = message->due;
    return time_poll_ms(now, due);
}

/* One turn; false: stop. */
static bool turn(struct faulty_proxy *proxy) {
    zmq_pollitem_t items[CLIENTS + 2] = {
        {NULL, proxy->stop, ZMQ_POLLIN, 0},
        {proxy->front, 0, ZMQ_POLLIN, 0},
    };
    unsigned clients = proxy->num_clients;
    for (unsigned i = 0; i < clients; i++)
        items[i + 2] =
            (zmq_pollitem_t){proxy->clients[i].back, 0, ZMQ_POLLIN, 0};
    zmq_poll(items, (int)clients + 2, next_due(proxy, time_now()));
    if (items[0].revents)
        return false;
    release_due(proxy, time_now());
    for (unsigned i = 0; i < clients; i++)
        pass_answers(proxy, i);
    while (pass_request(proxy))
        if (happens(proxy, proxy->settings.cut)) {
            proxy->counts.cuts++;
            hang_up(proxy);
            return open_front(proxy);
        }
    return true;
}

static void *run(void *argument) {
    struct faulty_proxy *proxy = argument;
    while (turn(proxy))
        continue;
    hang_up(proxy);
    return NULL;
}

struct faulty_proxy *faulty_proxy_open(
    const struct faulty_proxy_settings *settings, uint16_t *port) {
    struct faulty_proxy *proxy = calloc(1, sizeof *proxy);
    assert_non_null(proxy);
    proxy->settings = *settings;
    philox_sequence_open(&proxy->chance, settings->seed, 0);
    pthread_mutex_init(&proxy->mutex, NULL);
    pthread_cond_init(&proxy->pushed, NULL);
    proxy->zmq = zmq_ctx_new();
    proxy->stop = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    assert_ok(port_reserve(&proxy->port, &proxy->holder, &failure));
    assert_true(open_front(proxy));
    setenv("CAPSTAN_LANE", "tcp", 1); /* nothing may go past it */
    assert_int_equal(pthread_create(&proxy->thread, NULL, run, proxy), 0);
    *port = proxy->port;
    return proxy;
}

void faulty_proxy_await(struct faulty_proxy *proxy, uint32_t rank,
                        uint64_t clock, double seconds,
                        struct faulty_proxy_sender *sender) {
    struct timespec deadline;
    bool late = false;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += (time_t)seconds;
    pthread_mutex_lock(&proxy->mutex);
    while (proxy->senders[rank].clock < clock && !late)
        late = pthread_cond_timedwait(&proxy->pushed, &proxy->mutex, &deadline);
    *sender = proxy->senders[rank];
    pthread_mutex_unlock(&proxy->mutex);
    if (late)
        fail_msg("no push of trainer %u at clock %llu in time", rank,
                 (unsigned long long)clock);
}

void faulty_proxy_close(struct faulty_proxy **where,
                        struct faulty_proxy_counts *counts) {
    struct faulty_proxy *proxy = *where;
    *where = NULL;
    if (!proxy)
        return;
    eventfd_write(proxy->stop, 1);
    pthread_join(proxy->thread, NULL);
    zmq_ctx_term(proxy->zmq);
    close(proxy->holder);
    close(proxy->stop);
    pthread_mutex_destroy(&proxy->mutex);
    pthread_cond_destroy(&proxy->pushed);
    if (counts)
        *counts = proxy->counts;
    free(proxy);
}
