/* SPDX-License-Identifier: Apache-2.0 */
/* How busy a GPU (worker/ops/nvml.h) was meanwhile. */
#ifndef CAPSTAN_GPU_USE_H
#define CAPSTAN_GPU_USE_H

#include "worker/ops/nvml.h"

#include <stddef.h>
#include <stdint.h>

enum { GPU_USE_MAX_SAMPLES = 8192 };

struct gpu_use_sample {
    int64_t time;
    unsigned percent;
};

struct gpu_use {
    struct nvml_device device;
    struct gpu_use_sample samples[GPU_USE_MAX_SAMPLES]; /* the newest */
    size_t count;                                       /* of all taken */
};

/* Takes one sample, of now; none of a device that does not tell. */
void gpu_use_sample(struct gpu_use *use);

/* Mean percent of the samples between START and END, of time_now; NAN: there
 * are none. */
double gpu_use_mean(const struct gpu_use *use, int64_t start, int64_t end);

#endif
