/* SPDX-License-Identifier: Apache-2.0 */
/* capstan-nccl.so: collectives over NCCL, for ranks with one GPU each. In a
 * group that has joined a stream a call only enqueues the operation. Else a
 * vector in host memory is staged through pinned memory to the device and back,
 * and one on the device stays there. */
#include "core/base/time.h"
#include "worker/collective/collective.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct collective {
    ncclComm_t comm;
    cudaStream_t stream;
    bool shares_stream; /* `stream` is borrowed */
    uint32_t rank, size;
    int device;
    double timeout;  /* seconds */
    size_t capacity; /* bytes of each buffer */
    char *pinned, *on_device;
    const struct collective_store *rendezvous; /* during the rendezvous */
    bool failed;
    atomic_bool aborted;
};

/* Time limit of one wait. */
struct wait_limit {
    int64_t start, until;
};
static const int64_t SPIN = 100 * TIME_US;
static const double END_SECONDS = 10; /* of a group; an abort takes far less */

static enum status cuda_failed(struct collective *group, cudaError_t error,
                               const char *operation, struct failure *why) {
    group->failed = true;
    return status_fail(why, FAILURE_COLLECTIVE_UNUSABLE, "nccl: %s: %s",
                       operation, cudaGetErrorString(error));
}

static enum status nccl_failed(struct collective *group, ncclResult_t result,
                               const char *operation, struct failure *why) {
    group->failed = true;
    return status_fail(why, FAILURE_COLLECTIVE_FAILED, "nccl: %s: %s (%s)",
                       operation, ncclGetErrorString(result),
                       ncclGetLastError(group->comm));
}

static enum status collective_nccl_check(struct failure *why) {
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error)
        return status_fail(why, FAILURE_NO_DEVICE,
                           "no GPU that CUDA can use: %s",
                           cudaGetErrorString(error));
    if (!devices)
        return status_fail(why, FAILURE_NO_DEVICE, "no GPU on this host");
    return STATUS_OK;
}

static uint32_t devices(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) ? 0 : (uint32_t)count;
}

static bool is_ended(const struct collective *group) {
    const struct collective_store *rendezvous = group->rendezvous;
    return atomic_load(&group->aborted) ||
           (rendezvous && rendezvous->is_cancelled &&
            rendezvous->is_cancelled(rendezvous->context));
}

/* Poll without a pause at first: a typical call starts in less time than the
 * shortest sleep. */
static void collective_nccl_pause_after(int64_t start, int64_t now) {
    static const struct timespec interval = {.tv_nsec = 20000};
    if (now - start > SPIN)
        clock_nanosleep(CLOCK_MONOTONIC, 0, &interval, NULL);
}

/* NCCL and CUDA are polled: a blocking wait could not be aborted and would
 * never return after the loss of a rank. */
static enum status check_deadline(struct collective *group,
                                  const struct wait_limit *wait_limit,
                                  const char *operation, struct failure *why) {
    int64_t now = time_now();
    bool timed_out = now > wait_limit->until;
    if (!timed_out && !is_ended(group)) {
        collective_nccl_pause_after(wait_limit->start, now);
        return STATUS_OK;
    }
    group->failed = true;
    if (!timed_out)
        return status_fail(why, FAILURE_CANCELLED,
                           "this rank has aborted the collective");
    return status_fail(why, FAILURE_PEER_SILENT,
                       "nccl: %s: a rank did not answer rank %u within %.3g "
                       "s; NCCL does not report which",
                       operation, group->rank, group->timeout);
}

/* The asynchronous state of calls that nothing waits for. */
static ncclResult_t state_of(const struct collective *group) {
    ncclResult_t result = ncclSuccess;
    ncclResult_t query_result = ncclCommGetAsyncError(group->comm, &result);
    return query_result ? query_result : result;
}

/* Waits until the call that returned RESULT has started. */
static enum status wait_started(struct collective *group, ncclResult_t result,
                                int64_t until, const char *operation,
                                struct failure *why) {
    struct wait_limit wait_limit = {time_now(), until};
    while (result == ncclInProgress) {
        enum status status = check_deadline(group, &wait_limit, operation, why);
        if (status)
            return status;
        result = state_of(group);
    }
    return result ? nccl_failed(group, result, operation, why) : STATUS_OK;
}

