/* SPDX-License-Identifier: Apache-2.0 */
/* The job file: what is trained, on what, how. Every key, its type, range and
 * default: docs/job.md. Only the chief reads the file; others get `text`. */
#ifndef CAPSTAN_JOB_H
#define CAPSTAN_JOB_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cli/compare_options.h"
#include "proto/config/job/optimizer.h"

#include <stdbool.h>
#include <stdint.h>

enum { JOB_MAX_LAYERS = 64, JOB_MAX_FILES = 64 };

enum job_model_type { JOB_MLP };
enum job_data_format { JOB_IDX };
enum job_activation { JOB_RELU, JOB_TANH, JOB_SIGMOID, JOB_IDENTITY };
enum job_loss { JOB_SOFTMAX_CROSS_ENTROPY, JOB_SIGMOID_CROSS_ENTROPY, JOB_MSE };
enum job_strategy { JOB_STRATEGY_UNSET, JOB_PS, JOB_ALLREDUCE };
enum job_backend { JOB_BACKEND_AUTO, JOB_GLOO, JOB_NCCL };
enum job_algorithm { JOB_RING, JOB_HALVING_DOUBLING };
/* How gradients and weights travel; sums, masters and files are float32. */
enum job_wire { JOB_WIRE_FLOAT32, JOB_WIRE_BF16 };
/* What the operands of matrix products are rounded to. */
enum job_precision {
    JOB_PRECISION_FP32,
    JOB_PRECISION_BF16,
    JOB_PRECISION_FP16
};
enum job_device { JOB_DEVICE_AUTO, JOB_DEVICE_CPU, JOB_DEVICE_CUDA };
enum job_chief { JOB_CHIEF_UNSET, JOB_CHIEF_TRAIN, JOB_CHIEF_COORDINATE };
enum job_resume { JOB_RESUME_AUTO, JOB_RESUME_NEVER, JOB_RESUME_STEP };

#define JOB_STALENESS_INF UINT64_MAX

struct job_model {
    enum job_model_type type;
    uint32_t num_layers; /* entries of `layers`: inputs, hidden, outputs */
    uint32_t layers[JOB_MAX_LAYERS];
    enum job_activation activation;
    enum job_loss loss;
    uint32_t kept; /* activation_checkpointing: hidden layers whose outputs stay
                      for the backward pass; 0: all */
    enum job_precision precision; /* as bf16 and fp16 say */
};

/* Paths are absolute. Images and labels of each set, as in the IDX files. */
struct job_data {
    enum job_data_format format;
    char
        *dir; /* where relative names of the four are; NULL: the job's folder */
    char *train_images, *train_labels, *test_images, *test_labels; /* NULL: no
                                                                      test */
    bool shuffle, drop_last, pin_memory;
    uint32_t num_workers, prefetch_factor;
};

struct job_checkpoint {
    char *dir;            /* NULL: none is written */
    uint64_t every_steps; /* 0: off, as the next two */
    uint64_t every_epochs;
    double every_seconds;
    uint32_t keep;    /* 0: all */
    uint64_t copy_mb; /* 0: half of the free memory */
    enum job_resume resume;
    uint64_t resume_step;
};

/* fp16 training, by DeepSpeed's keys (proto/tensor/loss_scaler.h). */
struct job_fp16 {
    bool enabled;
    double loss_scale; /* 0: dynamic */
    uint32_t initial_scale_power, hysteresis;
    uint64_t loss_scale_window;
    bool consecutive_hysteresis;
    double min_loss_scale;
};

struct job_bf16 {
    bool enabled, check_overflow;
};

/* ZeRO, by DeepSpeed's keys: how all-reduce shares out state and gradients.
 * Bucket sizes in elements. */
struct job_zero {
    uint32_t stage; /* 0, 1 or 2 */
    uint64_t reduce_bucket, allgather_bucket;
    bool overlap;     /* buckets leave during the backward pass */
    bool offload;     /* state is the host's, and updates are made there */
    bool cpu_offload; /* the same, as an older DeepSpeed says it */
};

/* Seconds. */
struct job_timeouts {
    double join, peer, step, grace, stop;
};

/* Runs by ps and by all-reduce in turns instead of one: what the flags of
 * `capstan compare` are. 0 and NULL: not given. */
