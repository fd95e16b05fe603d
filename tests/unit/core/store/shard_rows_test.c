/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "core/store/shard_rows.h"

#include "proto/holder/snapshots.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/test.h"

enum {
    DIM = 4,
    ROW_BYTES = sizeof(struct row) + DIM * sizeof(float),
    FULL = SHARD_ROWS_VALUE_BYTES / ROW_BYTES, /* rows of a value */
    PARTITIONS = 2,
};

struct fixture {
    struct checkpoint_fixture_file file;
    struct layout *layout;
    struct shard_writer *writer;
    struct shard_reader *reader;
    struct shard_rows rows;
};

/* Tables 0 and 1 are stack 0, table 2, admitted by 3 pushes, is stack 1. */
static int setup(void **state) {
    static const struct table tables[] = {
        {.name = "a", .dim = DIM},
        {.name = "b", .dim = DIM},
        {.name = "c", .dim = DIM, .admit = 3}};
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct parameter parameter = {.name = "w", .num_dims = 1, .dims = {1}};
    checkpoint_fixture_folder(fixture->file.folder);
    snprintf(fixture->file.path, sizeof fixture->file.path, "%s/s.mdb",
             fixture->file.folder);
    *state = fixture;
    return layout_build(&fixture->layout, &parameter, 1, &failure) ||
           layout_add_tables(fixture->layout, tables, 3, PARTITIONS,
                             &failure) ||
           shard_writer_open(&fixture->writer, fixture->file.path, 0, 0,
                             &failure);
}

TEARDOWN(teardown) {
    shard_rows_clear(&fixture->rows);
    shard_reader_close(&fixture->reader);
    shard_writer_abort(&fixture->writer);
    layout_free(&fixture->layout);
    checkpoint_fixture_remove(fixture->file.folder);
    free(fixture);
}

FIXTURE(setup, teardown);

/* The first id from FROM on whose row of table T is in partition 1. */
static uint64_t id_from(const struct layout *layout, uint32_t t,
                        uint64_t from) {
    while (layout_partition(layout, layout_row_hash(t, from)) != 1)
        from++;
    return from;
}

/* Writes COUNT rows of table T to partition 1, the highest id first. */
static void write_list(struct fixture *fixture, uint32_t t, uint32_t count) {
    struct buffer *page = buffer_open((count + 1) * ROW_BYTES, NULL, NULL);
    struct shard_rows_source rows[2] = {{.row_bytes = ROW_BYTES},
                                        {.row_bytes = ROW_BYTES}};
    struct shard_rows_count counts[3] = {{0}};
    uint64_t id = 0;
    char *to = (char *)buffer_data(page) + count * ROW_BYTES;
    memset(buffer_data(page), 0, (count + 1) * ROW_BYTES);
    for (uint32_t r = 0; r < count; r++) {
        to -= ROW_BYTES;
        id = id_from(fixture->layout, t, id + 1);
        *(struct row *)to = (struct row){.id = id, .table = (uint16_t)t};
    }
    rows[fixture->layout->tables[t].stack] =
        (struct shard_rows_source){.pages = &page,
                                   .num_pages = 1,
                                   .rows = count,
                                   .page_rows = count + 1,
                                   .row_bytes = ROW_BYTES};
    assert_ok(shard_rows_write(fixture->writer, fixture->layout, 1, rows,
                               counts, &failure));
    assert_int_equal(counts[t].rows, count);
    assert_int_equal(counts[t].admitted, t == 2 ? 0 : count);
    buffer_release(&page);
}

static enum status read_list(struct fixture *fixture, uint32_t stack,
                             struct failure *why) {
    struct shard_info info;
    struct shard_rows_key key = {.layout = fixture->layout,
                                 .partition = 1,
                                 .stack = stack,
                                 .row_bytes = ROW_BYTES};
    if (fixture->writer) {
        assert_int_equal(shard_writer_finish(&fixture->writer, &info, why),
                         STATUS_OK);
        assert_int_equal(shard_reader_open(&fixture->reader,
                                           fixture->file.folder, &info, why),
                         STATUS_OK);
    }
    shard_rows_clear(&fixture->rows);
    return shard_rows_read(&fixture->rows, fixture->reader, &key, why);
}

/* Opens what was written, and reads a list of stack 0. */
static void read_changes(struct fixture *fixture, bool removed,
                         struct shard_rows *out) {
    struct shard_info info;
    struct shard_rows_key key = {.layout = fixture->layout,
                                 .partition = 1,
                                 .row_bytes =
                                     removed ? sizeof(struct row) : ROW_BYTES,
                                 .removed = removed};
    if (fixture->writer)
        assert_ok(shard_writer_finish(&fixture->writer, &info, &failure) ||
                  shard_reader_open(&fixture->reader, fixture->file.folder,
                                    &info, &failure));
    assert_ok(shard_rows_read(out, fixture->reader, &key, &failure));
}

