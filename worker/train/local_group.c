/* SPDX-License-Identifier: Apache-2.0 */
/* Protocol of a step. The compute thread raises `started`; each thread
 * computes, and waits for `weights`, which the compute thread raises as they
 * arrive. Each raises `computed` once the losses of its samples are known; from
 * them the trainer decides whether the gradients are wanted (`gather_decided`);
 * then all gather them. A member that fails still goes through the rest of the
 * step, so that no other member waits for it; its error is reported at the
 * end. */
#include "worker/train/local_group.h"

#include "core/base/plugin.h"

#include <math.h>

/* Selects a group's devices and how their gradients are summed. This happens
 * before there is a plan, as the chief needs the number of replicas. */

/* True if its devices compute asynchronously (device.h). */
static bool local_group_is_async(const struct local_group *local_group) {
    return local_group->members[0].device_replica.executor.device.ops->async;
}

/* Uses NCCL for the sums if the devices are CUDA's, the plugin is available and
 * the run has no secret. */
static void find_collective(struct local_group *group,
                            const struct collective_ops *nccl,
                            bool has_secret) {
    struct failure why;
    const void *table = nccl;
    enum status status = STATUS_OK;
    if (!nccl && group->count > 1 && has_secret)
        status = status_fail(&why, FAILURE_COLLECTIVE_UNUSABLE,
                             "NCCL would open a port of this host, whose "
                             "connections nobody authenticates, and this run "
                             "has a secret");
    else if (!nccl && group->count > 1)
        status = plugin_find(&table, "nccl", COLLECTIVE_SYMBOL, COLLECTIVE_ABI,
                             &why);
    group->collective = status ? NULL : table;
    if (status)
        log_info(group->log, "device_reduction_unavailable",
                 "gradients of %u devices are summed in host memory; "
                 "capstan-nccl.so: %s (docs/collectives.md has what it needs)",
                 group->count, why.text);
}

/* A device for which there is no code is skipped unless the job asks for
 * CUDA. */
static enum status add_device(struct local_group *group,
                              struct local_device_request request,
                              uint32_t index, struct failure *why) {
    struct local_group_member *member = &group->members[group->count];
    bool cuda_required = request.kind == JOB_DEVICE_CUDA;
    request.kind = JOB_DEVICE_CUDA;
    request.local_rank = index;
    enum status status = executor_select_device(
        &member->device_replica.executor, &request, group->log, why);
    if (!status)
        group->count++;
    if (status != STATUS_CONFIG || cuda_required)
        return status;
    log_warning(group->log, "device_not_used", "device %u is not used: %s",
                index, why->text);
    return STATUS_OK;
}

enum status local_group_find(struct local_group *group,
                             const struct local_group_search *search,
                             struct failure *why) {
    const struct local_device_request *request = search->request;
    uint32_t max_devices = search->max_devices;
    *group = (struct local_group){.log = search->log,
                                  .is_cancelled = request->is_cancelled,
                                  .context = request->context,
                                  .timeout = request->timeout};
    for (uint32_t i = 0; i < JOB_MAX_DEVICES; i++) {
        group->members[i].local_group = group;
        group->members[i].index = i;
    }
    struct executor *first = &group->members[0].device_replica.executor;
    enum status status =
        executor_select_device(first, request, group->log, why);
    if (status)
        return status;
    group->count = 1;
    uint32_t count = local_group_is_async(group) && search->alone
                         ? first->device.ops->count()
                         : 1;
    if (max_devices == 0 || max_devices > JOB_MAX_DEVICES)
        max_devices = JOB_MAX_DEVICES;
    for (uint32_t i = 1; !status && i < count && group->count < max_devices;
         i++)
        status = add_device(group, *request, i, why);
    if (!status)
        find_collective(group, search->nccl, search->has_secret);
    return status;
}

bool local_group_reduces_on_host(const struct local_group *local_group) {
    return local_group->count > 1 && !local_group->collective;
}

