/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads and two sequences. The compute thread raises `announced` as
 * gradients are complete. The reducer's thread waits for the value that a
 * bucket needs, sums the bucket, applies the rule and raises `updated`, which
 * the compute thread awaits before it reads weights. So the last layer's
 * weights are new while the first layer's gradients are still being computed,
 * and the threads never access the same floats. Clipping needs the norm of all
 * sums: then all buckets are summed before the first is updated.
 *
 * Between two rounds the thread saves if a save is due, and the snapshot agent
 * may hold the next round back. The thread ends when it is cancelled, when
 * something fails (reducer_failed reports it), or when nothing more is
 * announced: then it saves once more. All ranks proceed in step, as every rank
 * calls each collective in the same order.
 *
 * A resident reducer has no thread: the compute thread enqueues all device work
 * on STREAM_EXCHANGE, behind the STREAM_COMPUTE work enqueued so far, and
 * STREAM_COMPUTE waits for it before it reads weights. The host waits once a
 * round, for the header. */
#include "worker/exchange/allreduce/reducer.h"

#include "core/base/time.h"
#include "core/base/trace.h"
#include "worker/exchange/allreduce/reduction.h"
#include "worker/exchange/allreduce/sequence.h"
#include "worker/exchange/allreduce/state_io.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Of a resident reducer; compute thread only. */
struct resident {
    bool opened;
    struct reducer_device_arena device_arena;
    struct device_event **updated; /* per bucket: its weights are updated */
    struct device_event *gradients_complete; /* all gradients are complete */
    uint32_t summed;        /* buckets of this round that are enqueued */
    uint32_t waited_bucket; /* 1 + the last bucket that STREAM_COMPUTE waits for
                               since its update; 0: none */
    /* Requests a save; the only field for any thread. */
    atomic_bool save_requested;
};

/* Sequence numbers count parameters in arena order, round after round. Initial
 * weights are round 0; after N parameters of the R-th round since then the
 * number is R * num_parameters + N. */
struct reducer {
    struct exchange exchange; /* first */
    struct reducer_settings settings;
    struct group ranks;
    struct reduction reduction;
    struct state_io state_io;
    pthread_t thread;         /* unless resident */
    struct resident resident; /* if resident */
    uint32_t num_parameters;
    struct sequence announced, updated;
    /* Of the last two rounds, by clock. */
    enum contribution contribution_kind[2];
    /* The compute thread's: the last `announced` value; of the round the
     * parameters from FIRST on are announced, COMPLETE [num_parameters] has
     * also those before it. */
    uint64_t last;
    uint32_t first;
    bool *complete;
    atomic_int_least64_t waited;
    atomic_uint_least64_t save; /* the round to save, 0: none */
    atomic_bool cancelled;
    atomic_bool finishing; /* no round follows and the current state is saved */
    atomic_bool settled;   /* no round follows */
    bool deferred; /* the last round's save waits for the trainer's weights */

    int descriptor;
    pthread_mutex_t mutex;
    bool failed;
    struct failure why;
};

/* The sequence number at the beginning of ROUND. */
static uint64_t reducer_round_begin(const struct reducer *reducer,
                                    uint64_t round) {
    return (round - reducer->settings.run_schedule->start) *
           reducer->num_parameters;
}

/* The sequence number that bucket I needs in ROUND. */
static uint64_t required_sequence(const struct reducer *reducer, uint64_t round,
                                  uint32_t i) {
    const struct reduction *reduction = &reducer->reduction;
    bool overlaps = reducer->settings.job->zero.overlap;
    return reducer_round_begin(reducer, round) +
           (overlaps ? reduction->buckets[i].started : reducer->num_parameters);
}

/* After the update the compute thread may read all parameters that end in
 * bucket I. */