/* Waits until all calls are done. */
static enum status wait_finished(struct collective *group, int64_t until,
                                 const char *operation, struct failure *why) {
    struct wait_limit wait_limit = {time_now(), until};
    cudaError_t error;
    while ((error = cudaStreamQuery(group->stream)) == cudaErrorNotReady) {
        ncclResult_t result = state_of(group);
        if (result && result != ncclInProgress)
            return nccl_failed(group, result, operation, why);
        enum status status = check_deadline(group, &wait_limit, operation, why);
        if (status)
            return status;
    }
    if (!error)
        return STATUS_OK;
    return cuda_failed(group, error, operation, why);
}

/* Rank 0 creates NCCL's unique id and publishes it. */
static enum status share_id(ncclUniqueId *id,
                            const struct collective_settings *settings,
                            int64_t until, struct failure *why) {
    const struct collective_store *store = settings->store;
    if (!settings->rank) {
        ncclResult_t result = ncclGetUniqueId(id);
        if (result)
            return status_fail(why, FAILURE_COLLECTIVE_UNUSABLE,
                               "nccl: no unique id: %s",
                               ncclGetErrorString(result));
        return store->set(store->context, "nccl.id", id, sizeof *id, why);
    }
    void *value = NULL;
    size_t size = 0;
    enum status status =
        store->get(store->context, "nccl.id", until, &value, &size, why);
    if (status)
        return status_context(why, "rank 0 did not come");
    bool complete = size == sizeof *id;
    if (complete)
        memcpy(id, value, sizeof *id);
    free(value);
    return complete ? STATUS_OK
                    : status_fail(why, FAILURE_VERSION_MISMATCH,
                                  "nccl: rank 0 has another version of NCCL");
}

static void *destroy_comm(void *argument) {
    struct collective *group = argument;
    cudaSetDevice(group->device);
    ncclCommDestroy(group->comm);
    return NULL;
}

static void *abort_comm(void *argument) {
    struct collective *group = argument;
    cudaSetDevice(group->device);
    ncclCommAbort(group->comm);
    return NULL;
}

/* Calls END, which may never return where a rank was lost, on a thread that is
 * left behind then. */
static bool end_in_time(struct collective *group, void *(*end)(void *)) {
    double limit = group->timeout < END_SECONDS ? group->timeout : END_SECONDS;
    int64_t until = time_now() + time_from_seconds(limit);
    struct timespec time = {until / TIME_S, until % TIME_S};
    pthread_t thread;
    if (pthread_create(&thread, NULL, end, group))
        return false;
    if (!pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &time))
        return true;
    pthread_detach(thread);
    return false;
}

/* Without the end of the group nothing is freed: that would wait for the
 * device, whose work may not end either. */
static bool collective_nccl_end(struct collective **out) {
    struct collective *group = *out;
    *out = NULL;
    if (!group)
        return true;
    int64_t until = time_now() + time_from_seconds(group->timeout);
    bool complete =
        group->comm && !group->failed && !atomic_load(&group->aborted) &&
        !wait_started(group, ncclCommFinalize(group->comm), until, "end", NULL);
    if (group->comm &&
        !end_in_time(group, complete ? destroy_comm : abort_comm))
        return false;
    cudaFreeHost(group->pinned);
    cudaFree(group->on_device);
    if (group->stream && !group->shares_stream)
        cudaStreamDestroy(group->stream);
    free(group);
    return true;
}

static void abort_group(struct collective *group) {
    atomic_store(&group->aborted, true);
}

static enum status use_device(struct collective *group,
                              const struct collective_settings *settings,
                              struct failure *why) {
    uint32_t device = settings->device, count = devices();
    if (count == 1) /* each rank may see only its own GPU; else NCCL reports
                       duplicates */
        device = 0;
    if (device >= count)
        return status_fail(why, FAILURE_COLLECTIVE_UNUSABLE,
                           "nccl: rank %u is number %u of its host, which has "
                           "%u GPUs; start fewer ranks there",
                           group->rank, device, count);
    group->device = (int)device;
    group->stream = settings->stream;
    group->shares_stream = settings->stream != NULL;
    cudaError_t error = cudaSetDevice(group->device);
    if (!error && !group->shares_stream)
        error =
            cudaStreamCreateWithFlags(&group->stream, cudaStreamNonBlocking);
    return error ? cuda_failed(group, error, "device", why) : STATUS_OK;
}

