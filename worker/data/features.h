/* SPDX-License-Identifier: Apache-2.0 */
/* A job's features: the numbers that a model reads of a record. Types and names
 * of settings as in tf.feature_column. */
#ifndef CAPSTAN_FEATURES_H
#define CAPSTAN_FEATURES_H

#include "proto/base/status.h"
#include "proto/config/diagnostics.h"
#include "worker/data/record.h"

#include <jansson.h>
#include <stdint.h>

struct features;

/* From TEXT, the job's object `features`; NULL: each of COLUMNS [COUNT] is a
 * number. Without COLUMNS any column may be named. FAILURE_JOB_INVALID with all
 * that is wrong, or as of a vocabulary's file. Copies all. */
enum status features_open(struct features **out, const char *text,
                          const char *const *columns, uint32_t count,
                          struct failure *why) MUST_CHECK;

/* Adds what is wrong in TEXT, as far as that is known without columns and
 * files. */
void features_check(const char *text, struct diagnostics *diagnostics);

/* Frees *FEATURES (may be NULL) and clears it. */
void features_close(struct features **features);

/* Floats of a sample. */
uint32_t features_width(const struct features *features);

/* The columns that they read, each once: a view. */
const char *const *features_columns(const struct features *features,
                                    uint32_t *count);

/* Fills VALUES [features_width] from CELLS, one for each of features_columns.
 * FAILURE_DATA_DAMAGED; WHY has the column and what was found. */
enum status features_read(const struct features *features,
                          const struct record_cell *const *cells, float *values,
                          struct failure *why) MUST_CHECK;

/* VALUES by feature, as numbers or arrays; the caller frees it. */
json_t *features_describe(const struct features *features, const float *values);

#endif
