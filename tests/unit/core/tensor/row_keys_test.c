/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of rows as a message has them: what is written is read again, in the
 * fewest bytes; whatever else comes is refused or is in order. */
#include "core/tensor/row_keys.h"

#include "tests/lib/seed.h"
#include "tests/lib/test.h"

enum { MAX_TABLES = 64, MAX_STACKS = 3, MAX_ROWS = 2000 };

/* Rows to write and as they were read; BYTES [size] of them in a message. */
struct lists {
    struct layout *layout;
    struct row_keys keys[MAX_STACKS], read[MAX_STACKS];
    unsigned char *bytes;
    size_t size;
};

/* TABLES tables, table t in stack t mod STACKS, which has rows of 1 + 2 s
 * floats. */
static void open_lists(struct lists *lists, uint32_t stacks, uint32_t tables) {
    struct parameter parameter = {.name = "p"};
    struct table list[MAX_TABLES] = {0};
    *lists = (struct lists){0};
    for (uint32_t t = 0; t < tables; t++) {
        snprintf(list[t].name, LAYOUT_MAX_NAME, "t%u", t);
        list[t].dim = 1 + 2 * (t % stacks);
    }
    assert_ok(layout_build(&lists->layout, &parameter, 1, &failure));
    assert_ok(layout_add_tables(lists->layout, list, tables, 8, &failure));
    assert_int_equal(lists->layout->num_stacks, stacks);
}

static void close_lists(struct lists *lists) {
    for (int s = 0; s < MAX_STACKS; s++) {
        row_keys_free(&lists->keys[s]);
        row_keys_free(&lists->read[s]);
    }
    free(lists->bytes);
    layout_free(&lists->layout);
}

static int compare_ids(const void *a, const void *b) {
    uint64_t left, right;
    memcpy(&left, a, sizeof left);
    memcpy(&right, b, sizeof right);
    return left < right ? -1 : left > right;
}

enum id_kind { DENSE, ANY_BITS, EXTREMES, ID_KINDS };

static uint64_t draw_id(struct philox_sequence *random, enum id_kind kind,
                        uint32_t i) {
    static const uint64_t extremes[] = {0, 1, UINT64_MAX, UINT64_MAX - 1};
    uint64_t bits = (uint64_t)philox_next(random) << 32 | philox_next(random);
    if (kind == DENSE)
        return 1000 + 3 * (uint64_t)i;
    return kind == EXTREMES ? extremes[bits % 4] : bits;
}

/* At most COUNT rows of TABLE behind those there are. */
static void add_rows(struct lists *lists, uint32_t table, uint32_t count,
                     enum id_kind kind, struct philox_sequence *random) {
    struct row_keys *keys = &lists->keys[lists->layout->tables[table].stack];
    uint64_t ids[MAX_ROWS];
    for (uint32_t i = 0; i < count; i++)
        ids[i] = draw_id(random, kind, i);
    qsort(ids, count, sizeof *ids, compare_ids);
    assert_true(row_keys_reserve(keys, keys->count + count));
    for (uint32_t i = 0; i < count; i++) {
        if (i && ids[i] == ids[i - 1])
            continue;
        keys->ids[keys->count] = ids[i];
        keys->tables[keys->count++] = (uint16_t)table;
    }
}

static void draw_lists(struct lists *lists, struct philox_sequence *random,
                       uint32_t max_rows) {
    uint32_t stacks = 1 + philox_below(random, MAX_STACKS);
    uint32_t tables = stacks + philox_below(random, 4);
    open_lists(lists, stacks, tables);
    for (uint32_t t = 0; t < tables; t++)
        if (philox_below(random, 4))
            add_rows(lists, t, philox_below(random, max_rows / tables + 1),
                     (enum id_kind)philox_below(random, ID_KINDS), random);
}

/* To memory of the very room, then of the very size, so that a sanitizer sees
 * more. */
static void write_lists(struct lists *lists) {
    lists->bytes = malloc(row_keys_most_bytes(lists->layout, lists->keys));
    lists->size = row_keys_write(lists->layout, lists->keys, lists->bytes);
    lists->bytes = realloc(lists->bytes, lists->size);
}

static void assert_same_rows(const struct lists *lists) {
    for (uint32_t s = 0; s < lists->layout->num_stacks; s++) {
        const struct row_keys *keys = &lists->keys[s], *read = &lists->read[s];
        assert_int_equal(read->count, keys->count);
        if (!keys->count)
            continue;
        assert_memory_equal(read->ids, keys->ids, keys->count * 8);
        assert_memory_equal(read->tables, keys->tables, keys->count * 2);
    }
}

