/* What capstan-cuda.so calls of CUDA's runtime, where tests/cuda_on_cpu.cc runs
 * the kernels: one GPU, whose memory ends at a page that nobody may touch and
 * whose calls are done when they return. */
#include "tests/cuda_machine.h"

#include <cuda_runtime.h>

#include <cstring>

static const size_t memory = (size_t)1 << 30;

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int) {
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "the CPU in a GPU's place");
    properties->major = 9;
    properties->totalGlobalMem = memory;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index) {
    return index == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *available = *total = memory;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t) {
    const char *why = cuda_machine_wait();
    return why ? why : "an error of the GPU that the CPU plays";
}

cudaError_t cudaGetLastError(void) {
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    if (bytes > memory)
        return cudaErrorMemoryAllocation;
    *out = cuda_machine_allocate(bytes);
    return cudaSuccess;
}

cudaError_t cudaFree(void *freed) {
    cuda_machine_release(freed);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *, size_t, unsigned) {
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *) {
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                            enum cudaMemcpyKind, cudaStream_t) {
    memcpy(to, from, bytes);
    return cudaSuccess;
}

/* Streams and events are told apart by nobody. */
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
    static char one;
    *stream = (cudaStream_t)&one;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t) {
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t) {
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    static char one;
    *event = (cudaEvent_t)&one;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t) {
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t) {
    return cudaSuccess;
}
}
