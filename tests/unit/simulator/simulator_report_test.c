/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "simulator/simulator_report.h"

#include "tests/lib/test.h"

#include <jansson.h>

/* A vector of 4 MB on links of a gigabit. */
struct fixture {
    struct layout *layout;
    double forward, backward;
    struct simulator_report simulator_report;
    struct options flags;
};

static int setup(void **state) {
    static struct fixture fixture;
    struct parameter vector = {
        .name = "vector", .num_dims = 1, .dims = {1 << 20}};
    fixture = (struct fixture){.forward = 1e-3, .backward = 2e-3};
    *state = &fixture;
    if (layout_build(&fixture.layout, &vector, 1, NULL))
        return -1;
    fixture.simulator_report =
        (struct simulator_report){.layout = fixture.layout,
                                  .forward = &fixture.forward,
                                  .backward = &fixture.backward,
                                  .costs = {.message = 1e-5},
                                  .parallel_efficiency = 1,
                                  .cores = 2,
                                  .num_ps = 2,
                                  .num_workers = 3};
    options_open(&fixture.flags, CLI_COMMAND_BENCH);
    return 0;
}

static int teardown(void **state) {
    layout_free(&((struct fixture *)*state)->layout);
    return 0;
}

FIXTURE(setup, teardown);

/* What it prints; the caller's. */
static char *print(struct fixture *fixture) {
    char *text = NULL;
    size_t size;
    struct failure why = {0};
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    enum status status = simulator_report_print(out, &fixture->simulator_report,
                                                &fixture->flags, &why);
    fclose(out);
    if (status)
        fail_msg("%s", why.text);
    return text;
}

TEST_WITH(NULL, NULL, link_payload_excludes_frame_overhead) {
    assert_float_equal(simulator_report_link_rate(1), 119.55e6, 0.01e6);
    assert_float_equal(simulator_report_link_rate(10) /
                           simulator_report_link_rate(1),
                       10, 1e-9);
}

TEST(flags_change_the_case) {
    struct simulator_config config;
    fixture->flags.cores = 8;
    fixture->flags.overhead = 3;
    fixture->flags.group = 65536;
    fixture->flags.colocation = OPTIONS_PLACE_ONE;
    fixture->simulator_report.staleness = 5;
    simulator_report_config(&config, &fixture->simulator_report,
                            &fixture->flags);
    assert_int_equal(config.cores, 8);
    assert_float_equal(config.costs.message, 3e-5, 1e-12);
    assert_int_equal(config.group_bytes, 65536);
    assert_int_equal(config.colocation, SIMULATOR_COLOCATE_ALL);
    assert_true(config.link_rate == 0);
    assert_int_equal(config.staleness, 5);
}

TEST(one_case_is_printed_with_its_bound) {
    char *text = print(fixture);
    assert_contains(text, "2 ps, 3 workers: a round takes");
    assert_contains(text, "bound by the links: 52.6");
    assert_contains(text, "most used: link");
    free(text);
}

TEST(json_has_case_and_result) {
    fixture->simulator_report.json = true;
    char *text = print(fixture);
    json_t *object = json_loads(text, 0, NULL);
    assert_non_null(object);
    double bound = json_number_value(json_object_get(object, "bound_seconds"));
    double round = json_number_value(json_object_get(object, "round_seconds"));
    assert_float_equal(bound, 1.5 * 4194304 / simulator_report_link_rate(1),
                       1e-6);
    assert_float_equal(
        json_number_value(json_object_get(object, "share_of_bound")),
        bound / round, 1e-6);
    assert_int_equal(json_integer_value(json_object_get(object, "bytes")),
                     4194304);
    assert_int_equal(json_integer_value(json_object_get(object, "ps")), 2);
    assert_int_equal(json_integer_value(json_object_get(object, "workers")), 3);
    assert_non_null(json_object_get(object, "limit"));
    json_decref(object);
    free(text);
}

TEST(a_sweep_has_a_line_for_each_number_of_workers) {
    fixture->flags.sweep = true;
    fixture->flags.rounds = 1;
    fixture->simulator_report.json = true;
    char *text = print(fixture);
    json_t *object = json_loads(text, 0, NULL);
    const json_t *cases = json_object_get(object, "cases");
    assert_int_equal(json_array_size(cases), 9 * 7);
    const json_t *last = json_array_get(cases, 9 * 7 - 1);
    assert_int_equal(json_integer_value(json_object_get(last, "workers")), 256);
    assert_int_equal(json_integer_value(json_object_get(last, "ps")), 64);
    json_decref(object);
    free(text);
    fixture->simulator_report.json = false;
    text = print(fixture);
    assert_contains(text, "\n    256 ");
    free(text);
}

TEST(impossible_settings_are_an_error) {
    fixture->simulator_report.num_ps = 100;
    assert_error(simulator_report_print(stdout, &fixture->simulator_report,
                                        &fixture->flags, &failure),
                 FAILURE_SIMULATION_INVALID);
    assert_contains(failure.text, "100 ps: the model has 64 blocks");
}
