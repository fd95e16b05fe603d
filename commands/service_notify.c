/* SPDX-License-Identifier: Apache-2.0 */
/* The main thread sends, between two signals. It is no role's thread: the
 * watchdog is fed only while each role's loop reports (core/base/health.h),
 * which it does several times a second, also while it waits for a peer. */
#include "commands/service_notify.h"

#include "core/base/time.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SOCKET_VARIABLE "NOTIFY_SOCKET"
#define WATCHDOG_VARIABLE "WATCHDOG_USEC"
#define WATCHDOG_PID_VARIABLE "WATCHDOG_PID"

enum { TICK_MS = 250, EXTENSION = 30 /* seconds */ };
static const int64_t STATUS_INTERVAL = 5 * TIME_S;
/* A loop that has not reported for this long stands still; half of the
 * watchdog's time if there is one. */
static const int64_t STANDSTILL = 10 * TIME_S;

struct service_notify {
    int socket;
    struct sockaddr_un address;
    socklen_t length;
    bool has_watchdog;
    int64_t standstill; /* and the time between two WATCHDOG=1 */
    int64_t fed_at, sent_at;
    bool ready, stopping;
};

struct notification {
    char text[1200];
    size_t used;
};

__attribute__((format(printf, 2, 3))) static void add_line(
    struct notification *notification, const char *format, ...) {
    size_t room = sizeof notification->text - notification->used;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(notification->text + notification->used, room,
                           format, arguments);
    va_end(arguments);
    if (length > 0 && (size_t)length < room)
        notification->used += (size_t)length;
}

/* False: the manager does not read, or is gone. */
static bool send_notification(const struct service_notify *notify,
                              const struct notification *notification) {
    return sendto(notify->socket, notification->text, notification->used,
                  MSG_DONTWAIT | MSG_NOSIGNAL,
                  (const struct sockaddr *)&notify->address,
                  notify->length) >= 0;
}

/* A path, or "@" and a name without a file. */
static bool parse_notify_socket(struct service_notify *notify,
                                const char *text) {
    size_t length = strlen(text);
    struct sockaddr_un *address = &notify->address;
    if ((*text != '/' && *text != '@') || length < 2 ||
        length >= sizeof address->sun_path)
        return false;
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path, text, length);
    if (*text == '@')
        address->sun_path[0] = 0;
    notify->length =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    return true;
}

/* The number of VARIABLE; 0: it is not set. */
static enum status read_manager_number(int64_t *number, const char *variable,
                                       struct failure *why) {
    const char *text = getenv(variable);
    char *end;
    *number = 0;
    if (!text || !*text)
        return STATUS_OK;
    errno = 0;
    *number = strtoll(text, &end, 10);
    if (!errno && !*end && *number > 0 && *number <= INT64_MAX / TIME_US)
        return STATUS_OK;
    return status_fail(why, FAILURE_BAD_VARIABLE,
                       "%s is '%.64s'; the service manager sets a positive "
                       "number",
                       variable, text);
}

/* A watchdog may be another process's of the same service. */
static enum status read_watchdog(struct service_notify *notify,
                                 struct failure *why) {
    int64_t microseconds, pid;
    enum status status =
        read_manager_number(&microseconds, WATCHDOG_VARIABLE, why);
    if (!status)
        status = read_manager_number(&pid, WATCHDOG_PID_VARIABLE, why);
    if (status)
        return status;
    notify->has_watchdog = microseconds && (!pid || pid == getpid());
    notify->standstill =
        notify->has_watchdog ? microseconds * TIME_US / 2 : STANDSTILL;
    return STATUS_OK;
}

enum status service_notify_open(struct service_notify **out,
                                struct failure *why) {
    const char *text = getenv(SOCKET_VARIABLE);
    *out = NULL;
    if (!text || !*text)
        return STATUS_OK;
    struct service_notify *notify = calloc(1, sizeof *notify);
    if (!notify)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory to notify the service manager");
    enum status status = STATUS_OK;
    notify->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (notify->socket < 0)
        status = status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                              "no socket to notify the service manager");
    else if (!parse_notify_socket(notify, text))
        status = status_fail(why, FAILURE_BAD_VARIABLE,
                             SOCKET_VARIABLE
                             " is '%.128s'; allowed are an absolute path, or @ "
                             "and a name; unset it if this process is no "
                             "service",
                             text);
    else
        status = read_watchdog(notify, why);
    unsetenv(SOCKET_VARIABLE);
    unsetenv(WATCHDOG_VARIABLE);
    unsetenv(WATCHDOG_PID_VARIABLE);
    if (!status) {
        *out = notify;
        return STATUS_OK;
    }
    if (notify->socket >= 0)
        close(notify->socket);
    free(notify);
    return status;
}

