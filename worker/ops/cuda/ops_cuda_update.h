/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's operations on weights, gradients and state outside a pass: functions
 * of worker/ops/device.h for the table in ops_cuda.c. They are not captured: an
 * open capture ends before them. */
#ifndef CAPSTAN_OPS_CUDA_UPDATE_H
#define CAPSTAN_OPS_CUDA_UPDATE_H

#include "worker/ops/device.h"

/* Contracts: the functions of the same names in struct device_ops. */
void ops_cuda_update_copy(struct device *device, enum device_stream stream,
                          void *to, const void *from, size_t bytes);
void ops_cuda_update_fill(struct device *device, enum device_stream stream,
                          float *x, size_t count, float value);
void ops_cuda_update_scale(struct device *device, enum device_stream stream,
                           float *x, size_t count, float by);
void ops_cuda_update_find_overflow(struct device *device,
                                   enum device_stream stream, const float *x,
                                   size_t count, uint32_t *found);
void ops_cuda_update_square_sums(struct device *device,
                                 enum device_stream stream, const float *x,
                                 size_t count, float scale, double *pieces);
void ops_cuda_update_reduce_sum(struct device *device,
                                enum device_stream stream, const double *pieces,
                                size_t count, double *sum);
void ops_cuda_update_clip(struct device *device, enum device_stream stream,
                          const double *squares, size_t count, size_t step,
                          double limit, float *factor);
void ops_cuda_update_rule(struct device *device, enum device_stream stream,
                          const struct optimizer *rule,
                          const struct rule_update *update,
                          const float *factor);

#endif
