/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct metrics_fixture *measured

#include "chief/report/json_lines.h"

#include "core/base/time.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/metrics_fixture.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/json-lines-test-XXXXXX", path[64],
            job_text[] = "{\"seed\":1}";

static int setup(void **state) {
    struct metrics_fixture *measured;
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    if (!mkdtemp(folder) || metrics_fixture_setup(state))
        return -1;
    snprintf(path, sizeof path, "%s/made/m.jsonl", folder);
    measured = *state;
    measured->job.metrics_jsonl = path;
    measured->job.text = job_text;
    measured->job.timeouts.stop = 60;
    measured->run.id = 0xabc;
    return 0;
}

static int teardown(void **state) {
    checkpoint_fixture_remove(folder);
    return metrics_fixture_teardown(state);
}

FIXTURE(setup, teardown);

static struct point_outlet begun(struct metrics_fixture *measured,
                                 uint64_t start) {
    struct point_outlet outlet = {0};
    measured->run.metrics.points.start = start;
    assert_false(json_lines_open(&outlet, &measured->run, &failure));
    outlet.begin(outlet.self, &measured->run);
    return outlet;
}

static void write_point(struct point_outlet *outlet, uint64_t step,
                        double loss) {
    struct metric_point point = metric_point_start(step);
    point.unix_ms = 1500;
    point.values[METRIC_TRAIN_LOSS] = loss;
    point.values[METRIC_EXAMPLES] = 123456789012345;
    point.values[METRIC_TEST_LOSS] = INFINITY;
    outlet->write(outlet->self, &point);
}

/* The file, of each line up to its time or, of a point, up to its examples. */
static char *lines_of_file(void) {
    static char text[4096];
    char line[1024], *cut;
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    for (text[0] = 0; fgets(line, sizeof line, file); strcat(text, line)) {
        cut = strstr(line, ",\"job\"");
        if (!strncmp(line, "{\"run\"", 6) && cut)
            cut = strstr(line, ",\"time\"");
        else
            cut = strstr(line, ",\"examples\"");
        if (cut)
            strcpy(cut, "\n");
    }
    fclose(file);
    return text;
}

