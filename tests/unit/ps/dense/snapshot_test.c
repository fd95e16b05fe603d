/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/dense/snapshot.h"

#include "proto/base/time.h"
#include "proto/store/shard_reader.h"
#include "tests/lib/checkpoint_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ELEMENTS = 40000, BLOCKS = 3, RANKS = 2 };

/* One trainer pushes; weights are the block's round everywhere. */
struct fixture {
    struct layout *layout;
    struct shard *shard;
    struct update_core *update_core;
    struct snapshots *snapshots;
    uint64_t round[BLOCKS];
    char folder[PATH_MAX];
};

static const uint32_t ids[BLOCKS] = {0, 1, 2};

static void set(struct fixture *fixture, uint32_t b, float value) {
    float *floats = malloc(ELEMENTS * sizeof *floats);
    for (int i = 0; i < ELEMENTS; i++)
        floats[i] = value;
    shard_assign(fixture->shard, b, floats);
    free(floats);
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct parameter parameter = {
        .name = "w", .num_dims = 1, .dims = {ELEMENTS}};
    struct optimizer optimizer = {.type = OPTIMIZER_SGD, .momentum = 0.5};
    struct update_core_settings update_core = {
        .num_blocks = BLOCKS, .num_ranks = RANKS, .scaler = {.skipped = 7}};
    struct gate_slot slots[RANKS] = {{77, 1, true}, {0, 0, false}};
    struct update_core_action action;
    struct failure why;
    if (layout_build(&fixture->layout, &parameter, 1, &why) ||
        shard_open(&fixture->shard, fixture->layout, ids, BLOCKS, &optimizer,
                   &why))
        return -1;
    shard_initialise(fixture->shard, 1);
    fixture->update_core = update_core_open(&update_core);
    update_core_set_view(fixture->update_core, 1, slots);
    while (update_core_next(fixture->update_core, &action))
        ;
    checkpoint_fixture_folder(fixture->folder);
    if (snapshots_open(&fixture->snapshots, fixture->shard,
                       fixture->update_core, &why))
        return -1;
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    snapshots_close(&fixture->snapshots);
    update_core_close(&fixture->update_core);
    shard_close(&fixture->shard);
    layout_free(&fixture->layout);
    checkpoint_fixture_remove(fixture->folder);
    free(fixture);
    return 0;
}

/* Block B's next round: its weights are the round's number. */
static void close_round(struct fixture *fixture, uint32_t b) {
    static float zeros[ELEMENTS];
    const void *gradients[] = {zeros};
    struct update_core_action action;
    struct failure why;
    uint64_t round = ++fixture->round[b];
    assert_int_equal(update_core_push(fixture->update_core, b, 0, round, 1),
                     UPDATE_CORE_ACCEPTED);
    while (update_core_next(fixture->update_core, &action))
        ;
    struct shard_round update = {.gradients = gradients,
                                 .num_gradients = 1,
                                 .step = round,
                                 .rate = 1,
                                 .scale = 1};
    assert_int_equal(shard_update(fixture->shard, b, &update, &why), 0);
    set(fixture, b, (float)round);
}

static void add_all(struct fixture *fixture, struct snapshot *snapshot) {
    for (uint32_t b = 0; b < BLOCKS; b++)
        snapshot_add(snapshot, b, fixture->round[b]);
}

static struct snapshot_result await_done(struct fixture *fixture) {
    struct snapshot_result result;
    struct pollfd item = {snapshots_descriptor(fixture->snapshots), POLLIN, 0};
    while (!snapshots_done(fixture->snapshots, &result))
        assert_int_equal(poll(&item, 1, 20000), 1);
    return result;
}

