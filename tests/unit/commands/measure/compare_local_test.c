/* SPDX-License-Identifier: Apache-2.0 */
/* Whole comparisons of a program that only pretends to train: what it is asked
 * for, in which order, and what becomes of those that fail. */
#define STATE struct fixture *fixture

#include "commands/measure/compare_runs.h"

#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct fixture {
    char folder[64], program[PATH_MAX], log[PATH_MAX];
    struct options options;
    struct job job;
};

/* The words of each run go to FOLDER/log, a line each. All-reduce is what it
 * does not have. */
static const char script[] =
    "#!/bin/sh\n"
    "echo \"$*\" >> '%s'\n"
    "case \"$*\" in *allreduce*) echo '1 local: error: no such mode' >&2\n"
    "  exit 2;; esac\n"
    "%s\n"
    "echo '{\"steps\":20,\"steps_per_second\":10.0,"
    "\"examples_per_second\":640.0,\"train_loss\":0.5,\"test_accuracy\":0.75,"
    "\"link_gbits\":null,\"parameters\":1000,\"wire_bytes\":4000.0,"
    "\"bytes_per_step\":16000.0,\"seconds_per_step\":{\"input\":0.0,"
    "\"compute\":0.05,\"waiting_for_weights\":0.05,"
    "\"waiting_for_gradients\":0.0,\"update\":0.001}}'\n";

static void write_program(const struct fixture *fixture, const char *more) {
    FILE *file = fopen(fixture->program, "w");
    assert_non_null(file);
    fprintf(file, script, fixture->log, more);
    fclose(file);
    assert_int_equal(chmod(fixture->program, 0700), 0);
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    *state = fixture;
    snprintf(fixture->folder, sizeof fixture->folder,
             "/tmp/capstan-comparison-XXXXXX");
    if (!fixture || !mkdtemp(fixture->folder))
        return -1;
    snprintf(fixture->program, sizeof fixture->program, "%s/program",
             fixture->folder);
    snprintf(fixture->log, sizeof fixture->log, "%s/log", fixture->folder);
    options_open(&fixture->options, CLI_COMMAND_COMPARE);
    fixture->options.job = "job.json";
    fixture->options.steps = 20;
    fixture->options.repeats = 2;
    fixture->options.limit = 60;
    write_program(fixture, ":");
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    unlink(fixture->program);
    unlink(fixture->log);
    rmdir(fixture->folder);
    free(fixture);
    return 0;
}

FIXTURE(setup, teardown);

static enum status compare(struct fixture *fixture, json_t **result,
                           struct failure *why) {
    struct compare_local local = {.flags = &fixture->options,
                                  .job = &fixture->job,
                                  .program = fixture->program};
    struct compare_runs_runner runner = compare_local_runner(&local);
    struct compare_runs_settings options = {.flags = &fixture->options,
                                            .job = &fixture->job,
                                            .batch = {16, 2},
                                            .runner = &runner};
    enum status status = subprocess_open(&local.signals, why);
    if (!status)
        status = compare_runs(result, &options, why);
    subprocess_close(&local.signals);
    return status;
}

/* The words of run NUMBER, from 0 on. */
static void expect_words(const struct fixture *fixture, int number,
                         const char *const *parts) {
    char line[4096] = "";
    FILE *file = fopen(fixture->log, "r");
    assert_non_null(file);
    for (int i = 0; i <= number; i++)
        if (!fgets(line, sizeof line, file))
            fail_msg("there is no run %d", number);
    fclose(file);
    for (; *parts; parts++)
        if (!strstr(line, *parts))
            fail_msg("'%s' is not in run %d: %s", *parts, number, line);
}

static int count_lines(const struct fixture *fixture) {
    int count = 0, byte;
    FILE *file = fopen(fixture->log, "r");
    while (file && (byte = fgetc(file)) != EOF)
        count += byte == '\n';
    if (file)
        fclose(file);
    return count;
}

#define WORDS(...)                                                             \
    (const char *const[]) {                                                    \
        __VA_ARGS__, NULL                                                      \
    }

static const json_t *case_at(const json_t *result, size_t index) {
    return json_array_get(json_object_get(result, "cases"), index);
}

