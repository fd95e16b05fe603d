/* SPDX-License-Identifier: Apache-2.0 */
/* One device replica of a trainer: its samples and its part of a step. Used by
 * one thread at a time. */
#ifndef CAPSTAN_DEVICE_REPLICA_H
#define CAPSTAN_DEVICE_REPLICA_H

#include "core/base/status.h"
#include "proto/job/job.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/train/arena.h"
#include "worker/train/embedding.h"
#include "worker/train/executor.h"

#include <stdbool.h>
#include <stdint.h>

struct trace;

/* All zero: not opened. */
struct device_replica {
    struct executor executor;
    struct loader *loader;
    uint64_t next; /* micro batch */
    struct {       /* of device_replica_look_ahead */
        enum status status;
        struct failure why;
        int64_t input; /* ns that it has waited for samples */
    } ahead;
    /* Own gradients; all zero: the trainer's arena is used. */
    struct arena arena;
};

/* A step's settings, and a replica's callbacks to its trainer. */
struct device_replica_step {
    const struct job *job;
    float factor; /* factor of the loss */
    bool early;   /* gradients are announced as soon as they are complete */
    bool reduce_on_device; /* gradients stay on the device and are summed there
                            */
    struct embedding *embedding; /* NULL: the model has no tables */
    uint64_t clock;              /* of the reader: the step's, less one */
    bool early_rows; /* the next step's may be read before this step's push */
    struct trace *trace; /* NULL: nothing is recorded */
    void *context;
    /* Waits for PARAMETER's weights in the arena; false: they will not come. */
    bool (*need)(void *context, uint32_t parameter);
    /* PARAMETER's gradient is in the arena; called if EARLY and the device's
     * memory is the host's. */
    void (*done)(void *context, uint32_t parameter);
    /* False if the step's result is not needed any more. */
    bool (*should_continue)(void *context);
};

struct device_replica_result {
    double loss;            /* sum over the samples, finite or not */
    bool nonfinite;         /* the sum is not finite */
    bool empty;             /* the share has no more samples in this epoch */
    double finite_loss_sum; /* the sum over micro batches with finite loss, */
    uint64_t samples, correct;
    uint64_t bad_lines; /* left out of the micro batches */
    double last_loss;   /* the sum over the last such batch, */
    uint64_t last_samples;
    int64_t input; /* ns spent waiting for samples */
};

/* Opens the loader of SAMPLES of DATASET from micro batch FIRST on, with the
 * columns of the executor's model. Borrows DATASET. */
enum status device_replica_load(struct device_replica *replica,
                                const struct dataset *dataset,
                                const struct sampler_options *samples,
                                uint64_t first, const struct job_data *data,
                                struct failure *why) MUST_CHECK;

/* Waits for enqueued work and closes all; REPLICA may be all zero. */
void device_replica_close(struct device_replica *replica);

/* Forward and backward over the micro batches of a step. Unless
 * RESULT->nonfinite or RESULT->empty is set or the step was aborted, gradients
 * are those of the mean of the batches' mean losses, times the factor: in the
 * arena, being copied there, or on the device. */
enum status device_replica_compute(struct device_replica *replica,
                                   const struct device_replica_step *step,
                                   struct device_replica_result *result,
                                   struct failure *why) MUST_CHECK;

/* Leaves out the samples of the next COUNT micro batches. */
enum status device_replica_skip(struct device_replica *replica, uint64_t count,
                                struct failure *why) MUST_CHECK;

/* Between two steps: reads the next one's first micro batch and requests its
 * rows, for a reader of STEP's clock. What fails is reported by the next
 * step. */
void device_replica_look_ahead(struct device_replica *replica,
                               const struct device_replica_step *step);

#endif
