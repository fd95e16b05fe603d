/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of a caller that looks up and pushes lists in any order: what each step
 * sums, beside the sums of what was pushed in it. */
#include "worker/train/table_steps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { TABLES = 2, PARTITIONS = 8, MOST = 40, LISTS = 8, FLOATS = 3 };

static const uint32_t dims[TABLES] = {FLOATS, 1};

/* A list of a step; VALUES are small integers, so that sums are exact. */
struct list {
    uint64_t ids[MOST];
    float values[MOST * FLOATS];
    struct external_rows rows;
};

struct fixture {
    struct layout *layout;
    struct table_steps steps;
    struct list read[LISTS], pushed[LISTS];
    uint32_t num_read, num_pushed;
    uint32_t random;
};

static uint32_t draw(struct fixture *fixture, uint32_t below) {
    fixture->random = fixture->random * 1664525 + 1013904223;
    return (fixture->random >> 8) % below;
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct table tables[TABLES] = {{.name = "a", .dim = dims[0]},
                                   {.name = "b", .dim = dims[1]}};
    struct parameter parameter = {.name = "p"};
    struct failure why;
    fixture->random = 1;
    *state = fixture;
    return layout_build(&fixture->layout, &parameter, 1, &why) ||
           layout_add_tables(fixture->layout, tables, TABLES, PARTITIONS,
                             &why) ||
           table_steps_open(&fixture->steps, fixture->layout, &why);
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    table_steps_close(&fixture->steps);
    layout_free(&fixture->layout);
    free(fixture);
    return 0;
}

static void draw_list(struct fixture *fixture, struct list *list) {
    list->rows = (struct external_rows){.table = draw(fixture, TABLES),
                                        .count = draw(fixture, MOST),
                                        .ids = list->ids,
                                        .values = list->values};
    for (size_t i = 0; i < list->rows.count; i++)
        list->ids[i] = draw(fixture, 25);
}

/* A lookup of COUNT lists; what it reads is 1 in table a and 2 in b. */
static void look_up(struct fixture *fixture, uint32_t count) {
    struct external_rows rows[LISTS];
    struct failure why;
    fixture->num_read = count;
    for (uint32_t i = 0; i < count; i++) {
        draw_list(fixture, &fixture->read[i]);
        rows[i] = fixture->read[i].rows;
    }
    assert_int_equal(table_steps_look_up(&fixture->steps, rows, count, &why),
                     0);
    struct row_batch *batch = &fixture->steps.awaited->batch;
    const uint32_t *position = batch->positions;
    for (uint32_t i = 0; i < count; i++)
        for (size_t k = 0; k < rows[i].count; k++, position++)
            for (uint32_t d = 0; d < dims[rows[i].table]; d++)
                batch->weights[*position + d] = 1 + (float)rows[i].table;
    table_steps_copy(&fixture->steps, rows, count);
    for (uint32_t i = 0; i < count; i++)
        for (size_t f = 0; f < rows[i].count * dims[rows[i].table]; f++)
            assert_int_equal((int)rows[i].values[f], 1 + (int)rows[i].table);
}

/* Pushes the ids of LIST, or new ones. */
static void push(struct fixture *fixture, const struct list *list) {
    struct list *pushed = &fixture->pushed[fixture->num_pushed++];
    struct failure why;
    if (list) {
        *pushed = *list;
        pushed->rows.ids = pushed->ids;
        pushed->rows.values = pushed->values;
    } else {
        draw_list(fixture, pushed);
    }
    for (size_t f = 0; f < MOST * FLOATS; f++)
        pushed->values[f] = (float)draw(fixture, 9) - 4;
    struct list sent = *pushed;
    sent.rows.ids = sent.ids;
    sent.rows.values = sent.values;
    assert_int_equal(table_steps_add(&fixture->steps, &sent.rows, &why), 0);
    memset(&sent, 0x55, sizeof sent); /* it is the caller's */
}

/* The sum of what was pushed to float D of ID's row of TABLE. */
static float expected_sum(const struct fixture *fixture, uint32_t table,
                          uint64_t id, uint32_t d) {
    float sum = 0;
    for (uint32_t i = 0; i < fixture->num_pushed; i++) {
        const struct external_rows *rows = &fixture->pushed[i].rows;
        for (size_t k = 0; rows->table == table && k < rows->count; k++)
            if (rows->ids[k] == id)
                sum += rows->values[k * dims[table] + d];
    }
    return sum;
}

/* Ends the step; returns whether its sums are where rows were looked up. */
static bool expect_sums(struct fixture *fixture) {
    const struct row_lists *read = fixture->steps.read;
    struct row_batch *batch;
    struct failure why;
    size_t added = 0;
    assert_int_equal(table_steps_sum(&fixture->steps, &batch, &why), 0);
    for (uint32_t i = 0; i < fixture->num_pushed; i++) {
        const struct external_rows *rows = &fixture->pushed[i].rows;
        for (size_t k = 0; k < rows->count; k++, added++)
            for (uint32_t d = 0; d < dims[rows->table]; d++)
                assert_true(
                    batch->gradients[batch->positions[added] + d] ==
                    expected_sum(fixture, rows->table, rows->ids[k], d));
    }
    if (!batch)
        assert_int_equal(added, 0);
    else
        assert_int_equal(batch->num_added, added);
    fixture->num_pushed = 0;
    return read && batch == &read->batch;
}

static void lists_pushed_as_they_were_read_are_summed_in_place(void **state) {
    struct fixture *fixture = *state;
    for (int step = 0; step < 20; step++) {
        look_up(fixture, 4);
        for (uint32_t i = 0; i < 4; i++)
            push(fixture, &fixture->read[i]);
        assert_true(expect_sums(fixture));
    }
}

static void rows_that_were_read_and_not_pushed_are_not_sent(void **state) {
    struct fixture *fixture = *state;
    look_up(fixture, 4);
    push(fixture, &fixture->read[0]);
    push(fixture, &fixture->read[1]);
    assert_false(expect_sums(fixture));
    look_up(fixture, 2);
    assert_false(expect_sums(fixture));
}

/* Lookups between the pushes of a step, other lists than were read, in another
 * order, and twice. */
static void any_order_has_the_same_sums(void **state) {
    struct fixture *fixture = *state;
    for (int step = 0; step < 3000; step++) {
        uint32_t calls = draw(fixture, LISTS);
        for (uint32_t i = 0; i < calls; i++) {
            uint32_t which = draw(fixture, 8);
            if (which == 0 || !fixture->num_read)
                look_up(fixture, 1 + draw(fixture, 4));
            else if (which == 1)
                push(fixture, NULL);
            else
                push(fixture,
                     &fixture->read[which == 2 ? 0 : i % fixture->num_read]);
        }
        expect_sums(fixture);
        if (draw(fixture, 2))
            look_up(fixture, 1 + draw(fixture, 4));
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(lists_pushed_as_they_were_read_are_summed_in_place),
        TEST(rows_that_were_read_and_not_pushed_are_not_sent),
        TEST(any_order_has_the_same_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
