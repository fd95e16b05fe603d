/* SPDX-License-Identifier: Apache-2.0 */
/* A step of the caller: gradients are lent to the client or copied to the
 * reducer's arena as they come; its end is checked and counted. */
#include "worker/train/external_internal.h"

#include "core/base/time.h"
#include "worker/collective/trainer_group.h"
#include "worker/exchange/client/window.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Announces the pushes that wait for a larger message. */
static void announce_waiting(struct external *external,
                             struct trainer *trainer) {
    if (!external->num_waiting)
        return;
    trainer->exchange->announce(trainer->exchange, external->first,
                                external->num_waiting, trainer->clock + 1,
                                external->waiting_kind);
    external->num_waiting = 0;
    external->waiting_elements = 0;
}

/* Small gradients are announced together, as in trainer_step.c, if they come in
 * the order of a backward pass. */
static void announce_push(struct external *external, struct trainer *trainer,
                          uint32_t p, enum contribution kind) {
    if (external->num_waiting &&
        (p + 1 != external->first || kind != external->waiting_kind))
        announce_waiting(external, trainer);
    external->first = p;
    external->num_waiting++;
    external->waiting_kind = kind;
    external->waiting_elements += external->parameters[p].elements;
    if (external->waiting_elements >= WINDOW_MIN_FLOATS ||
        external->num_pushed == external->count ||
        trainer->exchange->over_network(trainer->exchange))
        announce_waiting(external, trainer);
}

size_t external_bytes(const struct external *external, uint32_t parameter) {
    return parameter < external->count
               ? external->parameters[parameter].elements * sizeof(float)
               : 0;
}

/* False and WHY: the caller must not make PUSH now. */
static bool check_push(const struct external *external,
                       const struct trainer *trainer,
                       const struct external_push *push, struct failure *why) {
    unsigned long long step = trainer->clock + 1;
    uint32_t p = push->parameter;
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
    bool full = push->kind == CONTRIBUTION_FULL;
    size_t expected = full ? external_bytes(external, p) : 0;
    if (external->tensors[p].pushed)
        status_fail(why, FAILURE_WRONG_CALL,
                    "tensor \"%s\" is pushed twice in step %llu",
                    parameter->name, step);
    else if (full == !push->data || push->bytes != expected)
        status_fail(why, FAILURE_WRONG_CALL,
                    "the push of tensor \"%s\" in step %llu has %zu bytes, "
                    "expected are %zu",
                    parameter->name, step, push->bytes, expected);
    return why->code == FAILURE_NONE;
}

/* Values that were once changed go with every step. */
static void begin_step(struct external *external, struct trainer *trainer) {
    double values[OPTIMIZER_VALUES];
    waiter_enter(&trainer->waiter);
    trainer->progress.pushing = trainer->clock + 1;
    waiter_leave(&trainer->waiter);
    external->trained_pushed = false;
    uint32_t num_groups = external->values_changed ? external->num_groups : 0;
    for (uint32_t g = 0; g < num_groups && g < trainer->plan->num_groups; g++) {
        optimizer_group_get(&external->groups[g], values);
        trainer->exchange->set_values(trainer->exchange, trainer->clock + 1, g,
                                      values);
    }
}

static enum external_result push_tensor(struct external *external,
                                        struct trainer *trainer,
                                        const struct external_push *push,
                                        struct failure *why) {
    uint32_t p = push->parameter;
    enum contribution kind = push->kind;
    if (!check_push(external, trainer, push, why))
        return EXTERNAL_OVER;
    struct tensor *tensor = &external->tensors[p];
    struct exchange_gradient gradient = {
        trainer->clock + 1, p, kind, push->data, push->bytes, tensor->gradient};
    if (!external->num_pushed)
        begin_step(external, trainer);
    tensor->pushed = tensor->stale = tensor->answers_push = true;
    if (external->parameters[p].kind == PARAMETER_TRAINED) {
        if (!external->trained_pushed || kind != CONTRIBUTION_EMPTY)
            external->last_kind = kind;
        external->trained_pushed = true;
    }
    external->num_pushed++;
    tensor->lent = tensor->owned =
        trainer->exchange->contribute(trainer->exchange, &gradient);
    announce_push(external, trainer, p, kind);
    return EXTERNAL_DONE;
}

/* Waits for the state that is being read. */
static bool await_state(struct external *external, struct trainer *trainer,
                        int64_t until) {
    return !external->state_read.floats ||
           trainer->exchange->wait(trainer->exchange,
                                   external->state_read.parameter, until);
}

static void drop_state(struct external *external) {
    free(external->state_read.floats);
    external->state_read.floats = NULL;
}

