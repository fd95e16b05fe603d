/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "proto/holder/snapshots.h"

#include "core/base/time.h"
#include "core/store/shard_file.h"
#include "core/store/shard_rows.h"
#include "proto/messages/message.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/test.h"

#include <poll.h>
#include <sched.h>

enum { ELEMENTS = 40000, BLOCKS = 3, TENSORS = 2 };

#define REQUESTED (MESSAGE_REQUESTED_SNAPSHOT + 1)
#define WRITTEN CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN
#define NOT_WRITTEN CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_WRITTEN
#define HELD CAPSTAN__SNAPSHOT_REPORT__OUTCOME__HELD
#define NOT_HELD CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_HELD
#define FULL CAPSTAN__SNAPSHOT__FORM__FULL

struct fixture {
    struct layout *layout;
    struct snapshots *snapshots;
    int copies; /* tensors that a snapshot still holds */
    char folder[PATH_MAX];
};

static void open_snapshots(struct fixture *fixture, size_t row_bytes) {
    static const uint32_t ids[BLOCKS] = {2, 0, 1};
    struct snapshots_settings settings = {.layout = fixture->layout,
                                          .ids = ids,
                                          .num_units = BLOCKS,
                                          .num_tensors = TENSORS,
                                          .row_bytes = row_bytes};
    assert_ok(snapshots_open(&fixture->snapshots, &settings, &failure));
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct parameter parameter = {
        .name = "w", .num_dims = 1, .dims = {ELEMENTS}};
    if (layout_build(&fixture->layout, &parameter, 1, &failure) ||
        fixture->layout->num_blocks != BLOCKS)
        return -1;
    checkpoint_fixture_folder(fixture->folder);
    open_snapshots(fixture, sizeof(uint64_t));
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    snapshots_close(&fixture->snapshots);
    assert_int_equal(fixture->copies, 0);
    layout_free(&fixture->layout);
    checkpoint_fixture_remove(fixture->folder);
    free(fixture);
}

FIXTURE(setup, teardown);

/* On the writer's thread too, but never at the same time. */
static void recycle(void *owner, struct buffer *buffer) {
    struct fixture *fixture = owner;
    __atomic_fetch_sub(&fixture->copies, 1, __ATOMIC_RELAXED);
    buffer_destroy(buffer);
}

static int copies(struct fixture *fixture) {
    return __atomic_load_n(&fixture->copies, __ATOMIC_RELAXED);
}

/* Adds block B of snapshot ID: 10 * VERSION + t in tensor t everywhere. */
static void add(struct fixture *fixture, uint64_t id, uint32_t b,
                uint64_t version) {
    struct buffer *tensors[TENSORS];
    struct snapshots_block block = {.version = version,
                                    .tensors = tensors,
                                    .row = &version,
                                    .scaler = {.skipped = 7 + b}};
    for (unsigned t = 0; t < TENSORS; t++) {
        tensors[t] = buffer_open(
            fixture->layout->block_elements * sizeof(float), recycle, fixture);
        __atomic_fetch_add(&fixture->copies, 1, __ATOMIC_RELAXED);
        float *floats = buffer_data(tensors[t]);
        for (uint32_t i = 0; i < fixture->layout->block_elements; i++)
            floats[i] = (float)(10 * version + t);
    }
    snapshots_add(fixture->snapshots, id, b, &block);
    for (unsigned t = 0; t < TENSORS; t++)
        buffer_release(&tensors[t]);
}

static void add_all(struct fixture *fixture, uint64_t id, uint64_t version) {
    for (uint32_t b = 0; b < BLOCKS; b++)
        add(fixture, id, b, version);
}

static void order(struct fixture *fixture, uint64_t id, const char *name) {
    snapshots_write(fixture->snapshots, id, id, NULL, fixture->folder, name);
}

static struct snapshots_report await(struct fixture *fixture) {
    struct snapshots_report report;
    struct pollfd item = {snapshots_descriptor(fixture->snapshots), POLLIN, 0};
    while (!snapshots_next(fixture->snapshots, &report))
        assert_int_equal(poll(&item, 1, 60000), 1);
    return report;
}

