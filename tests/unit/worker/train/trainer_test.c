/* SPDX-License-Identifier: Apache-2.0 */
/* Whole runs of a trainer on the CPU, its steps and how they end. */
#define STATE struct trainer_fixture *fixture

#include "worker/train/trainer.h"

#include "core/base/time.h"
#include "proto/plan/encoding.h"
#include "tests/lib/allocations.h"
#include "tests/lib/test.h"
#include "tests/lib/trainer_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

FIXTURE(trainer_fixture_setup, trainer_fixture_teardown);

TEST(a_run_is_trained_and_evaluated_at_each_epoch) {
    trainer_fixture_open(fixture);
    trainer_fixture_expect_declaration(fixture);
    trainer_fixture_begin(fixture);
    double first = 0;
    for (uint64_t step = 4; step <= TRAINER_STEPS; step += 4) {
        struct trainer_report report = trainer_fixture_report(fixture);
        assert_int_equal(report.event, TRAINER_EVALUATED);
        assert_int_equal(report.id, 0);
        assert_int_equal(report.step, step);
        assert_int_equal(report.count, TRAINER_TEST_SAMPLES);
        assert_true(isfinite(report.loss_sum));
        if (step > 4)
            assert_true(report.loss_sum < first);
        first = report.loss_sum;
    }
    struct trainer_report report = trainer_fixture_report(fixture);
    assert_int_equal(report.event, TRAINER_FINISHED);
    assert_int_equal(report.clock, TRAINER_STEPS);
    struct trainer_progress progress;
    trainer_progress(fixture->trainer, &progress);
    assert_int_equal(progress.clock, TRAINER_STEPS);
    assert_int_equal(progress.samples, TRAINER_STEPS * TRAINER_BATCH);
    assert_int_equal(
        update_core_version(server_update_core(fixture->server), 0),
        TRAINER_STEPS);
}

TEST(the_trainers_weights_are_those_of_the_ps) {
    fixture->job.accumulation = 2;
    trainer_fixture_open(fixture);
    trainer_fixture_expect_declaration(fixture);
    trainer_fixture_begin(fixture);
    while (trainer_fixture_report(fixture).event != TRAINER_FINISHED)
        ;
    struct buffer *weights, *gradients;
    const uint64_t *offsets;
    trainer_arenas(fixture->trainer, &weights, &gradients, &offsets);
    const struct layout *layout = trainer_layout(fixture->trainer);
    for (uint32_t b = 0; b < layout->num_blocks; b++) {
        const struct block *block = &layout->blocks[b];
        struct shard *shard = server_shard(fixture->server);
        assert_memory_equal((float *)buffer_data(weights) +
                                offsets[block->parameter] + block->offset,
                            buffer_data(shard_tensor(shard, b, 0)),
                            shard_block_bytes(shard, b));
    }
}

TEST(small_gradients_share_a_message) {
    trainer_fixture_open(fixture);
    trainer_fixture_expect_declaration(fixture);
    trainer_fixture_begin(fixture);
    while (trainer_fixture_report(fixture).event != TRAINER_FINISHED)
        ;
    assert_int_equal(fixture->pushes, TRAINER_STEPS);
}

/* It computes with the same numbers whether it made the first weights or has
 * read them: what a resumed run does. */
TEST(first_weights_equal_those_of_a_pull) {
    fixture->job.wire = JOB_WIRE_BF16;
    fixture->steps = 0;
    trainer_fixture_open(fixture);
    trainer_fixture_expect_declaration(fixture);
    trainer_fixture_begin(fixture);
    while (trainer_fixture_report(fixture).event != TRAINER_FINISHED)
        ;
    struct buffer *weights, *gradients;
    const uint64_t *offsets;
    trainer_arenas(fixture->trainer, &weights, &gradients, &offsets);
    const struct layout *layout = trainer_layout(fixture->trainer);
    for (uint32_t b = 0; b < layout->num_blocks; b++) {
        const struct block *block = &layout->blocks[b];
        float first[64];
        layout_init_block(layout, b, fixture->job.seed, first);
        encoding_round(JOB_WIRE_BF16, first, block->elements);
        assert_memory_equal((float *)buffer_data(weights) +
                                offsets[block->parameter] + block->offset,
                            first, block->elements * sizeof *first);
    }
}

/* Worker and ps from the tenth step to the last, asynchronous, as nothing but
 * steps is done there. */
