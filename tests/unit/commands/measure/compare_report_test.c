/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/compare_report.h"

#include "commands/measure/compare_file.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char result[] =
    "{\"job\":\"job.json\",\"command\":null,\"date\":\"2026-11-28T21:00:00Z\","
    "\"rounds\":300,\"repeats\":3,\"unit\":\"examples\",\"samples_per_step\":"
    "64,\"cores\":2,\"members\":null,\"assumed_link_gbits\":null,\"job_text\":"
    "\"{\\\"steps\\\":300}\",\"machine\":{\"processor\":\"Some CPU\",\"cores\":"
    "2,\"memory_bytes\":8589934592,\"kernel\":\"Linux 6.1.0 x86_64\"},"
    "\"version\":\"0.1.0\",\"commit\":\"0123456789ab\",\"equal_seconds\":1.5,"
    "\"first_loss\":2.3,\"cases\":[{\"mode\":\"allreduce\",\"workers\":2,"
    "\"ps\":0,\"processes\":2,\"runs\":0,\"error\":\"it said no\","
    "\"train_loss\":null,\"test_accuracy\":null,\"test_auc\":null,"
    "\"test_logloss\":null,\"diverged\":null},{\"mode\":\"ps\",\"workers\":2,"
    "\"ps\":1,\"processes\":3,\"runs\":3,\"error\":null,\"replicas\":2,"
    "\"devices\":null,\"examples_per_second\":{\"median\":5000.0,\"min\":"
    "4000.0,\"max\":6000.0,\"mean\":5010.0,\"spread\":2500.0},"
    "\"steps_per_second\":{\"median\":39.0,\"min\":31.0,\"max\":47.0,\"mean\":"
    "39.0,\"spread\":null},\"bytes_per_step\":10715296.0,\"seconds_per_step\":{"
    "\"input\":0.001,\"compute\":0.01,\"waiting_for_weights\":0.012,"
    "\"waiting_for_gradients\":0.0,\"update\":0.002},\"link_gbits\":1.0,"
    "\"worker_link_gbits\":null,\"ps_link_gbits\":null,"
    "\"bound_examples_per_second\":8000.0,\"reached\":0.626,\"limit\":"
    "\"ps link\",\"predicted_examples_per_second\":5500.0,\"train_loss\":0.25,"
    "\"test_accuracy\":0.875,\"test_auc\":null,\"test_logloss\":null,"
    "\"diverged\":false,\"speed_up\":1.5,\"ideal_speed_up\":2.0,"
    "\"efficiency\":0.75}],\"crossover\":[{\"workers\":2,\"measured_ps\":null,"
    "\"fast_ps\":[],\"faster_ps\":[],\"slower_ps\":[],\"fastest\":{\"mode\":"
    "\"ps\",\"ps\":1},\"measured_answer\":\"1 ps is faster\",\"predicted_ps\":"
    "2,\"formula\":null,\"predicted_answer\":null}]}";

static json_t *parse(const char *text) {
    json_t *read;
    assert_ok(
        compare_file_parse(&read, text, strlen(text), "a.json", &failure));
    return read;
}

/* The page of OBJECT, which it takes. */
static char *page_of(json_t *object) {
    char *page = compare_report_page(object);
    json_decref(object);
    assert_non_null(page);
    return page;
}

static unsigned count(const char *page, const char *part) {
    unsigned found = 0;
    while ((page = strstr(page, part))) {
        found++;
        page++;
    }
    return found;
}

/* A bar's unit is a 1000th of the largest figure and 1 % more. */
TEST(a_report_has_the_figures_bars_and_origin) {
    static const char *const parts[] = {
        "job.json: 300 rounds of 64 samples a worker; means of 3 runs in "
        "turns; 2 cores",
        "<td>2</td><td>1</td><td class=\"words\">synchronous</td><td>5010</td>"
        "<td>4000</td><td>6000</td><td>8000</td><td>62.6 %</td><td>0.25</td>"
        "<td>0.875</td><td class=\"words\">ps link</td>",
        "<td>1</td><td>10</td><td>12</td><td>0</td><td>2</td><td>10.72</td>"
        "<td>1.5</td><td>2</td><td>75 %</td>",
        "<td class=\"words\">all-reduce</td><td class=\"error bad\" "
        "colspan=\"8\">failed: it said no</td>",
        "<rect class=\"rate\" x=\"0.0\" y=\"3\" width=\"620.0\"",
        "<line class=\"whisker\" x1=\"495.0\" y1=\"10\" x2=\"742.6\"",
        "<line class=\"bound\" x1=\"990.1\"",
        "<rect class=\"weights\" x=\"478.3\" y=\"3\" width=\"521.7\"",
        "<p>bound with 1 Gbit/s in each direction per host</p>",
        "<p>2 workers, measured, by means and their 95 % intervals: 1 ps is "
        "faster</p>",
        "<dt>processor</dt><dd>Some CPU</dd>",
        "<dt>memory</dt><dd>8 GB</dd>",
        "<dt>kernel</dt><dd>Linux 6.1.0 x86_64</dd>",
        "<dt>commit</dt><dd>0123456789ab</dd>",
        "<pre>{\n  &#34;steps&#34;: 300\n}</pre>"};
    char *page = page_of(parse(result));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_contains(page, parts[i]);
    assert_int_equal(count(page, "class=\"rate\" x"), 1);
    free(page);
}