static enum status reducer_update(struct reducer *reducer, uint32_t i,
                                  struct failure *why) {
    struct reduction *reduction = &reducer->reduction;
    struct trace *trace = reducer->settings.trace;
    int64_t start = trace_begin(trace, reduction->round);
    enum status status = reduction_update(reduction, i, why);
    trace_end(trace, start, TRACE_APPLY, reduction->round, i);
    if (!status)
        sequence_advance(&reducer->updated,
                         reducer_round_begin(reducer, reduction->round) +
                             reduction->buckets[i].completed);
    return status;
}

/* Is a save of ROUND requested? Says so once. */
static bool take_save(struct reducer *reducer, uint64_t round) {
    uint64_t save = atomic_load(&reducer->save);
    bool request_save = save && save <= round;
    if (request_save)
        atomic_store(&reducer->save, 0);
    return request_save;
}

/* Publishes this rank's header of ROUND once its first gradients are
 * complete. */
static void reducer_begin_round(struct reducer *reducer, uint64_t round) {
    bool external = reducer->settings.external;
    reduction_begin(&reducer->reduction, round,
                    external ? CONTRIBUTION_FULL
                             : reducer->contribution_kind[round % 2],
                    !external && take_save(reducer, round));
}

static enum status reducer_sum(struct reducer *reducer, uint64_t round,
                               uint32_t i, struct failure *why) {
    struct trace *trace = reducer->settings.trace;
    int64_t start = trace_begin(trace, round);
    enum status status = reduction_sum(&reducer->reduction, i, why);
    trace_end(trace, start, TRACE_SUM, round, i);
    return status;
}

/* The gradients of rows of all ranks, and then their updates; they count as a
 * bucket behind the others. */
static enum status gather_rows(struct reducer *reducer, uint64_t round,
                               bool *goes_on, struct failure *why) {
    struct trace *trace = reducer->settings.trace;
    int64_t start = trace_begin(trace, round);
    enum status status = row_reducer_gather(
        reducer->settings.rows, &reducer->ranks, round, goes_on, why);
    trace_end(trace, start, TRACE_SUM, round, reducer->reduction.num_buckets);
    return status;
}

static enum status apply_rows(struct reducer *reducer, uint64_t round,
                              struct failure *why) {
    struct trace *trace = reducer->settings.trace;
    struct row_reducer_round of = reduction_of_rows(&reducer->reduction);
    int64_t start = trace_begin(trace, round);
    enum status status = row_reducer_apply(reducer->settings.rows, &of,
                                           reducer->settings.row_storage, why);
    trace_end(trace, start, TRACE_APPLY, round, reducer->reduction.num_buckets);
    return status;
}

static bool keeps_means(const struct reducer *reducer) {
    return reducer->settings.job->optimizer.type == OPTIMIZER_NONE;
}

/* Waits for an announcement up to SEQUENCE. False: no round follows, and the
 * state is to be saved or the reducer was cancelled. */
static bool await_announced(struct reducer *reducer, uint64_t sequence) {
    if (!sequence_wait(&reducer->announced, sequence, NULL))
        return false;
    return !atomic_load(&reducer->settled) ||
           sequence_wait(&reducer->announced, UINT64_MAX, NULL);
}

/* All blocks, and on rank 0 the rows of tables. */
static enum status save_all(struct reducer *reducer, struct failure *why) {
    const struct reducer_settings *s = &reducer->settings;
    const struct reduction *reduction = &reducer->reduction;
    enum status status = state_io_save(&reducer->state_io, why);
    if (!status && s->row_storage)
        status = row_reducer_save(s->rows, s->row_storage, reduction->round,
                                  reduction_step(reduction), why);
    return status;
}

/* Saves the round before ROUND once the trainer has its weights: with the last
 * gradient of ROUND, or at its end. *GOES_ON: ROUND takes place. */
static enum status save_deferred(struct reducer *reducer, uint64_t round,
                                 bool *goes_on, struct failure *why) {
    uint64_t all = reducer_round_begin(reducer, round + 1);
    *goes_on = true;
    if (!reducer->deferred)
        return STATUS_OK;
    *goes_on = sequence_wait(&reducer->announced, all, NULL);
    if (!*goes_on)
        return STATUS_OK;
    reducer->deferred = false;
    if (!atomic_load(&reducer->settled))
        reducer->settings.collect(reducer->settings.collect_context);
    return save_all(reducer, why);
}