/* The sum of a step's gradients over the devices, parameter by parameter, the
 * last first, while the first layers are still being computed. On the host:
 * each member downloads its gradients into its own memory, and the
 * compute thread adds them in member order as they arrive. On the devices:
 * adjacent gradients are all-reduced there in pieces; the first device's sum is
 * downloaded to the arena while the next piece is reduced. */

/* Minimum floats of a piece that justify a collective call. */
enum { PIECE = 1 << 20 };

static struct device_transfer *transfer_of(struct local_group_member *member) {
    return &member->device_replica.executor.device_transfer;
}

/* The piece that ends with parameter LAST: parameters *FIRST to LAST, the same
 * on all members. Returns its floats from gradients[*FIRST] on. */
static size_t cut_piece(const struct device_transfer *transfer, uint32_t last,
                        uint32_t *first) {
    const struct layout *layout = transfer->layout;
    const float *end =
        transfer->gradients[last] + layout->parameters[last].elements;
    *first = last;
    while (*first > 0 && end - transfer->gradients[*first] < PIECE)
        --*first;
    return (size_t)(end - transfer->gradients[*first]);
}

/* MEMBER has failed in a joint operation: releases the waits of all others,
 * whose own errors are then not reported as the cause. */
static void local_allreduce_abort(struct local_group_member *member) {
    unsigned none = 0;
    atomic_compare_exchange_strong(&member->local_group->failed_member, &none,
                                   member->index + 1);
    local_collective_abort(member->local_group->local_collective);
}

/* MEMBER's part in the sum of a piece. */
static enum status sum_piece(struct local_group_member *member, uint32_t first,
                             size_t floats, struct failure *why) {
    struct device_transfer *transfer = transfer_of(member);
    struct local_collective *collective = member->local_group->local_collective;
    enum status status = device_transfer_sync(transfer, first, why);
    if (!status)
        status = local_collective_all_reduce(
            collective, member->index, transfer->gradients[first], floats, why);
    if (status)
        local_allreduce_abort(member);
    return status;
}

static enum status reduce_member_on_device(struct local_group_member *member) {
    struct device_transfer *transfer = transfer_of(member);
    enum status status = STATUS_OK;
    uint32_t first = transfer->layout->num_parameters;
    while (!status && first > 0) {
        size_t floats = cut_piece(transfer, first - 1, &first);
        status = sum_piece(member, first, floats, &member->why);
    }
    return status;
}

static enum status reduce_member_on_host(struct local_group_member *member,
                                         uint64_t begin) {
    enum status status = STATUS_OK;
    uint32_t count = member->local_group->layout->num_parameters;
    for (uint32_t p = count; !status && p-- > 0;) {
        status = device_transfer_sync(transfer_of(member), p, &member->why);
        if (!status && p > 0)
            sequence_advance(&member->gathered, begin + count - p);
    }
    return status;
}

/* MEMBER's thread: its part of local_allreduce_run, if the group gathers.
 * Whether it fails or not, `gathered` is then at the step's end. */
static void local_allreduce_run_member(struct local_group_member *member,
                                       uint64_t begin) {
    const struct local_group *group = member->local_group;
    enum status status = STATUS_OK;
    if (group->gathers && !atomic_load(&member->failed))
        status = group->local_collective ? reduce_member_on_device(member)
                                         : reduce_member_on_host(member, begin);
    if (status)
        atomic_store(&member->failed, true);
    sequence_advance(&member->gathered, begin + group->layout->num_parameters);
}

static void local_allreduce_add(float *restrict sum, const float *restrict more,
                                uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        sum[i] += more[i];
}

/* False: a member has failed. */
static bool add_member(struct local_group_member *member, uint32_t parameter,
                       uint64_t sequence) {
    struct local_group *group = member->local_group;
    (void)sequence_wait(&member->gathered, sequence, NULL);
    if (atomic_load(&member->failed))
        return false;
    local_allreduce_add(group->arena->gradient_of[parameter],
                        member->device_replica.arena.gradient_of[parameter],
                        group->layout->parameters[parameter].elements);
    return true;
}

