/* SPDX-License-Identifier: Apache-2.0 */
/* Features as a job's settings say, for those who read the settings and those
 * who read records by them. */
#ifndef CAPSTAN_FEATURE_H
#define CAPSTAN_FEATURE_H

#include "worker/data/features.h"
#include "worker/data/vocabulary.h"

#include <stdbool.h>

enum {
    FEATURE_MAX_PARTS = 16,      /* of a cross */
    FEATURE_MAX_IDS = 1 << 16,   /* of a cross in one sample */
    FEATURE_MAX_WIDTH = 1 << 24, /* floats of all features */
    FEATURES_LOGS = 1024,
};

enum feature_type {
    FEATURE_NUMERIC,
    FEATURE_BUCKETIZED,
    FEATURE_VOCABULARY,
    FEATURE_HASH_BUCKET,
    FEATURE_IDENTITY,
    FEATURE_CROSSED,
    FEATURE_EMBEDDING,
    FEATURE_TYPES
};

struct feature {
    char *name;
    enum feature_type type;
    uint32_t column; /* among those that are read; CROSSED, EMBEDDING: none */
    uint32_t width;  /* floats; EMBEDDING: of a row */
    bool log1p;
    float missing;     /* NUMERIC, BUCKETIZED: in place of no value; NAN: of
                          none, BUCKETIZED then has no bucket */
    float absent;      /* that, as the transform has it */
    float *boundaries; /* BUCKETIZED: [width - 1], ascending */
    struct vocabulary *vocabulary;
    uint64_t seed;       /* HASH_BUCKET, CROSSED: of the hash, by the name */
    uint64_t size;       /* ids are below it; 0: any */
    uint64_t reciprocal; /* (2^64 - 1) / size */
    bool weighted;
    uint32_t *parts; /* CROSSED: [num_parts], features that give ids */
    uint32_t num_parts;
    uint32_t depth; /* CROSSED: 1 more than the deepest of its parts */
    uint32_t of;    /* EMBEDDING */
    enum batch_combiner combiner;
    struct initializer init; /* EMBEDDING */
    uint32_t admit;
    uint64_t expire, max_rows;
};

struct features {
    /* Behind the job's COUNT features are those that crosses make of columns:
     * NUM_ITEMS together. */
    struct feature *items;
    uint32_t count, num_items, width;
    char **columns; /* [num_columns], those that they read */
    uint32_t num_columns;
    float logs[FEATURES_LOGS]; /* log1p of 0, 1, ... */
    bool decimal_comma;        /* in numbers that are texts */
};

/* A key of a feature in the job. */
struct feature_key {
    const char *name;    /* NULL behind the last */
    unsigned types;      /* that have it, bits of enum feature_type */
    const char *meaning; /* for editors; docs/data.md says more */
    uint64_t most;       /* of an integer, which is 1 or more, or of ITEMS */
    const char *inner;   /* that integer is the only member of an object */
    const char *items;   /* a JSON Schema (draft 7) */
    const char *schema;  /* the same of another value */
};
extern const struct feature_key feature_keys[];

/* A sum of feature_gives. */
unsigned feature_gives(enum feature_type type);

/* Reads TEXT as features_open and features_pairs_open do; a vocabulary's file
 * is opened only if OPENS_FILES. */
struct features_source {
    const char *text;           /* a JSON object; NULL: a feature a column */
    const char *const *columns; /* [num_columns]; NULL: any */
    uint32_t num_columns;
    const char *file; /* that has them; NULL: none */
    bool pairs;       /* records have pairs in their columns */
    bool opens_files;
};

/* Fills FEATURES, all zero, and adds what is wrong to DIAGNOSTICS. Fails where
 * memory or a file does. */
enum status features_parse(struct features *features,
                           const struct features_source *source,
                           struct diagnostics *diagnostics,
                           struct failure *why) MUST_CHECK;

struct feature_digits {
    char bytes[24];
};

/* Value I of CELL, of texts, integers or pairs, as text: a view of it, or of
 * DIGITS. */
struct record_text feature_text(const struct record_cell *cell, uint32_t i,
                                struct feature_digits *digits);

#endif