static void expect_none(struct fixture *fixture) {
    struct snapshots_report report;
    assert_false(snapshots_next(fixture->snapshots, &report));
}

/* Every block of the file is at VERSION, tensors and row. */
static void check_file(struct fixture *fixture,
                       const struct snapshots_report *report,
                       uint64_t version) {
    struct shard_reader *reader;
    assert_int_equal(report->outcome, WRITTEN);
    assert_ok(
        shard_reader_open(&reader, fixture->folder, &report->info, &failure));
    for (uint32_t b = 0; b < BLOCKS; b++) {
        const struct block *block = &fixture->layout->blocks[b];
        struct shard_key key = {.offset = block->offset};
        const void *value;
        size_t bytes;
        for (unsigned t = 0; t < TENSORS; t++) {
            float last;
            key.slot = (uint16_t)t;
            assert_ok(shard_reader_get(reader, key, &value, &bytes, &failure));
            assert_int_equal(bytes, block->elements * sizeof(float));
            memcpy(&last, (const char *)value + bytes - sizeof last,
                   sizeof last);
            assert_true(last == (float)(10 * version + t));
        }
        key.slot = SHARD_ROW;
        assert_ok(shard_reader_get(reader, key, &value, &bytes, &failure));
        assert_int_equal(bytes, sizeof version);
        assert_memory_equal(value, &version, sizeof version);
    }
    shard_reader_close(&reader);
}

TEST(a_planned_snapshot_is_reported_once_when_it_is_written) {
    snapshots_begin(fixture->snapshots, 9, false, FULL);
    assert_true(snapshots_has(fixture->snapshots, 9));
    add_all(fixture, 9, 4);
    assert_false(snapshots_busy(fixture->snapshots));
    expect_none(fixture);
    order(fixture, 9, "shard.mdb");
    assert_true(snapshots_busy(fixture->snapshots));
    struct snapshots_report report = await(fixture);
    assert_int_equal(report.id, 9);
    assert_int_equal(report.scaler.skipped, 7);
    assert_false(snapshots_busy(fixture->snapshots));
    assert_false(snapshots_has(fixture->snapshots, 9));
    assert_int_equal(copies(fixture), 0);
    check_file(fixture, &report, 4);
    expect_none(fixture);
}

TEST(a_requested_snapshot_is_reported_as_held_before_it_is_written) {
    snapshots_begin(fixture->snapshots, REQUESTED, false, FULL);
    add_all(fixture, REQUESTED, 4);
    order(fixture, REQUESTED, "shard.mdb");
    struct snapshots_report report = await(fixture);
    assert_int_equal(report.outcome, HELD);
    assert_int_equal(report.step, 4);
    report = await(fixture);
    check_file(fixture, &report, 4);
}

TEST(blocks_may_arrive_after_the_command) {
    snapshots_begin(fixture->snapshots, 1, false, FULL);
    order(fixture, 1, "shard.mdb");
    for (uint32_t b = 0; b < BLOCKS; b++) {
        assert_true(snapshots_accepts(fixture->snapshots, 1));
        add(fixture, 1, b, 1);
        add(fixture, 1, b, 2); /* the first counts */
    }
    struct snapshots_report report = await(fixture);
    check_file(fixture, &report, 1);
}

/* As in all-reduce, where reads are answered from the current weights. */
TEST(a_promised_snapshot_is_held_before_its_blocks_arrive) {
    snapshots_begin(fixture->snapshots, REQUESTED, false, FULL);
    snapshots_promise(fixture->snapshots, REQUESTED, 30);
    struct snapshots_report report = await(fixture);
    assert_int_equal(report.outcome, HELD);
    assert_int_equal(report.step, 30);
    order(fixture, REQUESTED, "shard.mdb");
    add_all(fixture, REQUESTED, 30);
    report = await(fixture);
    check_file(fixture, &report, 30);
}

