/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/launch/restarts.h"

#include "commands/launch/children.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "proto/messages/launch_record.h"

#include <sys/wait.h>

/* After these many nanoseconds of life a process counts no earlier restarts;
 * within RESTART_WINDOW there are at most so many as the caller says, each
 * after twice the wait of the one before. */
static const int64_t LONG_LIFE = 60 * TIME_S, RESTART_WINDOW = 600 * TIME_S;

static int64_t restart_wait(unsigned restarts) {
    int64_t wait = TIME_S / 2;
    if (!restarts)
        return 0;
    while (--restarts && wait < 10 * TIME_S)
        wait *= 2;
    return wait < 10 * TIME_S ? wait : 10 * TIME_S;
}

void restarts_begin(struct restarts *restarts) {
    restarts->started_at = time_now();
    restarts->at = TIME_NEVER;
}

bool restarts_apply(const struct restarts *restarts, int record,
                    int wait_status) {
    int code = children_exit_code(wait_status);
    bool ordered = code == STATUS_HUNG_UP || code == STATUS_INTERRUPTED ||
                   code == STATUS_TERMINATED;
    bool lost = code == STATUS_RETRY || (WIFSIGNALED(wait_status) && !ordered);
    bool joins_again = restarts->follows && !launch_record_has_joined(record);
    return lost && (launch_record_in_run(record) || joins_again) &&
           !(launch_record_deaths(record) &
             (LAUNCH_RECORD_OWN | LAUNCH_RECORD_DONE));
}

int restarts_exit_code(int record, int wait_status, const char *name,
                       const struct log *log) {
    char exit_text[64];
    if (!WIFSIGNALED(wait_status) ||
        !(launch_record_deaths(record) & LAUNCH_RECORD_DONE))
        return children_exit_code(wait_status);
    status_end_text(wait_status, exit_text, sizeof exit_text);
    log_warning(log, "process_died", "%s %s once its run was complete", name,
                exit_text);
    return STATUS_OK;
}

bool restarts_next(struct restarts *restarts, const char *name, int wait_status,
                   unsigned most, const struct log *log) {
    int64_t now = time_now();
    char exit_text[64];
    if (now - restarts->started_at >= LONG_LIFE ||
        now - restarts->first >= RESTART_WINDOW)
        restarts->count = 0;
    status_end_text(wait_status, exit_text, sizeof exit_text);
    if (restarts->count == most) {
        log_error(log, "restarts_used_up",
                  "%s %s, and was started again %u times within %lld s "
                  "(--max-restarts): it is not started again",
                  name, exit_text, restarts->count,
                  (long long)(RESTART_WINDOW / TIME_S));
        return false;
    }
    if (!restarts->count)
        restarts->first = now;
    int64_t wait = restart_wait(restarts->count++);
    restarts->at = now + wait;
    restarts->follows = true;
    log_warning(log, "process_restarts",
                "%s %s: it is started again (%u of %u) in %g s", name,
                exit_text, restarts->count, most, time_to_seconds(wait));
    return true;
}

void restarts_now(struct restarts *restarts, const char *name,
                  const struct log *log) {
    restarts->at = time_now();
    restarts->follows = true;
    log_warning(log, "process_restarts",
                "%s was killed by the drill: it is started again at once",
                name);
}
