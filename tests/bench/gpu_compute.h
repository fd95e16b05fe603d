/* SPDX-License-Identifier: Apache-2.0 */
/* A model's step on a device with nothing around it, and copies to it and from
 * it: what whole runs are held against. */
#ifndef CAPSTAN_GPU_COMPUTE_H
#define CAPSTAN_GPU_COMPUTE_H

#include "core/base/status.h"
#include "proto/job/job.h"
#include "worker/ops/local_device.h"

#include <stdint.h>

/* Of laps of several steps each. */
struct gpu_compute_figure {
    double median, least, most; /* seconds a step */
};

/* Measures forward and backward of MODEL over batches of N samples that are on
 * DEVICE, one step behind the other, for SECONDS; UPDATES: and SGD's update of
 * the weights there, which is the ps's affair in a run. */
enum status gpu_compute_step(struct gpu_compute_figure *out,
                             const struct local_device *device,
                             const struct job_model *model, uint32_t n,
                             bool updates, double seconds,
                             struct failure *why) MUST_CHECK;

/* GB/s (10^9) between pinned memory of the host and the device; NAN where both
 * are one. */
struct gpu_compute_copies {
    double up, down;
    double both; /* of each direction, with the other under way */
};

enum status gpu_compute_copies(struct gpu_compute_copies *out,
                               const struct local_device *device,
                               double seconds, struct failure *why) MUST_CHECK;

#endif