TEST(only_retained_weights_may_be_read) {
    snapshots_begin(fixture->snapshots, 4, false, FULL);
    add(fixture, 4, 0, 1);
    assert_null(snapshots_weights(fixture->snapshots, 4, 0));
    snapshots_begin(fixture->snapshots, 5, true, FULL);
    add(fixture, 5, 0, 1);
    struct buffer *weights = snapshots_weights(fixture->snapshots, 5, 0);
    assert_non_null(weights);
    assert_true(*(float *)buffer_data(weights) == 10);
    assert_null(snapshots_weights(fixture->snapshots, 5, 1));
    assert_null(snapshots_weights(fixture->snapshots, 6, 0));
    snapshots_release(fixture->snapshots, 5);
    assert_false(snapshots_has(fixture->snapshots, 5));
    assert_int_equal(copies(fixture), TENSORS);
}

TEST(a_retained_snapshot_stays_after_it_was_written) {
    snapshots_begin(fixture->snapshots, 5, true, FULL);
    add_all(fixture, 5, 1);
    order(fixture, 5, "shard.mdb");
    assert_int_equal(await(fixture).outcome, WRITTEN);
    for (uint32_t b = 0; b < BLOCKS; b++)
        assert_non_null(snapshots_weights(fixture->snapshots, 5, b));
    expect_none(fixture);
    snapshots_release(fixture->snapshots, 5);
    assert_false(snapshots_has(fixture->snapshots, 5));
}

/* Its later blocks do not begin it again, and nothing waits for them. */
TEST(a_missing_folder_is_a_failure_with_its_reason) {
    snapshots_begin(fixture->snapshots, 5, false, FULL);
    add(fixture, 5, 0, 1);
    snapshots_write(fixture->snapshots, 5, 5, NULL, "/proc/nowhere/at/all",
                    "shard.mdb");
    struct snapshots_report report = await(fixture);
    assert_int_equal(report.outcome, NOT_WRITTEN);
    assert_contains(report.why.text, "/proc/nowhere");
    assert_true(snapshots_has(fixture->snapshots, 5));
    assert_false(snapshots_accepts(fixture->snapshots, 5));
    add(fixture, 5, 1, 1);
    assert_int_equal(copies(fixture), 0);
    snapshots_begin(fixture->snapshots, 6, false, FULL);
    assert_false(snapshots_has(fixture->snapshots, 5));
    order(fixture, 6, "shard.mdb");
    add_all(fixture, 6, 2);
    report = await(fixture);
    check_file(fixture, &report, 2);
}

TEST(a_requested_snapshot_that_is_not_written_is_still_held) {
    snapshots_begin(fixture->snapshots, REQUESTED, true, FULL);
    snapshots_write(fixture->snapshots, REQUESTED, 3, NULL,
                    "/proc/nowhere/at/all", "shard.mdb");
    while (snapshots_busy(fixture->snapshots))
        sched_yield();
    expect_none(fixture);
    assert_true(snapshots_accepts(fixture->snapshots, REQUESTED));
    add_all(fixture, REQUESTED, 3);
    assert_int_equal(await(fixture).outcome, HELD);
    assert_int_equal(await(fixture).outcome, NOT_WRITTEN);
    assert_non_null(snapshots_weights(fixture->snapshots, REQUESTED, 2));
    snapshots_release(fixture->snapshots, REQUESTED);
    assert_int_equal(copies(fixture), 0);
}

TEST(a_block_without_memory_for_a_copy_fails_the_file) {
    uint64_t version = 1;
    struct buffer *none[TENSORS] = {NULL};
    struct snapshots_block block = {.tensors = none, .row = &version};
    snapshots_begin(fixture->snapshots, 5, false, FULL);
    order(fixture, 5, "shard.mdb");
    snapshots_add(fixture->snapshots, 5, 0, &block);
    struct snapshots_report report = await(fixture);
    assert_int_equal(report.outcome, NOT_WRITTEN);
    assert_contains(report.why.text, "no memory for a copy of");
}

