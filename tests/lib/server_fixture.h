/* SPDX-License-Identifier: Apache-2.0 */
/* A ps of one process: its service, its link, and trainers that write to it. A
 * model of four parameters, a block each; the ps holds all but block 2. */
#ifndef CAPSTAN_SERVER_FIXTURE_H
#define CAPSTAN_SERVER_FIXTURE_H

#include "ps/server.h"
#include "tests/lib/link_fixture.h"

enum {
    SERVER_FIXTURE_RUN = 4711,
    SERVER_FIXTURE_PS = 50, /* incarnations */
    SERVER_FIXTURE_CHIEF = 99,
    SERVER_FIXTURE_TRAINER = 100, /* of rank 0, and so on */
    SERVER_FIXTURE_MAX_RANKS = 3,
    SERVER_FIXTURE_BLOCKS = 4,
    SERVER_FIXTURE_OWN_BLOCKS = 3,
    SERVER_FIXTURE_MAX_FLOATS = 64,
};

struct server_fixture {
    struct link_fixture *wire;
    struct process process; /* the ps */
    struct job job;
    struct layout *layout;
    uint32_t ids[SERVER_FIXTURE_BLOCKS], num_mine,
        elements[SERVER_FIXTURE_BLOCKS];
    uint32_t threads; /* of the service */
    bool awaits_values;
    const uint32_t *replicas;
    const struct link_party *parties;
    struct server *server;
    struct link *trainers[SERVER_FIXTURE_MAX_RANKS];
    struct gate_slot slots[SERVER_FIXTURE_MAX_RANKS];
    uint32_t ranks;
    struct message_arena arena;
    uint64_t seq;
    struct run_schedule run_schedule;
    /* What the service called back with. */
    void (*snapshot)(struct server_fixture *fixture, uint32_t b,
                     uint64_t version);
    uint64_t summed_round;
    double sums[SERVER_FIXTURE_BLOCKS];
    void *context;
};

/* SGD of rate 1 on weights of 0, so that weights tell the sums. Settings in
 * `job`, `rounds` and `ids` may be changed before server_fixture_open. */
int server_fixture_setup(void **state);

/* The same with a service of three threads. */
int server_fixture_setup_threads(void **state);

/* Closes what there is, opened or not. */
int server_fixture_teardown(void **state);

/* Opens the service for RANKS trainers, and a link of each to it; a first view
 * lists them all. */
void server_fixture_open(struct server_fixture *fixture, uint32_t ranks);

/* The same with the job's wire bf16. */
int server_fixture_setup_bf16(void **state);

/* A message of rank RANK over all of IDS, in the job's wire; VALUE: of every
 * gradient's element, block b's plus b. The header is the caller's to spoil. */
Capstan__DataHeader server_fixture_header(struct server_fixture *fixture,
                                          Capstan__DataHeader__Kind kind,
                                          uint32_t rank, uint64_t clock,
                                          uint32_t *ids, size_t count);

/* Sends HEADER with BYTES of PAYLOAD by LINK, as soon as there is a
 * connection. */
void server_fixture_send(struct server_fixture *fixture, struct link *link,
                         Capstan__DataHeader *header, const void *payload,
                         size_t bytes);

/* A whole push of VALUE for plan blocks IDS, as by server_fixture_header. */
void server_fixture_push(struct server_fixture *fixture, uint32_t rank,
                         uint64_t clock, uint32_t *ids, size_t count,
                         float value);

/* The same without bytes, EMPTY. */
void server_fixture_push_empty(struct server_fixture *fixture, uint32_t rank,
                               uint64_t clock, uint32_t *ids, size_t count);

/* Lets the service handle COUNT messages, waiting for each and for its
 * threads. */
void server_fixture_handle_messages(struct server_fixture *fixture, int count);

/* Lets the service handle one message and no more, as in a ps that has more to
 * do: its threads and its answers are not waited for. */
void server_fixture_handle_one(struct server_fixture *fixture);

/* The next answer on LINK; the caller releases FRAME. */
Capstan__DataHeader *server_fixture_receive_reply(
    struct server_fixture *fixture, struct link *link,
    struct link_frame *frame);

/* LINK's next answer is of KIND, with TEXT in its text unless that is NULL. */
void server_fixture_expect(struct server_fixture *fixture, struct link *link,
                           Capstan__DataHeader__Kind kind, const char *text);

/* Which of the answer's blocks its block I is in the plan's order: threads
 * finish in any. */
size_t server_fixture_block_order(const Capstan__DataHeader *header, size_t i);

/* RANK's next answer is of CLOCK and brings the weights of COUNT blocks, all of
 * block k being VALUES[k], in the plan's order of the blocks. */
void server_fixture_expect_weights(struct server_fixture *fixture,
                                   uint32_t rank, uint64_t clock,
                                   const float *values, size_t count);

/* Weight I of plan block ID as the ps has it. */
float server_fixture_weight(const struct server_fixture *fixture, uint32_t id,
                            uint32_t i);

/* The test F once more: with the job's wire bf16, and with a service of three
 * threads. */
#define SERVER_BF16(f)                                                         \
    TEST_AGAIN(#f ", bf16", server_fixture_setup_bf16,                         \
               server_fixture_teardown, f)
#define SERVER_THREADS(f)                                                      \
    TEST_AGAIN(#f ", 3 threads", server_fixture_setup_threads,                 \
               server_fixture_teardown, f)

#endif
