/* SPDX-License-Identifier: Apache-2.0 */
/* The losses' arithmetic for one logit, in the order written here on every
 * device; loss.h defines the sums. A file for another device may define
 * LOSS_ELEMENT as its own function qualifiers before it includes this one. */
#ifndef CAPSTAN_LOSS_ELEMENT_H
#define CAPSTAN_LOSS_ELEMENT_H

#include "proto/job/job.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef LOSS_ELEMENT
#define LOSS_ELEMENT static inline
#endif

/* A NaN is ignored here; it shows in the sum. */
LOSS_ELEMENT float loss_max(float best, float z) {
    return z > best ? z : best;
}

/* exp(z - top), which does not overflow. */
LOSS_ELEMENT float loss_exp(float z, float top) {
    return expf(z - top);
}

/* max(z, 0) - z * target + log(1 + exp(-|z|)): no exponential overflows.
 * *DERIVATIVE: its derivative. */
LOSS_ELEMENT float loss_sigmoid(float z, float target, float *derivative) {
    float power = expf(-fabsf(z));
    float positive = z < 0 ? 0 : z;
    float probability = (z < 0 ? power : 1) / (1 + power);
    *derivative = probability - target;
    return positive - z * target + log1pf(power);
}

/* With one output, and not by softmax, a label is not a class but the bits of a
 * float, the target. */
LOSS_ELEMENT bool loss_has_target(enum job_loss kind, uint32_t out) {
    return out == 1 && kind != JOB_SOFTMAX_CROSS_ENTROPY;
}

/* The target of logit J by sigmoid cross-entropy or squared error. */
LOSS_ELEMENT float loss_target(uint32_t label, uint32_t j, uint32_t out) {
    float target;
    memcpy(&target, &label, sizeof target);
    return out == 1 ? target : (float)(j == label);
}

/* Is the one logit on its TARGET's side? Of squared errors none is. */
LOSS_ELEMENT bool loss_hits_target(enum job_loss kind, float z, float target) {
    return kind == JOB_SIGMOID_CROSS_ENTROPY && (z > 0) == (target > 0.5f);
}

/* True if the label's LABEL_LOGIT comes before logit Z of class J: it is
 * larger, or equal and no later. The argmax is the label if this holds for
 * every class. */
LOSS_ELEMENT bool loss_label_outranks(float label_logit, uint32_t label,
                                      float z, uint32_t j) {
    return j < label ? label_logit > z : label_logit >= z;
}

#endif
