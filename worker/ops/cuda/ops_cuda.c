/* SPDX-License-Identifier: Apache-2.0 */
/* capstan-cuda.so: an NVIDIA GPU as a device. Products are cuBLAS's, in float32
 * with deterministic settings; cuda_kernels.h has the rest. */
#include "worker/ops/cuda/ops_cuda_internal.h"
#include "worker/ops/cuda/ops_cuda_update.h"

#include <stdio.h>
#include <stdlib.h>

bool ops_cuda_keep_error(struct device *device, cudaError_t error,
                         const char *operation) {
    if (error && !device->failed) {
        device->failed = error;
        device->operation = operation;
    }
    return !error;
}

enum status ops_cuda_report_error(const struct device *device,
                                  struct failure *why) {
    if (!device->failed)
        return STATUS_OK;
    if (device->failed == cudaErrorMemoryAllocation)
        return status_fail(why, FAILURE_DEVICE_MEMORY,
                           "no memory left on device %s for %s", device->name,
                           device->operation);
    return status_fail(why, FAILURE_DEVICE_LOST, "device %s is lost, at %s: %s",
                       device->name, device->operation,
                       cudaGetErrorString(device->failed));
}

static void close_branch(struct ops_cuda_branch *branch) {
    ops_cuda_blas_close(&branch->blas);
    if (branch->stream)
        cudaStreamDestroy(branch->stream);
}

static void close_device(struct device **where) {
    struct device *device = *where;
    *where = NULL;
    if (!device)
        return;
    if (device->hung)
        return;
    cudaSetDevice(device->index);
    ops_cuda_capture_close(device);
    for (int s = 0; s < DEVICE_STREAMS; s++)
        if (device->streams[s] && s != STREAM_COMPUTE)
            cudaStreamDestroy(device->streams[s]);
    if (device->event_stream)
        cudaStreamDestroy(device->event_stream);
    for (int branch = 0; branch < OPS_CUDA_BRANCHES; branch++)
        close_branch(&device->branches[branch]);
    cudaFree(device->sums.memory);
    for (int i = 0; i < 2; i++) {
        cudaFree(device->operands[i].memory);
        cudaFree(device->weight_operands[i].memory);
    }
    free(device);
}

/* Stream priorities: a pass before work that it does not wait for, and sums
 * over the ranks before all, as other ranks wait for them. */
static enum status ops_cuda_open_stream(struct device *device,
                                        cudaStream_t *stream, bool first,
                                        struct failure *why) {
    int last_of_all = 0, first_of_all = 0;
    ops_cuda_keep_error(
        device, cudaDeviceGetStreamPriorityRange(&last_of_all, &first_of_all),
        "opening a stream");
    ops_cuda_keep_error(
        device,
        cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking,
                                     first ? first_of_all : last_of_all),
        "opening a stream");
    return ops_cuda_report_error(device, why);
}

/* The branch for sums needs no cuBLAS. */
static enum status open_branch(struct device *device,
                               enum ops_cuda_branch_name name,
                               struct failure *why) {
    struct ops_cuda_branch *branch = &device->branches[name];
    enum status status = ops_cuda_open_stream(device, &branch->stream,
                                              name == OPS_CUDA_MAIN, why);
    if (status || name == OPS_CUDA_SUMS)
        return status;
    status = ops_cuda_blas_load(&branch->blas, why);
    return status ? status
                  : ops_cuda_blas_open(&branch->blas, branch->stream, why);
}

static enum status open_streams(struct device *device, struct failure *why) {
    ops_cuda_keep_error(device, cudaSetDevice(device->index), "opening it");
    enum status status = ops_cuda_report_error(device, why);
    for (int branch = 0; !status && branch < OPS_CUDA_BRANCHES; branch++)
        status = open_branch(device, (enum ops_cuda_branch_name)branch, why);
    device->streams[STREAM_COMPUTE] = device->branches[OPS_CUDA_MAIN].stream;
    if (!status)
        status =
            ops_cuda_open_stream(device, &device->event_stream, false, why);
    for (int s = 0; !status && s < DEVICE_STREAMS; s++)
        if (s != STREAM_COMPUTE)
            status = ops_cuda_open_stream(device, &device->streams[s],
                                          s == STREAM_EXCHANGE, why);
    return status;
}

