/* SPDX-License-Identifier: Apache-2.0 */
/* Every key of the job file: path, kind, range, default and field in struct
 * job. This one table is used to read, check, suggest and write keys. */
#ifndef CAPSTAN_JOB_SCHEMA_H
#define CAPSTAN_JOB_SCHEMA_H

#include "proto/config/job/job.h"

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
    JOB_KIND_PATH,      /* made absolute; `words` are the allowed endings */
    JOB_KIND_FILES,     /* two paths below data.dir: images and labels */
    JOB_KIND_LAYERS,    /* struct job_model */
    JOB_KIND_BETAS,     /* struct optimizer: beta1, beta2 */
    JOB_KIND_STEPS,     /* struct job: has_steps, steps */
    JOB_KIND_STALENESS, /* a count or "inf" */
    JOB_KIND_RESUME,    /* struct job_checkpoint: resume, resume_step */
    JOB_KIND_COUNTS,    /* struct compare_counts */
    JOB_KINDS
};

/* Defaults are JSON. A key without a default that is not given leaves its field
 * 0 and is not written. The masks (bits 1 << enum value) list the model,
 * optimizer or scheduler types to which the row applies, 0 for all. Several
 * rows may give one path different defaults. */
struct job_key {
    const char *path;
    enum job_kind kind;
    size_t field; /* offset in struct job */
    double min, max;
    const char *const *words;  /* NULL-ended */
    const char *default_value; /* default */
    const char *deepspeed;     /* DeepSpeed's default, if it differs */
    unsigned models, optimizers, schedules;
    bool required;
};

/* Rows in reading order: a key on which others depend comes before them. */
const struct job_key *job_schema(size_t *count);

/* True if KEY applies to the model, optimizer and schedule types of JOB. */
bool job_schema_applies(const struct job_key *key, const struct job *job);

#endif
