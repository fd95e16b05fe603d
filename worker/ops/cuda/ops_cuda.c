/* SPDX-License-Identifier: Apache-2.0 */
/* capstan-cuda.so: an NVIDIA GPU as a device. Products are cuBLAS's, in float32
 * with settings that give the same bits each time; the rest is
 * cuda_kernels.h's. */
#include "worker/ops/cuda/ops_cuda_parts.h"
#include "worker/ops/cuda/ops_cuda_update.h"

#include <stdio.h>
#include <stdlib.h>

bool ops_cuda_note(struct ops_device *device, cudaError_t error,
                   const char *what) {
    if (error && !device->failed) {
        device->failed = error;
        device->what = what;
    }
    return !error;
}

enum status ops_cuda_tell(const struct ops_device *device,
                          struct failure *why) {
    if (!device->failed)
        return STATUS_OK;
    if (device->failed == cudaErrorMemoryAllocation)
        return status_fail(why, STATUS_FAILED,
                           "no memory left on device %s for %s", device->name,
                           device->what);
    return status_fail(why, STATUS_RETRY, "device %s is lost, at %s: %s",
                       device->name, device->what,
                       cudaGetErrorString(device->failed));
}

static void close_lane(struct ops_cuda_lane *lane) {
    ops_cuda_blas_close(&lane->blas);
    if (lane->stream)
        cudaStreamDestroy(lane->stream);
}

static void close_device(struct ops_device **where) {
    struct ops_device *device = *where;
    *where = NULL;
    if (!device)
        return;
    if (device->hung)
        return;
    cudaSetDevice(device->index);
    ops_cuda_span_close(device);
    for (int s = 0; s < OPS_STREAMS; s++)
        if (device->streams[s] && s != OPS_COMPUTE)
            cudaStreamDestroy(device->streams[s]);
    if (device->moments)
        cudaStreamDestroy(device->moments);
    for (int lane = 0; lane < OPS_CUDA_LANES; lane++)
        close_lane(&device->lanes[lane]);
    cudaFree(device->sums.memory);
    for (int i = 0; i < 2; i++) {
        cudaFree(device->operands[i].memory);
        cudaFree(device->of_weights[i].memory);
    }
    free(device);
}

/* Those that go first where several could: a pass before what it does not wait
 * for, and sums over the ranks before all, as others wait for them. */
static enum status open_stream(struct ops_device *device, cudaStream_t *stream,
                               bool first, struct failure *why) {
    int last_of_all = 0, first_of_all = 0;
    ops_cuda_note(device,
                  cudaDeviceGetStreamPriorityRange(&last_of_all, &first_of_all),
                  "opening a stream");
    ops_cuda_note(
        device,
        cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking,
                                     first ? first_of_all : last_of_all),
        "opening a stream");
    return ops_cuda_tell(device, why);
}

/* Sums are no products. */
static enum status open_lane(struct ops_device *device,
                             enum ops_cuda_lane_name name,
                             struct failure *why) {
    struct ops_cuda_lane *lane = &device->lanes[name];
    enum status status =
        open_stream(device, &lane->stream, name == OPS_CUDA_ALONG, why);
    if (status || name == OPS_CUDA_SUMS)
        return status;
    status = ops_cuda_blas_load(&lane->blas, why);
    return status ? status : ops_cuda_blas_open(&lane->blas, lane->stream, why);
}

static enum status open_streams(struct ops_device *device,
                                struct failure *why) {
    ops_cuda_note(device, cudaSetDevice(device->index), "opening it");
    enum status status = ops_cuda_tell(device, why);
    for (int lane = 0; !status && lane < OPS_CUDA_LANES; lane++)
        status = open_lane(device, (enum ops_cuda_lane_name)lane, why);
    device->streams[OPS_COMPUTE] = device->lanes[OPS_CUDA_ALONG].stream;
    if (!status)
        status = open_stream(device, &device->moments, false, why);
    for (int s = 0; !status && s < OPS_STREAMS; s++)
        if (s != OPS_COMPUTE)
            status = open_stream(device, &device->streams[s], s == OPS_EXCHANGE,
                                 why);
    return status;
}

