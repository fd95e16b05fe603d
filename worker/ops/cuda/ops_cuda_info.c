/* SPDX-License-Identifier: Apache-2.0 */
/* Lists GPUs and the ones that this build has code for. */
#include "worker/ops/cuda/ops_cuda_internal.h"

#include <stdio.h>

/* CUDA_OLDEST, from the build: the lowest compute capability with code, in
 * tenths. */
enum { MIN_CAPABILITY = CUDA_OLDEST, MIN_CAPABILITY_ANY_BUILD = 70 };

enum status ops_cuda_info_check(struct failure *why) {
    int devices = 0, driver = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error && (cudaDriverGetVersion(&driver) || !driver))
        return status_fail(why, FAILURE_NO_DEVICE,
                           "no NVIDIA driver on this host (libcuda.so.1)");
    if (error)
        return status_fail(why, FAILURE_NO_DEVICE,
                           "no GPU that CUDA can use: %s",
                           cudaGetErrorString(error));
    if (!devices)
        return status_fail(why, FAILURE_NO_DEVICE, "no GPU on this host");
    return STATUS_OK;
}

uint32_t ops_cuda_info_count(void) {
    int devices = 0;
    return cudaGetDeviceCount(&devices) ? 0 : (uint32_t)devices;
}

/* Sets whether this build, or another, has code for compute capability
 * MAJOR.MINOR. */
static void set_usable(struct device_description *out) {
    int capability = (int)(out->major * 10 + out->minor);
    out->usable = capability >= MIN_CAPABILITY;
    if (out->usable)
        return;
    snprintf(out->reason, sizeof out->reason,
             "its compute capability %u.%u is older than this build, which "
             "begins at %d.%d: %s",
             out->major, out->minor, MIN_CAPABILITY / 10, MIN_CAPABILITY % 10,
             capability >= MIN_CAPABILITY_ANY_BUILD
                 ? "take the build made with nvcc 12, which begins at 7.0"
                 : "no build has code for it; the oldest, made with nvcc 12, "
                   "begins at 7.0");
}

static void write_id(const cudaUUID_t *uuid, char id[DEVICE_ID]) {
    for (size_t i = 0; i < sizeof uuid->bytes; i++)
        snprintf(id + 2 * i, DEVICE_ID - 2 * i, "%02x",
                 (unsigned char)uuid->bytes[i]);
}

static enum status ops_cuda_info_check_call(uint32_t index, cudaError_t error,
                                            struct failure *why) {
    return error ? status_fail(why, FAILURE_DEVICE_LOST,
                               "device cuda %u does not answer: %s", index,
                               cudaGetErrorString(error))
                 : STATUS_OK;
}

/* The driver reports properties without creating a context. */
enum status ops_cuda_info_identify(uint32_t index,
                                   struct device_description *out,
                                   struct failure *why) {
    struct cudaDeviceProp properties;
    *out = (struct device_description){0};
    cudaError_t error = cudaGetDeviceProperties(&properties, (int)index);
    if (error)
        return ops_cuda_info_check_call(index, error, why);
    snprintf(out->name, sizeof out->name, "%.127s", properties.name);
    out->major = (uint32_t)properties.major;
    out->minor = (uint32_t)properties.minor;
    out->total = properties.totalGlobalMem;
    write_id(&properties.uuid, out->id);
    set_usable(out);
    return STATUS_OK;
}

enum status ops_cuda_info_describe(uint32_t index,
                                   struct device_description *out,
                                   struct failure *why) {
    size_t available = 0, total = 0;
    enum status status = ops_cuda_info_identify(index, out, why);
    if (status || !out->usable)
        return status;
    cudaError_t error = cudaSetDevice((int)index);
    if (!error)
        error = cudaMemGetInfo(&available, &total);
    out->free = available;
    return ops_cuda_info_check_call(index, error, why);
}
