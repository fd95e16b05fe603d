/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/status.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum status failure_code_status(enum failure_code code) {
    switch (code) {
#define FAILURE_CODE(number, name, status, meaning)                            \
    case FAILURE_##name:                                                       \
        return STATUS_##status;
        FAILURE_CODES(FAILURE_CODE)
#undef FAILURE_CODE
    case FAILURE_NONE:
        break;
    }
    return STATUS_OK;
}

const char *failure_code_name(enum failure_code code) {
    switch (code) {
#define FAILURE_CODE(number, name, status, meaning)                            \
    case FAILURE_##name:                                                       \
        return #name;
        FAILURE_CODES(FAILURE_CODE)
#undef FAILURE_CODE
    case FAILURE_NONE:
        break;
    }
    return "NONE";
}

bool failure_code_is_known(uint32_t number) {
    return failure_code_status((enum failure_code)number) != STATUS_OK;
}

/* Errors of the present moment, whose codes have STATUS_RETRY: a shortage of
 * descriptors, memory or threads, a failing disk or network mount. A refusal
 * (EPERM, EACCES, ENOSYS, EAFNOSUPPORT) or a missing file (ENOENT) is
 * permanent; so is a full disk. */
static enum failure_code code_of_errno(int error) {
    static const struct {
        int error;
        enum failure_code code;
    } codes[] = {
        {EMFILE, FAILURE_NO_DESCRIPTORS},     {ENFILE, FAILURE_NO_DESCRIPTORS},
        {ENOMEM, FAILURE_NO_MEMORY},          {EAGAIN, FAILURE_SYSTEM_BUSY},
        {EINTR, FAILURE_SYSTEM_BUSY},         {ENOBUFS, FAILURE_SYSTEM_BUSY},
        {EBUSY, FAILURE_SYSTEM_BUSY},         {EIO, FAILURE_IO_ERROR},
        {ESTALE, FAILURE_IO_ERROR},           {EREMOTEIO, FAILURE_IO_ERROR},
        {ENOLINK, FAILURE_IO_ERROR},          {ETIMEDOUT, FAILURE_NETWORK_DOWN},
        {ENETDOWN, FAILURE_NETWORK_DOWN},     {EHOSTDOWN, FAILURE_NETWORK_DOWN},
        {EHOSTUNREACH, FAILURE_NETWORK_DOWN}, {ENOTCONN, FAILURE_NETWORK_DOWN},
        {EADDRINUSE, FAILURE_PORT_IN_USE},    {ENOSPC, FAILURE_DISK_FULL},
        {EDQUOT, FAILURE_DISK_FULL},
    };
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (error == codes[i].error)
            return codes[i].code;
    return FAILURE_NONE;
}

enum failure_code failure_code_of_errno(int error,
                                        enum failure_code otherwise) {
    enum failure_code code = code_of_errno(error);
    enum status status = failure_code_status(code);
    return status == STATUS_RETRY || status == failure_code_status(otherwise)
               ? code
               : otherwise;
}

enum failure_code failure_code_of_signal(int number) {
    if (number == SIGHUP)
        return FAILURE_HUNG_UP;
    return number == SIGINT ? FAILURE_INTERRUPTED : FAILURE_TERMINATED;
}

bool failure_code_is_signal(enum failure_code code) {
    return code == FAILURE_HUNG_UP || code == FAILURE_INTERRUPTED ||
           code == FAILURE_TERMINATED;
}

static enum status status_fill(struct failure *why, enum failure_code code,
                               const char *format, va_list arguments) {
    if (!why)
        return failure_code_status(code);
    why->code = code;
    why->reported = false;
    vsnprintf(why->text, sizeof why->text, format, arguments);
    return failure_code_status(code);
}

enum status status_fail(struct failure *why, enum failure_code code,
                        const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    enum status status = status_fill(why, code, format, arguments);
    va_end(arguments);
    return status;
}

/* What to do about ERROR. In a container the user may have no name, the root be
 * read-only, and threads be limited. */
static void append_advice(char *text, size_t size, enum failure_code code,
                          int error) {
    if (error == EACCES)
        snprintf(text, size, " to user %u, group %u", (unsigned)geteuid(),
                 (unsigned)getegid());
    else if (error == EROFS)
        snprintf(text, size,
                 "; choose a folder on a disk or volume that can be written");
    else if (error == EAGAIN && code == FAILURE_SYSTEM_REFUSED)
        snprintf(text, size,
                 "; the limit of processes and threads is reached: ulimit -u, "
                 "or pids.max of a control group (a container's --pids-limit)");
}

static void append_errno(char *text, size_t size, enum failure_code code,
                         int error) {
    size_t used = strlen(text);
    used += (size_t)snprintf(text + used, size - used, ": %s", strerror(error));
    if (used < size)
        append_advice(text + used, size - used, code, error);
}

enum status status_errno(struct failure *why, enum failure_code otherwise,
                         int error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    enum status status = status_fill(
        why, failure_code_of_errno(error, otherwise), format, arguments);
    va_end(arguments);
    if (why)
        append_errno(why->text, sizeof why->text, otherwise, error);
    return status;
}

enum status status_context(struct failure *why, const char *format, ...) {
    if (!why)
        return STATUS_FAILED;
    struct failure inner = *why;
    va_list arguments;
    va_start(arguments, format);
    enum status status = status_fill(why, inner.code, format, arguments);
    va_end(arguments);
    size_t used = strlen(why->text);
    snprintf(why->text + used, sizeof why->text - used, ": %s", inner.text);
    return status;
}

void status_list_names(char *list, size_t size, char *const *names,
                       uint32_t count) {
    enum { REST = sizeof ", ... (4294967295 in all)" };
    size_t used = 0;
    list[0] = 0;
    for (uint32_t i = 0; i < count; i++) {
        const char *comma = i ? ", " : "";
        size_t length = strlen(comma) + strlen(names[i]);
        if (used + length + (i + 1 < count ? REST : 1) > size) {
            snprintf(list + used, size - used, "%s... (%" PRIu32 " in all)",
                     comma, count);
            break;
        }
        used +=
            (size_t)snprintf(list + used, size - used, "%s%s", comma, names[i]);
    }
    for (char *c = list; *c; c++)
        if (iscntrl((unsigned char)*c))
            *c = '?';
}

enum status status_mark_reported(struct failure *why) {
    if (!why)
        return STATUS_FAILED;
    why->reported = true;
    return failure_code_status(why->code);
}

void status_end_text(int wait_status, char *text, size_t size) {
    if (WIFSIGNALED(wait_status))
        snprintf(text, size, "was killed by signal %d (%s)",
                 WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
    else
        snprintf(text, size, "ended with exit code %d",
                 WEXITSTATUS(wait_status));
}