static enum status collective_nccl_begin(
    struct collective **out, const struct collective_settings *settings,
    struct failure *why) {
    *out = NULL;
    struct collective *group = calloc(1, sizeof *group);
    if (!group)
        return status_fail(why, FAILURE_NO_MEMORY, "nccl: out of memory");
    group->rank = settings->rank;
    group->size = settings->size;
    group->timeout = settings->timeout;
    group->rendezvous = settings->store;
    ncclUniqueId id;
    int64_t until = time_now() + time_from_seconds(settings->timeout);
    enum status status = use_device(group, settings, why);
    if (!status)
        status = share_id(&id, settings, until, why);
    if (!status) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        status =
            wait_started(group,
                         ncclCommInitRankConfig(&group->comm, (int)group->size,
                                                id, (int)group->rank, &config),
                         until, "start", why);
    }
    group->rendezvous = NULL;
    if (status)
        abort_group(group);
    *out = group;
    return status;
}

static bool is_on_device(const void *data) {
    struct cudaPointerAttributes attributes;
    return !cudaPointerGetAttributes(&attributes, data) &&
           attributes.type == cudaMemoryTypeDevice;
}

static enum status collective_nccl_reserve(struct collective *group,
                                           size_t bytes, struct failure *why) {
    if (bytes <= group->capacity)
        return STATUS_OK;
    cudaFreeHost(group->pinned);
    cudaFree(group->on_device);
    group->pinned = group->on_device = NULL;
    group->capacity = 0;
    cudaError_t error = cudaMallocHost((void **)&group->pinned, bytes);
    if (!error)
        error = cudaMalloc((void **)&group->on_device, bytes);
    if (error)
        return cuda_failed(group, error, "memory for a bucket", why);
    group->capacity = bytes;
    return STATUS_OK;
}

/* An operation: CALL on BYTES of device memory. */
struct work {
    ncclResult_t (*call)(struct collective *group, char *data, size_t bytes,
                         uint32_t root);
    size_t bytes;
    uint32_t root;
    const char *operation;
};

/* Enqueues it, nothing more. */
static enum status collective_nccl_start(struct collective *group,
                                         const struct work *work, char *data,
                                         int64_t until, struct failure *why) {
    return wait_started(group, work->call(group, data, work->bytes, work->root),
                        until, work->operation, why);
}

static enum status collective_nccl_run(struct collective *group,
                                       const struct work *work, char *data,
                                       int64_t until, struct failure *why) {
    enum status status = collective_nccl_start(group, work, data, until, why);
    return status || group->shares_stream
               ? status
               : wait_finished(group, until, work->operation, why);
}

/* Upload, operation and download, in order on the stream. */
static enum status staged(struct collective *group, const struct work *work,
                          char *data, int64_t until, struct failure *why) {
    size_t bytes = work->bytes;
    enum status status = collective_nccl_reserve(group, bytes, why);
    if (status)
        return status;
    memcpy(group->pinned, data, bytes);
    cudaError_t error = cudaMemcpyAsync(group->on_device, group->pinned, bytes,
                                        cudaMemcpyHostToDevice, group->stream);
    if (error)
        return cuda_failed(group, error, work->operation, why);
    status = collective_nccl_start(group, work, group->on_device, until, why);
    if (status)
        return status;
    error = cudaMemcpyAsync(group->pinned, group->on_device, bytes,
                            cudaMemcpyDeviceToHost, group->stream);
    if (error)
        return cuda_failed(group, error, work->operation, why);
    status = wait_finished(group, until, work->operation, why);
    if (!status)
        memcpy(data, group->pinned, bytes);
    return status;
}

