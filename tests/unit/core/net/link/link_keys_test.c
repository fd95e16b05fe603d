/* SPDX-License-Identifier: Apache-2.0 */
/* Links with keys: who gets a message through to a server, and what is has_said
 * where nobody does. */
#define STATE struct guarded *guarded

#include "core/net/link/link_keys.h"

#include "core/base/secret_file.h"
#include "core/base/time.h"
#include "core/net/link/link.h"
#include "core/net/link/zap_handler.h"
#include "tests/cluster/bad_peers.h"
#include "tests/lib/process_memory.h"
#include "tests/lib/test.h"

#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

enum { MAX_FRAME = 1 << 12, WORKERS = 1024, GREETING = 64 };
static const int64_t DEADLINE = 30 * TIME_S, NAMED_WITHIN = 2 * TIME_S;
static const struct link_party chief = {"chief", 0}, ps = {"ps", 0},
                               worker = {"worker", 3};

/* A server, chief 0, with the keys of one secret, and a client. */
struct guarded {
    void *zmq;
    struct link_keys *keys;
    struct zap_handler *zap_handler;
    struct link *server, *client;
    char address[64];
};

static struct link_keys *derive_keys(unsigned char first,
                                     struct link_party self) {
    unsigned char secret[SECRET_FILE_BYTES];
    struct link_keys *keys;
    struct link_keys_settings settings = {
        .roles = {{"chief", 1, 1}, {"ps", 1, 1}, {"worker", WORKERS, 4}},
        .client = self,
        .servers = {self}};
    for (int i = 0; i < SECRET_FILE_BYTES; i++)
        secret[i] = (unsigned char)(first + i);
    assert_ok(link_keys_open(&keys, secret, &settings, &failure));
    return keys;
}

static struct link *open_link(struct guarded *guarded, enum link_kind kind,
                              const struct link_keys *keys,
                              struct link_party party) {
    struct link_settings settings = {
        .max_frame = MAX_FRAME, .keys = keys, .party = party};
    struct link *link;
    assert_ok(link_open(&link, guarded->zmq, kind, &settings, &failure));
    return link;
}

static int setup_with(struct guarded *guarded, bool secret) {
    guarded->zmq = zmq_ctx_new();
    if (secret) {
        guarded->keys = derive_keys(0, chief);
        assert_ok(zap_handler_open(&guarded->zap_handler, guarded->zmq,
                                   guarded->keys, chief, &failure));
    }
    guarded->server = open_link(guarded, LINK_SERVER, guarded->keys, chief);
    assert_ok(link_bind(guarded->server, 0, &failure));
    snprintf(guarded->address, sizeof guarded->address, "127.0.0.1:%u",
             link_port(guarded->server));
    return 0;
}

static int setup(void **state) {
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    *state = calloc(1, sizeof(struct guarded));
    return setup_with(*state, true);
}

static int setup_plain(void **state) {
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    *state = calloc(1, sizeof(struct guarded));
    return setup_with(*state, false);
}

static int teardown(void **state) {
    struct guarded *guarded = *state;
    link_close(&guarded->client);
    link_close(&guarded->server);
    zap_handler_close(&guarded->zap_handler);
    zmq_ctx_term(guarded->zmq);
    link_keys_close(&guarded->keys);
    free(guarded);
    return 0;
}

FIXTURE(setup, teardown);

/* The first LINK of a client with KEYS sends until the server has a message, or
 * the deadline: was there one? FRAME is released by the caller then. */
static bool gets_through(struct guarded *guarded, struct link_frame *frame,
                         int64_t limit) {
    int64_t deadline = time_now() + limit;
    while (!link_view(guarded->server, frame)) {
        if (time_now() > deadline)
            return false;
        link_commit(guarded->client, 0, "hello", 5, NULL);
        zmq_pollitem_t items[LINK_POLL_ITEMS];
        zmq_poll(items, link_poll_items(guarded->server, items), 10);
    }
    return true;
}

static void connect_with(struct guarded *guarded, const struct link_keys *keys,
                         struct link_party server) {
    guarded->client = open_link(guarded, LINK_CLIENT, keys, server);
    assert_ok(link_connect(guarded->client, guarded->address, &failure));
}

