#include "worker/client/client.h"

#include "proto/base/time.h"
#include "proto/math/bf16.h"
#include "proto/math/encoding.h"
#include "tests/seed.h"
#include "tests/service_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { STEP_LIMIT = 60 };

/* A client of rank 0 and, in the same thread, the ps it talks to; a compute
 * thread beside it. Time is the test's own: it runs as the test says. */
struct fixture {
    struct service_fixture *service;
    struct plan plan;
    uint16_t block_ps[SERVICE_BLOCKS];
    struct plan_place place;
    uint64_t offsets[SERVICE_BLOCKS];
    struct buffer *weights, *gradients;
    struct client *client;
    pthread_t compute;
    uint64_t rounds;
    bool empty;
    atomic_bool done;
    bool right; /* the compute thread saw what it had to see */
    int64_t now;
    uint32_t loss; /* one frame in so many is lost, 0: none */
    struct philox_sequence random;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    void *service;
    service_fixture_setup(&service);
    fixture->service = service;
    for (uint32_t b = 0; b < SERVICE_BLOCKS; b++) {
        fixture->service->ids[b] = b;
        fixture->offsets[b] = 16 * b;
    }
    fixture->service->num_mine = SERVICE_BLOCKS;
    fixture->weights = buffer_open(64 * sizeof(float), NULL, NULL);
    fixture->gradients = buffer_open(64 * sizeof(float), NULL, NULL);
    memset(buffer_data(fixture->weights), 0, 64 * sizeof(float));
    memset(buffer_data(fixture->gradients), 0, 64 * sizeof(float));
    fixture->now = time_now();
    fixture->right = true;
    strcpy(fixture->place.address, fixture->service->wire->address);
    fixture->place.incarnation = SERVICE_PS;
    fixture->plan = (struct plan){.layout = fixture->service->layout,
                                  .block_ps = fixture->block_ps,
                                  .num_ps = 1,
                                  .num_ranks = 1,
                                  .ps = &fixture->place};
    *state = fixture;
    return 0;
}

static int setup_bf16(void **state) {
    setup(state);
    struct fixture *fixture = *state;
    fixture->service->job.wire = JOB_BF16;
    return 0;
}

static void open_client(struct fixture *fixture, uint64_t credit) {
    struct client_settings settings = {.zmq = fixture->service->wire->zmq,
                                       .log = &fixture->service->wire->log,
                                       .plan = &fixture->plan,
                                       .run = SERVICE_RUN,
                                       .incarnation = SERVICE_TRAINER,
                                       .weights = fixture->weights,
                                       .gradients = fixture->gradients,
                                       .offsets = fixture->offsets,
                                       .wire = fixture->service->job.wire,
                                       .credit = credit,
                                       .step_timeout = STEP_LIMIT,
                                       .scaler = {.scale = 4096}};
    struct failure why;
    if (client_open(&fixture->client, &settings, &why))
        fail_msg("%s", why.text);
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    void *service = fixture->service;
    client_close(&fixture->client);
    buffer_release(&fixture->weights);
    buffer_release(&fixture->gradients);
    service_fixture_teardown(&service);
    free(fixture);
    return 0;
}

static bool wait_all(struct fixture *fixture) {
    for (uint32_t p = 0; p < SERVICE_BLOCKS; p++)
        if (!client_wait(fixture->client, p))
            return false;
    return true;
}

static void check_weights(struct fixture *fixture, float expected) {
    const struct layout *layout = fixture->service->layout;
    const float *weights = buffer_data(fixture->weights);
    for (uint32_t p = 0; p < SERVICE_BLOCKS; p++)
        for (uint64_t i = 0; i < layout->parameters[p].elements; i++)
            if (weights[fixture->offsets[p] + i] != expected)
                fixture->right = false;
}

