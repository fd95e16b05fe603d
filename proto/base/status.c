#include "proto/base/status.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static enum status fill(struct failure *why, enum status status,
                        const char *format, va_list arguments) {
    if (!why)
        return status;
    why->status = status;
    why->heard = false;
    vsnprintf(why->text, sizeof why->text, format, arguments);
    return status;
}

enum status status_fail(struct failure *why, enum status status,
                        const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fill(why, status, format, arguments);
    va_end(arguments);
    return status;
}

enum status status_errno(struct failure *why, enum status status, int error,
                         const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fill(why, status, format, arguments);
    va_end(arguments);
    if (why) {
        size_t used = strlen(why->text);
        snprintf(why->text + used, sizeof why->text - used, ": %s",
                 strerror(error));
    }
    return status;
}

enum status status_context(struct failure *why, const char *format, ...) {
    if (!why)
        return STATUS_FAILED;
    struct failure inner = *why;
    va_list arguments;
    va_start(arguments, format);
    fill(why, inner.status, format, arguments);
    va_end(arguments);
    size_t used = strlen(why->text);
    snprintf(why->text + used, sizeof why->text - used, ": %s", inner.text);
    return why->status;
}

enum status status_heard(struct failure *why) {
    if (!why)
        return STATUS_FAILED;
    why->heard = true;
    return why->status;
}

enum status status_of_signal(int number) {
    if (number == SIGHUP)
        return STATUS_HUNG_UP;
    return number == SIGINT ? STATUS_INTERRUPTED : STATUS_TERMINATED;
}
