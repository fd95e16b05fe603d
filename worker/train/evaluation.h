/* SPDX-License-Identifier: Apache-2.0 */
/* Loss and accuracy of a model over a range of a test set. */
#ifndef CAPSTAN_EVALUATION_H
#define CAPSTAN_EVALUATION_H

#include "proto/base/status.h"
#include "proto/tensor/memory_footprint.h"
#include "worker/data/dataset.h"
#include "worker/models/mlp.h"
#include "worker/train/batch_prefetch.h"

#include <stdint.h>

enum { EVALUATION_BATCH = MEMORY_FOOTPRINT_EVALUATION };

struct evaluation {
    double loss_sum;
    uint64_t correct, count;
};

/* Samples FIRST to END - 1 of a test set; borrowed. */
struct evaluation_range {
    const struct dataset *test;
    uint64_t first, end;
};

/* Evaluates RANGE. Its samples reach MLP through BATCH_PREFETCH; both are open
 * for batches of EVALUATION_BATCH, and no batch is pending. WEIGHTS: one
 * pointer per parameter, device memory. STATUS_RETRY if there is no memory for
 * a batch; else as ops.event_sync. */
enum status evaluation_run(struct evaluation *out, struct mlp *mlp,
                           struct batch_prefetch *batch_prefetch,
                           const struct evaluation_range *range,
                           float *const *weights,
                           struct failure *why) MUST_CHECK;

#endif