/* *FOUND false: this rank does not have it. */
static enum external_result begin_state(struct external *external,
                                        struct trainer *trainer, uint32_t p,
                                        unsigned slot, bool *found) {
    struct failure why;
    float *floats = calloc(external->parameters[p].elements, sizeof *floats);
    if (!floats) {
        status_fail(&why, FAILURE_NO_MEMORY,
                    "no memory for the state of "
                    "tensor \"%s\"",
                    external->parameters[p].name);
        external_report(trainer, &why);
        return EXTERNAL_OVER;
    }
    *found = trainer->exchange->read_state(trainer->exchange, p, trainer->clock,
                                           slot, floats);
    external->state_read =
        (struct state_read){.floats = floats, .parameter = p, .slot = slot};
    if (!*found)
        drop_state(external);
    return EXTERNAL_DONE;
}

/* The slot called KEY of parameter P's optimizer, of "step" the first;
 * RULE_MAX_SLOTS: none. */
static unsigned slot_called(const struct external *external,
                            const struct trainer *trainer, uint32_t p,
                            const char *key) {
    const struct plan *plan = trainer->plan;
    const struct parameter *parameter = &external->parameters[p];
    const struct optimizer *rule =
        plan->groups ? &plan->groups[parameter->group].optimizer
                     : &trainer->settings.job->optimizer;
    const char *name = "";
    unsigned slot = 0;
    while (slot < RULE_MAX_SLOTS && (name = rule_slot_name(rule, slot)) &&
           strcmp(name, key) && strcmp("step", key))
        slot++;
    return name && parameter->kind == PARAMETER_TRAINED ? slot : RULE_MAX_SLOTS;
}

static enum external_result read_state(struct external *external,
                                       struct trainer *trainer,
                                       const struct state_read *wanted,
                                       bool *found, int64_t until) {
    const struct state_read *reading = &external->state_read;
    uint32_t p = wanted->parameter;
    if (!await_state(external, trainer, until) ||
        !external_wait_all(external, trainer, until))
        return external_late(external, until);
    if (reading->floats &&
        (reading->parameter != p ||
         reading->slot != wanted->slot)) /* of a call before */
        drop_state(external);
    *found = reading->floats;
    if (!*found && begin_state(external, trainer, p, wanted->slot, found))
        return EXTERNAL_OVER;
    if (!*found)
        return EXTERNAL_DONE;
    if (!await_state(external, trainer, until))
        return external_late(external, until);
    if (wanted->step) { /* the caller may want the state next */
        *wanted->floats =
            (float)trainer->exchange->rule_step(trainer->exchange, p);
        return EXTERNAL_DONE;
    }
    memcpy(wanted->floats, reading->floats,
           external->parameters[p].elements * sizeof *wanted->floats);
    drop_state(external);
    return EXTERNAL_DONE;
}

enum external_result external_state(struct external *external,
                                    uint32_t parameter, const char *key,
                                    float *to, bool *found, int64_t until) {
    struct trainer *trainer = external_enter(external);
    enum external_result result = EXTERNAL_OVER;
    *found = false;
    if (!trainer)
        return result;
    if (external->started && parameter < external->count &&
        !external->num_pushed) {
        struct state_read wanted = {to, parameter, 0, !strcmp(key, "step")};
        wanted.slot = slot_called(external, trainer, parameter, key);
        result = wanted.slot < RULE_MAX_SLOTS
                     ? read_state(external, trainer, &wanted, found, until)
                     : EXTERNAL_DONE;
    } else {
        external_misused(trainer, "a state is read before the start, between "
                                  "the pushes of a step, or of a tensor that "
                                  "was not declared");
    }
    external_leave(external);
    return result;
}

/* The first of COUNT PUSHES from I on that has to wait; COUNT: none has. */
static size_t next_awaited(struct external *external,
                           const struct external_push *pushes, size_t count,
                           size_t i) {
    waiter_enter(&external->waiter);
    if (!external->started || external->finished)
        i = count;
    for (; i < count; i++) {
        uint32_t p = pushes[i].parameter;
        if (p < external->count && !external->tensors[p].pushed &&
            (external->tensors[p].stale || external->state_read.floats))
            break;
    }
    waiter_leave(&external->waiter);
    return i;
}

/* The push of a step before may still be under way: nobody has to read the
 * values of an averaged or assigned tensor. The read of a state may be, too. */
static bool await_pushes_before(struct external *external,
                                struct trainer *trainer,
                                const struct external_push *pushes,
                                size_t count) {
    size_t i = 0;
    while ((i = next_awaited(external, pushes, count, i)) < count) {
        if (await_state(external, trainer, TIME_NEVER))
            drop_state(external);
        if (!external_wait_weights(external, trainer, pushes[i++].parameter,
                                   TIME_NEVER))
            return false;
    }
    return true;
}