static enum status reduce_on_host(struct local_group *group, uint64_t begin,
                                  void (*on_reduced)(void *context,
                                                     uint32_t parameter),
                                  void *context, struct failure *why) {
    uint32_t count = group->layout->num_parameters;
    for (uint32_t p = count; p-- > 0;) {
        enum status status =
            device_transfer_sync(transfer_of(&group->members[0]), p, why);
        if (status)
            return status;
        for (uint32_t i = 1; i < group->count; i++)
            if (!add_member(&group->members[i], p, begin + count - p))
                return STATUS_OK; /* local_group_gather reports it */
        if (on_reduced)
            on_reduced(context, p);
    }
    return STATUS_OK;
}

/* Parameters FIRST to LAST. */
struct piece {
    uint32_t first, last;
};

/* Waits until PIECE is in the arena. */
static enum status wait_piece(struct local_group *group, struct piece piece,
                              void (*on_reduced)(void *context,
                                                 uint32_t parameter),
                              void *context, struct failure *why) {
    enum status status = STATUS_OK;
    for (uint32_t p = piece.last + 1; !status && p-- > piece.first;) {
        status = device_transfer_sync(transfer_of(&group->members[0]), p, why);
        if (!status && on_reduced)
            on_reduced(context, p);
    }
    return status;
}

static enum status reduce_on_device(struct local_group *group,
                                    void (*on_reduced)(void *context,
                                                       uint32_t parameter),
                                    void *context, struct failure *why) {
    struct local_group_member *own = &group->members[0];
    struct device_transfer *transfer = transfer_of(own);
    uint32_t count = transfer->layout->num_parameters;
    struct piece before = {count, count};
    enum status status = STATUS_OK;
    for (uint32_t end = count; !status && end > 0; end = before.first) {
        struct piece piece = {.last = end - 1};
        size_t floats = cut_piece(transfer, piece.last, &piece.first);
        status = sum_piece(own, piece.first, floats, why);
        for (uint32_t p = end; !status && p-- > piece.first;)
            device_transfer_download_recorded(transfer, p);
        if (!status && end < count)
            status = wait_piece(group, before, on_reduced, context, why);
        before = piece;
    }
    return status ? status
                  : wait_piece(group, before, on_reduced, context, why);
}

/* The compute thread: puts the sums into its arena and calls ON_REDUCED (may
 * be NULL) for each parameter. Sequence numbers of this step's parameters count
 * from BEGIN. */
static enum status local_allreduce_run(struct local_group *group,
                                       uint64_t begin,
                                       void (*on_reduced)(void *context,
                                                          uint32_t parameter),
                                       void *context, struct failure *why) {
    return group->local_collective
               ? reduce_on_device(group, on_reduced, context, why)
               : reduce_on_host(group, begin, on_reduced, context, why);
}

/* Time limit of a joint operation in seconds. It excludes the computation,
 * which each member waits for before. */
static const double CONNECT_SECONDS = 300;

/* The sequence number of parameters at the beginning of this step. */
static uint64_t sequence_begin(const struct local_group *group) {
    return (group->step_number - 1) * group->layout->num_parameters;
}

/* The first member's need callback: also signals the parameter to the
 * others. */
static bool need_first(void *context, uint32_t parameter) {
    struct local_group *group = context;
    uint64_t sequence = sequence_begin(group) + parameter + 1;
    if (!group->step.need(group->step.context, parameter))
        return false;
    if (group->count > 1 && sequence > group->uploaded) {
        group->uploaded = sequence;
        sequence_advance(&group->weights, sequence);
    }
    return true;
}

static void done_first(void *context, uint32_t parameter) {
    struct local_group *group = context;
    group->step.done(group->step.context, parameter);
}

static bool should_continue_first(void *context) {
    struct local_group *group = context;
    return group->step.should_continue(group->step.context);
}