TEST(keys_are_those_of_the_formula) {
    /* By Python's hashlib and an X25519 of its own, of the secret 0, 1, ...:
     * worker 3 as a client. */
    static const unsigned char known[LINK_KEY_BYTES] = {
        0x8e, 0xcd, 0x70, 0x78, 0x55, 0xee, 0x3b, 0xa1, 0xc1, 0xe2, 0x23,
        0x0a, 0x1c, 0xf2, 0xd6, 0xf6, 0x18, 0x41, 0x92, 0x01, 0xa7, 0x1b,
        0x94, 0xe6, 0x08, 0xf1, 0xed, 0x3c, 0xc3, 0x42, 0xe1, 0x3d};
    static const unsigned char proof[] = {0x18, 0xe0, 0x32, 0xe5};
    unsigned char other[LINK_KEY_BYTES];
    struct link_party found;
    assert_true(link_keys_find_client(guarded->keys, known, &found));
    assert_string_equal(found.role, "worker");
    assert_int_equal(found.index, 3);
    assert_memory_equal(link_keys_proof(guarded->keys), proof, sizeof proof);
    memcpy(other, known, sizeof other);
    other[0] ^= 1;
    assert_false(link_keys_find_client(guarded->keys, other, &found));
}

TEST(a_client_of_the_same_secret_gets_through_and_is_known) {
    struct link_keys *keys = derive_keys(0, worker);
    struct link_frame frame;
    connect_with(guarded, keys, chief);
    assert_true(gets_through(guarded, &frame, DEADLINE));
    assert_true(link_is_from(guarded->server, &frame, worker));
    assert_false(link_is_from(guarded->server, &frame, ps));
    assert_false(link_is_from(guarded->server, &frame,
                              (struct link_party){"worker", 4}));
    link_release(&frame);
    link_close(&guarded->client);
    link_keys_close(&keys);
}

static void expect_nothing_said(struct guarded *guarded, int64_t limit) {
    int64_t end = time_now() + limit;
    char text[256];
    while (time_now() < end) {
        if (link_bad_peer(guarded->server, text, sizeof text))
            fail_msg("said '%s'", text);
        poll(NULL, 0, 10);
    }
}

/* As of a run that goes back, where the next one listens at the same port. */
TEST(a_client_of_the_same_secret_may_leave_without_a_message) {
    struct link_keys *keys = derive_keys(0, worker);
    int64_t deadline = time_now() + DEADLINE, since;
    connect_with(guarded, keys, chief);
    while (link_answer(guarded->client, &since) != LINK_ANSWER_LINK) {
        expect_nothing_said(guarded, 10 * TIME_MS);
        assert_true(time_now() < deadline);
    }
    expect_nothing_said(guarded, 100 * TIME_MS);
    link_close(&guarded->client);
    expect_nothing_said(guarded, TIME_S);
    link_keys_close(&keys);
}

/* Over shared memory: until the client has decided on a transport. */
static void connect_near(struct guarded *guarded, const struct link_keys *keys,
                         struct link_party server) {
    static uint64_t number = 0;
    int64_t deadline = time_now() + DEADLINE;
    zmq_pollitem_t items[2 * LINK_POLL_ITEMS];
    struct link_frame frame;
    uint64_t name = (uint64_t)time_now() + number++;
    char text[256] = "";
    assert_ok(link_listen_shm(guarded->server, name, &failure));
    guarded->client = open_link(guarded, LINK_CLIENT, keys, server);
    assert_ok(link_connect(guarded->client, guarded->address, &failure));
    link_prefer_shm(guarded->client, name);
    while (!link_transport(guarded->client, text, sizeof text)) {
        int count = link_poll_items(guarded->client, items);
        count += link_poll_items(guarded->server, items + count);
        zmq_poll(items, count, 20);
        assert_false(link_view(guarded->server, &frame));
        link_renewed(guarded->client);
        assert_true(time_now() < deadline);
    }
}

TEST(a_client_of_the_same_secret_is_known_over_shared_memory_too) {
    struct link_keys *keys = derive_keys(0, worker);
    struct link_frame frame;
    connect_near(guarded, keys, chief);
    assert_true(link_is_over_shm(guarded->client));
    assert_true(gets_through(guarded, &frame, DEADLINE));
    assert_non_null(frame.shm_connection);
    assert_true(link_is_from(guarded->server, &frame, worker));
    assert_false(link_is_from(guarded->server, &frame, ps));
    link_release(&frame);
    link_close(&guarded->client);
    link_keys_close(&keys);
}

