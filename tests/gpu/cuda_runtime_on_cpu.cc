/* SPDX-License-Identifier: Apache-2.0 */
/* What capstan-cuda.so calls of CUDA's runtime, where tests/gpu/cuda_on_cpu.cc
 * runs the kernels: GPUs whose memory ends at a page that nobody may touch, and
 * whose streams are tests/gpu/cuda_streams.h's. A copy is refused that does not
 * go the way it says, or beyond the memory of its device; what is not an error
 * but cudaErrorNotReady stays the thread's last error all the same, as CUDA's.
 */
#include "tests/gpu/cuda_backend.h"
#include "tests/gpu/cuda_ranges.h"
#include "tests/gpu/cuda_streams.h"

#include <cuda_runtime.h>

#include <cstring>

static const size_t memory = (size_t)1 << 30;

static thread_local cudaError_t last;

static cudaError_t tell(int error) {
    if (error)
        last = (cudaError_t)error;
    return (cudaError_t)error;
}

static bool is_of_device(const void *first, size_t bytes) {
    int kind;
    return cuda_ranges_kind(first, bytes, &kind) && kind >= 0;
}

static bool is_of_host(const void *first, size_t bytes) {
    int kind;
    return cuda_ranges_kind(first, bytes, &kind) && kind < 0;
}

static bool goes(const void *to, const void *from, size_t bytes,
                 enum cudaMemcpyKind way) {
    bool up = way == cudaMemcpyHostToDevice,
         down = way == cudaMemcpyDeviceToHost;
    return bytes == 0 ||
           ((up ? is_of_host(from, bytes) : is_of_device(from, bytes)) &&
            (down ? is_of_host(to, bytes) : is_of_device(to, bytes)));
}

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
    *count = (int)cuda_streams_num_devices();
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties,
                                    int index) {
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "the CPU in a GPU's place");
    properties->uuid.bytes[0] = (char)index;
    properties->major = 9;
    properties->totalGlobalMem = memory;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
    if (index < 0 || index >= (int)cuda_streams_num_devices())
        return tell(cudaErrorInvalidDevice);
    cuda_streams_set_device(index);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *available = *total = memory;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorNotReady
               ? "device not ready"
               : "an error of the GPU that the CPU plays";
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    int error = cuda_streams_check_uncaptured();
    if (error || bytes > memory)
        return tell(error ? error : (int)cudaErrorMemoryAllocation);
    *out = cuda_backend_allocate(bytes);
    cuda_ranges_add(*out, bytes, cuda_streams_current_device());
    return cudaSuccess;
}

/* Waits for what is under way. */
cudaError_t cudaFree(void *freed) {
    int error = cuda_streams_check_uncaptured();
    if (error || !freed)
        return tell(error);
    if (!cuda_ranges_drop(freed, false))
        return tell(cudaErrorInvalidValue);
    error = cuda_streams_finish();
    cuda_backend_release(freed);
    return tell(error);
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes,
                            cudaStream_t stream) {
    return tell(!is_of_device(to, bytes)
                    ? (int)cudaErrorInvalidValue
                    : cuda_streams_submit(stream, [to, byte, bytes] {
                          memset(to, byte, bytes);
                          return 0;
                      }));
}

cudaError_t cudaHostRegister(void *first, size_t bytes, unsigned) {
    int error = cuda_streams_check_uncaptured();
    if (!error && !cuda_ranges_add(first, bytes, CUDA_RANGES_PINNED))
        error = cudaErrorHostMemoryAlreadyRegistered;
    return tell(error);
}

/* Who unpins what is being copied would not hear of it. */
cudaError_t cudaHostUnregister(void *first) {
    int error = cuda_streams_check_uncaptured();
    if (!error && !cuda_ranges_drop(first, true))
        error = cudaErrorHostMemoryNotRegistered;
    return tell(error);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                            enum cudaMemcpyKind way, cudaStream_t stream) {
    bool up = way == cudaMemcpyHostToDevice;
    int kind = CUDA_RANGES_PINNED;
    if (way != cudaMemcpyDeviceToDevice)
        cuda_ranges_kind(up ? from : to, bytes, &kind);
    cuda_streams_add_copy(bytes, up, kind != CUDA_RANGES_PINNED);
    return tell(!goes(to, from, bytes, way)
                    ? (int)cudaErrorInvalidValue
                    : cuda_streams_submit(stream, [to, from, bytes] {
                          memcpy(to, from, bytes);
                          return 0;
                      }));
}

cudaError_t cudaMallocHost(void **out, size_t bytes) {
    *out = cuda_backend_allocate(bytes);
    cuda_ranges_add(*out, bytes, CUDA_RANGES_PINNED);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *freed) {
    if (freed && !cuda_ranges_drop(freed, true))
        return tell(cudaErrorInvalidValue);
    cuda_backend_release(freed);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                     const void *asked) {
    int kind;
    cuda_ranges_kind(asked, 1, &kind);
    memset(attributes, 0, sizeof *attributes);
    attributes->type = kind >= 0 ? cudaMemoryTypeDevice
                       : kind == CUDA_RANGES_PINNED
                           ? cudaMemoryTypeHost
                           : cudaMemoryTypeUnregistered;
    attributes->device = kind >= 0 ? kind : cuda_streams_current_device();
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
    *stream = cuda_streams_open();
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -1;
    return cudaSuccess;
}

/* Streams that wait for the default one would end what is captured. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags,
                                         int) {
    if (flags != cudaStreamNonBlocking)
        return tell(cudaErrorInvalidValue);
    *stream = cuda_streams_open();
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    cuda_streams_close(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return tell(cuda_streams_query(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned) {
    return tell(cuda_streams_wait(stream, event));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    *event = cuda_streams_event_open();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    cuda_streams_event_close(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return tell(cuda_streams_record(event, stream, false));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                     unsigned flags) {
    return tell(
        cuda_streams_record(event, stream, flags == cudaEventRecordExternal));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return tell(cuda_streams_event_query(event));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   enum cudaStreamCaptureMode mode) {
    return mode == cudaStreamCaptureModeThreadLocal
               ? tell(cuda_streams_begin_capture(stream))
               : tell(cudaErrorInvalidValue);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    return tell(cuda_streams_end_capture(stream, graph));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long) {
    return tell(cuda_streams_instantiate(exec, graph));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    return tell(cuda_streams_launch(exec, stream));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    cuda_streams_graph_close(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    cuda_streams_exec_close(exec);
    return cudaSuccess;
}
}
