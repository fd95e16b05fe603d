/* SPDX-License-Identifier: Apache-2.0 */
/* A reducer without a thread: what is to be done to a device's memory the
 * compute thread puts on OPS_EXCHANGE, behind what OPS_COMPUTE has by then, and
 * OPS_COMPUTE follows it before it reads weights. The host waits once a round,
 * for the word of the ranks. */
#include "proto/base/time.h"
#include "worker/exchange/allreduce/reducer_parts.h"

#include <stdlib.h>

bool reducer_is_resident(const struct reducer *reducer) {
    return reducer->settings.resident;
}

static bool open_events(struct reducer *reducer) {
    struct resident *resident = &reducer->resident;
    const struct ops *ops = resident->place.ops;
    uint32_t count = reducer->reduction.num_buckets;
    resident->updated = calloc(count, sizeof *resident->updated);
    resident->settled = ops->event_open(resident->place.device);
    bool complete = resident->updated && resident->settled;
    for (uint32_t i = 0; resident->updated && i < count; i++) {
        resident->updated[i] = ops->event_open(resident->place.device);
        complete = complete && resident->updated[i];
    }
    return complete;
}

static void close_events(struct reducer *reducer) {
    struct resident *resident = &reducer->resident;
    const struct ops *ops = resident->place.ops;
    uint32_t count = reducer->reduction.num_buckets;
    for (uint32_t i = 0; resident->updated && i < count; i++)
        if (resident->updated[i])
            ops->event_close(resident->place.device, &resident->updated[i]);
    if (resident->settled)
        ops->event_close(resident->place.device, &resident->settled);
    free(resident->updated);
    resident->updated = NULL;
}

/* Memory of the device, then the others. */
static enum status meet(struct reducer *reducer, struct failure *why) {
    const struct reducer_place *place = &reducer->resident.place;
    struct collective_settings group = reducer->settings.group;
    enum status status =
        keeping_open(&reducer->keeping, &reducer->reduction, why);
    if (!status && !open_events(reducer))
        status = status_fail(why, STATUS_RETRY, "no memory for a reducer");
    group.stream = place->ops->native(place->device, OPS_EXCHANGE);
    if (!status)
        status = group_meet(&reducer->ranks, &group, why);
    return status ? status : keeping_load(&reducer->keeping, why);
}

static void record(struct reducer *reducer, uint32_t i) {
    const struct reducer_place *place = &reducer->resident.place;
    place->ops->record(place->device, OPS_EXCHANGE,
                       reducer->resident.updated[i]);
}

enum status reducer_begin(struct reducer *reducer,
                          const struct reducer_place *place,
                          struct failure *why) {
    struct resident *resident = &reducer->resident;
    if (!reducer->settings.resident)
        return STATUS_OK;
    resident->place = *place;
    enum status status = reduction_open(&reducer->reduction, &reducer->settings,
                                        place, &reducer->ranks, why);
    if (status)
        return status;
    resident->begun = true;
    status = meet(reducer, why);
    if (status)
        return status;
    for (uint32_t i = 0; i < reducer->reduction.num_buckets; i++)
        record(reducer, i);
    mark_raise(&reducer->updated, reducer->num_parameters);
    return STATUS_OK;
}

/* Ranks that are gone would keep the device at work: the group goes first. */
void reducer_end(struct reducer *reducer) {
    struct resident *resident = &reducer->resident;
    if (!resident->begun)
        return;
    resident->begun = false;
    group_leave(&reducer->ranks);
    resident->place.ops->synchronize(resident->place.device, NULL);
    close_events(reducer);
    keeping_close(&reducer->keeping);
    reduction_close(&reducer->reduction);
}

/* Bucket I is summed once OPS_COMPUTE has completed its gradients. */
static enum status sum(struct reducer *reducer, uint32_t i,
                       struct failure *why) {
    const struct reducer_place *place = &reducer->resident.place;
    uint32_t touched = reducer->reduction.buckets[i].touched;
    uint32_t last = reducer->num_parameters - touched;
    place->ops->follow(place->device, OPS_EXCHANGE, place->complete[last]);
    return reduction_sum(&reducer->reduction, i, why);
}

