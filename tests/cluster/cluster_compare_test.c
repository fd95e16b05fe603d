/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan compare` with real runs of a tiny job. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_clicks.h"
#include "tests/lib/file_bytes.h"
#include "tests/lib/json_number.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <stdlib.h>
#include <unistd.h>

enum { TIMEOUT = 120 /* seconds, for a dozen tiny runs */ };

static struct cluster_process *compare(struct cluster_run *run,
                                       const char *const *arguments, int code) {
    struct cluster_process *process =
        cluster_run_start(run, "compare", arguments, NULL);
    cluster_run_expect(process, code, TIMEOUT);
    return process;
}

static void expect_times(const json_t *one) {
    static const char *const causes[] = {"input", "compute",
                                         "waiting_for_weights",
                                         "waiting_for_gradients", "update"};
    const json_t *times = json_object_get(one, "seconds_per_step");
    double sum = 0;
    for (int i = 0; i < 5; i++) {
        assert_true(number_at(times, causes[i]) >= 0);
        sum += number_at(times, causes[i]);
    }
    assert_true(sum > 0);
}

static void expect_measured(const json_t *one) {
    const json_t *rate = json_object_get(one, "examples_per_second");
    assert_true(number_at(one, "runs") == 2);
    assert_true(number_at(rate, "min") > 0);
    assert_true(number_at(rate, "median") >= number_at(rate, "min"));
    assert_true(number_at(rate, "max") >= number_at(rate, "median"));
    assert_true(number_at(one, "bytes_per_step") > 0);
    assert_true(number_at(one, "bound_examples_per_second") > 0);
    assert_true(number_at(one, "reached") > 0);
    assert_true(number_at(one, "train_loss") > 0);
    assert_true(number_at(one, "test_accuracy") >= 0);
    assert_non_null(json_string_value(json_object_get(one, "limit")));
    assert_true(json_is_null(json_object_get(one, "error")));
    expect_times(one);
}

static bool exists(const struct cluster_run *run, const char *name) {
    return !access(cluster_run_path(run, name), F_OK);
}

/* All-reduce is there, or its reason. */
static void expect_reduced(const json_t *one) {
    if (json_is_null(json_object_get(one, "error")))
        expect_measured(one);
    else
        assert_contains(json_string_value(json_object_get(one, "error")),
                        "allreduce");
}

/* The report a.html of PROCESS, from the object that it printed alone. */
static void expect_report_again(struct cluster_run *run,
                                struct cluster_process *process) {
    FILE *file = cluster_run_create(run, "printed.json");
    fputs(cluster_run_output(process), file);
    fclose(file);
    compare(run,
            WORDS("compare", "--json", "--from", "printed.json", "--report",
                  "b.html"),
            0);
    size_t size, again;
    uint8_t *page = file_bytes_read(cluster_run_path(run, "a.html"), &size);
    uint8_t *same = file_bytes_read(cluster_run_path(run, "b.html"), &again);
    assert_int_equal(size, again);
    assert_memory_equal(page, same, size);
    free(page);
    free(same);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(a_comparison_leaves_only_requested_files) {
    static const char *const arguments[] = {
        "compare",  "--json",    "--steps",  "20",    "--repeats",     "2",
        "--csv",    "table.csv", "--plot",   "a.svg", "--tensorboard", "tb",
        "--report", "a.html",    "job.json", NULL};
    skip_unless_installed("gnuplot", "gnuplot-nox");
    cluster_run_job(run, "{\"export\":{\"path\":\"model.npz\"},"
                         "\"tensorboard\":{\"enabled\":true,"
                         "\"output_path\":\"events\"}}");
    struct cluster_process *process = compare(run, arguments, 0);
    const json_t *object = cluster_run_json(process);
    const json_t *cases = json_object_get(object, "cases");
    assert_int_equal(json_array_size(cases), 3);
    expect_reduced(json_array_get(cases, 0));
    expect_measured(json_array_get(cases, 1));
    expect_measured(json_array_get(cases, 2));
    assert_true(number_at(object, "equal_seconds") > 0);
    const char *said = cluster_run_errors(process);
    const char *last = strstr(said, "run 10 of 10");
    assert_contains(said, " s left\n");
    assert_true(last && !strstr(last, "left"));
    assert_true(exists(run, "table.csv") && exists(run, "a.svg"));
    assert_true(exists(run, "tb"));
    expect_report_again(run, process);
    assert_false(exists(run, "checkpoint") || exists(run, "events") ||
                 exists(run, "model.npz"));
}

TEST(tables_that_fit_a_worker_are_compared) {
    static const char *const arguments[] = {
        "compare", "--json",    "--steps", "20",       "--repeats",
        "2",       "--workers", "2",       "job.json", NULL};
    cluster_clicks_write(run);
    cluster_run_job(run, "{" CLUSTER_CLICKS_DEEPFM "}");
    const json_t *object = cluster_run_json(compare(run, arguments, 0));
    const json_t *cases = json_object_get(object, "cases");
    assert_int_equal(json_array_size(cases), 3);
    for (int i = 0; i < 3; i++) {
        const json_t *one = json_array_get(cases, (size_t)i);
        expect_measured(one);
        assert_null(json_object_get(one, "tables"));
        assert_true(number_at(one, "test_auc") > 0.5);
        assert_true(number_at(one, "test_logloss") > 0);
        const json_t *times = json_object_get(one, "seconds_per_step");
        assert_true(number_at(times, i ? "waiting_for_weights"
                                       : "waiting_for_gradients") > 0);
    }
}

/* By all-reduce a worker would have 60 rows of two tables, and as many as there
 * are ids of the others. */
TEST(tables_that_do_not_fit_a_worker_are_explained) {
    static const char *const arguments[] = {
        "compare",   "--json",   "--steps",
        "20",        "--set",    "features.item.size=2000000000",
        "--repeats", "1",        "--workers",
        "2",         "job.json", NULL};
    cluster_clicks_write(run);
    cluster_run_job(run, "{" CLUSTER_CLICKS_DEEPFM "}");
    struct cluster_process *process = compare(run, arguments, 0);
    const json_t *object = cluster_run_json(process);
    const json_t *cases = json_object_get(object, "cases");
    const json_t *reduced = json_array_get(cases, 0),
                 *by_ps = json_array_get(cases, 1);
    const json_t *tables = json_object_get(reduced, "tables");
    const char *error = json_string_value(json_object_get(reduced, "error"));
    assert_int_equal(json_array_size(cases), 3);
    for (int i = 1; i < 3; i++) {
        const json_t *rate =
            json_object_get(json_array_get(cases, i), "examples_per_second");
        assert_true(number_at(rate, "median") > 0);
        assert_null(json_object_get(json_array_get(cases, i), "tables"));
    }
    double rows = number_at(tables, "rows");
    assert_true(rows >= 4e9 + 2 && rows <= 4e9 + 2 * CLUSTER_CLICKS_USERS);
    assert_true(number_at(tables, "unbounded") == 2);
    /* A float of first order and eight factors. */
    assert_true(number_at(tables, "dense_bytes") == rows / 2 * 9 * 4);
    assert_true(number_at(tables, "trainer_free_bytes") > 0);
    double touched = number_at(tables, "row_bytes_per_step");
    assert_true(touched > 0 && touched < 1e5);
    assert_true(number_at(by_ps, "bytes_per_step") > 2 * touched);
    assert_contains(error, "not run, as the tables do not fit a worker");
    assert_contains(cluster_run_errors(process),
                    "the rows that tables may have take");
}

TEST(the_json_of_a_run_has_its_time_breakdown) {
    static const char *const arguments[] = {"local", "--json",   "--ps",
                                            "2",     "job.json", NULL};
    cluster_run_job(run, "{\"epochs\":1}");
    const json_t *object = cluster_run_json(compare(run, arguments, 0));
    double elements = 64 * 16 + 16 + 16 * 10 + 10;
    assert_true(number_at(object, "parameters") == elements);
    assert_true(number_at(object, "wire_bytes") == 4 * elements);
    assert_true(number_at(object, "bytes_per_step") == 8 * elements);
    expect_times(object);
}

/* They share a host, and may pass more than the link that is named. */
TEST(a_link_rate_given_on_one_host_is_reported_as_unused) {
    static const char *const arguments[] = {"local", "--link-gbits", "1",
                                            "job.json", NULL};
    cluster_run_job(run, "{\"epochs\":1}");
    assert_contains(cluster_run_errors(compare(run, arguments, 0)),
                    "(--link-gbits, as if each had a host of its own)");
}

TEST(without_json_compare_prints_a_table) {
    static const char *const arguments[] = {
        "compare", "--steps",      "5",     "--repeats", "1", "--ps",
        "1,8",     "--link-gbits", "0.001", "job.json",  NULL};
    cluster_run_job(run, NULL);
    struct cluster_process *process = compare(run, arguments, 0);
    const char *output = cluster_run_output(process);
    assert_contains(output, "job.json: 5 rounds of 10 samples a worker; "
                            "means of 1 run in turns");
    assert_contains(output, "\n      2   1 synchronous ");
    assert_contains(output, "\n      2   1 asynchronous ");
    assert_contains(output, "\n      2   - all-reduce ");
    assert_contains(output, "\nno link between hosts is known");
    assert_contains(output, "\n--link-gbits 0.001 does not apply");
    assert_contains(cluster_run_errors(process), "run 2 of ");
}

/* By which a comparison knows that a run has diverged; at a rate that no model
 * can learn with. */
TEST(a_nonfinite_loss_is_reported_as_such) {
    static const char *const arguments[] = {
        "compare", "--steps", "50",       "--repeats",
        "1",       "--json",  "--set",    "optimizer.params.lr=1e30",
        "--ps",    "1",       "job.json", NULL};
    cluster_run_job(run, NULL);
    struct cluster_process *process = compare(run, arguments, 1);
    assert_contains(cluster_run_errors(process), "the loss is nan");
}

TEST(a_prediction_starts_no_process) {
    static const char *const arguments[] = {
        "compare", "--predict",    "--params", "25.6M", "--workers",
        "8",       "--link-gbits", "10",       NULL};
    struct cluster_process *process = compare(run, arguments, 0);
    assert_contains(cluster_run_output(process), "all-reduce, ring ");
    assert_string_equal(cluster_run_errors(process), "");
}

TEST(errors_are_reported_before_any_run_starts) {
    static const char *const jobs[][6] = {
        {"compare", NULL},
        {"compare", "none.json", NULL},
        {"compare", "--predict", NULL},
        {"compare", "--csv", "none/a.csv", "job.json", NULL},
        {"compare", "--tensorboard", "job.json/a", "job.json", NULL}};
    static const char *const texts[] = {
        "JOB.json, -- COMMAND, or --predict", "none.json", "needs --params",
        "--csv none/a.csv: No such file", "--tensorboard"};
    cluster_run_job(run, NULL);
    for (int i = 0; i < 5; i++) {
        struct cluster_process *process = compare(run, jobs[i], 2);
        assert_string_equal(cluster_run_output(process), "");
        assert_contains(cluster_run_errors(process), texts[i]);
    }
}

TEST(without_gnuplot_nothing_is_measured_for_a_plot) {
    char *path = strdup(getenv("PATH"));
    cluster_run_job(run, NULL);
    setenv("PATH", "/nonexistent", 1);
    struct cluster_process *process = cluster_run_start(
        run, "compare", WORDS("compare", "--plot", "a.svg", "job.json"), NULL);
    setenv("PATH", path, 1);
    free(path);
    cluster_run_expect_soon(process, 2);
    assert_contains(cluster_run_errors(process), "gnuplot-nox");
    assert_null(strstr(cluster_run_errors(process), "run 1 of"));
}

TEST(ctrl_c_ends_the_current_run_and_the_comparison) {
    cluster_run_job(run, NULL);
    struct cluster_process *process = cluster_run_start(
        run, "compare",
        WORDS("compare", "--steps", "1000000000", "--limit", "60", "job.json"),
        NULL);
    cluster_run_interrupt(process,
                          "3 cases, 13 runs (3 of each and one for equal time");
}
