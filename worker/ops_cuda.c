/* capstan-cuda.so: an NVIDIA GPU as a device. Products are cuBLAS's, in float32
 * with settings that give the same bits each time; the rest is
 * cuda_kernels.h's. */
#include "proto/base/time.h"
#include "worker/cuda_kernels.h"
#include "worker/ops.h"
#include "worker/ops_cuda_blas.h"
#include "worker/ops_cuda_update.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* CUDA_OLDEST, of the build: the least compute capability that there is code
 * for, in tenths. */
enum { OLDEST = CUDA_OLDEST, OLDEST_OF_ALL = 70 };

static const int64_t SPIN = 100 * TIME_US;

/* Memory that grows with what it is needed for. */
struct room {
    void *memory;
    size_t bytes;
};

struct ops_device {
    int index;
    char name[300]; /* "cuda 1 (NVIDIA H200)" */
    double timeout; /* seconds */
    bool (*given_up)(void *context);
    void *context;
    bool hung; /* it does not end: what would wait for it is not called */
    cudaStream_t streams[OPS_STREAMS];
    struct ops_cuda_blas blas;
    enum job_precision precision;
    struct room sums;                 /* that kernels add up in */
    struct room operands[2];          /* of a product, in 16 bits */
    struct rule_constants *constants; /* of updates, one for each stream */
    cudaError_t failed;               /* the first error, for good */
    const char *what;                 /* ... at */
};

static enum status check(struct failure *why) {
    int devices = 0, driver = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error && (cudaDriverGetVersion(&driver) || !driver))
        return status_fail(why, STATUS_FAILED,
                           "no NVIDIA driver on this host (libcuda.so.1)");
    if (error)
        return status_fail(why, STATUS_FAILED, "no GPU that CUDA can use: %s",
                           cudaGetErrorString(error));
    if (!devices)
        return status_fail(why, STATUS_FAILED, "no GPU on this host");
    return STATUS_OK;
}

static uint32_t count(void) {
    int devices = 0;
    return cudaGetDeviceCount(&devices) ? 0 : (uint32_t)devices;
}

/* Which build has code for compute capability MAJOR.MINOR. */
static void advise_build(struct device_description *out) {
    int capability = (int)(out->major * 10 + out->minor);
    out->usable = capability >= OLDEST;
    if (out->usable)
        return;
    snprintf(out->reason, sizeof out->reason,
             "its compute capability %u.%u is older than this build, which "
             "begins at %d.%d: %s",
             out->major, out->minor, OLDEST / 10, OLDEST % 10,
             capability >= OLDEST_OF_ALL
                 ? "take the build made with nvcc 12, which begins at 7.0"
                 : "no build has code for it; the oldest, made with nvcc 12, "
                   "begins at 7.0");
}

static void write_id(const cudaUUID_t *uuid, char id[DEVICE_ID]) {
    for (size_t i = 0; i < sizeof uuid->bytes; i++)
        snprintf(id + 2 * i, DEVICE_ID - 2 * i, "%02x",
                 (unsigned char)uuid->bytes[i]);
}

static enum status describe(uint32_t index, struct device_description *out,
                            struct failure *why) {
    struct cudaDeviceProp properties;
    size_t available = 0, total = 0;
    *out = (struct device_description){0};
    cudaError_t error = cudaGetDeviceProperties(&properties, (int)index);
    if (!error) {
        snprintf(out->name, sizeof out->name, "%.127s", properties.name);
        out->major = (uint32_t)properties.major;
        out->minor = (uint32_t)properties.minor;
        out->total = properties.totalGlobalMem;
        write_id(&properties.uuid, out->id);
        advise_build(out);
    }
    if (!error && out->usable)
        error = cudaSetDevice((int)index);
    if (!error && out->usable)
        error = cudaMemGetInfo(&available, &total);
    out->free = available;
    if (!error)
        return STATUS_OK;
    return status_fail(why, STATUS_RETRY, "device cuda %u does not answer: %s",
                       index, cudaGetErrorString(error));
}

/* Keeps the first error: later ones follow from it. */
static bool note(struct ops_device *device, cudaError_t error,
                 const char *what) {
    if (error && !device->failed) {
        device->failed = error;
        device->what = what;
    }
    return !error;
}

static void note_product(struct ops_device *device, cublasStatus_t status) {
    if (status == CUBLAS_STATUS_SUCCESS)
        return;
    cudaError_t error = status == CUBLAS_STATUS_ALLOC_FAILED
                            ? cudaErrorMemoryAllocation
                            : cudaGetLastError();
    note(device, error ? error : cudaErrorUnknown, "a product of matrices");
}