static void write_file(const char *text) {
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

#define HEAD_OF(START) "{\"run\":\"0000000000000abc\",\"start\":" START "\n"
#define POINT(STEP) "{\"step\":" STEP ",\"time\":1.500,\"train_loss\":2.5\n"

TEST(a_point_is_a_line_of_what_is_known) {
    struct point_outlet outlet = begun(measured, 0);
    char line[256];
    write_point(&outlet, 10, 2.5);
    outlet.close(outlet.self);
    FILE *file = fopen(path, "re");
    assert_non_null(fgets(line, sizeof line, file));
    assert_contains(line,
                    "{\"run\":\"0000000000000abc\",\"start\":0,\"time\":");
    assert_contains(line, ",\"job\":{\"seed\":1}}\n");
    assert_non_null(fgets(line, sizeof line, file));
    assert_string_equal(line, "{\"step\":10,\"time\":1.500,\"train_loss\":2.5,"
                              "\"examples\":123456789012345}\n");
    assert_null(fgets(line, sizeof line, file));
    fclose(file);
}

TEST(a_run_that_resumes_cuts_what_it_takes_again) {
    struct point_outlet outlet = begun(measured, 0);
    for (uint64_t step = 10; step <= 30; step += 10)
        write_point(&outlet, step, 2.5);
    write_point(&outlet, 20, 2.5); /* an evaluation, late */
    outlet.close(outlet.self);
    outlet = begun(measured, 20);
    write_point(&outlet, 30, 2.5);
    outlet.close(outlet.self);
    assert_string_equal(lines_of_file(),
                        HEAD_OF("0") POINT("10") POINT("20") POINT("20")
                            HEAD_OF("20") POINT("30"));
}

/* It was over when it resumed, and evaluates its last step again. */
TEST(a_run_that_was_over_has_one_last_evaluation) {
    struct point_outlet outlet = begun(measured, 0);
    measured->run.plan.schedule.total = 20;
    measured->run.plan.test_samples = 1;
    for (int i = 0; i < 2; i++) {
        struct metric_point point = metric_point_start(20);
        if (i)
            outlet = begun(measured, 20);
        else
            write_point(&outlet, 20, 2.5);
        point.unix_ms = 1500;
        point.values[METRIC_TEST_LOSS] = 1 + i;
        outlet.write(outlet.self, &point);
        outlet.close(outlet.self);
    }
    assert_string_equal(
        lines_of_file(),
        HEAD_OF("0") POINT("20")
            HEAD_OF("20") "{\"step\":20,\"time\":1.500,\"test_loss\":2}\n");
}

TEST(a_torn_line_and_an_old_summary_are_cut) {
    struct point_outlet outlet = begun(measured, 0);
    write_point(&outlet, 10, 2.5);
    outlet.close(outlet.self);
    FILE *file = fopen(path, "ae");
    fputs("{\"summary\":{}}\n{\"step\":1", file);
    fclose(file);
    outlet = begun(measured, 10);
    write_point(&outlet, 20, 2.5);
    outlet.close(outlet.self);
    assert_string_equal(lines_of_file(),
                        HEAD_OF("0") POINT("10") HEAD_OF("10") POINT("20"));
}

/* Its first checkpoint was not complete. */
TEST(a_run_that_begins_anew_begins_its_file) {
    for (int i = 0; i < 2; i++) {
        struct point_outlet outlet = begun(measured, 0);
        write_point(&outlet, 10, 2.5);
        outlet.close(outlet.self);
        assert_string_equal(lines_of_file(), HEAD_OF("0") POINT("10"));
    }
}

TEST(a_file_of_something_else_is_refused) {
    struct point_outlet outlet = begun(measured, 0);
    outlet.close(outlet.self);
    write_file("{\"ru"); /* torn */
    outlet = begun(measured, 0);
    outlet.close(outlet.self);
    static const char *const others[] = {
        "{\"model\": {}}\n", "{\"run\":\"mine\",\"loss\":1}\n",
        "{\"run\":\"0000000000000abc\",\"loss\":1}\n", "{\n"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        write_file(others[i]);
        assert_error(json_lines_open(&outlet, &measured->run, &failure),
                     FAILURE_OUTPUT_UNUSABLE);
        assert_contains(failure.text, "metrics.jsonl: /tmp/");
        assert_contains(failure.text, "its first line is not that of a run");
        assert_string_equal(lines_of_file(), others[i]);
    }
}

TEST(a_file_that_another_run_writes_is_refused) {
    struct point_outlet second = {0}, outlet = begun(measured, 0);
    write_point(&outlet, 10, 2.5);
    assert_error(json_lines_open(&second, &measured->run, &failure),
                 FAILURE_OUTPUT_UNUSABLE);
    assert_contains(failure.text, "metrics.jsonl: another run writes /tmp/");
    write_point(&outlet, 20, 2.5);
    outlet.close(outlet.self);
    assert_string_equal(lines_of_file(), HEAD_OF("0") POINT("10") POINT("20"));
    second = begun(measured, 20);
    second.close(second.self);
    assert_string_equal(lines_of_file(),
                        HEAD_OF("0") POINT("10") POINT("20") HEAD_OF("20"));
}

TEST(any_number_of_runs_writes_to_a_device) {
    struct point_outlet first = {0}, second = {0};
    measured->job.metrics_jsonl = (char *)"/dev/null";
    assert_ok(json_lines_open(&first, &measured->run, &failure));
    assert_ok(json_lines_open(&second, &measured->run, &failure));
    first.close(first.self);
    second.close(second.self);
}

TEST(a_folder_that_cannot_be_made_is_refused) {
    struct point_outlet outlet;
    measured->job.metrics_jsonl = (char *)"/proc/none/m.jsonl";
    assert_error(json_lines_open(&outlet, &measured->run, &failure),
                 FAILURE_OUTPUT_UNUSABLE);
    assert_contains(failure.text, "metrics.jsonl: ");
}

/* Once there is no plan, and once the disk takes nothing. */
TEST(no_line_is_written_by_a_run_that_does_not_begin) {
    struct point_outlet outlet = {0};
    assert_false(json_lines_open(&outlet, &measured->run, &failure));
    write_point(&outlet, 10, 2.5);
    outlet.end(outlet.self, &measured->run, NULL);
    outlet.close(outlet.self);
    assert_string_equal(lines_of_file(), "");
    measured->job.metrics_jsonl = (char *)"/dev/full";
    outlet = begun(measured, 0);
    for (uint64_t step = 1; step <= 100; step++)
        write_point(&outlet, step, 2.5);
    outlet.close(outlet.self);
}