/* Round after round a gradient of ones: weights are minus the round. */
static void *train(void *argument) {
    struct fixture *fixture = argument;
    float *gradients = buffer_data(fixture->gradients);
    bool here = true;
    for (uint64_t clock = 1; here && clock <= fixture->rounds; clock++) {
        for (uint32_t p = SERVICE_BLOCKS; p-- > 0;) {
            for (int i = 0; i < 16; i++)
                gradients[fixture->offsets[p] + (uint64_t)i] = 1;
            client_announce(fixture->client, p, 1, clock,
                            fixture->empty ? CONTRIBUTION_EMPTY
                                           : CONTRIBUTION_WHOLE);
        }
        here = wait_all(fixture);
        check_weights(fixture, fixture->empty ? 0 : -(float)clock);
    }
    if (!here || client_global_step(fixture->client) != fixture->rounds)
        fixture->right = false;
    atomic_store(&fixture->done, true);
    return NULL;
}

static bool is_lost(struct fixture *fixture) {
    return fixture->loss && !philox_below(&fixture->random, fixture->loss);
}

/* The ps handles what has come, or loses it. */
static void serve(struct fixture *fixture) {
    struct link_frame frame;
    Capstan__DataHeader *header;
    struct failure why;
    while (link_view(fixture->service->wire->server, &frame)) {
        if (is_lost(fixture)) {
            link_release(&frame);
            continue;
        }
        if (message_read_data(&header, &fixture->service->arena,
                              frame.header.data, frame.header.size, &why) ||
            service_handle(fixture->service->service, &frame, header, &why))
            fail_msg("%s", why.text);
    }
}

/* Waits for what comes, at most 5 ms, which are 300 ms more for the client when
 * messages are lost. */
static void wait_a_little(struct fixture *fixture) {
    zmq_pollitem_t items[3];
    int count = client_poll_items(fixture->client, items, 2);
    items[count++] = (zmq_pollitem_t){
        link_socket(fixture->service->wire->server), 0, ZMQ_POLLIN, 0};
    int64_t before = time_now();
    int ready = zmq_poll(items, count, 5);
    fixture->now += time_now() - before;
    if (!ready && fixture->loss)
        fixture->now += 300 * TIME_MS;
}

static void run_until_done(struct fixture *fixture) {
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    struct failure why;
    while (!atomic_load(&fixture->done)) {
        assert_true(time_now() < deadline);
        if (client_step(fixture->client, fixture->now, &why))
            fail_msg("%s", why.text);
        serve(fixture);
        wait_a_little(fixture);
    }
    pthread_join(fixture->compute, NULL);
    assert_true(fixture->right);
}

static void start(struct fixture *fixture, void *(*work)(void *)) {
    pthread_create(&fixture->compute, NULL, work, fixture);
}

static void each_wait_brings_the_rounds_weights(void **state) {
    struct fixture *fixture = *state;
    service_fixture_open(fixture->service, 1);
    open_client(fixture, 0);
    fixture->rounds = 200;
    start(fixture, train);
    run_until_done(fixture);
    assert_true(client_waited(fixture->client) > 0);
}

static void the_least_credit_is_enough(void **state) {
    struct fixture *fixture = *state;
    service_fixture_open(fixture->service, 1);
    open_client(fixture, 1);
    fixture->rounds = 20;
    start(fixture, train);
    run_until_done(fixture);
}

static void contributions_without_bytes_are_answered(void **state) {
    struct fixture *fixture = *state;
    service_fixture_open(fixture->service, 1);
    open_client(fixture, 0);
    fixture->rounds = 5;
    fixture->empty = true;
    start(fixture, train);
    run_until_done(fixture);
}

static void sums_are_exact_whatever_is_lost(void **state) {
    struct fixture *fixture = *state;
    service_fixture_open(fixture->service, 1);
    open_client(fixture, 100);
    seed_open(&fixture->random);
    fixture->rounds = 40;
    fixture->loss = 4;
    start(fixture, train);
    run_until_done(fixture);
}

static void *pull(void *argument) {
    struct fixture *fixture = argument;
    for (int i = 0; i < 3; i++) {
        client_pull(fixture->client, 0, 0);
        if (!wait_all(fixture))
            fixture->right = false;
        check_weights(fixture, 7);
    }
    atomic_store(&fixture->done, true);
    return NULL;
}

