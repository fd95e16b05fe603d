/* SPDX-License-Identifier: Apache-2.0 */
/* The mutex guards what the worker and the caller share; the parameters and
 * their pushes are the caller's, and under the mutex as well, since gradients
 * may come from several threads. It is not held while a call waits: `inside`
 * counts the calls that use the trainer, and external_detach waits for them.
 *
 * With ps gradients are sent from the caller's memory and weights arrive in it.
 * A gradient is lent to the link as a buffer over the caller's bytes; the wait
 * for its weights ends once every message has given it back. In all-reduce both
 * are copied from and to the arena, whose ranges are summed in place. */
#include "worker/train/external.h"

#include "proto/base/time.h"
#include "proto/tensor/rule.h"
#include "worker/exchange/client/window.h"
#include "worker/train/trainer_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 64 };

struct tensor {
    struct external *external;
    struct buffer *gradient; /* over the caller's bytes */
    bool pushed;             /* in this step */
    bool lent;               /* a message may still read the gradient */
    bool owned;              /* this file has a reference to it */
    bool stale;              /* all-reduce: VALUES are not those of the arena */
};

struct external {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct trainer *trainer; /* attached, or NULL */
    struct external_place place;
    unsigned inside; /* calls that use the trainer */
    bool joined, detached, ended;
    enum status status;
    struct failure why;

    struct parameter *parameters;
    float **values;
    struct tensor *tensors;
    uint32_t count, capacity, num_pushed;
    bool declared, requested, started, finished;
    bool counted;                   /* the step that ends was counted */
    struct optimizer_group *groups; /* [num_groups]; NULL: the job's */
    uint32_t num_groups;
    bool has_optimizer, values_changed;
    struct optimizer_group first_group; /* of groups that are not set */
    uint32_t first; /* ps: of the pushes that wait; reducer: announced from here
                       on */
    uint32_t num_waiting;           /* ps: pushes not announced yet, a range */
    uint64_t waiting_elements;      /* of it */
    enum contribution waiting_kind; /* of all of it */
};

struct external *external_open(void) {
    struct external *external = calloc(1, sizeof *external);
    if (!external)
        return NULL;
    pthread_mutex_init(&external->mutex, NULL);
    pthread_cond_init(&external->changed, NULL);
    return external;
}

void external_close(struct external **where) {
    struct external *external = *where;
    *where = NULL;
    if (!external)
        return;
    for (uint32_t p = 0; p < external->count; p++)
        if (external->tensors[p].gradient)
            buffer_destroy(external->tensors[p].gradient);
    pthread_mutex_destroy(&external->mutex);
    pthread_cond_destroy(&external->changed);
    free(external->groups);
    free(external->parameters);
    free(external->values);
    free(external->tensors);
    free(external);
}

void external_attach(struct external *external, struct trainer *trainer) {
    pthread_mutex_lock(&external->mutex);
    external->trainer = trainer;
    external->joined = true;
    external->place = (struct external_place){trainer->settings.rank,
                                              trainer->settings.num_ranks,
                                              trainer->settings.local_rank};
    pthread_cond_broadcast(&external->changed);
    pthread_mutex_unlock(&external->mutex);
}

void external_detach(struct external *external) {
    pthread_mutex_lock(&external->mutex);
    external->detached = true;
    pthread_cond_broadcast(&external->changed);
    while (external->inside)
        pthread_cond_wait(&external->changed, &external->mutex);
    external->trainer = NULL;
    pthread_mutex_unlock(&external->mutex);
}

float *const *external_values(const struct external *external) {
    return external->values;
}

void external_end(struct external *external, enum status status,
                  const struct failure *why) {
    pthread_mutex_lock(&external->mutex);
    external->ended = true;
    external->status = status;
    external->why = *why;
    pthread_cond_broadcast(&external->changed);
    pthread_mutex_unlock(&external->mutex);
}