static enum status tell(const struct ops_device *device, struct failure *why) {
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

static void close_device(struct ops_device **where) {
    struct ops_device *device = *where;
    *where = NULL;
    if (!device)
        return;
    if (device->hung)
        return;
    cudaSetDevice(device->index);
    for (int s = 0; s < OPS_STREAMS; s++)
        if (device->streams[s])
            cudaStreamDestroy(device->streams[s]);
    ops_cuda_blas_close(&device->blas);
    cudaFree(device->constants);
    cudaFree(device->sums.memory);
    for (int i = 0; i < 2; i++)
        cudaFree(device->operands[i].memory);
    free(device);
}

static enum status open_streams(struct ops_device *device,
                                struct failure *why) {
    note(device, cudaSetDevice(device->index), "opening it");
    for (int s = 0; s < OPS_STREAMS; s++)
        if (!device->failed)
            note(device,
                 cudaStreamCreateWithFlags(&device->streams[s],
                                           cudaStreamNonBlocking),
                 "opening a stream");
    if (!device->failed)
        note(device,
             cudaMalloc((void **)&device->constants,
                        OPS_STREAMS * sizeof *device->constants),
             "the constants of updates");
    return tell(device, why);
}

static enum status open_device(struct ops_device **out,
                               const struct ops_settings *settings,
                               struct failure *why) {
    struct device_description about;
    enum status status = describe(settings->index, &about, why);
    if (!status && !about.usable)
        status = status_fail(why, STATUS_CONFIG, "device cuda %u (%s): %s",
                             settings->index, about.name, about.reason);
    if (status)
        return status;
    struct ops_device *device = calloc(1, sizeof *device);
    if (!device)
        return status_fail(why, STATUS_RETRY, "no memory for a device");
    device->index = (int)settings->index;
    device->timeout = settings->timeout;
    device->given_up = settings->given_up;
    device->context = settings->context;
    snprintf(device->name, sizeof device->name, "cuda %u (%s)", settings->index,
             about.name);
    status = open_streams(device, why);
    if (!status)
        status = ops_cuda_blas_load(&device->blas, why);
    if (!status)
        status = ops_cuda_blas_open(&device->blas, device->streams[OPS_COMPUTE],
                                    why);
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
    if (cudaHostUnregister(memory))
        cudaGetLastError();
}

static void upload(struct ops_device *device, enum ops_stream stream, void *to,
                   const void *from, size_t bytes) {
    note(device,
         cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice,
                         device->streams[stream]),
         "a copy to it");
}

static void download(struct ops_device *device, enum ops_stream stream,
                     void *to, const void *from, size_t bytes) {
    note(device,
         cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost,
                         device->streams[stream]),
         "a copy from it");
}

static void copy(struct ops_device *device, enum ops_stream stream, void *to,
                 const void *from, size_t bytes) {
    note(device,
         cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                         device->streams[stream]),
         "a copy within it");
}

static void *native(struct ops_device *device, enum ops_stream stream) {
    return device->streams[stream];
}

/* An event of ours is CUDA's. */
static cudaEvent_t event_of(struct ops_event *event) {
    return (cudaEvent_t)event;
}

static struct ops_event *event_open(struct ops_device *device) {
    cudaEvent_t event = NULL;
    cudaSetDevice(device->index);
    if (!cudaEventCreateWithFlags(&event, cudaEventDisableTiming))
        return (struct ops_event *)event;
    cudaGetLastError();
    return NULL;
}

static void event_close(struct ops_device *device, struct ops_event **event) {
    if (!device->hung) {
        cudaSetDevice(device->index);
        cudaEventDestroy(event_of(*event));
    }
    *event = NULL;
}

static void record(struct ops_device *device, enum ops_stream stream,
                   struct ops_event *event) {
    note(device, cudaEventRecord(event_of(event), device->streams[stream]),
         "recording an event");
}

static void follow(struct ops_device *device, enum ops_stream stream,
                   struct ops_event *event) {
    note(device,
         cudaStreamWaitEvent(device->streams[stream], event_of(event), 0),
         "following an event");
}

/* A GPU tells by being asked; a wait inside CUDA could not be ended. At first
 * it is asked without a pause: what is awaited is near. */
static void pause_after(int64_t start, int64_t now) {
    static const struct timespec interval = {.tv_nsec = 20000};
    if (now - start > SPIN)
        clock_nanosleep(CLOCK_MONOTONIC, 0, &interval, NULL);
}

static bool is_given_up(const struct ops_device *device) {
    return device->given_up && device->given_up(device->context);
}

