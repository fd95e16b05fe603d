/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/base/status.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static enum status status_fill(struct failure *why, enum status status,
                               const char *format, va_list arguments) {
    if (!why)
        return status;
    why->status = status;
    why->reported = false;
    vsnprintf(why->text, sizeof why->text, format, arguments);
    return status;
}

enum status status_fail(struct failure *why, enum status status,
                        const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    status_fill(why, status, format, arguments);
    va_end(arguments);
    return status;
}

/* Errors of the present moment: a shortage of descriptors, memory or threads, a
 * failing disk or network mount. A refusal (EPERM, EACCES, ENOSYS,
 * EAFNOSUPPORT) or a missing file (ENOENT) is permanent. */
static bool is_transient(int error) {
    static const int errors[] = {
        EMFILE,       ENFILE,   ENOMEM,    EAGAIN,    EINTR,      EIO,
        ENOBUFS,      EBUSY,    ESTALE,    ETIMEDOUT, ENETDOWN,   EHOSTDOWN,
        EHOSTUNREACH, ENOTCONN, EREMOTEIO, ENOLINK,   EADDRINUSE,
    };
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (error == errors[i])
            return true;
    return false;
}

enum status status_of_errno(int error, enum status otherwise) {
    return is_transient(error) ? STATUS_RETRY : otherwise;
}

enum status status_errno(struct failure *why, enum status otherwise, int error,
                         const char *format, ...) {
    enum status status = status_of_errno(error, otherwise);
    va_list arguments;
    va_start(arguments, format);
    status_fill(why, status, format, arguments);
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
    status_fill(why, inner.status, format, arguments);
    va_end(arguments);
    size_t used = strlen(why->text);
    snprintf(why->text + used, sizeof why->text - used, ": %s", inner.text);
    return why->status;
}

enum status status_mark_reported(struct failure *why) {
    if (!why)
        return STATUS_FAILED;
    why->reported = true;
    return why->status;
}

enum status status_of_signal(int number) {
    if (number == SIGHUP)
        return STATUS_HUNG_UP;
    return number == SIGINT ? STATUS_INTERRUPTED : STATUS_TERMINATED;
}