enum external_result external_wait_end(struct external *external, int64_t until,
                                       enum status *status,
                                       struct failure *why) {
    pthread_mutex_lock(&external->mutex);
    while (!external->ended &&
           time_cond_wait(&external->changed, &external->mutex, until))
        ;
    bool ended = external->ended;
    *status = external->status;
    if (ended)
        *why = external->why;
    pthread_mutex_unlock(&external->mutex);
    return ended ? EXTERNAL_DONE : EXTERNAL_LATE;
}

enum external_result external_wait_joined(struct external *external,
                                          int64_t until) {
    bool in_time = true;
    pthread_mutex_lock(&external->mutex);
    while (!external->joined && !external->ended && in_time)
        in_time = time_cond_wait(&external->changed, &external->mutex, until);
    enum external_result result = external->joined  ? EXTERNAL_DONE
                                  : external->ended ? EXTERNAL_OVER
                                                    : EXTERNAL_LATE;
    pthread_mutex_unlock(&external->mutex);
    return result;
}

void external_place(const struct external *external,
                    struct external_place *place) {
    *place = external->place;
}

/* Begins a call that uses the trainer; NULL if the run is over. */
static struct trainer *external_enter(struct external *external) {
    pthread_mutex_lock(&external->mutex);
    bool may = external->trainer && !external->detached && !external->ended;
    external->inside += may;
    pthread_mutex_unlock(&external->mutex);
    return may ? external->trainer : NULL;
}

static void external_leave(struct external *external) {
    pthread_mutex_lock(&external->mutex);
    if (!--external->inside && external->detached)
        pthread_cond_broadcast(&external->changed);
    pthread_mutex_unlock(&external->mutex);
}

/* A wait has ended early: the run is over, or its end is on the way, which then
 * is waited for in place of what does not come. */
static enum external_result external_late(struct external *external,
                                          int64_t until) {
    pthread_mutex_lock(&external->mutex);
    while (!external->detached && !external->ended &&
           time_cond_wait(&external->changed, &external->mutex, until))
        ;
    bool over = external->detached || external->ended;
    pthread_mutex_unlock(&external->mutex);
    return over ? EXTERNAL_OVER : EXTERNAL_LATE;
}

static void report_failure(struct trainer *trainer, const struct failure *why) {
    struct trainer_report failed = {.event = TRAINER_FAILED, .why = *why};
    event_queue_push(&trainer->event_queue, &failed);
}

void external_fail(struct external *external, const struct failure *why) {
    struct trainer *trainer = external_enter(external);
    if (!trainer)
        return;
    report_failure(trainer, why);
    external_leave(external);
}

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

static bool grow(struct external *external) {
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
    struct tensor *tensors =
        reallocarray(external->tensors, capacity, sizeof *external->tensors);
    if (tensors)
        external->tensors = tensors;
    if (!parameters || !values || !tensors)
        return false;
    external->capacity = capacity;
    return true;
}

enum status external_declare(struct external *external,
                             const struct parameter *parameter, float *values,
                             uint32_t *number, struct failure *why) {
    if (external->declared)
        return status_fail(why, FAILURE_MODEL_INVALID,
                           "tensor \"%s\" is declared after the start",
                           parameter->name);
    if (external->count == LAYOUT_MAX_PARAMETERS)
        return status_fail(why, FAILURE_MODEL_INVALID,
                           "more than %d tensors are declared",
                           LAYOUT_MAX_PARAMETERS);
    if (external->count == external->capacity && !grow(external))
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for %u tensors",
                           external->count + 1);
    uint32_t p = external->count;
    external->parameters[p] = *parameter;
    external->values[p] = values;
    external->tensors[p] = (struct tensor){0};
    *number = p;
    external->count++;
    return STATUS_OK;
}

static struct optimizer_group group_of_job(const struct job *job) {
    return (struct optimizer_group){job->optimizer, job->schedule.lr};
}

