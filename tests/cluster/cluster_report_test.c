/* SPDX-License-Identifier: Apache-2.0 */
/* The page that capstan report makes of a run's own lines of metrics. */
#include "core/base/time.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

FIXTURE(cluster_run_setup_in_memory, cluster_run_teardown);

static void make_page(struct cluster_run *run) {
    cluster_run_expect_soon(
        cluster_run_start(run, "report",
                          WORDS("report", "m.jsonl", "-o", "m.html"), NULL),
        0);
}

/* The data of the page; the caller's. */
static json_t *read_page(const struct cluster_run *run) {
    FILE *file = fopen(cluster_run_path(run, "m.html"), "r");
    char *line = NULL;
    size_t size = 0;
    json_t *data = NULL;
    assert_non_null(file);
    while (!data && getline(&line, &size, file) > 0) {
        char *begin = strstr(line, "application/json\">");
        if (begin)
            data = json_loads(strchr(begin, '>') + 1, JSON_DISABLE_EOF_CHECK,
                              NULL);
    }
    free(line);
    fclose(file);
    assert_non_null(data);
    return data;
}

static double number(const json_t *object, const char *name) {
    return json_number_value(json_object_get(object, name));
}

/* Each loss of the file is on the page, at its step; the number of them. */
static size_t expect_losses(const struct cluster_run *run, const json_t *data,
                            const char *group, const char *name) {
    const json_t *columns = json_object_get(data, group);
    const json_t *steps = json_object_get(columns, "step");
    const json_t *values = json_object_get(columns, name);
    FILE *file = fopen(cluster_run_path(run, "m.jsonl"), "r");
    char *text = NULL;
    size_t size = 0, found = 0, at = 0;
    assert_non_null(file);
    while (getline(&text, &size, file) > 0) {
        json_t *line = json_loads(text, 0, NULL);
        if (json_object_get(line, name)) {
            while (at < json_array_size(values) &&
                   json_is_null(json_array_get(values, at)))
                at++;
            assert_true(json_number_value(json_array_get(steps, at)) ==
                        number(line, "step"));
            assert_true(json_number_value(json_array_get(values, at)) ==
                        number(line, name));
            at++;
            found++;
        }
        json_decref(line);
    }
    free(text);
    fclose(file);
    return found;
}

TEST(a_page_has_the_points_and_the_summary_of_its_run) {
    double before = time_calendar();
    cluster_run_job(*state, "{\"steps_per_print\": 1,"
                            " \"metrics\": {\"jsonl\": \"m.jsonl\"}}");
    struct cluster_process *local = cluster_run_start(
        *state, "local",
        WORDS("local", "--ps", "1", "--workers", "2", "job.json"), NULL);
    cluster_run_expect_soon(local, 0);
    double after = time_calendar();
    make_page(*state);
    json_t *data = read_page(*state);
    const json_t *summary = json_object_get(data, "summary");
    assert_true(number(summary, "steps") > 0);
    assert_true(expect_losses(*state, data, "points", "train_loss") ==
                (size_t)number(summary, "steps"));
    assert_int_equal(expect_losses(*state, data, "evaluations", "test_loss"),
                     3);
    const json_t *columns = json_object_get(data, "evaluations");
    const json_t *tests = json_object_get(columns, "test_accuracy");
    assert_true(json_number_value(json_array_get(tests, 2)) ==
                number(summary, "test_accuracy"));
    assert_true(number(json_object_get(data, "job"), "steps_per_print") == 1);
    assert_null(json_object_get(data, "note"));
    assert_true(number(data, "start") >= before &&
                number(data, "start") <= after);
    json_decref(data);
}
