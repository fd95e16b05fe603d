/* SPDX-License-Identifier: Apache-2.0 */
/* The job file: the model, its data, the training. docs/job.md lists every key
 * with its type, range and default. Only the chief reads the file; the other
 * processes receive `text`. */
#ifndef CAPSTAN_JOB_H
#define CAPSTAN_JOB_H

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/tensor/loss_scaler.h"
#include "core/tensor/optimizer.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    JOB_MAX_WIDTHS = 64,
    JOB_MAX_FILES = 256,
    JOB_MAX_COUNTS = 16,
    JOB_MAX_REPEATS = 101 /* of compare */
};

enum job_model_type {
    JOB_MLP,
    JOB_EXTERNAL, /* trainers compute gradients themselves: library/capstan.h */
    JOB_LINEAR,
    JOB_FM,
    JOB_DEEPFM,
    JOB_WIDE_DEEP,
    JOB_DLRM,
    JOB_MATRIX_FACTORIZATION,
    JOB_MODEL_TYPES
};
/* ROW(its enumerator, its word in the job). SOFTMAX: its word, "" where models
 * have none. */
#define JOB_ACTIVATION_ROWS(ROW)                                               \
    ROW(RELU, "relu")                                                          \
    ROW(TANH, "tanh")                                                          \
    ROW(SIGMOID, "sigmoid")                                                    \
    ROW(IDENTITY, "identity")
#define JOB_LOSS_ROWS(ROW, softmax)                                            \
    ROW(SOFTMAX_CROSS_ENTROPY, softmax)                                        \
    ROW(SIGMOID_CROSS_ENTROPY, "sigmoid_cross_entropy")                        \
    ROW(MSE, "mse")
/* Formats of data: ROW(its enumerator, its word in the job, the endings of its
 * files, NULL: none), or VALUES(...) if records have values by name. */
#define JOB_DATA_FORMAT_ROWS(ROW, VALUES)                                      \
    ROW(IDX, "idx", NULL)                                                      \
    ROW(CSV, "csv", ".csv")                                                    \
    ROW(CRITEO, "criteo", NULL)                                                \
    VALUES(TFRECORD, "tfrecord", ".tfrecord", ".tfrecords")                    \
    ROW(LIBSVM, "libsvm", ".libsvm", ".svm")                                   \
    VALUES(NPZ, "npz", ".npz")                                                 \
    VALUES(NPY, "npy", ".npy")                                                 \
    VALUES(SAFETENSORS, "safetensors", ".safetensors")
#define JOB_TYPE(NAME, ...) JOB_##NAME,
#define JOB_WORD(NAME, word, ...) word,
#define JOB_ONE(NAME, ...) +1
#define JOB_BIT(NAME, ...) | 1u << JOB_##NAME
#define JOB_NONE(...)
enum job_data_format {
    JOB_DATA_FORMAT_ROWS(JOB_TYPE, JOB_TYPE) JOB_DATA_FORMATS
};
enum { JOB_FORMATS_OF_VALUES = 0 JOB_DATA_FORMAT_ROWS(JOB_NONE, JOB_BIT) };
enum job_activation { JOB_ACTIVATION_ROWS(JOB_TYPE) };
enum job_loss { JOB_LOSS_ROWS(JOB_TYPE, ) };
enum {
    JOB_ACTIVATIONS = JOB_ACTIVATION_ROWS(JOB_ONE),
    JOB_LOSSES = JOB_LOSS_ROWS(JOB_ONE, )
};
enum job_strategy { JOB_STRATEGY_UNSET, JOB_PS, JOB_ALLREDUCE };
enum job_recovery { JOB_RECOVERY_UNSET, JOB_REWIND, JOB_END };
enum job_backend { JOB_BACKEND_AUTO, JOB_GLOO, JOB_NCCL };
enum job_algorithm { JOB_RING, JOB_HALVING_DOUBLING };
/* Rounding of the operands of matrix products; TF32's is a GPU's own, and other
 * devices have float32 instead. */
enum job_precision {
    JOB_PRECISION_FP32,
    JOB_PRECISION_BF16,
    JOB_PRECISION_FP16,
    JOB_PRECISION_TF32
};
static inline bool job_precision_is_half(enum job_precision precision) {
    return precision == JOB_PRECISION_BF16 || precision == JOB_PRECISION_FP16;
}
enum job_device { JOB_DEVICE_AUTO, JOB_DEVICE_CPU, JOB_DEVICE_CUDA };
enum job_chief { JOB_CHIEF_UNSET, JOB_CHIEF_TRAIN, JOB_CHIEF_COORDINATE };
enum job_resume { JOB_RESUME_AUTO, JOB_RESUME_NEVER, JOB_RESUME_STEP };

#define JOB_STALENESS_INF UINT64_MAX

/* Whose optimizer: the job's own, or that of a group of a built-in model's
 * parameters and tables. */