static enum status collective_nccl_call(struct collective *group, void *data,
                                        const struct work *work,
                                        struct failure *why) {
    int64_t until = time_now() + time_from_seconds(group->timeout);
    if (group->failed || atomic_load(&group->aborted))
        return status_fail(why, FAILURE_CANCELLED,
                           "this rank has aborted the collective");
    if (!work->bytes || group->size == 1)
        return STATUS_OK;
    cudaError_t error = cudaSetDevice(group->device);
    if (error)
        return cuda_failed(group, error, work->operation, why);
    bool on_device_already = group->shares_stream || is_on_device(data);
    return (on_device_already ? collective_nccl_run : staged)(group, work, data,
                                                              until, why);
}

static ncclResult_t sum_all(struct collective *group, char *data, size_t bytes,
                            uint32_t root) {
    (void)root;
    return ncclAllReduce(data, data, bytes / sizeof(float), ncclFloat, ncclSum,
                         group->comm, group->stream);
}

/* NCCL's own reduce-scatter and all-gather require equal pieces. */
static ncclResult_t collective_nccl_sum_pieces(struct collective *group,
                                               char *data, size_t bytes,
                                               uint32_t root) {
    (void)root;
    ncclGroupStart();
    for (uint32_t i = 0; i < group->size; i++) {
        size_t first, count = collective_piece(bytes / sizeof(float), i,
                                               group->size, &first);
        char *piece = data + first * sizeof(float);
        if (count)
            ncclReduce(piece, piece, count, ncclFloat, ncclSum, (int)i,
                       group->comm, group->stream);
    }
    return ncclGroupEnd();
}

static ncclResult_t gather_pieces(struct collective *group, char *data,
                                  size_t bytes, uint32_t root) {
    (void)root;
    ncclGroupStart();
    for (uint32_t i = 0; i < group->size; i++) {
        size_t first, count = collective_piece(bytes / sizeof(float), i,
                                               group->size, &first);
        char *piece = data + first * sizeof(float);
        if (count)
            ncclBroadcast(piece, piece, count, ncclFloat, (int)i, group->comm,
                          group->stream);
    }
    return ncclGroupEnd();
}

static ncclResult_t send_root(struct collective *group, char *data,
                              size_t bytes, uint32_t root) {
    return ncclBroadcast(data, data, bytes, ncclChar, (int)root, group->comm,
                         group->stream);
}

static enum status collective_nccl_all_reduce(struct collective *group,
                                              float *data, size_t count,
                                              struct failure *why) {
    struct work work = {sum_all, count * sizeof *data, 0, "all-reduce"};
    return collective_nccl_call(group, data, &work, why);
}

static enum status collective_nccl_reduce_scatter(struct collective *group,
                                                  float *data, size_t count,
                                                  struct failure *why) {
    struct work work = {collective_nccl_sum_pieces, count * sizeof *data, 0,
                        "reduce-scatter"};
    return collective_nccl_call(group, data, &work, why);
}

static enum status collective_nccl_all_gather(struct collective *group,
                                              float *data, size_t count,
                                              struct failure *why) {
    struct work work = {gather_pieces, count * sizeof *data, 0, "all-gather"};
    return collective_nccl_call(group, data, &work, why);
}

static enum status collective_nccl_broadcast(struct collective *group,
                                             void *data, size_t bytes,
                                             uint32_t root,
                                             struct failure *why) {
    struct work work = {send_root, bytes, root, "broadcast"};
    return collective_nccl_call(group, data, &work, why);
}

static enum status async_error(struct collective *group, struct failure *why) {
    if (atomic_load(&group->aborted))
        return status_fail(why, FAILURE_CANCELLED,
                           "this rank has aborted the collective");
    ncclResult_t result = state_of(group);
    if (!result || result == ncclInProgress)
        return STATUS_OK;
    return nccl_failed(group, result, "an earlier operation", why);
}

#define TEXT(number) #number
#define DOTTED(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

__attribute__((visibility("default")))
const struct collective_ops capstan_collective = {
    .abi = COLLECTIVE_ABI,
    .name = "nccl",
    .version = DOTTED(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH),
    .check = collective_nccl_check,
    .open = collective_nccl_begin,
    .abort = abort_group,
    .close = collective_nccl_end,
    .all_reduce = collective_nccl_all_reduce,
    .reduce_scatter = collective_nccl_reduce_scatter,
    .all_gather = collective_nccl_all_gather,
    .broadcast = collective_nccl_broadcast,
    .supports_stream = true,
    .async_error = async_error,
};