static void all_can_be_read_without_a_push(void **state) {
    struct fixture *fixture = *state;
    float sevens[16];
    for (int i = 0; i < 16; i++)
        sevens[i] = 7;
    service_fixture_open(fixture->service, 1);
    for (uint32_t b = 0; b < SERVICE_BLOCKS; b++)
        shard_assign(service_shard(fixture->service->service), b, sevens);
    open_client(fixture, 0);
    fixture->loss = 3;
    seed_open(&fixture->random);
    start(fixture, pull);
    run_until_done(fixture);
}

/* The client's next request as it comes to the ps. */
static void view_request(struct fixture *fixture, struct link_frame *frame) {
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    struct failure why;
    while (!link_view(fixture->service->wire->server, frame)) {
        assert_true(time_now() < deadline);
        assert_int_equal(client_step(fixture->client, fixture->now, &why), 0);
        wait_a_little(fixture);
    }
}

static void what_is_announced_together_leaves_together(void **state) {
    struct fixture *fixture = *state;
    float *gradients = buffer_data(fixture->gradients);
    struct link_frame frame;
    Capstan__DataHeader *header;
    struct failure why;
    service_fixture_open(fixture->service, 1);
    open_client(fixture, 0);
    for (int i = 0; i < 64; i++)
        gradients[i] = (float)i;
    client_announce(fixture->client, 1, 2, 1, CONTRIBUTION_WHOLE);
    view_request(fixture, &frame);
    assert_int_equal(message_read_data(&header, &fixture->service->arena,
                                       frame.header.data, frame.header.size,
                                       &why),
                     STATUS_OK);
    assert_int_equal(header->n_blocks, 2);
    const struct layout *layout = fixture->service->layout;
    uint64_t upper = layout->parameters[2].elements;
    uint64_t lower = layout->parameters[1].elements;
    assert_int_equal(frame.payload.size, (upper + lower) * sizeof(float));
    const float *floats = frame.payload.data;
    assert_memory_equal(floats, gradients + fixture->offsets[2],
                        upper * sizeof(float));
    assert_memory_equal(floats + upper, gradients + fixture->offsets[1],
                        lower * sizeof(float));
    link_release(&frame);
}

/* The ps's side of a link whose client waits for weights; returns the peer. */
static uint32_t await_request(struct fixture *fixture) {
    struct link_frame frame;
    view_request(fixture, &frame);
    uint32_t peer = frame.peer;
    link_release(&frame);
    return peer;
}

/* BYTES of weights are all FILL, a byte. */
static void answer(struct fixture *fixture, uint32_t peer,
                   Capstan__DataHeader *header, size_t bytes, int fill) {
    static unsigned char space[MESSAGE_MAX_HEADER];
    struct link_payload payload;
    assert_true(
        link_reserve(fixture->service->wire->server, peer, &payload, bytes));
    if (bytes)
        memset(link_reserved(&payload), fill, bytes);
    size_t size = message_write_data(header, space);
    assert_true(link_commit(fixture->service->wire->server, peer, space, size,
                            &payload));
}