/* What the roles' reports say together. */
struct liveness {
    bool joined; /* every role */
    bool alive;  /* no loop stands still */
    bool loops;  /* some loop runs */
};

static struct liveness judge_liveness(const struct service_notify *notify,
                                      struct health *const *healths,
                                      unsigned count, int64_t now) {
    struct liveness liveness = {.joined = count > 0, .alive = true};
    for (unsigned i = 0; i < count; i++) {
        enum health_state state = health_lock(healths[i])->state;
        health_unlock(healths[i]);
        int64_t silence = health_silence(healths[i], now);
        liveness.joined &= state != HEALTH_JOINING && state != HEALTH_ENDING;
        liveness.alive &= silence < notify->standstill;
        liveness.loops |= silence >= 0 && silence < notify->standstill;
    }
    return liveness;
}

static void add_status(struct notification *notification,
                       struct health *health) {
    const struct health_report *report = health_lock(health);
    char step[64] = "", waiting[sizeof report->waiting_for];
    if (report->total_steps && report->total_steps != UINT64_MAX)
        snprintf(step, sizeof step, ", step %" PRIu64 " of %" PRIu64,
                 report->step, report->total_steps);
    else if (report->step)
        snprintf(step, sizeof step, ", step %" PRIu64, report->step);
    snprintf(waiting, sizeof waiting, "%s", report->waiting_for);
    for (char *at = waiting; *at; at++) /* it may have names that peers told */
        *at = (unsigned char)*at < ' ' ? ' ' : *at;
    add_line(notification, "STATUS=%s%s%s%s\n",
             health_state_name(report->state), step,
             *waiting ? ", waiting for " : "", waiting);
    health_unlock(health);
}

int service_notify_step(struct service_notify *notify,
                        struct health *const *healths, unsigned count,
                        bool stopping, int64_t now) {
    struct notification notification = {.used = 0};
    if (!notify)
        return -1;
    struct liveness liveness = judge_liveness(notify, healths, count, now);
    bool is_ready = notify->ready || liveness.joined;
    bool feeds = notify->has_watchdog && liveness.alive &&
                 now - notify->fed_at >= notify->standstill;
    bool due = now - notify->sent_at >= STATUS_INTERVAL;
    if (is_ready && !notify->ready)
        add_line(&notification, "READY=1\n");
    if (stopping && !notify->stopping)
        add_line(&notification, "STOPPING=1\n");
    if (feeds)
        add_line(&notification, "WATCHDOG=1\n");
    /* While it joins, and while it writes the last checkpoint: the job's own
     * timeouts end both. */
    if (stopping ? liveness.loops && (due || !notify->stopping)
                 : due && liveness.alive && !is_ready)
        add_line(&notification, "EXTEND_TIMEOUT_USEC=%d000000\n", EXTENSION);
    if (!notification.used && !due)
        return TICK_MS;
    if (count)
        add_status(&notification, healths[0]);
    if (notification.used && send_notification(notify, &notification)) {
        notify->ready = is_ready;
        notify->stopping |= stopping;
        if (feeds)
            notify->fed_at = now;
    }
    notify->sent_at = now;
    return TICK_MS;
}

void service_notify_close(struct service_notify **where, bool succeeded) {
    struct service_notify *notify = *where;
    struct notification notification = {.used = 0};
    *where = NULL;
    if (!notify)
        return;
    if (succeeded && !notify->ready)
        add_line(&notification, "READY=1\n");
    if (!notify->stopping)
        add_line(&notification, "STOPPING=1\n");
    if (notification.used)
        send_notification(notify, &notification);
    close(notify->socket);
    free(notify);
}
