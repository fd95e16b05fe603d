/* SPDX-License-Identifier: Apache-2.0 */
/* The loss scale of fp16 training: the factor of the loss before the backward
 * pass, which keeps the gradients of activations within fp16's range, and its
 * update after each step. Pure.
 *
 * The steps are those of DeepSpeed's DynamicLossScaler
 * (deepspeed/runtime/fp16/loss_scaler.py, version 0.16.2) with two exceptions:
 * at an overflow at the minimum scale DeepSpeed raises an error, and here the
 * scale becomes 0; and no scale exceeds the largest power of two in float32. */
#ifndef CAPSTAN_LOSS_SCALER_H
#define CAPSTAN_LOSS_SCALER_H

#include <stdbool.h>
#include <stdint.h>

/* fp16 training in a job, by DeepSpeed's keys. */
struct job_fp16 {
    bool enabled;
    double loss_scale; /* 0: dynamic */
    uint32_t initial_scale_power, hysteresis;
    uint64_t loss_scale_window;
    bool consecutive_hysteresis;
    double min_loss_scale;
};

/* Saved with the weights. */
struct loss_scaler {
    double scale;  /* of the next step; 0: an overflow occurred at the minimum
                      scale */
    uint64_t good; /* steps since the last overflow or doubling */
    uint32_t hysteresis; /* overflows left before the scale is halved; 0: the
                            scale is fixed */
    uint64_t skipped;    /* steps that overflowed since the first */
};

/* The state at the start of a run. If fp16 is not enabled the scale is 1. */
struct loss_scaler loss_scaler_init(const struct job_fp16 *fp16);

/* The state of a run that resumes from SAVED: a fixed scale is the job's, a
 * dynamic one continues. */
struct loss_scaler loss_scaler_restore(const struct job_fp16 *fp16,
                                       const struct loss_scaler *saved);

/* A step has ended with finite gradients. */
void loss_scaler_no_overflow(struct loss_scaler *scaler,
                             const struct job_fp16 *fp16);

/* A step is skipped because its gradients overflowed at scale AT. If AT is
 * above the present scale, the overflow is only counted: with staleness several
 * trainers may overflow at the previous scale. */
void loss_scaler_overflow(struct loss_scaler *scaler,
                          const struct job_fp16 *fp16, double at);

#endif
