/* SPDX-License-Identifier: Apache-2.0 */
/* Mixed precision in a trainer's step (docs/precision.md): the factor of the
 * loss, and the check and division of gradients before they are announced. Does
 * nothing unless fp16 or an overflow check is enabled. */
#ifndef CAPSTAN_GRAD_SCALER_H
#define CAPSTAN_GRAD_SCALER_H

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/tensor/layout.h"
#include "core/tensor/loss_scaler.h"
#include "proto/job/job.h"
#include "worker/exchange/client/row_batch.h"

#include <stdbool.h>
#include <stdint.h>

struct grad_scaler {
    const struct job *job; /* borrowed, as is LOG */
    const struct log *log;
    bool logs_changes; /* logs scale changes on behalf of all trainers */
    struct loss_scaler scaler; /* of this step */
};

/* True if all gradients are checked before any is announced. */
bool grad_scaler_checks_gradients(const struct job *job);

/* True if a non-finite loss lowers the scale, as an overflow does. */
bool grad_scaler_is_dynamic(const struct job *job);

/* Begins STEP with the run's scale NOW. STATUS_FAILED if the scale is below the
 * minimum. */
enum status grad_scaler_begin(struct grad_scaler *scaler,
                              const struct loss_scaler *now, uint64_t step,
                              struct failure *why) MUST_CHECK;

/* The factor of this step's loss; 1 unless fp16. */
float grad_scaler_factor(const struct grad_scaler *scaler);

/* The factor of its gradients: the inverse of the loss factor, exact for powers
 * of two. */
float grad_scaler_inverse(const struct grad_scaler *scaler);

/* Multiplies GRADIENTS (one pointer per parameter of LAYOUT) and those of ROWS
 * (of tables; NULL: none) by the inverse of the step's scale. If one is
 * infinite or NaN, returns false and leaves some unchanged. */
bool grad_scaler_unscale(const struct grad_scaler *scaler,
                         const struct layout *layout, float *const *gradients,
                         struct row_batch *rows);

/* Logs that STEP is skipped. */
void grad_scaler_log_skipped(const struct grad_scaler *scaler, uint64_t step);

#endif
