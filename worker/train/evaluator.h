/* SPDX-License-Identifier: Apache-2.0 */
/* An evaluator: follows a checkpoint directory and evaluates each new
 * checkpoint on the whole test set until a run has ended. It joins no chief. */
#ifndef CAPSTAN_EVALUATOR_H
#define CAPSTAN_EVALUATOR_H

#include "core/base/health.h"
#include "core/base/log.h"
#include "core/base/status.h"

#include <stdbool.h>

struct evaluator_settings {
    const struct log *log;
    const char *dir; /* the checkpoint directory; NULL: not given */
    double timeout;  /* seconds without a new checkpoint until it gives up; at
                        least twice the job's checkpoint.every_seconds after the
                        first one */
    bool json;       /* prints one object per checkpoint on standard output */
    int interrupts;  /* descriptor that gives a signal's number */
    struct health *health; /* where it tells of itself; NULL: nowhere */
};

/* STATUS_OK once the newest checkpoint is final and no run continues from it
 * (dir_lock.h). STATUS_RETRY if no checkpoint came in time; WHY names the
 * directory. STATUS_CONFIG without a directory, without a test set in the job,
 * or if other hosts hold a checkpoint's files; WHY names them. A damaged
 * checkpoint is skipped with a warning, one that is removed while being read
 * silently. */
enum status evaluator_run(const struct evaluator_settings *settings,
                          struct failure *why) MUST_CHECK;

#endif
