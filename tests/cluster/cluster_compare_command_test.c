/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan compare -- COMMAND`: COMMAND is tests/library/caller.c. */
#include "tests/cluster/cluster_run.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TIMEOUT = 120 /* seconds, for a dozen tiny runs */, MAX_WORDS = 24 };

/* build/tests/caller, beside the program. */
static void path_of_caller(char path[PATH_MAX]) {
    const char *capstan = getenv("CAPSTAN");
    char folder[PATH_MAX];
    assert_non_null(realpath(capstan ? capstan : "build/capstan", folder));
    *strrchr(folder, '/') = 0;
    snprintf(path, PATH_MAX, "%.4000s/tests/caller", folder);
    if (access(path, X_OK))
        fail_msg("no program %s: make build-tests", path);
}

/* `capstan compare FLAGS... -- caller NAME`. */
static struct cluster_process *start(void **state, const char *name,
                                     const char *const *flags) {
    const char *words[MAX_WORDS] = {"compare"};
    char caller[PATH_MAX];
    unsigned count = 1;
    path_of_caller(caller);
    for (; *flags; flags++)
        words[count++] = *flags;
    words[count++] = "--";
    words[count++] = caller;
    words[count++] = name;
    return cluster_run_start(*state, "compare", words, NULL);
}

static struct cluster_process *compare(void **state, int code, const char *name,
                                       const char *const *flags) {
    struct cluster_process *process = start(state, name, flags);
    cluster_run_expect(process, code, TIMEOUT);
    return process;
}

#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static double number(const json_t *object, const char *inside,
                     const char *key) {
    const json_t *value =
        json_object_get(inside ? json_object_get(object, inside) : object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static const char *text_at(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* The case of WORKERS workers in MODE with PS ps. */
static const json_t *find(const json_t *result, const char *mode, int workers,
                          int ps) {
    const json_t *one;
    size_t i;
    json_array_foreach(json_object_get(result, "cases"), i, one) {
        if (!strcmp(text_at(one, "mode"), mode) &&
            number(one, NULL, "workers") == workers &&
            number(one, NULL, "ps") == ps)
            return one;
    }
    fail_msg("there is no case %s, %d workers, %d ps", mode, workers, ps);
    return NULL;
}

/* What every measured case of a caller has. */
static void expect_measured(const json_t *one, unsigned runs) {
    static const char rate[] = "examples_per_second";
    static const char times[] = "seconds_per_step";
    assert_string_equal(text_at(one, "error"), "");
    assert_true(number(one, NULL, "runs") == runs);
    assert_true(number(one, rate, "min") > 0);
    assert_true(number(one, rate, "max") >= number(one, rate, "min"));
    assert_true(number(one, "steps_per_second", "median") > 0);
    assert_true(number(one, NULL, "bound_examples_per_second") > 0);
    assert_true(number(one, NULL, "reached") > 0);
    assert_true(text_at(one, "limit")[0]);
    assert_true(isnan(number(one, times, "input")));
    assert_true(number(one, times, "compute") > 0);
    assert_true(number(one, times, "waiting_for_weights") >= 0);
    assert_true(number(one, times, "waiting_for_gradients") >= 0);
    assert_true(number(one, times, "update") > 0);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

/* 40,000 weights, which no job describes: a worker's round moves as many
 * gradients and weights. */
TEST(a_command_is_measured_as_a_job_is) {
    static const double bytes = 4 * 40000;
    struct cluster_process *process = compare(
        state, 0, "learns",
        FLAGS("--json", "--workers", "1,2", "--ps", "1,2", "--steps", "200",
              "--repeats", "2", "--link-gbits", "1", "--csv", "table.csv"));
    const json_t *result = cluster_run_json(process);
    assert_int_equal(json_array_size(json_object_get(result, "cases")), 10);
    assert_true(number(result, NULL, "rounds") == 200);
    assert_true(number(result, NULL, "samples_per_step") == 8);
    assert_string_equal(text_at(result, "unit"), "examples");
    assert_true(json_is_null(json_object_get(result, "job")));
    assert_contains(text_at(result, "command"), "/caller learns");
    assert_true(number(result, NULL, "equal_seconds") > 0);
    assert_true(number(result, NULL, "first_loss") == 1);
    for (int workers = 1; workers <= 2; workers++) {
        const json_t *ring = find(result, "allreduce", workers, 0);
        expect_measured(ring, 2);
        assert_true(number(ring, NULL, "bytes_per_step") ==
                    2 * (workers - 1) * bytes);
        for (int ps = 1; ps <= 2; ps++) {
            const json_t *sync = find(result, "ps", workers, ps);
            const json_t *async = find(result, "ps-async", workers, ps);
            expect_measured(sync, 2);
            expect_measured(async, 2);
            assert_true(number(sync, NULL, "bytes_per_step") ==
                        2 * workers * bytes);
            assert_true(number(async, NULL, "bytes_per_step") == 2 * bytes);
            assert_true(number(sync, NULL, "train_loss") < 1);
            assert_true(json_is_false(json_object_get(sync, "diverged")));
            assert_true(number(sync, NULL, "predicted_examples_per_second") >
                        0);
        }
    }
    assert_null(strstr(cluster_run_errors(process), "rank 0 learns"));
}

TEST(without_steps_the_commands_own_end_counts) {
    struct cluster_process *process =
        compare(state, 0, "silent", FLAGS("--repeats", "1"));
    const char *output = cluster_run_output(process);
    assert_contains(output, "/caller silent: its own steps; means");
    assert_contains(output, " steps/s ");
    assert_contains(output, "reports no samples: a rate counts");
    assert_contains(output, "reports no loss: none is compared");
    assert_null(strstr(output, "nan"));
    assert_contains(cluster_run_errors(process), "run 3 of 3");
}

TEST(a_case_that_the_command_refuses_leaves_the_others) {
    struct cluster_process *process =
        compare(state, 0, "early", FLAGS("--json", "--repeats", "2"));
    const json_t *result = cluster_run_json(process);
    const char *error = text_at(find(result, "allreduce", 2, 0), "error");
    assert_contains(error, "all-reduce does not go on without a rank");
    assert_contains(error, "(exit code 2)");
    expect_measured(find(result, "ps", 2, 1), 2);
    expect_measured(find(result, "ps-async", 2, 1), 2);
}

TEST(a_failed_commands_last_words_are_shown) {
    struct cluster_process *process =
        compare(state, 1, "fails", FLAGS("--json", "--repeats", "1"));
    const char *said = cluster_run_errors(process);
    assert_contains(said, "compare: | CALLER_FAILED: ");
    assert_null(strstr(said, "listening on port"));
    assert_contains(said, "no case could be run; the first: worker 1 ");
    assert_string_equal(cluster_run_output(process), "");
}

TEST(a_run_past_the_limit_is_ended) {
    struct cluster_process *process = compare(
        state, 1, "learns", FLAGS("--limit", "1", "--steps", "1000000000"));
    assert_contains(cluster_run_errors(process),
                    "not over after 1 s (--limit)");
}

/* Waits for a byte; false: nobody can write one any more. */
static bool await_byte(int pipe) {
    struct pollfd item = {pipe, POLLIN, 0};
    char byte;
    assert_int_equal(poll(&item, 1, 1000 * CLUSTER_RUN_DEADLINE), 1);
    return read(pipe, &byte, 1) == 1;
}

/* What a wrapper of the command has started ends, too: all hold an end of the
 * pipe. */
TEST(ctrl_c_leaves_no_process) {
    char caller[PATH_MAX];
    path_of_caller(caller);
    const char *pipe_path = cluster_run_path(*state, "alive");
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    int alive = open(pipe_path, O_RDONLY | O_NONBLOCK);
    struct cluster_process *process = cluster_run_start(
        *state, "compare",
        FLAGS(
            "compare", "--steps", "1000000000", "--", "sh", "-c",
            textf("exec 9> '%s'; echo >&9; '%s' learns; :", pipe_path, caller)),
        NULL);
    assert_true(await_byte(alive));
    cluster_run_interrupt(process, "3 cases, 13 runs (3 of each and one for");
    while (await_byte(alive))
        ;
    close(alive);
}

TEST(what_does_not_go_with_a_command_is_refused) {
    const struct {
        const char *const *flags, *text;
    } cases[] = {
        {FLAGS("--predict", "--params", "1M", "--link-gbits", "1"),
         "--predict runs nothing: it takes no job and no command"},
        {FLAGS("--deepspeed_config", "ds.json"),
         "--deepspeed_config does not go with a command"},
        {FLAGS("job.json"), "job.json trains a built-in model"},
    };
    cluster_run_job(*state, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cluster_process *process =
            compare(state, 2, "learns", cases[i].flags);
        assert_contains(cluster_run_errors(process), cases[i].text);
        assert_string_equal(cluster_run_output(process), "");
    }
}
