/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON log: whatever real processes write to standard error, each line is
 * an object. */
#include "tests/cluster/cluster_fixture.h"

#include "core/base/log.h"
#include "tests/lib/test.h"

#include <signal.h>

enum { FAILED = 1, CONFIG = 2, TERMINATED = 143, NOT_STARTED = 127 };

#define LOGS_JSON LOG_JSON_VARIABLE "=1"

static const char endless[] =
    "{\"steps\": 10000000, \"steps_per_epoch\": 10000000,"
    " \"chief\": \"coordinate\", \"checkpoint\": {\"every_steps\": 200}}";

static const char *json_log_string(const json_t *line, const char *key) {
    const char *text = json_string_value(json_object_get(line, key));
    if (!text)
        fail_msg("no %s", key);
    return text;
}

static json_t *parse_line(const char *line) {
    json_error_t error;
    json_t *object =
        json_loadb(line, strcspn(line, "\n"), JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(object))
        fail_msg("%s: %.*s", error.text, (int)strcspn(line, "\n"), line);
    assert_int_equal(strlen(json_log_string(object, "time")),
                     strlen("2026-11-23T02:15:03.123Z"));
    json_log_string(object, "level");
    json_log_string(object, "event");
    json_log_string(object, "text");
    return object;
}

/* ROLE's number INDEX, below 0: none. */
static bool is_of(const json_t *line, const char *role, int index) {
    const json_t *number = json_object_get(line, "index");
    return !strcmp(json_log_string(line, "role"), role) &&
           (number ? json_integer_value(number) : -1) == index;
}

/* Every line of PROCESS, which has ended, is an object; of those that ROLE and
 * INDEX have written, EVENTS come in this order, others between them. */
static void expect_events(const struct cluster_process *process,
                          const char *role, int index,
                          const char *const *events) {
    const char *line = cluster_run_errors(process);
    for (; *line; line += strcspn(line, "\n") + 1) {
        json_t *object = parse_line(line);
        if (*events && is_of(object, role, index) &&
            !strcmp(json_log_string(object, "event"), *events))
            events++;
        json_decref(object);
    }
    if (!*events)
        return;
    fputs(cluster_run_errors(process), stderr);
    fail_msg("%s: no %s, or not in its place", role, *events);
}

#define EXPECT_EVENTS(process, role, index, ...)                               \
    expect_events(process, role, index, WORDS(__VA_ARGS__))

static const char *await_event(struct cluster_process *process,
                               const char *event) {
    return cluster_run_await_soon(process, textf("\"event\":\"%s\"", event));
}

