/* SPDX-License-Identifier: Apache-2.0 */
/* Rules between the keys of a job file. */
#ifndef CAPSTAN_JOB_RULES_H
#define CAPSTAN_JOB_RULES_H

#include "core/base/diagnostics.h"
#include "core/base/log.h"
#include "proto/job/job.h"

#include <jansson.h>

/* The input of a job. */
struct job_input {
    const struct job_models *models; /* NULL: model.* is not read */
    const json_t *tree;              /* the keys as written, without defaults */
    const char *folder; /* start of relative paths; NULL: none allowed */
    bool deepspeed;     /* DeepSpeed's defaults apply */
    const struct log *log;
};

/* Contradictory keys of JOB are problems. Fills in
 * values that depend on several keys: checkpoint.every_seconds, events_dir,
 * batch_key. The log receives warnings, and the defaults in which torch and
 * DeepSpeed differ. */
void job_rules_check(struct job *job, const struct job_input *input,
                     struct diagnostics *diagnostics);

/* The same for the rules of the schema; VALUES are those of JOB as JSON. */
void job_rules_check_values(struct job *job, const json_t *values,
                            struct diagnostics *diagnostics);

#endif
