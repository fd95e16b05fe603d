/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/base/log.h"

#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

void log_open(struct log *log, const char *role, int index) {
    if (index < 0)
        snprintf(log->source, sizeof log->source, "%s", role);
    else
        snprintf(log->source, sizeof log->source, "%s %d", role, index);
    log->terminal = isatty(STDERR_FILENO);
    log->quiet = false;
}

/* Longer lines are cut off. Control characters become spaces, so that no text
 * can imitate a line of its own or move a terminal's cursor. */
static void log_write_line(const struct log *log, const char *level,
                           const char *format, va_list arguments) {
    if (!log)
        return;
    char line[4096];
    struct timeval now;
    struct tm calendar;
    gettimeofday(&now, NULL);
    localtime_r(&now.tv_sec, &calendar);
    size_t used = (size_t)snprintf(
        line, sizeof line, "%s%02d:%02d:%02d.%03d %s: %s",
        log->terminal ? "\r\x1b[K" : "", calendar.tm_hour, calendar.tm_min,
        calendar.tm_sec, (int)(now.tv_usec / 1000), log->source, level);
    size_t text = used;
    vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    used = strlen(line);
    for (; text < used; text++) /* texts of peers are logged too */
        if ((unsigned char)line[text] < ' ' || line[text] == 0x7f)
            line[text] = ' ';
    line[used++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, used);
    (void)written; /* no other place to report to */
}

#define LOG_AT(level)                                                          \
    do {                                                                       \
        va_list arguments;                                                     \
        va_start(arguments, format);                                           \
        log_write_line(log, level, format, arguments);                         \
        va_end(arguments);                                                     \
    } while (0)

void log_info(const struct log *log, const char *format, ...) {
    if (!log || !log->quiet)
        LOG_AT("");
}

void log_warning(const struct log *log, const char *format, ...) {
    LOG_AT("warning: ");
}

void log_error(const struct log *log, const char *format, ...) {
    LOG_AT("error: ");
}

void log_failure(const struct log *log, struct failure *why) {
    log_error(log, "%s", why->text);
    why->text[0] = 0;
}
