/* SPDX-License-Identifier: Apache-2.0 */
/* A reducer without a thread: the compute thread enqueues all device work on
 * STREAM_EXCHANGE, behind the STREAM_COMPUTE work enqueued so far, and
 * STREAM_COMPUTE waits for it before it reads weights. The host waits once a
 * round, for the header. */
#include "proto/base/time.h"
#include "worker/exchange/allreduce/reducer_internal.h"

#include <stdlib.h>

bool reducer_is_resident(const struct reducer *reducer) {
    return reducer->settings.resident;
}

static bool reducer_device_open_events(struct reducer *reducer) {
    struct resident *resident = &reducer->resident;
    const struct device_ops *ops = resident->device_arena.ops;
    uint32_t count = reducer->reduction.num_buckets;
    resident->updated = calloc(count, sizeof *resident->updated);
    resident->gradients_complete =
        ops->event_open(resident->device_arena.device);
    bool complete = resident->updated && resident->gradients_complete;
    for (uint32_t i = 0; resident->updated && i < count; i++) {
        resident->updated[i] = ops->event_open(resident->device_arena.device);
        complete = complete && resident->updated[i];
    }
    return complete;
}

static void reducer_device_close_events(struct reducer *reducer) {
    struct resident *resident = &reducer->resident;
    const struct device_ops *ops = resident->device_arena.ops;
    uint32_t count = reducer->reduction.num_buckets;
    for (uint32_t i = 0; resident->updated && i < count; i++)
        if (resident->updated[i])
            ops->event_close(resident->device_arena.device,
                             &resident->updated[i]);
    if (resident->gradients_complete)
        ops->event_close(resident->device_arena.device,
                         &resident->gradients_complete);
    free(resident->updated);
    resident->updated = NULL;
}

/* Allocates device memory first, then connects to the other ranks. */
static enum status connect_ranks(struct reducer *reducer, struct failure *why) {
    const struct reducer_device_arena *device_arena =
        &reducer->resident.device_arena;
    struct collective_settings group = reducer->settings.group;
    enum status status =
        state_io_open(&reducer->state_io, &reducer->reduction, why);
    if (!status && !reducer_device_open_events(reducer))
        status = status_fail(why, FAILURE_NO_MEMORY, "no memory for a reducer");
    group.stream =
        device_arena->ops->native_stream(device_arena->device, STREAM_EXCHANGE);
    if (!status)
        status = group_connect(&reducer->ranks, &group, why);
    return status ? status : state_io_load(&reducer->state_io, why);
}

static void reducer_device_record(struct reducer *reducer, uint32_t i) {
    const struct reducer_device_arena *device_arena =
        &reducer->resident.device_arena;
    device_arena->ops->record(device_arena->device, STREAM_EXCHANGE,
                              reducer->resident.updated[i]);
}

enum status reducer_begin(struct reducer *reducer,
                          const struct reducer_device_arena *device_arena,
                          struct failure *why) {
    struct resident *resident = &reducer->resident;
    if (!reducer->settings.resident)
        return STATUS_OK;
    resident->device_arena = *device_arena;
    enum status status = reduction_open(&reducer->reduction, &reducer->settings,
                                        device_arena, &reducer->ranks, why);
    if (status)
        return status;
    resident->opened = true;
    status = connect_ranks(reducer, why);
    if (status)
        return status;
    for (uint32_t i = 0; i < reducer->reduction.num_buckets; i++)
        reducer_device_record(reducer, i);
    sequence_advance(&reducer->updated, reducer->num_parameters);
    return STATUS_OK;
}

/* Collectives with lost ranks would keep the device busy: the group is closed
 * first. */
void reducer_end(struct reducer *reducer) {
    struct resident *resident = &reducer->resident;
    if (!resident->opened)
        return;
    resident->opened = false;
    group_disconnect(&reducer->ranks);
    resident->device_arena.ops->synchronize(resident->device_arena.device,
                                            NULL);
    reducer_device_close_events(reducer);
    state_io_close(&reducer->state_io);
    reduction_close(&reducer->reduction);
}

/* Sums bucket I once STREAM_COMPUTE has completed its gradients. */
static enum status reducer_device_sum(struct reducer *reducer, uint32_t i,
                                      struct failure *why) {
    const struct reducer_device_arena *device_arena =
        &reducer->resident.device_arena;
    uint32_t started = reducer->reduction.buckets[i].started;
    uint32_t last = reducer->num_parameters - started;
    device_arena->ops->stream_wait(device_arena->device, STREAM_EXCHANGE,
                                   device_arena->complete[last]);
    return reduction_sum(&reducer->reduction, i, why);
}

/* Sums all buckets whose parameters are announced. */
static enum status sum_announced(struct reducer *reducer, uint32_t announced,
                                 struct failure *why) {
    const struct reduction *reduction = &reducer->reduction;
    uint32_t *next = &reducer->resident.summed;
    bool all = announced == reducer->num_parameters;
    enum status status = STATUS_OK;
    if (!all && !reducer->settings.job->zero.overlap)
        return STATUS_OK;
    while (!status && *next < reduction->num_buckets &&
           reduction->buckets[*next].started <= announced)
        status = reducer_device_sum(reducer, (*next)++, why);
    return status;
}

