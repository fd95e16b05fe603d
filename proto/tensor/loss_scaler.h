/* SPDX-License-Identifier: Apache-2.0 */
/* The loss scale of fp16 training: by how much the loss is multiplied before
 * the backward pass, so that gradients of activations are neither lost below
 * fp16's range nor beyond it, and what it becomes after each step. Pure.
 *
 * Step by step as DeepSpeed's DynamicLossScaler
 * (deepspeed/runtime/fp16/loss_scaler.py, version 0.16.2), but for two ends:
 * where that raises an error, at an overflow at the least scale, the scale
 * becomes 0, and no scale grows beyond the largest power of two in float32. */
#ifndef CAPSTAN_LOSS_SCALER_H
#define CAPSTAN_LOSS_SCALER_H

#include "proto/config/job/job.h"

#include <stdbool.h>
#include <stdint.h>

/* What is saved with the weights that it belongs to. */
struct loss_scaler {
    double scale;        /* of the next step; 0: none is small enough */
    uint64_t good;       /* steps since an overflow, or a doubling */
    uint32_t hysteresis; /* overflows that halve the scale; 0: it is fixed */
    uint64_t skipped;    /* steps that overflowed, since the first */
};

/* At the start of a run. Where fp16 is not enabled the scale is 1. */
struct loss_scaler loss_scaler_init(const struct job_fp16 *fp16);

/* At the start of a run that goes on from where another left SAVED: a fixed
 * scale is the job's, a dynamic one goes on. */
struct loss_scaler loss_scaler_restore(const struct job_fp16 *fp16,
                                       const struct loss_scaler *saved);

/* A step is over, and its gradients were finite. */
void loss_scaler_no_overflow(struct loss_scaler *scaler,
                             const struct job_fp16 *fp16);

/* A step is skipped, as its gradients overflowed at scale AT. Where that is
 * above the present one it says nothing of this, and is only counted: with
 * staleness several trainers overflow at the scale of before. */
void loss_scaler_overflow(struct loss_scaler *scaler,
                          const struct job_fp16 *fp16, double at);

#endif
