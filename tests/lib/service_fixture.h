/* SPDX-License-Identifier: Apache-2.0 */
/* A ps of one process: its service, its link, and trainers that write to it. A
 * model of four parameters, a block each; the ps holds all but block 2. */
#ifndef CAPSTAN_SERVICE_FIXTURE_H
#define CAPSTAN_SERVICE_FIXTURE_H

#include "ps/service.h"
#include "tests/lib/wire_fixture.h"

enum {
    SERVICE_RUN = 4711,
    SERVICE_PS = 50, /* incarnations */
    SERVICE_CHIEF = 99,
    SERVICE_TRAINER = 100, /* of rank 0, and so on */
    SERVICE_MAX_RANKS = 3,
    SERVICE_BLOCKS = 4,
    SERVICE_MINE = 3,
    SERVICE_MAX_FLOATS = 64,
};

struct service_fixture {
    struct wire_fixture *wire;
    struct job job;
    struct layout *layout;
    uint32_t ids[SERVICE_BLOCKS], num_mine, elements[SERVICE_BLOCKS];
    uint32_t threads; /* of the service */
    const uint32_t *replicas;
    struct service *service;
    struct link *trainers[SERVICE_MAX_RANKS];
    struct gate_slot slots[SERVICE_MAX_RANKS];
    uint32_t ranks;
    struct message_arena arena;
    uint64_t seq;
    struct rounds rounds;
    /* What the service called back with. */
    void (*snapshot)(struct service_fixture *fixture, uint32_t b,
                     uint64_t version);
    uint64_t summed_round;
    double sums[SERVICE_BLOCKS];
    void *context;
};

/* SGD of rate 1 on weights of 0, so that weights tell the sums. Settings in
 * `job`, `rounds` and `ids` may be changed before service_fixture_open. */
int service_fixture_setup(void **state);

/* The same with a service of three threads. */
int service_fixture_setup_threads(void **state);

/* Closes what there is, opened or not. */
int service_fixture_teardown(void **state);

/* Opens the service for RANKS trainers, and a link of each to it; a first view
 * lists them all. */
void service_fixture_open(struct service_fixture *fixture, uint32_t ranks);

/* The same with the job's wire bf16. */
int service_fixture_setup_bf16(void **state);

/* A message of rank RANK over all of IDS, in the job's wire; VALUE: of every
 * gradient's element, block b's plus b. The header is the caller's to spoil. */
Capstan__DataHeader service_fixture_header(struct service_fixture *fixture,
                                           Capstan__DataHeader__Kind kind,
                                           uint32_t rank, uint64_t clock,
                                           uint32_t *ids, size_t count);

/* Sends HEADER with BYTES of PAYLOAD by LINK, as soon as there is a
 * connection. */
void service_fixture_send(struct service_fixture *fixture, struct link *link,
                          Capstan__DataHeader *header, const void *payload,
                          size_t bytes);

/* A whole push of VALUE for plan blocks IDS, as by service_fixture_header. */
void service_fixture_push(struct service_fixture *fixture, uint32_t rank,
                          uint64_t clock, uint32_t *ids, size_t count,
                          float value);

/* Lets the service handle COUNT messages, waiting for each and for its
 * threads. */
void service_fixture_serve(struct service_fixture *fixture, int count);

/* Lets the service handle one message and no more, as in a ps that has more to
 * do: its threads and its answers are not waited for. */
void service_fixture_handle(struct service_fixture *fixture);

/* The next answer on LINK; the caller releases FRAME. */
Capstan__DataHeader *service_fixture_answer(struct service_fixture *fixture,
                                            struct link *link,
                                            struct link_frame *frame);

/* LINK's next answer is of KIND, with TEXT in its text unless that is NULL. */
void service_fixture_expect(struct service_fixture *fixture, struct link *link,
                            Capstan__DataHeader__Kind kind, const char *text);

/* Which of the answer's blocks its block I is in the plan's order: threads
 * finish in any. */
size_t service_fixture_place(const Capstan__DataHeader *header, size_t i);

/* RANK's next answer is of CLOCK and brings the weights of COUNT blocks, all of
 * block k being VALUES[k], in the plan's order of the blocks. */
void service_fixture_expect_weights(struct service_fixture *fixture,
                                    uint32_t rank, uint64_t clock,
                                    const float *values, size_t count);

/* Weight I of plan block ID as the ps has it. */
float service_fixture_weight(const struct service_fixture *fixture, uint32_t id,
                             uint32_t i);

/* An entry of cmocka's table: the test F as it is, with the job's wire bf16,
 * and with a service of three threads. */
#define SERVICE_TEST(f)                                                        \
    cmocka_unit_test_setup_teardown(f, service_fixture_setup,                  \
                                    service_fixture_teardown)

#define SERVICE_BF16_TEST(f)                                                   \
    {                                                                          \
        .name = #f ", bf16", .test_func = f,                                   \
        .setup_func = service_fixture_setup_bf16,                              \
        .teardown_func = service_fixture_teardown                              \
    }

#define SERVICE_THREADS_TEST(f)                                                \
    {                                                                          \
        .name = #f ", 3 threads", .test_func = f,                              \
        .setup_func = service_fixture_setup_threads,                           \
        .teardown_func = service_fixture_teardown                              \
    }

#endif