enum status external_optimizer(struct external *external, const char *type,
                               struct failure *why) {
    char override[128];
    const char *overrides[] = {override};
    struct job_source source = {
        .overrides = overrides, .num_overrides = 1, .external = true};
    struct job *job;
    if (external->declared || external->num_groups)
        return status_fail(why, FAILURE_JOB_INVALID,
                           "the optimizer is named before its values are set "
                           "and before the start");
    snprintf(override, sizeof override, "optimizer.type=%.64s", type);
    enum status status = job_load(&job, &source, NULL, why);
    if (status)
        return status;
    external->first_group = group_of_job(job);
    external->has_optimizer = true;
    job_free(&job);
    return STATUS_OK;
}

static enum status add_groups(struct external *external, uint32_t count,
                              struct failure *why) {
    if (count <= external->num_groups)
        return STATUS_OK;
    if (count > OPTIMIZER_GROUPS_MAX || external->declared)
        return status_fail(why, FAILURE_JOB_INVALID,
                           "group %u of the optimizer: at most %d are allowed, "
                           "and none is new after the start",
                           count - 1, OPTIMIZER_GROUPS_MAX);
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
        return status_fail(why, FAILURE_JOB_INVALID,
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
        external->first_group = group_of_job(trainer->settings.job);
    external->has_optimizer = true;
    enum status status = add_groups(external, group + 1, why);
    if (!status)
        status = change_group(external, group, key, value, why);
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
    enum status status = add_groups(external, most + 1, why);
    if (!status)
        optimizer_group_align(external->groups, external->num_groups);
    external->values_changed = false;
    return status;
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
        status = settle_groups(external, why);
    if (!status)
        status = open_gradients(external, trainer->layout, why);
    if (status)
        return status;
    external->declared = true;
    event_queue_push(&trainer->event_queue, &declared);
    return STATUS_OK;
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

/* With ps: the gradient may be changed once no message reads it. */
static bool await_gradient(struct external *external, struct tensor *tensor,
                           int64_t until) {
    bool in_time = true;
    pthread_mutex_lock(&external->mutex);
    while (tensor->lent && in_time && !external->detached)
        in_time = time_cond_wait(&external->changed, &external->mutex, until);
    bool here = !tensor->lent;
    pthread_mutex_unlock(&external->mutex);
    return here;
}

static bool wait_one(struct external *external, struct trainer *trainer,
                     uint32_t p, int64_t until) {
    struct tensor *tensor = &external->tensors[p];
    if (!exchange_wait(trainer->exchange, p, until))
        return false;
    if (tensor->lent) {
        struct buffer *own = tensor->gradient;
        if (tensor->owned) /* the first wait after the push */
            buffer_release(&own);
        tensor->owned = false;
        return await_gradient(external, tensor, until);
    }
    if (tensor->stale)
        memcpy(external->values[p], trainer->arena.weight_of[p],
               external->parameters[p].elements * sizeof(float));
    tensor->stale = false;
    return true;
}

static bool external_wait_all(struct external *external,
                              struct trainer *trainer, int64_t until) {
    for (uint32_t p = 0; p < external->count; p++)
        if (!wait_one(external, trainer, p, until))
            return false;
    return true;
}

void external_give_weights(struct external *external) {
    const struct trainer *trainer = external->trainer;
    for (uint32_t p = 0; p < external->count; p++)
        memcpy(trainer->arena.weight_of[p], external->values[p],
               external->parameters[p].elements * sizeof(float));
}

static enum external_result start(struct external *external,
                                  struct trainer *trainer, int64_t until) {
    struct failure why;
    if (!external->declared && send_model(external, trainer, &why)) {
        report_failure(trainer, &why);
        return EXTERNAL_OVER;
    }
    if (!wait_exchange(trainer, until))
        return external_late(external, until);
    if (!external->requested)
        request_weights(external, trainer);
    if (!external_wait_all(external, trainer, until))
        return external_late(external, until);
    trainer->started_at = time_now();
    trainer->waited = exchange_waited(trainer->exchange);
    external->started = true;
    return EXTERNAL_DONE;
}

enum external_result external_start(struct external *external, int64_t until) {
    struct trainer *trainer = external_enter(external);
    if (!trainer)
        return EXTERNAL_OVER;
    enum external_result result = EXTERNAL_DONE;
    if (!external->started)
        result = start(external, trainer, until);
    external_leave(external);
    return result;
}

void external_position(struct external *external,
                       struct external_position *position) {
    struct trainer *trainer = external_enter(external);
    *position = (struct external_position){.total = UINT64_MAX};
    if (!trainer)
        return;
    const struct run_schedule *schedule =
        trainer->plan ? &trainer->plan->run_schedule : NULL;
    if (schedule) {
        position->step = trainer_is_synchronous(trainer)
                             ? trainer->clock
                             : exchange_global_step(trainer->exchange);
        position->total = schedule->total == RUN_SCHEDULE_ENDLESS
                              ? UINT64_MAX
                              : schedule->total;
        position->resumed = schedule->start || trainer->from > 1;
    }
    external_leave(external);
}

/* Announces the pushes that wait for a larger message. */
static void flush(struct external *external, struct trainer *trainer) {
    if (!external->num_waiting)
        return;
    exchange_announce(trainer->exchange, external->first, external->num_waiting,
                      trainer->clock + 1, external->waiting_kind);
    external->num_waiting = 0;
    external->waiting_elements = 0;
}

/* Small gradients are announced together, as in trainer_step.c, if they come in
 * the order of a backward pass. */
static void push_to_ps(struct external *external, struct trainer *trainer,
                       uint32_t p, enum contribution kind) {
    if (external->num_waiting &&
        (p + 1 != external->first || kind != external->waiting_kind))
        flush(external, trainer);
    external->first = p;
    external->num_waiting++;
    external->waiting_kind = kind;
    external->waiting_elements += external->parameters[p].elements;
    if (external->waiting_elements >= WINDOW_MIN_FLOATS ||
        external->num_pushed == external->count ||
        exchange_over_network(trainer->exchange))
        flush(external, trainer);
}

/* A reducer takes parameters from the last to the first. */
static void push_to_reducer(struct external *external,
                            struct trainer *trainer) {
    uint32_t end = external->first;
    while (external->first && external->tensors[external->first - 1].pushed)
        external->first--;
    if (external->first < end)
        exchange_announce(trainer->exchange, external->first,
                          end - external->first, trainer->clock + 1,
                          CONTRIBUTION_FULL);
}

static void lend(struct external *external, struct trainer *trainer, uint32_t p,
                 const void *data) {
    struct tensor *tensor = &external->tensors[p];
    tensor->lent = tensor->owned = true;
    buffer_set_memory(tensor->gradient, (void *)data,
                      external->parameters[p].elements * sizeof(float));
    client_set_gradient(trainer->exchange.context, p, tensor->gradient);
}

/* A gradient without bytes is zeros; assigned values go beside the arena. */
static void give_to_reducer(const struct external *external,
                            const struct trainer *trainer, uint32_t p,
                            const void *data, enum contribution kind) {
    const struct parameter *parameter = &external->parameters[p];
    bool assigned = parameter->kind == PARAMETER_ASSIGNED;
    bool has_bytes = kind == CONTRIBUTION_FULL;
    size_t bytes = parameter->elements * sizeof(float);
    reducer_contribute(trainer->exchange.context, trainer->clock + 1, p, kind,
                       assigned && has_bytes ? data : NULL);
    if (has_bytes && !assigned)
        memcpy(trainer->arena.gradient_of[p], data, bytes);
    else
        memset(trainer->arena.gradient_of[p], 0, bytes);
}

/* False and WHY: the caller must not push this now. */
static bool check_push(const struct external *external,
                       const struct trainer *trainer, uint32_t p,
                       const void *data, size_t bytes, enum contribution kind,
                       struct failure *why) {
    unsigned long long step = trainer->clock + 1;
    why->code = FAILURE_NONE;
    if (!external->started || external->finished || p >= external->count) {
        status_fail(why, FAILURE_WRONG_CALL,
                    p < external->count
                        ? "a push %s"
                        : "a push of a tensor that was not declared",
                    external->finished ? "after the end" : "before the start");
        return false;
    }
    const struct parameter *parameter = &external->parameters[p];
    size_t expected = parameter->elements * sizeof(float);
    if (external->tensors[p].pushed)
        status_fail(why, FAILURE_WRONG_CALL,
                    "tensor \"%s\" is pushed twice in step %llu",
                    parameter->name, step);
    else if (kind == CONTRIBUTION_FULL ? !data || bytes != expected
                                       : data || bytes)
        status_fail(why, FAILURE_WRONG_CALL,
                    "the push of tensor \"%s\" in step %llu has %zu bytes, "
                    "expected are %zu",
                    parameter->name, step, bytes,
                    kind == CONTRIBUTION_FULL ? expected : 0);
    return why->code == FAILURE_NONE;
}

/* Values that were once changed go with every step. */
static void begin_step(struct external *external, struct trainer *trainer) {
    double values[OPTIMIZER_VALUES];
    pthread_mutex_lock(&trainer->mutex);
    trainer->progress.pushing = trainer->clock + 1;
    pthread_mutex_unlock(&trainer->mutex);
    if (trainer->exchange.provides_first_weights)
        external->first = external->count;
    for (uint32_t g = 0; external->values_changed && g < external->num_groups;
         g++) {
        optimizer_group_get(&external->groups[g], values);
        exchange_set_values(trainer->exchange, trainer->clock + 1, g, values);
    }
}

static enum external_result push(struct external *external,
                                 struct trainer *trainer, uint32_t p,
                                 const void *data, size_t bytes,
                                 enum contribution kind) {
    struct failure why;
    bool reduces = trainer->exchange.provides_first_weights;
    if (!check_push(external, trainer, p, data, bytes, kind, &why)) {
        report_failure(trainer, &why);
        return EXTERNAL_OVER;
    }
    if (!external->num_pushed)
        begin_step(external, trainer);
    external->tensors[p].pushed = true;
    external->num_pushed++;
    if (reduces) {
        external->tensors[p].stale = true;
        give_to_reducer(external, trainer, p, data, kind);
        push_to_reducer(external, trainer);
        return EXTERNAL_DONE;
    }
    if (kind == CONTRIBUTION_FULL)
        lend(external, trainer, p, data);
    push_to_ps(external, trainer, p, kind);
    return EXTERNAL_DONE;
}

enum external_result external_push(struct external *external,
                                   uint32_t parameter, const void *data,
                                   size_t bytes, enum contribution kind) {
    struct trainer *trainer = external_enter(external);
    if (!trainer)
        return EXTERNAL_OVER;
    pthread_mutex_lock(&external->mutex);
    enum external_result result =
        push(external, trainer, parameter, data, bytes, kind);
    pthread_mutex_unlock(&external->mutex);
    external_leave(external);
    return result;
}

static void flush_pushes(struct external *external, struct trainer *trainer) {
    pthread_mutex_lock(&external->mutex);
    if (!trainer->exchange.provides_first_weights)
        flush(external, trainer);
    pthread_mutex_unlock(&external->mutex);
}

enum external_result external_wait(struct external *external,
                                   uint32_t parameter, int64_t until) {
    struct trainer *trainer = external_enter(external);
    if (!trainer)
        return EXTERNAL_OVER;
    enum external_result result = EXTERNAL_DONE;
    if (external->started && parameter < external->count) {
        flush_pushes(external, trainer);
        if (!wait_one(external, trainer, parameter, until))
            result = external_late(external, until);
    }
    external_leave(external);
    return result;
}

/* With staleness the answer to the step before says which of the run it was. */
static void count_step(struct external *external, struct trainer *trainer,
                       const struct external_step *step) {
    double sum = step->loss * (double)step->samples;
    struct device_replica_result result = {.loss = sum,
                                           .finite_loss_sum = sum,
                                           .samples = step->samples,
                                           .correct = step->correct,
                                           .last_loss = sum,
                                           .last_samples = step->samples};
    if (!trainer_is_synchronous(trainer) && trainer->clock >= trainer->from)
        trainer_step_count(trainer, exchange_global_step(trainer->exchange));
    for (uint32_t p = 0; p < external->count; p++)
        external->tensors[p].pushed = false;
    external->num_pushed = 0;
    trainer->clock++;
    trainer_step_add(trainer, &result);
    external->counted = true;
}

/* False: the step cannot end so. */
static bool check_step(const struct external *external, struct trainer *trainer,
                       const struct external_step *step) {
    unsigned long long number = trainer->clock + 1;
    struct failure why;
    uint32_t p = 0;
    if (external->num_pushed < external->count) {
        while (external->tensors[p].pushed)
            p++;
        status_fail(&why, FAILURE_WRONG_CALL,
                    "tensor \"%s\" was not pushed in step %llu; a tensor "
                    "without a gradient is pushed as zero or empty",
                    external->parameters[p].name, number);
    } else if (!isfinite(step->loss) && !trainer->settings.job->nan_skip) {
        status_fail(&why, FAILURE_LOSS_NOT_FINITE,
                    "the loss is %g at step %llu: try a smaller rate, or "
                    "gradient_clipping",
                    fabs(step->loss), number);
    } else {
        return true;
    }
    report_failure(trainer, &why);
    return false;
}

static enum external_result end_step(struct external *external,
                                     struct trainer *trainer,
                                     const struct external_step *step,
                                     bool *ends, int64_t until) {
    uint64_t total = trainer->plan->run_schedule.total;
    if (!external->counted) {
        if (!check_step(external, trainer, step))
            return EXTERNAL_OVER;
        flush_pushes(external, trainer);
        count_step(external, trainer, step);
    }
    if (trainer_is_cancelled(trainer))
        return external_late(external, until);
    *ends = trainer_is_leaving(trainer) || trainer->clock >= total;
    if (!*ends && !trainer_is_synchronous(trainer) &&
        total != RUN_SCHEDULE_ENDLESS) {
        if (!wait_one(external, trainer, external->count - 1, until))
            return external_late(external, until);
        *ends = exchange_global_step(trainer->exchange) >= total;
    }
    external->counted = false;
    return EXTERNAL_DONE;
}

enum external_result external_step(struct external *external,
                                   const struct external_step *step, bool *ends,
                                   int64_t until) {
    struct trainer *trainer = external_enter(external);
    enum external_result result = EXTERNAL_OVER;
    *ends = false;
    if (!trainer)
        return EXTERNAL_OVER;
    if (external->started && !external->finished)
        result = end_step(external, trainer, step, ends, until);
    external_leave(external);
    return result;
}

enum external_result external_finish(struct external *external, bool early,
                                     int64_t until) {
    struct trainer *trainer = external_enter(external);
    if (!trainer)
        return EXTERNAL_OVER;
    struct failure why;
    enum external_result result = EXTERNAL_DONE;
    if (early && external->started &&
        trainer->exchange.provides_first_weights &&
        trainer->settings.num_ranks > 1) {
        status_fail(&why, FAILURE_WRONG_CALL,
                    "an early end after step %llu: all-reduce does not go on "
                    "without a rank; push the steps that are left as empty",
                    (unsigned long long)trainer->clock);
        report_failure(trainer, &why);
        external_leave(external);
        return EXTERNAL_OVER;
    }
    flush_pushes(external, trainer);
    if (external->started && !external_wait_all(external, trainer, until)) {
        result = external_late(external, until);
    } else if (!external->finished) {
        struct trainer_report finished = {
            .event = TRAINER_FINISHED, .clock = trainer->clock, .early = early};
        external->finished = true;
        event_queue_push(&trainer->event_queue, &finished);
    }
    external_leave(external);
    return result;
}