/* The bytes of all rows do not even fit into a size_t. */
TEST(a_snapshot_without_memory_is_reported_with_its_reason) {
    snapshots_close(&fixture->snapshots);
    open_snapshots(fixture, SIZE_MAX / 2);
    snapshots_begin(fixture->snapshots, REQUESTED, true, FULL);
    add_all(fixture, REQUESTED, 1);
    struct snapshots_report report = await(fixture);
    assert_int_equal(report.id, REQUESTED);
    assert_int_equal(report.outcome, NOT_HELD);
    assert_string_equal(report.why.text, "no memory for a snapshot");
    assert_null(snapshots_weights(fixture->snapshots, REQUESTED, 0));
    snapshots_release(fixture->snapshots, REQUESTED);
    assert_false(snapshots_has(fixture->snapshots, REQUESTED));
    snapshots_begin(fixture->snapshots, 7, false, FULL);
    order(fixture, 7, "shard.mdb");
    assert_int_equal(await(fixture).outcome, NOT_WRITTEN);
    expect_none(fixture);
}

TEST(a_skipped_snapshot_takes_no_blocks) {
    snapshots_skip(fixture->snapshots, 8, FULL, "late");
    assert_true(snapshots_has(fixture->snapshots, 8));
    assert_false(snapshots_accepts(fixture->snapshots, 8));
    assert_false(snapshots_busy(fixture->snapshots));
    add(fixture, 8, 0, 8);
    struct snapshots_report report = await(fixture);
    assert_int_equal(report.outcome, NOT_WRITTEN);
    assert_true(report.skipped);
    assert_string_equal(report.why.text, "late");
}

TEST(several_snapshots_are_written_in_sequence) {
    char name[32];
    for (uint64_t id = 1; id <= 3; id++) {
        snapshots_begin(fixture->snapshots, id, false, FULL);
        add_all(fixture, id, id);
        snprintf(name, sizeof name, "shard-%d.mdb", (int)id);
        order(fixture, id, name);
    }
    for (int i = 0; i < 3; i++) {
        struct snapshots_report report = await(fixture);
        check_file(fixture, &report, report.id);
    }
}

TEST(snapshots_that_end_together_are_reported_in_order) {
    int64_t end = time_now() + 60 * TIME_S;
    char name[32];
    for (uint64_t id = 1; id <= 3; id++) {
        snapshots_begin(fixture->snapshots, id, false, FULL);
        add_all(fixture, id, id);
        snprintf(name, sizeof name, "shard-%d.mdb", (int)id);
        order(fixture, id, name);
    }
    while (snapshots_busy(fixture->snapshots) && time_now() < end)
        sched_yield();
    for (uint64_t id = 1; id <= 3; id++)
        assert_int_equal(await(fixture).id, id);
}

TEST(a_partial_file_is_removed_at_the_end) {
    snapshots_begin(fixture->snapshots, 1, false, FULL);
    order(fixture, 1, "shard.mdb");
    add(fixture, 1, 0, 0); /* the others never come */
    snapshots_close(&fixture->snapshots);
    assert_null(fixture->snapshots);
    assert_int_equal(checkpoint_fixture_entries(fixture->folder), 0);
}

/* The last planned file fails before its last block has come, and the snapshot
 * of the end begins meanwhile. */
TEST(a_failed_round_is_not_begun_again_by_its_later_blocks) {
    snapshots_begin(fixture->snapshots, 5, false, FULL);
    add(fixture, 5, 0, 1);
    snapshots_write(fixture->snapshots, 5, 5, NULL, "/proc/nowhere/at/all",
                    "shard.mdb");
    assert_int_equal(await(fixture).outcome, NOT_WRITTEN);
    snapshots_begin(fixture->snapshots, REQUESTED, false, FULL);
    assert_true(snapshots_has(fixture->snapshots, 5));
    snapshots_begin(fixture->snapshots, 6, false, FULL);
    assert_false(snapshots_has(fixture->snapshots, 5));
}

