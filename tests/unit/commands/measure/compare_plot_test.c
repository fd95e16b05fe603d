/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/compare_plot.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CASE(mode, ps, rate)                                                   \
    "{\"mode\":\"" mode "\",\"workers\":2,\"ps\":" ps                          \
    ",\"examples_per_second\":{\"mean\":" rate ",\"min\":" rate                \
    ",\"max\":" rate "},\"bound_examples_per_second\":900.0}"

static const char cases[] =
    "{\"cases\":[" CASE("allreduce", "0", "450.5") "," CASE(
        "ps", "1", "300.0") "," CASE("ps-async", "1",
                                     "400.0") "," CASE("ps", "2",
                                                       "500."
                                                       "0") "]}";
/* Nothing but a reason. */
static const char failed[] =
    "{\"cases\":[{\"mode\":\"ps\",\"workers\":2,\"ps\":1,\"error\":\"no\"}]}";

static void draw(const char *text, const char *name, char *start, size_t size) {
    char folder[] = "/tmp/capstan-plot-test-XXXXXX", path[128];
    skip_unless_installed("gnuplot", "gnuplot-nox");
    json_t *result = json_loads(text, 0, NULL);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (compare_plot_check_gnuplot(&failure) ||
        compare_plot_draw(result, path, &failure))
        fail_msg("%s", failure.text);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    start[fread(start, 1, size - 1, file)] = 0;
    fclose(file);
    unlink(path);
    rmdir(folder);
    json_decref(result);
}

TEST(the_file_extension_selects_the_format) {
    static char text[1 << 20];
    draw(cases, "it's a.svg", text, sizeof text);
    assert_contains(text, "<svg");
    assert_contains(text, "</svg>");
    assert_contains(text, "all-reduce");
    assert_contains(text, "bound");
    draw(cases, "a.PNG", text, sizeof text);
    assert_memory_equal(text, "\x89PNG\r\n", 6);
}

/* The caller's. */
static char *script(const char *of) {
    char *text;
    size_t size;
    json_t *result = json_loads(of, 0, NULL);
    FILE *to = open_memstream(&text, &size);
    assert_non_null(result);
    compare_plot_script(to, result, "a.svg");
    fclose(to);
    json_decref(result);
    return text;
}

static void expect(const char *text, const char *part) {
    assert_contains(text, part);
}

TEST(failed_cases_have_no_bar_and_no_line) {
    char *text = script(failed);
    expect(text, "$bars << EOD\nEOD\n");
    assert_null(strstr(text, "with yerrorlines"));
    free(text);
}

/* The interval of 400 +- 50 is drawn in both, that of 90 +- 100 from 0 on. */
TEST(both_charts_have_error_bars) {
    char *text = script(
        "{\"cases\":[{\"mode\":\"ps\",\"workers\":2,\"ps\":1,\"diverged\":true,"
        "\"examples_per_second\":{\"mean\":400.0,\"median\":1.0,\"spread\":50.0},"
        "\"bound_examples_per_second\":900.0},"
        "{\"mode\":\"allreduce\",\"workers\":2,\"ps\":0,"
        "\"examples_per_second\":{\"mean\":90.0,\"spread\":100.0}}]}");
    expect(text, "\"2 workers\\n1 ps\\nsync\\ndiverged\" 400 350 450 900\n");
    expect(text, "\"2 workers\\nall-reduce\" 90 0 190 nan\n");
    expect(text, "with vectors heads");
    expect(text, "$rounds << EOD\n0.99 400 350 450\nEOD\n");
    expect(text, "$ring << EOD\n0.75 90 0 190\n1.2 90 0 190\nEOD\n");
    expect(text, "$rounds using 1:2:3:4 with yerrorlines");
    expect(text, "$ring using 1:2:3:4 with yerrorlines");
    free(text);
}