static size_t number_bytes(uint64_t value) {
    size_t bytes = 1;
    while (value >>= 8)
        bytes++;
    return bytes;
}

/* Bytes of the ids in either form, and of the numbers before them. */
static void expected_bytes(const struct lists *lists, size_t *plain,
                           size_t *delta, size_t *counts) {
    *plain = *delta = 0;
    *counts = (lists->layout->num_tables + 1) / 2;
    for (uint32_t s = 0; s < lists->layout->num_stacks; s++)
        *delta += (lists->keys[s].count + 1) / 2;
    for (uint32_t t = 0; t < lists->layout->num_tables; t++) {
        const struct row_keys *keys =
            &lists->keys[lists->layout->tables[t].stack];
        uint64_t before = 0, count = 0;
        for (uint32_t i = 0; i < keys->count; i++) {
            if (keys->tables[i] != t)
                continue;
            *delta += number_bytes(keys->ids[i] - before);
            before = keys->ids[i];
            count++;
        }
        *plain += 8 * count;
        *counts += number_bytes(count);
    }
}

TEST(lists_are_read_as_written_in_the_shorter_form) {
    struct philox_sequence random;
    bool chosen[2] = {false};
    seed_open(&random);
    for (int trial = 0; trial < 400; trial++) {
        struct lists lists;
        size_t plain, delta, counts, used;
        draw_lists(&lists, &random, MAX_ROWS);
        write_lists(&lists);
        expected_bytes(&lists, &plain, &delta, &counts);
        bool shorter = delta < plain;
        chosen[shorter] = true;
        assert_int_equal(lists.bytes[0],
                         shorter ? ROW_KEYS_DELTA : ROW_KEYS_PLAIN);
        assert_int_equal(lists.size, 1 + counts + (shorter ? delta : plain));
        for (int again = 0; again < 2; again++) {
            assert_ok(row_keys_read(lists.layout, lists.bytes, lists.size,
                                    lists.read, &used, &failure));
            assert_int_equal(used, lists.size);
            assert_same_rows(&lists);
        }
        close_lists(&lists);
    }
    assert_true(chosen[0] && chosen[1]);
}

TEST(floats_are_those_of_each_stacks_width) {
    struct philox_sequence random;
    seed_open(&random);
    for (int trial = 0; trial < 50; trial++) {
        struct lists lists;
        size_t floats = 0;
        draw_lists(&lists, &random, 100);
        for (uint32_t s = 0; s < lists.layout->num_stacks; s++) {
            assert_int_equal(row_keys_dim(lists.layout, s), 1 + 2 * s);
            floats += (size_t)lists.keys[s].count * (1 + 2 * s);
        }
        assert_int_equal(row_keys_floats(lists.layout, lists.keys), floats);
        close_lists(&lists);
    }
}

/* What follows the lists is the caller's. */
TEST(bytes_behind_the_lists_are_left) {
    static const uint64_t ids[] = {0, 5, UINT64_MAX};
    unsigned char bytes[64];
    struct lists lists;
    size_t used;
    open_lists(&lists, 1, 1);
    assert_true(row_keys_reserve(&lists.keys[0], 3));
    memcpy(lists.keys[0].ids, ids, sizeof ids);
    memset(lists.keys[0].tables, 0, 3 * sizeof *lists.keys[0].tables);
    lists.keys[0].count = 3;
    size_t size = row_keys_write(lists.layout, lists.keys, bytes);
    memset(bytes + size, 0xff, sizeof bytes - size);
    assert_ok(row_keys_read(lists.layout, bytes, sizeof bytes, lists.read,
                            &used, &failure));
    assert_int_equal(used, size);
    assert_same_rows(&lists);
    close_lists(&lists);
}

static void assert_refused(struct lists *lists, const void *bytes,
                           size_t size) {
    void *exact = malloc(size + !size);
    size_t used;
    if (size)
        memcpy(exact, bytes, size);
    assert_error(
        row_keys_read(lists->layout, exact, size, lists->read, &used, &failure),
        FAILURE_BAD_MESSAGE);
    free(exact);
}

TEST(every_truncation_is_refused) {
    struct philox_sequence random;
    seed_open(&random);
    for (int trial = 0; trial < 60; trial++) {
        struct lists lists;
        draw_lists(&lists, &random, 100);
        write_lists(&lists);
        for (size_t size = 0; size < lists.size; size++)
            assert_refused(&lists, lists.bytes, size);
        close_lists(&lists);
    }
}

