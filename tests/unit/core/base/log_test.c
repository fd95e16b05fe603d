/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct link_fixture *fixture

#include "core/base/log.h"

#include "core/base/time.h"
#include "tests/lib/link_fixture.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <ctype.h>
#include <fcntl.h>
#include <jansson.h>
#include <time.h>
#include <unistd.h>

/* The local time AT. */
static void print_date(char text[24], time_t at) {
    struct tm calendar;
    localtime_r(&at, &calendar);
    strftime(text, 24, "%Y-%m-%d %H:%M:%S", &calendar);
}

GROUP(link_fixture_setup, link_fixture_teardown);

TEST(a_line_has_date_role_and_index_before_its_text) {
    struct log log;
    time_t began = time(NULL);
    link_fixture_capture_log(fixture);
    log_open(&log, "ps", 1);
    log_info(&log, "listening", "ready in %d s", 3);
    log_warning(&log, "peer_lost", "late");
    log_error(&log, "failed", "lost");
    const char *said = link_fixture_captured_log(fixture);
    static const char zeros[] = "0000-00-00 00:00:00.000 ";
    char before[24], after[24];
    size_t used = sizeof zeros - 1;
    print_date(before, began);
    print_date(after, time(NULL));
    assert_in_range(strlen(said), used, 4096);
    for (size_t i = 0; i < used; i++)
        assert_int_equal(zeros[i], isdigit(said[i]) ? '0' : said[i]);
    assert_true(strncmp(said, before, 19) >= 0);
    assert_true(strncmp(said, after, 19) <= 0);
    assert_int_equal(strncmp(said + used, "ps 1: ready in 3 s\n", 19), 0);
    assert_contains(said, " ps 1: warning: late\n");
    assert_contains(said, " ps 1: error: lost\n");
}

