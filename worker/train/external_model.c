/* SPDX-License-Identifier: Apache-2.0 */
/* What the caller declares before its first step: tensors, the optimizer's
 * groups, first values. */
#include "worker/train/external_internal.h"

#include "core/base/time.h"
#include "core/store/manifest.h"
#include "core/tensor/rule.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 64 };

/* Takes the gradient back from its last message; on any thread. */
static void take_back(void *owner, struct buffer *buffer) {
    struct tensor *tensor = owner;
    struct external *external = tensor->external;
    (void)buffer;
    pthread_mutex_lock(&external->mutex);
    tensor->lent = false;
    pthread_cond_broadcast(&external->changed);
    pthread_mutex_unlock(&external->mutex);
}

static bool grow_tensors(struct external *external) {
    uint32_t capacity =
        external->capacity ? 2 * external->capacity : FIRST_CAPACITY;
    struct parameter *parameters = reallocarray(external->parameters, capacity,
                                                sizeof *external->parameters);
    if (parameters)
        external->parameters = parameters;
    float **values =
        reallocarray(external->values, capacity, sizeof *external->values);
    if (values)
        external->values = values;
    float **means =
        reallocarray(external->means, capacity, sizeof *external->means);
    if (means)
        external->means = means;
    struct tensor *tensors =
        reallocarray(external->tensors, capacity, sizeof *external->tensors);
    if (tensors)
        external->tensors = tensors;
    if (!parameters || !values || !means || !tensors)
        return false;
    external->capacity = capacity;
    return true;
}

enum status external_declare(struct external *external,
                             const struct parameter *parameter, float *values,
                             float *mean, uint32_t *number,
                             struct failure *why) {
    if (external->declared)
        return status_fail(why, FAILURE_WRONG_CALL,
                           "tensor \"%s\" is declared after the start",
                           parameter->name);
    if (external->count == LAYOUT_MAX_PARAMETERS)
        return status_fail(why, FAILURE_MODEL_INVALID,
                           "more than %d tensors are declared",
                           LAYOUT_MAX_PARAMETERS);
    if (external->count == external->capacity && !grow_tensors(external))
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for %u tensors",
                           external->count + 1);
    uint32_t p = external->count;
    external->parameters[p] = *parameter;
    external->values[p] = values;
    external->means[p] = parameter->kind == PARAMETER_TRAINED ? mean : NULL;
    external->tensors[p] = (struct tensor){0};
    *number = p;
    external->count++;
    return STATUS_OK;
}

enum status external_optimizer(struct external *external, const char *type,
                               struct failure *why) {
    if (external->declared || external->num_groups)
        return status_fail(why, FAILURE_WRONG_CALL,
                           "the optimizer is named before its values are set "
                           "and before the start");
    enum status status =
        external_default_group(&external->first_group, type, why);
    external->has_optimizer |= !status;
    return status;
}

static enum status external_add_group(struct external *external, uint32_t group,
                                      struct failure *why) {
    uint32_t count = group + 1;
    if (group < external->num_groups)
        return STATUS_OK;
    if (group >= OPTIMIZER_GROUPS_MAX || external->declared)
        return status_fail(why, FAILURE_WRONG_CALL,
                           "group %u of the optimizer: at most %d are allowed, "
                           "and none is new after the start",
                           group, OPTIMIZER_GROUPS_MAX);
    struct optimizer_group *groups =
        reallocarray(external->groups, count, sizeof *groups);
    if (!groups)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for %u groups",
                           count);
    external->groups = groups;
    while (external->num_groups < count)
        groups[external->num_groups++] = external->first_group;
    return STATUS_OK;
}

