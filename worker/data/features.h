/* SPDX-License-Identifier: Apache-2.0 */
/* A job's features: the numbers and ids that a model reads of a record. Types
 * and names of settings as in tf.feature_column. */
#ifndef CAPSTAN_FEATURES_H
#define CAPSTAN_FEATURES_H

#include "core/base/diagnostics.h"
#include "core/base/status.h"
#include "core/tensor/initializer.h"
#include "worker/data/batch.h"
#include "worker/data/record.h"

#include <jansson.h>
#include <stdint.h>

struct features;

/* From TEXT, the job's object `features`; NULL: each of COLUMNS [COUNT] is a
 * number. FILE, for errors, has the COLUMNS; NULL: the job or the format has
 * them. Without COLUMNS any column may be named. FAILURE_JOB_INVALID with the
 * keys of all that is wrong, or as of a vocabulary's file. Copies all. */
enum status features_open(struct features **out, const char *text,
                          const char *const *columns, uint32_t count,
                          const char *file, struct failure *why) MUST_CHECK;

/* The same for records of which COLUMN has pairs, ids with weights: without
 * TEXT they are the feature of its name. Features of type hash_bucket and
 * identity keep the weights. */
enum status features_open_pairs(struct features **out, const char *text,
                                const char *column,
                                struct failure *why) MUST_CHECK;

/* The same as far as it is known without the files of vocabularies, and for
 * records of any COLUMNS if that is NULL; PAIRS: the first column has pairs.
 * Adds what is wrong in TEXT; then *OUT is NULL. */
void features_check(struct features **out, const char *text,
                    const char *const *columns, uint32_t count, bool pairs,
                    struct diagnostics *diagnostics);

/* One feature of a job as a JSON Schema, which the caller frees. Which names it
 * may use is not in it. */
json_t *feature_schema(void);

/* Frees *FEATURES (may be NULL) and clears it. */
void features_close(struct features **features);

/* Equal for features that give the same ids and numbers for every record: their
 * settings, with the words of vocabularies and without what limits rows; and
 * that have the same places in the columns of SPEC (NULL: any). Never 0. */
uint64_t features_digest(const struct features *features,
                         const struct batch_spec *spec);

/* What a feature gives a model. */
enum feature_gives {
    FEATURE_FLOATS = 1, /* `width` floats of a sample */
    FEATURE_IDS = 2,    /* any number of 64-bit ids, perhaps with weights */
    FEATURE_ROWS = 4,   /* an embedding: a row of `width` floats by the ids of
                           the feature `of` */
};

struct feature_info {
    const char *name;
    unsigned gives; /* a sum of feature_gives: a vocabulary has floats (one for
                       each word) and ids (the words' places); so have
                       buckets */
    uint32_t width; /* of FLOATS, of ROWS */
    bool weighted;  /* IDS have weights */
    uint32_t of;    /* ROWS: the number of the feature with its ids */
    enum batch_combiner combiner; /* ROWS */
    struct initializer init;      /* ROWS: of initial rows */
    /* Of the table of its rows (ROWS; of IDS for a table of one float). */
    uint32_t admit;
    uint64_t expire, max_rows;
    uint64_t num_ids; /* IDS: how many there are; 0: any */
};

/* Features are numbered from 0 in the job's order. */
uint32_t features_count(const struct features *features);
struct feature_info features_info(const struct features *features, uint32_t f);

/* The number of the feature NAME; UINT32_MAX: there is none. */
uint32_t features_find(const struct features *features, const char *name);

/* Floats of a sample by all features that give some. */
uint32_t features_width(const struct features *features);

/* The columns that they read, each once: a view. */
const char *const *features_columns(const struct features *features,
                                    uint32_t *count);

/* Fills VALUES [features_width] from CELLS, one for each of features_columns.
 * FAILURE_DATA_DAMAGED; WHY has the column and what was found. */
enum status features_read(const struct features *features,
                          const struct record_cell *const *cells, float *values,
                          struct failure *why) MUST_CHECK;

/* The same for the features SELECTED [COUNT], all of which give floats. */
enum status features_read_some(const struct features *features,
                               const uint32_t *selected, uint32_t count,
                               const struct record_cell *const *cells,
                               float *values, struct failure *why) MUST_CHECK;

/* Ids of the feature F that gives some, and their weights if it has them, as
 * sample S of IDS: from offsets[S], which is set, to offsets[S + 1], which is
 * set here. IDS grow as needed, and are as before if it fails. By type:
 * hash_bucket: XXH3_64 (xxhash's specification) of the value's UTF-8 or decimal
 *   digits, the seed XXH3_64 of the feature's name, modulo `size`; an empty
 *   value gives none;
 * identity: the value itself, below `size`;
 * vocabulary, bucketized: the place of the word, if it has one, or the bucket;
 * crossed: XXH3_64, seeded so, of the parts' ids before any modulo as 64-bit
 *   little-endian numbers, of each combination, the last part's changing first,
 *   modulo `size`; without ids if a part has none.
 * Fails as features_read, and if a cross has more than 65536 ids. */
enum status features_ids(const struct features *features, uint32_t f,
                         const struct record_cell *const *cells,
                         struct batch_ids *ids, uint32_t s,
                         struct failure *why) MUST_CHECK;

/* Adds to OBJECT by feature what it gives: numbers or else ids, as texts in
 * decimal, "ID:WEIGHT" with weights; of an embedding an object with `of`, `dim`
 * and how many `ids` the sample has. Fails as features_read. */
enum status features_describe(const struct features *features,
                              const struct record_cell *const *cells,
                              json_t *object, struct failure *why) MUST_CHECK;

#endif