/* With clipping, and with the trailer of an external model, all buckets are
 * summed before the first is updated. *COMPLETED is false if no more is
 * announced. */
static enum status run_round(struct reducer *reducer, uint64_t round,
                             bool *completed, struct failure *why) {
    struct reduction *reduction = &reducer->reduction;
    bool clips = reducer->settings.job->gradient_clipping > 0;
    bool external = reducer->settings.external;
    bool updates_last = clips || external;
    struct row_reducer *rows = reducer->settings.rows;
    bool goes_on;
    enum status status = save_deferred(reducer, round, &goes_on, why);
    *completed = false;
    for (uint32_t i = 0; !status && i < reduction->num_buckets; i++) {
        if (!goes_on ||
            !await_announced(reducer, required_sequence(reducer, round, i)))
            return STATUS_OK;
        if (i == 0)
            reducer_begin_round(reducer, round);
        status = reducer_sum(reducer, round, i, why);
        if (!status && i == 0 && !external)
            status = reduction_wait_header(reduction, why);
        if (!status && !updates_last)
            status = reducer_update(reducer, i, why);
    }
    if (!status && external)
        status =
            reduction_sum_trailer(reduction, take_save(reducer, round), why);
    double squares = 0;
    if (!status && rows) {
        status = gather_rows(reducer, round, &goes_on, why);
        if (!goes_on)
            return status;
        if (!status && clips && !reduction->overflowed)
            status = row_reducer_square_sum(rows, &squares, why);
    }
    if (!status && clips)
        status = reduction_clip(reduction, squares, why);
    for (uint32_t i = 0; !status && updates_last && i < reduction->num_buckets;
         i++)
        status = reducer_update(reducer, i, why);
    if (!status && rows)
        status = apply_rows(reducer, round, why);
    *completed = !status;
    return status;
}

static bool may_continue(const struct reducer *reducer) {
    return !atomic_load(&reducer->cancelled) &&
           !atomic_load(&reducer->finishing);
}

/* A save is collective: a rank that learns that no round follows still takes
 * part, as other ranks may be in it already. */
static enum status reducer_end_round(struct reducer *reducer,
                                     struct failure *why) {
    const struct reducer_storage *rank0_snapshot_agent =
        reducer->settings.rank0_snapshot_agent;
    enum status status = STATUS_OK;
    reducer->deferred = reduction_is_saved(&reducer->reduction);
    if (reducer->deferred && !keeps_means(reducer)) {
        reducer->deferred = false;
        status = save_all(reducer, why);
    }
    if (!status && rank0_snapshot_agent && rank0_snapshot_agent->pause &&
        may_continue(reducer))
        rank0_snapshot_agent->pause(rank0_snapshot_agent->context,
                                    reducer->reduction.round);
    return status;
}

static void reducer_log_transport(const struct reducer *reducer) {
    char text[192];
    group_transport(&reducer->ranks, text, sizeof text);
    if (text[0])
        log_info(reducer->settings.log, "transport_chosen", "all-reduce: %s",
                 text);
}

static enum status reducer_connect(struct reducer *reducer,
                                   struct failure *why) {
    enum status status =
        group_connect(&reducer->ranks, &reducer->settings.group, why);
    if (!status) {
        group_register(&reducer->ranks, reducer->settings.gradients);
        if (!keeps_means(reducer)) /* else the trainer writes there between
                                      rounds, before all have read it */
            group_register(&reducer->ranks, reducer->settings.weights);
        reducer_log_transport(reducer);
    }
    if (!status)
        status = state_io_load(&reducer->state_io, why);
    if (!status && reducer->settings.rows)
        status = row_reducer_load(reducer->settings.rows, &reducer->ranks,
                                  reducer->settings.row_storage, why);
    if (!status)
        sequence_advance(&reducer->updated, reducer->num_parameters);
    return status;
}