static bool need_other(void *context, uint32_t parameter) {
    struct local_group_member *member = context;
    struct local_group *group = member->local_group;
    if (!sequence_wait(&group->weights, sequence_begin(group) + parameter + 1,
                       NULL) ||
        atomic_load(&group->weights_unavailable))
        member->aborted = true;
    return !member->aborted;
}

static bool should_continue_other(void *context) {
    struct local_group_member *member = context;
    struct local_group *group = member->local_group;
    return !member->aborted &&
           (!group->is_cancelled || !group->is_cancelled(group->context));
}

static void compute_other(struct local_group_member *member) {
    struct device_replica_step step = member->local_group->step;
    step.context = member;
    step.need = need_other;
    step.done = NULL;
    step.should_continue = should_continue_other;
    member->aborted = false;
    if (device_replica_compute(&member->device_replica, &step, &member->result,
                               &member->why))
        atomic_store(&member->failed, true);
}

/* Synchronising also makes the member's device current on this thread, before
 * the collective is joined. */
static void connect_member(struct local_group_member *member) {
    struct local_group *group = member->local_group;
    const struct local_device *device = &member->device_replica.executor.device;
    executor_synchronize(&member->device_replica.executor);
    if (group->local_collective &&
        local_collective_join(group->local_collective, member->index,
                              device->index, &member->why)) {
        atomic_store(&member->failed, true);
        local_allreduce_abort(member);
    }
}

/* Step 1 is the rendezvous of the members. */
static void *run_member(void *argument) {
    struct local_group_member *member = argument;
    struct local_group *group = member->local_group;
    connect_member(member);
    sequence_advance(&member->computed, 1);
    for (uint64_t step_number = 2;
         sequence_wait(&group->started, step_number, NULL); step_number++) {
        compute_other(member);
        sequence_advance(&member->computed, step_number);
        if (!sequence_wait(&group->gather_decided, step_number, NULL))
            break;
        local_allreduce_run_member(member, sequence_begin(group));
    }
    if (group->local_collective)
        local_collective_leave(group->local_collective, member->index);
    return NULL;
}

static enum status start_threads(struct local_group *group,
                                 struct failure *why) {
    sequence_open(&group->started);
    sequence_open(&group->weights);
    sequence_open(&group->gather_decided);
    for (group->joined = 1; group->joined < group->count; group->joined++) {
        struct local_group_member *member = &group->members[group->joined];
        sequence_open(&member->computed);
        sequence_open(&member->gathered);
        int error = pthread_create(&member->thread, NULL, run_member, member);
        if (!error)
            continue;
        sequence_close(&member->computed);
        sequence_close(&member->gathered);
        return status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                            "cannot start a thread for device %s",
                            member->device_replica.executor.device.name);
    }
    return STATUS_OK;
}

static enum status copy_failure(const struct local_group_member *member,
                                struct failure *why) {
    return status_fail(why, member->why.code, "%s", member->why.text);
}

/* Copies the failure that caused the others into WHY, or else the first failed
 * member's; only of members that have computed. */
static enum status find_failure(const struct local_group *group,
                                struct failure *why) {
    uint32_t failed_member = atomic_load(&group->failed_member);
    if (failed_member && atomic_load(&group->members[failed_member - 1].failed))
        return copy_failure(&group->members[failed_member - 1], why);
    for (uint32_t i = 0; i < group->count; i++)
        if (atomic_load(&group->members[i].failed))
            return copy_failure(&group->members[i], why);
    return STATUS_OK;
}

static void wait_computed(struct local_group *group) {
    for (uint32_t i = 1; i < group->joined; i++)
        (void)sequence_wait(&group->members[i].computed, group->step_number,
                            NULL);
}