static void answers_that_are_not_sound_are_left(void **state) {
    struct fixture *fixture = *state;
    enum { SOUND = 0x40, WRONG = 0x11 };
    struct failure why;
    uint32_t first = 0, beyond[] = {0, 99}, twice[] = {0, 0};
    service_fixture_open(fixture->service, 1);
    open_client(fixture, 0);
    client_pull(fixture->client, 0, 0);
    uint32_t peer = await_request(fixture);
    enum job_wire wire = fixture->service->job.wire;
    enum job_wire other = wire == JOB_BF16 ? JOB_FLOAT32 : JOB_BF16;
    size_t floats = fixture->service->elements[0];
    size_t bytes = encoding_bytes(wire, floats);
    Capstan__DataHeader sound = CAPSTAN__DATA_HEADER__INIT, wrong;
    sound.kind = CAPSTAN__DATA_HEADER__KIND__WEIGHTS;
    sound.run = SERVICE_RUN;
    sound.incarnation = SERVICE_PS;
    sound.n_blocks = 1;
    sound.blocks = &first;
    sound.encoding = encoding_name(wire);
    wrong = sound;
    wrong.encoding = encoding_name(other);
    answer(fixture, peer, &wrong, bytes, WRONG);
    answer(fixture, peer, &wrong, encoding_bytes(other, floats), WRONG);
    wrong = sound;
    wrong.run++;
    answer(fixture, peer, &wrong, bytes, WRONG);
    wrong = sound;
    wrong.incarnation++;
    answer(fixture, peer, &wrong, bytes, WRONG);
    answer(fixture, peer, &sound, bytes - 1, WRONG);
    answer(fixture, peer, &sound, 0, WRONG);
    wrong = sound;
    wrong.blocks = beyond;
    wrong.n_blocks = 2;
    answer(fixture, peer, &wrong, bytes, WRONG);
    wrong = sound;
    wrong.clock = 5;
    answer(fixture, peer, &wrong, bytes, WRONG);
    wrong = sound;
    wrong.snapshot = 5;
    answer(fixture, peer, &wrong, bytes, WRONG);
    wrong = sound;
    wrong.kind = CAPSTAN__DATA_HEADER__KIND__CALL;
    answer(fixture, peer, &wrong, 0, WRONG);
    wrong.kind = CAPSTAN__DATA_HEADER__KIND__REFUSED;
    wrong.text = "refused for a test";
    wire_fixture_listen(fixture->service->wire);
    answer(fixture, peer, &wrong, 0, WRONG);
    answer(fixture, peer, &wrong, 0, WRONG);
    assert_true(
        link_commit(fixture->service->wire->server, peer, "\377", 1, NULL));
    sound.step = 41;
    sound.blocks = twice;
    sound.n_blocks = 2;
    answer(fixture, peer, &sound, 2 * bytes, SOUND);
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    while (client_global_step(fixture->client) != 41) {
        assert_true(time_now() < deadline);
        const float *weights = buffer_data(fixture->weights);
        for (int i = 0; i < 64; i++)
            assert_true(weights[i] == 0);
        assert_int_equal(client_step(fixture->client, fixture->now, &why), 0);
        wait_a_little(fixture);
    }
    static const float zero;
    float expected;
    char same[sizeof expected];
    memset(same, SOUND, sizeof same);
    encoding_read(NULL, wire, same, 1, &expected);
    const float *weights = buffer_data(fixture->weights);
    for (uint32_t i = 0; i < 64; i++) {
        bool mine = i >= fixture->offsets[3] &&
                    i < fixture->offsets[3] + fixture->service->elements[0];
        assert_memory_equal(&weights[i], mine ? &expected : &zero, sizeof zero);
    }
    const char *said = wire_fixture_said(fixture->service->wire);
    const char *refused = strstr(said, "refused for a test");
    assert_non_null(refused);
    assert_null(strstr(refused + 1, "refused for a test")); /* said once */
}

/* The ps gets gradients to the nearest bf16, and so come its weights back. */
static void *push_once(void *argument) {
    struct fixture *fixture = argument;
    float *gradients = buffer_data(fixture->gradients);
    const float *weights = buffer_data(fixture->weights);
    for (int i = 0; i < 64; i++)
        gradients[i] = 1 + (float)i * 0x1p-12f;
    for (uint32_t p = 0; p < SERVICE_BLOCKS; p++)
        client_announce(fixture->client, p, 1, 1, CONTRIBUTION_WHOLE);
    fixture->right = wait_all(fixture);
    for (uint32_t b = 0; b < SERVICE_BLOCKS; b++) {
        uint64_t at =
            fixture->offsets[fixture->service->layout->blocks[b].parameter];
        for (uint32_t i = 0; i < fixture->service->elements[b]; i++, at++) {
            float came = bf16_to_float(bf16_from_float(gradients[at]));
            float held = 0 - 0.37f * came;
            float seen = bf16_to_float(bf16_from_float(held));
            fixture->right &= weights[at] == seen && seen != held;
            fixture->right &=
                service_fixture_weight(fixture->service, b, i) == held;
        }
    }
    atomic_store(&fixture->done, true);
    return NULL;
}

static void bf16_rounds_gradients_and_weights_once_each(void **state) {
    struct fixture *fixture = *state;
    fixture->service->job.schedule.lr = 0.37;
    service_fixture_open(fixture->service, 1);
    open_client(fixture, 0);
    start(fixture, push_once);
    run_until_done(fixture);
}

