/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/bench/stream.h"

#include "proto/base/time.h"
#include "proto/net/messages/message.h"
#include "ps/service.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A vector of two whole blocks and a rest, then small ones that share a
 * message; on two ps, each a real service on a thread of its own. */
enum { FLOATS = 40000, SMALL = 30, SMALL_FLOATS = 16, BLOCKS = 3 + SMALL };
enum { SERVERS = 2, RUN = 4711, INCARNATION = 50, ME = 100, ROOM = 64 };
static const double PATIENCE = 20;

struct server {
    struct fixture *fixture;
    struct link *link;
    struct service *service;
    uint32_t ids[BLOCKS], count;
    pthread_t thread;
    atomic_bool end, deaf;
    atomic_uint heard;
    struct message_arena arena;
};

struct fixture {
    void *zmq;
    struct job job;
    struct plan plan;
    uint16_t block_ps[BLOCKS];
    struct plan_place places[SERVERS];
    struct server servers[SERVERS];
    struct stream *stream;
    int64_t latencies[ROOM];
};

static void *serve(void *argument) {
    struct server *server = argument;
    struct failure why;
    while (!atomic_load(&server->end)) {
        zmq_pollitem_t items[LINK_POLL_ITEMS];
        struct link_frame frame;
        Capstan__DataHeader *header;
        zmq_poll(items, link_poll_items(server->link, items), 10);
        while (link_view(server->link, &frame)) {
            atomic_fetch_add(&server->heard, 1);
            if (atomic_load(&server->deaf) ||
                message_read_data(&header, &server->arena, frame.header.data,
                                  frame.header.size, &why))
                link_release(&frame);
            else if (service_handle(server->service, &frame, header, &why))
                return NULL;
        }
        service_flush(server->service);
    }
    return NULL;
}

static void build_layout(struct fixture *fixture) {
    struct parameter parameters[1 + SMALL] = {
        {.name = "vector", .num_dims = 1, .dims = {FLOATS}}};
    struct failure why;
    for (int i = 1; i <= SMALL; i++) {
        snprintf(parameters[i].name, sizeof parameters[i].name, "small.%d", i);
        parameters[i].num_dims = 1;
        parameters[i].dims[0] = SMALL_FLOATS;
    }
    if (layout_build(&fixture->plan.layout, parameters, 1 + SMALL, &why))
        fail_msg("%s", why.text);
    assert_int_equal(fixture->plan.layout->num_blocks, BLOCKS);
}

static void open_server(struct fixture *fixture, uint32_t p) {
    struct server *server = &fixture->servers[p];
    struct link_settings link = {.max_frame = MESSAGE_MAX_PAYLOAD};
    struct gate_slot slot = {ME, 1, true};
    struct failure why;
    for (uint32_t b = 0; b < BLOCKS; b++)
        if (fixture->block_ps[b] == p)
            server->ids[server->count++] = b;
    if (link_open(&server->link, fixture->zmq, LINK_SERVER, &link, &why) ||
        link_bind(server->link, 0, &why))
        fail_msg("%s", why.text);
    struct service_settings settings = {
        .link = server->link,
        .run = RUN,
        .incarnation = INCARNATION + p,
        .job = &fixture->job,
        .layout = fixture->plan.layout,
        .ids = server->ids,
        .num_blocks = server->count,
        .num_ranks = 1,
        .rounds = {.total = UINT64_MAX, .accumulation = 1, .epoch_batches = 1}};
    if (service_open(&server->service, &settings, &why))
        fail_msg("%s", why.text);
    shard_initialise(service_shard(server->service), 1);
    exchange_view(service_exchange(server->service), 1, &slot);
    assert_int_equal(service_settle(server->service, &why), STATUS_OK);
    snprintf(fixture->places[p].address, sizeof fixture->places[p].address,
             "127.0.0.1:%u", link_port(server->link));
    fixture->places[p].incarnation = INCARNATION + p;
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
}

