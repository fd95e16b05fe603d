/* SPDX-License-Identifier: Apache-2.0 */
/* What processes with the run's secret may say to a ps: a trainer speaks for
 * its own rank, and only the chief orders. */
#define STATE struct keyed *keyed

#include "core/base/secret_file.h"
#include "core/net/link/zap_handler.h"
#include "proto/cluster/cluster.h"
#include "tests/lib/server_fixture.h"
#include "tests/lib/test.h"

enum { TRIES = 1000, RANKS = 2 };

struct keyed {
    struct server_fixture *fixture;
    struct link_keys *ps, *own[RANKS], *chief;
    struct zap_handler *handler;
    struct link_party parties[RANKS];
    struct link *as_chief;
};

static struct link_keys *derive_keys(struct link_party self) {
    static const unsigned char secret[SECRET_FILE_BYTES] = {7};
    struct link_keys_settings settings = {
        .roles = {{"chief", 1, 1}, {"ps", 1, 1}, {"worker", RANKS, RANKS}},
        .client = self,
        .servers = {self}};
    struct link_keys *keys;
    assert_ok(link_keys_open(&keys, secret, &settings, &failure));
    return keys;
}

/* A link to the ps, by KEYS. */
static struct link *connect_by(struct keyed *keyed, struct link_keys *keys) {
    struct link_settings settings = {.max_frame = LINK_FIXTURE_MAX_FRAME,
                                     .keys = keys,
                                     .party = cluster_party(CLUSTER_PS, 0)};
    struct link *link;
    assert_ok(link_open(&link, keyed->fixture->wire->zmq, LINK_CLIENT,
                        &settings, &failure));
    assert_ok(link_connect(link, keyed->fixture->wire->address, &failure));
    return link;
}

static int setup(void **state) {
    struct keyed *keyed = calloc(1, sizeof *keyed);
    void *inner;
    server_fixture_setup(&inner);
    struct server_fixture *fixture = keyed->fixture = inner;
    struct link_fixture *wire = fixture->wire;
    keyed->ps = derive_keys(cluster_party(CLUSTER_PS, 0));
    keyed->chief = derive_keys(cluster_party(CLUSTER_CHIEF, 0));
    assert_ok(zap_handler_open(&keyed->handler, wire->zmq, keyed->ps,
                               cluster_party(CLUSTER_PS, 0), &failure));
    link_close(&wire->server_link);
    struct link_settings settings = {.max_frame = LINK_FIXTURE_MAX_FRAME,
                                     .keys = keyed->ps,
                                     .party = cluster_party(CLUSTER_PS, 0)};
    assert_ok(link_open(&wire->server_link, wire->zmq, LINK_SERVER, &settings,
                        &failure));
    assert_ok(link_bind(wire->server_link, 0, &failure));
    wire->port = link_port(wire->server_link);
    snprintf(wire->address, sizeof wire->address, "127.0.0.1:%u", wire->port);
    fixture->parties = keyed->parties;
    server_fixture_open(fixture, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        keyed->parties[r] = cluster_party(CLUSTER_WORKER, r);
        keyed->own[r] = derive_keys(keyed->parties[r]);
        link_close(&fixture->trainers[r]);
        fixture->trainers[r] = connect_by(keyed, keyed->own[r]);
    }
    keyed->as_chief = connect_by(keyed, keyed->chief);
    *state = keyed;
    return 0;
}

static int teardown(void **state) {
    struct keyed *keyed = *state;
    void *inner = keyed->fixture;
    struct server_fixture *fixture = keyed->fixture;
    for (uint32_t r = 0; r < RANKS; r++)
        link_close(&fixture->trainers[r]);
    link_close(&keyed->as_chief);
    link_close(&fixture->wire->server_link);
    zap_handler_close(&keyed->handler);
    server_fixture_teardown(&inner);
    link_keys_close(&keyed->chief);
    link_keys_close(&keyed->ps);
    for (uint32_t r = 0; r < RANKS; r++)
        link_keys_close(&keyed->own[r]);
    free(keyed);
    return 0;
}

FIXTURE(setup, teardown);

static uint32_t first_block[] = {0};

static void swap_trainers(struct server_fixture *fixture) {
    struct link *first = fixture->trainers[0];
    fixture->trainers[0] = fixture->trainers[1];
    fixture->trainers[1] = first;
}

TEST(a_trainer_pushes_for_its_own_rank_alone) {
    struct server_fixture *fixture = keyed->fixture;
    swap_trainers(fixture);
    for (int i = 0; i < TRIES; i++) {
        uint32_t rank = (uint32_t)i % RANKS;
        server_fixture_push(fixture, rank, 1, first_block, 1, 1);
        server_fixture_handle_messages(fixture, 1);
        server_fixture_expect(fixture, fixture->trainers[rank],
                              CAPSTAN__DATA_HEADER__KIND__REFUSED,
                              "by the key of another process");
    }
    assert_true(server_fixture_weight(fixture, 0, 0) == 0);
    swap_trainers(fixture);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        server_fixture_push(fixture, rank, 1, first_block, 1, 1);
    server_fixture_handle_messages(fixture, RANKS);
    assert_true(server_fixture_weight(fixture, 0, 0) == -1);
}

/* One that names itself the chief. */
static void order(struct server_fixture *fixture, struct link *link,
                  const char *says) {
    float floats[SERVER_FIXTURE_MAX_FLOATS] = {1};
    Capstan__DataHeader header = server_fixture_header(
        fixture, CAPSTAN__DATA_HEADER__KIND__ASSIGN, 0, 0, first_block, 1);
    header.incarnation = SERVER_FIXTURE_CHIEF;
    server_fixture_send(fixture, link, &header, floats,
                        fixture->elements[0] * sizeof *floats);
    server_fixture_handle_messages(fixture, 1);
    server_fixture_expect(fixture, link, CAPSTAN__DATA_HEADER__KIND__REFUSED,
                          says);
}

TEST(only_the_chiefs_key_orders) {
    struct server_fixture *fixture = keyed->fixture;
    for (int i = 0; i < TRIES; i++)
        order(fixture, fixture->trainers[i % RANKS],
              "an order of the chief's, by the key of another process");
    order(fixture, keyed->as_chief, "before the first view only");
    assert_true(server_fixture_weight(fixture, 0, 0) == 0);
}
