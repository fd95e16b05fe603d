/* SPDX-License-Identifier: Apache-2.0 */
/* Whole runs of a trainer on a fake GPU: they end in the bits of the CPU, and a
 * GPU that is lost, hangs or has no memory is told in words. */
#include "worker/train/trainer.h"

#include "core/base/time.h"
#include "tests/gpu/fake_device.h"
#include "tests/lib/test.h"
#include "tests/lib/trainer_fixture.h"

#include <string.h>

/* What the ps has, and how the last evaluation went, when a run is over. */
struct outcome {
    float weights[64];
    uint64_t elements, samples, correct;
    double loss_sum, last_loss;
};

static void add_weights(struct trainer_fixture *fixture,
                        struct outcome *outcome) {
    const struct layout *layout = trainer_layout(fixture->trainer);
    struct shard *shard = server_shard(fixture->server);
    for (uint32_t b = 0; b < layout->num_blocks; b++) {
        assert_true(outcome->elements + layout->blocks[b].elements <= 64);
        memcpy(outcome->weights + outcome->elements,
               buffer_data(shard_tensor(shard, b, 0)),
               shard_block_bytes(shard, b));
        outcome->elements += layout->blocks[b].elements;
    }
}

/* A fixture of its own for a run on a fake GPU, or (NULL) the CPU. */
static struct trainer_fixture *renew(void **state,
                                     const struct fake_device_settings *gpu) {
    trainer_fixture_teardown(state);
    trainer_fixture_setup(state);
    struct trainer_fixture *fixture = *state;
    fixture->wire->log.quiet = true;
    fixture->job.data.shuffle = true; /* no two batches are alike */
    fixture->job.device = gpu ? JOB_DEVICE_CUDA : JOB_DEVICE_CPU;
    if (gpu)
        fake_device_configure(gpu);
    return fixture;
}

