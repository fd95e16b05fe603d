/* SPDX-License-Identifier: Apache-2.0 */
/* Mixed precision in a trainer's step (docs/precision.md): by how much its loss
 * is multiplied, and what its gradients are looked at and divided by before
 * they leave. Where neither fp16 nor a check is on, nothing is done. */
#ifndef CAPSTAN_SCALING_H
#define CAPSTAN_SCALING_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/job/job.h"
#include "proto/tensor/layout.h"
#include "proto/tensor/loss_scaler.h"

#include <stdbool.h>
#include <stdint.h>

struct scaling {
    const struct job *job; /* borrowed, as LOG */
    const struct log *log;
    bool speaks;               /* for all trainers, of what the scale becomes */
    struct loss_scaler scaler; /* of this step */
};

/* Are gradients looked at as a whole, before any of them leaves? */
bool scaling_checks(const struct job *job);

/* Does a loss that is not finite lower the scale, as an overflow does? */
bool scaling_is_dynamic(const struct job *job);

/* STEP has the scale NOW of the run. STATUS_FAILED when there is none left. */
enum status scaling_begin(struct scaling *scaling,
                          const struct loss_scaler *now, uint64_t step,
                          struct failure *why) MUST_CHECK;

/* What the loss of this step is multiplied by; 1 but in fp16. */
float scaling_factor(const struct scaling *scaling);

/* What its gradients are multiplied by: the inverse of that, exact for powers
 * of two. */
float scaling_inverse(const struct scaling *scaling);

/* Multiplies GRADIENTS (a pointer a parameter of LAYOUT) by the inverse of the
 * step's scale. False, and some are left
 * as they were, when one of them is infinite or no number. */
bool scaling_undo(const struct scaling *scaling, const struct layout *layout,
                  float *const *gradients);

/* Says that STEP is skipped. */
void scaling_say_skipped(const struct scaling *scaling, uint64_t step);

#endif
