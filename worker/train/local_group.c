/* SPDX-License-Identifier: Apache-2.0 */
/* Protocol of a step. The compute thread raises `started`; each thread
 * computes, and waits for `weights`, which the compute thread raises as they
 * arrive. Each raises `computed` once the losses of its samples are known; from
 * them the trainer decides whether the gradients are wanted (`gather_decided`);
 * then all gather them. A member that fails still goes through the rest of the
 * step, so that no other member waits for it; its error is reported at the
 * end. */
#include "worker/train/local_group.h"

#include "worker/train/local_allreduce.h"

#include <math.h>

/* Time limit of a joint operation in seconds. It excludes the computation,
 * which each member waits for before. */
static const double CONNECT_SECONDS = 300;

/* The sequence number of parameters at the beginning of this step. */
static uint64_t sequence_begin(const struct local_group *local_group) {
    return (local_group->step_number - 1) * local_group->layout->num_parameters;
}

/* The first member's need callback: also signals the parameter to the
 * others. */
static bool need_first(void *context, uint32_t parameter) {
    struct local_group *local_group = context;
    uint64_t sequence = sequence_begin(local_group) + parameter + 1;
    if (!local_group->step.need(local_group->step.context, parameter))
        return false;
    if (local_group->count > 1 && sequence > local_group->uploaded) {
        local_group->uploaded = sequence;
        sequence_advance(&local_group->weights, sequence);
    }
    return true;
}

static void done_first(void *context, uint32_t parameter) {
    struct local_group *local_group = context;
    local_group->step.done(local_group->step.context, parameter);
}

static bool should_continue_first(void *context) {
    struct local_group *local_group = context;
    return local_group->step.should_continue(local_group->step.context);
}

static bool need_other(void *context, uint32_t parameter) {
    struct local_group_member *member = context;
    struct local_group *local_group = member->local_group;
    if (!sequence_wait(&local_group->weights,
                       sequence_begin(local_group) + parameter + 1, NULL) ||
        atomic_load(&local_group->weights_unavailable))
        member->aborted = true;
    return !member->aborted;
}

static bool should_continue_other(void *context) {
    struct local_group_member *member = context;
    struct local_group *local_group = member->local_group;
    return !member->aborted &&
           (!local_group->is_cancelled ||
            !local_group->is_cancelled(local_group->context));
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
    struct local_group *local_group = member->local_group;
    const struct device *device = &member->device_replica.executor.device;
    executor_synchronize(&member->device_replica.executor);
    if (local_group->local_collective &&
        local_collective_join(local_group->local_collective, member->index,
                              device->index, &member->why)) {
        atomic_store(&member->failed, true);
        local_allreduce_abort(member);
    }
}

/* Step 1 is the rendezvous of the members. */
static void *run_member(void *argument) {
    struct local_group_member *member = argument;
    struct local_group *local_group = member->local_group;
    connect_member(member);
    sequence_advance(&member->computed, 1);
    for (uint64_t step_number = 2;
         sequence_wait(&local_group->started, step_number, NULL);
         step_number++) {
        compute_other(member);
        sequence_advance(&member->computed, step_number);
        if (!sequence_wait(&local_group->gather_decided, step_number, NULL))
            break;
        local_allreduce_run_member(member, sequence_begin(local_group));
    }
    if (local_group->local_collective)
        local_collective_leave(local_group->local_collective, member->index);
    return NULL;
}

