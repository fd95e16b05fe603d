/* SPDX-License-Identifier: Apache-2.0 */
/* The job file's JSON Schema (draft 7), made from the tables that check it:
 * job_schema.h, its kinds of values (job_value.h), DeepSpeed's keys
 * (deepspeed.h). What it cannot say is refused only by the program: an order
 * of numbers (of an array, of two keys), and names of features and columns. */
#ifndef CAPSTAN_JOB_JSON_SCHEMA_H
#define CAPSTAN_JOB_JSON_SCHEMA_H

#include "proto/job/job_schema.h"

#include <jansson.h>

/* The schema of jobs with MODELS, which the caller frees; NULL: no memory. */
json_t *job_json_schema(const struct job_models *models);

#endif
