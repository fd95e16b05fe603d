/* SPDX-License-Identifier: Apache-2.0 */
/* One value of the job file: from JSON into its field of struct job and back,
 * by the kind of its key. */
#ifndef CAPSTAN_JOB_VALUE_H
#define CAPSTAN_JOB_VALUE_H

#include "proto/config/job/job_schema.h"

#include <jansson.h>

/* What the keys of one job have in common. */
struct job_reader {
    struct job *job;
    const char *folder; /* where relative paths start; NULL: none allowed */
};

/* False when VALUE is not what KEY allows; the field is then as it was. */
bool job_value_read(const struct job_key *key, const json_t *value,
                    const struct job_reader *reader) MUST_CHECK;

/* The field as JSON, the caller's; NULL when it is not given. */
json_t *job_value_write(const struct job_key *key, const struct job *job);

/* Frees what the field owns. */
void job_value_free(const struct job_key *key, struct job *job);

/* Writes what KEY allows: "an integer from 1 to 64". */
void job_value_allowed(const struct job_key *key, char *text, size_t size);

#endif
