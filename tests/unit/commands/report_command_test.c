/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct folder *folder

#include "chief/report/page_points.h"
#include "commands/page.h"
#include "commands/verbs.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/file_bytes.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct folder {
    char path[PATH_MAX], lines[PATH_MAX + 16], page[PATH_MAX + 16];
};

static int setup(void **state) {
    struct folder *folder = calloc(1, sizeof *folder);
    checkpoint_fixture_folder(folder->path);
    snprintf(folder->lines, sizeof folder->lines, "%s/m.jsonl", folder->path);
    snprintf(folder->page, sizeof folder->page, "%s/m.html", folder->path);
    *state = folder;
    return 0;
}

static int teardown(void **state) {
    struct folder *folder = *state;
    checkpoint_fixture_remove(folder->path);
    free(folder);
    return 0;
}

FIXTURE(setup, teardown);

#define BEGIN                                                                  \
    "{\"run\": \"00ab\", \"job\": {\"steps\": 9}, \"start\": 0, \"time\": 1.5}\n"

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

/* The caller frees it. */
static char *read_text(const char *path) {
    size_t size;
    uint8_t *bytes = file_bytes_read(path, &size);
    char *text = realloc(bytes, size + 1);
    assert_non_null(text);
    text[size] = 0;
    return text;
}

static enum status make_report(const struct folder *folder, const char *page,
                               struct failure *why) {
    static struct options options;
    options_open(&options, CLI_COMMAND_REPORT);
    options.job = folder->lines;
    options.output = page;
    return report_command(&options, why);
}

/* The page of a file of TEXT; the caller frees it. */
static char *page_of(const struct folder *folder, const char *text) {
    write_file(folder->lines, text);
    assert_ok(make_report(folder, folder->page, &failure));
    return read_text(folder->page);
}

/* The data in PAGE; the caller's. */
static json_t *data_in(const char *page) {
    const char *begin = strstr(page, "application/json\">");
    assert_non_null(begin);
    begin += strlen("application/json\">");
    const char *end = strstr(begin, "</script>");
    assert_non_null(end);
    json_t *data = json_loadb(begin, (size_t)(end - begin), 0, NULL);
    assert_non_null(data);
    return data;
}

static const json_t *column_of(const json_t *data, const char *group,
                               const char *name) {
    return json_object_get(json_object_get(data, group), name);
}

static double number_at(const json_t *data, const char *group, const char *name,
                        size_t index) {
    const json_t *value = json_array_get(column_of(data, group, name), index);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

TEST(a_page_has_the_points_the_evaluations_the_job_and_the_summary) {
    char *page = page_of(
        folder,
        BEGIN "{\"step\": 1, \"time\": 2, \"train_loss\": 0.1}\n"
              "{\"step\": 1, \"time\": 2.5, \"test_accuracy\": 0.75}\n"
              "{\"step\": 3, \"time\": 3, \"train_loss\": null, \"rows\": 7}\n"
              "{\"summary\": {\"exit\": 0, \"steps\": 3}}\n");
    json_t *data = data_in(page);
    assert_string_equal(json_string_value(json_object_get(data, "run")),
                        "00ab");
    assert_int_equal(json_array_size(column_of(data, "points", "step")), 2);
    assert_true(number_at(data, "points", "train_loss", 0) == 0.1);
    assert_true(isnan(number_at(data, "points", "train_loss", 1)));
    assert_true(isnan(number_at(data, "points", "rows", 0)));
    assert_true(number_at(data, "points", "rows", 1) == 7);
    assert_true(number_at(data, "evaluations", "test_accuracy", 0) == 0.75);
    assert_true(number_at(data, "evaluations", "step", 0) == 1);
    const json_t *job = json_object_get(data, "job");
    assert_int_equal(json_integer_value(json_object_get(job, "steps")), 9);
    const json_t *summary = json_object_get(data, "summary");
    assert_int_equal(json_integer_value(json_object_get(summary, "steps")), 3);
    assert_null(json_object_get(data, "note"));
    json_decref(data);
    free(page);
}

/* Nothing of the run ends the element that has it, or is one itself. */
TEST(hostile_names_stay_texts) {
    static const char evil[] = "</script><script>alert(1)</script><!--<img>";
    json_t *first = json_pack("{s:s, s:{s:s, s:s}, s:i}", "run", evil, "job",
                              evil, evil, "rtl", "\u202egnp.exe", "time", 1);
    char *line = json_dumps(first, JSON_COMPACT);
    char *page = page_of(folder, textf("%s\n", line));
    size_t scripts = 0;
    for (const char *at = page; (at = strstr(at, "<script")); at++)
        scripts++;
    assert_int_equal(scripts, 2);
    assert_null(strstr(page, "<img"));
    assert_null(strstr(page, "<!--"));
    assert_null(strstr(page, "\u202e"));
    json_t *data = data_in(page);
    assert_true(json_equal(json_object_get(data, "job"),
                           json_object_get(first, "job")));
    json_decref(data);
    json_decref(first);
    free(page);
    free(line);
}

TEST(a_name_of_a_megabyte_is_no_obstacle) {
    enum { LONG = 1 << 20 };
    char *name = calloc(1, LONG + 1);
    memset(name, '<', LONG);
    FILE *file = fopen(folder->lines, "w");
    fprintf(file, "{\"run\": \"1\", \"job\": {\"a\": \"%s\"}, \"time\": 0}\n",
            name);
    fclose(file);
    assert_ok(make_report(folder, folder->page, &failure));
    char *page = read_text(folder->page);
    json_t *data = data_in(page);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(data, "job"), "a")),
        name);
    json_decref(data);
    free(page);
    free(name);
}

