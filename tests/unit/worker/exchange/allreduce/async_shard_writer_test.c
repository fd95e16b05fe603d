/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/exchange/allreduce/async_shard_writer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "proto/store/checkpoint.h"
#include "proto/store/shard_reader.h"
#include "tests/lib/checkpoint_fixture.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TENSORS = 2, LIMIT_MS = 20000 };

static const struct loss_scaler scaler = {0x1p12, 7, 2, 3};

struct fixture {
    char folder[PATH_MAX];
    struct layout *layout;
    struct async_shard_writer *async_shard_writer;
    float *floats;
};

/* 100 x 400 weights and 7 biases, in several blocks. */
static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct parameter parameters[2] = {
        {.name = "weight", .num_dims = 2, .dims = {100, 400}},
        {.name = "bias", .num_dims = 1, .dims = {7}}};
    struct failure why;
    checkpoint_fixture_folder(fixture->folder);
    assert_int_equal(layout_build(&fixture->layout, parameters, 2, &why),
                     STATUS_OK);
    assert_true(fixture->layout->num_blocks > 2);
    fixture->floats =
        calloc(fixture->layout->block_elements, sizeof *fixture->floats);
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    async_shard_writer_close(&fixture->async_shard_writer);
    layout_free(&fixture->layout);
    checkpoint_fixture_remove(fixture->folder);
    free(fixture->floats);
    free(fixture);
    return 0;
}

static void open_saver(struct fixture *fixture, uint64_t copy_bytes) {
    struct failure why;
    struct async_shard_writer_settings settings = {
        .layout = fixture->layout,
        .num_tensors = TENSORS,
        .checkpoint_dir = fixture->folder,
        .run = 7,
        .copy_bytes = copy_bytes,
    };
    assert_int_equal(
        async_shard_writer_open(&fixture->async_shard_writer, &settings, &why),
        STATUS_OK);
}

static float value_of(uint64_t step, uint32_t b, unsigned t, uint32_t i) {
    return (float)(step * 1000000 + b * 100000 + t * 10000) + (float)i * 0.25f;
}

/* The bytes are the test's again as soon as they are handed over. */
static bool hand_over(struct fixture *fixture, uint64_t step) {
    float *second = calloc(fixture->layout->block_elements, sizeof *second);
    const float *tensors[TENSORS] = {fixture->floats, second};
    bool waited = false;
    for (uint32_t b = 0; b < fixture->layout->num_blocks; b++) {
        for (uint32_t i = 0; i < fixture->layout->blocks[b].elements; i++) {
            fixture->floats[i] = value_of(step, b, 0, i);
            second[i] = value_of(step, b, 1, i);
        }
        async_shard_writer_add(fixture->async_shard_writer, tensors, &waited);
    }
    free(second);
    return waited;
}

/* What stands in the file is not being written any more, told or not. */
static struct async_shard_writer_result await(struct fixture *fixture) {
    struct async_shard_writer_result result;
    struct pollfd item = {
        async_shard_writer_descriptor(fixture->async_shard_writer), POLLIN, 0};
    assert_int_equal(poll(&item, 1, LIMIT_MS), 1);
    assert_false(async_shard_writer_busy(fixture->async_shard_writer));
    assert_true(async_shard_writer_done(fixture->async_shard_writer, &result));
    return result;
}

static void check_block(struct shard_reader *reader, struct fixture *fixture,
                        uint64_t step, uint32_t b) {
    const struct block *block = &fixture->layout->blocks[b];
    struct shard_key key = {block->parameter, 0, block->offset};
    struct failure why;
    const void *value;
    size_t bytes;
    for (unsigned t = 0; t < TENSORS; t++) {
        key.slot = (uint16_t)t;
        assert_int_equal(shard_reader_get(reader, key, &value, &bytes, &why),
                         STATUS_OK);
        assert_int_equal(bytes, block->elements * sizeof(float));
        for (uint32_t i = 0; i < block->elements; i++) {
            float found;
            memcpy(&found, (const char *)value + i * sizeof found,
                   sizeof found);
            assert_true(found == value_of(step, b, t, i));
        }
    }
    key.slot = SHARD_ROW;
    assert_int_equal(shard_reader_get(reader, key, &value, &bytes, &why),
                     STATUS_OK);
    assert_int_equal(bytes, sizeof step);
    assert_memory_equal(value, &step, sizeof step);
}

