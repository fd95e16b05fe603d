/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/trainer_fixture.h"

#include "core/base/time.h"
#include "tests/gpu/fake_device.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/test.h"

enum { RUN = 1, PS = 2, ME = 3 };

static char *path_of(const struct trainer_fixture *fixture, const char *name) {
    char *path = NULL;
    assert_true(asprintf(&path, "%s/%s", fixture->folder, name) > 0);
    return path;
}

static char *write_images(const struct trainer_fixture *fixture,
                          const char *name, uint8_t count) {
    char *path = path_of(fixture, name);
    const uint8_t head[] = {0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 2, 0, 0, 0, 2};
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(head, 1, sizeof head, file);
    for (int i = 0; i < count; i++)
        for (int pixel = 0; pixel < 4; pixel++)
            fputc(pixel == i % 2 ? 255 : 20, file);
    fclose(file);
    return path;
}

static char *write_labels(const struct trainer_fixture *fixture,
                          const char *name, uint8_t count) {
    char *path = path_of(fixture, name);
    const uint8_t head[] = {0, 0, 8, 1, 0, 0, 0, count};
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(head, 1, sizeof head, file);
    for (int i = 0; i < count; i++)
        fputc(i % 2, file);
    fclose(file);
    return path;
}

int trainer_fixture_setup(void **state) {
    struct trainer_fixture *fixture = calloc(1, sizeof *fixture);
    void *wire;
    link_fixture_setup(&wire);
    fixture->wire = wire;
    checkpoint_fixture_folder(fixture->folder);
    fixture->steps = TRAINER_STEPS;
    fixture->model.layers = (struct job_widths){3, {4, 8, 2}};
    fixture->job = (struct job){
        .model.settings = &fixture->model,
        .seed = 7,
        .has_steps = true,
        .steps = TRAINER_STEPS,
        .micro_batch = TRAINER_BATCH,
        .steps_per_print = 100,
        .accumulation = 1,
        .schedule.lr = 0.5,
        .device = JOB_DEVICE_CPU,
        .threads = 1,
        .timeouts.step = 60,
    };
    struct job_data *data = &fixture->job.data;
    data->train.paths[0] = write_images(fixture, "train", TRAINER_SAMPLES);
    data->train.paths[1] = write_labels(fixture, "labels", TRAINER_SAMPLES);
    data->test.paths[0] = write_images(fixture, "test", TRAINER_TEST_SAMPLES);
    data->test.paths[1] =
        write_labels(fixture, "test-labels", TRAINER_TEST_SAMPLES);
    *state = fixture;
    return 0;
}

int trainer_fixture_teardown(void **state) {
    struct trainer_fixture *fixture = *state;
    void *wire = fixture->wire;
    trainer_close(&fixture->trainer);
    client_close(&fixture->client);
    server_close(&fixture->server);
    free(fixture->job.data.train.paths[0]);
    free(fixture->job.data.train.paths[1]);
    free(fixture->job.data.test.paths[0]);
    free(fixture->job.data.test.paths[1]);
    checkpoint_fixture_remove(fixture->folder);
    link_fixture_teardown(&wire);
    free(fixture);
    return 0;
}

void trainer_fixture_open(struct trainer_fixture *fixture) {
    struct trainer_settings settings = {.log = &fixture->wire->log,
                                        .job = &fixture->job,
                                        .num_ranks = 1,
                                        .cuda = fake_device_ops()};
    assert_ok(trainer_open(&fixture->trainer, &settings, &failure));
}

void trainer_fixture_run_once(struct trainer_fixture *fixture) {
    struct link_frame frame;
    Capstan__DataHeader *header;
    if (!fixture->client)
        return;
    assert_ok(client_step(fixture->client, time_now(), &failure));
    while (link_view(fixture->wire->server_link, &frame)) {
        assert_ok(message_read_data(&header, &fixture->arena, frame.header.data,
                                    frame.header.size, &failure));
        fixture->pushes += header->kind == CAPSTAN__DATA_HEADER__KIND__PUSH;
        if (server_handle(fixture->server, &frame, header, &failure) ||
            server_drain(fixture->server, &failure))
            fail_msg("%s", failure.text);
    }
}