TEST(a_message_in_this_process_needs_no_key) {
    struct link_frame frame;
    struct link *server = open_link(guarded, LINK_SERVER, guarded->keys, chief);
    guarded->client = open_link(guarded, LINK_CLIENT, guarded->keys, chief);
    assert_ok(link_bind_inproc(server, "inside", &failure));
    assert_ok(link_connect_inproc(guarded->client, "inside", &failure));
    int64_t deadline = time_now() + DEADLINE;
    assert_true(link_commit(guarded->client, 0, "hello", 5, NULL));
    while (!link_view(server, &frame))
        assert_true(time_now() < deadline);
    assert_true(link_is_from(server, &frame, ps));
    link_release(&frame);
    link_close(&server);
}

/* What the client and the server say within NAMED_WITHIN; nothing gets
 * through. */
static void expect_refused(struct guarded *guarded, enum link_answer expected,
                           const char *said) {
    int64_t deadline = time_now() + NAMED_WITHIN, since;
    enum link_answer answer = LINK_ANSWER_UNKNOWN;
    bool has_said = false;
    char text[256] = "";
    while (answer != expected || !has_said) {
        struct link_frame frame;
        if (time_now() > deadline)
            fail_msg("answer %d, said '%s'", answer, text);
        assert_false(gets_through(guarded, &frame, 10 * TIME_MS));
        if (answer != expected)
            answer = link_answer(guarded->client, &since);
        while (link_bad_peer(guarded->server, text, sizeof text))
            has_said |= strstr(text, said) != NULL;
    }
}

TEST(a_client_of_another_secret_is_refused_by_name_on_both_sides) {
    struct link_keys *keys = derive_keys(1, worker);
    connect_with(guarded, keys, chief);
    expect_refused(guarded, LINK_ANSWER_REFUSES, "is the secret file the same");
    link_close(&guarded->client);
    link_keys_close(&keys);
}

TEST(a_client_of_another_secret_shares_no_memory) {
    struct link_keys *keys = derive_keys(1, worker);
    connect_near(guarded, keys, chief);
    assert_false(link_is_over_shm(guarded->client));
    expect_refused(guarded, LINK_ANSWER_REFUSES, "is the secret file the same");
    link_close(&guarded->client);
    link_keys_close(&keys);
}

/* It knows the server's key, as who has stolen a cluster's description with it,
 * and has one of its own. */
TEST(a_client_whose_key_is_not_listed_is_refused_by_name_on_both_sides) {
    struct link_keys *keys = derive_keys(0, (struct link_party){"guest", 0});
    connect_with(guarded, keys, chief);
    expect_refused(guarded, LINK_ANSWER_REFUSES, "is the secret file the same");
    link_close(&guarded->client);
    link_keys_close(&keys);
}

TEST(a_client_that_expects_another_server_is_refused) {
    struct link_keys *keys = derive_keys(0, worker);
    connect_with(guarded, keys, ps);
    expect_refused(guarded, LINK_ANSWER_REFUSES, "is the secret file the same");
    link_close(&guarded->client);
    link_keys_close(&keys);
}

TEST(a_client_without_a_secret_is_refused_by_name_on_both_sides) {
    connect_with(guarded, NULL, chief);
    expect_refused(guarded, LINK_ANSWER_KEYS, "no secret");
}

TEST_WITH(setup_plain, teardown,
          a_server_without_a_secret_and_a_client_with_one_say_so) {
    struct link_keys *keys = derive_keys(0, worker);
    connect_with(guarded, keys, chief);
    expect_refused(guarded, LINK_ANSWER_NO_KEYS, "this run has none");
    link_close(&guarded->client);
    link_keys_close(&keys);
}

enum { TRIES = 1000, AT_ONCE = 50 };

/* AT_ONCE clients with KEYS that expect SERVER: the handshake of each fails,
 * and nothing reaches the server. */
static void try_at_once(struct guarded *guarded, const struct link_keys *keys,
                        struct link_party server) {
    struct link *clients[AT_ONCE];
    struct link_frame frame;
    char text[256];
    int64_t deadline = time_now() + DEADLINE, since;
    for (int i = 0; i < AT_ONCE; i++) {
        clients[i] = open_link(guarded, LINK_CLIENT, keys, server);
        assert_ok(link_connect(clients[i], guarded->address, &failure));
    }
    for (int i = 0; i < AT_ONCE;) {
        link_commit(clients[i], 0, "hello", 5, NULL);
        assert_false(link_view(guarded->server, &frame));
        while (link_bad_peer(guarded->server, text, sizeof text))
            ;
        if (link_answer(clients[i], &since) == LINK_ANSWER_UNKNOWN)
            zmq_poll(NULL, 0, 1);
        else
            i++;
        assert_true(time_now() < deadline);
    }
    for (int i = 0; i < AT_ONCE; i++)
        link_close(&clients[i]);
}

