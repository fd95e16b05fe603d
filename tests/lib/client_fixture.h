/* SPDX-License-Identifier: Apache-2.0 */
/* A client of rank 0 and, in the same thread, the ps it talks to; a compute
 * thread beside it. Time is the test's own: it runs as the test says. */
#ifndef CAPSTAN_CLIENT_FIXTURE_H
#define CAPSTAN_CLIENT_FIXTURE_H

#include "core/tensor/philox.h"
#include "tests/lib/server_fixture.h"
#include "worker/exchange/client/client.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CLIENT_STEP_TIMEOUT = 60 }; /* timeouts.step, seconds */

struct client_fixture {
    struct server_fixture *server;
    struct process process;
    struct plan plan;
    uint16_t block_ps[SERVER_FIXTURE_BLOCKS];
    struct ps_links_peer place;
    uint64_t offsets[SERVER_FIXTURE_BLOCKS];
    struct buffer *weights, *gradients;
    float *weight_of[SERVER_FIXTURE_BLOCKS];
    struct client *client;
    struct exchange *exchange; /* the client's */
    pthread_t compute;
    uint64_t rounds;
    bool empty;
    atomic_bool done;
    bool passed; /* the compute thread saw what it had to see */
    int64_t now;
    uint32_t loss; /* one frame in so many is lost, 0: none */
    struct philox_sequence random;
};

/* Weights and gradients of 64 floats, all 0: parameter p's begin at 16 p. */
int client_fixture_setup(void **state);

/* The same with the job's wire bf16. */
int client_fixture_setup_bf16(void **state);

/* Closes what there is, opened or not. */
int client_fixture_teardown(void **state);

/* Opens the client with CREDIT bytes on the wire; 0: the default. */
void client_fixture_open(struct client_fixture *fixture, uint64_t credit);

/* Lets the compute thread do WORK, which sets `done` at its end and clears
 * `right` when it saw what it should not. */
void client_fixture_start(struct client_fixture *fixture,
                          void *(*work)(void *));

/* Turns client and ps until the compute thread is done, and joins it: all was
 * right. Time passes for the client as it does here, and 300 ms more in a turn
 * without messages where some are lost. */
void client_fixture_run(struct client_fixture *fixture);

/* Waits for what comes, at most 5 ms; did something come? For the client it is
 * 1 ms, so that a pause of this machine is no silence of its ps. */
bool client_fixture_poll(struct client_fixture *fixture);

/* The client's next request, greetings being answered; the caller releases
 * FRAME. */
Capstan__DataHeader *client_fixture_view_request(struct client_fixture *fixture,
                                                 struct link_frame *frame);

/* In the compute thread: waits for all weights; false: they do not come. */
bool client_fixture_await_weights(struct client_fixture *fixture);

/* In the compute thread: all weights are EXPECTED, or it is not right. */
void client_fixture_check_weights(struct client_fixture *fixture,
                                  float expected);

/* The test F once more, with the job's wire bf16. */
#define CLIENT_BF16(f)                                                         \
    TEST_AGAIN(#f ", bf16", client_fixture_setup_bf16,                         \
               client_fixture_teardown, f)

#endif