struct job_compare {
    bool on; /* the block is there, if only as an empty one */
    struct compare_counts ps, workers;
    uint64_t steps, repeats;
    double limit;
    char *csv, *plot;
    double link_gbits, latency_us;
};

enum { JOB_MAX_DEVICES = 16 /* that a trainer computes on */ };

struct job {
    struct job_model model;
    struct job_data data;
    uint64_t seed;
    bool has_steps; /* else `epochs` counts */
    uint64_t steps, epochs, steps_per_epoch /* 0: from the data */;
    uint32_t train_batch_size, micro_batch, accumulation; /* 0: not given */
    const char *batch_key;    /* by which the job says how large a batch is */
    double gradient_clipping; /* 0: off */
    struct job_fp16 fp16;
    struct job_bf16 bf16;
    struct optimizer optimizer;
    struct schedule schedule; /* scale_lr is not yet applied */
    bool scale_lr;
    enum job_strategy strategy;
    enum job_backend backend;     /* of all-reduce */
    enum job_algorithm algorithm; /* of Gloo's all-reduce */
    struct job_zero zero;         /* of all-reduce */
    uint64_t staleness;           /* JOB_STALENESS_INF: asynchronous */
    enum job_wire wire;
    enum job_chief chief;
    enum job_device device; /* that trainers compute on */
    uint32_t devices;       /* at most so many of them a trainer; 0: all that
                               it may take */
    uint32_t threads;       /* compute threads a trainer */
    uint32_t ps_threads;    /* that work on a ps's blocks; 0: by its host */
    uint32_t workers;       /* 0: as the cluster lists */
    struct job_checkpoint checkpoint;
    bool tensorboard;
    char *tensorboard_path, *tensorboard_name; /* output_path, job_name */
    char *events_dir; /* output_path/job_name; NULL unless `tensorboard` */
    char *export_path, *init; /* or NULL */
    uint32_t steps_per_print;
    bool nan_skip; /* on_nan: skip */
    struct job_timeouts timeouts;
    struct job_compare compare;
    char *text; /* the whole checked job as one JSON object: overrides and
                   defaults applied, paths absolute; job_parse of it gives this
                   job and this text again */
};

/* Where the pieces of a job come from. A NULL is not given. Relative paths in
 * any of them start at the job file's folder, else at the current one. */
struct job_source {
    const char *path;      /* the job file */
    const char *deepspeed; /* --deepspeed_config FILE: fills in what the job
                              leaves out, and DeepSpeed's defaults count */
    const char *const *overrides; /* "key.path=value", in order: a JSON value,
                                     else a string; null takes the key out,
                                     epochs or steps replaces the other */
    unsigned num_overrides;
};

/* Reads and checks everything before it returns; LOG receives warnings and
 * what is satisfied by design. STATUS_CONFIG lists all that is wrong, each with
 * the key's path, what was found, what is allowed, the nearest known key. No
 * file that the job names is looked at. *OUT is the caller's. */
enum status job_load(struct job **out, const struct job_source *source,
                     const struct log *log, struct failure *why) MUST_CHECK;

/* The same from `text` of another process; paths in it are absolute. */
enum status job_parse(struct job **out, const char *text,
                      struct failure *why) MUST_CHECK;

/* Frees *JOB (may be NULL) and clears it. */
void job_free(struct job **job);

/* Who computes in a run: the replicas of the model, one a device. */
struct job_replicas {
    uint32_t trainers; /* >= 1 */
    uint32_t all;      /* of all trainers, >= trainers */
    uint32_t each;     /* of one; 0: they differ, which with staleness they do
                          not */
};

/* Solves the batch equation: train_batch_size = micro x accumulation x
 * replicas, those of all trainers, with staleness those of one. Where only one
 * of the first two is given, accumulation is 1. Fills all three; a
 * contradiction is STATUS_CONFIG printing all three, and what would fit. */
enum status job_solve_replicas(struct job *job, struct job_replicas replicas,
                               struct failure *why) MUST_CHECK;

/* The same for TRAINERS of one replica. */
enum status job_solve_batch(struct job *job, uint32_t trainers,
                            struct failure *why) MUST_CHECK;

/* Before the devices of TRAINERS are known: is there a number of them by which
 * the equation can be solved? Fails as for one a trainer. */
enum status job_check_batch(const struct job *job, uint32_t trainers,
                            struct failure *why) MUST_CHECK;

#endif