static void check_file(struct fixture *fixture, uint64_t step,
                       const struct async_shard_writer_result *result) {
    char folder[PATH_MAX];
    struct shard_reader *reader;
    struct failure why;
    assert_true(result->written);
    assert_string_equal(result->info.name, "ps-0-of-1-0000000000000007.mdb");
    checkpoint_folder(fixture->folder, step, folder, sizeof folder);
    assert_int_equal(shard_reader_open(&reader, folder, &result->info, &why),
                     STATUS_OK);
    for (uint32_t b = 0; b < fixture->layout->num_blocks; b++)
        check_block(reader, fixture, step, b);
    shard_reader_close(&reader);
}

static void a_file_has_the_state_of_its_round(void **state) {
    struct fixture *fixture = *state;
    open_saver(fixture, UINT64_MAX);
    for (uint64_t step = 3; step < 6; step++) {
        assert_true(async_shard_writer_begin(fixture->async_shard_writer, step,
                                             step, &scaler));
        assert_true(async_shard_writer_busy(fixture->async_shard_writer));
        assert_false(hand_over(fixture, step));
        struct async_shard_writer_result result = await(fixture);
        assert_int_equal(result.id, step);
        assert_true(result.scaler.scale == scaler.scale);
        assert_int_equal(result.scaler.skipped, scaler.skipped);
        check_file(fixture, step, &result);
    }
}

/* Copies of one block at a time. */
static void rounds_wait_for_the_disk_at_the_copy_limit(void **state) {
    struct fixture *fixture = *state;
    bool waited = false;
    open_saver(fixture, 1);
    for (uint64_t step = 9; step < 14; step++) {
        assert_true(async_shard_writer_begin(fixture->async_shard_writer, step,
                                             step, &scaler));
        waited |= hand_over(fixture, step);
        struct async_shard_writer_result result = await(fixture);
        check_file(fixture, step, &result);
    }
    assert_true(waited);
}

static void a_write_failure_is_reported_and_blocks_no_round(void **state) {
    struct fixture *fixture = *state;
    char blocked[PATH_MAX + 32];
    open_saver(fixture, 1);
    snprintf(blocked, sizeof blocked, "%s/step-000000004", fixture->folder);
    FILE *file = fopen(blocked, "w"); /* a file where the folder would be */
    assert_non_null(file);
    fclose(file);
    assert_true(
        async_shard_writer_begin(fixture->async_shard_writer, 4, 4, &scaler));
    hand_over(fixture, 4);
    struct async_shard_writer_result result = await(fixture);
    assert_false(result.written);
    assert_non_null(strstr(result.why.text, "step-000000004"));
    assert_true(
        async_shard_writer_begin(fixture->async_shard_writer, 5, 5, &scaler));
    hand_over(fixture, 5);
    result = await(fixture);
    check_file(fixture, 5, &result);
}

static void a_partial_file_is_removed_at_the_end(void **state) {
    struct fixture *fixture = *state;
    char folder[PATH_MAX], command[PATH_MAX + 64];
    bool waited = false;
    const float *tensors[TENSORS] = {fixture->floats, fixture->floats};
    open_saver(fixture, UINT64_MAX);
    assert_true(
        async_shard_writer_begin(fixture->async_shard_writer, 2, 2, &scaler));
    async_shard_writer_add(fixture->async_shard_writer, tensors, &waited);
    async_shard_writer_close(&fixture->async_shard_writer);
    checkpoint_folder(fixture->folder, 2, folder, sizeof folder);
    snprintf(command, sizeof command, "ls %s/* 2>/dev/null | grep -q .",
             folder);
    assert_int_not_equal(system(command), 0);
}

static void *begin_another(void *argument) {
    struct fixture *fixture = argument;
    return async_shard_writer_begin(fixture->async_shard_writer, 3, 3, &scaler)
               ? fixture
               : NULL;
}

/* The first file lacks blocks, so the second waits for its end. */
static void cancelling_ends_the_wait_for_an_earlier_file(void **state) {
    struct fixture *fixture = *state;
    pthread_t thread;
    void *begun = fixture;
    open_saver(fixture, UINT64_MAX);
    assert_true(
        async_shard_writer_begin(fixture->async_shard_writer, 2, 2, &scaler));
    assert_int_equal(pthread_create(&thread, NULL, begin_another, fixture), 0);
    async_shard_writer_cancel(fixture->async_shard_writer);
    pthread_join(thread, &begun);
    assert_null(begun);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_has_the_state_of_its_round,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            rounds_wait_for_the_disk_at_the_copy_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(
            a_write_failure_is_reported_and_blocks_no_round, setup, teardown),
        cmocka_unit_test_setup_teardown(a_partial_file_is_removed_at_the_end,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            cancelling_ends_the_wait_for_an_earlier_file, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
