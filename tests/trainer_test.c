#include "worker/trainer.h"

#include "proto/base/time.h"
#include "proto/math/encoding.h"
#include "ps/service.h"
#include "tests/allocations.h"
#include "tests/checkpoint_fixture.h"
#include "tests/fake_device.h"
#include "tests/wire_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 12, TESTS = 5, STEPS = 8, BATCH = 3, RUN = 1, PS = 2, ME = 3 };

/* One trainer on twelve images of 2 x 2 and, in the test's thread, the ps. */
struct fixture {
    struct wire_fixture *wire;
    struct job job;
    uint64_t steps;
    struct trainer *trainer;
    char folder[PATH_MAX];
    struct plan plan;
    struct plan_place place;
    uint16_t block_ps[16];
    uint32_t ids[16];
    struct service *service;
    struct client *client;
    struct message_arena arena;
    unsigned pushes;  /* messages */
    uint32_t threads; /* of the ps */
    struct trainer_report reports[8];
    unsigned num_reports;
};

static char *path_of(const struct fixture *fixture, const char *name) {
    char *path = NULL;
    assert_true(asprintf(&path, "%s/%s", fixture->folder, name) > 0);
    return path;
}

static char *write_images(const struct fixture *fixture, const char *name,
                          uint8_t count) {
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

static char *write_labels(const struct fixture *fixture, const char *name,
                          uint8_t count) {
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

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    void *wire;
    wire_fixture_setup(&wire);
    fixture->wire = wire;
    checkpoint_fixture_folder(fixture->folder);
    fixture->steps = STEPS;
    fixture->job = (struct job){
        .model = {.num_layers = 3, .layers = {4, 8, 2}},
        .seed = 7,
        .has_steps = true,
        .steps = STEPS,
        .micro_batch = BATCH,
        .accumulation = 1,
        .schedule.lr = 0.5,
        .device = JOB_DEVICE_CPU,
        .threads = 1,
        .timeouts.step = 60,
    };
    struct job_data *data = &fixture->job.data;
    data->train_images = write_images(fixture, "train", SAMPLES);
    data->train_labels = write_labels(fixture, "labels", SAMPLES);
    data->test_images = write_images(fixture, "test", TESTS);
    data->test_labels = write_labels(fixture, "test-labels", TESTS);
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    void *wire = fixture->wire;
    trainer_close(&fixture->trainer);
    client_close(&fixture->client);
    service_close(&fixture->service);
    free(fixture->job.data.train_images);
    free(fixture->job.data.train_labels);
    free(fixture->job.data.test_images);
    free(fixture->job.data.test_labels);
    checkpoint_fixture_remove(fixture->folder);
    wire_fixture_teardown(&wire);
    free(fixture);
    return 0;
}

static void open_trainer(struct fixture *fixture) {
    struct trainer_settings settings = {.log = &fixture->wire->log,
                                        .job = &fixture->job,
                                        .num_ranks = 1,
                                        .cuda = fake_device_ops()};
    struct failure why;
    if (trainer_open(&fixture->trainer, &settings, &why))
        fail_msg("%s", why.text);
}

/* The ps and the communication thread do what there is to do. */
static void turn(struct fixture *fixture) {
    struct link_frame frame;
    Capstan__DataHeader *header;
    struct failure why;
    if (!fixture->client)
        return;
    if (client_step(fixture->client, time_now(), &why))
        fail_msg("%s", why.text);
    while (link_view(fixture->wire->server, &frame)) {
        if (message_read_data(&header, &fixture->arena, frame.header.data,
                              frame.header.size, &why))
            fail_msg("%s", why.text);
        fixture->pushes += header->kind == CAPSTAN__DATA_HEADER__KIND__PUSH;
        if (service_handle(fixture->service, &frame, header, &why) ||
            service_finish(fixture->service, &why))
            fail_msg("%s", why.text);
    }
}

/* Goes on until the next report. */
static struct trainer_report await_report(struct fixture *fixture) {
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    struct trainer_report report;
    while (!trainer_reports(fixture->trainer, &report)) {
        assert_true(time_now() < deadline);
        turn(fixture);
        zmq_pollitem_t items[4] = {
            {NULL, trainer_descriptor(fixture->trainer), ZMQ_POLLIN, 0},
            {link_socket(fixture->wire->server), 0, ZMQ_POLLIN, 0}};
        int count = 2;
        if (fixture->client)
            count += client_poll_items(fixture->client, items + 2, 2);
        zmq_poll(items, count, 20);
    }
    return report;
}

static void no_action(void *context, uint32_t b, uint64_t version) {
    (void)context;
    (void)b;
    (void)version;
}

static void open_service(struct fixture *fixture) {
    const struct layout *layout = trainer_layout(fixture->trainer);
    struct gate_slot slot = {ME, 1, true};
    struct failure why;
    for (uint32_t b = 0; b < layout->num_blocks; b++)
        fixture->ids[b] = b;
    fixture->plan = (struct plan){
        .layout = (struct layout *)layout,
        .block_ps = fixture->block_ps,
        .num_ps = 1,
        .num_ranks = 1,
        .ps = &fixture->place,
        .rounds = {.total = fixture->steps,
                   .accumulation = fixture->job.accumulation,
                   .epoch_batches = SAMPLES / BATCH},
    };
    strcpy(fixture->place.address, fixture->wire->address);
    fixture->place.incarnation = PS;
    struct service_settings settings = {.link = fixture->wire->server,
                                        .log = &fixture->wire->log,
                                        .run = RUN,
                                        .incarnation = PS,
                                        .job = &fixture->job,
                                        .layout = layout,
                                        .ids = fixture->ids,
                                        .num_blocks = layout->num_blocks,
                                        .num_ranks = 1,
                                        .threads = fixture->threads,
                                        .rounds = fixture->plan.rounds,
                                        .snapshot = no_action};
    if (service_open(&fixture->service, &settings, &why))
        fail_msg("%s", why.text);
    shard_initialise(service_shard(fixture->service), fixture->job.seed);
    exchange_view(service_exchange(fixture->service), 1, &slot);
    assert_int_equal(service_settle(fixture->service, &why), STATUS_OK);
}

static void begin_with(struct fixture *fixture, bool cancelled) {
    struct failure why;
    open_service(fixture);
    struct client_settings settings = {
        .zmq = fixture->wire->zmq,
        .log = &fixture->wire->log,
        .plan = &fixture->plan,
        .run = RUN,
        .incarnation = ME,
        .wire = fixture->job.wire,
        .step_timeout = 60,
        .scaler = loss_scaler_first(&fixture->job.fp16)};
    assert_int_equal(trainer_allocate(fixture->trainer, false, &why),
                     STATUS_OK);
    trainer_arenas(fixture->trainer, &settings.weights, &settings.gradients,
                   &settings.offsets);
    if (client_open(&fixture->client, &settings, &why))
        fail_msg("%s", why.text);
    if (cancelled)
        client_cancel(fixture->client);
    trainer_begin(fixture->trainer, partner_client(fixture->client),
                  &fixture->plan, 1);
}

static void begin(struct fixture *fixture) {
    begin_with(fixture, false);
}

static void expect_declaration(struct fixture *fixture) {
    struct trainer_report report = await_report(fixture);
    assert_int_equal(report.event, TRAINER_DECLARES);
    assert_int_equal(report.train_samples, SAMPLES);
}

static void a_run_is_trained_and_evaluated_at_each_epoch(void **state) {
    struct fixture *fixture = *state;
    open_trainer(fixture);
    expect_declaration(fixture);
    begin(fixture);
    double first = 0;
    for (uint64_t step = 4; step <= STEPS; step += 4) {
        struct trainer_report report = await_report(fixture);
        assert_int_equal(report.event, TRAINER_EVALUATED);
        assert_int_equal(report.id, 0);
        assert_int_equal(report.step, step);
        assert_int_equal(report.count, TESTS);
        assert_true(isfinite(report.loss_sum));
        if (step > 4)
            assert_true(report.loss_sum < first);
        first = report.loss_sum;
    }
    struct trainer_report report = await_report(fixture);
    assert_int_equal(report.event, TRAINER_LEFT);
    assert_int_equal(report.clock, STEPS);
    struct trainer_progress progress;
    trainer_progress(fixture->trainer, &progress);
    assert_int_equal(progress.clock, STEPS);
    assert_int_equal(progress.samples, STEPS * BATCH);
    assert_int_equal(exchange_version(service_exchange(fixture->service), 0),
                     STEPS);
}

static void the_trainers_weights_are_those_of_the_ps(void **state) {
    struct fixture *fixture = *state;
    fixture->job.accumulation = 2;
    open_trainer(fixture);
    expect_declaration(fixture);
    begin(fixture);
    while (await_report(fixture).event != TRAINER_LEFT)
        ;
    struct buffer *weights, *gradients;
    const uint64_t *offsets;
    trainer_arenas(fixture->trainer, &weights, &gradients, &offsets);
    const struct layout *layout = trainer_layout(fixture->trainer);
    for (uint32_t b = 0; b < layout->num_blocks; b++) {
        const struct block *block = &layout->blocks[b];
        struct shard *shard = service_shard(fixture->service);
        assert_memory_equal((float *)buffer_data(weights) +
                                offsets[block->parameter] + block->offset,
                            buffer_data(shard_tensor(shard, b, 0)),
                            shard_block_bytes(shard, b));
    }
}

static void small_gradients_leave_together(void **state) {
    struct fixture *fixture = *state;
    open_trainer(fixture);
    expect_declaration(fixture);
    begin(fixture);
    while (await_report(fixture).event != TRAINER_LEFT)
        ;
    assert_int_equal(fixture->pushes, STEPS);
}

/* It computes with the same numbers whether it made the first weights or has
 * read them: what a resumed run does. */
static void first_weights_are_as_a_reader_gets_them(void **state) {
    struct fixture *fixture = *state;
    fixture->job.wire = JOB_BF16;
    fixture->steps = 0;
    open_trainer(fixture);
    expect_declaration(fixture);
    begin(fixture);
    while (await_report(fixture).event != TRAINER_LEFT)
        ;
    struct buffer *weights, *gradients;
    const uint64_t *offsets;
    trainer_arenas(fixture->trainer, &weights, &gradients, &offsets);
    const struct layout *layout = trainer_layout(fixture->trainer);
    for (uint32_t b = 0; b < layout->num_blocks; b++) {
        const struct block *block = &layout->blocks[b];
        float first[64];
        layout_init_block(layout, b, fixture->job.seed, first);
        encoding_round(JOB_BF16, first, block->elements);
        assert_memory_equal((float *)buffer_data(weights) +
                                offsets[block->parameter] + block->offset,
                            first, block->elements * sizeof *first);
    }
}

/* Worker and ps from the tenth step to the last, asynchronous, as nothing but
 * steps is done there. */
static void a_step_allocates_nothing(void **state) {
    struct fixture *fixture = *state;
    enum { WARM = 10, LAST = 200 };
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    struct trainer_progress progress = {0};
    struct trainer_report report;
    fixture->job.staleness = JOB_STALENESS_INF;
    fixture->steps = LAST;
    open_trainer(fixture);
    expect_declaration(fixture);
    begin(fixture);
    for (; progress.clock < WARM; assert_true(time_now() < deadline)) {
        turn(fixture);
        trainer_progress(fixture->trainer, &progress);
    }
    unsigned long warm = allocations_made();
    for (; progress.clock < LAST; assert_true(time_now() < deadline)) {
        turn(fixture);
        trainer_progress(fixture->trainer, &progress);
    }
    assert_int_equal(allocations_made(), warm);
    report = await_report(fixture);
    assert_int_equal(report.event, TRAINER_LEFT);
}

static void a_step_with_threads_allocates_nothing(void **state) {
    ((struct fixture *)*state)->threads = 3;
    a_step_allocates_nothing(state);
}

/* Norm of all weights' distance from where they started. */
static double way_of_weights(const struct fixture *fixture) {
    const struct layout *layout = trainer_layout(fixture->trainer);
    struct shard *shard = service_shard(fixture->service);
    double sum = 0;
    for (uint32_t b = 0; b < layout->num_blocks; b++) {
        float first[64];
        const float *last = buffer_data(shard_tensor(shard, b, 0));
        layout_init_block(layout, b, fixture->job.seed, first);
        for (uint32_t i = 0; i < layout->blocks[b].elements; i++)
            sum += ((double)last[i] - first[i]) * ((double)last[i] - first[i]);
    }
    return sqrt(sum);
}

static void with_staleness_it_clips_its_own_gradient(void **state) {
    struct fixture *fixture = *state;
    fixture->job.staleness = JOB_STALENESS_INF;
    fixture->job.gradient_clipping = 0.01;
    fixture->steps = 1;
    open_trainer(fixture);
    expect_declaration(fixture);
    begin(fixture);
    struct trainer_report report = await_report(fixture);
    assert_int_equal(report.event, TRAINER_LEFT);
    assert_int_equal(report.clock, 1);
    assert_true(fabs(way_of_weights(fixture) - 0.5 * 0.01) < 1e-5);
}

static void a_loss_that_is_not_finite_ends_the_run(void **state) {
    struct fixture *fixture = *state;
    fixture->job.schedule.lr = 1e38;
    open_trainer(fixture);
    expect_declaration(fixture);
    begin(fixture);
    struct trainer_report report;
    do
        report = await_report(fixture);
    while (report.event == TRAINER_EVALUATED);
    assert_int_equal(report.event, TRAINER_FAILED);
    assert_int_equal(report.why.status, STATUS_FAILED);
    assert_non_null(strstr(report.why.text, "nan at step 2"));
}

static void steps_of_such_a_loss_may_be_skipped(void **state) {
    struct fixture *fixture = *state;
    fixture->job.schedule.lr = 1e38;
    fixture->job.nan_skip = true;
    wire_fixture_listen(fixture->wire);
    open_trainer(fixture);
    expect_declaration(fixture);
    begin(fixture);
    struct trainer_report report;
    do
        report = await_report(fixture);
    while (report.event == TRAINER_EVALUATED);
    assert_int_equal(report.event, TRAINER_LEFT);
    assert_int_equal(report.clock, STEPS);
    const char *said = wire_fixture_said(fixture->wire);
    assert_non_null(strstr(said, "step 2 is skipped"));
}

static struct job_fp16 fp16_from(uint32_t power) {
    return (struct job_fp16){.enabled = true,
                             .initial_scale_power = power,
                             .loss_scale_window = 1000,
                             .hysteresis = 1,
                             .min_loss_scale = 1};
}

static struct trainer_report train_all(struct fixture *fixture) {
    open_trainer(fixture);
    expect_declaration(fixture);
    begin(fixture);
    struct trainer_report report;
    do
        report = await_report(fixture);
    while (report.event == TRAINER_EVALUATED);
    return report;
}

/* Weights of a run in PRECISION, concatenated. */
static void train_in(struct fixture *fixture, enum job_precision precision,
                     double scale, float weights[64]) {
    size_t used = 0;
    fixture->job.model.precision = precision;
    fixture->job.fp16 = fp16_from(0);
    fixture->job.fp16.enabled = precision == JOB_HALF_FP16;
    fixture->job.fp16.loss_scale = scale;
    assert_int_equal(train_all(fixture).event, TRAINER_LEFT);
    struct shard *shard = service_shard(fixture->service);
    for (uint32_t b = 0; b < shard_blocks(shard); b++) {
        size_t bytes = shard_block_bytes(shard, b);
        memcpy(weights + used, buffer_data(shard_tensor(shard, b, 0)), bytes);
        used += bytes / sizeof *weights;
    }
    trainer_close(&fixture->trainer);
    client_close(&fixture->client);
    service_close(&fixture->service);
}

/* Halves have the weights within their precision, and not its bits; a loss
 * scale that is a power of two changes none. */
static void halves_train_as_float32_does(void **state) {
    struct fixture *fixture = *state;
    float precise[64] = {0}, half[64] = {0}, scaled[64] = {0};
    train_in(fixture, JOB_PRECISE, 0, precise);
    static const enum job_precision each[] = {JOB_HALF_BF16, JOB_HALF_FP16};
    for (int p = 0; p < 2; p++) {
        train_in(fixture, each[p], 1, half);
        assert_memory_not_equal(half, precise, sizeof half);
        for (int i = 0; i < 64; i++)
            assert_true(fabsf(half[i] - precise[i]) < (p ? 0.002f : 0.02f));
    }
    train_in(fixture, JOB_HALF_FP16, 0x1p6, scaled);
    assert_memory_equal(half, scaled, sizeof half);
}

static void steps_that_overflow_are_skipped_until_the_scale_fits(void **state) {
    struct fixture *fixture = *state;
    struct trainer_progress progress;
    fixture->job.model.precision = JOB_HALF_FP16;
    fixture->job.fp16 = fp16_from(20);
    wire_fixture_listen(fixture->wire);
    assert_int_equal(train_all(fixture).event, TRAINER_LEFT);
    trainer_progress(fixture->trainer, &progress);
    assert_int_equal(progress.clock, STEPS);
    assert_in_range(progress.skipped, 1, STEPS - 1);
    assert_true(progress.loss_scale == exp2(20 - (double)progress.skipped));
    assert_true(way_of_weights(fixture) > 0);
    const char *said = wire_fixture_said(fixture->wire);
    assert_non_null(strstr(said, "loss scale 1.04858e+06 from step 1 on"));
    assert_non_null(strstr(said, "step 1 is skipped: its gradients overflow at "
                                 "loss scale 1.04858e+06"));
    assert_non_null(strstr(said, "loss scale 524288 from step 2 on; skipped so "
                                 "far: 1"));
}

static void steps_that_overflow_change_no_weight(void **state) {
    struct fixture *fixture = *state;
    fixture->job.model.precision = JOB_HALF_FP16;
    fixture->job.fp16 = fp16_from(0);
    fixture->job.fp16.loss_scale = 0x1p40;
    assert_int_equal(train_all(fixture).event, TRAINER_LEFT);
    struct trainer_progress progress;
    trainer_progress(fixture->trainer, &progress);
    assert_int_equal(progress.skipped, STEPS);
    assert_true(way_of_weights(fixture) == 0);
}

static void an_overflow_at_the_least_scale_ends_the_run(void **state) {
    struct fixture *fixture = *state;
    fixture->job.model.precision = JOB_HALF_FP16;
    fixture->job.fp16 = fp16_from(40);
    fixture->job.fp16.min_loss_scale = 0x1p39;
    struct trainer_report report = train_all(fixture);
    assert_int_equal(report.event, TRAINER_FAILED);
    assert_int_equal(report.why.status, STATUS_FAILED);
    assert_non_null(strstr(report.why.text, "fp16.min_loss_scale"));
    assert_non_null(strstr(report.why.text, "step 3"));
}

static void it_leaves_after_the_step_when_asked(void **state) {
    struct fixture *fixture = *state;
    open_trainer(fixture);
    expect_declaration(fixture);
    trainer_leave(fixture->trainer);
    begin(fixture);
    struct trainer_report report = await_report(fixture);
    assert_int_equal(report.event, TRAINER_LEFT);
    assert_int_equal(report.clock, 0);
}

/* Nothing is heard of it: it neither goes on to its last step nor says that it
 * has. */
static void without_more_weights_it_takes_no_step(void **state) {
    struct fixture *fixture = *state;
    struct trainer_progress progress;
    open_trainer(fixture);
    expect_declaration(fixture);
    begin_with(fixture, true);
    zmq_pollitem_t item = {NULL, trainer_descriptor(fixture->trainer),
                           ZMQ_POLLIN, 0};
    assert_int_equal(zmq_poll(&item, 1, 300), 0);
    trainer_progress(fixture->trainer, &progress);
    assert_int_equal(progress.clock, 0);
    assert_int_equal(progress.samples, 0);
}

static void data_that_cannot_be_read_is_reported(void **state) {
    struct fixture *fixture = *state;
    FILE *file = fopen(fixture->job.data.train_images, "wb");
    assert_non_null(file);
    fclose(file);
    open_trainer(fixture);
    struct trainer_report report = await_report(fixture);
    assert_int_equal(report.event, TRAINER_FAILED);
    assert_non_null(strstr(report.why.text, fixture->job.data.train_images));
}

static void it_ends_wherever_it_waits(void **state) {
    struct fixture *fixture = *state;
    open_trainer(fixture);
    trainer_close(&fixture->trainer); /* perhaps at its data */
    open_trainer(fixture);
    expect_declaration(fixture);
    trainer_close(&fixture->trainer); /* for the plan */
    open_trainer(fixture);
    expect_declaration(fixture);
    begin(fixture);
    trainer_close(&fixture->trainer); /* for weights that never come */
    assert_null(fixture->trainer);
}

/* What the ps has, and how the last evaluation went, when a run is over. */
struct outcome {
    float weights[64];
    uint64_t elements, samples, correct;
    double loss_sum, last_loss;
};

static void add_weights(struct fixture *fixture, struct outcome *outcome) {
    const struct layout *layout = trainer_layout(fixture->trainer);
    struct shard *shard = service_shard(fixture->service);
    for (uint32_t b = 0; b < layout->num_blocks; b++) {
        assert_true(outcome->elements + layout->blocks[b].elements <= 64);
        memcpy(outcome->weights + outcome->elements,
               buffer_data(shard_tensor(shard, b, 0)),
               shard_block_bytes(shard, b));
        outcome->elements += layout->blocks[b].elements;
    }
}

/* A fixture of its own for a run on a fake GPU, or (NULL) the CPU. */
static struct fixture *renew(void **state, const struct fake_device_plan *gpu) {
    teardown(state);
    setup(state);
    struct fixture *fixture = *state;
    fixture->wire->log.quiet = true;
    fixture->job.data.shuffle = true; /* no two batches are alike */
    fixture->job.device = gpu ? JOB_DEVICE_CUDA : JOB_DEVICE_CPU;
    if (gpu)
        fake_device_arrange(gpu);
    return fixture;
}

/* Runs JOB's changes on a fixture of their own, on the CPU or a fake GPU. */
static struct outcome run_whole(void **state, void (*change)(struct job *job),
                                const struct fake_device_plan *gpu) {
    struct fixture *fixture = renew(state, gpu);
    struct outcome outcome = {0};
    struct trainer_progress progress;
    struct trainer_report report;
    change(&fixture->job);
    open_trainer(fixture);
    expect_declaration(fixture);
    begin(fixture);
    while ((report = await_report(fixture)).event != TRAINER_LEFT) {
        if (report.event == TRAINER_FAILED)
            fail_msg("%s", report.why.text);
        outcome.loss_sum = report.loss_sum;
    }
    trainer_progress(fixture->trainer, &progress);
    outcome.samples = progress.samples;
    outcome.correct = progress.correct;
    outcome.last_loss = progress.last_loss;
    add_weights(fixture, &outcome);
    return outcome;
}

static void change_nothing(struct job *job) {
    (void)job;
}

static void accumulate(struct job *job) {
    job->accumulation = 3;
    job->model.num_layers = 4;
    job->model.layers[2] = 2;
    job->model.layers[3] = 2;
}

static void clip_what_is_stale(struct job *job) {
    job->staleness = JOB_STALENESS_INF;
    job->gradient_clipping = 0.01;
}

static void skip_steps(struct job *job) {
    job->schedule.lr = 1e38;
    job->nan_skip = true;
}

/* Its first steps overflow. */
static void take_fp16(struct job *job) {
    job->fp16 = fp16_from(20);
    job->model.precision = JOB_HALF_FP16;
}

static void take_bf16(struct job *job) {
    job->bf16.enabled = job->bf16.check_overflow = true;
    job->model.precision = JOB_HALF_BF16;
}

static void a_gpu_ends_in_the_bits_of_the_cpu(void **state) {
    void (*const changes[])(struct job *) = {change_nothing,     accumulate,
                                             clip_what_is_stale, skip_steps,
                                             take_fp16,          take_bf16};
    for (size_t c = 0; c < sizeof changes / sizeof *changes; c++) {
        struct outcome cpu = run_whole(state, changes[c], NULL);
        for (int order = 0; order < FAKE_DEVICE_ORDERS; order++) {
            struct fake_device_plan gpu = {
                .order = order, .seed = c, .devices = 1};
            struct outcome found = run_whole(state, changes[c], &gpu);
            assert_memory_equal(&found, &cpu, sizeof cpu);
        }
    }
}

static void a_snapshot_is_evaluated_on_a_gpu_too(void **state) {
    struct fake_device_plan gpu = {.devices = 1};
    struct fixture *fixture = renew(state, &gpu);
    struct trainer_order order = {.id = 0, .step = STEPS, .parts = 1};
    struct trainer_report report;
    open_trainer(fixture);
    expect_declaration(fixture);
    begin(fixture);
    double last = 0;
    while ((report = await_report(fixture)).event != TRAINER_LEFT)
        last = report.loss_sum;
    trainer_evaluate(fixture->trainer, &order);
    report = await_report(fixture);
    assert_int_equal(report.event, TRAINER_EVALUATED);
    assert_int_equal(report.count, TESTS);
    assert_true(report.loss_sum == last);
}

/* At any call: while it opens, trains or evaluates. */
static void a_lost_gpu_is_worth_a_retry(void **state) {
    for (uint64_t call = 1; call < 400; call += 7) {
        struct fake_device_plan gpu = {.devices = 1, .lose = call};
        struct fixture *fixture = renew(state, &gpu);
        struct trainer_report report;
        open_trainer(fixture);
        expect_declaration(fixture);
        begin(fixture);
        while ((report = await_report(fixture)).event == TRAINER_EVALUATED)
            ;
        if (report.event == TRAINER_LEFT) { /* the whole run takes fewer */
            assert_true(call > 200);
            return;
        }
        assert_int_equal(report.event, TRAINER_FAILED);
        assert_int_equal(report.why.status, STATUS_RETRY);
        assert_string_equal(report.why.text,
                            "device cuda 0 (Fake GPU) is lost: as arranged");
    }
    fail_msg("the run never ended by itself");
}

/* In its third step. */
static struct fixture *train_until_it_hangs(void **state, double timeout) {
    struct fake_device_plan gpu = {.devices = 1, .hang = 100};
    struct fixture *fixture = renew(state, &gpu);
    fixture->job.timeouts.step = timeout;
    open_trainer(fixture);
    expect_declaration(fixture);
    begin(fixture);
    return fixture;
}

static void a_gpu_that_does_not_end_is_told_in_time(void **state) {
    struct fixture *fixture = train_until_it_hangs(state, 0.25);
    struct trainer_report report = await_report(fixture);
    assert_int_equal(report.event, TRAINER_FAILED);
    assert_int_equal(report.why.status, STATUS_RETRY);
    assert_string_equal(report.why.text,
                        "device cuda 0 (Fake GPU) has not finished its work "
                        "for 0.25 s (timeouts.step)");
}

static void a_gpu_that_does_not_end_holds_no_end_up(void **state) {
    struct fixture *fixture = train_until_it_hangs(state, 1000);
    struct trainer_progress progress = {0};
    int64_t deadline = time_now() + WIRE_FIXTURE_LIMIT;
    while (progress.clock < 2) {
        turn(fixture);
        trainer_progress(fixture->trainer, &progress);
        assert_true(time_now() < deadline);
    }
    trainer_close(&fixture->trainer);
    assert_true(time_now() < deadline);
}

/* Each piece that a trainer takes of the device's memory. */
static void a_gpu_without_memory_says_what_needs_less(void **state) {
    static const char *const wanted[] = {
        "for weights and gradients of ", "for the activations of 256 samples",
        "for 2 batches of 3 samples", "for 2 batches of 256 samples"};
    bool found[4] = {false};
    for (uint64_t piece = 1; piece < 40; piece++) {
        struct fake_device_plan gpu = {.devices = 1, .refuse = piece};
        struct fixture *fixture = renew(state, &gpu);
        open_trainer(fixture);
        expect_declaration(fixture);
        begin(fixture);
        struct trainer_report report = await_report(fixture);
        if (report.event != TRAINER_FAILED)
            break;
        assert_int_equal(report.why.status, STATUS_FAILED);
        assert_non_null(strstr(report.why.text, " bytes"));
        assert_non_null(strstr(report.why.text,
                               "train_micro_batch_size_per_gpu 1 with "
                               "gradient_accumulation_steps 2"));
        for (int i = 0; i < 4; i++)
            found[i] |= strstr(report.why.text, wanted[i]) != NULL;
    }
    for (int i = 0; i < 4; i++)
        if (!found[i])
            fail_msg("nothing was wanted %s", wanted[i]);
}

#define TRAINER_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAINER_TEST(a_run_is_trained_and_evaluated_at_each_epoch),
        TRAINER_TEST(the_trainers_weights_are_those_of_the_ps),
        TRAINER_TEST(small_gradients_leave_together),
        TRAINER_TEST(a_step_allocates_nothing),
        TRAINER_TEST(a_step_with_threads_allocates_nothing),
        TRAINER_TEST(first_weights_are_as_a_reader_gets_them),
        TRAINER_TEST(with_staleness_it_clips_its_own_gradient),
        TRAINER_TEST(a_loss_that_is_not_finite_ends_the_run),
        TRAINER_TEST(steps_of_such_a_loss_may_be_skipped),
        TRAINER_TEST(halves_train_as_float32_does),
        TRAINER_TEST(steps_that_overflow_are_skipped_until_the_scale_fits),
        TRAINER_TEST(steps_that_overflow_change_no_weight),
        TRAINER_TEST(an_overflow_at_the_least_scale_ends_the_run),
        TRAINER_TEST(it_leaves_after_the_step_when_asked),
        TRAINER_TEST(without_more_weights_it_takes_no_step),
        TRAINER_TEST(data_that_cannot_be_read_is_reported),
        TRAINER_TEST(it_ends_wherever_it_waits),
        TRAINER_TEST(a_gpu_ends_in_the_bits_of_the_cpu),
        TRAINER_TEST(a_snapshot_is_evaluated_on_a_gpu_too),
        TRAINER_TEST(a_lost_gpu_is_worth_a_retry),
        TRAINER_TEST(a_gpu_that_does_not_end_is_told_in_time),
        TRAINER_TEST(a_gpu_that_does_not_end_holds_no_end_up),
        TRAINER_TEST(a_gpu_without_memory_says_what_needs_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