/* Each row once, in order, in its own stack. */
static void assert_in_order(const struct lists *lists, size_t size) {
    for (uint32_t s = 0; s < lists->layout->num_stacks; s++) {
        const struct row_keys *keys = &lists->read[s];
        assert_true(keys->count <= size && keys->count <= keys->room);
        for (uint32_t i = 0; i < keys->count; i++) {
            assert_true(keys->tables[i] < lists->layout->num_tables);
            assert_int_equal(lists->layout->tables[keys->tables[i]].stack, s);
            if (i && keys->tables[i] == keys->tables[i - 1])
                assert_true(keys->ids[i] > keys->ids[i - 1]);
            else if (i)
                assert_true(keys->tables[i] > keys->tables[i - 1]);
        }
    }
}

static void mutate(unsigned char *bytes, size_t size,
                   struct philox_sequence *random) {
    for (uint32_t left = 1 + philox_below(random, 3); left; left--) {
        uint32_t in = philox_below(random, 2) && size > 8 ? 8 : (uint32_t)size;
        unsigned char *at = &bytes[philox_below(random, in)];
        uint32_t what = philox_next(random);
        *at = what & 256 ? (unsigned char)(*at ^ 1u << what % 8)
                         : (unsigned char)what;
    }
}

TEST(mutations_are_refused_or_in_order) {
    struct philox_sequence random;
    int accepted = 0, refused = 0;
    seed_open(&random);
    for (int trial = 0; trial < 1000; trial++) {
        struct lists lists;
        draw_lists(&lists, &random, trial % 50 ? 40 : MAX_ROWS);
        write_lists(&lists);
        unsigned char *bytes = malloc(lists.size);
        for (int mutation = 0; mutation < 100; mutation++) {
            size_t used;
            memcpy(bytes, lists.bytes, lists.size);
            mutate(bytes, lists.size, &random);
            enum status status = row_keys_read(lists.layout, bytes, lists.size,
                                               lists.read, &used, &failure);
            accepted += !status;
            refused += status != STATUS_OK;
            if (status) {
                assert_int_equal(failure.code, FAILURE_BAD_MESSAGE);
                continue;
            }
            assert_true(used <= lists.size);
            assert_in_order(&lists, lists.size);
        }
        free(bytes);
        close_lists(&lists);
    }
    assert_true(accepted > 1000 && refused > 1000);
}

TEST(rows_twice_or_out_of_order_are_refused) {
    /* one table; its count, in one byte; widths of the ids; the ids */
    static const unsigned char twice[] = {ROW_KEYS_DELTA, 0, 2, 0, 7, 0};
    static const unsigned char beyond[] = {
        ROW_KEYS_DELTA, 0,    2,    0x70, 7,    0xff, 0xff,
        0xff,           0xff, 0xff, 0xff, 0xff, 0xff};
    static const unsigned char no_width[] = {
        ROW_KEYS_DELTA, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const unsigned char other_form[] = {2, 0, 0};
    unsigned char plain[3 + 16] = {ROW_KEYS_PLAIN, 0, 2, 7};
    struct lists lists;
    open_lists(&lists, 1, 1);
    assert_refused(&lists, twice, sizeof twice);
    assert_refused(&lists, beyond, sizeof beyond);
    assert_refused(&lists, no_width, sizeof no_width);
    assert_refused(&lists, other_form, sizeof other_form);
    plain[11] = 6;
    assert_refused(&lists, plain, sizeof plain);
    plain[11] = 7;
    assert_refused(&lists, plain, sizeof plain);
    close_lists(&lists);
}

/* 64 tables, each of which seems to have as many rows as there are bytes. */
TEST(a_message_is_given_no_more_room_than_its_bytes) {
    enum { SIZE = 1 << 14 };
    unsigned char *bytes = calloc(1, SIZE);
    struct lists lists;
    open_lists(&lists, 1, MAX_TABLES);
    for (int form = ROW_KEYS_PLAIN; form <= ROW_KEYS_DELTA; form++) {
        bytes[0] = (unsigned char)form;
        for (int t = 0; t < MAX_TABLES; t++) { /* 15,360 in two bytes */
            bytes[1 + t / 2] = 0x11;
            bytes[1 + MAX_TABLES / 2 + 2 * t + 1] = 0x3c;
        }
        assert_refused(&lists, bytes, SIZE);
        assert_true(lists.read[0].room <= 2 * SIZE);
    }
    free(bytes);
    close_lists(&lists);
}
