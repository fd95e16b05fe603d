/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/launch/children.h"

#include "core/base/log.h"
#include "core/base/time.h"
#include "tests/lib/test.h"

#include <unistd.h>

static struct subprocess_result run(struct subprocess_signals *signals,
                                    const char *script, double limit,
                                    double kill_after) {
    char *arguments[] = {"sh", "-c", (char *)script, NULL};
    struct subprocess_options options = {"sh", arguments, limit, kill_after};
    struct subprocess_result result;
    assert_ok(subprocess_run(signals, &options, &result, &failure));
    return result;
}

static int open_signals(void **state) {
    struct subprocess_signals *signals = calloc(1, sizeof *signals);
    *state = signals;
    return !signals || subprocess_open(signals, &failure);
}

static int close_signals(void **state) {
    subprocess_close(*state);
    free(*state);
    return 0;
}

FIXTURE(open_signals, close_signals);

TEST(output_and_exit_code_are_reported) {
    struct subprocess_result result =
        run(*state, "echo out; echo error: bad >&2; exit 3", 30, 1);
    assert_int_equal(result.code, 3);
    assert_string_equal(result.output, "out\n");
    assert_string_equal(result.errors, "error: bad\n");
    assert_false(result.timed_out);
    subprocess_free_result(&result);
    assert_null(result.output);
}

TEST(the_tail_of_long_output_is_kept) {
    struct subprocess_result result =
        run(*state, "seq 1 300000 >&2; echo done", 60, 1);
    const char *last = "\n300000\n";
    size_t length = strlen(result.errors);
    assert_string_equal(result.output, "done\n");
    assert_true(length > 1000 && length <= 1 << 14);
    assert_string_equal(result.errors + length - strlen(last), last);
    subprocess_free_result(&result);
}

TEST(a_child_has_no_standard_input) {
    struct subprocess_result result = run(*state, "cat", 30, 1);
    assert_int_equal(result.code, 0);
    assert_string_equal(result.output, "");
    subprocess_free_result(&result);
}

TEST(a_child_does_not_log_json) {
    setenv(LOG_JSON_VARIABLE, "1", 1);
    struct subprocess_result result =
        run(*state, "echo \"<$" LOG_JSON_VARIABLE ">\"", 30, 1);
    unsetenv(LOG_JSON_VARIABLE);
    assert_string_equal(result.output, "<>\n");
    subprocess_free_result(&result);
}

TEST(a_child_past_its_deadline_is_terminated) {
    int64_t began = time_now();
    struct subprocess_result result = run(*state, "exec sleep 60", 0.2, 30);
    assert_true(result.timed_out);
    assert_int_equal(result.code, 128 + SIGTERM);
    assert_true(time_now() - began < 30 * TIME_S);
    subprocess_free_result(&result);
}

TEST(a_child_that_ignores_sigterm_is_killed) {
    struct subprocess_result result =
        run(*state, "trap '' TERM; while :; do sleep 0.05; done", 0.2, 0.2);
    assert_true(result.timed_out);
    assert_int_equal(result.code, 128 + SIGKILL);
    subprocess_free_result(&result);
}

TEST(a_signal_is_forwarded_to_the_child) {
    struct subprocess_signals *signals = *state;
    struct subprocess_result result = run(
        signals, textf("kill -INT %d; exec sleep 60", (int)getpid()), 60, 30);
    assert_int_equal(signals->caught, SIGINT);
    assert_int_equal(result.code, 128 + SIGTERM);
    assert_false(result.timed_out);
    subprocess_free_result(&result);
}

TEST(a_missing_program_is_named) {
    char *arguments[] = {"/nonexistent/program", NULL};
    struct subprocess_options options = {arguments[0], arguments, 30, 1};
    struct subprocess_result result;
    assert_error(subprocess_run(*state, &options, &result, &failure),
                 FAILURE_PROGRAM_MISSING);
    assert_contains(failure.text, "/nonexistent/program");
    assert_null(result.output);
}

TEST(a_program_that_names_one_it_misses_was_started) {
    struct subprocess_result result = run(*state, "nonexistent", 30, 1);
    assert_int_equal(result.code, 127);
    assert_contains(result.errors, "nonexistent");
    subprocess_free_result(&result);
}

static void expect_reason(const char *errors, const char *wanted) {
    char reason[64];
    subprocess_error_line(errors, reason, sizeof reason);
    assert_string_equal(reason, wanted);
}

TEST_WITH(NULL, NULL, the_reason_is_the_last_line_with_error) {
    expect_reason("", "");
    expect_reason("one\ntwo\n", "two");
    expect_reason("1 chief: error: first\n2 chief: error: second\nbye\n",
                  "second");
    expect_reason("error: only", "only");
    expect_reason(
        "its own words\n2026-11-23 08:46:51.501 ps 0: listening on port 1\n",
        "its own words");
    expect_reason(
        "2026-11-23 08:46:51.501 ps 0: warning: overdue\n2026-11-23 08:46:51.502 ps 0: on\n",
        "2026-11-23 08:46:51.501 ps 0: warning: overdue");
    expect_reason("2026-11-23 08:46:51.501 ps 0: on\n",
                  "2026-11-23 08:46:51.501 ps 0: on");
}