static enum external_result push_tensors(struct external *external,
                                         struct trainer *trainer,
                                         const struct external_push *pushes,
                                         size_t count) {
    struct failure why;
    enum external_result result = EXTERNAL_DONE;
    if (external->started && !external->finished)
        external_save_kept(external, trainer, false);
    waiter_enter(&external->waiter);
    for (size_t i = 0; i < count && result == EXTERNAL_DONE; i++)
        result = push_tensor(external, trainer, &pushes[i], &why);
    waiter_leave(&external->waiter);
    if (result == EXTERNAL_OVER)
        external_report(trainer, &why);
    return result;
}

enum external_result external_push(struct external *external,
                                   const struct external_push *pushes,
                                   size_t count) {
    struct trainer *trainer = external_enter(external);
    if (!trainer)
        return external_left_out(external);
    enum external_result result;
    if (external_leaves_out(external)) {
        result = EXTERNAL_DONE;
    } else if (await_pushes_before(external, trainer, pushes, count)) {
        result = push_tensors(external, trainer, pushes, count);
    } else {
        external_late(external, TIME_NEVER);
        result = external_left_out(external);
    }
    external_leave(external);
    return result;
}

static void flush_pushes(struct external *external, struct trainer *trainer) {
    waiter_enter(&external->waiter);
    announce_waiting(external, trainer);
    waiter_leave(&external->waiter);
}

/* The first tensor that is not pushed in this step; COUNT: all are. */
static uint32_t first_not_pushed(const struct external *external) {
    uint32_t p = 0;
    while (p < external->count && external->tensors[p].pushed)
        p++;
    return p;
}

/* False and reports: what PARAMETER, or EXTERNAL_ALL, waits for may need
 * pushes of this step that this rank has not made. */
static bool may_wait(struct external *external, struct trainer *trainer,
                     uint32_t parameter) {
    struct failure why = {0};
    waiter_enter(&external->waiter);
    uint32_t missing = first_not_pushed(external);
    bool awaits = parameter == EXTERNAL_ALL
                      ? external->num_pushed > 0
                      : external->tensors[parameter].pushed;
    if (awaits && missing < external->count)
        status_fail(&why, FAILURE_WRONG_CALL,
                    "a wait within step %llu, in which tensor \"%s\" was not "
                    "pushed yet: push all tensors first, those without a "
                    "gradient as zero or empty",
                    (unsigned long long)trainer->clock + 1,
                    external->parameters[missing].name);
    waiter_leave(&external->waiter);
    if (why.code)
        external_report(trainer, &why);
    return !why.code;
}

enum external_result external_wait(struct external *external,
                                   uint32_t parameter, int64_t until) {
    struct trainer *trainer = external_enter(external);
    if (!trainer)
        return EXTERNAL_OVER;
    enum external_result result = EXTERNAL_OVER;
    bool all = parameter == EXTERNAL_ALL;
    if (external->started && (all || parameter < external->count)) {
        if (!may_wait(external, trainer, parameter)) {
            external_leave(external);
            return EXTERNAL_OVER;
        }
        flush_pushes(external, trainer);
        bool here =
            all ? external_wait_all(external, trainer, until)
                : external_wait_weights(external, trainer, parameter, until);
        result = here ? EXTERNAL_DONE : external_late(external, until);
    } else {
        external_misused(trainer, "a wait before the start, or for a tensor "
                                  "that was not declared");
    }
    external_leave(external);
    return result;
}

/* With staleness the answer to the step before says which of the run it was. */
static void count_step(struct external *external, struct trainer *trainer,
                       const struct external_step *step) {
    double sum = step->loss * (double)step->samples;
    struct device_replica_result result = {.loss = sum,
                                           .finite_loss_sum =
                                               isfinite(sum) ? sum : 0,
                                           .samples = step->samples,
                                           .correct = step->correct,
                                           .last_loss = sum,
                                           .last_samples = step->samples};
    if (!trainer_is_synchronous(trainer) && trainer->clock >= trainer->from)
        trainer_step_count(trainer,
                           trainer->exchange->global_step(trainer->exchange));
    for (uint32_t p = 0; p < external->count; p++)
        external->tensors[p].pushed = false;
    external->num_pushed = 0;
    trainer->clock++;
    trainer_group_note_step(external->trainers, trainer->clock);
    if (trainer->clock == trainer->from && external_has_joined(trainer))
        trainer_group_awaits(external->trainers, trainer->clock, false);
    trainer_step_add(trainer, &result);
    external->counted = true;
}

/* With backup workers the answers tell which rounds were closed without this
 * trainer: the next step is of the round behind them. False: the answers are
 * not there by UNTIL. */