static enum status open_device(struct ops_device **out,
                               const struct ops_settings *settings,
                               struct failure *why) {
    struct device_description about;
    enum status status = ops_cuda_about_describe(settings->index, &about, why);
    if (!status && !about.usable)
        status = status_fail(why, STATUS_CONFIG, "device cuda %u (%s): %s",
                             settings->index, about.name, about.reason);
    if (status)
        return status;
    struct ops_device *device = calloc(1, sizeof *device);
    if (!device)
        return status_fail(why, STATUS_RETRY, "no memory for a device");
    device->index = (int)settings->index;
    device->settings = *settings;
    snprintf(device->name, sizeof device->name, "cuda %u (%s)", settings->index,
             about.name);
    status = open_streams(device, why);
    if (!status)
        status = ops_cuda_span_open(device, why);
    if (status)
        close_device(&device);
    *out = device;
    return status;
}

/* A failed attempt leaves no error behind for later calls. */
static void *allocate(struct ops_device *device, size_t bytes) {
    void *memory = NULL;
    cudaSetDevice(device->index);
    if (!cudaMalloc(&memory, bytes ? bytes : 1))
        return memory;
    cudaGetLastError();
    return NULL;
}

static void release(struct ops_device *device, void *memory) {
    if (device->hung)
        return;
    cudaSetDevice(device->index);
    ops_cuda_span_forget(device);
    cudaFree(memory);
}

static bool pin(struct ops_device *device, void *memory, size_t bytes) {
    cudaSetDevice(device->index);
    if (!cudaHostRegister(memory, bytes, cudaHostRegisterPortable))
        return true;
    cudaGetLastError();
    return false;
}

static void unpin(struct ops_device *device, void *memory) {
    if (device->hung)
        return;
    cudaSetDevice(device->index);
    ops_cuda_span_forget(device);
    if (cudaHostUnregister(memory))
        cudaGetLastError();
}

static void *native(struct ops_device *device, enum ops_stream stream) {
    return device->streams[stream];
}

