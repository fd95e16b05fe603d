/* SPDX-License-Identifier: Apache-2.0 */
/* Two sides of a host, in one thread: a server under a name of its own, and a
 * client that calls it. A teardown finds descriptors that were left open. */
#ifndef CAPSTAN_LANE_FIXTURE_H
#define CAPSTAN_LANE_FIXTURE_H

#include "proto/base/time.h"
#include "proto/net/shm/lane.h"
#include "proto/net/shm/lanes.h"

enum { LANE_FIXTURE_FRAME = 1 << 16 }; /* bytes, the longest frame */
static const int64_t LANE_FIXTURE_LIMIT = 20 * TIME_S;

struct lane_fixture {
    char name[LANES_NAME];
    struct lanes *server, *client;
    uint32_t server_number, client_number;
    struct lane *served, *called; /* both ends, when they have met */
    unsigned descriptors;         /* open before */
};

int lane_fixture_setup(void **state);
int lane_fixture_teardown(void **state);

/* Lets LANES do what there is to do, waiting up to 10 ms for it. */
void lane_fixture_turn(struct lanes *lanes);

/* The server's lane with the lowest number; NULL: none. */
struct lane *lane_fixture_served(struct lane_fixture *fixture);

/* LANE (may be NULL) has its bell and no trouble. */
bool lane_fixture_is_open(const struct lane *lane);

/* The client calls; both ends are open on return. */
void lane_fixture_meet(struct lane_fixture *fixture);

/* Turns the server until somebody has connected, of whatever kind. */
void lane_fixture_await(struct lane_fixture *fixture);

/* Turns the server until it has left its only client, for TEXT; NULL: without a
 * word. */
void lane_fixture_left(struct lane_fixture *fixture, const char *text);

/* The test F with a fixture of its own, for cmocka's table. */
#define LANE_FIXTURE_TEST(f)                                                   \
    cmocka_unit_test_setup_teardown(f, lane_fixture_setup,                     \
                                    lane_fixture_teardown)

#endif