static int set_up(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->zmq = zmq_ctx_new();
    fixture->job.staleness = JOB_STALENESS_INF;
    fixture->job.schedule.lr = 1;
    build_layout(fixture);
    for (uint32_t b = 0; b < BLOCKS; b++)
        fixture->block_ps[b] = b % SERVERS;
    fixture->plan.block_ps = fixture->block_ps;
    fixture->plan.num_ps = SERVERS;
    fixture->plan.num_ranks = 1;
    fixture->plan.ps = fixture->places;
    for (uint32_t p = 0; p < SERVERS; p++)
        open_server(fixture, p);
    *state = fixture;
    return 0;
}

static void stop_servers(struct fixture *fixture) {
    for (uint32_t p = 0; p < SERVERS; p++) {
        if (!atomic_exchange(&fixture->servers[p].end, true))
            pthread_join(fixture->servers[p].thread, NULL);
    }
}

static int tear_down(void **state) {
    struct fixture *fixture = *state;
    stop_servers(fixture);
    stream_close(&fixture->stream);
    for (uint32_t p = 0; p < SERVERS; p++) {
        service_close(&fixture->servers[p].service);
        link_close(&fixture->servers[p].link);
    }
    layout_free(&fixture->plan.layout);
    zmq_ctx_term(fixture->zmq);
    free(fixture);
    return 0;
}

static enum status open_stream(struct fixture *fixture, uint64_t incarnation,
                               double timeout, struct failure *why) {
    struct stream_settings settings = {.zmq = fixture->zmq,
                                       .plan = &fixture->plan,
                                       .run = RUN,
                                       .incarnation = incarnation,
                                       .from = 1,
                                       .timeout = timeout};
    return stream_open(&fixture->stream, &settings, why);
}

/* Blocks of the parameter VECTOR, or all small ones. */
static void blocks_of(const struct fixture *fixture, bool small,
                      uint32_t *first, uint32_t *count) {
    const struct layout *layout = fixture->plan.layout;
    *first = layout->first_block[small ? SMALL : 0];
    *count = small ? SMALL : layout->num_blocks_of[0];
}

static struct lap run(struct fixture *fixture, bool small, enum lap_kind kind,
                      uint32_t depth, uint64_t times) {
    struct lap lap = {.kind = kind,
                      .depth = depth,
                      .times = times,
                      .latencies = fixture->latencies,
                      .room = ROOM};
    struct failure why;
    uint32_t first, count;
    blocks_of(fixture, small, &first, &count);
    if (stream_lap(fixture->stream, first, count, &lap, &why))
        fail_msg("%s", why.text);
    assert_int_equal(lap.vectors, times);
    assert_true(lap.elapsed > 0);
    return lap;
}

/* Every block of the vector, or of the small ones, has had UPDATES. */
static void expect_updates(struct fixture *fixture, bool small,
                           uint64_t updates) {
    uint32_t first, count;
    blocks_of(fixture, small, &first, &count);
    stop_servers(fixture);
    for (uint32_t p = 0; p < SERVERS; p++)
        for (uint32_t b = 0; b < fixture->servers[p].count; b++) {
            uint32_t id = fixture->servers[p].ids[b];
            if (id >= first && id < first + count)
                assert_int_equal(
                    exchange_version(
                        service_exchange(fixture->servers[p].service), b),
                    updates);
        }
}

static void pushes_count_once_and_pulls_not_at_all(void **state) {
    struct fixture *fixture = *state;
    struct failure why;
    if (open_stream(fixture, ME, PATIENCE, &why))
        fail_msg("%s", why.text);
    assert_string_equal(stream_lane(fixture->stream), "tcp");
    for (uint32_t depth = 1; depth < 20; depth += 6) {
        run(fixture, false, LAP_PUSH, depth, 5);
        run(fixture, false, LAP_PULL, depth, 5);
        run(fixture, false, LAP_PUSH_PULL, depth, 5);
    }
    assert_int_equal(stream_clock(fixture->stream), 40);
    expect_updates(fixture, false, 40);
    expect_updates(fixture, true, 0);
}

