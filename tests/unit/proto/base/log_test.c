/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/base/log.h"

#include "tests/lib/link_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static void a_line_has_time_role_and_index_before_its_text(void **state) {
    struct link_fixture *fixture = *state;
    struct log log;
    link_fixture_capture_log(fixture);
    log_open(&log, "ps", 1);
    log_info(&log, "listening", "ready in %d s", 3);
    log_warning(&log, "peer_lost", "late");
    log_error(&log, "failed", "lost");
    const char *said = link_fixture_captured_log(fixture);
    int hour, minute, second, milli, used = 0;
    sscanf(said, "%2d:%2d:%2d.%3d %n", &hour, &minute, &second, &milli, &used);
    assert_int_equal(used, strlen("00:00:00.000 "));
    assert_int_equal(strncmp(said + used, "ps 1: ready in 3 s\n", 19), 0);
    assert_non_null(strstr(said, " ps 1: warning: late\n"));
    assert_non_null(strstr(said, " ps 1: error: lost\n"));
}

static void an_index_below_zero_is_left_out(void **state) {
    (void)state;
    struct log log;
    log_open(&log, "chief", -1);
    assert_string_equal(log.role, "chief");
    log_open(&log, "a role of a very long name that does not fit", 12);
    assert_true(strlen(log.role) < sizeof log.role);
}

static void a_null_log_is_silent(void **state) {
    struct link_fixture *fixture = *state;
    link_fixture_capture_log(fixture);
    log_info(NULL, "listening", "unheard");
    assert_string_equal(link_fixture_captured_log(fixture), "");
}

static void a_quiet_log_has_only_warnings_and_errors(void **state) {
    struct link_fixture *fixture = *state;
    struct log log;
    link_fixture_capture_log(fixture);
    log_open(&log, "ps", 1);
    log.quiet = true;
    log_info(&log, "listening", "unheard");
    log_warning(&log, "peer_lost", "late");
    const char *said = link_fixture_captured_log(fixture);
    assert_null(strstr(said, "unheard"));
    assert_non_null(strstr(said, " ps 1: warning: late\n"));
}

static void a_long_text_is_truncated_and_stays_one_line(void **state) {
    struct link_fixture *fixture = *state;
    char text[9000];
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = 0;
    link_fixture_capture_log(fixture);
    log_info(&fixture->log, "listening", "%s", text);
    const char *said = link_fixture_captured_log(fixture);
    assert_int_equal(strlen(said), 4095);
    assert_ptr_equal(strchr(said, '\n'), said + 4094);
}

static void the_progress_bar_of_a_terminal_is_cleared_first(void **state) {
    struct link_fixture *fixture = *state;
    link_fixture_capture_log(fixture);
    fixture->log.terminal = true;
    log_info(&fixture->log, "listening", "x");
    assert_int_equal(strncmp(link_fixture_captured_log(fixture), "\r\x1b[K", 4),
                     0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_time_role_and_index_before_its_text),
        cmocka_unit_test(an_index_below_zero_is_left_out),
        cmocka_unit_test(a_null_log_is_silent),
        cmocka_unit_test(a_quiet_log_has_only_warnings_and_errors),
        cmocka_unit_test(a_long_text_is_truncated_and_stays_one_line),
        cmocka_unit_test(the_progress_bar_of_a_terminal_is_cleared_first),
    };
    return cmocka_run_group_tests(tests, link_fixture_setup,
                                  link_fixture_teardown);
}
