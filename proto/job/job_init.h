/* SPDX-License-Identifier: Apache-2.0 */
/* Initial values in a job, by torch's and Keras's names. */
#ifndef CAPSTAN_JOB_INIT_H
#define CAPSTAN_JOB_INIT_H

#include "core/tensor/initializer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

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
