/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of one sample: its logits z[out] against its label, the target being
 * 1 at the label and 0 elsewhere. Sums run from the first class to the last,
 * in double. DZ[out] receives FACTOR times the gradient; it may be NULL, or Z
 * itself. LABEL < OUT. */
#ifndef CAPSTAN_LOSS_H
#define CAPSTAN_LOSS_H

#include <stdbool.h>
#include <stdint.h>

/* log(sum(exp(z))) - z[label], with the largest logit taken out first. */
double loss_softmax_cross_entropy(const float *z, uint32_t label, float *dz,
                                  uint32_t out, float factor);

/* The mean over the classes, as torch's BCEWithLogitsLoss takes it. */
double loss_sigmoid_cross_entropy(const float *z, uint32_t label, float *dz,
                                  uint32_t out, float factor);

/* The mean over the classes of (z - target)^2, as torch's MSELoss takes it. */
double loss_mse(const float *z, uint32_t label, float *dz, uint32_t out,
                float factor);

/* The label's logit is the largest, the first of equals. A NaN is not. */
bool loss_is_correct(const float *z, uint32_t label, uint32_t out);

#endif