/* A cancelled reducer has not failed. */
static void reducer_fail(struct reducer *reducer, const struct failure *why) {
    if (atomic_load(&reducer->cancelled))
        return;
    pthread_mutex_lock(&reducer->mutex);
    reducer->failed = true;
    reducer->why = *why;
    pthread_mutex_unlock(&reducer->mutex);
    eventfd_write(reducer->descriptor, 1);
    sequence_cancel(&reducer->updated);
    if (reducer->settings.rows)
        row_reducer_cancel(reducer->settings.rows);
}

static void *reducer_run(void *argument) {
    struct reducer *reducer = argument;
    struct failure why;
    time_slice_set(0);
    uint64_t round = reducer->settings.run_schedule->start;
    enum status status = reducer_connect(reducer, &why);
    bool completed = true;
    while (!status && completed && !atomic_load(&reducer->cancelled)) {
        status = run_round(reducer, ++round, &completed, &why);
        if (completed && !atomic_load(&reducer->cancelled))
            status = reducer_end_round(reducer, &why);
    }
    if (!status && !atomic_load(&reducer->cancelled))
        status = save_all(reducer, &why);
    if (status)
        reducer_fail(reducer, &why);
    return NULL;
}

static enum status reducer_prepare(struct reducer *reducer,
                                   struct failure *why) {
    enum status status = reduction_open(&reducer->reduction, &reducer->settings,
                                        NULL, &reducer->ranks, why);
    if (status)
        return status;
    status = state_io_open(&reducer->state_io, &reducer->reduction, why);
    if (status)
        reduction_close(&reducer->reduction);
    return status;
}

static enum status reducer_start(struct reducer *reducer, struct failure *why) {
    sequence_open(&reducer->announced);
    sequence_open(&reducer->updated);
    pthread_mutex_init(&reducer->mutex, NULL);
    reducer->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int error = reducer->descriptor < 0 ? errno : 0;
    if (!error && !reducer->settings.resident)
        error = pthread_create(&reducer->thread, NULL, reducer_run, reducer);
    if (!error)
        return STATUS_OK;
    return status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                        "cannot start the reducer's thread");
}

static void reducer_release(struct reducer *reducer) {
    sequence_close(&reducer->announced);
    sequence_close(&reducer->updated);
    pthread_mutex_destroy(&reducer->mutex);
    if (reducer->descriptor >= 0)
        close(reducer->descriptor);
    state_io_close(&reducer->state_io);
    reduction_close(&reducer->reduction);
    group_close(&reducer->ranks);
    buffer_release(&reducer->settings.weights);
    buffer_release(&reducer->settings.gradients);
    free(reducer->complete);
    free(reducer);
}

