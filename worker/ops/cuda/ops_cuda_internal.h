/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a GPU device, for ops_cuda*.c. */
#ifndef CAPSTAN_OPS_CUDA_INTERNAL_H
#define CAPSTAN_OPS_CUDA_INTERNAL_H

#include "worker/ops/cuda/ops_cuda_blas.h"
#include "worker/ops/cuda/ops_cuda_capture.h"
#include "worker/ops/device.h"

#include <cuda_runtime.h>

/* A buffer that grows on demand. */
struct ops_cuda_scratch {
    void *memory;
    size_t bytes;
};

/* A compute stream of the GPU. */
struct ops_cuda_branch {
    cudaStream_t stream;
    struct ops_cuda_blas blas; /* on that stream, if it has products */
};

struct device_event {
    cudaEvent_t event; /* outside a graph: marks the branch's work */
    cudaEvent_t inner; /* likewise within the graph that is being captured */
    uint64_t capture;  /* its last recording capture; 0: outside */
};

struct device {
    int index;
    char name[300]; /* "cuda 1 (NVIDIA H200)" */
    struct device_settings settings;
    bool hung; /* it does not finish: blocking calls are avoided */
    cudaStream_t streams[DEVICE_STREAMS];
    /* The first is STREAM_COMPUTE, the others exist only within graphs. */
    struct ops_cuda_branch branches[OPS_CUDA_BRANCHES];
    cudaStream_t event_stream; /* where the branches join for an event */
    enum job_precision precision;
    struct ops_cuda_scratch sums;        /* scratch memory of sums */
    struct ops_cuda_scratch operands[2]; /* of a product, as 16-bit floats */
    /* Of a weight-gradient product. */
    struct ops_cuda_scratch weight_operands[2];
    struct ops_cuda_captures captures;
    cudaError_t failed;    /* the first error, permanent */
    const char *operation; /* during this operation */
};

/* ops_cuda_sync.c. Keeps the first error, as later ones follow from it. True if
 * there is none. */
bool ops_cuda_keep_error(struct device *device, cudaError_t error,
                         const char *operation);

/* The failure that `event_sync` returns for the kept error. */
enum status ops_cuda_report_error(const struct device *device,
                                  struct failure *why);

/* `check`, `count`, `describe` and `identify` of worker/ops/device.h, in
 * ops_cuda_info.c. */
enum status ops_cuda_info_check(struct failure *why);
uint32_t ops_cuda_info_count(void);
enum status ops_cuda_info_describe(uint32_t index,
                                   struct device_description *out,
                                   struct failure *why);
enum status ops_cuda_info_identify(uint32_t index,
                                   struct device_description *out,
                                   struct failure *why);

/* `event_sync` and `synchronize` of worker/ops/device.h, in ops_cuda_sync.c. */
enum status ops_cuda_sync_event(struct device *device,
                                struct device_event *event,
                                struct failure *why);
enum status ops_cuda_sync_all(struct device *device, struct failure *why);

#endif