TEST(without_spread_or_ps_error_bars_or_second_chart_are_omitted) {
    char *text =
        script("{\"cases\":[{\"mode\":\"allreduce\",\"workers\":1,\"ps\":0,"
               "\"examples_per_second\":{\"mean\":9.0,\"spread\":null}}]}");
    expect(text, "\"1 worker\\nall-reduce\" 9 9 9 nan\n");
    assert_null(strstr(text, "95 % interval"));
    assert_null(strstr(text, "by the number of ps"));
    free(text);
}

/* The rest of the job's path stands in the table. */
TEST(the_plot_shows_its_job_and_date) {
    static const char format[] =
        "{\"job\":\"%s\",\"date\":\"2026-11-22T19:33:28Z\",\"repeats\":3,"
        "\"cases\":[" CASE("ps", "1", "300.0") "]}";
    char result[1024], job[300];
    snprintf(result, sizeof result, format, "it's\\n.json");
    char *text = script(result);
    expect(text,
           "\nset multiplot title 'it''s?.json, means of 3 runs, 2026-11-22 "
           "19:33 UTC'\n");
    free(text);
    memset(job, 'x', sizeof job);
    strcpy(job + 200, "/end.json");
    snprintf(result, sizeof result, format, job);
    text = script(result);
    expect(text, "title '...xxx");
    expect(text, "xxx/end.json, means of 3 runs");
    assert_null(strstr(text, job));
    free(text);
}

/* So many that a name aslant is all that fits; each has its width. */
TEST(many_bars_make_a_wide_plot) {
    static char text[1 << 22];
    char *result = NULL;
    size_t size;
    FILE *to = open_memstream(&result, &size);
    fprintf(to, "{\"job\":\"job.json\",\"cases\":[");
    for (int i = 0; i < 100; i++)
        fprintf(to, "%s" CASE("ps-async", "%d", "300.0"), i ? "," : "", i + 1);
    fprintf(to, "]}");
    fclose(to);
    draw(result, "a.svg", text, sizeof text);
    expect(text, "<svg");
    expect(text, "width=\"3540\"");
    expect(text, "2 workers, 100 ps, async");
    free(result);
}

/* Cases of one number of workers have none. */
TEST(speed_up_is_drawn_beside_the_ideal) {
    static char text[1 << 20];
    draw("{\"cases\":["
         "{\"mode\":\"ps\",\"workers\":1,\"ps\":1,\"speed_up\":1.0,"
         "\"ideal_speed_up\":1,\"examples_per_second\":{\"mean\":100.0}},"
         "{\"mode\":\"ps\",\"workers\":2,\"ps\":1,\"speed_up\":1.5,"
         "\"ideal_speed_up\":2,\"examples_per_second\":{\"mean\":150.0}}]}",
         "a.svg", text, sizeof text);
    assert_contains(text, "speed-up");
    assert_contains(text, "ideal");
    assert_contains(text, "1 ps, sync");
    draw(cases, "b.svg", text, sizeof text);
    assert_null(strstr(text, "ideal"));
}

TEST(a_gnuplot_error_is_reported) {
    skip_unless_installed("gnuplot", "gnuplot-nox");
    json_t *result = json_loads(cases, 0, NULL);
    assert_error(
        compare_plot_draw(result, "/nonexistent/folder/a.svg", &failure),
        FAILURE_PROGRAM_FAILED);
    assert_contains(failure.text, "--plot /nonexistent/folder/a.svg");
    json_decref(result);
}

TEST(without_gnuplot_the_install_command_is_shown) {
    char *before = strdup(getenv("PATH"));
    setenv("PATH", "/nonexistent:/proc", 1);
    enum status status = compare_plot_check_gnuplot(&failure);
    setenv("PATH", before, 1);
    free(before);
    assert_error(status, FAILURE_PROGRAM_MISSING);
    assert_contains(failure.text, "apt-get install");
    assert_contains(failure.text, "gnuplot-nox");
}
