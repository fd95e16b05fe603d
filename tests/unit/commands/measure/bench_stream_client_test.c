/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "commands/measure/bench_stream_client.h"

#include "core/base/time.h"
#include "proto/messages/message.h"
#include "ps/server.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"

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
static const double TIMEOUT = 20;

struct node {
    struct fixture *fixture;
    struct process process;
    struct link *link;
    struct server *server;
    uint32_t ids[BLOCKS], count;
    pthread_t thread;
    atomic_bool end, deaf;
    atomic_uint heard;
    struct message_arena arena;
};

struct fixture {
    void *zmq;
    struct process process;
    struct job job;
    struct plan plan;
    uint16_t block_ps[BLOCKS];
    struct ps_links_peer places[SERVERS];
    struct node servers[SERVERS];
    struct bench_stream_client *bench_stream_client;
    int64_t latencies[ROOM];
};

static void *serve(void *argument) {
    struct node *node = argument;
    while (!atomic_load(&node->end)) {
        zmq_pollitem_t items[LINK_POLL_ITEMS];
        struct link_frame frame;
        Capstan__DataHeader *header;
        zmq_poll(items, link_poll_items(node->link, items), 10);
        while (link_view(node->link, &frame)) {
            atomic_fetch_add(&node->heard, 1);
            if (atomic_load(&node->deaf) ||
                message_read_data(&header, &node->arena, frame.header.data,
                                  frame.header.size, &failure))
                link_release(&frame);
            else if (server_handle(node->server, &frame, header, &failure))
                return NULL;
        }
        server_flush(node->server);
    }
    return NULL;
}

static void build_layout(struct fixture *fixture) {
    struct parameter parameters[1 + SMALL] = {
        {.name = "vector", .num_dims = 1, .dims = {FLOATS}}};
    for (int i = 1; i <= SMALL; i++) {
        snprintf(parameters[i].name, sizeof parameters[i].name, "small.%d", i);
        parameters[i].num_dims = 1;
        parameters[i].dims[0] = SMALL_FLOATS;
    }
    assert_ok(
        layout_build(&fixture->plan.layout, parameters, 1 + SMALL, &failure));
    assert_int_equal(fixture->plan.layout->num_blocks, BLOCKS);
}

static void open_server(struct fixture *fixture, uint32_t p) {
    struct node *node = &fixture->servers[p];
    struct link_settings link = {.max_frame = MESSAGE_MAX_PAYLOAD};
    struct gate_slot slot = {ME, 1, true};
    for (uint32_t b = 0; b < BLOCKS; b++)
        if (fixture->block_ps[b] == p)
            node->ids[node->count++] = b;
    if (link_open(&node->link, fixture->zmq, LINK_SERVER, &link, &failure) ||
        link_bind(node->link, 0, &failure))
        fail_msg("%s", failure.text);
    node->process =
        (struct process){.run = RUN, .incarnation = INCARNATION + p};
    struct server_settings settings = {.link = node->link,
                                       .process = &node->process,
                                       .job = &fixture->job,
                                       .layout = fixture->plan.layout,
                                       .ids = node->ids,
                                       .num_blocks = node->count,
                                       .num_ranks = 1,
                                       .run_schedule = {.total = UINT64_MAX,
                                                        .accumulation = 1,
                                                        .epoch_batches = 1}};
    assert_ok(server_open(&node->server, &settings, &failure));
    shard_initialise(server_shard(node->server), 1);
    update_core_set_view(server_update_core(node->server), 1, &slot);
    assert_ok(server_run_actions(node->server, &failure));
    snprintf(fixture->places[p].address, sizeof fixture->places[p].address,
             "127.0.0.1:%u", link_port(node->link));
    fixture->places[p].incarnation = INCARNATION + p;
    assert_int_equal(pthread_create(&node->thread, NULL, serve, node), 0);
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
    bench_stream_client_close(&fixture->bench_stream_client);
    for (uint32_t p = 0; p < SERVERS; p++) {
        server_close(&fixture->servers[p].server);
        link_close(&fixture->servers[p].link);
    }
    layout_free(&fixture->plan.layout);
    zmq_ctx_term(fixture->zmq);
    free(fixture);
    return 0;
}

FIXTURE(set_up, tear_down);

static enum status open_stream(struct fixture *fixture, uint64_t incarnation,
                               double timeout, struct failure *why) {
    fixture->process = (struct process){
        .zmq = fixture->zmq, .run = RUN, .incarnation = incarnation};
    struct bench_stream_client_settings settings = {.process =
                                                        &fixture->process,
                                                    .plan = &fixture->plan,
                                                    .from = 1,
                                                    .timeout = timeout};
    return bench_stream_client_open(&fixture->bench_stream_client, &settings,
                                    why);
}