/* Somebody with a name and a password, by PLAIN (rfc.zeromq.org/spec/24), which
 * the server hears nothing of: it leaves after the greeting. */
static void try_plain(struct guarded *guarded) {
    static const unsigned char bytes[] = {0xff, [9] = 0x7f, 3,   1,
                                          'P',  'L',        'A', 'I',
                                          'N',  [64] = 4,   16,  5,
                                          'H',  'E',        'L', 'L',
                                          'O',  4,          'u', 's',
                                          'e',  'r',        4,   'w',
                                          'o',  'r',        'd', [82] = 0,
                                          5,    'h',        'e', 'l',
                                          'l',  'o'};
    char answer[2 * GREETING];
    struct link_frame frame;
    size_t got = 0;
    ssize_t more = 1;
    int plain =
        bad_peers_send_bytes(link_port(guarded->server), bytes, sizeof bytes);
    while (more > 0 && got < sizeof answer) {
        more = recv(plain, answer + got, sizeof answer - got, 0);
        got += more > 0 ? (size_t)more : 0;
    }
    close(plain);
    assert_true(got <= GREETING);
    assert_false(link_view(guarded->server, &frame));
}

TEST(of_a_thousand_tries_of_each_kind_none_gets_through) {
    struct link_keys *other = derive_keys(1, worker),
                     *guest = derive_keys(0, (struct link_party){"guest", 0}),
                     *own = derive_keys(0, worker);
    struct link_frame frame;
    for (int i = 0; i < TRIES; i += AT_ONCE) {
        try_at_once(guarded, other, chief);
        try_at_once(guarded, guest, chief);
        try_at_once(guarded, own, ps);
        try_at_once(guarded, NULL, chief);
    }
    for (int i = 0; i < TRIES; i++)
        try_plain(guarded);
    connect_with(guarded, own, chief);
    assert_true(gets_through(guarded, &frame, DEADLINE));
    link_release(&frame);
    link_close(&guarded->client);
    link_keys_close(&own);
    link_keys_close(&guest);
    link_keys_close(&other);
}

TEST(a_refused_client_gets_through_once_the_server_has_its_secret) {
    struct link_keys *keys = derive_keys(0, worker);
    struct link_frame frame;
    link_close(&guarded->server);
    guarded->server = open_link(guarded, LINK_SERVER, NULL, chief);
    assert_ok(link_bind(guarded->server, 0, &failure));
    uint16_t port = link_port(guarded->server);
    snprintf(guarded->address, sizeof guarded->address, "127.0.0.1:%u", port);
    connect_with(guarded, keys, chief);
    expect_refused(guarded, LINK_ANSWER_NO_KEYS, "this run has none");
    link_close(&guarded->server);
    guarded->server = open_link(guarded, LINK_SERVER, guarded->keys, chief);
    int64_t deadline = time_now() + DEADLINE;
    while (link_bind(guarded->server, port, &failure))
        assert_true(time_now() < deadline);
    assert_ok(link_connect(guarded->client, guarded->address, &failure));
    assert_true(gets_through(guarded, &frame, DEADLINE));
    link_release(&frame);
    link_close(&guarded->client);
    link_keys_close(&keys);
}

/* What the guard counts as viewed is what the kernel has received: a peer whose
 * messages are all read is never too far ahead. */
TEST(many_messages_with_keys_are_all_counted_as_viewed) {
    enum { MESSAGES = 20000 };
    struct link_keys *keys = derive_keys(0, worker);
    struct link_frame frame;
    char text[256];
    connect_with(guarded, keys, chief);
    link_admit_within(guarded->server, 30 * TIME_S, 1 << 10);
    assert_true(gets_through(guarded, &frame, DEADLINE));
    link_admit(guarded->server, frame.peer);
    link_release(&frame);
    int64_t deadline = time_now() + DEADLINE;
    unsigned seen = 0, sent = 0;
    while (seen < MESSAGES) {
        assert_true(time_now() < deadline);
        if (sent < seen + 20)
            sent += link_commit(guarded->client, 0, "hello again", 11, NULL);
        while (link_view(guarded->server, &frame)) {
            seen++;
            link_release(&frame);
        }
        assert_false(link_bad_peer(guarded->server, text, sizeof text));
    }
    link_close(&guarded->client);
    link_keys_close(&keys);
}

enum { BAD_PEERS = 10000, BAD_PEER_KINDS = 5, GROWTH_KB = 10 << 10 };
enum { MORE_PARTS = 100000 };

static const unsigned char curve_greeting[GREETING] = {
    0xff, [9] = 0x7f, 3, 1, 'C', 'U', 'R', 'V', 'E'};