/* All buckets whose parameters are announced. */
static enum status sum_some(struct reducer *reducer, uint32_t announced,
                            struct failure *why) {
    const struct reduction *reduction = &reducer->reduction;
    uint32_t *next = &reducer->resident.summed;
    bool all = announced == reducer->num_parameters;
    enum status status = STATUS_OK;
    if (!all && !reducer->settings.job->zero.overlap)
        return STATUS_OK;
    while (!status && *next < reduction->num_buckets &&
           reduction->buckets[*next].touched <= announced)
        status = sum(reducer, (*next)++, why);
    return status;
}

/* The computing is not waited for because of others. */
static enum status await_gradients(struct reducer *reducer,
                                   struct failure *why) {
    const struct reducer_place *place = &reducer->resident.place;
    struct ops_event *settled = reducer->resident.settled;
    place->ops->record(place->device, OPS_COMPUTE, settled);
    return reduction_await(&reducer->reduction, settled, why);
}

static enum status update(struct reducer *reducer, struct failure *why) {
    struct reduction *reduction = &reducer->reduction;
    enum status status = await_gradients(reducer, why);
    int64_t start = time_now();
    if (!status)
        status = reduction_hear(reduction, why);
    if (!status && reducer->settings.job->gradient_clipping > 0)
        status = reduction_clip(reduction, why);
    atomic_fetch_add(&reducer->waited, time_now() - start);
    reducer->resident.followed = 0;
    for (uint32_t i = 0; !status && i < reduction->num_buckets; i++) {
        status = reduction_update(reduction, i, why);
        record(reducer, i);
    }
    return status;
}

/* What has come to all parameters at once was not recorded one by one. */
static void follow_all(struct reducer *reducer) {
    const struct reducer_place *place = &reducer->resident.place;
    struct ops_event *settled = reducer->resident.settled;
    place->ops->record(place->device, OPS_COMPUTE, settled);
    place->ops->follow(place->device, OPS_EXCHANGE, settled);
}

static enum status announce(struct reducer *reducer, uint32_t first,
                            uint32_t count, uint64_t round,
                            struct failure *why) {
    struct resident *resident = &reducer->resident;
    uint32_t announced = reducer->num_parameters - first;
    if (announced == count)
        reducer_begin_round(reducer, round);
    if (count == reducer->num_parameters)
        follow_all(reducer);
    enum status status = sum_some(reducer, announced, why);
    if (status || first > 0)
        return status;
    resident->summed = 0;
    status = update(reducer, why);
    if (status)
        return status;
    mark_raise(&reducer->updated, reducer->last);
    return reducer_end_round(reducer, why);
}

static bool is_over(struct reducer *reducer) {
    return atomic_load(&reducer->cancelled) || reducer_failed(reducer, NULL);
}

void resident_announce(struct reducer *reducer, uint32_t first, uint32_t count,
                       uint64_t round) {
    struct failure why;
    if (!is_over(reducer) && announce(reducer, first, count, round, &why))
        reducer_fail(reducer, &why);
}

bool resident_follow(struct reducer *reducer, uint32_t parameter) {
    const struct reducer_place *place = &reducer->resident.place;
    const struct reduction *reduction = &reducer->reduction;
    const struct reducer_settings *settings = &reducer->settings;
    if (is_over(reducer) || !reducer->resident.begun)
        return false;
    uint64_t end = settings->offsets[parameter] +
                   settings->layout->parameters[parameter].elements;
    uint32_t i = bucket_at(reduction->buckets, reduction->num_buckets, end - 1);
    if (reducer->resident.followed != i + 1)
        place->ops->follow(place->device, OPS_COMPUTE,
                           reducer->resident.updated[i]);
    reducer->resident.followed = i + 1;
    return true;
}

enum status reducer_undo(struct reducer *reducer, float by, bool *finite,
                         struct failure *why) {
    return reduction_undo(&reducer->reduction, by, finite, why);
}

enum status reducer_show(struct reducer *reducer, struct failure *why) {
    if (!reducer->resident.begun || is_over(reducer))
        return STATUS_OK;
    return keeping_show(&reducer->keeping, why);
}

void reducer_serve(struct reducer *reducer) {
    struct failure why;
    if (!reducer->resident.begun ||
        !atomic_exchange(&reducer->resident.asked, false) || is_over(reducer))
        return;
    enum status status = keeping_save(&reducer->keeping, &why);
    if (!status) /* nobody waits for anything after this */
        status = reduction_settle(&reducer->reduction, &why);
    if (status)
        reducer_fail(reducer, &why);
}

bool reducer_lost(struct reducer *reducer, struct failure *why) {
    return reducer->resident.begun && group_look(&reducer->ranks, why);
}
