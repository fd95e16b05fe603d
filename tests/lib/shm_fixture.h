/* SPDX-License-Identifier: Apache-2.0 */
/* Two sides of a host, in one thread: a server under a name of its own, and a
 * client that calls it. A teardown finds descriptors that were left open. */
#ifndef CAPSTAN_SHM_FIXTURE_H
#define CAPSTAN_SHM_FIXTURE_H

#include "core/base/time.h"
#include "core/net/shm/shm_connection.h"
#include "core/net/shm/shm_endpoint.h"

enum { SHM_FIXTURE_FRAME = 1 << 16 }; /* bytes, the longest frame */
static const int64_t SHM_FIXTURE_DEADLINE = 60 * TIME_S;

struct shm_fixture {
    char name[SHM_ENDPOINT_NAME];
    struct shm_endpoint *server, *client;
    uint32_t server_number, client_number;
    struct shm_connection *served, *called; /* both ends, when they have met */
    unsigned descriptors;                   /* open before */
};

/* Of both sides. */
extern const struct shm_connection_settings shm_fixture_settings;

int shm_fixture_setup(void **state);
int shm_fixture_teardown(void **state);

/* Lets LANES do what there is to do, waiting up to 10 ms for it. */
void shm_fixture_run_once(struct shm_endpoint *endpoint);

/* The server's lane with the lowest number; NULL: none. */
struct shm_connection *shm_fixture_accepted(struct shm_fixture *fixture);

/* LANE (may be NULL) has its bell and no trouble. */
bool shm_fixture_is_open(const struct shm_connection *connection);

/* The client calls; both ends are open on return. */
void shm_fixture_connect(struct shm_fixture *fixture);

/* Turns the server until somebody has connected, of whatever kind. */
void shm_fixture_await_client(struct shm_fixture *fixture);

/* Turns the server until it has left its only client, for TEXT; NULL: without a
 * word. */
void shm_fixture_expect_dropped(struct shm_fixture *fixture, const char *text);

#endif
