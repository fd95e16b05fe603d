/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/log.h"

#include "core/base/time.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Of several processes, a pipe keeps each write of this size in one piece. */
enum { LINE_SIZE = PIPE_BUF };

enum level { LEVEL_INFO, LEVEL_WARNING, LEVEL_ERROR };

static const int64_t WAIT_FOR_READER = TIME_S;
static _Atomic unsigned log_missing; /* lines since a reader took the last */

bool log_is_json(void) {
    const char *value = getenv(LOG_JSON_VARIABLE);
    return value && !strcmp(value, "1");
}

void log_set_format(enum log_format format) {
    if (format != LOG_FORMAT_UNSET)
        setenv(LOG_JSON_VARIABLE, format == LOG_FORMAT_JSON ? "1" : "0", 1);
}

void log_open(struct log *log, const char *role, int index) {
    snprintf(log->role, sizeof log->role, "%s", role);
    log->index = index;
    log->json = log_is_json();
    log->terminal = !log->json && isatty(STDERR_FILENO);
    log->together = getenv(LOG_TOGETHER_VARIABLE);
    log->quiet = log->silent = false;
}

/* Cuts TEXT to MOST bytes, between characters. */
static void log_cut(char *text, size_t most) {
    if (strlen(text) <= most)
        return;
    while (most && (text[most] & 0xc0) == 0x80)
        most--;
    text[most] = 0;
}

/* Control characters become spaces, so that no text can imitate a line of its
 * own or move a terminal's cursor. Returns the length. */
static size_t log_format_plain(const struct log *log, enum level level,
                               const char *format, va_list arguments,
                               char *line) {
    static const char *const prefixes[] = {"", "warning: ", "error: "};
    struct timeval now;
    struct tm calendar;
    char date[24], index[16] = "";
    gettimeofday(&now, NULL);
    localtime_r(&now.tv_sec, &calendar);
    strftime(date, sizeof date, "%F %T", &calendar);
    if (log->index >= 0)
        snprintf(index, sizeof index, " %d", log->index);
    size_t text = (size_t)snprintf(
        line, LINE_SIZE, "%s%s.%03d %s%s: %s", log->terminal ? "\r\x1b[K" : "",
        date, (int)(now.tv_usec / 1000), log->role, index, prefixes[level]);
    size_t room = LINE_SIZE - text - 1;
    if ((size_t)vsnprintf(line + text, room, format, arguments) >= room)
        log_cut(line + text, room - 4);
    for (; line[text]; text++) /* texts of peers are logged too */
        if ((unsigned char)line[text] < ' ' || line[text] == 0x7f)
            line[text] = ' ';
    return text;
}

/* Of a text that is not UTF-8, each byte beyond ASCII becomes "?". */
static json_t *log_json_text(char *text) {
    json_t *string = json_string(text);
    if (string)
        return string;
    for (char *byte = text; *byte; byte++)
        if (*byte & 0x80)
            *byte = '?';
    return json_string(text);
}

/* Returns the length that the line has or, beyond LINE_SIZE, would have. */
static size_t log_dump_json(const struct log *log, enum level level,
                            const char *event, const char *code, char *text,
                            char *line) {
    static const char *const levels[] = {"info", "warning", "error"};
    struct timeval now;
    struct tm calendar;
    char date[24], time[32];
    gettimeofday(&now, NULL);
    gmtime_r(&now.tv_sec, &calendar);
    strftime(date, sizeof date, "%FT%T", &calendar);
    snprintf(time, sizeof time, "%s.%03dZ", date, (int)(now.tv_usec / 1000));
    json_t *object = json_pack("{s:s, s:s, s:o*, s:s, s:s, s:s*, s:o}", "time",
                               time, "role", log->role, "index",
                               log->index < 0 ? NULL : json_integer(log->index),
                               "level", levels[level], "event", event, "code",
                               code, "text", log_json_text(text));
    size_t length = json_dumpb(object, line, LINE_SIZE, JSON_COMPACT);
    json_decref(object);
    return length;
}

bool log_is_info(const char *line, size_t length) {
    static const char time[] = "0000-00-00 00:00:00.000 ";
    for (size_t i = 0; i < sizeof time - 1; i++)
        if (i == length || (time[i] == '0' ? line[i] < '0' || line[i] > '9'
                                           : line[i] != time[i]))
            return false;
    return !memmem(line, length, ": warning: ", 11) &&
           !memmem(line, length, ": error: ", 9);
}