enum job_group { JOB_GROUP_OWN, JOB_GROUP_WIDE, JOB_GROUP_DEEP, JOB_GROUPS };

/* Numbers of values of layers. */
struct job_widths {
    uint32_t count, items[JOB_MAX_WIDTHS];
};

struct job_model {
    enum job_model_type type;
    const void *settings; /* the model's own keys, in its own struct; NULL: it
                             has none, or the job was read without schemas */
    uint32_t kept; /* activation_checkpointing: number of hidden layers whose
                      outputs are kept for the backward pass; 0: all */
    enum job_precision precision; /* from bf16.enabled, fp16.enabled, tf32 */
    uint64_t seed;                /* the job's */
    uint32_t group[JOB_GROUPS];   /* the number of each group that has an
                                     optimizer, from 1; else 0 */
};

/* The keys of each type of model (job_schema.h), which the models know
 * (worker/models/model.h). */
struct job_models;

/* Absolute paths, NULL behind the last; of JOB_IDX two, images and labels, else
 * patterns of glob(3). */
struct job_files {
    char *paths[JOB_MAX_FILES];
};

struct job_data {
    enum job_data_format format;
    char *dir; /* folder of relative paths; NULL: the job's */
    struct job_files train, test; /* no test: there is no test set */
    bool shuffle, drop_last, pin_memory;
    uint32_t num_workers, prefetch_factor;

    /* Records: all formats but JOB_IDX. */
    uint32_t shuffle_buffer; /* records */
    bool skip_bad_lines;
    bool header;        /* JOB_CSV: the first record has the names */
    char *columns;      /* JOB_CSV: their names, a JSON array; or NULL */
    char *delimiter;    /* JOB_CSV: one character */
    bool trim;          /* JOB_CSV: spaces around a field are no part of it */
    char *missing;      /* JOB_CSV: words that mean no value, a JSON array; or
                           NULL */
    bool decimal_comma; /* JOB_CSV */
    char *label;        /* a column; NULL: the format's own */
    char *weight;       /* a column; NULL: all samples count alike */
};

struct job_checkpoint {
    char *dir;            /* NULL: no checkpoints */
    uint64_t every_steps; /* 0: off, as for the next three */
    uint64_t every_epochs;
    double every_seconds;
    uint64_t delta_every_steps;
    uint32_t keep;    /* 0: all */
    uint64_t copy_mb; /* 0: half of the free memory */
    enum job_resume resume;
    uint64_t resume_step;
};

struct job_bf16 {
    bool enabled, check_overflow;
};

/* ZeRO by DeepSpeed's keys: how all-reduce partitions optimizer state and
 * gradients. Bucket sizes are in elements. */
struct job_zero {
    uint32_t stage; /* 0, 1 or 2 */
    uint64_t reduce_bucket, allgather_bucket;
    bool overlap;     /* buckets are sent during the backward pass */
    bool offload;     /* state and updates are in host memory */
    bool cpu_offload; /* the older key for the same */
};

/* Seconds. */
struct job_timeouts {
    double join, peer, step, grace, stop, recover, spare, chief;
};

/* NULL: not given; a tracking_uri of "": off. */
struct job_mlflow {
    char *tracking_uri, *experiment, *run_name;
};

/* Numbers of processes, ascending. */
struct job_counts {
    unsigned values[JOB_MAX_COUNTS], count;
};

/* Runs by ps and by all-reduce in turn instead of one run; the fields are the
 * flags of `capstan compare`. 0 and NULL: not given. */
struct job_compare {
    bool on; /* the block is given, even if empty */
    struct job_counts ps, workers;
    uint64_t steps, repeats;
    double limit;
    char *csv, *plot, *tensorboard, *report;
    double link_gbits, latency_us;
};

/* The optimizer of a group, and its rate before scale_lr. The job's own is not
 * here, but `given` says whether there is one. */
struct job_group_optimizer {
    bool given;
    struct optimizer optimizer;
    double lr;
};

enum { JOB_MAX_DEVICES = 16 /* devices of a trainer */ };