/* cudaSuccess once EVENT has come, NULL: once all is done. */
static cudaError_t ask(const struct ops_device *device,
                       struct ops_event *event) {
    cudaError_t error = cudaSuccess;
    if (event)
        return cudaEventQuery(event_of(event));
    for (int s = 0; !error && s < OPS_STREAMS; s++)
        error = cudaStreamQuery(device->streams[s]);
    return error;
}

static enum status await(struct ops_device *device, struct ops_event *event,
                         struct failure *why) {
    int64_t start = time_now(), now = start;
    int64_t until = start + time_from_seconds(device->timeout);
    while (!device->failed) {
        cudaError_t error = ask(device, event);
        if (!error)
            return STATUS_OK;
        if (error != cudaErrorNotReady)
            note(device, error, "work under way");
        else if (now > until)
            return status_fail(why, STATUS_RETRY,
                               "device %s has not finished its work for %.3g "
                               "s (timeouts.step)",
                               device->name, device->timeout);
        else if (now - start > SPIN && is_given_up(device))
            return status_fail(why, STATUS_RETRY,
                               "device %s: the wait for it was given up",
                               device->name);
        pause_after(start, now);
        now = time_now();
    }
    return tell(device, why);
}

static enum status synchronize(struct ops_device *device, struct failure *why) {
    int64_t start = time_now(), now = start;
    cudaSetDevice(device->index);
    while (!device->failed && ask(device, NULL) == cudaErrorNotReady) {
        if (now - start > OPS_REST * TIME_S) {
            device->hung = true;
            note(device, cudaErrorLaunchTimeout, "its end");
        }
        pause_after(start, now);
        now = time_now();
    }
    note(device, device->failed ? cudaSuccess : ask(device, NULL), "its end");
    return tell(device, why);
}

/* Where ROOM has to grow, it waits for what uses it. */
static bool make_room(struct ops_device *device, struct room *room,
                      size_t bytes, const char *what) {
    if (bytes <= room->bytes)
        return true;
    cudaFree(room->memory);
    *room = (struct room){0};
    if (!note(device, cudaMalloc(&room->memory, bytes), what))
        return false;
    room->bytes = bytes;
    return true;
}

static void set_precision(struct ops_device *device,
                          enum job_precision precision) {
    device->precision = precision;
}

/* FLOATS as a product takes them, of *TYPE: themselves, or as the nearest
 * halves; NULL: that failed. */
static const void *operand(struct ops_device *device, struct room *room,
                           const float *floats, size_t count,
                           cudaDataType_t *type) {
    bool bf16 = device->precision == JOB_HALF_BF16;
    *type = CUDA_R_32F;
    if (device->precision == JOB_PRECISE)
        return floats;
    *type = bf16 ? CUDA_R_16BF : CUDA_R_16F;
    if (!make_room(device, room, count * sizeof(uint16_t), "halves") ||
        !note(device,
              (cudaError_t)cuda_kernels_to_half(device->streams[OPS_COMPUTE],
                                                bf16 ? CUDA_KERNELS_BF16
                                                     : CUDA_KERNELS_FP16,
                                                floats, room->memory, count),
              "rounding to halves"))
        return NULL;
    return room->memory;
}

/* Matrices are row-major here and column-major there, where each is its
 * transpose: c^T = b^T a^T. LEFT and RIGHT, of so many floats, become the
 * product's. */
static void multiply(struct ops_device *device,
                     struct ops_cuda_product *product, const float *left,
                     size_t left_count, const float *right,
                     size_t right_count) {
    if (device->failed)
        return;
    product->left =
        operand(device, &device->operands[0], left, left_count, &product->type);
    product->right = operand(device, &device->operands[1], right, right_count,
                             &product->type);
    if (product->left && product->right)
        note_product(device, ops_cuda_blas_multiply(&device->blas, product));
}

static void linear(struct ops_device *device, const float *x, const float *w,
                   const float *bias, float *y, uint32_t n, uint32_t in,
                   uint32_t out, enum job_activation activation) {
    struct ops_cuda_product product = {.left_as = CUBLAS_OP_T,
                                       .right_as = CUBLAS_OP_N,
                                       .m = out,
                                       .n = n,
                                       .k = in,
                                       .left_row = in,
                                       .right_row = in,
                                       .c = y};
    multiply(device, &product, w, (size_t)out * in, x, (size_t)n * in);
    note(device,
         (cudaError_t)cuda_kernels_bias_activation(device->streams[OPS_COMPUTE],
                                                   bias, y, n, out, activation),
         "bias and activation");
}

static void linear_input_gradient(struct ops_device *device, const float *dy,
                                  const float *w, float *dx, uint32_t n,
                                  uint32_t in, uint32_t out) {
    struct ops_cuda_product product = {.left_as = CUBLAS_OP_N,
                                       .right_as = CUBLAS_OP_N,
                                       .m = in,
                                       .n = n,
                                       .k = out,
                                       .left_row = in,
                                       .right_row = out,
                                       .c = dx};
    multiply(device, &product, w, (size_t)out * in, dy, (size_t)n * out);
}