static void end_threads(struct local_group *group) {
    if (!group->joined)
        return;
    if (group->local_collective &&
        group->broken) /* a broken group cannot part in order */
        local_collective_abort(group->local_collective);
    sequence_cancel(&group->started);
    sequence_cancel(&group->weights);
    sequence_cancel(&group->gather_decided);
    if (group->local_collective)
        local_collective_leave(group->local_collective, 0);
    for (uint32_t i = 1; i < group->joined; i++) {
        struct local_group_member *member = &group->members[i];
        pthread_join(member->thread, NULL);
        sequence_close(&member->computed);
        sequence_close(&member->gathered);
    }
    sequence_close(&group->started);
    sequence_close(&group->weights);
    sequence_close(&group->gather_decided);
    local_collective_close(&group->local_collective);
    group->joined = 0;
}

/* Starts the threads; if the devices reduce, they connect to each other. */
static enum status connect_members(struct local_group *group,
                                   struct failure *why) {
    enum status status = STATUS_OK;
    if (group->collective)
        status = local_collective_open(
            &group->local_collective, group->collective, group->count,
            fmin(group->timeout, CONNECT_SECONDS), why);
    if (!status)
        status = start_threads(group, why);
    group->step_number = 1;
    if (status)
        return status;
    connect_member(&group->members[0]);
    wait_computed(group);
    return find_failure(group, why);
}

/* If the devices cannot connect, the host reduces: slower, with the same
 * sum. */
static enum status connect_or_fall_back(struct local_group *group,
                                        struct failure *why) {
    enum status status = connect_members(group, why);
    if (!status || !group->local_collective)
        return status;
    log_warning(group->log, "device_reduction_failed",
                "gradients of %u devices are summed in host memory: %s",
                group->count, why->text);
    group->broken = true;
    end_threads(group);
    group->broken = false;
    for (uint32_t i = 0; i < group->count; i++)
        atomic_store(&group->members[i].failed, false);
    atomic_store(&group->failed_member, 0);
    group->collective = NULL;
    return connect_members(group, why);
}

static enum status open_member(struct local_group_member *member,
                               const struct local_group_model *model,
                               struct failure *why) {
    struct local_group *group = member->local_group;
    struct device_replica *replica = &member->device_replica;
    struct executor_options use = {.micro_batch = model->job->micro_batch,
                                   .features = model->features,
                                   .pixels = model->pixels,
                                   .evaluates =
                                       model->evaluates && !member->index,
                                   .resident = model->resident};
    struct arena *arena = member->index ? &replica->arena : group->arena;
    enum status status = STATUS_OK;
    if (member->index)
        status = arena_open_replica(arena, group->arena, group->layout,
                                    !group->collective, why);
    return status ? status
                  : executor_open(&replica->executor, model->job, group->layout,
                                  arena, &use, why);
}

enum status local_group_open(struct local_group *group,
                             const struct local_group_model *model,
                             struct failure *why) {
    enum status status = STATUS_OK;
    if (model->count > group->count)
        return status_fail(why, FAILURE_DEVICE_LOST,
                           "the plan counts on %u devices here, where there "
                           "are %u",
                           model->count, group->count);
    while (group->count > model->count)
        device_replica_close(&group->members[--group->count].device_replica);
    group->layout = model->layout;
    group->arena = model->arena;
    if (group->count < 2)
        group->collective = NULL;
    if (group->count > 1)
        status = connect_or_fall_back(group, why);
    for (uint32_t i = 0; !status && i < group->count; i++)
        status = open_member(&group->members[i], model, why);
    executor_synchronize(&group->members[0].device_replica.executor);
    return status;
}

enum status local_group_load(struct local_group *group,
                             const struct dataset *dataset,
                             struct sampler_options samples, uint64_t first,
                             const struct job_data *data, struct failure *why) {
    enum status status = STATUS_OK;
    for (uint32_t i = 0; !status && i < group->count; i++) {
        status = device_replica_load(&group->members[i].device_replica, dataset,
                                     &samples, first, data, why);
        samples.rank++;
        samples.device++;
    }
    executor_synchronize(&group->members[0].device_replica.executor);
    return status;
}