/* What a bad peer sends: noise, a web request, and behind a greeting for CURVE
 * the head of 8 GiB, a HELLO of zeros, or parts without end. */
static void act_as_bad_peer(uint16_t port, int kind) {
    static const unsigned char huge[] = {6, 0, 0, 0, 2, 0, 0, 0, 0};
    static const unsigned char hello[202] = {4,   200, 5,   'H',
                                             'E', 'L', 'L', 'O'};
    static unsigned char parts[2 * MORE_PARTS];
    const struct {
        const void *bytes;
        size_t size;
    } sent[] = {
        {huge, sizeof huge}, {hello, sizeof hello}, {parts, sizeof parts}};
    int descriptor = kind == 0 ? bad_peers_send_garbage(port)
                     : kind == 1
                         ? bad_peers_send_http(port)
                         : bad_peers_send_bytes(port, curve_greeting, GREETING);
    for (int i = 0; i < MORE_PARTS; i++)
        parts[2 * i] = 1;
    if (kind >= 2)
        send(descriptor, sent[kind - 2].bytes, sent[kind - 2].size,
             MSG_NOSIGNAL);
    close(descriptor);
}

struct bad_peers {
    uint16_t port;
    atomic_bool ended;
};

static void *act_as_bad_peers(void *context) {
    struct bad_peers *bad_peers = context;
    for (int i = 0; i < BAD_PEERS; i++)
        act_as_bad_peer(bad_peers->port, i % BAD_PEER_KINDS);
    atomic_store(&bad_peers->ended, true);
    return NULL;
}

TEST(ten_thousand_bad_peers_cost_little_and_reach_nothing) {
    struct link_keys *keys = derive_keys(0, worker);
    struct bad_peers bad_peers = {.port = link_port(guarded->server)};
    struct link_frame frame;
    pthread_t thread;
    char text[256];
    unsigned messages = 0;
    link_admit_within(guarded->server, 30 * TIME_S, 1 << 20);
    connect_with(guarded, keys, chief);
    assert_true(gets_through(guarded, &frame, DEADLINE));
    link_admit(guarded->server, frame.peer);
    link_release(&frame);
    long before = process_memory_kb(getpid());
    assert_int_equal(
        pthread_create(&thread, NULL, act_as_bad_peers, &bad_peers), 0);
    for (; !atomic_load(&bad_peers.ended); messages++) {
        assert_true(gets_through(guarded, &frame, DEADLINE));
        assert_true(link_is_from(guarded->server, &frame, worker));
        assert_int_equal(frame.header.size, 5);
        link_release(&frame);
        while (link_bad_peer(guarded->server, text, sizeof text))
            ;
    }
    pthread_join(thread, NULL);
    long grown = process_memory_kb(getpid()) - before;
    print_message("# %ld KB more, %u messages meanwhile\n", grown, messages);
#ifndef __SANITIZE_ADDRESS__ /* which keeps what is freed */
    assert_true(grown < GROWTH_KB);
#endif
    link_close(&guarded->client);
    link_keys_close(&keys);
}

enum { SENDERS = 4, LONGEST = 64 << 20 }; /* a frame at a ps */

/* Anew the greeting and the head of a command of LONGEST bytes, and of those as
 * much as the other side takes, SEGMENT bytes at a time. */
struct huge_sender {
    struct bad_peers *bad_peers;
    size_t segment;
};

static void *send_huge_commands(void *context) {
    static const unsigned char head[] = {6, 0, 0, 0, 0, 4, 0, 0, 0},
                               zeros[1 << 18];
    const struct huge_sender *sender = context;
    const struct timeval limit = {.tv_usec = 100000};
    const int yes = 1;
    while (!atomic_load(&sender->bad_peers->ended)) {
        int connection = bad_peers_send_bytes(sender->bad_peers->port,
                                              curve_greeting, GREETING);
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (send(connection, head, sizeof head, MSG_NOSIGNAL) > 0)
            while (send(connection, zeros, sender->segment, MSG_NOSIGNAL) > 0)
                continue;
        bad_peers_reset(connection);
    }
    return NULL;
}

/* The most KB that this process grows by in the next seconds, as the guard of
 * the server looks. */
static long watch_growth(struct guarded *guarded, int64_t time) {
    long before = process_memory_kb(getpid()), most = 0;
    struct link_frame frame;
    char text[256];
    for (int64_t until = time_now() + time; time_now() < until;) {
        long grown = process_memory_kb(getpid()) - before;
        most = grown > most ? grown : most;
        assert_false(link_view(guarded->server, &frame));
        while (link_bad_peer(guarded->server, text, sizeof text))
            ;
        zmq_poll(NULL, 0, 1);
    }
    return most;
}

