/* SPDX-License-Identifier: Apache-2.0 */
/* One value of the job file: converts JSON to its field and back, by the kind
 * of its key. */
#ifndef CAPSTAN_JOB_VALUE_H
#define CAPSTAN_JOB_VALUE_H

#include "core/tensor/initializer.h"
#include "proto/job/job_schema.h"

#include <jansson.h>

/* Common to all keys of one job. */
struct job_reader {
    struct job *job;
    const char *folder; /* start of relative paths; NULL: none allowed */
};

/* False if KEY does not allow VALUE; then the field is unchanged. */
bool job_value_read(const struct job_key *key, const json_t *value,
                    const struct job_reader *reader) MUST_CHECK;

/* The field as JSON, which the caller frees; NULL if it is not given. */
json_t *job_value_write(const struct job_key *key, const struct job *job);

/* Frees what the field owns. */
void job_value_free(const struct job_key *key, struct job *job);

/* Writes the values that KEY allows: "an integer from 1 to 64". */
void job_value_allowed(const struct job_key *key, char *text, size_t size);

/* The same as a JSON Schema (draft 7), which the caller frees. */
json_t *job_value_schema(const struct job_key *key);

/* The same of a rule's IS or MUST. */
json_t *job_value_condition(const char *text);

/* Initial values. Reads VALUE, a name or {"type": name} with its numbers;
 * BY_FANS: also a name that needs numbers of inputs and outputs. False: it is
 * not allowed, and *OUT is unchanged. */
bool job_init_read(struct job_init *out, const json_t *value, bool by_fans);

/* Writes what job_init_read allows, for a person. */
void job_init_allowed(bool by_fans, char *text, size_t size);

/* The same as a JSON Schema, which the caller frees. */
json_t *job_init_schema(bool by_fans);

/* PATH below FOLDER, which the caller frees; NULL if it is not a path. */
char *job_value_join(const char *folder, const char *path);

#endif
