/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing of job values: shared by job_value.c (kinds of many keys)
 * and job_value_kinds.c (kinds of one key). */
#ifndef CAPSTAN_JOB_VALUE_INTERNAL_H
#define CAPSTAN_JOB_VALUE_INTERNAL_H

#include "proto/job/job_value.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* FIELD is the key's field, of the type that the kind has there. */
struct job_value_kind {
    bool (*read)(const struct job_key *key, const json_t *value, void *field,
                 const struct job_reader *reader);
    json_t *(*write)(const struct job_key *key, const void *field);
    void (*allowed)(const struct job_key *key, char *text, size_t size);
    json_t *(*schema)(const struct job_key *key);
    unsigned owned; /* strings that the field owns */
};

extern const struct job_value_kind job_value_files, job_value_names,
    job_value_object, job_value_widths, job_value_reals, job_value_betas,
    job_value_steps, job_value_staleness, job_value_resume, job_value_counts,
    job_value_init, job_value_parameters;

/* Reads an integer, or a real with a whole value, within the bounds of KEY;
 * else false. */
bool job_value_read_integer(const struct job_key *key, const json_t *value,
                            uint64_t *integer);

/* NULL for 0 if KEY has no default: 0 means not given. */
json_t *job_value_write_integer(const struct job_key *key, uint64_t integer);
void job_value_allow_integer(const struct job_key *key, char *text,
                             size_t size);

json_t *job_value_integer_schema(const struct job_key *key);
json_t *job_value_real_schema(const struct job_key *key);

/* PATH below FOLDER, which the caller frees; NULL if it is not a path. */
char *job_value_join(const char *folder, const char *path);

#endif