/* The state's tensors are those of the start. */
static enum status change_group(struct external *external, uint32_t group,
                                const char *key, double value,
                                struct failure *why) {
    struct optimizer_group changed = external->groups[group];
    double before[OPTIMIZER_VALUES], after[OPTIMIZER_VALUES];
    optimizer_group_get(&changed, before);
    enum status status = optimizer_group_set(&changed, key, value, why);
    if (status)
        return status;
    optimizer_group_get(&changed, after);
    const struct optimizer *old = &external->groups[group].optimizer;
    if (external->declared &&
        (rule_form_of(&changed.optimizer) != rule_form_of(old) ||
         changed.optimizer.nesterov != old->nesterov ||
         changed.optimizer.maximize != old->maximize))
        return status_fail(why, FAILURE_WRONG_CALL,
                           "\"%s\" of the optimizer cannot change after the "
                           "start",
                           key);
    external->values_changed |= memcmp(before, after, sizeof before) != 0;
    external->groups[group] = changed;
    return STATUS_OK;
}

enum status external_set(struct external *external, uint32_t group,
                         const char *key, double value, struct failure *why) {
    struct trainer *trainer = external_enter(external);
    if (!trainer)
        return status_fail(why, FAILURE_RUN_ENDED, "the run is over");
    pthread_mutex_lock(&external->mutex);
    if (!external->has_optimizer)
        external->first_group =
            (struct optimizer_group){trainer->settings.job->optimizer,
                                     trainer->settings.job->schedule.lr};
    external->has_optimizer = true;
    enum status status = external_add_group(external, group, why);
    if (!status)
        status = change_group(external, group, key, value, why);
    if (status == STATUS_CONFIG)
        why->code = FAILURE_WRONG_CALL;
    pthread_mutex_unlock(&external->mutex);
    external_leave(external);
    return status;
}

const struct optimizer_group *external_groups(const struct external *external,
                                              uint32_t *count) {
    *count = external->num_groups;
    return external->groups;
}

/* With an optimizer of its own every tensor has a group. */
static enum status settle_groups(struct external *external,
                                 struct failure *why) {
    uint32_t most = 0;
    for (uint32_t p = 0; p < external->count; p++)
        if (external->parameters[p].group > most)
            most = external->parameters[p].group;
    if (!external->has_optimizer && most == 0)
        return STATUS_OK;
    if (!external->has_optimizer)
        return status_fail(why, FAILURE_MODEL_INVALID,
                           "a tensor is in group %u, and no value of a group "
                           "is set",
                           most);
    enum status status = external_add_group(external, most, why);
    if (!status)
        optimizer_group_align(external->groups, external->num_groups);
    external->values_changed = false;
    return status;
}

static enum status check_means(const struct external *external,
                               struct failure *why) {
    for (uint32_t p = 0; external->takes_means && p < external->count; p++)
        if (external->parameters[p].kind == PARAMETER_TRAINED &&
            !external->means[p])
            return status_fail(why, FAILURE_MODEL_INVALID,
                               "tensor \"%s\" has no memory for the mean of "
                               "its gradients, which optimizer None needs",
                               external->parameters[p].name);
    return STATUS_OK;
}

/* With optimizer None the trainers apply one of their own. */
static enum status settle_means(struct external *external,
                                const struct job *job, struct failure *why) {
    const struct optimizer *optimizer = external->has_optimizer
                                            ? &external->first_group.optimizer
                                            : &job->optimizer;
    external->takes_means = optimizer->type == OPTIMIZER_NONE;
    if (external->takes_means && job->staleness)
        return status_fail(
            why, FAILURE_JOB_INVALID,
            "optimizer None (in Python DistributedOptimizer's rule \"worker\") "
            "with strategy.staleness: each push would need an update of its "
            "own; allowed there: " OPTIMIZER_WORDS);
    return check_means(external, why);
}

/* From now on the tensors do not move. */
static enum status open_gradients(struct external *external,
                                  const struct layout *layout,
                                  struct failure *why) {
    for (uint32_t p = 0; p < external->count; p++) {
        struct tensor *tensor = &external->tensors[p];
        external->parameters[p].elements = layout->parameters[p].elements;
        tensor->external = external;
        tensor->gradient = buffer_open_foreign(take_back, tensor);
        if (!tensor->gradient)
            return status_fail(why, FAILURE_NO_MEMORY,
                               "no memory for %u tensors", external->count);
    }
    return STATUS_OK;
}