static void *pull_snapshot(void *argument) {
    struct fixture *fixture = argument;
    client_pull(fixture->client, 0, 5);
    fixture->right = wait_all(fixture);
    check_weights(fixture, 1 + 0x1p-20f);
    client_pull(fixture->client, 0, 0);
    fixture->right &= wait_all(fixture);
    check_weights(fixture, 1);
    atomic_store(&fixture->done, true);
    return NULL;
}

static void a_snapshot_is_read_as_the_ps_holds_it(void **state) {
    struct fixture *fixture = *state;
    struct service_fixture *service = fixture->service;
    struct snapshots *snapshots;
    struct failure why;
    float exact[16];
    for (int i = 0; i < 16; i++)
        exact[i] = 1 + 0x1p-20f;
    service_fixture_open(service, 1);
    struct shard *shard = service_shard(service->service);
    assert_int_equal(snapshots_open(&snapshots, shard,
                                    service_exchange(service->service), &why),
                     STATUS_OK);
    service_snapshots(service->service, snapshots);
    struct snapshot *snapshot = snapshots_begin(snapshots, 5);
    snapshot_keep(snapshot);
    for (uint32_t b = 0; b < SERVICE_BLOCKS; b++) {
        shard_assign(shard, b, exact);
        snapshot_add(snapshot, b, 0);
    }
    open_client(fixture, 0);
    start(fixture, pull_snapshot);
    run_until_done(fixture);
    service_snapshots(service->service, NULL);
    snapshots_close(&snapshots);
}

/* The answer of a block that is not the plan's first tells nothing. */
static void a_void_push_tells_the_scale_and_its_answer_the_next(void **state) {
    struct fixture *fixture = *state;
    struct link_frame frame;
    struct failure why;
    open_client(fixture, 0);
    client_announce(fixture->client, 0, SERVICE_BLOCKS, 1, CONTRIBUTION_VOID);
    view_request(fixture, &frame);
    Capstan__DataHeader *header;
    assert_int_equal(message_read_data(&header, &fixture->service->arena,
                                       frame.header.data, frame.header.size,
                                       &why),
                     STATUS_OK);
    assert_int_equal(header->kind, CAPSTAN__DATA_HEADER__KIND__PUSH);
    assert_int_equal(header->encoding, CAPSTAN__DATA_HEADER__ENCODING__VOID);
    assert_int_equal(header->n_blocks, SERVICE_BLOCKS);
    assert_true(header->loss_scale == 4096);
    assert_int_equal(frame.payload.size, 0);
    uint32_t peer = frame.peer;
    link_release(&frame);
    for (uint32_t b = 2; b-- > 0;) {
        Capstan__DataHeader weights = CAPSTAN__DATA_HEADER__INIT;
        weights.kind = CAPSTAN__DATA_HEADER__KIND__WEIGHTS;
        weights.run = SERVICE_RUN;
        weights.incarnation = SERVICE_PS;
        weights.clock = 1;
        weights.step = 2 - b;
        weights.n_blocks = 1;
        weights.blocks = &b;
        weights.loss_scale = 1024 + b;
        weights.skipped = 7 + b;
        answer(fixture, peer, &weights,
               fixture->service->elements[b] * sizeof(float), 0);
        int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
        while (client_global_step(fixture->client) != 2 - b) {
            assert_true(time_now() < deadline);
            assert_int_equal(client_step(fixture->client, time_now(), &why),
                             STATUS_OK);
        }
        struct loss_scaler scaler = client_scaler(fixture->client);
        assert_true(scaler.scale == (b ? 4096 : 1024));
        assert_int_equal(scaler.skipped, b ? 0 : 7);
    }
}