TEST(a_line_of_information_is_known_as_one) {
    static const struct {
        const char *line;
        bool is;
    } lines[] = {
        {"2026-11-23 08:46:51.501 ps 0: listening on port 57507", true},
        {"2026-11-23 08:46:51.501 ps 0: warning: late", false},
        {"2026-11-23 08:46:51.501 chief: error: lost", false},
        {"08:46:51.501 ps 0: listening on port 57507", false},
        {"2026-11-23 08:46:51 loss 0.5", false},
        {"2026-11", false},
        {"", false},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (log_is_info(lines[i].line, strlen(lines[i].line)) != lines[i].is)
            fail_msg("%s", lines[i].line);
    /* Only its own bytes count. */
    assert_true(
        log_is_info("2026-11-23 08:46:51.501 ps 0: on\n1 a: error: b", 32));
}

TEST(an_index_below_zero_is_left_out) {
    struct log log;
    log_open(&log, "chief", -1);
    assert_string_equal(log.role, "chief");
    log_open(&log, "a role of a very long name that does not fit", 12);
    assert_true(strlen(log.role) < sizeof log.role);
}

TEST(a_null_log_is_silent) {
    link_fixture_capture_log(fixture);
    log_info(NULL, "listening", "unheard");
    assert_string_equal(link_fixture_captured_log(fixture), "");
}

TEST(a_quiet_log_has_waits_warnings_and_errors) {
    struct log log;
    link_fixture_capture_log(fixture);
    log_open(&log, "ps", 1);
    log.quiet = true;
    log_info(&log, "listening", "unheard");
    log_warning(&log, "peer_lost", "late");
    log_info(&log, "waiting_for_chief", "waiting");
    const char *said = link_fixture_captured_log(fixture);
    assert_null(strstr(said, "unheard"));
    assert_contains(said, " ps 1: waiting\n");
    assert_contains(said, " ps 1: warning: late\n");
}

TEST(a_long_text_is_cut_between_characters_to_one_line) {
    static const char euro[] = "\xe2\x82\xac";
    char text[9001];
    for (unsigned shift = 0; shift < 3; shift++) {
        memset(text, 'y', shift);
        for (size_t used = shift; used < sizeof text - 4; used += 3)
            memcpy(text + used, euro, sizeof euro);
        link_fixture_capture_log(fixture);
        log_info(&fixture->log, "listening", "%s", text);
        const char *said = link_fixture_captured_log(fixture);
        assert_in_range(strlen(said), 4085, 4095);
        assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
        json_t *string = json_string(said); /* of UTF-8 alone */
        assert_non_null(string);
        json_decref(string);
    }
}

TEST(the_progress_bar_of_a_terminal_is_cleared_first) {
    link_fixture_capture_log(fixture);
    fixture->log.terminal = true;
    log_info(&fixture->log, "listening", "x");
    assert_int_equal(strncmp(link_fixture_captured_log(fixture), "\r\x1b[K", 4),
                     0);
}

TEST(a_log_of_json_draws_nothing_on_a_terminal) {
    struct log plain, json;
    skip_unless_terminals();
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    int saved = dup(STDERR_FILENO);
    dup2(terminal, STDERR_FILENO);
    log_open(&plain, "chief", -1);
    setenv(LOG_JSON_VARIABLE, "1", 1);
    log_open(&json, "chief", -1);
    unsetenv(LOG_JSON_VARIABLE);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(terminal);
    assert_true(plain.terminal && !plain.json);
    assert_true(json.json && !json.terminal);
}

/* The object on the one line that was logged since the capture. */
static json_t *logged_object(struct link_fixture *fixture) {
    const char *said = link_fixture_captured_log(fixture);
    size_t length = strlen(said);
    assert_in_range(length, 1, 4096);
    assert_ptr_equal(strchr(said, '\n'), said + length - 1);
    json_t *object = json_loads(said, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_object(object));
    return object;
}

static const char *string_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static void open_json(struct link_fixture *fixture, struct log *log,
                      const char *role, int index) {
    setenv(LOG_JSON_VARIABLE, "1", 1);
    log_open(log, role, index);
    unsetenv(LOG_JSON_VARIABLE);
    link_fixture_capture_log(fixture);
}

TEST(a_line_of_json_has_time_role_index_level_event_and_text) {
    struct log log;
    struct tm calendar;
    int milli;
    open_json(fixture, &log, "ps", 1);
    time_t before = time(NULL);
    log_warning(&log, "peer_lost", "after %d s", 3);
    const char *said = link_fixture_captured_log(fixture);
    assert_int_equal(strncmp(said, "{\"time\":\"", 9), 0);
    const char *rest = strptime(said + 9, "%FT%T", &calendar);
    assert_non_null(rest);
    assert_in_range(timegm(&calendar) - before, 0, 60);
    assert_int_equal(sscanf(rest, ".%3dZ", &milli), 1);
    assert_string_equal(rest + strlen(".000Z"),
                        "\",\"role\":\"ps\",\"index\":1,"
                        "\"level\":\"warning\",\"event\":\"peer_lost\","
                        "\"text\":\"after 3 s\"}\n");
}

TEST(a_role_without_a_number_has_no_index_in_json) {
    struct log log;
    open_json(fixture, &log, "chief", -1);
    log_info(&log, "listening", "on port 1");
    json_t *object = logged_object(fixture);
    assert_null(json_object_get(object, "index"));
    assert_string_equal(string_of(object, "level"), "info");
    json_decref(object);
}

TEST(text_that_is_not_utf8_does_not_lose_its_line_of_json) {
    struct log log;
    open_json(fixture, &log, "ps", 1);
    log_info(&log, "listening", "\xc3\xa4 \xff \"\x1b[K\n\x7f");
    json_t *object = logged_object(fixture);
    assert_string_equal(string_of(object, "text"), "?? ? \"\x1b[K\n\x7f");
    json_decref(object);
}

TEST(a_long_text_is_cut_between_characters_to_a_line_of_json) {
    static const char *const characters[] = {"y", "\xc3\xa4",
                                             "\xf0\x9f\x9a\x82", "\x01"};
    struct log log;
    for (unsigned i = 0; i < 4; i++) {
        char text[9000] = "";
        size_t size = strlen(characters[i]);
        for (size_t used = 0; used + size < sizeof text; used += size)
            memcpy(text + used, characters[i], size + 1);
        open_json(fixture, &log, "ps", 1);
        log_info(&log, "listening", "%s", text);
        json_t *object = logged_object(fixture);
        const char *kept = string_of(object, "text");
        assert_in_range(strlen(kept), 500, 4096);
        assert_int_equal(strncmp(kept, text, strlen(kept)), 0);
        json_decref(object);
    }
}

TEST(a_failure_of_a_command_keeps_its_lines_and_its_code) {
    (void)status_fail(&failure, FAILURE_JOB_INVALID, "two\nlines");
    link_fixture_capture_log(fixture);
    log_failure_of_command(&failure);
    assert_string_equal(link_fixture_captured_log(fixture),
                        "error: two\nlines\n");
    assert_string_equal(failure.text, "");
    (void)status_fail(&failure, FAILURE_JOB_INVALID, "two\nlines");
    setenv(LOG_JSON_VARIABLE, "1", 1);
    link_fixture_capture_log(fixture);
    log_failure_of_command(&failure);
    unsetenv(LOG_JSON_VARIABLE);
    json_t *object = logged_object(fixture);
    assert_string_equal(string_of(object, "role"), "capstan");
    assert_string_equal(string_of(object, "event"), "failed");
    assert_string_equal(string_of(object, "code"), "JOB_INVALID");
    assert_string_equal(string_of(object, "text"), "two\nlines");
    json_decref(object);
}

/* What a pipe that nobody reads holds, then what was lost is counted. */
TEST(a_log_that_nothing_reads_delays_its_process_once) {
    enum { LINES = 10000 };
    struct log log;
    int pipe_ends[2], saved = dup(STDERR_FILENO);
    unsigned missing = 0, read_lines = 0;
    static char said[1 << 20];
    log_open(&log, "test", -1);
    assert_int_equal(pipe(pipe_ends), 0);
    dup2(pipe_ends[1], STDERR_FILENO);
    int64_t began = time_now();
    for (unsigned i = 0; i < LINES; i++)
        log_info(&log, "listening", "line %u", i);
    int64_t took = time_now() - began;
    ssize_t got = read(pipe_ends[0], said, sizeof said);
    log_info(&log, "listening", "the last");
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(pipe_ends[1]);
    for (ssize_t more; (more = read(pipe_ends[0], said + got,
                                    sizeof said - 1 - (size_t)got)) > 0;)
        got += more;
    close(pipe_ends[0]);
    assert_in_range(took, TIME_S / 2, 4 * TIME_S);
    said[got] = 0;
    for (const char *line = said; (line = strstr(line, "test: line "));
         line++, read_lines++)
        assert_int_equal(atoi(line + strlen("test: line ")), read_lines);
    const char *warning = strstr(said, "test: warning: ");
    assert_non_null(warning);
    assert_int_equal(sscanf(warning, "test: warning: %u lines ", &missing), 1);
    assert_int_equal(missing + read_lines, LINES);
    assert_contains(warning, "test: the last\n");
}