/* Every block of the file is at ROUND, weights and row. */
static void check_file(struct fixture *fixture, const struct snapshot_result *r,
                       uint64_t round) {
    struct shard_reader *reader;
    struct failure why;
    assert_true(r->written);
    if (shard_reader_open(&reader, fixture->folder, &r->info, &why))
        fail_msg("%s", why.text);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        struct shard_key key = {.offset = fixture->layout->blocks[b].offset};
        const void *value;
        size_t bytes;
        float weight;
        uint64_t row[1 + 2 * RANKS];
        assert_int_equal(shard_reader_get(reader, key, &value, &bytes, &why),
                         0);
        assert_int_equal(bytes, shard_block_bytes(fixture->shard, b));
        memcpy(&weight, (const char *)value + bytes - sizeof weight,
               sizeof weight);
        assert_true(weight == (float)round);
        key.slot = SHARD_ROW;
        assert_int_equal(shard_reader_get(reader, key, &value, &bytes, &why),
                         0);
        assert_int_equal(bytes, sizeof row);
        memcpy(row, value, sizeof row);
        assert_int_equal(row[0], round);
        assert_int_equal(row[1], 77);
        assert_int_equal(row[2], round);
        assert_int_equal(row[3], 0);
    }
    shard_reader_close(&reader);
}

static void a_snapshot_is_written_unchanged_while_training_continues(
    void **state) {
    struct fixture *fixture = *state;
    struct snapshot *snapshot = snapshots_begin(fixture->snapshots, 9);
    for (uint32_t b = 0; b < BLOCKS; b++)
        close_round(fixture, b);
    add_all(fixture, snapshot);
    assert_true(snapshot_complete(snapshot));
    for (int i = 0; i < 3; i++)
        close_round(fixture, 1);
    assert_false(snapshots_busy(fixture->snapshots));
    snapshot_write(snapshot, NULL, fixture->folder, "shard.mdb");
    assert_true(snapshots_busy(fixture->snapshots));
    struct snapshot_result result = await_done(fixture);
    assert_int_equal(result.id, 9);
    assert_int_equal(result.scaler.skipped, 7);
    assert_false(snapshots_busy(fixture->snapshots));
    assert_null(snapshots_find(fixture->snapshots, 9));
    assert_int_equal(shard_copied_bytes(fixture->shard), 0);
    check_file(fixture, &result, 1);
}

static void blocks_may_arrive_after_the_command(void **state) {
    struct fixture *fixture = *state;
    struct snapshot *snapshot = snapshots_begin(fixture->snapshots, 1);
    snapshot_write(snapshot, NULL, fixture->folder, "shard.mdb");
    for (uint32_t b = 0; b < BLOCKS; b++) {
        close_round(fixture, b);
        assert_false(snapshot_complete(snapshot));
        snapshot_add(snapshot, b, fixture->round[b]);
        close_round(fixture, b);
        snapshot_add(snapshot, b, fixture->round[b]); /* the first counts */
    }
    struct snapshot_result result = await_done(fixture);
    check_file(fixture, &result, 1);
}

static void only_held_weights_may_be_read(void **state) {
    struct fixture *fixture = *state;
    struct snapshot *snapshot = snapshots_begin(fixture->snapshots, 5);
    close_round(fixture, 0);
    snapshot_add(snapshot, 0, 1);
    assert_null(snapshot_weights(snapshot, 0));
    snapshot_retain(snapshot);
    assert_non_null(snapshot_weights(snapshot, 0));
    assert_null(snapshot_weights(snapshot, 1));
    close_round(fixture, 0);
    assert_true(*(float *)buffer_data(snapshot_weights(snapshot, 0)) == 1);
    assert_ptr_equal(snapshots_find(fixture->snapshots, 5), snapshot);
    snapshot_release(snapshot);
    assert_null(snapshots_find(fixture->snapshots, 5));
    assert_int_equal(shard_copied_bytes(fixture->shard), 0);
}

