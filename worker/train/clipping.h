/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's own gradient clipped by its norm: with staleness no ps sees the
 * sum of all. */
#ifndef CAPSTAN_CLIPPING_H
#define CAPSTAN_CLIPPING_H

#include "proto/tensor/layout.h"
#include "proto/tensor/rule.h"

/* Where the 2-norm of GRADIENTS (a pointer a parameter of LAYOUT) is above
 * LIMIT, scales them by LIMIT / (norm + 1e-6), as
 * torch.nn.utils.clip_grad_norm_ does. The norm is in double, block after
 * block in the plan's order. LOOPS: NULL for the best of this processor. */
void clipping_apply(const struct layout *layout, float *const *gradients,
                    double limit, const struct rule_loops *loops);

#endif