static void serve_long_frames(struct guarded *guarded) {
    struct link_settings settings = {
        .max_frame = LONGEST, .keys = guarded->keys, .party = chief};
    link_close(&guarded->server);
    assert_ok(link_open(&guarded->server, guarded->zmq, LINK_SERVER, &settings,
                        &failure));
    assert_ok(link_bind(guarded->server, 0, &failure));
    link_admit_within(guarded->server, DEADLINE, LONGEST);
    snprintf(guarded->address, sizeof guarded->address, "127.0.0.1:%u",
             link_port(guarded->server));
}

TEST(huge_commands_before_the_handshake_cost_little) {
    static const size_t segments[] = {1 << 18, 1 << 12, 1 << 10};
    serve_long_frames(guarded);
    for (size_t s = 0; s < sizeof segments / sizeof *segments; s++) {
        struct bad_peers bad_peers = {.port = link_port(guarded->server)};
        struct huge_sender sender = {&bad_peers, segments[s]};
        pthread_t threads[SENDERS];
        for (int i = 0; i < SENDERS; i++)
            assert_int_equal(
                pthread_create(&threads[i], NULL, send_huge_commands, &sender),
                0);
        long grown = watch_growth(guarded, 2 * TIME_S);
        atomic_store(&bad_peers.ended, true);
        for (int i = 0; i < SENDERS; i++)
            pthread_join(threads[i], NULL);
        print_message("# segments of %zu bytes: %ld KB more\n", segments[s],
                      grown);
#ifndef __SANITIZE_ADDRESS__ /* which keeps what is freed */
        assert_true(grown < GROWTH_KB);
#endif
    }
}

/* Of each sender. On a busy machine more come between two looks of the guard
 * than it then lets stay. */
enum { CROWD = 1000, CROWD_KB = 24 << 10 };

/* A connection to PORT, of which a full queue of the other side takes none for
 * long; -1: it does now. */
static int connect_soon(uint16_t port) {
    const struct timeval limit = {.tv_usec = 5000};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (!connect(connection, (struct sockaddr *)&to, sizeof to))
        return connection;
    close(connection);
    return -1;
}

/* Begins CROWD handshakes as fast as it can, and says no more. */
static void come_and_stay(uint16_t port) {
    for (unsigned count = 0; count < CROWD;) {
        int one = connect_soon(port);
        count += one >= 0 &&
                 send(one, curve_greeting, GREETING, MSG_NOSIGNAL) == GREETING;
    }
    pause();
}

/* Processes of their own, so that the server has descriptors for its side
 * alone. */
static void start_crowd(struct guarded *guarded, pid_t senders[SENDERS]) {
    uint16_t port = link_port(guarded->server);
    for (int i = 0; i < SENDERS; i++) {
        senders[i] = fork();
        assert_return_code(senders[i], 0);
        if (senders[i])
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        come_and_stay(port);
        _exit(0);
    }
}

static void stop_crowd(const pid_t senders[SENDERS]) {
    for (int i = 0; i < SENDERS; i++) {
        kill(senders[i], SIGKILL);
        waitpid(senders[i], NULL, 0);
    }
}

static void raise_descriptors(struct rlimit *before) {
    getrlimit(RLIMIT_NOFILE, before);
    struct rlimit many = {before->rlim_max, before->rlim_max};
    setrlimit(RLIMIT_NOFILE, &many);
}

TEST(a_crowd_that_begins_handshakes_costs_little) {
    struct rlimit before;
    pid_t senders[SENDERS];
    raise_descriptors(&before);
    serve_long_frames(guarded);
    start_crowd(guarded, senders);
    long grown = watch_growth(guarded, 2 * TIME_S);
    stop_crowd(senders);
    setrlimit(RLIMIT_NOFILE, &before);
    print_message("# %ld KB more\n", grown);
#ifndef __SANITIZE_ADDRESS__ /* which keeps what is freed */
    assert_true(grown < CROWD_KB);
#endif
}