/* Blocks of the parameter VECTOR, or all small ones. */
static void blocks_of(const struct fixture *fixture, bool small,
                      uint32_t *first, uint32_t *count) {
    const struct layout *layout = fixture->plan.layout;
    *first = layout->first_block[small ? SMALL : 0];
    *count = small ? SMALL : layout->num_blocks_of[0];
}

static struct bench_iteration run(struct fixture *fixture, bool small,
                                  enum bench_iteration_kind kind,
                                  uint32_t depth, uint64_t times) {
    struct bench_iteration iteration = {.kind = kind,
                                        .depth = depth,
                                        .times = times,
                                        .latencies = fixture->latencies,
                                        .capacity = ROOM};
    uint32_t first, count;
    blocks_of(fixture, small, &first, &count);
    assert_ok(bench_stream_iteration(fixture->bench_stream_client, first, count,
                                     &iteration, &failure));
    assert_int_equal(iteration.vectors, times);
    assert_true(iteration.elapsed > 0);
    return iteration;
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
                    update_core_version(
                        server_update_core(fixture->servers[p].server), b),
                    updates);
        }
}

TEST(only_pushes_count_as_updates) {
    assert_ok(open_stream(fixture, ME, TIMEOUT, &failure));
    assert_string_equal(
        bench_stream_client_transport(fixture->bench_stream_client), "tcp");
    for (uint32_t depth = 1; depth < 20; depth += 6) {
        run(fixture, false, BENCH_ITERATION_PUSH, depth, 5);
        run(fixture, false, BENCH_ITERATION_PULL, depth, 5);
        run(fixture, false, BENCH_ITERATION_PUSH_PULL, depth, 5);
    }
    assert_int_equal(bench_stream_client_clock(fixture->bench_stream_client),
                     40);
    expect_updates(fixture, false, 40);
    expect_updates(fixture, true, 0);
}

TEST(small_vectors_share_a_message_to_each_ps) {
    assert_ok(open_stream(fixture, ME, TIMEOUT, &failure));
    for (int kind = 0; kind < BENCH_ITERATION_KINDS; kind++) {
        struct bench_iteration iteration =
            run(fixture, true, (enum bench_iteration_kind)kind, 3, 7);
        assert_int_equal(iteration.bytes, SMALL * SMALL_FLOATS * sizeof(float));
        assert_int_equal(iteration.messages, 7 * SERVERS);
    }
    expect_updates(fixture, true, 14);
}

TEST(each_sequential_request_has_a_latency) {
    assert_ok(open_stream(fixture, ME, TIMEOUT, &failure));
    struct bench_iteration iteration =
        run(fixture, false, BENCH_ITERATION_PUSH_PULL, 1, 9);
    assert_int_equal(iteration.samples, 9);
    int64_t sum = 0;
    for (int i = 0; i < 9; i++) {
        assert_true(fixture->latencies[i] > 0);
        sum += fixture->latencies[i];
    }
    assert_true(sum <= iteration.elapsed);
    assert_int_equal(
        run(fixture, false, BENCH_ITERATION_PUSH_PULL, 2, 9).samples, 0);
}

TEST(a_ps_that_refuses_is_named_with_its_reason) {
    struct bench_iteration iteration = {.times = 1};
    uint32_t first, count;
    assert_ok(open_stream(fixture, ME + 1, TIMEOUT, &failure));
    blocks_of(fixture, false, &first, &count);
    assert_error(bench_stream_iteration(fixture->bench_stream_client, first,
                                        count, &iteration, &failure),
                 FAILURE_PEER_REFUSED);
    assert_contains(failure.text, "refuses: not in this ps's view");
}

TEST(a_ps_that_does_not_answer_is_named) {
    struct bench_iteration iteration = {.times = 1};
    uint32_t first, count;
    assert_ok(open_stream(fixture, ME, 0.5, &failure));
    atomic_store(&fixture->servers[1].deaf, true);
    blocks_of(fixture, false, &first, &count);
    assert_error(bench_stream_iteration(fixture->bench_stream_client, first,
                                        count, &iteration, &failure),
                 FAILURE_PEER_SILENT);
    assert_contains(failure.text, "ps 1 at 127.0.0.1:");
}

TEST(a_missing_ps_is_named) {
    snprintf(fixture->places[0].address, sizeof fixture->places[0].address,
             "127.0.0.1:1");
    assert_error(open_stream(fixture, ME, 0.3, &failure), FAILURE_PEER_SILENT);
    assert_null(fixture->bench_stream_client);
    assert_contains(failure.text, "ps 0 at 127.0.0.1:1");
}

TEST(a_waiting_client_stops_at_once) {
    atomic_bool stop = true;
    struct bench_iteration iteration = {.times = 1000, .stop = &stop};
    uint32_t first, count;
    assert_ok(open_stream(fixture, ME, TIMEOUT, &failure));
    blocks_of(fixture, false, &first, &count);
    assert_ok(bench_stream_iteration(fixture->bench_stream_client, first, count,
                                     &iteration, &failure));
    assert_int_equal(iteration.vectors, 0);
}
