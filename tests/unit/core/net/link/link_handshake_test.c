/* SPDX-License-Identifier: Apache-2.0 */
/* Handshakes that begin well and go wrong: the greeting, the commands of CURVE
 * (rfc.zeromq.org/spec/26) and the metadata, changed by a generator, at the
 * sockets that links listen at. The metadata of CURVE is encrypted, so its
 * sender knows the server's key. */
#define STATE struct attacked *attacked

#include "core/base/secret_file.h"
#include "core/base/time.h"
#include "core/net/link/link.h"
#include "core/net/link/zap_handler.h"
#include "core/tensor/philox.h"
#include "tests/cluster/bad_peers.h"
#include "tests/lib/process_memory.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* TRIES, or as many as the variable HANDSHAKES says. */
enum { TRIES = 10000, GROWTH_KB = 10 << 10, DEADLINE_MS = 30000 };
enum {
    GREETING = 64,
    HELLO = 200,
    WELCOME = 168,
    COOKIE = 96,
    VOUCH = 80,
    HEAD = 9,
    BYTES = 1 << 12,
    BOX = crypto_box_MACBYTES,
    KEY = LINK_KEY_BYTES
};
/* What is changed. */
enum {
    BY_GREETING,
    BY_HELLO,
    BY_INITIATE,
    BY_METADATA,
    BY_HEAD,
    BY_PLAIN,
    WAYS
};
enum { COMMAND = 4, LONG_COMMAND = 6 };

static const struct link_party chief = {"chief", 0}, worker = {"worker", 0};

struct bytes {
    unsigned char at[BYTES];
    size_t size;
};

struct pair {
    unsigned char public[KEY], private[KEY];
};

/* A server with keys and one without, and pairs of those with whom a peer
 * shakes hands. */
struct attacked {
    void *zmq, *plain_zmq; /* the other one's handler would be asked too */
    struct link_keys *keys;
    struct zap_handler *zap_handler;
    struct link *guarded, *plain;
    struct pair server, member, unknown;
    struct philox_sequence chance;
};

/* As link_keys.h says, of the secret 0, 0, ... */
static void derive_pair(struct pair *pair, const char *role, const char *side) {
    static const unsigned char secret[SECRET_FILE_BYTES];
    unsigned char seed[KEY];
    const char *parts[] = {"capstan 1", role, "0", side};
    crypto_generichash_state state;
    crypto_generichash_init(&state, secret, sizeof secret, KEY);
    for (int i = 0; i < 4; i++) {
        unsigned char length = (unsigned char)strlen(parts[i]);
        crypto_generichash_update(&state, &length, 1);
        crypto_generichash_update(&state, (const unsigned char *)parts[i],
                                  length);
    }
    crypto_generichash_final(&state, seed, KEY);
    crypto_box_seed_keypair(pair->public, pair->private, seed);
}

static struct link *listen_with(void *zmq, const struct link_keys *keys) {
    struct link_settings settings = {
        .max_frame = BYTES, .keys = keys, .party = chief};
    struct link *link;
    assert_ok(link_open(&link, zmq, LINK_SERVER, &settings, &failure));
    assert_ok(link_bind(link, 0, &failure));
    return link;
}

static int setup(void **state) {
    static const unsigned char secret[SECRET_FILE_BYTES];
    struct link_keys_settings settings = {
        .roles = {{"chief", 1, 1}, {"worker", 1, 0}},
        .client = chief,
        .servers = {chief}};
    struct attacked *attacked = calloc(1, sizeof *attacked);
    assert_non_null(attacked);
    *state = attacked;
    attacked->zmq = zmq_ctx_new();
    attacked->plain_zmq = zmq_ctx_new();
    assert_ok(link_keys_open(&attacked->keys, secret, &settings, &failure));
    assert_ok(zap_handler_open(&attacked->zap_handler, attacked->zmq,
                               attacked->keys, chief, &failure));
    attacked->guarded = listen_with(attacked->zmq, attacked->keys);
    attacked->plain = listen_with(attacked->plain_zmq, NULL);
    derive_pair(&attacked->server, "chief", "server");
    derive_pair(&attacked->member, worker.role, "client");
    crypto_box_keypair(attacked->unknown.public, attacked->unknown.private);
    philox_sequence_open(&attacked->chance, 1, 0);
    return 0;
}

