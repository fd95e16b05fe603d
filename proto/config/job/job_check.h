/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of a job file that have no place in it. */
#ifndef CAPSTAN_JOB_CHECK_H
#define CAPSTAN_JOB_CHECK_H

#include "proto/config/diagnostics.h"
#include "proto/config/job/job.h"

#include <jansson.h>

/* Each key of TREE that the schema does not know, or not with the types of
 * optimiser and schedule in JOB, is a problem that names the nearest. */
void job_check_keys(const json_t *tree, const struct job *job,
                    struct diagnostics *diagnostics);

#endif