/* More than may be in a handshake; none is told that it has another secret. */
TEST(many_members_that_come_at_once_get_through) {
    enum { MEMBERS = 300 };
    static struct link *members[MEMBERS];
    static bool seen[MEMBERS];
    struct link_keys *keys = derive_keys(0, worker);
    struct link_frame frame;
    unsigned count = 0;
    int64_t since, begun = time_now(), deadline = begun + DEADLINE;
    char text[256];
    struct rlimit before;
    raise_descriptors(&before);
    serve_long_frames(guarded);
    for (int i = 0; i < MEMBERS; i++) {
        members[i] = open_link(guarded, LINK_CLIENT, keys, chief);
        assert_ok(link_connect(members[i], guarded->address, &failure));
    }
    while (count < MEMBERS) {
        for (int i = 0; i < MEMBERS; i++) {
            if (!seen[i])
                link_commit(members[i], 0, &i, sizeof i, NULL);
            assert_int_not_equal(link_answer(members[i], &since),
                                 LINK_ANSWER_REFUSES);
        }
        while (link_view(guarded->server, &frame)) {
            int i;
            memcpy(&i, frame.header.data, sizeof i);
            count += !seen[i];
            seen[i] = true;
            link_release(&frame);
        }
        while (link_bad_peer(guarded->server, text, sizeof text))
            ;
        zmq_poll(NULL, 0, 1);
        assert_true(time_now() < deadline);
    }
    print_message("# within %.2f s\n", time_to_seconds(time_now() - begun));
    for (int i = 0; i < MEMBERS; i++)
        link_close(&members[i]);
    setrlimit(RLIMIT_NOFILE, &before);
    link_keys_close(&keys);
}

/* Longer than what the kernel takes at once before the handshake has ended. */
TEST(a_long_first_message_gets_through_at_once) {
    enum { BYTES = 200 << 10, TIMES = 20 };
    static const int64_t soon = 2 * TIME_S;
    struct link_keys *keys = derive_keys(0, worker);
    struct link_frame frame;
    int64_t longest = 0;
    serve_long_frames(guarded);
    for (int i = 0; i < TIMES; i++) {
        struct link_payload payload;
        int64_t sent = 0;
        connect_with(guarded, keys, chief);
        int64_t deadline = time_now() + DEADLINE;
        while (!sent) {
            assert_true(link_reserve(guarded->client, 0, &payload, BYTES));
            memset(link_reserved(&payload), 1, BYTES);
            if (link_commit(guarded->client, 0, "head", 4, &payload))
                sent = time_now();
            zmq_poll(NULL, 0, 1);
        }
        while (!link_view(guarded->server, &frame)) {
            assert_true(time_now() < deadline);
            zmq_poll(NULL, 0, 1);
        }
        longest = time_now() - sent > longest ? time_now() - sent : longest;
        assert_int_equal(frame.payload.size, BYTES);
        link_release(&frame);
        link_close(&guarded->client);
    }
    print_message("# at most %.3f s\n", time_to_seconds(longest));
    assert_true(longest < soon);
    link_keys_close(&keys);
}

static void *act_until_stopped(void *context) {
    struct bad_peers *bad_peers = context;
    while (!atomic_load(&bad_peers->ended))
        act_as_bad_peer(bad_peers->port, 3);
    return NULL;
}

/* The server looks for messages as seldom as one that has other work, and turns
 * nobody away unheard. */
static void get_through_slowly(struct guarded *guarded, int64_t deadline) {
    enum { SELDOM_MS = 200 };
    struct link_frame frame;
    char text[256];
    while (!link_view(guarded->server, &frame)) {
        zmq_pollitem_t items[LINK_POLL_ITEMS];
        if (time_now() > deadline)
            fail_msg("a client does not get through");
        while (link_bad_peer(guarded->server, text, sizeof text))
            assert_null(strstr(text, "faster than it is read"));
        link_commit(guarded->client, 0, "hello", 5, NULL);
        zmq_poll(items, link_poll_items(guarded->server, items), SELDOM_MS);
    }
    link_release(&frame);
}

static void expect_members(struct guarded *guarded) {
    enum { CLIENTS = 10 };
    struct link_keys *keys = derive_keys(0, worker);
    int64_t begun = time_now();
    for (int i = 0; i < CLIENTS; i++) {
        connect_with(guarded, keys, chief);
        get_through_slowly(guarded, begun + DEADLINE);
        link_close(&guarded->client);
    }
    print_message("# within %.2f s\n", time_to_seconds(time_now() - begun));
    link_keys_close(&keys);
}

TEST(clients_of_the_same_secret_get_through_amid_bad_peers) {
    struct bad_peers bad_peers = {.port = link_port(guarded->server)};
    pthread_t thread;
    link_admit_within(guarded->server, DEADLINE, 1 << 20);
    assert_int_equal(
        pthread_create(&thread, NULL, act_until_stopped, &bad_peers), 0);
    expect_members(guarded);
    atomic_store(&bad_peers.ended, true);
    pthread_join(thread, NULL);
}

