#include "chief/compare/comparison_plot.h"
#include "tests/skip.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CASE(mode, ps, rate)                                                   \
    "{\"mode\":\"" mode "\",\"workers\":2,\"ps\":" ps                          \
    ",\"examples_per_second\":{\"median\":" rate ",\"min\":" rate              \
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
    struct failure why;
    skip_without("gnuplot", "gnuplot-nox");
    json_t *result = json_loads(text, 0, NULL);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (comparison_plot_ready(&why) || comparison_plot_draw(result, path, &why))
        fail_msg("%s", why.text);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    start[fread(start, 1, size - 1, file)] = 0;
    fclose(file);
    unlink(path);
    rmdir(folder);
    json_decref(result);
}

static void a_picture_is_drawn_as_its_ending_says(void **state) {
    (void)state;
    static char text[1 << 20];
    draw(cases, "it's a.svg", text, sizeof text);
    assert_non_null(strstr(text, "<svg"));
    assert_non_null(strstr(text, "</svg>"));
    assert_non_null(strstr(text, "all-reduce"));
    assert_non_null(strstr(text, "bound"));
    draw(cases, "a.PNG", text, sizeof text);
    assert_memory_equal(text, "\x89PNG\r\n", 6);
}

static void failed_cases_leave_no_bar_and_no_line(void **state) {
    (void)state;
    char *text;
    size_t size;
    json_t *result = json_loads(failed, 0, NULL);
    FILE *to = open_memstream(&text, &size);
    comparison_plot_script(to, result, "a.svg");
    fclose(to);
    assert_non_null(strstr(text, "$bars << EOD\nEOD\n"));
    assert_null(strstr(text, "with linespoints"));
    free(text);
    json_decref(result);
}

/* Cases of one number of workers have none. */
static void speed_up_is_drawn_beside_the_ideal(void **state) {
    (void)state;
    static char text[1 << 20];
    draw("{\"cases\":["
         "{\"mode\":\"ps\",\"workers\":1,\"ps\":1,\"speed_up\":1.0,"
         "\"ideal_speed_up\":1,\"examples_per_second\":{\"median\":100.0}},"
         "{\"mode\":\"ps\",\"workers\":2,\"ps\":1,\"speed_up\":1.5,"
         "\"ideal_speed_up\":2,\"examples_per_second\":{\"median\":150.0}}]}",
         "a.svg", text, sizeof text);
    assert_non_null(strstr(text, "speed-up"));
    assert_non_null(strstr(text, "ideal"));
    assert_non_null(strstr(text, "1 ps, sync"));
    draw(cases, "b.svg", text, sizeof text);
    assert_null(strstr(text, "ideal"));
}

static void what_gnuplot_cannot_do_is_told(void **state) {
    (void)state;
    struct failure why;
    skip_without("gnuplot", "gnuplot-nox");
    json_t *result = json_loads(cases, 0, NULL);
    assert_int_equal(
        comparison_plot_draw(result, "/nonexistent/folder/a.svg", &why),
        STATUS_FAILED);
    assert_non_null(strstr(why.text, "--plot /nonexistent/folder/a.svg"));
    json_decref(result);
}

static void without_gnuplot_the_line_to_type_is_told(void **state) {
    (void)state;
    struct failure why;
    char *before = strdup(getenv("PATH"));
    setenv("PATH", "/nonexistent:/proc", 1);
    enum status status = comparison_plot_ready(&why);
    setenv("PATH", before, 1);
    free(before);
    assert_int_equal(status, STATUS_CONFIG);
    assert_non_null(strstr(why.text, "apt-get install"));
    assert_non_null(strstr(why.text, "gnuplot-nox"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_picture_is_drawn_as_its_ending_says),
        cmocka_unit_test(failed_cases_leave_no_bar_and_no_line),
        cmocka_unit_test(speed_up_is_drawn_beside_the_ideal),
        cmocka_unit_test(what_gnuplot_cannot_do_is_told),
        cmocka_unit_test(without_gnuplot_the_line_to_type_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