/* Waits on an event of STREAM_COMPUTE alone, so that the wait does not include
 * collectives. */
static enum status sync_gradients(struct reducer *reducer,
                                  struct failure *why) {
    const struct reducer_device_arena *device_arena =
        &reducer->resident.device_arena;
    struct device_event *gradients_complete =
        reducer->resident.gradients_complete;
    device_arena->ops->record(device_arena->device, STREAM_COMPUTE,
                              gradients_complete);
    return reduction_sync_event(&reducer->reduction, gradients_complete, why);
}

static enum status reducer_device_update(struct reducer *reducer,
                                         struct failure *why) {
    struct reduction *reduction = &reducer->reduction;
    enum status status = sync_gradients(reducer, why);
    int64_t start = time_now();
    if (!status)
        status = reduction_wait_header(reduction, why);
    if (!status && reducer->settings.job->gradient_clipping > 0)
        status = reduction_clip(reduction, 0, why);
    atomic_fetch_add(&reducer->waited, time_now() - start);
    reducer->resident.waited_bucket = 0;
    for (uint32_t i = 0; !status && i < reduction->num_buckets; i++) {
        status = reduction_update(reduction, i, why);
        reducer_device_record(reducer, i);
    }
    return status;
}

/* Parameters that were announced all at once have no event of their own. */
static void order_after_compute(struct reducer *reducer) {
    const struct reducer_device_arena *device_arena =
        &reducer->resident.device_arena;
    struct device_event *gradients_complete =
        reducer->resident.gradients_complete;
    device_arena->ops->record(device_arena->device, STREAM_COMPUTE,
                              gradients_complete);
    device_arena->ops->stream_wait(device_arena->device, STREAM_EXCHANGE,
                                   gradients_complete);
}

static enum status reducer_device_announce_on_stream(struct reducer *reducer,
                                                     uint32_t first,
                                                     uint32_t count,
                                                     uint64_t round,
                                                     struct failure *why) {
    struct resident *resident = &reducer->resident;
    uint32_t announced = reducer->num_parameters - first;
    if (announced == count)
        reducer_begin_round(reducer, round);
    if (count == reducer->num_parameters)
        order_after_compute(reducer);
    enum status status = sum_announced(reducer, announced, why);
    if (status || first > 0)
        return status;
    resident->summed = 0;
    status = reducer_device_update(reducer, why);
    if (status)
        return status;
    sequence_advance(&reducer->updated, reducer->last);
    return reducer_end_round(reducer, why);
}

static bool has_ended(struct reducer *reducer) {
    return atomic_load(&reducer->cancelled) || reducer_failed(reducer, NULL);
}

void reducer_device_announce(struct reducer *reducer, uint32_t first,
                             uint32_t count, uint64_t round) {
    struct failure why;
    if (!has_ended(reducer) &&
        reducer_device_announce_on_stream(reducer, first, count, round, &why))
        reducer_fail(reducer, &why);
}

bool reducer_device_wait(struct reducer *reducer, uint32_t parameter) {
    const struct reducer_device_arena *device_arena =
        &reducer->resident.device_arena;
    const struct reduction *reduction = &reducer->reduction;
    const struct reducer_settings *settings = &reducer->settings;
    if (has_ended(reducer) || !reducer->resident.opened)
        return false;
    uint64_t end = settings->offsets[parameter] +
                   settings->layout->parameters[parameter].elements;
    uint32_t i = bucket_at(reduction->buckets, reduction->num_buckets, end - 1);
    if (reducer->resident.waited_bucket != i + 1)
        device_arena->ops->stream_wait(device_arena->device, STREAM_COMPUTE,
                                       reducer->resident.updated[i]);
    reducer->resident.waited_bucket = i + 1;
    return true;
}

enum status reducer_unscale(struct reducer *reducer, float by, bool *finite,
                            struct failure *why) {
    return reduction_unscale(&reducer->reduction, by, finite, why);
}

enum status reducer_download_weights(struct reducer *reducer,
                                     struct failure *why) {
    if (!reducer->resident.opened || has_ended(reducer))
        return STATUS_OK;
    return state_io_download_weights(&reducer->state_io, why);
}

void reducer_serve(struct reducer *reducer) {
    struct failure why;
    if (!reducer->resident.opened ||
        !atomic_exchange(&reducer->resident.save_requested, false) ||
        has_ended(reducer))
        return;
    enum status status = state_io_save(&reducer->state_io, &why);
    if (!status) /* nothing waits for an event after this */
        status = reduction_sync(&reducer->reduction, &why);
    if (status)
        reducer_fail(reducer, &why);
}

bool reducer_peer_lost(struct reducer *reducer, struct failure *why) {
    return reducer->resident.opened && group_async_error(&reducer->ranks, why);
}