TEST(clients_of_the_same_secret_get_through_a_crowd) {
    struct rlimit before;
    pid_t senders[SENDERS];
    raise_descriptors(&before);
    link_admit_within(guarded->server, DEADLINE, 1 << 20);
    start_crowd(guarded, senders);
    expect_members(guarded);
    stop_crowd(senders);
    setrlimit(RLIMIT_NOFILE, &before);
}

/* What libzmq's zmq_send is for this process: with ADMITS_ALL nobody's key is
 * refused, as where libzmq asks no handler, or hears another answer. */
static atomic_bool admits_all;

typedef int send_call(void *socket, const void *bytes, size_t size, int flags);

int zmq_send(void *socket, const void *bytes, size_t size, int flags) {
    static _Atomic(send_call *) own;
    send_call *real = atomic_load(&own);
    if (!real) {
        *(void **)&real = dlsym(RTLD_NEXT, "zmq_send");
        atomic_store(&own, real);
    }
    bool refuses = size == 3 && !memcmp(bytes, "400", size);
    return real(socket, atomic_load(&admits_all) && refuses ? "200" : bytes,
                size, flags);
}

TEST(a_libzmq_that_admits_everybody_is_not_used) {
    struct zap_handler *handler;
    void *zmq = zmq_ctx_new();
    atomic_store(&admits_all, true);
    enum status status =
        zap_handler_open(&handler, zmq, guarded->keys, chief, &failure);
    atomic_store(&admits_all, false);
    assert_fails(status, &failure, FAILURE_SYSTEM_REFUSED);
    assert_null(handler);
    zmq_ctx_term(zmq);
}

TEST(a_message_of_who_was_admitted_without_a_name_is_dropped) {
    struct link_keys *keys = derive_keys(0, (struct link_party){"guest", 0});
    struct link_frame frame;
    int64_t since, deadline = time_now() + DEADLINE;
    char text[256] = "";
    atomic_store(&admits_all, true);
    connect_with(guarded, keys, chief);
    while (!strstr(text, "is the secret file the same")) {
        assert_true(time_now() < deadline);
        assert_false(gets_through(guarded, &frame, 10 * TIME_MS));
        while (link_bad_peer(guarded->server, text, sizeof text) &&
               !strstr(text, "is the secret file the same"))
            ;
    }
    assert_int_equal(link_answer(guarded->client, &since), LINK_ANSWER_LINK);
    atomic_store(&admits_all, false);
    link_close(&guarded->client);
    link_keys_close(&keys);
}

static struct zap_part part(const char *text, size_t size) {
    return (struct zap_part){text, size};
}

TEST(the_handler_admits_listed_keys_of_curve_alone) {
    static const unsigned char known[LINK_KEY_BYTES] = {
        0x8e, 0xcd, 0x70, 0x78, 0x55, 0xee, 0x3b, 0xa1, 0xc1, 0xe2, 0x23,
        0x0a, 0x1c, 0xf2, 0xd6, 0xf6, 0x18, 0x41, 0x92, 0x01, 0xa7, 0x1b,
        0x94, 0xe6, 0x08, 0xf1, 0xed, 0x3c, 0xc3, 0x42, 0xe1, 0x3d};
    struct zap_part parts[ZAP_PARTS] = {
        part("1.0", 3),
        part("1", 1),
        part("capstan", 7),
        part("1.2.3.4", 7),
        part("", 0),
        part("CURVE", 5),
        part((const char *)known, sizeof known)};
    struct link_party user;
    assert_true(zap_handler_admits(guarded->keys, parts, ZAP_PARTS, &user));
    assert_false(
        zap_handler_admits(guarded->keys, parts, ZAP_PARTS - 1, &user));
    assert_false(
        zap_handler_admits(guarded->keys, parts, ZAP_PARTS + 1, &user));
    parts[ZAP_KEY].size--;
    assert_false(zap_handler_admits(guarded->keys, parts, ZAP_PARTS, &user));
    parts[ZAP_KEY].size++;
    parts[ZAP_MECHANISM] = part("PLAIN", 5);
    assert_false(zap_handler_admits(guarded->keys, parts, ZAP_PARTS, &user));
    parts[ZAP_MECHANISM] = part("CURVE", 5);
    parts[ZAP_VERSION] = part("2.0", 3);
    assert_false(zap_handler_admits(guarded->keys, parts, ZAP_PARTS, &user));
}
