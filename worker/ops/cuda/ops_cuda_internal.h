/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU as a device is made of: for ops_cuda*.c. */
#ifndef CAPSTAN_OPS_CUDA_INTERNAL_H
#define CAPSTAN_OPS_CUDA_INTERNAL_H

#include "worker/ops/cuda/ops_cuda_blas.h"
#include "worker/ops/cuda/ops_cuda_capture.h"
#include "worker/ops/ops.h"

#include <cuda_runtime.h>

/* Memory that grows with what it is needed for. */
struct ops_cuda_scratch {
    void *memory;
    size_t bytes;
};

/* A queue of the GPU that computes. */
struct ops_cuda_branch {
    cudaStream_t stream;
    struct ops_cuda_blas blas; /* on that stream, where it has products */
};

struct ops_event {
    cudaEvent_t event; /* what waits for it outside a graph waits for this */
    cudaEvent_t inner; /* and within the one that is being captured for this */
    uint64_t capture;  /* the last that it was recorded in; 0: outside */
};

struct ops_device {
    int index;
    char name[300]; /* "cuda 1 (NVIDIA H200)" */
    struct ops_settings settings;
    bool hung; /* it does not end: what would wait for it is not called */
    cudaStream_t streams[OPS_STREAMS];
    struct ops_cuda_branch
        branches[OPS_CUDA_BRANCHES]; /* the first is OPS_COMPUTE,
                                the rest within a graph */
    cudaStream_t event_stream;       /* where those meet, for an event */
    enum job_precision precision;
    struct ops_cuda_scratch sums;        /* that kernels add up in */
    struct ops_cuda_scratch operands[2]; /* of a product, in 16 bits */
    struct ops_cuda_scratch
        weight_operands[2]; /* of one that is a weight's gradient */
    struct ops_cuda_captures captures;
    cudaError_t failed;    /* the first error, for good */
    const char *operation; /* ... at */
};

/* Keeps the first error: later ones follow from it. True: there is none. */
bool ops_cuda_keep_error(struct ops_device *device, cudaError_t error,
                         const char *operation);

/* What `await` says of the error that was kept. */
enum status ops_cuda_report_error(const struct ops_device *device,
                                  struct failure *why);

/* `check`, `count`, `describe` and `identify` of worker/ops/ops.h:
 * ops_cuda_info.c. */
enum status ops_cuda_info_check(struct failure *why);
uint32_t ops_cuda_info_count(void);
enum status ops_cuda_info_describe(uint32_t index,
                                   struct device_description *out,
                                   struct failure *why);
enum status ops_cuda_info_identify(uint32_t index,
                                   struct device_description *out,
                                   struct failure *why);

/* `await` and `synchronize` of worker/ops/ops.h: ops_cuda_sync.c. */
enum status ops_cuda_sync_event(struct ops_device *device,
                                struct ops_event *event, struct failure *why);
enum status ops_cuda_sync_all(struct ops_device *device, struct failure *why);

#endif