static enum status open_device(struct device **out,
                               const struct device_settings *settings,
                               struct failure *why) {
    struct device_description description;
    enum status status =
        ops_cuda_info_describe(settings->index, &description, why);
    if (!status && !description.usable)
        status =
            status_fail(why, FAILURE_DEVICE_UNUSABLE, "device cuda %u (%s): %s",
                        settings->index, description.name, description.reason);
    if (status)
        return status;
    struct device *device = calloc(1, sizeof *device);
    if (!device)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a device");
    device->index = (int)settings->index;
    device->settings = *settings;
    snprintf(device->name, sizeof device->name, "cuda %u (%s)", settings->index,
             description.name);
    status = open_streams(device, why);
    if (!status)
        status = ops_cuda_capture_open(device, why);
    if (status)
        close_device(&device);
    *out = device;
    return status;
}

/* A failed attempt must not leave an error for later calls. */
static void *ops_cuda_allocate(struct device *device, size_t bytes) {
    void *memory = NULL;
    cudaSetDevice(device->index);
    if (!cudaMalloc(&memory, bytes ? bytes : 1))
        return memory;
    cudaGetLastError();
    return NULL;
}

static void ops_cuda_release(struct device *device, void *memory) {
    if (device->hung)
        return;
    cudaSetDevice(device->index);
    ops_cuda_capture_forget(device);
    cudaFree(memory);
}

static bool ops_cuda_pin(struct device *device, void *memory, size_t bytes) {
    cudaSetDevice(device->index);
    if (!cudaHostRegister(memory, bytes, cudaHostRegisterPortable))
        return true;
    cudaGetLastError();
    return false;
}

static void ops_cuda_unpin(struct device *device, void *memory) {
    if (device->hung)
        return;
    cudaSetDevice(device->index);
    ops_cuda_capture_forget(device);
    if (cudaHostUnregister(memory))
        cudaGetLastError();
}

static void *native_stream(struct device *device, enum device_stream stream) {
    return device->streams[stream];
}

static struct device_event *event_open(struct device *device) {
    struct device_event *event = calloc(1, sizeof *event);
    cudaSetDevice(device->index);
    if (event &&
        !cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming) &&
        !cudaEventCreateWithFlags(&event->inner, cudaEventDisableTiming))
        return event;
    cudaGetLastError();
    if (event && event->event)
        cudaEventDestroy(event->event);
    free(event);
    return NULL;
}

static void event_close(struct device *device, struct device_event **event) {
    if (!device->hung) {
        cudaSetDevice(device->index);
        ops_cuda_capture_forget(device);
        cudaEventDestroy((*event)->event);
        cudaEventDestroy((*event)->inner);
    }
    free(*event);
    *event = NULL;
}

static void set_precision(struct device *device, enum job_precision precision) {
    ops_cuda_capture_forget(device);
    device->precision = precision;
}

/* Calls that go to a stream, now or at the end of a capture. */

static void upload(struct device *device, enum device_stream stream, void *to,
                   const void *from, size_t bytes) {
    ops_cuda_capture_submit(device,
                            &(struct ops_cuda_call){.kind = OPS_CUDA_UPLOAD,
                                                    .stream = stream,
                                                    .a = from,
                                                    .to = to,
                                                    .bytes = bytes});
}

static void ops_cuda_download(struct device *device, enum device_stream stream,
                              void *to, const void *from, size_t bytes) {
    ops_cuda_capture_submit(device,
                            &(struct ops_cuda_call){.kind = OPS_CUDA_DOWNLOAD,
                                                    .stream = stream,
                                                    .a = from,
                                                    .to = to,
                                                    .bytes = bytes});
}

static void ops_cuda_record(struct device *device, enum device_stream stream,
                            struct device_event *event) {
    ops_cuda_capture_submit(
        device, &(struct ops_cuda_call){
                    .kind = OPS_CUDA_RECORD, .stream = stream, .event = event});
}

static void ops_cuda_stream_wait(struct device *device,
                                 enum device_stream stream,
                                 struct device_event *event) {
    ops_cuda_capture_submit(
        device, &(struct ops_cuda_call){.kind = OPS_CUDA_STREAM_WAIT,
                                        .stream = stream,
                                        .event = event});
}

static void ops_cuda_linear(struct device *device, const float *x,
                            const float *w, const float *bias, float *y,
                            uint32_t n, uint32_t in, uint32_t out,
                            enum job_activation activation) {
    ops_cuda_capture_submit(device,
                            &(struct ops_cuda_call){.kind = OPS_CUDA_LINEAR,
                                                    .a = x,
                                                    .b = w,
                                                    .c = bias,
                                                    .to = y,
                                                    .n = n,
                                                    .in = in,
                                                    .out = out,
                                                    .option = activation});
}

