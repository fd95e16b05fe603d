/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/train/executor.h"

#include "tests/gpu/fake_device.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"
#include "worker/data/idx_dataset.h"
#include "worker/models/mlp.h"

#include <string.h>

enum { SAMPLES = 700, FEATURES = 9, CLASSES = 4 };

/* A model with its first weights, and a test set of three batches. */
struct fixture {
    struct job job;
    struct layout *layout;
    struct arena arena;
    struct executor executor;
    uint8_t images[SAMPLES * FEATURES];
    float labels[SAMPLES];
    struct idx_dataset test;
};

static void fill_test(struct fixture *fixture) {
    uint32_t seed = 5;
    for (int i = 0; i < SAMPLES * FEATURES; i++) {
        seed = seed * 1664525 + 1013904223;
        fixture->images[i] = (uint8_t)(seed >> 24);
    }
    for (int i = 0; i < SAMPLES; i++)
        fixture->labels[i] = (float)(i % CLASSES);
    fixture->test =
        (struct idx_dataset){.dataset = {.table = &idx_dataset_table,
                                         .count = SAMPLES,
                                         .features = FEATURES,
                                         .labels = fixture->labels,
                                         .num_classes = CLASSES},
                             .type = IDX_FILE_UBYTE,
                             .images = fixture->images};
}

static enum status open_engine(struct fixture *fixture, enum job_device kind,
                               const struct fake_device_settings *plan,
                               bool trains, struct failure *why) {
    struct local_device_request request = {
        .kind = kind, .threads = 1, .cuda = fake_device_ops(), .timeout = 60};
    static const struct mlp_settings model = {
        .layers = {3, {FEATURES, 33, CLASSES}}};
    fixture->job = (struct job){
        .model.settings = &model,
        .micro_batch = 500,
        .accumulation = 1,
    };
    fill_test(fixture);
    fake_device_configure(plan);
    assert_int_equal(
        model_layout(&fixture->layout, &fixture->job.model, NULL, why),
        STATUS_OK);
    assert_int_equal(arena_open(&fixture->arena, fixture->layout, false, why),
                     STATUS_OK);
    for (uint32_t b = 0; b < fixture->layout->num_blocks; b++) {
        const struct block *block = &fixture->layout->blocks[b];
        layout_init_block(fixture->layout, b, 1,
                          fixture->arena.weight_of[block->parameter] +
                              block->offset);
    }
    struct executor_options use = {.micro_batch =
                                       trains ? fixture->job.micro_batch : 0,
                                   .evaluates = true};
    enum status status =
        executor_select_device(&fixture->executor, &request, NULL, why);
    return status ? status
                  : executor_open(&fixture->executor, &fixture->job,
                                  fixture->layout, &fixture->arena, &use, why);
}

static void close_engine(struct fixture *fixture) {
    executor_close(&fixture->executor);
    assert_null(fixture->executor.device.ops);
    arena_close(&fixture->arena);
    layout_free(&fixture->layout);
}

static struct evaluation evaluate(struct fixture *fixture) {
    struct evaluation_range part = {
        .test = &fixture->test.dataset, .first = 3, .end = SAMPLES};
    struct evaluation result;
    assert_ok(executor_evaluate(&fixture->executor, &part, &result, &failure));
    return result;
}

TEST(a_gpu_evaluates_as_the_cpu_does) {
    static struct fixture fixture;
    assert_ok(open_engine(&fixture, JOB_DEVICE_CPU,
                          &(struct fake_device_settings){0}, false, &failure));
    struct evaluation first = evaluate(&fixture);
    assert_int_equal(first.count, SAMPLES - 3);
    fixture.arena.weight_of[0][0] += 1;
    struct evaluation second = evaluate(&fixture);
    assert_true(first.loss_sum != second.loss_sum);
    close_engine(&fixture);
    for (int order = 0; order < FAKE_DEVICE_ORDERS; order++) {
        struct fake_device_settings plan = {.order = order, .devices = 1};
        assert_ok(
            open_engine(&fixture, JOB_DEVICE_CUDA, &plan, order % 2, &failure));
        struct evaluation found = evaluate(&fixture);
        assert_memory_equal(&found, &first, sizeof found);
        fixture.arena.weight_of[0][0] += 1;
        found = evaluate(&fixture);
        assert_memory_equal(&found, &second, sizeof found);
        close_engine(&fixture);
    }
}

/* The fake GPU ends a process that takes memory from under a copy. */
TEST(closing_waits_for_running_work) {
    static struct fixture fixture;
    struct fake_device_settings plan = {.devices = 1};
    assert_ok(open_engine(&fixture, JOB_DEVICE_CUDA, &plan, true, &failure));
    device_transfer_upload(&fixture.executor.device_transfer, 0);
    device_transfer_wait(&fixture.executor.device_transfer);
    device_transfer_download(&fixture.executor.device_transfer, 0);
    close_engine(&fixture);
}

TEST(a_lost_gpu_evaluates_nothing) {
    static struct fixture fixture;
    struct fake_device_settings plan = {.devices = 1, .lose_at = 20};
    struct evaluation result;
    assert_ok(open_engine(&fixture, JOB_DEVICE_CUDA, &plan, false, &failure));
    struct evaluation_range all = {
        .test = &fixture.test.dataset, .first = 0, .end = SAMPLES};
    assert_error(executor_evaluate(&fixture.executor, &all, &result, &failure),
                 FAILURE_DEVICE_LOST);
    close_engine(&fixture);
}

/* Whatever piece is refused, what was had before is given back. */
TEST(an_allocation_failure_leaves_nothing_open) {
    static struct fixture fixture;
    enum status status = STATUS_FAILED;
    for (uint64_t piece = 1; status; piece++) {
        struct fake_device_settings plan = {.devices = 1,
                                            .fail_allocation = piece};
        assert_true(piece < 30);
        status = open_engine(&fixture, JOB_DEVICE_CUDA, &plan, true, &failure);
        if (status) {
            assert_error(status, FAILURE_DEVICE_MEMORY);
            assert_contains(failure.text, "What needs less");
            assert_null(fixture.executor.device.ops);
        }
        close_engine(&fixture);
    }
}