/* As the chief does if another holder cannot hold it, or no trainer is left. */
TEST(a_snapshot_released_before_it_is_held_does_not_block_the_writer) {
    snapshots_begin(fixture->snapshots, REQUESTED, false, FULL);
    order(fixture, REQUESTED, "given-up.mdb");
    add(fixture, REQUESTED, 0, 1); /* the others never come */
    snapshots_release(fixture->snapshots, REQUESTED);
    snapshots_begin(fixture->snapshots, 7, false, FULL);
    order(fixture, 7, "shard.mdb");
    add_all(fixture, 7, 2);
    struct snapshots_report report = await(fixture);
    assert_int_equal(report.id, 7);
    check_file(fixture, &report, 2);
    assert_false(snapshots_has(fixture->snapshots, REQUESTED));
    expect_none(fixture);
}

/* A holder of block 5 and of partitions 2 and 0 of three. */
struct tables {
    struct fixture fixture;
    struct manifest manifest;
    uint32_t ids[3];
    struct shard_rows_source *rows[2];
};

static int setup_tables(void **state) {
    struct tables *tables = calloc(1, sizeof *tables);
    struct manifest *manifest = &tables->manifest;
    checkpoint_fixture_manifest(manifest, 1, 1);
    checkpoint_fixture_tables(manifest, CHECKPOINT_FIXTURE_TABLES, 3);
    uint32_t num_blocks = manifest->layout->num_blocks;
    memcpy(tables->ids, (uint32_t[]){5, num_blocks + 2, num_blocks},
           sizeof tables->ids);
    tables->rows[0] = checkpoint_fixture_rows(manifest, 2);
    tables->rows[1] = checkpoint_fixture_rows(manifest, 0);
    struct snapshots_settings settings = {.layout = manifest->layout,
                                          .ids = tables->ids,
                                          .num_units = 3,
                                          .num_tensors = TENSORS,
                                          .row_bytes = sizeof(uint64_t)};
    tables->fixture.layout = manifest->layout;
    checkpoint_fixture_folder(tables->fixture.folder);
    *state = tables;
    return snapshots_open(&tables->fixture.snapshots, &settings, &failure);
}

static int teardown_tables(void **state) {
    struct tables *tables = *state;
    snapshots_close(&tables->fixture.snapshots);
    assert_int_equal(tables->fixture.copies, 0);
    for (int p = 0; p < 2; p++) /* nothing else holds the pages */
        for (uint32_t s = 0; s < tables->manifest.layout->num_stacks; s++)
            for (size_t i = 0; i < tables->rows[p][s].num_pages; i++)
                assert_true(buffer_is_unique(tables->rows[p][s].pages[i]));
    for (int p = 0; p < 2; p++)
        checkpoint_fixture_free_rows(tables->rows[p],
                                     tables->manifest.layout->num_stacks);
    checkpoint_fixture_remove(tables->fixture.folder);
    manifest_clear(&tables->manifest);
    free(tables);
    return 0;
}

static void add_partition(struct tables *tables, uint64_t id, uint32_t p,
                          uint64_t version) {
    struct snapshots_block block = {
        .version = version, .rows = tables->rows[p], .row = &version};
    snapshots_add(tables->fixture.snapshots, id, 1 + p, &block);
}

/* The file has the rows and the version of PARTITION; returns how many rows. */
static uint64_t check_partition(struct tables *tables,
                                struct shard_reader *reader, uint32_t partition,
                                uint64_t version) {
    const void *value;
    size_t bytes;
    uint64_t count = 0;
    const struct layout *layout = tables->manifest.layout;
    struct shard_key key = {.parameter = SHARD_ROWS | partition,
                            .slot = SHARD_ROW};
    for (uint32_t s = 0; s < layout->num_stacks; s++) {
        struct shard_rows rows;
        struct shard_rows_key of = {.layout = layout,
                                    .partition = partition,
                                    .stack = s,
                                    .row_bytes = tables->rows[0][s].row_bytes};
        assert_ok(shard_rows_read(&rows, reader, &of, &failure));
        for (size_t v = 0; v < rows.count; v++)
            count += rows.values[v].count;
        shard_rows_clear(&rows);
    }
    assert_ok(shard_reader_get(reader, key, &value, &bytes, &failure));
    assert_int_equal(bytes, sizeof version);
    assert_memory_equal(value, &version, sizeof version);
    return count;
}