/* Runs JOB's changes on a fixture of their own, on the CPU or a fake GPU. */
static struct outcome run_whole(void **state, void (*change)(struct job *job),
                                const struct fake_device_settings *gpu) {
    struct trainer_fixture *fixture = renew(state, gpu);
    struct outcome outcome = {0};
    struct trainer_progress progress;
    struct trainer_report report;
    change(&fixture->job);
    trainer_fixture_open(fixture);
    trainer_fixture_expect_declaration(fixture);
    trainer_fixture_begin(fixture);
    while ((report = trainer_fixture_report(fixture)).event !=
           TRAINER_FINISHED) {
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
    static const struct mlp_settings deeper = {.layers = {4, {4, 8, 2, 2}}};
    job->model.settings = &deeper;
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
    job->fp16 = trainer_fixture_fp16(20);
    job->model.precision = JOB_PRECISION_FP16;
}

static void take_bf16(struct job *job) {
    job->bf16.enabled = job->bf16.check_overflow = true;
    job->model.precision = JOB_PRECISION_BF16;
}

FIXTURE(trainer_fixture_setup, trainer_fixture_teardown);

TEST(a_gpu_ends_in_the_bits_of_the_cpu) {
    void (*const changes[])(struct job *) = {change_nothing,     accumulate,
                                             clip_what_is_stale, skip_steps,
                                             take_fp16,          take_bf16};
    for (size_t c = 0; c < sizeof changes / sizeof *changes; c++) {
        struct outcome cpu = run_whole(state, changes[c], NULL);
        for (int order = 0; order < FAKE_DEVICE_ORDERS; order++) {
            struct fake_device_settings gpu = {
                .order = order, .seed = c, .devices = 1};
            struct outcome found = run_whole(state, changes[c], &gpu);
            assert_memory_equal(&found, &cpu, sizeof cpu);
        }
    }
}

TEST(a_snapshot_is_evaluated_on_a_gpu) {
    struct fake_device_settings gpu = {.devices = 1};
    struct trainer_fixture *fixture = renew(state, &gpu);
    struct trainer_evaluation_request order = {
        .id = 0, .step = TRAINER_STEPS, .parts = 1};
    struct trainer_report report;
    trainer_fixture_open(fixture);
    trainer_fixture_expect_declaration(fixture);
    trainer_fixture_begin(fixture);
    double last = 0;
    while ((report = trainer_fixture_report(fixture)).event != TRAINER_FINISHED)
        last = report.loss_sum;
    trainer_request_evaluation(fixture->trainer, &order);
    report = trainer_fixture_report(fixture);
    assert_int_equal(report.event, TRAINER_EVALUATED);
    assert_int_equal(report.count, TRAINER_TEST_SAMPLES);
    assert_true(report.loss_sum == last);
}

/* At any call: while it opens, trains or evaluates. */
TEST(a_lost_gpu_is_retryable) {
    for (uint64_t call = 1; call < 400; call += 7) {
        struct fake_device_settings gpu = {.devices = 1, .lose_at = call};
        struct trainer_fixture *fixture = renew(state, &gpu);
        struct trainer_report report;
        trainer_fixture_open(fixture);
        trainer_fixture_expect_declaration(fixture);
        trainer_fixture_begin(fixture);
        while ((report = trainer_fixture_report(fixture)).event ==
               TRAINER_EVALUATED)
            ;
        if (report.event == TRAINER_FINISHED) { /* the whole run takes fewer */
            assert_true(call > 200);
            return;
        }
        assert_int_equal(report.event, TRAINER_FAILED);
        assert_int_equal(report.why.code, FAILURE_DEVICE_LOST);
    }
    fail_msg("the run never ended by itself");
}

/* In its third step. */
static struct trainer_fixture *train_until_it_hangs(void **state,
                                                    double timeout) {
    struct fake_device_settings gpu = {.devices = 1, .hang_at = 100};
    struct trainer_fixture *fixture = renew(state, &gpu);
    fixture->job.timeouts.step = timeout;
    trainer_fixture_open(fixture);
    trainer_fixture_expect_declaration(fixture);
    trainer_fixture_begin(fixture);
    return fixture;
}

TEST(a_hanging_gpu_is_reported_in_time) {
    struct trainer_fixture *fixture = train_until_it_hangs(state, 0.25);
    struct trainer_report report = trainer_fixture_report(fixture);
    assert_int_equal(report.event, TRAINER_FAILED);
    assert_int_equal(report.why.code, FAILURE_DEVICE_TIMEOUT);
}

TEST(a_hanging_gpu_does_not_delay_the_end) {
    struct trainer_fixture *fixture = train_until_it_hangs(state, 1000);
    struct trainer_progress progress = {0};
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    while (progress.clock < 2) {
        trainer_fixture_run_once(fixture);
        trainer_progress(fixture->trainer, &progress);
        assert_true(time_now() < deadline);
    }
    trainer_close(&fixture->trainer);
    assert_true(time_now() < deadline);
}

/* Each piece that a trainer takes of the device's memory. */
TEST(a_gpu_without_memory_names_the_keys_to_reduce) {
    static const char *const wanted[] = {
        "for weights and gradients of ", "for the activations of 256 samples",
        "for 2 batches of 3 samples", "for 2 batches of 256 samples"};
    bool found[4] = {false};
    for (uint64_t piece = 1; piece < 40; piece++) {
        struct fake_device_settings gpu = {.devices = 1,
                                           .fail_allocation = piece};
        struct trainer_fixture *fixture = renew(state, &gpu);
        trainer_fixture_open(fixture);
        trainer_fixture_expect_declaration(fixture);
        trainer_fixture_begin(fixture);
        struct trainer_report report = trainer_fixture_report(fixture);
        if (report.event != TRAINER_FAILED)
            break;
        assert_int_equal(report.why.code, FAILURE_DEVICE_MEMORY);
        assert_contains(report.why.text, " bytes");
        assert_contains(report.why.text,
                        "train_micro_batch_size_per_gpu 1 with "
                        "gradient_accumulation_steps 2");
        for (int i = 0; i < 4; i++)
            found[i] |= strstr(report.why.text, wanted[i]) != NULL;
    }
    for (int i = 0; i < 4; i++)
        if (!found[i])
            fail_msg("nothing was wanted %s", wanted[i]);
}