static void linear_input_gradient(struct device *device, const float *dy,
                                  const float *w, float *dx, uint32_t n,
                                  uint32_t in, uint32_t out) {
    ops_cuda_capture_submit(
        device, &(struct ops_cuda_call){.kind = OPS_CUDA_INPUT_GRADIENT,
                                        .a = dy,
                                        .b = w,
                                        .to = dx,
                                        .n = n,
                                        .in = in,
                                        .out = out});
}

static void linear_weight_gradient(struct device *device, const float *dy,
                                   const float *x, float *dw, uint32_t n,
                                   uint32_t in, uint32_t out, bool add) {
    ops_cuda_capture_submit(
        device, &(struct ops_cuda_call){.kind = OPS_CUDA_WEIGHT_GRADIENT,
                                        .a = dy,
                                        .b = x,
                                        .to = dw,
                                        .n = n,
                                        .in = in,
                                        .out = out,
                                        .add = add});
}

static void ops_cuda_column_sums(struct device *device, const float *dy,
                                 float *db, uint32_t n, uint32_t out,
                                 bool add) {
    ops_cuda_capture_submit(
        device, &(struct ops_cuda_call){.kind = OPS_CUDA_COLUMN_SUMS,
                                        .a = dy,
                                        .to = db,
                                        .n = n,
                                        .out = out,
                                        .add = add});
}

static void ops_cuda_activation_gradient(struct device *device,
                                         enum job_activation activation,
                                         const float *y, float *dy, uint32_t n,
                                         uint32_t out) {
    ops_cuda_capture_submit(
        device, &(struct ops_cuda_call){.kind = OPS_CUDA_ACTIVATION_GRADIENT,
                                        .a = y,
                                        .to = dy,
                                        .n = n,
                                        .out = out,
                                        .option = activation});
}

static void ops_cuda_loss(struct device *device, enum job_loss kind,
                          const float *z, const uint32_t *labels, float *dz,
                          uint32_t n, uint32_t out, float scale, double *sum,
                          uint32_t *correct) {
    ops_cuda_capture_submit(device,
                            &(struct ops_cuda_call){.kind = OPS_CUDA_LOSS,
                                                    .a = z,
                                                    .b = labels,
                                                    .to = dz,
                                                    .n = n,
                                                    .out = out,
                                                    .scale = scale,
                                                    .option = kind});
    ops_cuda_capture_submit(device,
                            &(struct ops_cuda_call){.kind = OPS_CUDA_LOSS_SUM,
                                                    .second = sum,
                                                    .third = correct,
                                                    .n = n});
}

static void ops_cuda_rows(struct device *device, const struct ops_rows *call) {
    ops_cuda_capture_submit(device,
                            &(struct ops_cuda_call){.kind = OPS_CUDA_ROWS,
                                                    .a = call->x,
                                                    .b = call->dy,
                                                    .to = call->y,
                                                    .rows = *call});
}

#define TEXT(number) #number
#define DOTTED(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

__attribute__((visibility("default")))
const struct device_ops capstan_device = {
    .abi = DEVICE_ABI,
    .name = "cuda",
    .version =
        "cuBLAS " DOTTED(CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH),
    .check = ops_cuda_info_check,
    .async = true,
    .count = ops_cuda_info_count,
    .describe = ops_cuda_info_describe,
    .identify = ops_cuda_info_identify,
    .open = open_device,
    .close = close_device,
    .allocate = ops_cuda_allocate,
    .release = ops_cuda_release,
    .pin = ops_cuda_pin,
    .unpin = ops_cuda_unpin,
    .upload = upload,
    .download = ops_cuda_download,
    .copy = ops_cuda_update_copy,
    .native_stream = native_stream,
    .event_open = event_open,
    .event_close = event_close,
    .record = ops_cuda_record,
    .stream_wait = ops_cuda_stream_wait,
    .event_sync = ops_cuda_sync_event,
    .synchronize = ops_cuda_sync_all,
    .capture_begin = ops_cuda_capture_begin,
    .capture_end = ops_cuda_capture_end,
    .set_precision = set_precision,
    .linear = ops_cuda_linear,
    .linear_input_gradient = linear_input_gradient,
    .linear_weight_gradient = linear_weight_gradient,
    .column_sums = ops_cuda_column_sums,
    .activation_gradient = ops_cuda_activation_gradient,
    .loss = ops_cuda_loss,
    .rows = ops_cuda_rows,
    .fill = ops_cuda_update_fill,
    .scale = ops_cuda_update_scale,
    .find_overflow = ops_cuda_update_find_overflow,
    .square_sums = ops_cuda_update_square_sums,
    .reduce_sum = ops_cuda_update_reduce_sum,
    .clip = ops_cuda_update_clip,
    .rule = ops_cuda_update_rule,
};