static void a_silent_ps_is_named_at_the_step_timeout(void **state) {
    struct fixture *fixture = *state;
    struct failure why;
    service_fixture_open(fixture->service, 1);
    open_client(fixture, 0);
    assert_true(client_silent(fixture->client).until == TIME_NEVER);
    client_pull(fixture->client, 0, 0);
    await_request(fixture);
    struct wait wait = client_silent(fixture->client);
    int64_t since = wait.since;
    assert_non_null(strstr(wait.peer, "ps 0 at 127.0.0.1:"));
    assert_true(wait.until == since + STEP_LIMIT * TIME_S);
    assert_int_equal(
        client_step(fixture->client, since + (STEP_LIMIT - 1) * TIME_S, &why),
        STATUS_OK);
    assert_int_equal(
        client_step(fixture->client, since + STEP_LIMIT * TIME_S, &why),
        STATUS_RETRY);
    assert_non_null(strstr(why.text, "ps 0 at 127.0.0.1"));
    assert_non_null(strstr(why.text, "timeouts.step"));
    assert_non_null(strstr(why.text, "set it to 120"));
}

static void a_ps_that_cannot_be_reached_is_named_too(void **state) {
    struct fixture *fixture = *state;
    struct failure why;
    strcpy(fixture->place.address, "127.0.0.1:1");
    service_fixture_open(fixture->service, 1);
    open_client(fixture, 0);
    client_announce(fixture->client, 0, 1, 1, CONTRIBUTION_WHOLE);
    assert_int_equal(client_step(fixture->client, fixture->now, &why), 0);
    assert_true(client_deadline(fixture->client) < time_now() + TIME_S);
    assert_int_equal(
        client_step(fixture->client, fixture->now + STEP_LIMIT * TIME_S, &why),
        STATUS_RETRY);
    assert_non_null(strstr(why.text, "ps 0 at 127.0.0.1:1"));
}

static void *wait_in_vain(void *argument) {
    struct fixture *fixture = argument;
    client_announce(fixture->client, 2, 1, 1, CONTRIBUTION_WHOLE);
    fixture->right = !client_wait(fixture->client, 2);
    atomic_store(&fixture->done, true);
    return NULL;
}

static void a_cancelled_wait_ends(void **state) {
    struct fixture *fixture = *state;
    open_client(fixture, 0);
    start(fixture, wait_in_vain);
    client_cancel(fixture->client);
    pthread_join(fixture->compute, NULL);
    assert_true(fixture->right);
}

static void with_nothing_wanted_nothing_is_due(void **state) {
    struct fixture *fixture = *state;
    struct failure why;
    service_fixture_open(fixture->service, 1);
    open_client(fixture, 0);
    assert_int_equal(client_deadline(fixture->client), TIME_NEVER);
    assert_int_equal(client_step(fixture->client, fixture->now, &why), 0);
    assert_int_equal(client_deadline(fixture->client), TIME_NEVER);
}

#define CLIENT_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

#define BF16_TEST(f)                                                           \
    { #f ", bf16", f, setup_bf16, teardown, NULL }

int main(void) {
    const struct CMUnitTest tests[] = {
        BF16_TEST(each_wait_brings_the_rounds_weights),
        BF16_TEST(the_least_credit_is_enough),
        BF16_TEST(contributions_without_bytes_are_answered),
        BF16_TEST(sums_are_exact_whatever_is_lost),
        BF16_TEST(all_can_be_read_without_a_push),
        BF16_TEST(answers_that_are_not_sound_are_left),
        BF16_TEST(bf16_rounds_gradients_and_weights_once_each),
        BF16_TEST(a_snapshot_is_read_as_the_ps_holds_it),
        CLIENT_TEST(each_wait_brings_the_rounds_weights),
        CLIENT_TEST(the_least_credit_is_enough),
        CLIENT_TEST(contributions_without_bytes_are_answered),
        CLIENT_TEST(sums_are_exact_whatever_is_lost),
        CLIENT_TEST(all_can_be_read_without_a_push),
        CLIENT_TEST(what_is_announced_together_leaves_together),
        CLIENT_TEST(answers_that_are_not_sound_are_left),
        CLIENT_TEST(a_void_push_tells_the_scale_and_its_answer_the_next),
        CLIENT_TEST(a_silent_ps_is_named_at_the_step_timeout),
        CLIENT_TEST(a_ps_that_cannot_be_reached_is_named_too),
        CLIENT_TEST(a_cancelled_wait_ends),
        CLIENT_TEST(with_nothing_wanted_nothing_is_due),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
