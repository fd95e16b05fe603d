/* SPDX-License-Identifier: Apache-2.0 */
/* Initial values as a job names them, by torch's and Keras's names. What they
 * mean is in proto/tensor/initializer.h. */
#ifndef CAPSTAN_JOB_INIT_H
#define CAPSTAN_JOB_INIT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum job_init_kind {
    JOB_INIT_DEFAULT, /* not given */
    JOB_INIT_ZEROS,
    JOB_INIT_ONES,
    JOB_INIT_CONSTANT,         /* a */
    JOB_INIT_UNIFORM,          /* from a to b */
    JOB_INIT_NORMAL,           /* mean a, standard deviation b */
    JOB_INIT_TRUNCATED_NORMAL, /* likewise */
    /* By the numbers of inputs and outputs: */
    JOB_INIT_XAVIER_UNIFORM,
    JOB_INIT_GLOROT_UNIFORM,
    JOB_INIT_XAVIER_NORMAL,
    JOB_INIT_GLOROT_NORMAL,
    JOB_INIT_KAIMING_UNIFORM,
    JOB_INIT_HE_UNIFORM,
    JOB_INIT_KAIMING_NORMAL,
    JOB_INIT_HE_NORMAL,
    JOB_INIT_KINDS
};

struct job_init {
    enum job_init_kind kind;
    double a, b;
};

/* Reads VALUE, a name or {"type": name} with its numbers; BY_FANS: also a name
 * that needs numbers of inputs and outputs. False: it is not allowed, and *OUT
 * is unchanged. */
bool job_init_read(struct job_init *out, const json_t *value, bool by_fans);

/* INIT as JSON, which the caller frees; NULL if it is not given. */
json_t *job_init_write(const struct job_init *init);

/* Writes what job_init_read allows, for a person. */
void job_init_allowed(bool by_fans, char *text, size_t size);

/* The same as a JSON Schema, which the caller frees. */
json_t *job_init_schema(bool by_fans);

#endif