/* The process number of worker 1, which has joined the chief. */
static pid_t await_worker_1(struct cluster_process *process) {
    for (;;) {
        json_t *line = parse_line(await_event(process, "member_joined"));
        const char *text = json_log_string(line, "text");
        const char *pid = strstr(text, ", pid ");
        assert_non_null(pid);
        pid_t number = strncmp(text, "worker 1 ", 9) ? 0 : (pid_t)atoi(pid + 6);
        json_decref(line);
        if (number)
            return number;
    }
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(each_line_of_local_is_an_object_though_a_worker_is_killed) {
    cluster_run_job(*state, endless);
    struct cluster_process *local = cluster_run_start(
        *state, "local",
        WORDS("local", "--json-log", "--ps", "1", "--workers", "2", "job.json"),
        NULL);
    pid_t worker = await_worker_1(local);
    await_event(local, "checkpoint_written");
    assert_int_equal(kill(worker, SIGKILL), 0);
    await_event(local, "member_died");
    await_event(local, "checkpoint_written");
    cluster_run_signal(local, SIGTERM);
    cluster_run_expect_soon(local, TERMINATED);
    EXPECT_EVENTS(local, "chief", -1, "process_started", "strategy_chosen",
                  "listening", "member_joined", "plan_made",
                  "checkpoint_written", "member_died", "checkpoint_written",
                  "run_interrupted", "checkpoint_written",
                  "training_summarized");
    EXPECT_EVENTS(local, "ps", 0, "process_started", "listening", "run_joined");
    EXPECT_EVENTS(local, "worker", 1, "process_started", "run_joined");
}

/* As a job that has TF_CONFIG and no flags starts them. */
TEST(the_variable_selects_json_for_each_process) {
    struct cluster_fixture fixture;
    cluster_run_job(*state, "{\"steps\": 20, \"device\": \"cpu\"}");
    cluster_fixture_describe(&fixture, *state, 1, 1, 1);
    setenv(LOG_JSON_VARIABLE, "1", 1);
    cluster_fixture_start_all(&fixture);
    unsetenv(LOG_JSON_VARIABLE);
    cluster_fixture_expect_soon(&fixture, CLUSTER_FIXTURE_TASKS, 0);
    EXPECT_EVENTS(fixture.tasks[0].process, "chief", -1, "process_started",
                  "plan_made", "epoch_finished", "training_summarized",
                  "final_checkpoint");
    EXPECT_EVENTS(fixture.tasks[1].process, "worker", 0, "run_joined",
                  "transport_chosen", "run_over");
    EXPECT_EVENTS(fixture.tasks[2].process, "ps", 0, "run_joined", "run_over");
}

/* The last line of PROCESS, which has ended with a failure, has its CODE. */
static void expect_code(const struct cluster_process *process,
                        const char *code) {
    const char *line = cluster_run_errors(process), *next;
    while (*(next = line + strcspn(line, "\n") + 1))
        line = next;
    json_t *object = parse_line(line);
    assert_string_equal(json_log_string(object, "event"), "failed");
    assert_string_equal(json_log_string(object, "code"), code);
    json_decref(object);
}

TEST(every_process_ends_with_the_code_of_the_cause) {
    struct cluster_fixture fixture;
    cluster_run_job(*state, "{\"steps\": 20, \"device\": \"cpu\","
                            " \"optimizer\": {\"params\": {\"lr\": 1e30}}}");
    cluster_fixture_describe(&fixture, *state, 1, 1, 1);
    setenv(LOG_JSON_VARIABLE, "1", 1);
    cluster_fixture_start_all(&fixture);
    unsetenv(LOG_JSON_VARIABLE);
    cluster_fixture_expect_soon(&fixture, CLUSTER_FIXTURE_TASKS, FAILED);
    for (int i = 0; i < 3; i++)
        expect_code(fixture.tasks[i].process, "LOSS_NOT_FINITE");
}

/* `capstan ARGUMENTS...` ends with 2 and logs CODE. */
static void expect_failure(struct cluster_run *run, const char *code,
                           const char *variable, const char *const *arguments) {
    struct cluster_process *process =
        cluster_run_start(run, "command", arguments, WORDS(variable));
    cluster_run_expect_soon(process, CONFIG);
    expect_code(process, code);
}

#define EXPECT_FAILURE(state, code, variable, ...)                             \
    expect_failure(*(state), code, variable, WORDS(__VA_ARGS__))

TEST(the_errors_of_a_command_are_objects_too) {
    cluster_run_job(*state, "{\"steps\": \"many\", \"epoch\": 1}");
    EXPECT_FAILURE(state, "USAGE", LOGS_JSON, NULL);
    EXPECT_FAILURE(state, "USAGE", LOGS_JSON, "train");
    EXPECT_FAILURE(state, "UNKNOWN_FLAG", NULL, "run", "--bogus", "--json-log");
    EXPECT_FAILURE(state, "JOB_INVALID", NULL, "run", "--json-log", "job.json");
    EXPECT_FAILURE(state, "JOB_INVALID", NULL, "local", "--log-format", "json",
                   "job.json");
    EXPECT_FAILURE(state, "CLUSTER_INVALID", "TF_CONFIG={", "run",
                   "--json-log");
    EXPECT_FAILURE(state, "JOB_INVALID", NULL, "compare", "--json-log",
                   "job.json");
}

/* Also of the processes that it starts. */
TEST(the_flag_text_outweighs_the_variable) {
    cluster_run_job(*state, "{\"steps\": 20, \"device\": \"cpu\"}");
    struct cluster_process *local = cluster_run_start(
        *state, "local", WORDS("local", "--log-format=text", "job.json"),
        WORDS(LOGS_JSON));
    cluster_run_expect_soon(local, 0);
    for (const char *line = cluster_run_errors(local); *line;
         line += strcspn(line, "\n") + 1)
        if (!log_is_info(line, strcspn(line, "\n")))
            fail_msg("%.*s", (int)strcspn(line, "\n"), line);
    cluster_fixture_expect_logged(local, " chief: listening on port ");
}

/* What members say of a start as planned is in the chief's lines, too. */
TEST(little_is_said_before_the_first_step) {
    enum { MOST = 10 };
    cluster_run_job(*state, NULL);
    struct cluster_process *local = cluster_run_start(
        *state, "local",
        WORDS("local", "--ps", "2", "--workers", "2", "job.json"), NULL);
    cluster_run_expect_soon(local, 0);
    const char *said = cluster_run_errors(local);
    const char *step = strstr(said, "chief: epoch 1/"), *line = said;
    int lines = 0;
    assert_non_null(step);
    for (; (line = memchr(line, '\n', (size_t)(step - line))); line++)
        lines++;
    if (lines > MOST)
        fail_msg("%d lines before the first step: %s", lines, said);
    cluster_fixture_expect_logged(local, "chief: ps 1 joined from ");
    cluster_fixture_expect_logged(local, "chief: worker 1 joined from ");
}

TEST(a_program_that_launch_cannot_start_is_an_object_too) {
    struct cluster_process *launch = cluster_run_start(
        *state, "launch",
        WORDS("launch", "--json-log", "--no_python", "no-program"), NULL);
    cluster_run_expect_soon(launch, NOT_STARTED);
    EXPECT_EVENTS(launch, "launch", -1, "process_not_started");
}

TEST(processes_that_launch_starts_log_json_as_well) {
    cluster_run_job(*state, "{\"steps\": 20, \"device\": \"cpu\"}");
    struct cluster_process *launch = cluster_run_start(
        *state, "launch",
        WORDS("launch", "--json-log", "--no_python", "--nproc_per_node=1",
              getenv("CAPSTAN"), "run", "job.json"),
        NULL);
    cluster_run_expect_soon(launch, 0);
    EXPECT_EVENTS(launch, "chief", -1, "process_started",
                  "training_summarized");
}

TEST(a_wrong_value_of_the_variable_is_refused) {
    struct cluster_process *process =
        cluster_run_start(*state, "command", WORDS("run", "job.json"),
                          WORDS(LOG_JSON_VARIABLE "=yes"));
    cluster_run_expect_soon(process, CONFIG);
    cluster_fixture_expect_logged(process, LOG_JSON_VARIABLE
                                  " is 'yes'; allowed are 0 and 1");
}