static bool count_missed(struct external *external, struct trainer *trainer,
                         int64_t until) {
    if (!trainer->settings.job->backup_workers)
        return true;
    if (!external_wait_all(external, trainer, until))
        return false;
    uint64_t missed = trainer_count_missed(trainer);
    if (!missed)
        return true;
    trainer->clock += missed;
    trainer_step_count(trainer, trainer->clock);
    trainer_group_note_step(external->trainers, trainer->clock);
    return true;
}

/* False: the step cannot end so. */
static bool check_step(const struct external *external, struct trainer *trainer,
                       const struct external_step *step) {
    unsigned long long number = trainer->clock + 1;
    struct failure why;
    uint32_t p = first_not_pushed(external);
    if (p < external->count) {
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
    external_report(trainer, &why);
    return false;
}

static enum external_result external_end_step(struct external *external,
                                              struct trainer *trainer,
                                              const struct external_step *step,
                                              bool *ends, int64_t until) {
    uint64_t total = trainer->plan->run_schedule.total;
    struct failure why;
    if (!external->counted) {
        if (!check_step(external, trainer, step))
            return EXTERNAL_OVER;
        flush_pushes(external, trainer);
        if (external_flush_rows(external, trainer, &why)) {
            external_report(trainer, &why);
            return EXTERNAL_OVER;
        }
        count_step(external, trainer, step);
    }
    if (trainer_is_cancelled(trainer) ||
        !count_missed(external, trainer, until))
        return external_late(external, until);
    *ends = trainer_is_leaving(trainer) || trainer->clock >= total;
    if (!*ends && !trainer_is_synchronous(trainer) &&
        total != RUN_SCHEDULE_ENDLESS) {
        if (!external_wait_weights(external, trainer, external->count - 1,
                                   until))
            return external_late(external, until);
        *ends = trainer->exchange->global_step(trainer->exchange) >= total;
    }
    if (*ends && (!external_wait_all(external, trainer, until) ||
                  !trainer_settle_rows(trainer, until)))
        return external_late(external, until);
    external->counted = false;
    waiter_enter(&external->waiter);
    external->past_end = *ends;
    waiter_leave(&external->waiter);
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
    if (external_is_past_end(external)) {
        *ends = true;
        result = EXTERNAL_DONE;
    } else if (external->started && !external->finished)
        result = external_end_step(external, trainer, step, ends, until);
    else
        external_misused(trainer, external->finished
                                      ? "a step after the end"
                                      : "a step before the start");
    external_leave(external);
    return result;
}

/* False and reports: this rank must not end now. */
static bool may_end(struct external *external, struct trainer *trainer,
                    bool early) {
    struct failure why = {0};
    unsigned long long step = trainer->clock;
    if (early && external->started &&
        trainer->exchange->needs_all(trainer->exchange))
        status_fail(&why, FAILURE_WRONG_CALL,
                    "an early end after step %llu: all-reduce does not go on "
                    "without a rank; push the steps that are left as empty",
                    step);
    else if (external->num_pushed)
        status_fail(&why, FAILURE_WRONG_CALL,
                    "an end within step %llu, in which %u of %u tensors are "
                    "pushed: push the others and end the step first, or end "
                    "the run as failed",
                    step + 1, external->num_pushed, external->count);
    if (why.code)
        external_report(trainer, &why);
    return !why.code;
}

enum external_result external_finish(struct external *external, bool early,
                                     int64_t until) {
    waiter_enter(&external->waiter);
    external->loop_over = true;
    waiter_leave(&external->waiter);
    struct trainer *trainer = external_enter(external);
    if (!trainer)
        return EXTERNAL_OVER;
    enum external_result result = EXTERNAL_DONE;
    if (!may_end(external, trainer, early)) {
        external_leave(external);
        return EXTERNAL_OVER;
    }
    if (external->started && (!external_wait_all(external, trainer, until) ||
                              !trainer_settle_rows(trainer, until))) {
        result = external_late(external, until);
    } else if (!external->finished) {
        struct trainer_report finished = {.event = TRAINER_FINISHED,
                                          .clock = trainer->clock,
                                          .early = early,
                                          .leaves =
                                              atomic_load(&external->leaves)};
        external->finished = true;
        pthread_mutex_lock(&external->kept_mutex);
        external->pushes_over = true;
        pthread_mutex_unlock(&external->kept_mutex);
        if (external->started && external->takes_means) /* VALUES are the last
                                                           step's */
            trainer->exchange->settle(trainer->exchange);
        if (external->started)
            external_save_kept(external, trainer, !early);
        event_queue_push(&trainer->event_queue, &finished);
    }
    external_leave(external);
    return result;
}
