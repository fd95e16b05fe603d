/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/predict_command.h"

#include "tests/lib/assert_fails.h"
#include "tests/lib/json_number.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* 25.6M parameters, 8 workers, 4 ps, 10 Gbit/s, 20 us, 120 ms. */
static struct options resnet(void) {
    struct options flags;
    options_open(&flags, CLI_COMMAND_COMPARE);
    flags.predict = true;
    flags.parameters = 25600000;
    flags.workers.values[0] = 8;
    flags.ps.values[0] = 4;
    flags.link_gbits = 10;
    flags.latency_us = 20;
    flags.compute_ms = 120;
    return flags;
}

static char *print(const struct options *flags, bool json) {
    char *text;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    assert_ok(predict_command_print(to, flags, json, &failure));
    fclose(to);
    return text;
}

TEST(the_table_has_a_row_for_each_mode_and_the_crossover) {
    static const char *const lines[] = {
        "predicted: 25.6M parameters, 102.4 MB on the wire; 8 workers, 1 to a "
        "host, 4 ps\n",
        "link passes 1196 MB/s each way, 20 us apart\n",
        "ps, synchronous        211.3    171.3    91.35    37.85     4.54  "
        "56.8%    211.7  ps link\n",
        "ps, asynchronous       171.3",
        "all-reduce, ring       190.2    150.2    70.17",
        "all-reduce, halving ",
        "by ring from 5 ps on: m >= nM/(BT)\nwith 4 ps all-reduce is faster "
        "by 11 %; from 5 ps on ps is\n"};
    struct options flags = resnet();
    char *text = print(&flags, false);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_contains(text, lines[i]);
    free(text);
}

/* Of 100,000M parameters. */
TEST(no_number_has_an_exponent) {
    static const char *const lines[] = {
        "predicted: 100000M parameters, 400000 MB on the wire; 8 workers, ",
        "\ncomputing 12000 ms a step, ", "ps, synchronous      ",
        "with 4 ps all-reduce is faster by "};
    struct options flags = resnet();
    flags.parameters = 1e11;
    flags.compute_ms = 12000;
    char *text = print(&flags, false);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_contains(text, lines[i]);
    assert_null(strstr(text, "e+"));
    assert_null(strstr(text, "e-0"));
    free(text);
}

/* Also with the longest name of a limit. */
TEST(no_line_is_wider_than_100_columns) {
    struct options flags = resnet();
    flags.per_host = 4;
    for (int i = 0; i < 2; i++) {
        flags.inner_gbits = i ? 0.25 : 0;
        char *text = print(&flags, false);
        for (const char *line = text; *line;) {
            size_t length = strcspn(line, "\n");
            if (length > 100)
                fail_msg("%zu columns: %.*s", length, (int)length, line);
            line += length + (line[length] == '\n');
        }
        assert_true(i == 0 || strstr(text, "link inside a host"));
        free(text);
    }
}

TEST(json_is_one_object) {
    struct options flags = resnet();
    char *text = print(&flags, true);
    json_t *object = json_loads(text, 0, NULL);
    const json_t *modes = json_object_get(object, "modes");
    const json_t *ps = json_array_get(modes, 0);
    assert_int_equal(strcspn(text, "\n") + 1, strlen(text));
    assert_true(number_at(object, "bytes") == 102.4e6);
    assert_true(number_at(object, "workers") == 8);
    assert_int_equal(json_array_size(modes), COST_MODEL_MODES);
    assert_string_equal(json_string_value(json_object_get(ps, "limit")),
                        "ps link");
    assert_true(fabs(number_at(ps, "step_seconds") - 0.2113) < 1e-4);
    assert_true(fabs(number_at(ps, "speed_up") - 4.54) < 0.01);
    assert_true(number_at(json_object_get(ps, "busy_seconds"), "compute") ==
                0.12);
    assert_true(number_at(json_object_get(object, "crossover"), "ps") == 5);
    assert_string_equal(json_string_value(json_object_get(object, "answer")),
                        "with 4 ps all-reduce is faster by 11 %; from 5 ps on "
                        "ps is");
    assert_true(
        json_is_null(json_object_get(object, "inner_bytes_per_second")));
    json_decref(object);
    free(text);
}

TEST(a_machine_of_the_table_sets_its_links) {
    struct cost_model_case given;
    struct options flags = resnet();
    flags.link_gbits = 0;
    flags.vm = "p4d.24xlarge";
    assert_ok(predict_command_case(&given, &flags, &failure));
    assert_int_equal(given.per_host, 8);
    assert_true(fabs(given.link - 400e9 / 8 * 1448 / 1514) < 1);
    assert_true(given.intra_host == 300e9);
    flags.per_host = 4;
    flags.link_gbits = 25;
    assert_ok(predict_command_case(&given, &flags, &failure));
    assert_int_equal(given.per_host, 4);
    assert_true(fabs(given.link - 25e9 / 8 * 1448 / 1514) < 1);
}

TEST(an_unknown_machine_or_link_is_refused) {
    struct cost_model_case given;
    struct options flags = resnet();
    flags.link_gbits = 0;
    flags.vm = "p4d.24large";
    assert_error(predict_command_case(&given, &flags, &failure),
                 FAILURE_BAD_FLAG_VALUE);
    assert_contains(failure.text, "nearest: p4d.24xlarge");
    flags.vm = "Standard_NC6s_v3";
    assert_error(predict_command_case(&given, &flags, &failure),
                 FAILURE_BAD_FLAG_VALUE);
    assert_contains(failure.text, "give --link-gbits");
    flags.link_gbits = 8;
    assert_ok(predict_command_case(&given, &flags, &failure));
}

TEST(the_machines_are_listed) {
    struct options flags = {.vm = "list"};
    char *text;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    assert_ok(predict_command_print(to, &flags, false, &failure));
    fclose(to);
    assert_contains(text, "\np3.2xlarge ");
    free(text);
}