static void fail_rows(void *context, const struct failure *why) {
    reducer_fail(context, why);
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

static enum status reducer_begin(
    struct exchange *exchange, const struct reducer_device_arena *device_arena,
    struct failure *why) {
    struct reducer *reducer = (struct reducer *)exchange;
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
static void reducer_end(struct exchange *exchange) {
    struct reducer *reducer = (struct reducer *)exchange;
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
    device_arena->ops->range(device_arena->device, "sum");
    enum status status = reduction_sum(&reducer->reduction, i, why);
    device_arena->ops->range(device_arena->device, NULL);
    return status;
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
    const struct reducer_device_arena *device_arena =
        &reducer->resident.device_arena;
    struct trace *trace = reducer->settings.trace;
    enum status status = sync_gradients(reducer, why);
    int64_t start = time_now(), traced = trace_begin(trace, reduction->round);
    if (!status)
        status = reduction_wait_header(reduction, why);
    if (!status && reducer->settings.job->gradient_clipping > 0)
        status = reduction_clip(reduction, 0, why);
    atomic_fetch_add(&reducer->waited, time_now() - start);
    trace_end(trace, traced, TRACE_WAIT, reduction->round, 0);
    reducer->resident.waited_bucket = 0;
    device_arena->ops->range(device_arena->device, "apply");
    for (uint32_t i = 0; !status && i < reduction->num_buckets; i++) {
        status = reduction_update(reduction, i, why);
        reducer_device_record(reducer, i);
    }
    device_arena->ops->range(device_arena->device, NULL);
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

/* reducer_announce and reducer_wait of a resident reducer: they enqueue work on
 * the device's streams and return. */
static void reducer_device_announce(struct reducer *reducer, uint32_t first,
                                    uint32_t count, uint64_t round) {
    struct failure why;
    if (!has_ended(reducer) &&
        reducer_device_announce_on_stream(reducer, first, count, round, &why))
        reducer_fail(reducer, &why);
}

static bool reducer_device_wait(struct reducer *reducer, uint32_t parameter) {
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

static enum status reducer_unscale(struct exchange *exchange, float by,
                                   bool *finite, struct failure *why) {
    struct reducer *reducer = (struct reducer *)exchange;
    return reduction_unscale(&reducer->reduction, by, finite, why);
}

static enum status reducer_download_weights(struct exchange *exchange,
                                            struct failure *why) {
    struct reducer *reducer = (struct reducer *)exchange;
    if (!reducer->resident.opened || has_ended(reducer))
        return STATUS_OK;
    return state_io_download_weights(&reducer->state_io, why);
}

static void reducer_serve(struct exchange *exchange) {
    struct reducer *reducer = (struct reducer *)exchange;
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

static bool reducer_peer_lost(struct exchange *exchange, struct failure *why) {
    struct reducer *reducer = (struct reducer *)exchange;
    return reducer->resident.opened && group_async_error(&reducer->ranks, why);
}

/* The buckets take parameters from the last to the first: what was announced
 * before its turn waits for it. */
static void reducer_announce(struct exchange *exchange, uint32_t first,
                             uint32_t count, uint64_t clock,
                             enum contribution contribution_kind) {
    struct reducer *reducer = (struct reducer *)exchange;
    if (first + count == reducer->num_parameters)
        reducer->contribution_kind[clock % 2] = contribution_kind;
    memset(reducer->complete + first, true, count);
    while (reducer->first && reducer->complete[reducer->first - 1])
        reducer->first--;
    reducer->last = reducer_round_begin(reducer, clock) +
                    (reducer->num_parameters - reducer->first);
    if (!reducer->first) {
        memset(reducer->complete, false, reducer->num_parameters);
        reducer->first = reducer->num_parameters;
    }
    if (reducer->settings.resident)
        reducer_device_announce(reducer, first, count, clock);
    else
        sequence_advance(&reducer->announced, reducer->last);
}

/* The thread looks once more whether a round follows. */
static void reducer_settle(struct exchange *exchange) {
    struct reducer *reducer = (struct reducer *)exchange;
    if (!keeps_means(reducer))
        return;
    reducer->settings.collect(reducer->settings.collect_context);
    atomic_store(&reducer->settled, true);
    sequence_advance(&reducer->announced,
                     reducer->last + reducer->num_parameters);
}

static uint64_t reducer_rule_step(struct exchange *exchange,
                                  uint32_t parameter) {
    struct reducer *reducer = (struct reducer *)exchange;
    return reducer->reduction.rule_steps[parameter];
}

static uint64_t reducer_due(struct exchange *exchange, uint32_t *lead) {
    struct reducer *reducer = (struct reducer *)exchange;
    *lead = 0;
    return reducer->reduction.save_requested ? reducer->reduction.round : 0;
}

static bool reducer_take(struct exchange *exchange, uint32_t parameter,
                         bool if_brought, float *to) {
    struct reducer *reducer = (struct reducer *)exchange;
    const struct reducer_settings *settings = &reducer->settings;
    const float *weights = buffer_data(settings->weights);
    if (if_brought &&
        !round_trailer_has_bytes(reducer->reduction.trailer, parameter))
        return false;
    memcpy(to, weights + settings->offsets[parameter],
           settings->layout->parameters[parameter].elements * sizeof *to);
    return true;
}

static bool reducer_read_state(struct exchange *exchange, uint32_t parameter,
                               uint64_t clock, unsigned slot, float *to) {
    struct reducer *reducer = (struct reducer *)exchange;
    (void)clock;
    const struct reducer_settings *settings = &reducer->settings;
    return partition_get(&reducer->reduction.partition, slot,
                         settings->offsets[parameter],
                         settings->layout->parameters[parameter].elements, to);
}

/* PARAMETER's last announcement, or its initial weights, ended at the highest
 * sequence number of its residue that is not above `last`. */
static bool reducer_wait(struct exchange *exchange, uint32_t parameter,
                         int64_t until) {
    struct reducer *reducer = (struct reducer *)exchange;
    uint32_t count = reducer->num_parameters;
    if (reducer->settings.resident)
        return reducer_device_wait(reducer, parameter);
    uint64_t sequence =
        reducer->last - (reducer->last - (count - parameter)) % count;
    int64_t waited = 0;
    bool ready =
        sequence_wait_until(&reducer->updated, sequence, until, &waited);
    if (waited)
        atomic_fetch_add(&reducer->waited, waited);
    return ready;
}

/* A gradient without bytes is zeros; assigned values go beside the arena. */
static bool reducer_contribute(struct exchange *exchange,
                               const struct exchange_gradient *gradient) {
    struct reducer *reducer = (struct reducer *)exchange;
    const struct reducer_settings *settings = &reducer->settings;
    uint32_t p = gradient->parameter;
    const struct parameter *parameter = &settings->layout->parameters[p];
    bool assigned = parameter->kind == PARAMETER_ASSIGNED;
    bool has_bytes = gradient->kind == CONTRIBUTION_FULL;
    float *to =
        (float *)buffer_data(settings->gradients) + settings->offsets[p];
    round_trailer_contribute(reducer->reduction.trailer, gradient->clock, p,
                             gradient->kind,
                             assigned && has_bytes ? gradient->data : NULL);
    if (has_bytes && !assigned)
        memcpy(to, gradient->data, gradient->bytes);
    else
        memset(to, 0, parameter->elements * sizeof *to);
    return false;
}

static void reducer_set_values(struct exchange *exchange, uint64_t clock,
                               uint32_t group, const double *values) {
    struct reducer *reducer = (struct reducer *)exchange;
    round_trailer_set(reducer->reduction.trailer, clock, group, values);
}

static double reducer_waited(struct exchange *exchange) {
    struct reducer *reducer = (struct reducer *)exchange;
    struct row_reducer *rows = reducer->settings.rows;
    return time_to_seconds(atomic_load(&reducer->waited)) +
           (rows ? row_reducer_waited(rows) : 0);
}

static struct loss_scaler reducer_scaler(struct exchange *exchange) {
    struct reducer *reducer = (struct reducer *)exchange;
    return reducer->reduction.scaler;
}

/* Has no backup workers: every rank is in every round. */
static uint64_t reducer_round(struct exchange *exchange, bool *late) {
    (void)exchange;
    *late = false;
    return 0;
}

static uint64_t reducer_global_step(struct exchange *exchange) {
    struct reducer *reducer = (struct reducer *)exchange;
    uint64_t updates =
        sequence_value(&reducer->updated) / reducer->num_parameters;
    return reducer->settings.run_schedule->start + (updates ? updates - 1 : 0);
}

static bool reducer_had_batch(struct exchange *exchange, uint64_t clock) {
    struct reducer *reducer = (struct reducer *)exchange;
    const struct round_trailer *trailer = reducer->reduction.trailer;
    (void)clock;
    bool had = round_trailer_overflowed(trailer);
    for (uint32_t p = 0; !had && p < reducer->num_parameters; p++)
        had = round_trailer_has_bytes(trailer, p);
    return had;
}

static void reducer_cancel(struct exchange *exchange) {
    struct reducer *reducer = (struct reducer *)exchange;
    atomic_store(&reducer->cancelled, true);
    sequence_cancel(&reducer->announced);
    sequence_cancel(&reducer->updated);
    if (reducer->settings.rows)
        row_reducer_cancel(reducer->settings.rows);
    group_abort(&reducer->ranks);
}

/* Outside of a step the weights of all ranks are equal and do not change. */
static bool reducer_fetch(struct exchange *exchange, uint64_t clock) {
    (void)exchange, (void)clock;
    return true;
}

static void reducer_pull(struct exchange *exchange, uint64_t clock,
                         uint64_t snapshot) {
    (void)exchange, (void)clock, (void)snapshot;
}

static struct row_reducer *rows_of(struct exchange *exchange) {
    return ((struct reducer *)exchange)->settings.rows;
}

static void reducer_assign(struct exchange *exchange, uint64_t clock,
                           struct row_batch *rows) {
    (void)clock;
    if (rows)
        row_reducer_begin_with(rows_of(exchange), rows);
}

/* All ranks begin together. */
static void reducer_set_epoch(struct exchange *exchange, uint64_t number,
                              uint64_t first) {
    (void)exchange, (void)number, (void)first;
}

static bool reducer_epoch(struct exchange *exchange, uint64_t *number,
                          uint64_t *first) {
    (void)exchange, (void)number, (void)first;
    return false;
}

static void reducer_lookup(struct exchange *exchange, uint64_t clock,
                           bool early, uint64_t snapshot,
                           struct row_batch *rows) {
    (void)early, (void)snapshot;
    row_reducer_lookup(rows_of(exchange), clock, rows);
}

static bool reducer_wait_rows(struct exchange *exchange, int64_t until) {
    return row_reducer_wait_rows(rows_of(exchange), until);
}

static bool reducer_push_rows(struct exchange *exchange, uint64_t clock,
                              enum contribution contribution_kind,
                              struct row_batch *rows) {
    return row_reducer_push(rows_of(exchange), clock, contribution_kind, rows);
}

static void reducer_write_rows(struct exchange *exchange,
                               struct row_batch *rows) {
    row_reducer_write(rows_of(exchange), rows);
}

static bool reducer_wait_pushed(struct exchange *exchange, int64_t until) {
    return row_reducer_wait_pushed(rows_of(exchange), until);
}

static uint64_t reducer_row_bytes(const struct exchange *exchange,
                                  const struct row_batch *rows) {
    const struct reducer *reducer = (const struct reducer *)exchange;
    return row_reducer_peers(reducer->settings.rows) *
           (rows->lists + rows->floats * sizeof(float));
}

/* Buckets gather small parameters themselves. */
static bool reducer_over_network(const struct exchange *exchange) {
    (void)exchange;
    return true;
}

static bool reducer_needs_all(const struct exchange *exchange) {
    return ((const struct reducer *)exchange)->ranks.size > 1;
}

static const struct exchange reducer_exchange_table = {
    .fetch = reducer_fetch,
    .pull = reducer_pull,
    .assign = reducer_assign,
    .set_values = reducer_set_values,
    .settle = reducer_settle,
    .contribute = reducer_contribute,
    .announce = reducer_announce,
    .wait = reducer_wait,
    .take = reducer_take,
    .due = reducer_due,
    .read_state = reducer_read_state,
    .rule_step = reducer_rule_step,
    .set_epoch = reducer_set_epoch,
    .epoch = reducer_epoch,
    .lookup = reducer_lookup,
    .wait_rows = reducer_wait_rows,
    .push_rows = reducer_push_rows,
    .write_rows = reducer_write_rows,
    .wait_pushed = reducer_wait_pushed,
    .row_bytes = reducer_row_bytes,
    .global_step = reducer_global_step,
    .round = reducer_round,
    .had_batch = reducer_had_batch,
    .over_network = reducer_over_network,
    .needs_all = reducer_needs_all,
    .waited = reducer_waited,
    .scaler = reducer_scaler,
    .begin = reducer_begin,
    .unscale = reducer_unscale,
    .download_weights = reducer_download_weights,
    .serve = reducer_serve,
    .peer_lost = reducer_peer_lost,
    .end = reducer_end,
    .cancel = reducer_cancel,
};

struct exchange *reducer_exchange(struct reducer *reducer) {
    return &reducer->exchange;
}

enum status reducer_open(struct reducer **out,
                         const struct reducer_settings *settings,
                         struct failure *why) {
    struct reducer *reducer = calloc(1, sizeof *reducer);
    *out = NULL;
    if (!reducer)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a reducer");
    reducer->exchange = reducer_exchange_table;
    reducer->exchange.resident = settings->resident;
    reducer->exchange.trace = settings->trace;
    reducer->settings = *settings;
    reducer->num_parameters = settings->layout->num_parameters;
    reducer->last = reducer->first = reducer->num_parameters;
    reducer->complete =
        calloc(reducer->num_parameters, sizeof *reducer->complete);
    group_open(&reducer->ranks, settings->ops, settings->group.rank,
               settings->group.size);
    enum status status =
        !reducer->complete
            ? status_fail(why, FAILURE_NO_MEMORY, "no memory for a reducer")
        : settings->resident ? STATUS_OK
                             : reducer_prepare(reducer, why);
    if (status) {
        group_close(&reducer->ranks);
        free(reducer->complete);
        free(reducer);
        return status;
    }
    buffer_hold(settings->weights);
    buffer_hold(settings->gradients);
    if (settings->rows)
        row_reducer_on_failure(settings->rows, fail_rows, reducer);
    status = reducer_start(reducer, why);
    if (status)
        reducer_release(reducer);
    else
        *out = reducer;
    return status;
}

void reducer_close(struct reducer **where) {
    struct reducer *reducer = *where;
    *where = NULL;
    if (!reducer)
        return;
    reducer_cancel(&reducer->exchange);
    if (!reducer->settings.resident)
        pthread_join(reducer->thread, NULL);
    reducer_release(reducer);
}

void reducer_save(struct reducer *reducer, uint64_t round) {
    atomic_store(&reducer->save, round);
}

void reducer_save_now(struct reducer *reducer) {
    atomic_store(&reducer->finishing, true);
    sequence_end(&reducer->announced);
    if (!reducer->settings.resident)
        return;
    atomic_store(&reducer->resident.save_requested, true);
    reducer->settings.wake(reducer->settings.context);
}

int reducer_descriptor(const struct reducer *reducer) {
    return reducer->descriptor;
}

bool reducer_failed(struct reducer *reducer, struct failure *why) {
    pthread_mutex_lock(&reducer->mutex);
    bool failed = reducer->failed;
    if (failed && why)
        *why = reducer->why;
    pthread_mutex_unlock(&reducer->mutex);
    return failed;
}

bool reducer_is_reducing(struct reducer *reducer) {
    return !reducer->settings.resident && sequence_value(&reducer->announced) >
                                              sequence_value(&reducer->updated);
}

/* A device does not report the time of single operations. */
void reducer_times(struct reducer *reducer, struct reducer_times *times) {
    bool resident = reducer->settings.resident;
    int64_t update = resident ? 0 : reducer->reduction.update_ns;
    const struct row_reducer *rows = reducer->settings.rows;
    *times = (struct reducer_times){
        .reduce_s = time_to_seconds(atomic_load(&reducer->ranks.ns)),
        .update_s = time_to_seconds(update) +
                    (rows ? row_reducer_update_seconds(rows) : 0),
        .bytes = atomic_load(&reducer->ranks.bytes),
    };
}
