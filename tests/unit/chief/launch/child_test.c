/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/launch/child.h"

#include "proto/base/time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct child_result run(struct child_signals *signals,
                               const char *script, double limit,
                               double patience) {
    char *arguments[] = {"sh", "-c", (char *)script, NULL};
    struct child_options options = {"sh", arguments, limit, patience};
    struct child_result result;
    struct failure why;
    if (child_run(signals, &options, &result, &why))
        fail_msg("%s", why.text);
    return result;
}

static int open_signals(void **state) {
    struct failure why;
    struct child_signals *signals = calloc(1, sizeof *signals);
    *state = signals;
    return !signals || child_open(signals, &why);
}

static int close_signals(void **state) {
    child_close(*state);
    free(*state);
    return 0;
}

static void what_it_says_and_its_code_are_told(void **state) {
    struct child_result result =
        run(*state, "echo out; echo error: bad >&2; exit 3", 30, 1);
    assert_int_equal(result.code, 3);
    assert_string_equal(result.output, "out\n");
    assert_string_equal(result.errors, "error: bad\n");
    assert_false(result.late);
    child_forget(&result);
    assert_null(result.output);
}

static void the_last_of_very_much_is_kept(void **state) {
    struct child_result result =
        run(*state, "seq 1 300000 >&2; echo done", 60, 1);
    const char *last = "\n300000\n";
    size_t length = strlen(result.errors);
    assert_string_equal(result.output, "done\n");
    assert_true(length > 1000 && length <= 1 << 14);
    assert_string_equal(result.errors + length - strlen(last), last);
    child_forget(&result);
}

static void it_reads_nothing(void **state) {
    struct child_result result = run(*state, "cat", 30, 1);
    assert_int_equal(result.code, 0);
    assert_string_equal(result.output, "");
    child_forget(&result);
}

static void what_takes_too_long_is_ended(void **state) {
    int64_t began = time_now();
    struct child_result result = run(*state, "exec sleep 60", 0.2, 30);
    assert_true(result.late);
    assert_int_equal(result.code, 128 + SIGTERM);
    assert_true(time_now() - began < 30 * TIME_S);
    child_forget(&result);
}

static void what_will_not_end_is_killed(void **state) {
    struct child_result result =
        run(*state, "trap '' TERM; while :; do sleep 0.05; done", 0.2, 0.2);
    assert_true(result.late);
    assert_int_equal(result.code, 128 + SIGKILL);
    child_forget(&result);
}

static void a_signal_here_ends_it_there(void **state) {
    struct child_signals *signals = *state;
    char script[64];
    snprintf(script, sizeof script, "kill -INT %d; exec sleep 60",
             (int)getpid());
    struct child_result result = run(signals, script, 60, 30);
    assert_int_equal(signals->caught, SIGINT);
    assert_int_equal(result.code, 128 + SIGTERM);
    assert_false(result.late);
    child_forget(&result);
}

static void what_is_no_program_is_named(void **state) {
    char *arguments[] = {"/nonexistent/program", NULL};
    struct child_options options = {arguments[0], arguments, 30, 1};
    struct child_result result;
    struct failure why;
    assert_int_equal(child_run(*state, &options, &result, &why), STATUS_CONFIG);
    assert_non_null(strstr(why.text, "/nonexistent/program"));
    assert_null(result.output);
}

static void expect_reason(const char *errors, const char *wanted) {
    char reason[64];
    child_reason(errors, reason, sizeof reason);
    assert_string_equal(reason, wanted);
}

static void the_reason_is_the_last_line_that_says_error(void **state) {
    (void)state;
    expect_reason("", "");
    expect_reason("one\ntwo\n", "two");
    expect_reason("1 chief: error: first\n2 chief: error: second\nbye\n",
                  "second");
    expect_reason("error: only", "only");
}

#define TEST(name)                                                             \
    cmocka_unit_test_setup_teardown(name, open_signals, close_signals)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(what_it_says_and_its_code_are_told),
        TEST(the_last_of_very_much_is_kept),
        TEST(it_reads_nothing),
        TEST(what_takes_too_long_is_ended),
        TEST(what_will_not_end_is_killed),
        TEST(a_signal_here_ends_it_there),
        TEST(what_is_no_program_is_named),
        cmocka_unit_test(the_reason_is_the_last_line_that_says_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