TEST(a_report_is_one_file_without_script) {
    char *page = page_of(parse(result));
    assert_contains(page, "content=\"default-src 'none'; style-src 'sha256-");
    assert_int_equal(count(page, "<style>"), 1);
    for (size_t i = 0; i < 9; i++)
        assert_int_equal(
            count(page, (const char *[]){"<script", " style=", "src=", "href=",
                                         "url(", "@import",
                                         "http:", "https:", "CONTENT"}[i]),
            0);
    assert_contains(page, "</main></body></html>\n");
    free(page);
}

/* Of numbers as a run has them, with all their digits. */
TEST(a_report_of_the_printed_object_is_the_same) {
    json_t *object = parse(result);
    json_t *rates =
        json_object_get(json_array_get(json_object_get(object, "cases"), 1),
                        "examples_per_second");
    json_object_set_new(rates, "mean", json_real(2.00049999996));
    char *printed = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    char *page = page_of(object), *again = page_of(parse(printed));
    assert_string_equal(page, again);
    assert_contains(page, "<td>2</td>");
    free(printed);
    free(page);
    free(again);
}

#define HOSTILE "</script><b a='\"'>&amp;\xe2\x80\xae\x07"
#define SHOWN                                                                  \
    "&#60;/script&#62;&#60;b a=&#39;&#34;&#39;&#62;&#38;amp;\\u202e\\u0007"

TEST(texts_show_as_they_are_and_are_no_markup) {
    json_t *object = parse(result), *text = json_string(HOSTILE);
    json_t *machine = json_object_get(object, "machine");
    json_t *cases = json_object_get(object, "cases");
    json_object_set(object, "job", text);
    json_object_set(object, "job_text", text);
    json_object_set(object, "unit", text);
    json_object_set(object, "version", text);
    json_object_set(object, "commit", text);
    json_object_set(machine, "processor", text);
    json_object_set(machine, "kernel", text);
    json_object_set(json_array_get(cases, 0), "error", text);
    json_object_set(json_array_get(cases, 1), "error", text);
    json_object_set(json_array_get(cases, 1), "limit", text);
    json_object_set(json_array_get(json_object_get(object, "crossover"), 0),
                    "measured_answer", text);
    json_decref(text);
    char *page = page_of(object);
    /* The job is in the title too. */
    assert_int_equal(count(page, SHOWN), 12);
    assert_int_equal(count(page, "<b a"), 0);
    assert_int_equal(count(page, "</script"), 0);
    assert_int_equal(count(page, "\xe2\x80\xae"), 0);
    free(page);
}

/* RESULT with the first FROM replaced by TO is refused, and WHY says PART. */
static void expect_refused(const char *from, const char *to, const char *part) {
    char text[sizeof result + 200];
    const char *place = strstr(result, from);
    struct failure why = {0};
    json_t *read;
    assert_non_null(place);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(place - result), result, to,
             place + strlen(from));
    assert_int_equal(
        compare_file_parse(&read, text, strlen(text), "a.json", &why),
        STATUS_CONFIG);
    assert_null(read);
    assert_contains(why.text, "--from a.json: ");
    assert_contains(why.text, part);
}

TEST(each_value_of_a_file_is_checked) {
    static const char *const bad[][3] = {
        {"300", "-1", " rounds: found -1; allowed: a whole number from 0 on"},
        {"\"job.json\"", "7", " job: found 7; allowed: a text, or null"},
        {"2026-11-28T21", "../-11-28T21", " date: found"},
        {"\"allreduce\"", "\"ring\"", " cases[0].mode: found \"ring\""},
        {"4000.0", "\"x\"",
         " cases[1].examples_per_second.min: found \"x\"; allowed: a number"},
        {"5010.0", "1e300", " cases[1].examples_per_second.mean: found 1e300"},
        {"false", "0", " cases[1].diverged: found 0; allowed: true or false"},
        {"\"fast_ps\":[]", "\"fast_ps\":[-1]", " crossover[0].fast_ps: found"},
        {"\"cores\":2,\"memory", "\"cores\":null,\"memory",
         " machine.cores: found null"},
        {"\"unit\":", "\"units\":", " units: no such key is known"},
        {"\"unit\":\"examples\",", "", " unit: the key is missing"},
        {"\"limit\":\"ps link\",", "", " cases[1].limit: the key is missing"},
        {"{\"job\":", "{\"job\":null,\"job\":", "duplicate"},
        {"\"cases\":[", "\"cases\":[3,",
         " cases[0]: found 3; allowed: an "
         "object"},
        {"{\"job\"", "[{\"job\"", "no JSON"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_refused(bad[i][0], bad[i][1], bad[i][2]);
}

TEST(a_file_of_an_earlier_release_has_no_machine) {
    json_t *object = parse(result);
    for (size_t i = 0; i < 4; i++)
        json_object_del(object, (const char *[]){"machine", "job_text",
                                                 "version", "commit"}[i]);
    char *printed = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    char *page = page_of(parse(printed));
    assert_int_equal(count(page, "<dt>"), 2);
    assert_int_equal(count(page, "<pre>"), 0);
    free(printed);
    free(page);
}
