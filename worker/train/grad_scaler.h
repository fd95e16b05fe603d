/* SPDX-License-Identifier: Apache-2.0 */
/* Mixed precision in a trainer's step (docs/precision.md): by how much its loss
 * is multiplied, and what its gradients are looked at and divided by before
 * they leave. Where neither fp16 nor a check is on, nothing is done. */
#ifndef CAPSTAN_GRAD_SCALER_H
#define CAPSTAN_GRAD_SCALER_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/job/job.h"
#include "proto/tensor/layout.h"
#include "proto/tensor/loss_scaler.h"

#include <stdbool.h>
#include <stdint.h>

struct grad_scaler {
    const struct job *job; /* borrowed, as LOG */
    const struct log *log;
    bool logs_changes;         /* for all trainers, of what the scale becomes */
    struct loss_scaler scaler; /* of this step */
};

/* Are gradients looked at as a whole, before any of them leaves? */
bool grad_scaler_checks_gradients(const struct job *job);

/* Does a loss that is not finite lower the scale, as an overflow does? */
bool grad_scaler_is_dynamic(const struct job *job);

/* STEP has the scale NOW of the run. STATUS_FAILED when there is none left. */
enum status grad_scaler_begin(struct grad_scaler *grad_scaler,
                              const struct loss_scaler *now, uint64_t step,
                              struct failure *why) MUST_CHECK;

/* What the loss of this step is multiplied by; 1 but in fp16. */
float grad_scaler_factor(const struct grad_scaler *grad_scaler);

/* What its gradients are multiplied by: the inverse of that, exact for powers
 * of two. */
float grad_scaler_inverse(const struct grad_scaler *grad_scaler);

/* Multiplies GRADIENTS (a pointer a parameter of LAYOUT) by the inverse of the
 * step's scale. False, and some are left
 * as they were, when one of them is infinite or no number. */
bool grad_scaler_unscale(const struct grad_scaler *grad_scaler,
                         const struct layout *layout, float *const *gradients);

/* Says that STEP is skipped. */
void grad_scaler_log_skipped(const struct grad_scaler *grad_scaler,
                             uint64_t step);

#endif