struct job {
    struct job_model model;
    struct job_data data;
    bool model_unknown, format_unknown; /* the key's word is none: what depends
                                           on it is not checked */
    bool is_cut;                        /* there was no memory for a value */
    char *features; /* a JSON object (worker/data/features.h), or NULL */
    uint64_t seed;
    bool has_steps; /* else `epochs` is used */
    uint64_t steps, epochs, steps_per_epoch /* 0: from the data */;
    uint32_t train_batch_size, micro_batch, accumulation; /* 0: not given */
    const char *batch_key;    /* the keys that give the batch size */
    double gradient_clipping; /* 0: off */
    struct job_fp16 fp16;
    struct job_bf16 bf16;
    bool tf32;
    struct optimizer optimizer; /* where each group has its own, the first's,
                                   as is schedule.lr */
    struct schedule schedule;   /* before scale_lr is applied */
    struct job_group_optimizer groups[JOB_GROUPS];
    bool optimizer_is_groups; /* OPTIMIZER, which no group takes, is one's */
    bool tf_defaults;         /* keys left out have Keras's values */
    bool scale_lr;
    enum job_strategy strategy;
    enum job_backend backend;     /* of all-reduce */
    enum job_algorithm algorithm; /* of Gloo's all-reduce */
    struct job_zero zero;         /* of all-reduce */
    enum job_recovery recovery;
    uint32_t replicas;       /* of a ps's part, in the memory of another ps */
    uint64_t buddy_steps;    /* between them; 0: the plan has a number */
    uint64_t staleness;      /* JOB_STALENESS_INF: asynchronous */
    uint32_t backup_workers; /* trainers that a round does not await */
    enum job_wire wire;
    enum job_chief chief;
    enum job_device device; /* device of the trainers */
    uint32_t
        devices; /* largest number of devices of a trainer; 0: all available */
    uint32_t threads;    /* compute threads of a trainer */
    uint32_t ps_threads; /* threads of a ps for its blocks; 0: by its host */
    uint32_t workers;    /* 0: as listed in the cluster */
    struct job_checkpoint checkpoint;
    bool tensorboard;
    char *tensorboard_path, *tensorboard_name; /* output_path, job_name */
    uint64_t histogram_every_steps;            /* 0: none */
    char *events_dir;    /* output_path/job_name; NULL unless `tensorboard` */
    char *metrics_jsonl; /* metrics.jsonl, or NULL */
    struct job_mlflow mlflow;
    char *secret_file;        /* security.secret_file, or NULL */
    char *export_path, *init; /* or NULL */
    uint32_t steps_per_print;
    bool nan_skip; /* on_nan: skip */
    struct job_timeouts timeouts;
    struct job_compare compare;
    const struct job_models *models; /* borrowed; NULL: model.* is not read */
    char *text; /* the whole checked job as one JSON object: overrides and
                   defaults applied, paths absolute; job_parse of it gives the
                   same job and the same text */
};

/* The sources of a job; NULL: not given. MODELS outlives the job. If there is
 * only `external`, the keys that have no default get one. Relative paths in any
 * of them start at the job file's folder, or at the current folder if there is
 * no file. */
struct job_source {
    const struct job_models *models;
    const char *path;      /* the job file */
    const char *text;      /* or the text of another process; its paths are
                              absolute */
    const char *deepspeed; /* --deepspeed_config FILE: fills in missing keys,
                              and sets DeepSpeed's defaults */
    const char *const *overrides; /* "key.path=value", applied in order: a JSON
                                     value, else a string; null removes the key;
                                     epochs or steps replaces the other */
    unsigned num_overrides;
    bool external; /* model.type is external if nothing says otherwise */
};

/* Reads and checks the whole job; LOG receives warnings and the keys satisfied
 * by design. STATUS_CONFIG lists every problem with the key's path, the value
 * found, the values allowed and the nearest known key. Files named in the job
 * are not opened. The caller frees *OUT. */
enum status job_load(struct job **out, const struct job_source *source,
                     const struct log *log, struct failure *why) MUST_CHECK;

/* The same from the `text` of another process; its paths are absolute. Without
 * MODELS the keys of the model stay as they are in `text`. */
enum status job_parse(struct job **out, const char *text,
                      const struct job_models *models,
                      struct failure *why) MUST_CHECK;

/* *OUT is the path of security.secret_file in a job that may be wrong in any
 * other way, as by a DeepSpeed file that is missing; NULL if the job has no
 * `security` or cannot be read at all; the caller frees it. False: its
 * `security` names no path. */
bool job_find_secret_file(char **out, const struct job_source *source);

/* Frees *JOB (may be NULL) and clears it. */
void job_free(struct job **job);

/* The device replicas of the model in a run. */
struct job_replicas {
    uint32_t trainers; /* >= 1 */
    uint32_t all;      /* of all trainers together, >= trainers */
    uint32_t each; /* of one trainer; 0: they differ, which asynchronous runs do
                      not allow */
};

/* Solves the batch equation train_batch_size = micro x accumulation x replicas.
 * Replicas are those of all trainers, or with staleness those of one. If only
 * one of the first two is given, accumulation is 1. Fills all three. A
 * contradiction is STATUS_CONFIG with all three and values that would fit. */
enum status job_solve_replicas(struct job *job, struct job_replicas replicas,
                               struct failure *why) MUST_CHECK;

/* The same for TRAINERS with one replica each. */
enum status job_solve_batch(struct job *job, uint32_t trainers,
                            struct failure *why) MUST_CHECK;

/* For use before the number of devices of TRAINERS is known: checks that some
 * number of devices solves the equation. On failure the text is the one for one
 * device a trainer. */
enum status job_check_batch(const struct job *job, uint32_t trainers,
                            struct failure *why) MUST_CHECK;

/* Its word in `data.format`. */
const char *job_data_format_name(enum job_data_format format);

#endif
