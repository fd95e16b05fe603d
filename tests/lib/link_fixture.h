/* SPDX-License-Identifier: Apache-2.0 */
/* Two ends of a link in one process, strangers, and what the log says.
 *
 * A failed assertion ends the whole program: what the test had opened beside
 * the fixture stays open, and the context would wait for it without end. */
#ifndef CAPSTAN_LINK_FIXTURE_H
#define CAPSTAN_LINK_FIXTURE_H

#include "core/base/log.h"
#include "core/net/link/link.h"
#include "proto/messages/message.h"

#include <stdint.h>

struct link_fixture {
    void *zmq;
    struct link *server_link, *client; /* client not yet connected */
    bool lane;                         /* over shared memory, else TCP */
    uint64_t word;                     /* that it is offered by */
    uint16_t port;
    char address[64]; /* of the server */
    struct log log;
    int log_file, saved_stderr;
    char said[1 << 16]; /* what link_fixture_captured_log read */
};

/* Every wait of these tests ends by then. */
#define LINK_FIXTURE_DEADLINE (INT64_C(60) * 1000000000)
enum { LINK_FIXTURE_MAX_FRAME = 4096 };

int link_fixture_setup(void **state);
int link_fixture_setup_shm(void **state);
int link_fixture_teardown(void **state);

/* The test F once more, over shared memory. */
#define LINK_FIXTURE_SHM(f)                                                    \
    TEST_AGAIN(#f "_over_shared_memory", link_fixture_setup_shm,               \
               link_fixture_teardown, f)

/* One more client, connected to the server. */
struct link *link_fixture_client(struct link_fixture *fixture);

/* Another server, on PORT; the caller closes it. */
struct link *link_fixture_server(struct link_fixture *fixture, uint16_t port);

/* Connects the client and lets both sides speak once. Returns the client's
 * number. */
uint32_t link_fixture_connect(struct link_fixture *fixture);

/* The client calls the server's lane; the server has to answer. */
void link_fixture_prefer_shm(struct link_fixture *fixture);

/* Sends TEXT with PAYLOAD (NULL: none), as soon as there is a connection. */
void link_fixture_send(struct link *link, uint32_t peer, const char *text,
                       const char *payload);

/* Waits for a frame. */
void link_fixture_receive(struct link *link, struct link_frame *frame);
void link_fixture_expect(struct link *link, const char *text);

/* Is nothing here, 100 ms from now? */
void link_fixture_expect_nothing(struct link *link);

/* A plain TCP connection to PORT of this machine. */
int link_fixture_connect_plain(uint16_t port);

/* Waits for the server's next word about a stranger. */
void link_fixture_await_bad_peer(struct link *server_link, char *text,
                                 size_t size);

/* Standard error into a file, and back: what was said then is in `said`. */
void link_fixture_capture_log(struct link_fixture *fixture);
const char *link_fixture_captured_log(struct link_fixture *fixture);

#endif
