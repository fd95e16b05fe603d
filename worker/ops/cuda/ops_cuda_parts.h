/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU as a device is made of: for ops_cuda*.c. */
#ifndef CAPSTAN_OPS_CUDA_PARTS_H
#define CAPSTAN_OPS_CUDA_PARTS_H

#include "worker/ops/cuda/ops_cuda_blas.h"
#include "worker/ops/cuda/ops_cuda_span.h"
#include "worker/ops/ops.h"

#include <cuda_runtime.h>

/* Memory that grows with what it is needed for. */
struct ops_cuda_room {
    void *memory;
    size_t bytes;
};

/* A queue of the GPU that computes. */
struct ops_cuda_lane {
    cudaStream_t stream;
    struct ops_cuda_blas blas; /* on that stream, where it has products */
};

struct ops_event {
    cudaEvent_t event; /* what waits for it outside a graph waits for this */
    cudaEvent_t inner; /* and within the one that is being captured for this */
    uint64_t span;     /* the last that it was recorded in; 0: outside */
};

struct ops_device {
    int index;
    char name[300]; /* "cuda 1 (NVIDIA H200)" */
    struct ops_settings settings;
    bool hung; /* it does not end: what would wait for it is not called */
    cudaStream_t streams[OPS_STREAMS];
    struct ops_cuda_lane lanes[OPS_CUDA_LANES]; /* the first is OPS_COMPUTE,
                                                   the rest within a graph */
    cudaStream_t moments; /* where those meet, for an event */
    enum job_precision precision;
    struct ops_cuda_room sums;          /* that kernels add up in */
    struct ops_cuda_room operands[2];   /* of a product, in 16 bits */
    struct ops_cuda_room of_weights[2]; /* of one that is a weight's gradient */
    struct ops_cuda_spans spans;
    cudaError_t failed; /* the first error, for good */
    const char *what;   /* ... at */
};

/* Keeps the first error: later ones follow from it. True: there is none. */
bool ops_cuda_note(struct ops_device *device, cudaError_t error,
                   const char *what);

/* What `await` says of the error that was kept. */
enum status ops_cuda_tell(const struct ops_device *device, struct failure *why);

/* `check`, `count`, `describe` and `identify` of worker/ops/ops.h:
 * ops_cuda_about.c. */
enum status ops_cuda_about_check(struct failure *why);
uint32_t ops_cuda_about_count(void);
enum status ops_cuda_about_describe(uint32_t index,
                                    struct device_description *out,
                                    struct failure *why);
enum status ops_cuda_about_identify(uint32_t index,
                                    struct device_description *out,
                                    struct failure *why);

/* `await` and `synchronize` of worker/ops/ops.h: ops_cuda_wait.c. */
enum status ops_cuda_wait_await(struct ops_device *device,
                                struct ops_event *event, struct failure *why);
enum status ops_cuda_wait_synchronize(struct ops_device *device,
                                      struct failure *why);

#endif
