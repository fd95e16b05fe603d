/* SPDX-License-Identifier: Apache-2.0 */
/* capstan-cuda.so over stand-ins for CUDA's libraries
 * (tests/gpu/cuda_streams.h), in this process. */
#ifndef CAPSTAN_EMULATED_DEVICE_H
#define CAPSTAN_EMULATED_DEVICE_H

#include "tests/gpu/cuda_streams.h"
#include "worker/ops/device.h"

/* Its table, beside the program under test (CAPSTAN, else build/capstan) in
 * emulated/; NULL where it is not built. */
const struct device_ops *emulated_device_ops(void);

/* What the host has called of CUDA since the process began. */
struct cuda_streams_counts emulated_device_counts(void);

#endif
