/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan cluster` for people: where its description comes from, and which of
 * its addresses answer, before a run and in it. */
#include "tests/cluster/cluster_run.h"
#include "tests/lib/test.h"

/* Ends `capstan cluster ARGUMENTS...` with CODE, as task INDEX of TYPE in the
 * described cluster. */
static struct cluster_process *cluster_as(struct cluster_run *run,
                                          const char *type, unsigned index,
                                          const char *const *arguments,
                                          int code) {
    json_t *config = json_pack("{s:O, s:{s:s, s:i}}", "cluster", run->cluster,
                               "task", "type", type, "index", (int)index);
    char *text = json_dumps(config, JSON_COMPACT), variable[2048];
    snprintf(variable, sizeof variable, "TF_CONFIG=%s", text);
    struct cluster_process *process = cluster_run_start(
        run, "cluster", arguments, (const char *const[]){variable, NULL});
    cluster_run_expect_soon(process, code);
    free(text);
    json_decref(config);
    return process;
}
#define CLUSTER_AS(run, type, index, code, ...)                                \
    cluster_as(run, type, index,                                               \
               (const char *const[]){"cluster", __VA_ARGS__, NULL}, code)

static struct cluster_process *cluster_with(struct cluster_run *run,
                                            const char *const *arguments,
                                            const char *const *environment,
                                            int code) {
    struct cluster_process *process =
        cluster_run_start(run, "cluster", arguments, environment);
    cluster_run_expect_soon(process, code);
    return process;
}

/* The line of TEXT that begins with START, blanks aside, has END. */
static void expect_line(const char *text, const char *start, const char *end) {
    for (const char *line = text; *line; line += strcspn(line, "\n")) {
        line += strspn(line, " \n");
        size_t length = strcspn(line, "\n");
        if (strncmp(line, start, strlen(start)) != 0)
            continue;
        if (!memmem(line, length, end, strlen(end)))
            fail_msg("\"%s\" is not in: %.*s", end, (int)length, line);
        return;
    }
    fail_msg("no line begins with \"%s\" in:\n%s", start, text);
}

/* Starts the chief and the ps of the described cluster, which wait for the
 * rest. */
static struct cluster_process *start_chief_and_ps(struct cluster_run *run,
                                                  struct cluster_process **ps) {
    cluster_run_job(run, NULL);
    struct cluster_process *chief = cluster_run_task(
        run, "chief", 0, (const char *const[]){"job.json", NULL});
    *ps = cluster_run_task(run, "ps", 0, NULL);
    cluster_run_await_soon(chief, "listening on port");
    cluster_run_await_soon(*ps, "listening on port");
    return chief;
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(before_a_run_all_addresses_are_refused) {
    cluster_run_describe(*state, 1, 1, 1);
    struct cluster_process *process =
        CLUSTER_AS(*state, "worker", 0, 1, "--check");
    const char *text = cluster_run_output(process);
    expect_line(text, "chief         0",
                "chief: refused: the host is reachable");
    expect_line(text, "ps            0", " refused: the host is reachable");
    expect_line(text, "worker        0", "this process");
    expect_line(text, "0 of 2 addresses answer.", "");
    expect_line(cluster_run_errors(process),
                "error: 2 of 2 addresses do not answer, first that of chief 0",
                "2 of them are refused");
}

TEST(the_chief_and_the_ps_of_a_run_answer) {
    struct cluster_process *ps, *chief;
    cluster_run_describe(*state, 1, 1, 1);
    chief = start_chief_and_ps(*state, &ps);
    const char *text =
        cluster_run_output(CLUSTER_AS(*state, "worker", 0, 0, "--check"));
    expect_line(text, "chief         0", "chief: answers");
    expect_line(text, "ps            0", " answers");
    expect_line(text, "2 of 2 addresses answer.", "");
    struct cluster_process *worker =
        cluster_run_task(*state, "worker", 0, NULL);
    cluster_run_expect_soon(worker, 0);
    cluster_run_expect_soon(ps, 0);
    cluster_run_expect_soon(chief, 0);
}

TEST(a_missing_process_is_named) {
    struct cluster_process *ps, *process;
    cluster_run_describe(*state, 1, 1, 2);
    start_chief_and_ps(*state, &ps);
    process = CLUSTER_AS(*state, "worker", 0, 1, "--check", "--json");
    const json_t *result = cluster_run_json(process);
    const json_t *processes = json_object_get(result, "processes");
    static const char *const links[] = {"answers", "not_tried", "refused",
                                        "answers"};
    assert_int_equal(json_array_size(processes), 4);
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(json_string_value(json_object_get(
                                json_array_get(processes, i), "link")),
                            links[i]);
    assert_string_equal(json_string_value(json_object_get(result, "source")),
                        "TF_CONFIG");
    expect_line(cluster_run_errors(process), "error: 1 of 3 addresses",
                "worker 1, ");
}

TEST(a_name_that_does_not_resolve_is_named) {
    static const char *const arguments[] = {"cluster",
                                            "--check",
                                            "--chief_hosts",
                                            "nowhere.invalid:1",
                                            "--ps_hosts",
                                            "localhost:0",
                                            "--job_name",
                                            "ps",
                                            "--task_index",
                                            "0",
                                            NULL};
    struct cluster_process *process = cluster_with(*state, arguments, NULL, 1);
    expect_line(cluster_run_output(process), "chief         0",
                "chief: the name does not resolve: ");
}

static const char *const ranks[] = {
    "RANK=1",         "WORLD_SIZE=3",     "MASTER_ADDR=h",     "HOROVOD_RANK=1",
    "HOROVOD_SIZE=3", "DMLC_ROLE=worker", "MASTER_PORT=29500", NULL};

TEST(explain_says_which_source_counts_and_lists_every_role) {
    static const char *const arguments[] = {"cluster", "--explain", "--num-ps",
                                            "1", NULL};
    const char *text =
        cluster_run_output(cluster_with(*state, arguments, ranks, 0));
    expect_line(text, "TF_CONFIG (TF_CONFIG)", "not set");
    expect_line(text, "torch (RANK)",
                "taken, because it is the first that is set: RANK, WORLD_SIZE");
    expect_line(text, "DMLC (DMLC_ROLE)", "no cluster of several processes");
    expect_line(text, "HOROVOD (HOROVOD_RANK)",
                "set, not looked at: HOROVOD_RANK, HOROVOD_SIZE");
    expect_line(text, "alone   ", "not looked at");
    expect_line(text, "worker        0", "h:29500                      chief");
    expect_line(text, "worker        1", "known when it joins          this");
    expect_line(text, "ps            0", "known when it joins");
}

TEST(explain_as_json_has_the_same_in_more_keys) {
    static const char *const arguments[] = {"cluster", "--explain", "--json",
                                            NULL};
    const json_t *result =
        cluster_run_json(cluster_with(*state, arguments, ranks, 0));
    const json_t *sources = json_object_get(result, "sources");
    const json_t *torch = json_array_get(sources, 4);
    const json_t *self =
        json_array_get(json_object_get(result, "processes"), 1);
    json_t *expect =
        json_pack("{s:s, s:s, s:[s, s]}", "source", "torch", "state", "taken",
                  "variables", "RANK", "WORLD_SIZE");
    assert_true(json_equal(torch, expect));
    assert_true(json_is_true(json_object_get(self, "is_self")));
    assert_true(json_is_null(json_object_get(self, "address")));
    assert_true(json_is_integer(json_object_get(result, "num_ps")));
    json_decref(expect);
}

TEST(explain_helps_where_the_description_is_wrong) {
    static const char *const arguments[] = {"cluster", "--explain", NULL};
    static const char *const wrong[] = {"TF_CONFIG={", NULL};
    struct cluster_process *process = cluster_with(*state, arguments, wrong, 2);
    const char *text = cluster_run_errors(process);
    assert_string_equal(cluster_run_output(process), "");
    expect_line(text, "TF_CONFIG (TF_CONFIG)", "taken");
    expect_line(text, "error: bad_json: ", "");
}