static enum status send_model(struct external *external,
                              struct trainer *trainer, struct failure *why) {
    struct trainer_report declared = {.event = TRAINER_DECLARED, .replicas = 1};
    enum status status = layout_build(&trainer->layout, external->parameters,
                                      external->count, why);
    if (!status)
        status = external_add_tables(external, trainer->layout, why);
    if (!status)
        status = settle_groups(external, why);
    if (!status)
        status = settle_means(external, trainer->settings.job, why);
    if (!status)
        status = open_gradients(external, trainer->layout, why);
    if (status)
        return status;
    external->declared = true;
    event_queue_push(&trainer->event_queue, &declared);
    return STATUS_OK;
}

/* The plan has the values of the rank 0 that was there first. */
static bool differs_from_plan(const struct external *external,
                              const struct plan *plan) {
    double own[OPTIMIZER_VALUES], planned[OPTIMIZER_VALUES];
    bool differs = false;
    for (uint32_t g = 0; g < external->num_groups && g < plan->num_groups;
         g++) {
        optimizer_group_get(&external->groups[g], own);
        optimizer_group_get(&plan->groups[g], planned);
        differs |= memcmp(own, planned, sizeof own) != 0;
    }
    return differs;
}

/* Rank 0's optimizer is the plan's, also of a rank that has named none. */
static enum status take_planned_optimizer(struct external *external,
                                          const struct trainer *trainer,
                                          struct failure *why) {
    external->takes_means =
        trainer->settings.job->optimizer.type == OPTIMIZER_NONE;
    return check_means(external, why);
}

/* Waits for trainer_begin. */
static bool wait_exchange(struct trainer *trainer, int64_t until) {
    pthread_mutex_lock(&trainer->mutex);
    bool in_time = true;
    while (!trainer->exchange.vtable && !trainer->cancelled && in_time)
        in_time = time_cond_wait(&trainer->changed, &trainer->mutex, until);
    bool here = trainer->exchange.vtable && !trainer->cancelled;
    pthread_mutex_unlock(&trainer->mutex);
    return here;
}

/* Rank 0 of a new run sends its weights, the others ask for them. */
static void request_weights(struct external *external,
                            struct trainer *trainer) {
    const struct plan *plan = trainer->plan;
    struct exchange exchange = trainer->exchange;
    bool first = !plan->pull_first && trainer->from == 1;
    trainer->clock = trainer->from - 1;
    for (uint32_t p = 0; p < external->count; p++)
        external->tensors[p].stale = exchange.provides_first_weights;
    if (first && trainer->settings.rank == 0)
        exchange_assign(exchange, trainer->clock);
    else
        exchange_pull(exchange, trainer->clock, 0);
    external->requested = true;
}

static void give_weights(const struct external *external,
                         const struct trainer *trainer, bool trained_only) {
    for (uint32_t p = 0; p < external->count; p++)
        if (!trained_only || external->parameters[p].kind == PARAMETER_TRAINED)
            memcpy(trainer->arena.weight_of[p], external->values[p],
                   external->parameters[p].elements * sizeof(float));
}

void external_give_weights(struct external *external) {
    give_weights(external, external->trainer, false);
}

void external_collect_weights(struct external *external) {
    const struct trainer *trainer = external_enter(external);
    if (!trainer)
        return;
    give_weights(external, trainer, true);
    external_leave(external);
}

/* Where the checkpoint that the run continues stood in its data. With staleness
 * steps are pushes of all ranks, of which each has done its share. */