/* Rows 0 to 9 are there, those from 5 on touched since update 1000, whose
 * number was 2^32 + 1000 after 32 bits. Rows 10 and 11 were removed, row 10
 * twice; row 9 came again, row 12 was removed before. */
TEST(a_delta_has_what_changed_and_what_is_gone) {
    enum { ROWS = 10 };
    struct buffer *page = buffer_open(ROWS * ROW_BYTES, NULL, NULL);
    struct buffer *removed = buffer_open(5 * sizeof(struct row), NULL, NULL);
    static const uint32_t gone[5][2] = {
        {11, 1000}, {9, 1001}, {10, 1002}, {12, 999}, {10, 1004}};
    uint64_t ids[13] = {id_from(fixture->layout, 0, 0)};
    for (int i = 1; i < 13; i++)
        ids[i] = id_from(fixture->layout, 0, ids[i - 1] + 1);
    memset(buffer_data(page), 0, ROWS * ROW_BYTES);
    for (uint32_t r = 0; r < ROWS; r++)
        *(struct row *)((char *)buffer_data(page) + r * ROW_BYTES) =
            (struct row){.id = ids[r], .touched = r < 5 ? 1000 - r : 1001 + r};
    for (int i = 0; i < 5; i++)
        ((struct row *)buffer_data(removed))[i] =
            (struct row){.id = ids[gone[i][0]], .touched = gone[i][1]};
    struct shard_rows_source rows[2] = {
        {.pages = &page,
         .num_pages = 1,
         .rows = ROWS,
         .page_rows = ROWS,
         .row_bytes = ROW_BYTES,
         .delta = true,
         .since = (UINT64_C(1) << 32) + 1000,
         .removed = removed,
         .num_removed = 5},
        {.row_bytes = ROW_BYTES, .delta = true, .since = 1000}};
    struct shard_rows_count counts[3] = {{0}};
    assert_ok(shard_rows_write(fixture->writer, fixture->layout, 1, rows,
                               counts, &failure));
    assert_int_equal(counts[0].rows, ROWS);
    struct shard_rows changed, without;
    struct shard_rows_place place = {0};
    const struct row *row;
    read_changes(fixture, false, &changed);
    for (int i = 5; i < ROWS; i++)
        assert_true((row = shard_rows_next(&changed, &place)) &&
                    row->id == ids[i]);
    assert_null(shard_rows_next(&changed, &place));
    read_changes(fixture, true, &without);
    place = (struct shard_rows_place){0};
    for (int i = 10; i < 12; i++)
        assert_true((row = shard_rows_next(&without, &place)) &&
                    row->id == ids[i]);
    assert_null(shard_rows_next(&without, &place));
    assert_false(shard_reader_has(
        fixture->reader, (struct shard_key){.parameter = SHARD_ROWS | 1,
                                            .slot = SHARD_REMOVED | 1}));
    shard_rows_clear(&changed);
    shard_rows_clear(&without);
    buffer_release(&page);
    buffer_release(&removed);
}

TEST(a_list_of_any_length_ends_where_it_ends) {
    static const uint32_t lengths[] = {0,    1,        30,      FULL - 1,
                                       FULL, FULL + 1, 2 * FULL};
    for (int i = 0; i < 7; i++) {
        uint32_t count = 0;
        uint64_t before = 0;
        const struct row *row;
        struct shard_rows_place place = {0};
        if (i)
            assert_int_equal(setup(state), 0);
        fixture = *state;
        write_list(fixture, 1, lengths[i]);
        assert_ok(read_list(fixture, 0, &failure));
        assert_int_equal(fixture->rows.count, lengths[i] / FULL + 1);
        for (; (row = shard_rows_next(&fixture->rows, &place)); count++) {
            assert_true(row->id > before && row->table == 1);
            before = row->id;
        }
        assert_int_equal(count, lengths[i]);
        assert_ok(read_list(fixture, 1, &failure));
        assert_int_equal(fixture->rows.values[0].count, 0);
        if (i < 6)
            teardown(state);
    }
}

/* By a search from the begin. */
TEST(a_row_is_found_or_the_one_after_it) {
    write_list(fixture, 1, 2 * FULL + 5);
    assert_ok(read_list(fixture, 0, &failure));
    struct shard_rows_place walk = {0};
    const struct row *at = shard_rows_next(&fixture->rows, &walk);
    for (uint64_t id = 0; at; id++) {
        struct shard_rows_place place = shard_rows_find(&fixture->rows, 1, id);
        while (at && at->id < id)
            at = shard_rows_next(&fixture->rows, &walk);
        assert_ptr_equal(shard_rows_next(&fixture->rows, &place), at);
    }
    struct shard_rows_place first = shard_rows_find(&fixture->rows, 0, 99),
                            end = shard_rows_find(&fixture->rows, 2, 0);
    assert_true(first.value == 0 && first.place == 0);
    assert_null(shard_rows_next(&fixture->rows, &end));
}

