/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of one sample: its logits z[out] against its label; the target is 1 at
 * the label and 0 elsewhere, or with one output the label's bits as a float
 * (loss_target). Sums run from the first class to the last, in
 * double. DZ[out] receives FACTOR times the gradient; it may be NULL, or Z
 * itself. A class is below OUT. */
#ifndef CAPSTAN_LOSS_H
#define CAPSTAN_LOSS_H

#include <stdbool.h>
#include <stdint.h>

/* log(sum(exp(z))) - z[label], computed with the largest logit subtracted. */
double loss_softmax_cross_entropy(const float *z, uint32_t label, float *dz,
                                  uint32_t out, float factor);

/* The mean over the classes, as torch's BCEWithLogitsLoss. */
double loss_sigmoid_cross_entropy(const float *z, uint32_t label, float *dz,
                                  uint32_t out, float factor);

/* The mean over the classes of (z - target)^2, as torch's MSELoss. */
double loss_mse(const float *z, uint32_t label, float *dz, uint32_t out,
                float factor);

/* True if the label's logit is the largest, of equal ones the first; false if
 * it is NaN. */
bool loss_is_correct(const float *z, uint32_t label, uint32_t out);

#endif