static void a_held_snapshot_stays_after_it_was_written(void **state) {
    struct fixture *fixture = *state;
    struct snapshot *snapshot = snapshots_begin(fixture->snapshots, 5);
    add_all(fixture, snapshot);
    snapshot_retain(snapshot);
    snapshot_write(snapshot, NULL, fixture->folder, "shard.mdb");
    assert_true(await_done(fixture).written);
    assert_ptr_equal(snapshots_find(fixture->snapshots, 5), snapshot);
    for (uint32_t b = 0; b < BLOCKS; b++)
        assert_non_null(snapshot_weights(snapshot, b));
    struct snapshot_result result;
    assert_false(snapshots_done(fixture->snapshots, &result)); /* told once */
    snapshot_release(snapshot);
    assert_null(snapshots_find(fixture->snapshots, 5));
}

static void a_missing_folder_is_a_failure_with_its_reason(void **state) {
    struct fixture *fixture = *state;
    struct snapshot *snapshot = snapshots_begin(fixture->snapshots, 5);
    add_all(fixture, snapshot);
    snapshot_write(snapshot, NULL, "/proc/nowhere/at/all", "shard.mdb");
    struct snapshot_result result = await_done(fixture);
    assert_false(result.written);
    assert_non_null(strstr(result.why.text, "/proc/nowhere"));
    assert_int_equal(shard_copied_bytes(fixture->shard), 0);
    snapshot = snapshots_begin(fixture->snapshots, 6);
    add_all(fixture, snapshot);
    snapshot_write(snapshot, NULL, fixture->folder, "shard.mdb");
    assert_true(await_done(fixture).written);
}

static void several_snapshots_are_written_in_sequence(void **state) {
    struct fixture *fixture = *state;
    char name[32];
    for (uint64_t id = 1; id <= 3; id++) {
        for (uint32_t b = 0; b < BLOCKS; b++)
            close_round(fixture, b);
        struct snapshot *snapshot = snapshots_begin(fixture->snapshots, id);
        add_all(fixture, snapshot);
        snprintf(name, sizeof name, "shard-%d.mdb", (int)id);
        snapshot_write(snapshot, NULL, fixture->folder, name);
    }
    for (int i = 0; i < 3; i++) {
        struct snapshot_result result = await_done(fixture);
        check_file(fixture, &result, result.id);
    }
}

static void snapshots_that_end_together_are_reported_in_order(void **state) {
    struct fixture *fixture = *state;
    int64_t end = time_now() + 20 * TIME_S;
    char name[32];
    for (uint64_t id = 1; id <= 3; id++) {
        struct snapshot *snapshot = snapshots_begin(fixture->snapshots, id);
        add_all(fixture, snapshot);
        snprintf(name, sizeof name, "shard-%d.mdb", (int)id);
        snapshot_write(snapshot, NULL, fixture->folder, name);
    }
    while (snapshots_busy(fixture->snapshots) && time_now() < end)
        sched_yield();
    for (uint64_t id = 1; id <= 3; id++)
        assert_int_equal(await_done(fixture).id, id);
}

static void a_partial_file_is_removed_at_the_end(void **state) {
    struct fixture *fixture = *state;
    struct snapshot *snapshot = snapshots_begin(fixture->snapshots, 1);
    snapshot_write(snapshot, NULL, fixture->folder, "shard.mdb");
    snapshot_add(snapshot, 0, 0); /* the others never come */
    snapshots_close(&fixture->snapshots);
    assert_null(fixture->snapshots);
    assert_int_equal(checkpoint_fixture_entries(fixture->folder), 0);
}

#define SNAPSHOT_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        SNAPSHOT_TEST(a_snapshot_is_written_unchanged_while_training_continues),
        SNAPSHOT_TEST(blocks_may_arrive_after_the_command),
        SNAPSHOT_TEST(only_held_weights_may_be_read),
        SNAPSHOT_TEST(a_held_snapshot_stays_after_it_was_written),
        SNAPSHOT_TEST(a_missing_folder_is_a_failure_with_its_reason),
        SNAPSHOT_TEST(several_snapshots_are_written_in_sequence),
        SNAPSHOT_TEST(snapshots_that_end_together_are_reported_in_order),
        SNAPSHOT_TEST(a_partial_file_is_removed_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