struct trainer_report trainer_fixture_report(struct trainer_fixture *fixture) {
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    struct trainer_report report;
    while (!trainer_next_report(fixture->trainer, &report)) {
        assert_true(time_now() < deadline);
        trainer_fixture_run_once(fixture);
        zmq_pollitem_t items[4] = {
            {NULL, trainer_descriptor(fixture->trainer), ZMQ_POLLIN, 0},
            {link_socket(fixture->wire->server_link), 0, ZMQ_POLLIN, 0}};
        int count = 2;
        if (fixture->client)
            count += client_poll_items(fixture->client, items + 2, 2);
        zmq_poll(items, count, 20);
    }
    return report;
}

static void no_action(void *context, uint32_t b, uint64_t version) {
    (void)context, (void)b, (void)version;
}

static void open_service(struct trainer_fixture *fixture) {
    const struct layout *layout = trainer_layout(fixture->trainer);
    struct gate_slot slot = {ME, 1, true};
    for (uint32_t b = 0; b < layout->num_blocks; b++)
        fixture->ids[b] = b;
    fixture->plan = (struct plan){
        .layout = (struct layout *)layout,
        .block_ps = fixture->block_ps,
        .num_ps = 1,
        .num_ranks = 1,
        .ps = &fixture->place,
        .run_schedule = {.total = fixture->steps,
                         .accumulation = fixture->job.accumulation,
                         .epoch_batches = TRAINER_SAMPLES / TRAINER_BATCH},
    };
    strcpy(fixture->place.address, fixture->wire->address);
    fixture->place.incarnation = PS;
    fixture->ps_process = (struct process){
        .log = &fixture->wire->log, .run = RUN, .incarnation = PS};
    struct server_settings settings = {.link = fixture->wire->server_link,
                                       .process = &fixture->ps_process,
                                       .job = &fixture->job,
                                       .layout = layout,
                                       .ids = fixture->ids,
                                       .num_blocks = layout->num_blocks,
                                       .num_ranks = 1,
                                       .threads = fixture->threads,
                                       .run_schedule =
                                           fixture->plan.run_schedule,
                                       .snapshot = no_action};
    assert_ok(server_open(&fixture->server, &settings, &failure));
    shard_initialise(server_shard(fixture->server), fixture->job.seed);
    update_core_set_view(server_update_core(fixture->server), 1, &slot);
    assert_ok(server_run_actions(fixture->server, &failure));
}

void trainer_fixture_begin_with(struct trainer_fixture *fixture,
                                bool cancelled) {
    open_service(fixture);
    fixture->process = (struct process){.zmq = fixture->wire->zmq,
                                        .log = &fixture->wire->log,
                                        .run = RUN,
                                        .incarnation = ME};
    struct client_settings settings = {
        .process = &fixture->process,
        .plan = &fixture->plan,
        .wire = fixture->job.wire,
        .step_timeout = 60,
        .scaler = loss_scaler_init(&fixture->job.fp16)};
    assert_ok(trainer_allocate(fixture->trainer, false, &failure));
    trainer_arenas(fixture->trainer, &settings.weights, &settings.gradients,
                   &settings.offsets);
    settings.weight_of = trainer_weights(fixture->trainer);
    assert_ok(client_open(&fixture->client, &settings, &failure));
    struct exchange *exchange = client_exchange(fixture->client);
    if (cancelled)
        exchange->cancel(exchange);
    trainer_begin(fixture->trainer, exchange, &fixture->plan, 1);
}

void trainer_fixture_begin(struct trainer_fixture *fixture) {
    trainer_fixture_begin_with(fixture, false);
}

void trainer_fixture_expect_declaration(struct trainer_fixture *fixture) {
    struct trainer_report report = trainer_fixture_report(fixture);
    assert_int_equal(report.event, TRAINER_DECLARED);
    assert_int_equal(report.train_samples, TRAINER_SAMPLES);
}

struct trainer_report trainer_fixture_train(struct trainer_fixture *fixture) {
    trainer_fixture_open(fixture);
    trainer_fixture_expect_declaration(fixture);
    trainer_fixture_begin(fixture);
    struct trainer_report report;
    do
        report = trainer_fixture_report(fixture);
    while (report.event == TRAINER_EVALUATED);
    return report;
}

struct job_fp16 trainer_fixture_fp16(uint32_t power) {
    return (struct job_fp16){.enabled = true,
                             .initial_scale_power = power,
                             .loss_scale_window = 1000,
                             .hysteresis = 1,
                             .min_loss_scale = 1};
}
