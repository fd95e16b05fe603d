/* SPDX-License-Identifier: Apache-2.0 */
/* One of a trainer's replicas of the model, on a device of its own: its
 * samples, and what it computes of a step. Used by one thread at a time. */
#ifndef CAPSTAN_DEVICE_REPLICA_H
#define CAPSTAN_DEVICE_REPLICA_H

#include "proto/base/status.h"
#include "proto/config/job/job.h"
#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/train/arena.h"
#include "worker/train/executor.h"

#include <stdbool.h>
#include <stdint.h>

/* All zero: not opened. */
struct device_replica {
    struct executor executor;
    struct loader *loader;
    struct arena arena; /* beside the trainer's, or all zero: that is used */
};

/* What a replica asks of its trainer in a step, and tells it. */
struct device_replica_step {
    const struct job *job;
    float factor; /* that the loss is multiplied by */
    bool early;   /* gradients leave as they are complete */
    bool
        reduce_on_device; /* gradients stay on the device, to be summed there */
    void *context;
    /* Waits for PARAMETER's weights in the arena; false: they do not come. */
    bool (*need)(void *context, uint32_t parameter);
    /* PARAMETER's gradient is in the arena; called where the device's memory is
     * the host's, if it is EARLY. */
    void (*done)(void *context, uint32_t parameter);
    /* Has the step still a meaning? */
    bool (*should_continue)(void *context);
};

struct device_replica_result {
    double loss;    /* sum over the samples, whatever it is */
    bool nonfinite; /* it is not finite */
    double finite;  /* of the micro batches whose loss is: the sum, */
    uint64_t samples, correct;
    double last_loss; /* of the last one: the sum, */
    uint64_t last_samples;
    int64_t input; /* ns that were waited for samples */
};

/* Opens what delivers SAMPLES of DATASET from micro batch FIRST on. Borrows
 * DATASET. */
enum status device_replica_load(struct device_replica *device_replica,
                                const struct dataset *dataset,
                                const struct sampler_options *samples,
                                uint64_t first, const struct job_data *data,
                                struct failure *why) MUST_CHECK;

/* Waits for what is under way and closes all; REPLICA may be all zero. */
void device_replica_close(struct device_replica *device_replica);

/* Forward and backward over the micro batches of a step. Unless RESULT is
 * poisoned, or the step has lost its meaning, gradients are those of their mean
 * losses' mean, times the factor: in the arena, on their way there, or on the
 * device. */
enum status device_replica_compute(struct device_replica *device_replica,
                                   const struct device_replica_step *step,
                                   struct device_replica_result *result,
                                   struct failure *why) MUST_CHECK;

#endif
