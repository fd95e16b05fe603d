/* SPDX-License-Identifier: Apache-2.0 */
/* Two ends of a link in one process, strangers, and what the log says.
 *
 * A failed assertion ends the whole program: what the test had opened beside
 * the fixture stays open, and the context would wait for it without end. */
#ifndef CAPSTAN_WIRE_FIXTURE_H
#define CAPSTAN_WIRE_FIXTURE_H

#include "proto/base/log.h"
#include "proto/net/link/link.h"
#include "proto/net/messages/message.h"

#include <stdint.h>

struct wire_fixture {
    void *zmq;
    struct link *server, *client; /* client not yet connected */
    bool lane;                    /* over shared memory, else TCP */
    uint64_t word;                /* that it is offered by */
    uint16_t port;
    char address[64]; /* of the server */
    struct log log;
    int log_file, log_kept;
    char said[1 << 16]; /* what wire_fixture_said read */
};

/* Every wait of these tests ends by then. */
#define WIRE_FIXTURE_LIMIT (INT64_C(20) * 1000000000)
enum { WIRE_FIXTURE_MAX_FRAME = 4096 };

int wire_fixture_setup(void **state);
int wire_fixture_setup_lane(void **state);
int wire_fixture_teardown(void **state);

/* Test F, for cmocka's list: over TCP, and over shared memory. */
#define WIRE_FIXTURE_TEST(f)                                                   \
    cmocka_unit_test_setup_teardown(f, wire_fixture_setup,                     \
                                    wire_fixture_teardown)
#define WIRE_FIXTURE_LANE_TEST(f)                                              \
    {                                                                          \
        .name = #f "_over_shared_memory", .test_func = f,                      \
        .setup_func = wire_fixture_setup_lane,                                 \
        .teardown_func = wire_fixture_teardown                                 \
    }

/* One more client, connected to the server. */
struct link *wire_fixture_client(struct wire_fixture *fixture);

/* Connects the client and lets both sides speak once. Returns the client's
 * number. */
uint32_t wire_fixture_connect(struct wire_fixture *fixture);

/* The client calls the server's lane; the server has to answer. */
void wire_fixture_prefer_lane(struct wire_fixture *fixture);

/* Sends TEXT with PAYLOAD (NULL: none), as soon as there is a connection. */
void wire_fixture_send(struct link *link, uint32_t peer, const char *text,
                       const char *payload);

/* Waits for a frame. */
void wire_fixture_view(struct link *link, struct link_frame *frame);
void wire_fixture_expect(struct link *link, const char *text);

/* Is nothing here, 100 ms from now? */
void wire_fixture_silent(struct link *link);

/* A plain TCP connection to PORT of this machine. */
int wire_fixture_stranger(uint16_t port);

/* Waits for the server's next word about a stranger. */
void wire_fixture_stranger_noticed(struct link *server, char *text,
                                   size_t size);

/* Standard error into a file, and back: what was said then is in `said`. */
void wire_fixture_listen(struct wire_fixture *fixture);
const char *wire_fixture_said(struct wire_fixture *fixture);

#endif