TEST(cases_take_turns_with_the_same_batch) {
    json_t *result;
    fixture->options.sets[fixture->options.num_sets++] = "seed=7";
    fixture->options.lane = "tcp";
    assert_ok(compare(fixture, &result, &failure));
    assert_int_equal(count_lines(fixture), 1 + 2 + 2 + 2 + 1);
    expect_words(
        fixture, 0,
        WORDS("local --json --ps=0 --workers=2 --set seed=7 "
              "--lane=tcp --set checkpoint=null --set tensorboard=null "
              "--set metrics=null --set export=null --set compare=null --set "
              "mlflow.tracking_uri= --set "
              "chief=coordinate",
              "strategy.type=allreduce", "staleness=null"));
    for (int lap = 0; lap < 2; lap++) {
        expect_words(fixture, 1 + 2 * lap,
                     WORDS("--ps=1 --workers=2", "strategy.type=ps",
                           "strategy.staleness=0", "train_batch_size=null",
                           "train_micro_batch_size_per_gpu=16",
                           "gradient_accumulation_steps=2", "steps=20 ",
                           "data.test=null job.json"));
        expect_words(fixture, 2 + 2 * lap,
                     WORDS("--ps=1 --workers=2", "strategy.staleness=inf",
                           "train_micro_batch_size_per_gpu=16", "steps=40 ",
                           "data.test=null"));
    }
    expect_words(
        fixture, 7,
        WORDS("gradient_accumulation_steps=64", "steps=1 ", "data.test=null"));
    json_decref(result);
}

/* 20 steps at 10 a second: 2 s, for the others 20 steps too. */
TEST(the_final_round_has_equal_time_and_the_test_set) {
    json_t *result;
    assert_ok(compare(fixture, &result, &failure));
    expect_words(fixture, 5, WORDS("staleness=0", "steps=20 job.json"));
    expect_words(fixture, 6, WORDS("staleness=inf", "steps=20 job.json"));
    assert_true(json_number_value(json_object_get(result, "equal_seconds")) ==
                2);
    assert_true(json_number_value(json_object_get(case_at(result, 1),
                                                  "test_accuracy")) == 0.75);
    json_decref(result);
}

TEST(a_failed_case_is_reported_and_not_repeated) {
    json_t *result;
    assert_ok(compare(fixture, &result, &failure));
    const char *error =
        json_string_value(json_object_get(case_at(result, 0), "error"));
    assert_string_equal(error, "no such mode (exit code 2)");
    assert_true(json_is_null(json_object_get(case_at(result, 1), "error")));
    assert_int_equal(
        json_integer_value(json_object_get(case_at(result, 1), "runs")), 2);
    json_decref(result);
}

TEST(without_a_successful_case_there_is_no_result) {
    json_t *result;
    write_program(fixture, "echo 'error: no data' >&2; exit 2");
    assert_error(compare(fixture, &result, &failure),
                 FAILURE_COMPARE_IMPOSSIBLE);
    assert_null(result);
    assert_contains(failure.text, "no such mode");
    write_program(fixture, "exit 1");
    assert_error(compare(fixture, &result, &failure), FAILURE_COMPARE_FAILED);
}

TEST(a_run_past_its_time_limit_is_a_failure) {
    json_t *result;
    fixture->options.limit = 0.3;
    write_program(fixture, "case \"$*\" in *=inf*) exec sleep 60;; esac");
    assert_ok(compare(fixture, &result, &failure));
    const char *error =
        json_string_value(json_object_get(case_at(result, 2), "error"));
    assert_contains(error, "not over after 0.3 s (--limit)");
    json_decref(result);
}

TEST(a_signal_ends_the_comparison) {
    json_t *result;
    write_program(fixture, textf("kill -INT %d; exec sleep 60", (int)getpid()));
    assert_error(compare(fixture, &result, &failure), FAILURE_INTERRUPTED);
    assert_null(result);
    assert_int_equal(count_lines(fixture), 2);
}

TEST(each_number_of_workers_and_ps_is_a_case) {
    struct options *flags = &fixture->options;
    json_t *result;
    flags->ps = (struct job_counts){{1, 2}, 2};
    flags->workers = (struct job_counts){{1, 2, 4}, 3};
    flags->repeats = 1;
    assert_ok(compare(fixture, &result, &failure));
    assert_int_equal(json_array_size(json_object_get(result, "cases")),
                     3 * (1 + 2 * 2));
    assert_int_equal(json_array_size(json_object_get(result, "crossover")), 3);
    json_decref(result);
}
