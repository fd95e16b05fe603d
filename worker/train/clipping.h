/* SPDX-License-Identifier: Apache-2.0 */
/* Clips a worker's own gradient by its norm. With staleness this is needed
 * because no ps sees the sum over all workers. */
#ifndef CAPSTAN_CLIPPING_H
#define CAPSTAN_CLIPPING_H

#include "core/tensor/layout.h"
#include "core/tensor/rule.h"
#include "worker/exchange/client/row_batch.h"

/* If the 2-norm of GRADIENTS (one pointer per parameter of LAYOUT) and of ROWS
 * (of tables; NULL: none) is above LIMIT, scales them by LIMIT / (norm + 1e-6),
 * as torch.nn.utils.clip_grad_norm_ does. The norm is summed in double, block
 * by block in the plan's order. LOOPS: NULL for the best on this CPU. */
void clipping_apply(const struct layout *layout, float *const *gradients,
                    struct row_batch *rows, double limit,
                    const struct rule_loops *loops);

#endif