/* Of 50,000 points at most 2,000 with the evaluations, and the peak. */
TEST(a_long_run_is_thinned) {
    enum { MANY = 50000, PEAK = 12344 };
    FILE *file = fopen(folder->lines, "w");
    fputs(BEGIN, file);
    for (int i = 1; i <= MANY; i++) {
        fprintf(file, "{\"step\": %d, \"time\": %d, \"train_loss\": %d}\n", i,
                i, i == PEAK ? 9 : i % 2);
        if (i % 10 == 0)
            fprintf(file, "{\"step\": %d, \"time\": %d, \"test_loss\": 1}\n", i,
                    i);
    }
    fclose(file);
    assert_ok(make_report(folder, folder->page, &failure));
    size_t peaks = 0;
    char *page = read_text(folder->page);
    json_t *data = data_in(page);
    size_t points = json_array_size(column_of(data, "points", "step"));
    size_t tests = json_array_size(column_of(data, "evaluations", "step"));
    assert_true(points <= PAGE_POINTS && points >= PAGE_POINTS / 2 - 4);
    assert_true(tests <= PAGE_EVALUATIONS);
    assert_int_equal(json_integer_value(json_object_get(data, "added")), MANY);
    assert_true(number_at(data, "points", "step", 0) == 1);
    assert_true(number_at(data, "points", "step", points - 1) == MANY);
    for (size_t i = 0; i < points; i++)
        peaks += number_at(data, "points", "train_loss", i) == 9;
    assert_int_equal(peaks, 1);
    json_decref(data);
    free(page);
}

/* A run was killed while it wrote, resumed, and wrote a first line again. */
TEST(a_torn_last_line_is_said_and_left_out) {
    char *page =
        page_of(folder, BEGIN "{\"step\": 1, \"time\": 2, \"train_loss\": 3}\n"
                              "{\"summary\": {\"exit\": 138}}\n" BEGIN
                              "{\"step\": 2, \"time\": 2, \"tr");
    json_t *data = data_in(page);
    assert_int_equal(json_array_size(column_of(data, "points", "step")), 1);
    assert_contains(json_string_value(json_object_get(data, "note")),
                    "left out");
    assert_null(json_object_get(data, "summary"));
    json_decref(data);
    free(page);
}

/* What is refused, at which line, and the page that was there stays. */
TEST(another_file_is_refused_by_name_and_line) {
    static const char *const cases[][2] = {
        {"", "line 1: found no line"},
        {"{\"run\": \"1\"", "line 1: found no line"},
        {"PK\003\004\n", "line 1: found no object"},
        {"[1]\n", "line 1: found no object"},
        {"{\"step\": 1, \"time\": 2}\n", "line 1: the first line"},
        {"{\"run\": 1, \"job\": {}, \"time\": 0}\n", "line 1: the first line"},
        {BEGIN "\n", "line 2: found no object"},
        {BEGIN "{\"step\": 1}\n", "line 2: a point has"},
        {BEGIN "{\"step\": -1, \"time\": 2}\n", "line 2: a point has"},
        {BEGIN "{\"step\": \"1\", \"time\": 2}\n", "line 2: a point has"},
        {BEGIN "{\"step\": 1, \"time\": 2, \"a<\": \"b\"}\n",
         "line 2: \"a<\" is no number"},
        {BEGIN "{\"step\": 1, \"step\": 1, \"time\": 2}\n",
         "line 2: found no object"},
        {BEGIN "{\"step\": 2, \"time\": 2}\n{\"step\": 1, \"time\": 3}\n",
         "line 3: step 1 comes after step 2"},
        {BEGIN "{\"summary\": 1}\n", "line 2: \"summary\""},
    };
    write_file(folder->page, "before");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct failure why = {0};
        write_file(folder->lines, cases[i][0]);
        assert_fails(make_report(folder, folder->page, &why), &why,
                     FAILURE_DATA_DAMAGED);
        assert_contains(why.text, cases[i][1]);
        assert_contains(why.text, folder->lines);
    }
    char *kept = read_text(folder->page);
    assert_string_equal(kept, "before");
    free(kept);
}

TEST(a_page_takes_the_place_of_a_file_but_not_of_its_source) {
    struct failure why = {0};
    char other[PATH_MAX + 32];
    write_file(folder->page, "before");
    char *page = page_of(folder, BEGIN);
    assert_int_equal(strncmp(page, "<!doctype html>", 15), 0);
    free(page);
    assert_fails(make_report(folder, folder->lines, &why), &why,
                 FAILURE_OUTPUT_UNUSABLE);
    assert_int_equal(unlink(folder->page), 0);
    assert_int_equal(symlink(folder->lines, folder->page), 0);
    assert_fails(make_report(folder, folder->page, &why), &why,
                 FAILURE_OUTPUT_UNUSABLE);
    assert_fails(make_report(folder, "/dev/null", &why), &why,
                 FAILURE_OUTPUT_UNUSABLE);
    assert_fails(make_report(folder, NULL, &why), &why, FAILURE_USAGE);
    snprintf(other, sizeof other, "%s/none/m.html", folder->path);
    assert_int_not_equal(make_report(folder, other, &why), STATUS_OK);
    assert_contains(why.text, other);
}
