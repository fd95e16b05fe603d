/* SPDX-License-Identifier: Apache-2.0 */
/* What the keys of a job file must be to each other. */
#ifndef CAPSTAN_JOB_RULES_H
#define CAPSTAN_JOB_RULES_H

#include "proto/base/log.h"
#include "proto/config/diagnostics.h"
#include "proto/config/job/job.h"

#include <jansson.h>

/* What a job was read from. */
struct job_input {
    const json_t *tree; /* what was written, defaults left out */
    const char *folder; /* where relative paths start; NULL: none allowed */
    bool deepspeed;     /* DeepSpeed's defaults count */
    const struct log *log;
};

/* Keys of JOB that contradict each other are problems. Fills in what depends on
 * more than one key: checkpoint.every_seconds, events_dir, batch_key. The log
 * receives warnings, and defaults in which torch and DeepSpeed differ. */
void job_rules_check(struct job *job, const struct job_input *input,
                     struct diagnostics *diagnostics);

#endif