static int teardown(void **state) {
    struct attacked *attacked = *state;
    link_close(&attacked->guarded);
    link_close(&attacked->plain);
    zap_handler_close(&attacked->zap_handler);
    zmq_ctx_term(attacked->zmq);
    zmq_ctx_term(attacked->plain_zmq);
    link_keys_close(&attacked->keys);
    free(attacked);
    return 0;
}

FIXTURE(setup, teardown);

static void add(struct bytes *bytes, const void *more, size_t size) {
    assert_true(bytes->size + size <= BYTES);
    memcpy(bytes->at + bytes->size, more, size);
    bytes->size += size;
}

static void change_once(struct bytes *bytes, struct philox_sequence *chance) {
    static const unsigned char telling[] = {0, 1, 0x7f, 0x80, 0xff};
    size_t at = bytes->size ? philox_below(chance, (uint32_t)bytes->size) : 0,
           rest = bytes->size - at, longer = 1 + philox_below(chance, 300);
    switch (philox_below(chance, 5)) {
    case 0:
        bytes->at[at] ^= (unsigned char)(1 << philox_below(chance, 8));
        break;
    case 1:
        bytes->at[at] = telling[philox_below(chance, sizeof telling)];
        break;
    case 2: /* ends there */
        bytes->size = at;
        break;
    case 3: /* some bytes stand there twice */
        longer = longer < rest ? longer : rest;
        if (bytes->size + longer <= BYTES / 2) {
            memmove(bytes->at + at + longer, bytes->at + at, rest);
            bytes->size += longer;
        }
        break;
    default: /* some bytes are missing */
        longer = longer < rest ? longer : rest;
        memmove(bytes->at + at, bytes->at + at + longer, rest - longer);
        bytes->size -= longer;
    }
}

static void change(struct bytes *bytes, struct philox_sequence *chance) {
    for (uint32_t i = philox_below(chance, 4) + 1; i; i--)
        change_once(bytes, chance);
}

/* COMMAND behind its head. */
static struct bytes frame(const struct bytes *command) {
    struct bytes framed = {0};
    unsigned char head[HEAD] = {command->size > UINT8_MAX ? LONG_COMMAND
                                                          : COMMAND,
                                (unsigned char)command->size};
    if (command->size > UINT8_MAX)
        for (int i = 0; i < 8; i++)
            head[1 + i] =
                (unsigned char)((uint64_t)command->size >> (56 - 8 * i));
    add(&framed, head, command->size > UINT8_MAX ? HEAD : 2);
    add(&framed, command->at, command->size);
    return framed;
}

static void add_property(struct bytes *metadata, const char *name,
                         const char *value) {
    unsigned char name_size = (unsigned char)strlen(name),
                  size[4] = {0, 0, 0, (unsigned char)strlen(value)};
    add(metadata, &name_size, 1);
    add(metadata, name, name_size);
    add(metadata, size, sizeof size);
    add(metadata, value, size[3]);
}

static struct bytes make_metadata(void) {
    struct bytes metadata = {0};
    add_property(&metadata, "Socket-Type", "DEALER");
    add_property(&metadata, "Identity", "somebody");
    add_property(&metadata, "X-Other", "else");
    return metadata;
}

static struct bytes make_greeting(const char *mechanism) {
    struct bytes greeting = {{0xff, [9] = 0x7f, 3, 1}, GREETING};
    memcpy(greeting.at + 12, mechanism, strlen(mechanism));
    return greeting;
}

/* A box of PLAIN, with the nonce of PREFIX and NONCE, which is there already.
 */