static struct ops_event *event_open(struct ops_device *device) {
    struct ops_event *event = calloc(1, sizeof *event);
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

static void event_close(struct ops_device *device, struct ops_event **event) {
    if (!device->hung) {
        cudaSetDevice(device->index);
        ops_cuda_span_forget(device);
        cudaEventDestroy((*event)->event);
        cudaEventDestroy((*event)->inner);
    }
    free(*event);
    *event = NULL;
}

static void set_precision(struct ops_device *device,
                          enum job_precision precision) {
    ops_cuda_span_forget(device);
    device->precision = precision;
}

/* --- what goes to a stream, now or at the end of its span --- */

static void upload(struct ops_device *device, enum ops_stream stream, void *to,
                   const void *from, size_t bytes) {
    ops_cuda_span_give(device, &(struct ops_cuda_call){.kind = OPS_CUDA_UPLOAD,
                                                       .stream = stream,
                                                       .a = from,
                                                       .to = to,
                                                       .bytes = bytes});
}

static void download(struct ops_device *device, enum ops_stream stream,
                     void *to, const void *from, size_t bytes) {
    ops_cuda_span_give(device,
                       &(struct ops_cuda_call){.kind = OPS_CUDA_DOWNLOAD,
                                               .stream = stream,
                                               .a = from,
                                               .to = to,
                                               .bytes = bytes});
}

static void record(struct ops_device *device, enum ops_stream stream,
                   struct ops_event *event) {
    ops_cuda_span_give(device, &(struct ops_cuda_call){.kind = OPS_CUDA_RECORD,
                                                       .stream = stream,
                                                       .event = event});
}

static void follow(struct ops_device *device, enum ops_stream stream,
                   struct ops_event *event) {
    ops_cuda_span_give(device, &(struct ops_cuda_call){.kind = OPS_CUDA_FOLLOW,
                                                       .stream = stream,
                                                       .event = event});
}

static void linear(struct ops_device *device, const float *x, const float *w,
                   const float *bias, float *y, uint32_t n, uint32_t in,
                   uint32_t out, enum job_activation activation) {
    ops_cuda_span_give(device, &(struct ops_cuda_call){.kind = OPS_CUDA_LINEAR,
                                                       .a = x,
                                                       .b = w,
                                                       .c = bias,
                                                       .to = y,
                                                       .n = n,
                                                       .in = in,
                                                       .out = out,
                                                       .word = activation});
}

static void linear_input_gradient(struct ops_device *device, const float *dy,
                                  const float *w, float *dx, uint32_t n,
                                  uint32_t in, uint32_t out) {
    ops_cuda_span_give(device,
                       &(struct ops_cuda_call){.kind = OPS_CUDA_INPUT_GRADIENT,
                                               .a = dy,
                                               .b = w,
                                               .to = dx,
                                               .n = n,
                                               .in = in,
                                               .out = out});
}

static void linear_weight_gradient(struct ops_device *device, const float *dy,
                                   const float *x, float *dw, uint32_t n,
                                   uint32_t in, uint32_t out, bool add) {
    ops_cuda_span_give(device,
                       &(struct ops_cuda_call){.kind = OPS_CUDA_WEIGHT_GRADIENT,
                                               .a = dy,
                                               .b = x,
                                               .to = dw,
                                               .n = n,
                                               .in = in,
                                               .out = out,
                                               .add = add});
}

static void column_sums(struct ops_device *device, const float *dy, float *db,
                        uint32_t n, uint32_t out, bool add) {
    ops_cuda_span_give(device,
                       &(struct ops_cuda_call){.kind = OPS_CUDA_COLUMN_SUMS,
                                               .a = dy,
                                               .to = db,
                                               .n = n,
                                               .out = out,
                                               .add = add});
}

static void activation_gradient(struct ops_device *device,
                                enum job_activation activation, const float *y,
                                float *dy, uint32_t n, uint32_t out) {
    ops_cuda_span_give(
        device, &(struct ops_cuda_call){.kind = OPS_CUDA_ACTIVATION_GRADIENT,
                                        .a = y,
                                        .to = dy,
                                        .n = n,
                                        .out = out,
                                        .word = activation});
}

static void loss(struct ops_device *device, enum job_loss kind, const float *z,
                 const uint32_t *labels, float *dz, uint32_t n, uint32_t out,
                 float scale, double *sum, uint32_t *correct) {
    ops_cuda_span_give(device, &(struct ops_cuda_call){.kind = OPS_CUDA_LOSS,
                                                       .a = z,
                                                       .b = labels,
                                                       .to = dz,
                                                       .n = n,
                                                       .out = out,
                                                       .scale = scale,
                                                       .word = kind});
    ops_cuda_span_give(device,
                       &(struct ops_cuda_call){.kind = OPS_CUDA_LOSS_SUM,
                                               .second = sum,
                                               .third = correct,
                                               .n = n});
}

#define TEXT(number) #number
#define DOTTED(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

__attribute__((visibility("default"))) const struct ops capstan_device = {
    .abi = DEVICE_ABI,
    .name = "cuda",
    .version =
        "cuBLAS " DOTTED(CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH),
    .check = ops_cuda_about_check,
    .later = true,
    .count = ops_cuda_about_count,
    .describe = ops_cuda_about_describe,
    .identify = ops_cuda_about_identify,
    .open = open_device,
    .close = close_device,
    .allocate = allocate,
    .release = release,
    .pin = pin,
    .unpin = unpin,
    .upload = upload,
    .download = download,
    .copy = ops_cuda_update_copy,
    .native = native,
    .event_open = event_open,
    .event_close = event_close,
    .record = record,
    .follow = follow,
    .await = ops_cuda_wait_await,
    .synchronize = ops_cuda_wait_synchronize,
    .begin = ops_cuda_span_begin,
    .end = ops_cuda_span_end,
    .set_precision = set_precision,
    .linear = linear,
    .linear_input_gradient = linear_input_gradient,
    .linear_weight_gradient = linear_weight_gradient,
    .column_sums = column_sums,
    .activation_gradient = activation_gradient,
    .loss = loss,
    .fill = ops_cuda_update_fill,
    .scale = ops_cuda_update_scale,
    .find_overflow = ops_cuda_update_find_overflow,
    .square_sums = ops_cuda_update_square_sums,
    .add_up = ops_cuda_update_add_up,
    .clip = ops_cuda_update_clip,
    .rule = ops_cuda_update_rule,
};
