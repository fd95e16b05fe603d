/* SPDX-License-Identifier: Apache-2.0 */
/* Every key of the job file: path, kind, range, default and field in struct job
 * or in the struct of a model. These tables are used to read, check, suggest
 * and write keys. */
#ifndef CAPSTAN_JOB_SCHEMA_H
#define CAPSTAN_JOB_SCHEMA_H

#include "core/base/diagnostics.h"
#include "proto/job/job.h"

#include <jansson.h>
#include <stddef.h>

/* The bound of a real that has none; well inside float32. */
#define JOB_UNBOUNDED 1e30

enum job_kind {
    JOB_KIND_BOOL,
    JOB_KIND_U32,
    JOB_KIND_U64,
    JOB_KIND_REAL,
    JOB_KIND_CHOICE,    /* an enum: the index of the word in `words` */
    JOB_KIND_BOOL_WORD, /* a bool: the second of two words */
    JOB_KIND_TEXT,
    JOB_KIND_PATH,       /* made absolute; `words` are the allowed endings */
    JOB_KIND_FILES,      /* struct job_files, below data.dir */
    JOB_KIND_NAMES,      /* an array of strings, kept as JSON */
    JOB_KIND_OBJECT,     /* an object of objects, kept as JSON */
    JOB_KIND_WIDTHS,     /* struct job_widths, from `least` to `most` */
    JOB_KIND_REALS,      /* struct job_reals, from `least` to `most` */
    JOB_KIND_BETAS,      /* struct optimizer: beta1, beta2 */
    JOB_KIND_STEPS,      /* struct job: has_steps, steps */
    JOB_KIND_STALENESS,  /* a count or "inf" */
    JOB_KIND_PARAMETERS, /* a uint64_t: a number of parameters */
    JOB_KIND_RESUME,     /* struct job_checkpoint: resume, resume_step */
    JOB_KIND_COUNTS,     /* struct job_counts */
    JOB_KIND_INIT,       /* struct job_init of layers */
    JOB_KIND_ROW_INIT,   /* struct job_init of a table's rows */
    JOB_KINDS
};

/* Defaults are JSON. A key without a default that is not given leaves its field
 * 0 and is not written. The masks (bits 1 << enum value) list the model,
 * optimizer or scheduler types and the data formats to which the row applies, 0
 * for all. Several
 * rows may give one path different defaults. */
struct job_key {
    const char *path;
    const char *meaning; /* a sentence or more without a stop at the end, for
                            people; in the first row of its path */
    enum job_kind kind;
    bool of_model; /* FIELD is in job->model.settings */
    size_t field;  /* offset in struct job */
    double min, max;
    uint32_t least, most;      /* of WIDTHS and REALS: how many */
    const char *const *words;  /* NULL-ended */
    const char *default_value; /* default */
    const char *deepspeed;     /* DeepSpeed's default, if it differs */
    const char *tf;            /* TensorFlow's (Keras's) */
    unsigned models, optimizers, schedules, formats;
    enum job_group group; /* of a key of an optimizer: whose */
    bool required;
};

/* The keys of one type of model. */
struct job_model_schema {
    const struct job_key *keys; /* of_model, and for this type only */
    size_t num_keys;
    size_t bytes; /* of its struct */
    /* Logs what of JOB has no effect. */
    void (*check)(const struct job *job, const struct log *log);
};

struct job_models {
    const struct job_model_schema *of_type[JOB_MODEL_TYPES]; /* NULL: no keys */
    /* Adds what is wrong in JOB's features, and in what the model takes of
     * them, as far as no file has to be read for it. */
    void (*check_features)(const struct job *job,
                           struct diagnostics *diagnostics);
    json_t *(*feature_schema)(void); /* of a member of `features` */
};

#define JOB_GIVEN "{\"not\": {\"type\": \"null\"}}"
#define JOB_IS_ONE "{\"const\": 1}"
#define JOB_LEFT_OUT "{\"type\": \"null\"}"

/* Where PATH has a value that is IS, OTHER is MUST; both are words of a key,
 * separated by "|", or a JSON Schema (draft 7). Of those without a text
 * job_rules.c or deepspeed.c says what is wrong, with numbers. */
struct job_rule {
    const char *path, *is, *other, *must;
    const char *text; /* of the problem, at PATH or at OTHER */
    bool needed, at_other;
    const char *or_other; /* with OTHER as it is, a key that is 1; or NULL */
};

/* Rows before those of models: model.type is the last of them. */
enum { JOB_SCHEMA_FIRST = 2 };

/* Row I of the job's keys and those of MODELS (NULL: none), in reading order: a
 * key on which others depend comes before them. NULL after the last. */
const struct job_key *job_schema_row(const struct job_models *models, size_t i);

/* The first row of PATH, or NULL. */
const struct job_key *job_schema_find(const struct job_models *models,
                                      const char *path);

/* Their last has no path. */
extern const struct job_rule job_schema_rules[];

/* The name of GROUP in the job's `optimizers`; NULL: models of TYPE have no
 * such group. */
const char *job_schema_group(enum job_group group, enum job_model_type type);

/* True if KEY applies to the model, optimizer and schedule types of JOB. */
bool job_schema_applies(const struct job_key *key, const struct job *job);

#endif