TEST(a_step_allocates_nothing) {
    enum { WARM = 10, LAST = 200 };
    int64_t deadline = time_now() + LINK_FIXTURE_DEADLINE;
    struct trainer_progress progress = {0};
    struct trainer_report report;
    fixture->job.staleness = JOB_STALENESS_INF;
    fixture->steps = LAST;
    trainer_fixture_open(fixture);
    trainer_fixture_expect_declaration(fixture);
    trainer_fixture_begin(fixture);
    for (; progress.clock < WARM; assert_true(time_now() < deadline)) {
        trainer_fixture_run_once(fixture);
        trainer_progress(fixture->trainer, &progress);
    }
    unsigned long warm = allocations_made();
    for (; progress.clock < LAST; assert_true(time_now() < deadline)) {
        trainer_fixture_run_once(fixture);
        trainer_progress(fixture->trainer, &progress);
    }
    assert_int_equal(allocations_made(), warm);
    report = trainer_fixture_report(fixture);
    assert_int_equal(report.event, TRAINER_FINISHED);
}

TEST(a_step_with_threads_allocates_nothing) {
    ((struct trainer_fixture *)fixture)->threads = 3;
    a_step_allocates_nothing(state);
}

/* Norm of all weights' distance from where they started. */
static double way_of_weights(const struct trainer_fixture *fixture) {
    const struct layout *layout = trainer_layout(fixture->trainer);
    struct shard *shard = server_shard(fixture->server);
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

TEST(with_staleness_a_trainer_clips_its_own_gradient) {
    fixture->job.staleness = JOB_STALENESS_INF;
    fixture->job.gradient_clipping = 0.01;
    fixture->steps = 1;
    trainer_fixture_open(fixture);
    trainer_fixture_expect_declaration(fixture);
    trainer_fixture_begin(fixture);
    struct trainer_report report = trainer_fixture_report(fixture);
    assert_int_equal(report.event, TRAINER_FINISHED);
    assert_int_equal(report.clock, 1);
    assert_true(fabs(way_of_weights(fixture) - 0.5 * 0.01) < 1e-5);
}

TEST(a_nonfinite_loss_ends_the_run) {
    fixture->job.schedule.lr = 1e38;
    trainer_fixture_open(fixture);
    trainer_fixture_expect_declaration(fixture);
    trainer_fixture_begin(fixture);
    struct trainer_report report;
    do
        report = trainer_fixture_report(fixture);
    while (report.event == TRAINER_EVALUATED);
    assert_int_equal(report.event, TRAINER_FAILED);
    assert_int_equal(report.why.code, FAILURE_LOSS_NOT_FINITE);
    assert_contains(report.why.text, "nan at step 2");
}

TEST(steps_with_a_nonfinite_loss_may_be_skipped) {
    fixture->job.schedule.lr = 1e38;
    fixture->job.nan_skip = true;
    link_fixture_capture_log(fixture->wire);
    trainer_fixture_open(fixture);
    trainer_fixture_expect_declaration(fixture);
    trainer_fixture_begin(fixture);
    struct trainer_report report;
    do
        report = trainer_fixture_report(fixture);
    while (report.event == TRAINER_EVALUATED);
    assert_int_equal(report.event, TRAINER_FINISHED);
    assert_int_equal(report.clock, TRAINER_STEPS);
    const char *said = link_fixture_captured_log(fixture->wire);
    assert_contains(said, "step 2 is skipped");
}

/* Weights of a run in PRECISION, concatenated. */
static void train_in(struct trainer_fixture *fixture,
                     enum job_precision precision, double scale,
                     float weights[64]) {
    size_t used = 0;
    fixture->job.model.precision = precision;
    fixture->job.fp16 = trainer_fixture_fp16(0);
    fixture->job.fp16.enabled = precision == JOB_PRECISION_FP16;
    fixture->job.fp16.loss_scale = scale;
    assert_int_equal(trainer_fixture_train(fixture).event, TRAINER_FINISHED);
    struct shard *shard = server_shard(fixture->server);
    for (uint32_t b = 0; b < shard_blocks(shard); b++) {
        size_t bytes = shard_block_bytes(shard, b);
        memcpy(weights + used, buffer_data(shard_tensor(shard, b, 0)), bytes);
        used += bytes / sizeof *weights;
    }
    trainer_close(&fixture->trainer);
    client_close(&fixture->client);
    server_close(&fixture->server);
}

/* Halves have the weights within their precision, and not its bits; a loss
 * scale that is a power of two changes none. */
TEST(half_precision_trains_like_float32) {
    float precise[64] = {0}, half[64] = {0}, scaled[64] = {0};
    train_in(fixture, JOB_PRECISION_FP32, 0, precise);
    static const enum job_precision each[] = {JOB_PRECISION_BF16,
                                              JOB_PRECISION_FP16};
    for (int p = 0; p < 2; p++) {
        train_in(fixture, each[p], 1, half);
        assert_memory_not_equal(half, precise, sizeof half);
        for (int i = 0; i < 64; i++)
            assert_true(fabsf(half[i] - precise[i]) < (p ? 0.002f : 0.02f));
    }
    train_in(fixture, JOB_PRECISION_FP16, 0x1p6, scaled);
    assert_memory_equal(half, scaled, sizeof half);
}

TEST(steps_that_overflow_are_skipped_until_the_scale_fits) {
    struct trainer_progress progress;
    fixture->job.model.precision = JOB_PRECISION_FP16;
    fixture->job.fp16 = trainer_fixture_fp16(20);
    link_fixture_capture_log(fixture->wire);
    assert_int_equal(trainer_fixture_train(fixture).event, TRAINER_FINISHED);
    trainer_progress(fixture->trainer, &progress);
    assert_int_equal(progress.clock, TRAINER_STEPS);
    assert_in_range(progress.skipped, 1, TRAINER_STEPS - 1);
    assert_true(progress.loss_scale == exp2(20 - (double)progress.skipped));
    assert_true(way_of_weights(fixture) > 0);
    const char *said = link_fixture_captured_log(fixture->wire);
    assert_contains(said, "loss scale 1.04858e+06 from step 1 on");
    assert_contains(said, "step 1 is skipped: its gradients overflow at "
                          "loss scale 1.04858e+06");
    assert_contains(said, "loss scale 524288 from step 2 on; skipped so "
                          "far: 1");
}

TEST(steps_that_overflow_change_no_weight) {
    fixture->job.model.precision = JOB_PRECISION_FP16;
    fixture->job.fp16 = trainer_fixture_fp16(0);
    fixture->job.fp16.loss_scale = 0x1p40;
    assert_int_equal(trainer_fixture_train(fixture).event, TRAINER_FINISHED);
    struct trainer_progress progress;
    trainer_progress(fixture->trainer, &progress);
    assert_int_equal(progress.skipped, TRAINER_STEPS);
    assert_true(way_of_weights(fixture) == 0);
}

TEST(an_overflow_at_the_least_scale_ends_the_run) {
    fixture->job.model.precision = JOB_PRECISION_FP16;
    fixture->job.fp16 = trainer_fixture_fp16(40);
    fixture->job.fp16.min_loss_scale = 0x1p39;
    struct trainer_report report = trainer_fixture_train(fixture);
    assert_int_equal(report.event, TRAINER_FAILED);
    assert_int_equal(report.why.code, FAILURE_LOSS_SCALE_TOO_LOW);
    assert_contains(report.why.text, "fp16.min_loss_scale");
    assert_contains(report.why.text, "step 3");
}

TEST(a_trainer_leaves_after_the_step_when_requested) {
    trainer_fixture_open(fixture);
    trainer_fixture_expect_declaration(fixture);
    trainer_leave(fixture->trainer);
    trainer_fixture_begin(fixture);
    struct trainer_report report = trainer_fixture_report(fixture);
    assert_int_equal(report.event, TRAINER_FINISHED);
    assert_int_equal(report.clock, 0);
}

/* Nothing is heard of it: it neither goes on to its last step nor says that it
 * has. */
TEST(without_new_weights_no_step_is_taken) {
    struct trainer_progress progress;
    trainer_fixture_open(fixture);
    trainer_fixture_expect_declaration(fixture);
    trainer_fixture_begin_with(fixture, true);
    zmq_pollitem_t item = {NULL, trainer_descriptor(fixture->trainer),
                           ZMQ_POLLIN, 0};
    assert_int_equal(zmq_poll(&item, 1, 300), 0);
    trainer_progress(fixture->trainer, &progress);
    assert_int_equal(progress.clock, 0);
    assert_int_equal(progress.samples, 0);
}

TEST(data_that_cannot_be_read_is_reported) {
    FILE *file = fopen(fixture->job.data.train.paths[0], "wb");
    assert_non_null(file);
    fclose(file);
    trainer_fixture_open(fixture);
    struct trainer_report report = trainer_fixture_report(fixture);
    assert_int_equal(report.event, TRAINER_FAILED);
    assert_contains(report.why.text, fixture->job.data.train.paths[0]);
}

TEST(a_trainer_can_end_in_every_wait) {
    trainer_fixture_open(fixture);
    trainer_close(&fixture->trainer); /* perhaps at its data */
    trainer_fixture_open(fixture);
    trainer_fixture_expect_declaration(fixture);
    trainer_close(&fixture->trainer); /* for the plan */
    trainer_fixture_open(fixture);
    trainer_fixture_expect_declaration(fixture);
    trainer_fixture_begin(fixture);
    trainer_close(&fixture->trainer); /* for weights that never come */
    assert_null(fixture->trainer);
}
