/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/cuda_on_cpu.h"

#include "tests/gpu/cuda_backend.h"
#include "tests/gpu/cuda_fiber.h"

#include <cstdio>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

enum { WARP = 32, MOST_THREADS = 1024, FILLING = 0xff };

dim3 threadIdx, blockIdx, blockDim, gridDim;

enum waiting { FOR_NOTHING, FOR_BLOCK, FOR_WARP, LEFT };

/* A thread of the block, and the warp's exchange that it takes part in. */
struct thread {
    struct cuda_fiber *fiber;
    enum waiting waiting;
    unsigned mask;
    uint64_t given;
};

/* The one device there is. */
static struct {
    struct thread threads[MOST_THREADS];
    unsigned running;                          /* an index of it */
    uint64_t shown[MOST_THREADS / WARP][WARP]; /* of the last exchange */
    const std::function<void()> *body;
    uint64_t seed, random;
    unsigned max_blocks;
    char failure[128]; /* "" where the last launch did not fail */
} device;

/* What is between them: all that is __shared__. */
extern "C" {
extern char __start_cuda_shared[] __attribute__((weak));
extern char __stop_cuda_shared[] __attribute__((weak));
}

static void run_thread(void *) {
    (*device.body)();
}

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t next_random(void) {
    uint64_t z = device.random += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* 0 to COUNT - 1, in the order of the seed. */
static std::vector<unsigned> order_of(unsigned count) {
    std::vector<unsigned> order(count);
    std::iota(order.begin(), order.end(), 0u);
    for (unsigned left = count; device.seed && left > 1; left--)
        std::swap(order[left - 1], order[next_random() % left]);
    return order;
}

static void resume(unsigned index) {
    struct thread *thread = &device.threads[index];
    device.running = index;
    threadIdx = dim3(index, 0, 0);
    if (cuda_fiber_resume(thread->fiber))
        thread->waiting = LEFT;
}

static void wait_for(enum waiting what) {
    struct thread *thread = &device.threads[device.running];
    thread->waiting = what;
    cuda_fiber_pause(thread->fiber);
}

void __syncthreads(void) {
    wait_for(FOR_BLOCK);
}

const uint64_t *cuda_on_cpu_exchange(unsigned mask, uint64_t given) {
    struct thread *thread = &device.threads[device.running];
    thread->mask = mask;
    thread->given = given;
    wait_for(FOR_WARP);
    return device.shown[threadIdx.x / WARP];
}

/* All lanes that one of WARP waits for have come, with the same mask. */
static bool complete(const struct thread *warp, unsigned mask) {
    for (unsigned lane = 0; lane < WARP; lane++)
        if (mask >> lane & 1 &&
            (warp[lane].waiting != FOR_WARP || warp[lane].mask != mask))
            return false;
    return true;
}

/* Lets WARP's lanes go on that have met; false where none has. */
static bool release_warp(unsigned warp) {
    struct thread *lanes = &device.threads[(size_t)warp * WARP];
    bool released = false;
    for (unsigned lane = 0; lane < WARP; lane++)
        if (lanes[lane].waiting == FOR_WARP && lanes[lane].mask >> lane & 1 &&
            complete(lanes, lanes[lane].mask)) {
            unsigned mask = lanes[lane].mask;
            for (unsigned other = 0; other < WARP; other++) {
                if (!(mask >> other & 1))
                    continue;
                device.shown[warp][other] = lanes[other].given;
                lanes[other].waiting = FOR_NOTHING;
            }
            released = true;
        }
    return released;
}

static unsigned waiting_for(enum waiting what) {
    unsigned count = 0;
    for (unsigned i = 0; i < blockDim.x; i++)
        count += device.threads[i].waiting == what;
    return count;
}

/* Lets go on who may; false where nobody may. */
static bool release(void) {
    bool released = false;
    for (unsigned warp = 0; warp < blockDim.x / WARP; warp++)
        released |= release_warp(warp);
    if (waiting_for(FOR_BLOCK) < blockDim.x)
        return released;
    for (unsigned i = 0; i < blockDim.x; i++)
        device.threads[i].waiting = FOR_NOTHING;
    return true;
}

static bool run_block(void) {
    if (__start_cuda_shared)
        memset(__start_cuda_shared, FILLING,
               (size_t)(__stop_cuda_shared - __start_cuda_shared));
    for (unsigned i = 0; i < blockDim.x; i++)
        device.threads[i].waiting = FOR_NOTHING;
    do {
        for (unsigned i : order_of(blockDim.x))
            if (device.threads[i].waiting == FOR_NOTHING)
                resume(i);
    } while (release());
    return waiting_for(LEFT) == blockDim.x;
}

/* Threads that wait for ever are given up, with their stacks. */
static cudaError_t strand(void) {
    snprintf(device.failure, sizeof device.failure,
             "block %u: %u threads wait for the block and %u for their warp, "
             "%u have left",
             blockIdx.x, waiting_for(FOR_BLOCK), waiting_for(FOR_WARP),
             waiting_for(LEFT));
    for (struct thread &thread : device.threads)
        cuda_fiber_close(&thread.fiber);
    return cudaErrorLaunchFailure;
}

/* Where there are streams (tests/gpu/cuda_streams.h), as in the plugin. */
extern int cuda_streams_submit(struct CUstream_st *stream,
                               std::function<int()> work) __attribute__((weak));

/* One kernel at a time, whichever device it is for. */
static cudaError_t launch_now(const cudaLaunchConfig_t *config,
                              const std::function<void()> &thread) {
    static std::mutex mutex;
    std::lock_guard<std::mutex> held(mutex);
    blockDim = config->blockDim;
    gridDim = config->gridDim;
    if (!gridDim.x || !blockDim.x || blockDim.x > MOST_THREADS ||
        blockDim.x % WARP)
        return cudaErrorInvalidConfiguration;
    if (device.max_blocks && gridDim.x > device.max_blocks)
        gridDim.x = device.max_blocks;
    device.body = &thread;
    device.failure[0] = 0;
    for (unsigned i = 0; i < blockDim.x; i++)
        if (!device.threads[i].fiber)
            device.threads[i].fiber = cuda_fiber_open(run_thread, nullptr);
    for (unsigned block : order_of(gridDim.x)) {
        blockIdx = dim3(block, 0, 0);
        if (!run_block())
            return strand();
    }
    return cudaSuccess;
}

cudaError_t cuda_on_cpu_launch(const cudaLaunchConfig_t *config,
                               const std::function<void()> &thread) {
    if (!config->stream)
        return launch_now(config, thread);
    return (cudaError_t)cuda_streams_submit(
        config->stream, [given = *config, thread] {
            cudaError_t error = launch_now(&given, thread);
            if (error)
                fprintf(stderr, "a kernel: %s\n", device.failure);
            return (int)error;
        });
}

void cuda_backend_set_order(uint64_t seed, unsigned max_blocks) {
    device.seed = device.random = seed;
    device.max_blocks = max_blocks;
}

const char *cuda_backend_wait(void) {
    return device.failure[0] ? device.failure : nullptr;
}
