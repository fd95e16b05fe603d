/* SPDX-License-Identifier: Apache-2.0 */
/* How busy a GPU is and how much of its memory is in use, as NVIDIA's
 * management library (libnvidia-ml) tells. A call may take milliseconds. */
#ifndef CAPSTAN_NVML_H
#define CAPSTAN_NVML_H

#include <stdbool.h>
#include <stdint.h>

struct nvml_device {
    void *library, *handle;
    char reason[256]; /* why it cannot be told, or empty */
};

struct nvml_use {
    unsigned percent; /* of the last moments, in which it ran a kernel */
    uint64_t memory;  /* bytes in use */
};

/* ID is the device's, as in device_head.h, so that it is the same one whatever
 * CUDA_VISIBLE_DEVICES is. False: `reason` says why nothing can be told. Call
 * nvml_close in any case. */
bool nvml_open(struct nvml_device *device, const char *id);
void nvml_close(struct nvml_device *device);

/* False: it does not tell. */
bool nvml_ask(const struct nvml_device *device, struct nvml_use *out);

#endif
