/* SPDX-License-Identifier: Apache-2.0 */
/* How busy a GPU is, as NVIDIA's management library (libnvidia-ml) tells: the
 * share of the last moments in which it ran a kernel. */
#ifndef CAPSTAN_GPU_USE_H
#define CAPSTAN_GPU_USE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GPU_USE_MAX_SAMPLES = 8192 };

struct gpu_use_sample {
    int64_t time;
    unsigned percent;
};

struct gpu_use {
    void *library, *device;
    char reason[256]; /* why it cannot be told, or empty */
    struct gpu_use_sample samples[GPU_USE_MAX_SAMPLES]; /* the newest */
    size_t count;                                       /* of all taken */
};

/* ID is the device's, as in device_head.h. Without the library `reason` says
 * so, and nothing is sampled. */
void gpu_use_open(struct gpu_use *use, const char *id);
void gpu_use_close(struct gpu_use *use);

/* Takes one sample, of now. */
void gpu_use_sample(struct gpu_use *use);

/* Mean percent of the samples between START and END, of time_now; NAN: there
 * are none. */
double gpu_use_mean(const struct gpu_use *use, int64_t start, int64_t end);

#endif