static void linear_weight_gradient(struct ops_device *device, const float *dy,
                                   const float *x, float *dw, uint32_t n,
                                   uint32_t in, uint32_t out, bool add) {
    struct ops_cuda_product product = {.left_as = CUBLAS_OP_N,
                                       .right_as = CUBLAS_OP_T,
                                       .m = in,
                                       .n = out,
                                       .k = n,
                                       .left_row = in,
                                       .right_row = out,
                                       .c = dw,
                                       .add = add};
    multiply(device, &product, x, (size_t)n * in, dy, (size_t)n * out);
}

static void column_sums(struct ops_device *device, const float *dy, float *db,
                        uint32_t n, uint32_t out, bool add) {
    size_t bytes = cuda_kernels_column_sums_room(n, out);
    if (!make_room(device, &device->sums, bytes, "partial sums"))
        return;
    note(device,
         (cudaError_t)cuda_kernels_column_sums(device->streams[OPS_COMPUTE], dy,
                                               db, n, out, add,
                                               device->sums.memory),
         "column sums");
}

static void activation_gradient(struct ops_device *device,
                                enum job_activation activation, const float *y,
                                float *dy, uint32_t n, uint32_t out) {
    note(device,
         (cudaError_t)cuda_kernels_activation_gradient(
             device->streams[OPS_COMPUTE], activation, y, dy, (size_t)n * out),
         "the gradient of an activation");
}

static void loss(struct ops_device *device, enum job_loss kind, const float *z,
                 const uint32_t *labels, float *dz, uint32_t n, uint32_t out,
                 float scale, double *sum, uint32_t *correct) {
    size_t bytes = cuda_kernels_loss_room(n);
    if (!make_room(device, &device->sums, bytes, "partial sums"))
        return;
    note(device,
         (cudaError_t)cuda_kernels_loss(device->streams[OPS_COMPUTE], kind, z,
                                        labels, dz, n, out, scale, NULL,
                                        device->sums.memory, sum, correct),
         "the loss");
}

static void fill(struct ops_device *device, enum ops_stream stream, float *x,
                 size_t count, float value) {
    note(device,
         (cudaError_t)cuda_kernels_fill(device->streams[stream], x, count,
                                        value),
         "filling a vector");
}

static void scale(struct ops_device *device, enum ops_stream stream, float *x,
                  size_t count, float by) {
    note(device,
         (cudaError_t)cuda_kernels_scale(device->streams[stream], x, count, by,
                                         NULL),
         "scaling a vector");
}

static void find_overflow(struct ops_device *device, enum ops_stream stream,
                          const float *x, size_t count, uint32_t *found) {
    note(
        device,
        ops_cuda_update_find_overflow(device->streams[stream], x, count, found),
        "looking for overflows");
}

static void square_sums(struct ops_device *device, enum ops_stream stream,
                        const float *x, size_t count, float by,
                        double *pieces) {
    note(device,
         (cudaError_t)cuda_kernels_square_sums(device->streams[stream], x,
                                               count, by, NULL, pieces),
         "sums of squares");
}

static void rule(struct ops_device *device, enum ops_stream stream,
                 const struct optimizer *which,
                 const struct rule_update *update) {
    note(device,
         ops_cuda_update_rule(device->streams[stream],
                              device->constants + stream, which, update),
         "an update");
}

#define TEXT(number) #number
#define DOTTED(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

__attribute__((visibility("default"))) const struct ops capstan_device = {
    .abi = DEVICE_ABI,
    .name = "cuda",
    .version =
        "cuBLAS " DOTTED(CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH),
    .check = check,
    .later = true,
    .count = count,
    .describe = describe,
    .open = open_device,
    .close = close_device,
    .allocate = allocate,
    .release = release,
    .pin = pin,
    .unpin = unpin,
    .upload = upload,
    .download = download,
    .copy = copy,
    .native = native,
    .event_open = event_open,
    .event_close = event_close,
    .record = record,
    .follow = follow,
    .await = await,
    .synchronize = synchronize,
    .set_precision = set_precision,
    .linear = linear,
    .linear_input_gradient = linear_input_gradient,
    .linear_weight_gradient = linear_weight_gradient,
    .column_sums = column_sums,
    .activation_gradient = activation_gradient,
    .loss = loss,
    .fill = fill,
    .scale = scale,
    .find_overflow = find_overflow,
    .square_sums = square_sums,
    .rule = rule,
};
