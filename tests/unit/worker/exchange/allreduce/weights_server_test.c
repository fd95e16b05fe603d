/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "worker/exchange/allreduce/weights_server.h"

#include "chief/snapshot/weights_io.h"
#include "core/base/time.h"
#include "core/net/link/link.h"
#include "proto/messages/message.h"
#include "tests/lib/test.h"
#include "worker/bandwidth_meter.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { RUN = 5, RANK0 = 6, CHIEF = 7, SNAPSHOT = 9, ELEMENTS = 40007 };

/* A rank 0 on a thread of its own, and the chief's side of the wire. */
struct fixture {
    void *zmq;
    struct log log;
    struct process process;
    struct layout *layout;
    float weights[ELEMENTS];
    uint64_t offsets[2];
    struct weights_server *weights_server;
    pthread_t thread;
    int stop;
};

static void *serve(void *argument) {
    struct fixture *fixture = argument;
    for (;;) {
        zmq_pollitem_t items[2] = {
            weights_server_poll_item(fixture->weights_server),
            {NULL, fixture->stop, ZMQ_POLLIN, 0}};
        zmq_poll(items, 2, -1);
        if (items[1].revents)
            return NULL;
        weights_server_step(fixture->weights_server);
    }
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct parameter parameters[2] = {
        {.name = "weight", .num_dims = 2, .dims = {100, 400}},
        {.name = "bias", .num_dims = 1, .dims = {7}}};
    log_open(&fixture->log, "worker", 0);
    fixture->zmq = zmq_ctx_new();
    fixture->stop = eventfd(0, EFD_CLOEXEC);
    fixture->offsets[0] = 7; /* the last parameter lies first */
    for (int i = 0; i < ELEMENTS; i++)
        fixture->weights[i] = (float)i;
    assert_ok(layout_build(&fixture->layout, parameters, 2, &failure));
    fixture->process = (struct process){.zmq = fixture->zmq,
                                        .log = &fixture->log,
                                        .run = RUN,
                                        .incarnation = RANK0};
    struct weights_server_settings settings = {
        .process = &fixture->process,
        .inproc = "keeper",
        .chief = CHIEF,
        .layout = fixture->layout,
        .weights = fixture->weights,
        .offsets = fixture->offsets,
    };
    assert_ok(
        weights_server_open(&fixture->weights_server, &settings, &failure));
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    eventfd_write(fixture->stop, 1);
    pthread_join(fixture->thread, NULL);
    weights_server_close(&fixture->weights_server);
    layout_free(&fixture->layout);
    zmq_ctx_term(fixture->zmq);
    close(fixture->stop);
    free(fixture);
}

FIXTURE(setup, teardown);

static void start(struct fixture *fixture) {
    assert_int_equal(pthread_create(&fixture->thread, NULL, serve, fixture), 0);
}

/* Who calls itself CHIEF of RUN. */
static struct weights_transfer *open_caller(struct fixture *fixture,
                                            uint64_t run, uint64_t chief,
                                            double timeout) {
    static uint32_t ps_of_block[64];
    static struct ps_links_peer place = {.incarnation = RANK0};
    struct weights_transfer_settings settings = {
        .zmq = fixture->zmq,
        .run = run,
        .incarnation = chief,
        .layout = fixture->layout,
        .ps_of_block = ps_of_block,
        .ps = &place,
        .num_ps = 1,
        .inproc = "keeper",
        .step_timeout = timeout,
        .cancel = -1,
    };
    struct weights_transfer *transfer;
    assert_ok(weights_transfer_open(&transfer, &settings, &failure));
    return transfer;
}

static struct weights_transfer *open_chief(struct fixture *fixture) {
    return open_caller(fixture, RUN, CHIEF, 30);
}

TEST(the_chief_reads_all_weights_of_a_served_snapshot) {
    static float floats[40000];
    weights_server_serve(fixture->weights_server, SNAPSHOT);
    start(fixture);
    struct weights_transfer *chief = open_chief(fixture);
    assert_ok(weights_transfer_read(chief, 0, SNAPSHOT, floats, &failure));
    for (int i = 0; i < 40000; i++)
        assert_true(floats[i] == (float)(7 + i));
    assert_ok(weights_transfer_read(chief, 1, SNAPSHOT, floats, &failure));
    for (int i = 0; i < 7; i++)
        assert_true(floats[i] == (float)i);
    weights_transfer_close(&chief);
}

TEST(a_snapshot_that_is_not_served_is_refused) {
    static float floats[40000];
    start(fixture);
    struct weights_transfer *chief = open_chief(fixture);
    assert_error(weights_transfer_read(chief, 0, SNAPSHOT, floats, &failure),
                 FAILURE_PEER_REFUSED);
    assert_contains(failure.text, "snapshot");
    weights_transfer_close(&chief);
}

TEST(the_chief_sets_weights_before_the_first_round) {
    static float floats[40000];
    for (int i = 0; i < 40000; i++)
        floats[i] = -(float)i;
    start(fixture);
    struct weights_transfer *chief = open_chief(fixture);
    assert_ok(weights_transfer_assign(chief, 0, floats, &failure));
    weights_transfer_close(&chief);
    assert_true(fixture->weights[6] == 6);
    for (int i = 0; i < 40000; i++)
        assert_true(fixture->weights[7 + i] == -(float)i);
}

