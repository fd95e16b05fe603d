/* SPDX-License-Identifier: Apache-2.0 */
/* A set of samples and the micro batches that are drawn from it, as tables of
 * functions: one implementation for each way of storing data. */
#ifndef CAPSTAN_DATASET_H
#define CAPSTAN_DATASET_H

#include "core/base/log.h"
#include "core/base/status.h"
#include "proto/job/job.h"
#include "worker/data/batch.h"

#include <jansson.h>

struct features;
struct batch_source; /* the implementation's own type */

/* The share of the samples that batches are drawn from. Datasets that are not
 * in memory cut shares by trainers, and those by devices; the sampler of
 * idx_dataset.h does not know `device` and `epoch_batches`. */
struct sampler_options {
    uint32_t num_samples; /* N > 0; a dataset sets its own */
    uint32_t rank, num_ranks;
    uint32_t device, num_devices; /* of the trainer; 0 of 0: it has one */
    uint32_t micro_batch;
    uint64_t epoch_batches; /* of the plan; 0: as many as the share has */
    uint64_t seed;
    bool shuffle;
    bool drop_last; /* an epoch's short last batch is dropped */
};

struct batch_source_table {
    /* The samples that batch NUMBER of a share has, 0 behind the end of an
     * epoch that is longer than the share. */
    uint32_t (*size)(struct batch_source *source, uint64_t number);

    /* Claims the samples of the next batch, CLAIM's number: one thread at a
     * time, numbers in order from the first one on. */
    enum status (*claim)(struct batch_source *source, struct batch_claim *claim,
                         struct failure *why);

    /* Fills BATCH, whose columns have room for a micro batch, from CLAIM; by
     * several threads at once. BATCH may get fewer samples than CLAIM has. */
    enum status (*fill)(struct batch_source *source, struct batch_claim *claim,
                        struct batch *batch, struct failure *why);

    /* Frees CLAIM's scratch, which is not NULL. */
    void (*forget)(struct batch_claim *claim);

    /* Frees *SOURCE (may be NULL) and clears it. */
    void (*close)(struct batch_source **source);
};

/* An implementation's dataset begins with it. */
struct dataset {
    const struct dataset_table *table;
    uint64_t count;    /* samples; 0: they were not counted */
    uint32_t features; /* values of a sample's input */
    bool pixels;       /* its batches may have them as bytes (batch.h) */
    const struct features *feature_set; /* NULL: samples are no records */
    float *labels;        /* [count], in memory; NULL: records have them */
    uint32_t num_classes; /* the largest class in LABELS + 1; 0: not known */
    const char *const *columns; /* [num_columns] that are read, in order */
    uint32_t num_columns;       /* 0: samples have no columns */
};

struct dataset_table {
    const struct batch_source_table *batches;

    /* A trainer's share, by OPTIONS, from micro batch FIRST on, without end, in
     * batches with SPEC's columns. Borrows DATASET. */
    enum status (*share)(struct batch_source **out,
                         const struct dataset *dataset,
                         const struct batch_spec *spec,
                         const struct sampler_options *options, uint64_t first,
                         struct failure *why);

    /* Samples FIRST to END - 1, in order, in batches of SIZE. Borrows
     * DATASET. */
    enum status (*range)(struct batch_source **out,
                         const struct dataset *dataset,
                         const struct batch_spec *spec, uint64_t first,
                         uint64_t end, uint32_t size, struct failure *why);

    /* Appends the first ROWS samples, in the files' order, to LIST: objects
     * with their place, columns, features and label, or with what is wrong. The
     * label is that of batches with SPEC's columns; NULL: that of the file. */
    enum status (*peek)(const struct dataset *dataset,
                        const struct batch_spec *spec, uint64_t rows,
                        json_t *list, struct failure *why);

    /* Frees *DATASET (not NULL) and clears it. */
    void (*free)(struct dataset **dataset);
};

struct dataset_options {
    const struct job *job;         /* borrowed */
    const struct job_files *files; /* borrowed */
    const char *key;               /* "data.train" */
    uint32_t rank, num_ranks;      /* of the trainers, each with its share */
    bool count;                    /* the samples that are not in memory */
    bool unlabelled; /* labels are 0: those of the files, if any, are left out;
                        FILES of IDX are one, the images */
    bool pixels;     /* of records: numbers are those of images, integers from 0
                        to 255, which are divided by 255, or floats from 0 to
                        1 */
    bool unscaled;   /* of such images: they are taken as they are */
    const struct log *log;                      /* borrowed */
    bool (*is_cancelled)(void *cancel_context); /* NULL, or ends long reading */
    void *cancel_context;
};

/* The dataset of OPTIONS' files, by the job's data.format. Fails as
 * idx_dataset_load and record_dataset_open; WHY names the key. */
enum status dataset_open(struct dataset **out,
                         const struct dataset_options *options,
                         struct failure *why) MUST_CHECK;

/* STATUS_CONFIG unless TEST, the data of KEY, has the columns of TRAIN, in the
 * same order. */
enum status dataset_compare_columns(const struct dataset *train,
                                    const struct dataset *test, const char *key,
                                    struct failure *why) MUST_CHECK;

/* STATUS_CONFIG unless each of DATASET's labels that are in memory, those of
 * the file PATH, may be in COLUMN; WHY names the sample. */
enum status dataset_check_labels(const struct dataset *dataset,
                                 const struct batch_column *column,
                                 const char *path,
                                 struct failure *why) MUST_CHECK;

/* Fails as dataset_open if FILES of a job with DATA are not there. */
enum status dataset_check_files(const struct job_data *data,
                                const struct job_files *files,
                                struct failure *why) MUST_CHECK;

/* Frees what CLAIM of a source of TABLE owns. */
void batch_claim_free(const struct batch_source_table *table,
                      struct batch_claim *claim);

/* Frees *DATASET (may be NULL) and clears it. */
void dataset_free(struct dataset **dataset);

#endif
