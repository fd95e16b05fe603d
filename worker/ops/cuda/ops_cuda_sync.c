/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of a GPU, which come late; and waits for it by polling, as a blocking
 * wait in CUDA could not be aborted. */
#include "core/base/time.h"
#include "worker/ops/cuda/ops_cuda_internal.h"

#include <time.h>

/* Poll without a pause for this long: most steps are shorter, and the shortest
 * sleep takes as long as a small step. */
static const int64_t SPIN = 1 * TIME_MS;

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

static void ops_cuda_sync_pause_after(int64_t start, int64_t now) {
    static const struct timespec interval = {.tv_nsec = 20000};
    if (now - start > SPIN)
        clock_nanosleep(CLOCK_MONOTONIC, 0, &interval, NULL);
}

static bool ops_cuda_sync_is_cancelled(const struct device *device) {
    const struct device_settings *settings = &device->settings;
    return settings->is_cancelled && settings->is_cancelled(settings->context);
}

/* cudaSuccess once EVENT is complete; NULL: once all work is done. */
static cudaError_t ops_cuda_sync_query(const struct device *device,
                                       const struct device_event *event) {
    cudaError_t error = cudaSuccess;
    if (event)
        return cudaEventQuery(event->event);
    for (int s = 0; !error && s < DEVICE_STREAMS; s++)
        error = cudaStreamQuery(device->streams[s]);
    return error;
}

enum status ops_cuda_sync_event(struct device *device,
                                struct device_event *event,
                                struct failure *why) {
    double timeout = device->settings.timeout;
    int64_t start = time_now(), now = start;
    int64_t until = start + time_from_seconds(timeout);
    while (!device->failed) {
        cudaError_t error = ops_cuda_sync_query(device, event);
        if (!error)
            return STATUS_OK;
        if (error != cudaErrorNotReady)
            ops_cuda_keep_error(device, error, "work in progress");
        else if (now > until)
            return status_fail(why, FAILURE_DEVICE_TIMEOUT,
                               "device %s has not finished its work for %.3g "
                               "s (timeouts.step)",
                               device->name, timeout);
        else if (now - start > SPIN && ops_cuda_sync_is_cancelled(device))
            return status_fail(why, FAILURE_CANCELLED,
                               "device %s: the wait for it was cancelled",
                               device->name);
        ops_cuda_sync_pause_after(start, now);
        now = time_now();
    }
    return ops_cuda_report_error(device, why);
}

enum status ops_cuda_sync_all(struct device *device, struct failure *why) {
    int64_t start = time_now(), now = start;
    cudaSetDevice(device->index);
    while (!device->failed &&
           ops_cuda_sync_query(device, NULL) == cudaErrorNotReady) {
        if (now - start > DEVICE_SYNC_SECONDS * TIME_S) {
            device->hung = true;
            ops_cuda_keep_error(device, cudaErrorLaunchTimeout, "its end");
        }
        ops_cuda_sync_pause_after(start, now);
        now = time_now();
    }
    ops_cuda_keep_error(device,
                        device->failed ? cudaSuccess
                                       : ops_cuda_sync_query(device, NULL),
                        "its end");
    return ops_cuda_report_error(device, why);
}