TEST(weights_cannot_be_set_after_the_first_round) {
    static float floats[40000];
    weights_server_freeze(fixture->weights_server);
    start(fixture);
    struct weights_transfer *chief = open_chief(fixture);
    assert_error(weights_transfer_assign(chief, 0, floats, &failure),
                 FAILURE_PEER_REFUSED);
    weights_transfer_close(&chief);
    assert_true(fixture->weights[8] == 8);
}

/* Sends HEADER in the chief's name with BYTES of payload: what the answer
 * says. */
static const char *answer_to(struct fixture *fixture,
                             Capstan__DataHeader *header, size_t bytes) {
    static struct message_arena arena;
    static unsigned char space[MESSAGE_MAX_HEADER];
    const struct link_settings settings = {.max_frame = MESSAGE_MAX_PAYLOAD};
    struct link *link;
    struct link_payload payload;
    struct link_frame frame;
    Capstan__DataHeader *answer;
    assert_ok(link_open(&link, fixture->zmq, LINK_CLIENT, &settings, &failure));
    assert_ok(link_connect_inproc(link, "keeper", &failure));
    header->run = RUN;
    header->incarnation = CHIEF;
    header->seq = 77;
    size_t size = message_write_data(header, space);
    assert_true(link_reserve(link, 0, &payload, bytes));
    memset(link_reserved(&payload), 0, bytes);
    assert_true(link_commit(link, 0, space, size, &payload));
    zmq_pollitem_t item = {link_socket(link), 0, ZMQ_POLLIN, 0};
    assert_int_equal(zmq_poll(&item, 1, 60000), 1);
    assert_true(link_view(link, &frame));
    assert_ok(message_read_data(&answer, &arena, frame.header.data,
                                frame.header.size, &failure));
    link_release(&frame);
    link_close(&link);
    assert_int_equal(answer->kind, CAPSTAN__DATA_HEADER__KIND__REFUSED);
    assert_int_equal(answer->seq, 77);
    return answer->text;
}

TEST(blocks_outside_the_plan_are_refused_and_not_set) {
    uint32_t blocks[2] = {0, 1}, beyond = fixture->layout->num_blocks;
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    start(fixture);
    header.kind = CAPSTAN__DATA_HEADER__KIND__ASSIGN;
    header.blocks = blocks;
    header.n_blocks = 1;
    assert_contains(answer_to(fixture, &header, 4), "size differs");
    header.n_blocks = 2;
    assert_contains(answer_to(fixture, &header, 4), "not in the plan");
    header.n_blocks = 1;
    header.blocks = &beyond;
    assert_contains(answer_to(fixture, &header, 4), "not in the plan");
    header.blocks = blocks;
    header.kind = CAPSTAN__DATA_HEADER__KIND__PULL; /* of no snapshot */
    assert_contains(answer_to(fixture, &header, 0), "not held");
    header.kind = CAPSTAN__DATA_HEADER__KIND__PUSH;
    assert_contains(answer_to(fixture, &header, 4), "only a ps accepts");
    for (int i = 0; i < ELEMENTS; i++)
        assert_true(fixture->weights[i] == (float)i);
}

/* Another run's chief, or anybody. */
TEST(only_the_chief_is_answered) {
    static float floats[40000];
    weights_server_serve(fixture->weights_server, SNAPSHOT);
    start(fixture);
    for (uint64_t other = 0; other < 2; other++) {
        struct weights_transfer *unknown_peer =
            open_caller(fixture, RUN + !other, CHIEF + other, 0.3);
        assert_error(
            weights_transfer_read(unknown_peer, 0, SNAPSHOT, floats, &failure),
            FAILURE_PEER_SILENT);
        assert_true(floats[8] == 0);
        weights_transfer_close(&unknown_peer);
    }
}

static bool measure(struct fixture *fixture) {
    struct bandwidth_meter *probe;
    const char *address =
        textf("127.0.0.1:%u", weights_server_port(fixture->weights_server));
    struct process process = {
        .zmq = fixture->zmq, .run = RUN, .incarnation = 3};
    struct bandwidth_meter_settings settings = {.process = &process,
                                                .address = address};
    assert_ok(bandwidth_meter_open(&probe, &settings, time_now(), &failure));
    int64_t until = 0; /* without an answer it ends then */
    while (!bandwidth_meter_step(probe, time_now())) {
        zmq_pollitem_t item = bandwidth_meter_poll_item(probe);
        until = bandwidth_meter_deadline(probe);
        zmq_poll(&item, 1, time_poll_ms(time_now(), until));
    }
    bool answered = time_now() < until;
    bandwidth_meter_close(&probe);
    return answered;
}

/* On one host the first answer ends the measurement. */
TEST(probes_are_echoed_until_the_first_round) {
    start(fixture);
    assert_true(measure(fixture));
}

TEST(probes_are_not_echoed_after_the_first_round) {
    weights_server_freeze(fixture->weights_server);
    start(fixture);
    assert_false(measure(fixture));
}