static void add_box(struct bytes *to, const void *plain, size_t size,
                    const char *prefix, const unsigned char *nonce,
                    const unsigned char *public, const unsigned char *private) {
    unsigned char whole[crypto_box_NONCEBYTES], box[BYTES];
    size_t length = strlen(prefix);
    memcpy(whole, prefix, length);
    memcpy(whole + length, nonce, sizeof whole - length);
    assert_int_equal(crypto_box_easy(box, plain, size, whole, public, private),
                     0);
    add(to, box, size + BOX);
}

static struct bytes make_hello(const struct attacked *attacked,
                               const struct pair *transient) {
    static const unsigned char zeros[72], nonce[8] = {[7] = 1};
    struct bytes hello = {0};
    add(&hello, "\x05HELLO\x01\x00", 8);
    add(&hello, zeros, sizeof zeros);
    add(&hello, transient->public, KEY);
    add(&hello, nonce, sizeof nonce);
    add_box(&hello, zeros, 64, "CurveZMQHELLO---", nonce,
            attacked->server.public, transient->private);
    assert_int_equal(hello.size, HELLO);
    return hello;
}

/* Behind WELCOME of the server, with METADATA, as SELF. */
static struct bytes make_initiate(const struct attacked *attacked,
                                  const unsigned char welcome[WELCOME],
                                  const struct pair *transient,
                                  const struct pair *self,
                                  const struct bytes *metadata) {
    static const unsigned char nonce[8] = {[7] = 2}, vouch_nonce[16] = {3};
    unsigned char whole[crypto_box_NONCEBYTES], opened[KEY + COOKIE],
        vouched[2 * KEY];
    struct bytes plain = {0}, initiate = {0};
    memcpy(whole, "WELCOME-", 8);
    memcpy(whole + 8, welcome + 8, 16);
    assert_int_equal(crypto_box_open_easy(opened, welcome + 24, WELCOME - 24,
                                          whole, attacked->server.public,
                                          transient->private),
                     0);
    memcpy(vouched, transient->public, KEY);
    memcpy(vouched + KEY, attacked->server.public, KEY);
    add(&plain, self->public, KEY);
    add(&plain, vouch_nonce, sizeof vouch_nonce);
    add_box(&plain, vouched, sizeof vouched, "VOUCH---", vouch_nonce, opened,
            self->private);
    add(&plain, metadata->at, metadata->size);
    add(&initiate, "\x08INITIATE", 9);
    add(&initiate, opened + KEY, COOKIE);
    add(&initiate, nonce, sizeof nonce);
    add_box(&initiate, plain.at, plain.size, "CurveZMQINITIATE", nonce, opened,
            transient->private);
    return initiate;
}

static void send_bytes(int connection, const struct bytes *bytes) {
    (void)send(connection, bytes->at, bytes->size, MSG_NOSIGNAL);
}

/* Reads SIZE bytes, or what comes before the other side closes: how many. */
static size_t read_bytes(int connection, void *to, size_t size) {
    struct pollfd item = {connection, POLLIN, 0};
    size_t got = 0;
    ssize_t more = 1;
    while (got < size && more > 0) {
        if (poll(&item, 1, DEADLINE_MS) != 1)
            fail_msg("neither an answer nor the end");
        more = recv(connection, (char *)to + got, size - got, 0);
        got += more > 0 ? (size_t)more : 0;
    }
    return got;
}

/* Has the server said READY before it closes the connection? What is CHANGED
 * may be a part, for whose rest it would wait: so it is the last. */
static bool end_connection(int connection, bool changed) {
    unsigned char answer[BYTES];
    size_t got = 0;
    bool ready = false;
    if (changed)
        shutdown(connection, SHUT_WR);
    while (!ready && got < sizeof answer &&
           read_bytes(connection, answer + got, 1)) {
        got++;
        ready = memmem(answer, got, "\5READY", 6);
    }
    close(connection);
    return ready;
}

