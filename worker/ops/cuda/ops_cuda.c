/* SPDX-License-Identifier: Apache-2.0 */
/* capstan-cuda.so: an NVIDIA GPU as a device. Products are cuBLAS's, in float32
 * with deterministic settings; cuda_kernels.h has the rest. */
#include "worker/ops/cuda/ops_cuda_internal.h"
#include "worker/ops/cuda/ops_cuda_ranges.h"

#include <stdio.h>
#include <stdlib.h>

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
    device->captures.disabled = settings->no_graphs;
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

static void submit_copy(struct device *device, enum device_stream stream,
                        uint32_t kind, void *to, const void *from,
                        size_t bytes) {
    const struct op copy = {.kind = kind,
                            .reads = {op_tensor(from, bytes)},
                            .writes = {op_tensor(to, bytes)}};
    ops_cuda_capture_submit(device, stream, &copy, NULL);
}

static void upload(struct device *device, enum device_stream stream, void *to,
                   const void *from, size_t bytes) {
    submit_copy(device, stream, OPS_CUDA_UPLOAD, to, from, bytes);
}

static void ops_cuda_download(struct device *device, enum device_stream stream,
                              void *to, const void *from, size_t bytes) {
    submit_copy(device, stream, OPS_CUDA_DOWNLOAD, to, from, bytes);
}

/* Not captured, as calls on a library's stream are not. */
static void ops_cuda_copy(struct device *device, enum device_stream stream,
                          void *to, const void *from, size_t bytes) {
    ops_cuda_keep_error(
        device,
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                        ops_cuda_capture_stream(device, stream)),
        "a copy within it");
}

static void ops_cuda_record(struct device *device, enum device_stream stream,
                            struct device_event *event) {
    ops_cuda_capture_submit(device, stream,
                            &(struct op){.kind = OPS_CUDA_RECORD}, event);
}

static void ops_cuda_stream_wait(struct device *device,
                                 enum device_stream stream,
                                 struct device_event *event) {
    ops_cuda_capture_submit(device, stream,
                            &(struct op){.kind = OPS_CUDA_STREAM_WAIT}, event);
}

static bool ops_cuda_supports(const struct device *device, struct op op) {
    const struct ops_cuda_kind *kind = ops_cuda_call_kind(op.kind);
    (void)device;
    return kind && op.kind < OP_KINDS &&
           (!kind->supports || kind->supports(&op));
}

static enum status ops_cuda_prepare(struct device *device, struct op op,
                                    struct failure *why) {
    const struct ops_cuda_kind *kind = ops_cuda_call_kind(op.kind);
    cudaSetDevice(device->index);
    return !kind->prepare || kind->prepare(device, &op)
               ? STATUS_OK
               : ops_cuda_report_error(device, why);
}

/* The sum of a loss is a call of its own, as the pass does not wait for it. */
static void submit_loss(struct device *device, struct op *op) {
    struct op sum = {.kind = OPS_CUDA_LOSS_SUM, .n = op->n};
    for (unsigned i = 1; i < OP_WRITES; i++) {
        sum.writes[i] = op->writes[i];
        op->writes[i] = (struct op_tensor){0};
    }
    ops_cuda_capture_submit(device, STREAM_COMPUTE, op, NULL);
    ops_cuda_capture_submit(device, STREAM_COMPUTE, &sum, NULL);
}

/* Captures have the ops of a pass, which are on STREAM_COMPUTE. On other
 * streams ops are among a library's calls, which are not captured, and are of
 * samples, or of updates, which differ from step to step. */
static void ops_cuda_run(struct device *device, enum device_stream stream,
                         struct op op) {
    if (stream != STREAM_COMPUTE) {
        ops_cuda_capture_stream(device, stream);
        ops_cuda_call_execute(
            device, &(struct ops_cuda_call){.op = op, .stream = stream});
    } else if (op.kind == OP_LOSS) {
        submit_loss(device, &op);
    } else {
        ops_cuda_capture_submit(device, stream, &op, NULL);
    }
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
    .copy = ops_cuda_copy,
    .native_stream = native_stream,
    .event_open = event_open,
    .event_close = event_close,
    .record = ops_cuda_record,
    .stream_wait = ops_cuda_stream_wait,
    .event_sync = ops_cuda_sync_event,
    .synchronize = ops_cuda_sync_all,
    .capture_begin = ops_cuda_capture_begin,
    .capture_end = ops_cuda_capture_end,
    .range = ops_cuda_range,
    .set_precision = set_precision,
    .supports = ops_cuda_supports,
    .prepare = ops_cuda_prepare,
    .run = ops_cuda_run,
};