enum status local_group_skip(struct local_group *group, uint64_t count,
                             struct failure *why) {
    enum status status = STATUS_OK;
    for (uint32_t i = 0; !status && i < group->count; i++)
        status =
            device_replica_skip(&group->members[i].device_replica, count, why);
    return status;
}

/* The first member has pinned the memory that all upload from, so it is closed
 * last. */
void local_group_close(struct local_group *group) {
    end_threads(group);
    for (uint32_t i = group->count; i-- > 0;)
        device_replica_close(&group->members[i].device_replica);
    group->count = 0;
}

static void local_group_begin_step(struct local_group *group,
                                   const struct device_replica_step *step) {
    group->step = *step;
    group->step.reduce_on_device = group->local_collective != NULL;
    for (uint32_t i = 0; i < group->count; i++)
        device_transfer_invalidate(
            &group->members[i].device_replica.executor.device_transfer);
    if (group->count < 2)
        return;
    atomic_store(&group->weights_unavailable, false);
    sequence_advance(&group->started, ++group->step_number);
}

/* Releases members that wait for weights which the first did not need. */
static void end_weights(struct local_group *group, bool complete) {
    if (group->count < 2)
        return;
    if (!complete)
        atomic_store(&group->weights_unavailable, true);
    group->uploaded = sequence_begin(group) + group->layout->num_parameters;
    sequence_advance(&group->weights, group->uploaded);
}

static void sum_results(const struct local_group *group,
                        struct device_replica_result *result) {
    *result = (struct device_replica_result){0};
    for (uint32_t i = 0; i < group->count; i++) {
        const struct device_replica_result *one = &group->members[i].result;
        result->loss += one->loss;
        result->nonfinite |= one->nonfinite;
        result->empty |= one->empty; /* all of them, or none */
        result->finite_loss_sum += one->finite_loss_sum;
        result->samples += one->samples;
        result->bad_lines += one->bad_lines;
        result->correct += one->correct;
        result->last_loss += one->last_loss;
        result->last_samples += one->last_samples;
        if (one->input > result->input)
            result->input = one->input;
    }
}

enum status local_group_compute(struct local_group *group,
                                const struct device_replica_step *step,
                                struct device_replica_result *result,
                                struct failure *why) {
    struct local_group_member *first = &group->members[0];
    local_group_begin_step(group, step);
    struct device_replica_step own = group->step;
    own.context = group;
    own.need = need_first;
    own.done = done_first;
    own.should_continue = should_continue_first;
    enum status status = device_replica_compute(&first->device_replica, &own,
                                                &first->result, why);
    end_weights(group, !status && step->should_continue(step->context));
    wait_computed(group);
    sum_results(group, result);
    if (!status)
        status = find_failure(group, why);
    group->broken |= status != STATUS_OK;
    return status;
}

enum status local_group_gather(struct local_group *group, bool wanted,
                               void (*on_reduced)(void *context,
                                                  uint32_t parameter),
                               void *context, struct failure *why) {
    struct local_group_member *own = &group->members[0];
    enum status status = STATUS_OK;
    bool async = local_group_is_async(group);
    group->gathers = wanted && async;
    if (group->count > 1)
        sequence_advance(&group->gather_decided, group->step_number);
    if (group->gathers)
        status = local_allreduce_run(group, sequence_begin(group), on_reduced,
                                     context, &own->why);
    else if (async && !transfer_of(own)->resident &&
             !group->broken) /* pending downloads finish before the arena
                                      is written */
        executor_synchronize(&own->device_replica.executor);
    if (status)
        atomic_store(&own->failed, true);
    uint64_t end = group->count > 1
                       ? sequence_begin(group) + group->layout->num_parameters
                       : 0;
    for (uint32_t i = 1; i < group->joined; i++)
        (void)sequence_wait(&group->members[i].gathered, end, NULL);
    status = find_failure(group, why);
    group->broken |= status != STATUS_OK;
    return status;
}
