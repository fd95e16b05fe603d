/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/client_fixture.h"

#include "core/base/time.h"
#include "tests/lib/test.h"

int client_fixture_setup(void **state) {
    struct client_fixture *fixture = calloc(1, sizeof *fixture);
    void *server;
    server_fixture_setup(&server);
    fixture->server = server;
    for (uint32_t b = 0; b < SERVER_FIXTURE_BLOCKS; b++) {
        fixture->server->ids[b] = b;
        fixture->offsets[b] = 16 * b;
    }
    fixture->server->num_mine = SERVER_FIXTURE_BLOCKS;
    fixture->weights = buffer_open(64 * sizeof(float), NULL, NULL);
    fixture->gradients = buffer_open(64 * sizeof(float), NULL, NULL);
    memset(buffer_data(fixture->weights), 0, 64 * sizeof(float));
    for (uint32_t b = 0; b < SERVER_FIXTURE_BLOCKS; b++)
        fixture->weight_of[b] =
            (float *)buffer_data(fixture->weights) + fixture->offsets[b];
    memset(buffer_data(fixture->gradients), 0, 64 * sizeof(float));
    fixture->now = time_now();
    fixture->passed = true;
    strcpy(fixture->place.address, fixture->server->wire->address);
    fixture->place.incarnation = SERVER_FIXTURE_PS;
    fixture->plan = (struct plan){.layout = fixture->server->layout,
                                  .block_ps = fixture->block_ps,
                                  .num_ps = 1,
                                  .num_ranks = 1,
                                  .ps = &fixture->place};
    *state = fixture;
    return 0;
}

int client_fixture_setup_bf16(void **state) {
    client_fixture_setup(state);
    struct client_fixture *fixture = *state;
    fixture->server->job.wire = JOB_WIRE_BF16;
    return 0;
}

void client_fixture_open(struct client_fixture *fixture, uint64_t credit) {
    fixture->process = (struct process){.zmq = fixture->server->wire->zmq,
                                        .log = &fixture->server->wire->log,
                                        .shm = fixture->place.shm_key,
                                        .run = SERVER_FIXTURE_RUN,
                                        .incarnation = SERVER_FIXTURE_TRAINER};
    struct client_settings settings = {.process = &fixture->process,
                                       .plan = &fixture->plan,
                                       .weights = fixture->weights,
                                       .weight_of = fixture->weight_of,
                                       .gradients = fixture->gradients,
                                       .offsets = fixture->offsets,
                                       .wire = fixture->server->job.wire,
                                       .credit = credit,
                                       .step_timeout = CLIENT_STEP_TIMEOUT,
                                       .scaler = {.scale = 4096}};
    assert_ok(client_open(&fixture->client, &settings, &failure));
    fixture->exchange = client_exchange(fixture->client);
}

int client_fixture_teardown(void **state) {
    struct client_fixture *fixture = *state;
    void *server = fixture->server;
    client_close(&fixture->client);
    buffer_release(&fixture->weights);
    buffer_release(&fixture->gradients);
    server_fixture_teardown(&server);
    free(fixture);
    return 0;
}

bool client_fixture_await_weights(struct client_fixture *fixture) {
    for (uint32_t p = 0; p < SERVER_FIXTURE_BLOCKS; p++)
        if (!fixture->exchange->wait(fixture->exchange, p, TIME_NEVER))
            return false;
    return true;
}

void client_fixture_check_weights(struct client_fixture *fixture,
                                  float expected) {
    const struct layout *layout = fixture->server->layout;
    const float *weights = buffer_data(fixture->weights);
    for (uint32_t p = 0; p < SERVER_FIXTURE_BLOCKS; p++)
        for (uint64_t i = 0; i < layout->parameters[p].elements; i++)
            if (weights[fixture->offsets[p] + i] != expected)
                fixture->passed = false;
}

static bool is_lost(struct client_fixture *fixture) {
    return fixture->loss && !philox_below(&fixture->random, fixture->loss);
}

/* The ps handles what has come, or loses it. */
static void serve(struct client_fixture *fixture) {
    struct link_frame frame;
    Capstan__DataHeader *header;
    while (link_view(fixture->server->wire->server_link, &frame)) {
        if (is_lost(fixture)) {
            link_release(&frame);
            continue;
        }
        if (message_read_data(&header, &fixture->server->arena,
                              frame.header.data, frame.header.size, &failure) ||
            server_handle(fixture->server->server, &frame, header, &failure))
            fail_msg("%s", failure.text);
    }
}

bool client_fixture_poll(struct client_fixture *fixture) {
    zmq_pollitem_t items[1 + 2 * LINK_POLL_ITEMS];
    int count = client_poll_items(fixture->client, items, 1 + LINK_POLL_ITEMS);
    count += link_poll_items(fixture->server->wire->server_link, items + count);
    fixture->now += TIME_MS;
    return zmq_poll(items, count, 5) > 0;
}

Capstan__DataHeader *client_fixture_view_request(struct client_fixture *fixture,
                                                 struct link_frame *frame) {
    struct server_fixture *server = fixture->server;
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    Capstan__DataHeader *header;
    for (;;) {
        while (!link_view(server->wire->server_link, frame)) {
            assert_true(time_now() < deadline);
            assert_ok(client_step(fixture->client, fixture->now, &failure));
            client_fixture_poll(fixture);
        }
        assert_ok(message_read_data(&header, &server->arena, frame->header.data,
                                    frame->header.size, &failure));
        if (header->kind != CAPSTAN__DATA_HEADER__KIND__PROBE)
            return header;
        ps_links_answer_probe(server->wire->server_link, &server->process,
                              false, frame, header);
        link_release(frame);
    }
}

void client_fixture_run(struct client_fixture *fixture) {
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    while (!atomic_load(&fixture->done)) {
        assert_true(time_now() < deadline);
        assert_ok(client_step(fixture->client, fixture->now, &failure));
        serve(fixture);
        int64_t before = time_now(), now = fixture->now;
        bool ready = client_fixture_poll(fixture);
        fixture->now = now + time_now() - before;
        if (!ready && fixture->loss)
            fixture->now += 300 * TIME_MS;
    }
    pthread_join(fixture->compute, NULL);
    assert_true(fixture->passed);
}

void client_fixture_start(struct client_fixture *fixture,
                          void *(*work)(void *)) {
    pthread_create(&fixture->compute, NULL, work, fixture);
}
