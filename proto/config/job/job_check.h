/* SPDX-License-Identifier: Apache-2.0 */
/* Finds unknown and misplaced keys of a job file. */
#ifndef CAPSTAN_JOB_CHECK_H
#define CAPSTAN_JOB_CHECK_H

#include "proto/config/diagnostics.h"
#include "proto/config/job/job.h"

#include <jansson.h>

/* Each key of TREE that is not in the schema, or not valid for the optimizer
 * and schedule types of JOB, is a problem that names the nearest key. */
void job_check_keys(const json_t *tree, const struct job *job,
                    struct diagnostics *diagnostics);

#endif
