/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct page_points *points

#include "chief/report/page_points.h"

#include "chief/run.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"

#include <math.h>
#include <string.h>

static int setup(void **state) {
    *state = page_points_open();
    return *state ? 0 : -1;
}

static int teardown(void **state) {
    struct page_points *points = *state;
    page_points_close(&points);
    return 0;
}

FIXTURE(setup, teardown);

static struct point_outlet attach(struct page_points *points) {
    struct run run = {.page_points = points};
    struct point_outlet outlet = {0};
    assert_ok(page_points_attach(&outlet, &run, &failure));
    return outlet;
}

static void write_value(struct page_points *points, uint64_t step,
                        enum metric metric, double value) {
    struct metric_point point = metric_point_start(step);
    struct point_outlet outlet = attach(points);
    point.values[metric] = value;
    outlet.write(outlet.self, &point);
}

static size_t length_of(const json_t *data, const char *group,
                        const char *name) {
    return json_array_size(json_object_get(json_object_get(data, group), name));
}

TEST(a_run_that_nobody_asks_has_no_page) {
    assert_null(attach(NULL).write);
}

TEST(points_and_evaluations_are_columns_of_their_own) {
    write_value(points, 5, METRIC_TRAIN_LOSS, 0.25);
    write_value(points, 5, METRIC_TEST_ACCURACY, 0.5);
    write_value(points, 10, METRIC_STEPS_PER_SECOND, 3);
    json_t *data = page_points_describe(points);
    assert_int_equal(length_of(data, "points", "step"), 2);
    assert_int_equal(length_of(data, "points", "train_loss"), 2);
    assert_int_equal(length_of(data, "evaluations", "test_accuracy"), 1);
    assert_int_equal(length_of(data, "evaluations", "train_loss"), 0);
    const json_t *losses = json_object_get(json_object_get(data, "points"),
                                           metric_rows[METRIC_TRAIN_LOSS].name);
    assert_true(json_real_value(json_array_get(losses, 0)) == 0.25);
    assert_true(json_is_null(json_array_get(losses, 1)));
    json_decref(data);
}

/* 50,000 points are 2,000 at most, with those of the evaluations. */
TEST(a_long_run_is_drawn_by_2000_points) {
    enum { MANY = 50000 };
    for (uint64_t i = 1; i <= MANY; i++) {
        write_value(points, i, METRIC_TRAIN_LOSS, i == 777 ? NAN : sin(i));
        if (i % 20 == 0)
            write_value(points, i, METRIC_TEST_LOSS, 1);
    }
    json_t *data = page_points_describe(points);
    size_t drawn = length_of(data, "points", "step");
    assert_int_equal(json_integer_value(json_object_get(data, "added")), MANY);
    assert_true(drawn + length_of(data, "evaluations", "step") <= 2000);
    assert_true(drawn >= PAGE_POINTS / 2 - 4);
    const json_t *steps =
        json_object_get(json_object_get(data, "points"), "step");
    const json_t *losses =
        json_object_get(json_object_get(data, "points"), "train_loss");
    assert_int_equal(json_integer_value(json_array_get(steps, 0)), 1);
    assert_int_equal(json_integer_value(json_array_get(steps, drawn - 1)),
                     MANY);
    size_t nulls = 0;
    for (size_t i = 0; i < drawn; i++)
        nulls += json_is_null(json_array_get(losses, i));
    assert_int_equal(nulls, 1);
    json_decref(data);
}

TEST(columns_have_an_element_for_each_row) {
    json_t *columns = json_object();
    const char *const rows[] = {"{\"a\": 1}", "{\"b\": 2.5}", "{}",
                                "{\"a\": 4, \"b\": null}"};
    for (size_t i = 0; i < 4; i++) {
        json_t *row = json_loads(rows[i], 0, NULL);
        page_points_add_row(columns, i, row);
        json_decref(row);
    }
    json_t *wanted = json_loads("{\"a\": [1, null, null, 4],"
                                " \"b\": [null, 2.5, null, null]}",
                                0, NULL);
    assert_true(json_equal(columns, wanted));
    json_decref(columns);
    json_decref(wanted);
}