/* Handshakes without keys, METADATA changed or not. */
static bool shake_hands_plainly(struct attacked *attacked, bool changed) {
    struct bytes greeting = make_greeting("NULL"), metadata = make_metadata(),
                 ready = {0};
    int connection = bad_peers_connect(link_port(attacked->plain));
    assert_true(connection >= 0);
    if (changed)
        change(&metadata, &attacked->chance);
    add(&ready, "\x05READY", 6);
    add(&ready, metadata.at, metadata.size);
    ready = frame(&ready);
    send_bytes(connection, &greeting);
    send_bytes(connection, &ready);
    return end_connection(connection, changed);
}

/* The same with keys, as SELF; WAY is what is changed (WAYS: nothing). */
static bool shake_hands(struct attacked *attacked, const struct pair *self,
                        int way) {
    struct philox_sequence *chance = &attacked->chance;
    struct bytes greeting = make_greeting("CURVE"), metadata = make_metadata();
    struct pair transient;
    unsigned char answer[GREETING + 2 + WELCOME];
    int connection = bad_peers_connect(link_port(attacked->guarded));
    assert_true(connection >= 0);
    crypto_box_keypair(transient.public, transient.private);
    struct bytes hello = make_hello(attacked, &transient);
    if (way == BY_GREETING)
        change(&greeting, chance);
    if (way == BY_HELLO)
        change(&hello, chance);
    hello = frame(&hello);
    if (way == BY_HEAD)
        hello.at[philox_below(chance, 2)] ^=
            (unsigned char)(1 + philox_below(chance, 255));
    send_bytes(connection, &greeting);
    send_bytes(connection, &hello);
    if (way < BY_INITIATE || way == BY_HEAD)
        return end_connection(connection, true);
    assert_int_equal(read_bytes(connection, answer, sizeof answer),
                     sizeof answer);
    if (way == BY_METADATA)
        change(&metadata, chance);
    struct bytes initiate = make_initiate(attacked, answer + GREETING + 2,
                                          &transient, self, &metadata);
    if (way == BY_INITIATE)
        change(&initiate, chance);
    initiate = frame(&initiate);
    send_bytes(connection, &initiate);
    return end_connection(connection, way != WAYS);
}

/* What is changed is a handshake that succeeds else, if its peer is known. */
static void expect_handshakes(struct attacked *attacked) {
    assert_true(shake_hands_plainly(attacked, false));
    assert_true(shake_hands(attacked, &attacked->member, WAYS));
    assert_false(shake_hands(attacked, &attacked->unknown, WAYS));
}

static void expect_nothing(struct attacked *attacked) {
    struct link_frame frame;
    char text[256];
    assert_false(link_view(attacked->guarded, &frame));
    assert_false(link_view(attacked->plain, &frame));
    while (link_bad_peer(attacked->guarded, text, sizeof text) ||
           link_bad_peer(attacked->plain, text, sizeof text))
        continue;
}

static unsigned count_descriptors(void) {
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

TEST(handshakes_that_go_wrong_end_nothing_and_leave_nothing) {
    const char *given = getenv("HANDSHAKES");
    int tries = given ? atoi(given) : TRIES;
    unsigned admitted = 0;
    expect_handshakes(attacked);
    expect_nothing(attacked);
    long before = process_memory_kb(getpid());
    unsigned open = count_descriptors();
    for (int i = 0; i < tries; i++) {
        const struct pair *self =
            i / WAYS % 2 ? &attacked->member : &attacked->unknown;
        bool ready = i % WAYS == BY_PLAIN
                         ? shake_hands_plainly(attacked, true)
                         : shake_hands(attacked, self, i % WAYS);
        admitted += ready;
        if (ready && i % WAYS != BY_PLAIN && self == &attacked->unknown)
            fail_msg("try %d: an unknown key is admitted", i);
        expect_nothing(attacked);
    }
    long grown = process_memory_kb(getpid()) - before;
    print_message("# %u of %d admitted, %ld KB more\n", admitted, tries, grown);
    expect_handshakes(attacked);
    assert_true(count_descriptors() <= open + 2);
#ifndef __SANITIZE_ADDRESS__ /* which keeps what is freed */
    assert_true(grown < GROWTH_KB);
#endif
}