static enum status start_threads(struct local_group *local_group,
                                 struct failure *why) {
    sequence_open(&local_group->started);
    sequence_open(&local_group->weights);
    sequence_open(&local_group->gather_decided);
    for (local_group->joined = 1; local_group->joined < local_group->count;
         local_group->joined++) {
        struct local_group_member *member =
            &local_group->members[local_group->joined];
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
static enum status find_failure(const struct local_group *local_group,
                                struct failure *why) {
    uint32_t failed_member = atomic_load(&local_group->failed_member);
    if (failed_member &&
        atomic_load(&local_group->members[failed_member - 1].failed))
        return copy_failure(&local_group->members[failed_member - 1], why);
    for (uint32_t i = 0; i < local_group->count; i++)
        if (atomic_load(&local_group->members[i].failed))
            return copy_failure(&local_group->members[i], why);
    return STATUS_OK;
}

static void wait_computed(struct local_group *local_group) {
    for (uint32_t i = 1; i < local_group->joined; i++)
        (void)sequence_wait(&local_group->members[i].computed,
                            local_group->step_number, NULL);
}

static void end_threads(struct local_group *local_group) {
    if (!local_group->joined)
        return;
    if (local_group->local_collective &&
        local_group->broken) /* a broken group cannot part in order */
        local_collective_abort(local_group->local_collective);
    sequence_cancel(&local_group->started);
    sequence_cancel(&local_group->weights);
    sequence_cancel(&local_group->gather_decided);
    if (local_group->local_collective)
        local_collective_leave(local_group->local_collective, 0);
    for (uint32_t i = 1; i < local_group->joined; i++) {
        struct local_group_member *member = &local_group->members[i];
        pthread_join(member->thread, NULL);
        sequence_close(&member->computed);
        sequence_close(&member->gathered);
    }
    sequence_close(&local_group->started);
    sequence_close(&local_group->weights);
    sequence_close(&local_group->gather_decided);
    local_collective_close(&local_group->local_collective);
    local_group->joined = 0;
}

/* Starts the threads; if the devices reduce, they connect to each other. */
static enum status connect_members(struct local_group *local_group,
                                   struct failure *why) {
    enum status status = STATUS_OK;
    if (local_group->collective)
        status = local_collective_open(
            &local_group->local_collective, local_group->collective,
            local_group->count, fmin(local_group->timeout, CONNECT_SECONDS),
            why);
    if (!status)
        status = start_threads(local_group, why);
    local_group->step_number = 1;
    if (status)
        return status;
    connect_member(&local_group->members[0]);
    wait_computed(local_group);
    return find_failure(local_group, why);
}

/* If the devices cannot connect, the host reduces: slower, with the same
 * sum. */
static enum status connect_or_fall_back(struct local_group *local_group,
                                        struct failure *why) {
    enum status status = connect_members(local_group, why);
    if (!status || !local_group->local_collective)
        return status;
    log_warning(local_group->log, "device_reduction_failed",
                "gradients of %u devices are summed in host memory: %s",
                local_group->count, why->text);
    local_group->broken = true;
    end_threads(local_group);
    local_group->broken = false;
    for (uint32_t i = 0; i < local_group->count; i++)
        atomic_store(&local_group->members[i].failed, false);
    atomic_store(&local_group->failed_member, 0);
    local_group->collective = NULL;
    return connect_members(local_group, why);
}

static enum status open_member(struct local_group_member *member,
                               const struct local_group_model *model,
                               struct failure *why) {
    struct local_group *local_group = member->local_group;
    struct device_replica *device_replica = &member->device_replica;
    struct executor_options use = {.micro_batch = model->job->micro_batch,
                                   .evaluates =
                                       model->evaluates && !member->index,
                                   .resident = model->resident};
    struct arena *arena =
        member->index ? &device_replica->arena : local_group->arena;
    enum status status = STATUS_OK;
    if (member->index)
        status =
            arena_open_replica(arena, local_group->arena, local_group->layout,
                               !local_group->collective, why);
    return status ? status
                  : executor_open(&device_replica->executor, model->job,
                                  local_group->layout, arena, &use, why);
}

enum status local_group_open(struct local_group *local_group,
                             const struct local_group_model *model,
                             struct failure *why) {
    enum status status = STATUS_OK;
    if (model->count > local_group->count)
        return status_fail(why, FAILURE_DEVICE_LOST,
                           "the plan counts on %u devices here, where there "
                           "are %u",
                           model->count, local_group->count);
    while (local_group->count > model->count)
        device_replica_close(
            &local_group->members[--local_group->count].device_replica);
    local_group->layout = model->layout;
    local_group->arena = model->arena;
    if (local_group->count < 2)
        local_group->collective = NULL;
    if (local_group->count > 1)
        status = connect_or_fall_back(local_group, why);
    for (uint32_t i = 0; !status && i < local_group->count; i++)
        status = open_member(&local_group->members[i], model, why);
    executor_synchronize(&local_group->members[0].device_replica.executor);
    return status;
}

enum status local_group_load(struct local_group *local_group,
                             const struct dataset *dataset,
                             struct sampler_options samples, uint64_t first,
                             const struct job_data *data, struct failure *why) {
    enum status status = STATUS_OK;
    for (uint32_t i = 0; !status && i < local_group->count; i++) {
        status = device_replica_load(&local_group->members[i].device_replica,
                                     dataset, &samples, first, data, why);
        samples.rank++;
    }
    executor_synchronize(&local_group->members[0].device_replica.executor);
    return status;
}

/* The first member has pinned the memory that all upload from, so it is closed
 * last. */
void local_group_close(struct local_group *local_group) {
    end_threads(local_group);
    for (uint32_t i = local_group->count; i-- > 0;)
        device_replica_close(&local_group->members[i].device_replica);
    local_group->count = 0;
}

static void local_group_begin_step(struct local_group *local_group,
                                   const struct device_replica_step *step) {
    local_group->step = *step;
    local_group->step.reduce_on_device = local_group->local_collective != NULL;
    for (uint32_t i = 0; i < local_group->count; i++)
        device_transfer_invalidate(
            &local_group->members[i].device_replica.executor.device_transfer);
    if (local_group->count < 2)
        return;
    atomic_store(&local_group->weights_unavailable, false);
    sequence_advance(&local_group->started, ++local_group->step_number);
}

/* Releases members that wait for weights which the first did not need. */
static void end_weights(struct local_group *local_group, bool complete) {
    if (local_group->count < 2)
        return;
    if (!complete)
        atomic_store(&local_group->weights_unavailable, true);
    local_group->uploaded =
        sequence_begin(local_group) + local_group->layout->num_parameters;
    sequence_advance(&local_group->weights, local_group->uploaded);
}

static void sum_results(const struct local_group *local_group,
                        struct device_replica_result *result) {
    *result = (struct device_replica_result){0};
    for (uint32_t i = 0; i < local_group->count; i++) {
        const struct device_replica_result *one =
            &local_group->members[i].result;
        result->loss += one->loss;
        result->nonfinite |= one->nonfinite;
        result->finite += one->finite;
        result->samples += one->samples;
        result->correct += one->correct;
        result->last_loss += one->last_loss;
        result->last_samples += one->last_samples;
        if (one->input > result->input)
            result->input = one->input;
    }
}

enum status local_group_compute(struct local_group *local_group,
                                const struct device_replica_step *step,
                                struct device_replica_result *result,
                                struct failure *why) {
    struct local_group_member *first = &local_group->members[0];
    local_group_begin_step(local_group, step);
    struct device_replica_step own = local_group->step;
    own.context = local_group;
    own.need = need_first;
    own.done = done_first;
    own.should_continue = should_continue_first;
    enum status status = device_replica_compute(&first->device_replica, &own,
                                                &first->result, why);
    end_weights(local_group, !status && step->should_continue(step->context));
    wait_computed(local_group);
    sum_results(local_group, result);
    if (!status)
        status = find_failure(local_group, why);
    local_group->broken |= status != STATUS_OK;
    return status;
}

enum status local_group_gather(struct local_group *local_group, bool wanted,
                               void (*on_reduced)(void *context,
                                                  uint32_t parameter),
                               void *context, struct failure *why) {
    enum status status = STATUS_OK;
    bool async = local_group_is_async(local_group);
    local_group->gathers = wanted && async;
    if (local_group->count > 1)
        sequence_advance(&local_group->gather_decided,
                         local_group->step_number);
    if (local_group->gathers)
        status = local_allreduce_run(local_group, sequence_begin(local_group),
                                     on_reduced, context, why);
    else if (async &&
             !local_group->members[0]
                  .device_replica.executor.device_transfer.resident &&
             !local_group->broken) /* pending downloads finish before the arena
                                      is written */
        executor_synchronize(&local_group->members[0].device_replica.executor);
    uint64_t end =
        local_group->count > 1
            ? sequence_begin(local_group) + local_group->layout->num_parameters
            : 0;
    for (uint32_t i = 1; i < local_group->joined; i++)
        (void)sequence_wait(&local_group->members[i].gathered, end, NULL);
    enum status group_status = find_failure(local_group, why);
    local_group->broken |= group_status || status;
    return group_status ? group_status : status;
}