static void read_position(struct external *external,
                          const struct trainer *trainer) {
    const struct run_schedule *schedule = &trainer->plan->run_schedule;
    bool synchronous = trainer_is_synchronous(trainer);
    uint32_t ranks = synchronous ? 1 : trainer->settings.num_ranks;
    const char *text = trainer->plan->restore_manifest;
    struct manifest manifest;
    struct failure ignored;
    external->epoch_first =
        synchronous ? schedule->start : schedule->start_batch / ranks;
    if (trainer->clock > external->epoch_first &&
        exchange_epoch(trainer->exchange, &external->epoch,
                       &external->epoch_first)) {
        if (external->epoch_first > trainer->clock)
            external->epoch_first = trainer->clock;
        return; /* it joins in the epoch that the others are in */
    }
    if (!text || manifest_parse(&manifest, text, &ignored))
        return;
    uint64_t done = manifest.epoch_step / ranks;
    external->epoch = manifest.epoch;
    external->epoch_first -=
        done < external->epoch_first ? done : external->epoch_first;
    manifest_clear(&manifest);
}

/* Of the run. */
static uint64_t external_step_of_run(const struct trainer *trainer) {
    return trainer_is_synchronous(trainer)
               ? trainer->clock
               : exchange_global_step(trainer->exchange);
}

enum external_result external_epoch(struct external *external,
                                    uint64_t number) {
    struct trainer *trainer = external_enter(external);
    if (!trainer)
        return EXTERNAL_OVER;
    struct trainer_report begun = {.event = TRAINER_EPOCH, .id = number};
    bool started = external->started;
    if (!started) {
        external_misused(trainer, "an epoch begins before the start");
    } else {
        begun.step = external_step_of_run(trainer);
        external->epoch = number;
        external->epoch_first = trainer->clock;
        exchange_set_epoch(trainer->exchange, number, trainer->clock);
        if (trainer->settings.rank == 0)
            event_queue_push(&trainer->event_queue, &begun);
    }
    external_leave(external);
    return started ? EXTERNAL_DONE : EXTERNAL_OVER;
}

static enum external_result start_training(struct external *external,
                                           struct trainer *trainer,
                                           int64_t until) {
    struct failure why;
    if (!external->declared && send_model(external, trainer, &why)) {
        external_report(trainer, &why);
        return EXTERNAL_OVER;
    }
    if (!wait_exchange(trainer, until))
        return external_late(external, until);
    if (!external->requested &&
        take_planned_optimizer(external, trainer, &why)) {
        external_report(trainer, &why);
        return EXTERNAL_OVER;
    }
    if (!external->requested)
        request_weights(external, trainer);
    if (!external_wait_all(external, trainer, until))
        return external_late(external, until);
    read_position(external, trainer);
    external->values_changed |= differs_from_plan(external, trainer->plan);
    trainer->started_at = time_now();
    trainer->waited = exchange_waited(trainer->exchange);
    external->past_end =
        external_step_of_run(trainer) >= trainer->plan->run_schedule.total;
    external->started = true;
    return EXTERNAL_DONE;
}

enum external_result external_start(struct external *external, int64_t until) {
    struct trainer *trainer = external_enter(external);
    if (!trainer)
        return EXTERNAL_OVER;
    enum external_result result = EXTERNAL_DONE;
    if (!external->started)
        result = start_training(external, trainer, until);
    external_leave(external);
    return result;
}

void external_position(struct external *external,
                       struct external_position *position) {
    struct trainer *trainer = external_enter(external);
    *position = (struct external_position){.total = UINT64_MAX};
    if (!trainer)
        return;
    if (external->started) {
        const struct run_schedule *schedule = &trainer->plan->run_schedule;
        position->step = external_step_of_run(trainer);
        position->total = schedule->total == RUN_SCHEDULE_ENDLESS
                              ? UINT64_MAX
                              : schedule->total;
        position->updates =
            position->step - exchange_scaler(trainer->exchange).skipped;
        position->epoch = external->epoch;
        position->epoch_step = trainer->clock - external->epoch_first;
        position->resumed = schedule->start || trainer->from > 1;
    }
    external_leave(external);
}