static void small_vectors_share_a_message_to_each_ps(void **state) {
    struct fixture *fixture = *state;
    struct failure why;
    if (open_stream(fixture, ME, PATIENCE, &why))
        fail_msg("%s", why.text);
    for (int kind = 0; kind < LAP_KINDS; kind++) {
        struct lap lap = run(fixture, true, (enum lap_kind)kind, 3, 7);
        assert_int_equal(lap.bytes, SMALL * SMALL_FLOATS * sizeof(float));
        assert_int_equal(lap.messages, 7 * SERVERS);
    }
    expect_updates(fixture, true, 14);
}

static void one_at_a_time_each_has_a_latency(void **state) {
    struct fixture *fixture = *state;
    struct failure why;
    if (open_stream(fixture, ME, PATIENCE, &why))
        fail_msg("%s", why.text);
    struct lap lap = run(fixture, false, LAP_PUSH_PULL, 1, 9);
    assert_int_equal(lap.samples, 9);
    int64_t sum = 0;
    for (int i = 0; i < 9; i++) {
        assert_true(fixture->latencies[i] > 0);
        sum += fixture->latencies[i];
    }
    assert_true(sum <= lap.elapsed);
    assert_int_equal(run(fixture, false, LAP_PUSH_PULL, 2, 9).samples, 0);
}

static void a_ps_that_refuses_is_named_with_its_reason(void **state) {
    struct fixture *fixture = *state;
    struct failure why;
    struct lap lap = {.times = 1};
    uint32_t first, count;
    if (open_stream(fixture, ME + 1, PATIENCE, &why))
        fail_msg("%s", why.text);
    blocks_of(fixture, false, &first, &count);
    assert_int_equal(stream_lap(fixture->stream, first, count, &lap, &why),
                     STATUS_FAILED);
    assert_non_null(strstr(why.text, "refuses: not in this ps's view"));
}

static void a_ps_that_does_not_answer_is_named(void **state) {
    struct fixture *fixture = *state;
    struct failure why;
    struct lap lap = {.times = 1};
    uint32_t first, count;
    if (open_stream(fixture, ME, 0.5, &why))
        fail_msg("%s", why.text);
    atomic_store(&fixture->servers[1].deaf, true);
    blocks_of(fixture, false, &first, &count);
    assert_int_equal(stream_lap(fixture->stream, first, count, &lap, &why),
                     STATUS_RETRY);
    assert_non_null(strstr(why.text, "ps 1 at 127.0.0.1:"));
    assert_non_null(strstr(why.text, "has not answered"));
}

static void a_ps_that_is_not_there_is_named(void **state) {
    struct fixture *fixture = *state;
    struct failure why;
    snprintf(fixture->places[0].address, sizeof fixture->places[0].address,
             "127.0.0.1:1");
    assert_int_equal(open_stream(fixture, ME, 0.3, &why), STATUS_RETRY);
    assert_null(fixture->stream);
    assert_non_null(strstr(why.text, "ps 0 at 127.0.0.1:1"));
}

static void who_waits_is_stopped_at_once(void **state) {
    struct fixture *fixture = *state;
    struct failure why;
    atomic_bool stop = true;
    struct lap lap = {.times = 1000, .stop = &stop};
    uint32_t first, count;
    if (open_stream(fixture, ME, PATIENCE, &why))
        fail_msg("%s", why.text);
    blocks_of(fixture, false, &first, &count);
    assert_int_equal(stream_lap(fixture->stream, first, count, &lap, &why),
                     STATUS_OK);
    assert_int_equal(lap.vectors, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(pushes_count_once_and_pulls_not_at_all),
        TEST(small_vectors_share_a_message_to_each_ps),
        TEST(one_at_a_time_each_has_a_latency),
        TEST(a_ps_that_refuses_is_named_with_its_reason),
        TEST(a_ps_that_does_not_answer_is_named),
        TEST(a_ps_that_is_not_there_is_named),
        TEST(who_waits_is_stopped_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