TEST_WITH(setup_tables, teardown_tables,
          partitions_are_written_with_blocks_and_their_rows_counted) {
    struct tables *tables = *state;
    fixture = &tables->fixture;
    struct shard_reader *reader;
    snapshots_begin(fixture->snapshots, 9, false, FULL);
    order(fixture, 9, "shard.mdb");
    add_partition(tables, 9, 1, 7);
    add(fixture, 9, 0, 7);
    assert_true(snapshots_accepts(fixture->snapshots, 9));
    add_partition(tables, 9, 0, 7);
    struct snapshots_report report = await(fixture);
    assert_int_equal(report.outcome, WRITTEN);
    assert_ok(
        shard_reader_open(&reader, fixture->folder, &report.info, &failure));
    uint64_t count = check_partition(tables, reader, 2, 7) +
                     check_partition(tables, reader, 0, 7);
    shard_reader_close(&reader);
    uint64_t wanted[CHECKPOINT_FIXTURE_TABLES] = {0}, all = 0;
    for (uint32_t t = 0; t < CHECKPOINT_FIXTURE_TABLES; t++) {
        for (uint32_t i = 0; i < CHECKPOINT_FIXTURE_IDS; i++)
            wanted[t] += checkpoint_fixture_has_row(t, i) &&
                         layout_partition(
                             fixture->layout,
                             layout_row_hash(t, checkpoint_fixture_id(i))) != 1;
        assert_int_equal(report.counts[t].rows, wanted[t]);
        all += wanted[t];
    }
    assert_int_equal(report.counts[0].admitted, wanted[0]);
    assert_true(report.counts[2].admitted > wanted[2] / 3);
    assert_true(report.counts[2].admitted < wanted[2] * 2 / 3);
    assert_int_equal(count, all);
    free(report.counts);
}

TEST_WITH(setup_tables, teardown_tables, only_retained_rows_may_be_read) {
    struct tables *tables = *state;
    struct snapshots *snapshots = tables->fixture.snapshots;
    snapshots_begin(snapshots, 4, false, FULL);
    add_partition(tables, 4, 0, 1);
    assert_null(snapshots_rows(snapshots, 4, 1));
    snapshots_begin(snapshots, 5, true, FULL);
    add_partition(tables, 5, 0, 1);
    const struct shard_rows_source *rows = snapshots_rows(snapshots, 5, 1);
    assert_non_null(rows);
    assert_int_equal(rows[0].rows, tables->rows[0][0].rows);
    assert_ptr_equal(rows[1].pages[0], tables->rows[0][1].pages[0]);
    assert_false(buffer_is_unique(rows[0].pages[rows[0].num_pages - 1]));
    assert_null(snapshots_rows(snapshots, 5, 2));
    snapshots_release(snapshots, 5);
    snapshots_release(snapshots, 4);
}

TEST_WITH(setup_tables, teardown_tables,
          a_partition_without_memory_for_a_copy_fails_the_file) {
    struct tables *tables = *state;
    fixture = &tables->fixture;
    uint64_t version = 1;
    struct snapshots_block block = {.row = &version};
    snapshots_begin(fixture->snapshots, 5, false, FULL);
    order(fixture, 5, "shard.mdb");
    snapshots_add(fixture->snapshots, 5, 2, &block);
    struct snapshots_report report = await(fixture);
    assert_int_equal(report.outcome, NOT_WRITTEN);
    assert_contains(report.why.text, "rows of partition 0");
    free(report.counts);
}