/* The text keeps its own lines; it is shortened until the object fits. */
static size_t log_format_json(const struct log *log, enum level level,
                              const char *event, const char *code,
                              const char *format, va_list arguments,
                              char *line) {
    char text[LINE_SIZE];
    size_t length, most = LINE_SIZE - 4; /* vsnprintf may split a character */
    vsnprintf(text, sizeof text, format, arguments);
    do {
        log_cut(text, most);
        length = log_dump_json(log, level, event, code, text, line);
        most = most * 7 / 8;
    } while (length >= LINE_SIZE);
    return length;
}

/* False: the pipe or the terminal is full, and nothing reads it for WAIT ns. */
static bool log_await_reader(int64_t wait) {
    struct pollfd file = {.fd = STDERR_FILENO, .events = POLLOUT};
    int64_t until = time_now() + wait;
    int ready;
    do
        ready = poll(&file, 1, time_poll_ms(time_now(), until));
    while (ready < 0 && errno == EINTR);
    return ready != 0;
}

void log_draw(const char *text) {
    if (!log_await_reader(0))
        return;
    ssize_t written = write(STDERR_FILENO, text, strlen(text));
    (void)written; /* no other place to report to */
}

/* LINE [LENGTH] has room for one byte more. An empty line is none: there was no
 * memory for the object. */
static void log_put(char *line, size_t length) {
    if (!length)
        return;
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, length) != (ssize_t)length)
        log_missing++;
}

static size_t log_format(const struct log *log, enum level level,
                         const char *event, const char *code,
                         const char *format, va_list arguments, char *line) {
    return log->json ? log_format_json(log, level, event, code, format,
                                       arguments, line)
                     : log_format_plain(log, level, format, arguments, line);
}

PRINTF_LIKE(2, 3)
static void log_put_missing(const struct log *log, const char *format, ...) {
    char line[LINE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    log_put(line, log_format(log, LEVEL_WARNING, "log_lines_missing", NULL,
                             format, arguments, line));
    va_end(arguments);
}

/* May a line be written? A run waits for a reader once, and for each error;
 * then it goes on without its log, and the first line that is read again says
 * how many are missing. */
static bool log_may_write(const struct log *log, enum level level) {
    int64_t wait = log_missing && level != LEVEL_ERROR ? 0 : WAIT_FOR_READER;
    if (!log_await_reader(wait))
        return false;
    unsigned missing = atomic_exchange(&log_missing, 0);
    if (!missing)
        return true;
    log_put_missing(log,
                    "%u line%s of the log %s missing here: nothing read "
                    "standard error for 1 s",
                    missing, log_plural(missing), missing == 1 ? "is" : "are");
    return log_await_reader(wait);
}

static void log_write_line(const struct log *log, enum level level,
                           const char *event, const char *code,
                           const char *format, va_list arguments) {
    char line[LINE_SIZE];
    if (!log || log->silent)
        return;
    size_t length =
        log_format(log, level, event, code, format, arguments, line);
    if (log_may_write(log, level))
        log_put(line, length);
    else
        log_missing++;
}

#define LOG_AT(level, code)                                                    \
    do {                                                                       \
        va_list arguments;                                                     \
        va_start(arguments, format);                                           \
        log_write_line(log, level, event, code, format, arguments);            \
        va_end(arguments);                                                     \
    } while (0)

void log_info(const struct log *log, const char *event, const char *format,
              ...) {
    if (!log || !log->quiet || !strncmp(event, "waiting_for_", 12))
        LOG_AT(LEVEL_INFO, NULL);
}

void log_detail(const struct log *log, const char *event, const char *format,
                ...) {
    if (log && !log->quiet && (log->json || !log->together))
        LOG_AT(LEVEL_INFO, NULL);
}

void log_warning(const struct log *log, const char *event, const char *format,
                 ...) {
    LOG_AT(LEVEL_WARNING, NULL);
}

void log_error(const struct log *log, const char *event, const char *format,
               ...) {
    LOG_AT(LEVEL_ERROR, NULL);
}

PRINTF_LIKE(4, 5)
static void log_coded(const struct log *log, const char *event,
                      const char *code, const char *format, ...) {
    LOG_AT(LEVEL_ERROR, code);
}

void log_failure(const struct log *log, struct failure *why) {
    log_coded(log, "failed", failure_code_name(why->code), "%s", why->text);
    why->text[0] = 0;
}

void log_failure_of_command(struct failure *why) {
    struct log log;
    log_open(&log, "capstan", -1);
    if (log.json)
        log_failure(&log, why);
    else
        fprintf(stderr, "error: %s\n", why->text);
    why->text[0] = 0;
}

const char *log_plural(uint64_t count) {
    return count == 1 ? "" : "s";
}
