/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of the host's threads in NVIDIA's profilers. ops_cuda_nvtx.c is built
 * where the toolkit has NVTX's header, else ops_cuda_no_nvtx.c. */
#ifndef CAPSTAN_OPS_CUDA_RANGES_H
#define CAPSTAN_OPS_CUDA_RANGES_H

#include "worker/ops/device.h"

/* device_ops.range. */
void ops_cuda_range(struct device *device, const char *name);

#endif
