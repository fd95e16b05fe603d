/* SPDX-License-Identifier: Apache-2.0 */
/* An evaluator: follows a checkpoint directory and measures each new
 * checkpoint on the whole test set, until a run has ended with one. It joins
 * nobody. */
#ifndef CAPSTAN_EVALUATOR_H
#define CAPSTAN_EVALUATOR_H

#include "proto/base/log.h"
#include "proto/base/status.h"

#include <stdbool.h>

struct evaluator_settings {
    const struct log *log;
    const char *dir; /* the checkpoint directory; NULL: not given */
    double timeout;  /* seconds without a new checkpoint that end it; at least
                        twice the job's checkpoint.every_seconds once a first
                        one has come */
    bool json;       /* one object a checkpoint on standard output */
    int interrupts;  /* descriptor that gives a signal's number */
};

/* OK after a final checkpoint that is the newest there, and that no run goes on
 * from (dir_lock.h); STATUS_RETRY naming
 * the directory when none came in time. STATUS_CONFIG without a directory,
 * without a test set in the job, or when other hosts hold a checkpoint's files,
 * naming them. One that is damaged is passed over with a warning, one that is
 * removed while it is read in silence. */
enum status evaluator_run(const struct evaluator_settings *settings,
                          struct failure *why) MUST_CHECK;

#endif
