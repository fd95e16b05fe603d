/* What a GPU does to weights, gradients and state beside a pass: for the table
 * in ops_cuda.c, as worker/ops.h says. */
#ifndef CAPSTAN_OPS_CUDA_UPDATE_H
#define CAPSTAN_OPS_CUDA_UPDATE_H

#include "worker/ops.h"

#include <cuda_runtime.h>

/* Memory of the device for an update's constants; all updates that have it are
 * put on one stream. */
struct rule_constants;

cudaError_t ops_cuda_update_find_overflow(cudaStream_t stream, const float *x,
                                          size_t count, uint32_t *found);
cudaError_t ops_cuda_update_rule(cudaStream_t stream,
                                 struct rule_constants *constants,
                                 const struct optimizer *rule,
                                 const struct rule_update *update);

#endif