/* Rows of table T with ids of partition 1, ascending. */
static void fill_rows(const struct layout *layout, uint32_t t, char *bytes,
                      uint32_t count) {
    uint64_t id = 0;
    memset(bytes, 0, count * ROW_BYTES);
    for (uint32_t r = 0; r < count; r++, bytes += ROW_BYTES) {
        id = id_from(layout, t, id + 1);
        *(struct row *)bytes = (struct row){.id = id, .table = (uint16_t)t};
    }
}

TEST(damaged_rows_are_refused_by_name) {
    static const struct {
        const char *name; /* of what is wrong with row 2 of 3 */
        size_t bytes;
        uint16_t table, count;
        int ids; /* 1: as row 1's, 2: below it, 3: of another partition */
    } cases[] = {
        {"its size is not that of whole rows", 3 * ROW_BYTES - 1, 0, 0, 0},
        {"a row of no table of this stack", 3 * ROW_BYTES, 2, 0, 0},
        {"a row of no table of this stack", 3 * ROW_BYTES, 9, 0, 0},
        {"a row with more pushes than admit it", 3 * ROW_BYTES, 0, 1, 0},
        {"its rows do not ascend", 3 * ROW_BYTES, 0, 0, 1},
        {"its rows do not ascend", 3 * ROW_BYTES, 0, 0, 2},
        {"a row of another partition", 3 * ROW_BYTES, 0, 0, 3},
    };
    for (int i = 0; i < 7; i++) {
        char bytes[3 * ROW_BYTES];
        struct row *rows = (struct row *)bytes;
        struct shard_key key = {.parameter = SHARD_ROWS | 1};
        if (i)
            assert_int_equal(setup(state), 0);
        fixture = *state;
        fill_rows(fixture->layout, 0, bytes, 3);
        struct row *second = (struct row *)(bytes + ROW_BYTES);
        second->table = cases[i].table;
        second->count = cases[i].count;
        if (cases[i].ids == 1)
            second->id = rows->id;
        if (cases[i].ids == 2) {
            rows->id = id_from(fixture->layout, 0, second->id + 1);
        }
        while (cases[i].ids == 3 &&
               layout_partition(fixture->layout,
                                layout_row_hash(0, second->id)) == 1)
            second->id++;
        assert_ok(shard_writer_put(fixture->writer, key, bytes, cases[i].bytes,
                                   &failure));
        assert_error(read_list(fixture, 0, &failure),
                     FAILURE_CHECKPOINT_DAMAGED);
        if (!strstr(failure.text, cases[i].name) ||
            !strstr(failure.text, "partition 1") ||
            !strstr(failure.text, fixture->file.path))
            fail_msg("%d: %s", i, failure.text);
        if (i < 6)
            teardown(state);
    }
}

/* Puts value NUMBER of COUNT rows from row FIRST of BYTES on. */
static void put_value(struct fixture *fixture, uint64_t number,
                      const char *bytes, uint32_t count) {
    struct shard_key key = {.parameter = SHARD_ROWS | 1, .offset = number};
    assert_ok(
        shard_writer_expect(fixture->writer, count * ROW_BYTES, 1, &failure));
    assert_ok(shard_writer_put(fixture->writer, key, bytes, count * ROW_BYTES,
                               &failure));
}

TEST(a_full_value_is_followed_by_another) {
    char *bytes = malloc((FULL + 1) * ROW_BYTES);
    fill_rows(fixture->layout, 0, bytes, FULL + 1);
    put_value(fixture, 0, bytes, FULL);
    assert_error(read_list(fixture, 0, &failure), FAILURE_CHECKPOINT_DAMAGED);
    assert_contains(failure.text, "partition 1, value 1");
    free(bytes);
}

TEST(values_ascend_and_have_no_more_rows_than_fit) {
    char *bytes = malloc((FULL + 1) * ROW_BYTES);
    fill_rows(fixture->layout, 0, bytes, FULL + 1);
    put_value(fixture, 0, bytes, FULL);
    put_value(fixture, 1, bytes, 1);
    assert_error(read_list(fixture, 0, &failure), FAILURE_CHECKPOINT_DAMAGED);
    assert_contains(failure.text, "value 1: its rows do not ascend");
    teardown(state);
    assert_int_equal(setup(state), 0);
    fixture = *state;
    put_value(fixture, 0, bytes, FULL + 1);
    assert_error(read_list(fixture, 0, &failure), FAILURE_CHECKPOINT_DAMAGED);
    assert_contains(failure.text, "value 0: its size");
    free(bytes);
}
