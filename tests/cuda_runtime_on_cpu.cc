/* What capstan-cuda.so calls of CUDA's runtime, where tests/cuda_on_cpu.cc runs
 * the kernels: GPUs whose memory ends at a page that nobody may touch, and
 * whose streams are tests/cuda_streams.h's. */
#include "tests/cuda_machine.h"
#include "tests/cuda_streams.h"

#include <cuda_runtime.h>

#include <cstring>

static const size_t memory = (size_t)1 << 30;

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
    *count = (int)cuda_streams_devices();
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
    if (index < 0 || index >= (int)cuda_streams_devices())
        return cudaErrorInvalidDevice;
    cuda_streams_use(index);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *available = *total = memory;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t) {
    return "an error of the GPU that the CPU plays";
}

cudaError_t cudaGetLastError(void) {
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    int error = cuda_streams_unsafe();
    if (error || bytes > memory)
        return error ? (cudaError_t)error : cudaErrorMemoryAllocation;
    *out = cuda_machine_allocate(bytes);
    return cudaSuccess;
}

/* Waits for what is under way. */
cudaError_t cudaFree(void *freed) {
    int error = cuda_streams_unsafe();
    if (error)
        return (cudaError_t)error;
    error = freed ? cuda_streams_finish() : 0;
    cuda_machine_release(freed);
    return (cudaError_t)error;
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes,
                            cudaStream_t stream) {
    return (cudaError_t)cuda_streams_give(stream, [to, byte, bytes] {
        memset(to, byte, bytes);
        return 0;
    });
}

cudaError_t cudaHostRegister(void *, size_t, unsigned) {
    return (cudaError_t)cuda_streams_unsafe();
}

cudaError_t cudaHostUnregister(void *) {
    return (cudaError_t)cuda_streams_unsafe();
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                            enum cudaMemcpyKind, cudaStream_t stream) {
    return (cudaError_t)cuda_streams_give(stream, [to, from, bytes] {
        memcpy(to, from, bytes);
        return 0;
    });
}

cudaError_t cudaMallocHost(void **out, size_t bytes) {
    *out = cuda_machine_allocate(bytes);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *freed) {
    cuda_machine_release(freed);
    return cudaSuccess;
}

/* Waits for what is under way. */
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes,
                       enum cudaMemcpyKind) {
    int error = cuda_streams_finish();
    memcpy(to, from, bytes);
    return (cudaError_t)error;
}

/* Asked of what may be the host's, which all memory here is. */
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                     const void *) {
    memset(attributes, 0, sizeof *attributes);
    attributes->type = cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
    *stream = cuda_streams_open();
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    cuda_streams_close(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return (cudaError_t)cuda_streams_query(stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned) {
    return (cudaError_t)cuda_streams_wait(stream, event);
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
    return (cudaError_t)cuda_streams_record(event, stream, false);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                     unsigned flags) {
    return (cudaError_t)cuda_streams_record(event, stream,
                                            flags == cudaEventRecordExternal);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return (cudaError_t)cuda_streams_event_query(event);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   enum cudaStreamCaptureMode mode) {
    return mode == cudaStreamCaptureModeThreadLocal
               ? (cudaError_t)cuda_streams_begin(stream)
               : cudaErrorInvalidValue;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    return (cudaError_t)cuda_streams_end(stream, graph);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long) {
    return (cudaError_t)cuda_streams_instantiate(exec, graph);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    return (cudaError_t)cuda_streams_launch(exec, stream);
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
