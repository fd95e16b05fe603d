/* SPDX-License-Identifier: Apache-2.0 */
/* What values of the job are read and written by: for job_value.c, the kinds
 * that many keys share, and job_value_kinds.c, those of their own. */
#ifndef CAPSTAN_JOB_VALUE_INTERNAL_H
#define CAPSTAN_JOB_VALUE_INTERNAL_H

#include "proto/config/job/job_value.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* FIELD is the key's in struct job: of the type that the kind has there. */
struct job_value_kind {
    bool (*read)(const struct job_key *key, const json_t *value, void *field,
                 const struct job_reader *reader);
    json_t *(*write)(const struct job_key *key, const void *field);
    void (*allowed)(const struct job_key *key, char *text, size_t size);
    unsigned owned; /* strings in the field that are freed with it */
};

extern const struct job_value_kind job_value_files, job_value_layers,
    job_value_betas, job_value_steps, job_value_staleness, job_value_resume,
    job_value_counts;

/* An integer, or a real of whole value, within the bounds of KEY; else false.
 */
bool job_value_read_integer(const struct job_key *key, const json_t *value,
                            uint64_t *integer);

/* NULL for 0 where KEY has no usual value: 0 is not given, then. */
json_t *job_value_write_integer(const struct job_key *key, uint64_t integer);
void job_value_allow_integer(const struct job_key *key, char *text,
                             size_t size);

/* PATH below FOLDER, the caller's; NULL for what is no path. */
char *job_value_join(const char *folder, const char *path);

#endif
