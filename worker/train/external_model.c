/* SPDX-License-Identifier: Apache-2.0 */
/* What the caller declares before its first step: tensors, the optimizer's
 * groups, first values. */
#include "core/base/time.h"
#include "core/store/checkpoint.h"
#include "core/store/checkpoint_reader.h"
#include "core/store/manifest.h"
#include "core/tensor/rule.h"
#include "core/tensor/rule_form.h"
#include "worker/collective/trainer_group.h"
#include "worker/train/external_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIRST_CAPACITY = 64 };

/* Takes the gradient back from its last message; on any thread. */
static void take_back(void *owner, struct buffer *buffer) {
    struct tensor *tensor = owner;
    struct external *external = tensor->external;
    (void)buffer;
    waiter_enter(&external->waiter);
    tensor->lent = false;
    waiter_leave_changed(&external->waiter);
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
    const struct external_tables *tables = external->tables;
    for (uint32_t t = 0;
         external->declared && !group && tables && t < tables->count && !status;
         t++)
        if (!tables->has_group[t])
            status = optimizer_group_check_table(&changed.optimizer,
                                                 tables->tables[t].name, why);
    if (status)
        return status;
    external->values_changed |= memcmp(before, after, sizeof before) != 0;
    external->groups[group] = changed;
    return STATUS_OK;
}

enum status external_set(struct external *external, uint32_t group,
                         const char *key, double value, struct failure *why) {
    struct trainer *trainer = external_enter_any(external);
    if (!trainer && !external_is_back(external))
        return status_fail(why, FAILURE_RUN_ENDED, "the run is over");
    waiter_enter(&external->waiter);
    if (!external->has_optimizer && trainer)
        external->first_group =
            (struct optimizer_group){trainer->settings.job->optimizer,
                                     trainer->settings.job->schedule.lr};
    external->has_optimizer = true;
    enum status status = STATUS_OK;
    if (external->sends_changes)
        status =
            status_fail(why, FAILURE_WRONG_CALL,
                        "\"%s\" of the optimizer: None has no values", key);
    if (!status)
        status = external_add_group(external, group, why);
    if (!status)
        status = change_group(external, group, key, value, why);
    if (status == STATUS_CONFIG)
        why->code = FAILURE_WRONG_CALL;
    waiter_leave(&external->waiter);
    if (trainer)
        external_leave(external);
    return status;
}

const struct optimizer_group *external_groups(const struct external *external,
                                              uint32_t *count) {
    *count = external->num_groups;
    return external->groups;
}

/* Gives all COUNT groups the state tensors that any of them needs. */
static void align_groups(struct optimizer_group *groups, uint32_t count) {
    bool keeps = false;
    for (uint32_t g = 0; g < count; g++)
        keeps |= groups[g].optimizer.momentum != 0;
    for (uint32_t g = 0; g < count; g++)
        groups[g].optimizer.keeps_momentum = keeps;
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
        align_groups(external->groups, external->num_groups);
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

/* With staleness each rank's gradient has a norm of its own, which is known
 * only when its last tensor is pushed; the first have left by then. */
static enum status check_clipping(const struct job *job, struct failure *why) {
    if (!job->staleness || !(job->gradient_clipping > 0))
        return STATUS_OK;
    return status_fail(why, FAILURE_JOB_INVALID,
                       "gradient_clipping with strategy.staleness: found %g; "
                       "allowed for the model of a program or script: 0, as a "
                       "gradient leaves when it is pushed, before the norm of "
                       "all is known. Clip this process's gradients before "
                       "they are pushed, or set strategy.staleness to 0",
                       job->gradient_clipping);
}

/* A caller that does not follow it would push what is not finite. */
static enum status check_on_nan(const struct external *external,
                                const struct job *job, struct failure *why) {
    if (!job->nan_skip || external->follows_on_nan)
        return STATUS_OK;
    return status_fail(why, FAILURE_JOB_INVALID,
                       "on_nan: found \"skip\"; allowed for the model of a "
                       "program or script that does not follow it, by "
                       "capstan_skips or capstan.torch: \"stop\". It skips a "
                       "step by empty contributions");
}

/* A caller that does not follow it would go on with batches whose steps are
 * over, and end after the others. */
static enum status check_rounds_followed(const struct external *external,
                                         const struct job *job,
                                         struct failure *why) {
    if (!job->backup_workers)
        return STATUS_OK;
    if (external->takes_means)
        return status_fail(
            why, FAILURE_JOB_INVALID,
            "strategy.backup_workers: found %u; allowed with optimizer None, "
            "whose updates are the trainers' own: 0. In Python that is rule "
            "'worker', several optimisers, capstan.keras, capstan.horovod and "
            "capstan.deepspeed; rule 'server' follows it",
            job->backup_workers);
    return external->follows_rounds
               ? STATUS_OK
               : status_fail(why, FAILURE_JOB_INVALID,
                             "strategy.backup_workers: found %u; allowed for a "
                             "program that has not called "
                             "capstan_backup_workers, and so does not follow "
                             "what its late rank misses: 0",
                             job->backup_workers);
}

/* With optimizer None the trainers apply one of their own. With staleness their
 * pushes are the changes that it makes, to which the groups are set: no values
 * of one have been set, as None has none. */
static enum status settle_changes(struct external *external,
                                  const struct job *job, struct failure *why) {
    enum optimizer_type type = external->has_optimizer
                                   ? external->first_group.optimizer.type
                                   : job->optimizer.type;
    if (type != OPTIMIZER_NONE || !job->staleness)
        return STATUS_OK;
    for (uint32_t p = 0; p < external->count; p++)
        if (external->means[p])
            return status_fail(
                why, FAILURE_JOB_INVALID,
                "optimizer None (in Python capstan.keras, capstan.horovod and "
                "capstan.deepspeed) with strategy.staleness: no mean of "
                "gradients comes back for tensor \"%s\"; allowed there: a tensor "
                "without memory for a mean, whose pushes are changes of its "
                "weights, or " OPTIMIZER_WORDS,
                external->parameters[p].name);
    external->sends_changes = external->has_optimizer = true;
    external->first_group = optimizer_group_changes();
    return STATUS_OK;
}

static enum status settle_means(struct external *external,
                                const struct job *job, struct failure *why) {
    const struct optimizer *optimizer = external->has_optimizer
                                            ? &external->first_group.optimizer
                                            : &job->optimizer;
    external->takes_means = optimizer->type == OPTIMIZER_NONE;
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
        if (tensor->gradient)
            continue; /* the run has gone back */
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
        status = check_clipping(trainer->settings.job, why);
    if (!status)
        status = check_on_nan(external, trainer->settings.job, why);
    if (!status)
        status = settle_changes(external, trainer->settings.job, why);
    if (!status)
        status = settle_groups(external, why);
    if (!status)
        status = settle_means(external, trainer->settings.job, why);
    if (!status)
        status = check_rounds_followed(external, trainer->settings.job, why);
    if (!status)
        status = open_gradients(external, trainer->layout, why);
    if (status)
        return status;
    external->declared = external->sent = true;
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

/* This rank's values need no other state than rank 0's. */
static enum status check_forms(const struct external *external,
                               const struct plan *plan, struct failure *why) {
    for (uint32_t g = 0; g < plan->num_groups && g < external->num_groups;
         g++) {
        struct optimizer_group group = plan->groups[g];
        enum rule_form form = rule_form_of(&group.optimizer);
        double values[OPTIMIZER_VALUES];
        optimizer_group_get(&external->groups[g], values);
        optimizer_group_put(&group, values);
        if (rule_form_of(&group.optimizer) != form)
            return status_fail(
                why, FAILURE_MODEL_INVALID,
                "group %" PRIu32 " of the optimizer has a momentum, amsgrad or "
                "centered here that rank 0's has not: all ranks set the same "
                "before the start",
                g);
    }
    return STATUS_OK;
}

/* Rank 0's optimizer is the plan's, also of a rank that has named none. */
static enum status take_planned_optimizer(struct external *external,
                                          const struct trainer *trainer,
                                          struct failure *why) {
    const struct plan *plan = trainer->plan;
    bool changes =
        plan->num_groups && optimizer_group_is_changes(&plan->groups[0]);
    bool alike = external->num_groups &&
                 optimizer_group_is_changes(&external->groups[0]);
    if (changes != alike && (changes || external->sends_changes))
        return status_fail(
            why, FAILURE_MODEL_INVALID,
            "%s has optimizer None with strategy.staleness, whose pushes are "
            "changes of the weights, and %s pushes gradients; all ranks have "
            "the same",
            changes ? "rank 0" : "this rank", changes ? "this rank" : "rank 0");
    external->takes_means =
        trainer->settings.job->optimizer.type == OPTIMIZER_NONE;
    enum status status = check_forms(external, plan, why);
    return status ? status : check_means(external, why);
}

/* Rank 0's rows to begin with are the plan's, also of a rank that has none. */
static enum status check_first_rows(const struct external *external,
                                    const struct trainer *trainer,
                                    struct failure *why) {
    const struct external_tables *all = external->tables;
    const struct layout *layout = trainer->plan->layout;
    for (uint32_t t = 0; all && t < all->count && t < layout->num_tables; t++) {
        if (all->tables[t].assigned && trainer->settings.job->init &&
            !trainer->plan->restore_manifest)
            return status_fail(
                why, FAILURE_MODEL_INVALID,
                "rows of table \"%s\" are written before the start, and the "
                "run begins with the weights of init (%s), which has no rows: "
                "write them after the start, with a step's push",
                all->tables[t].name, trainer->settings.job->init);
        if (all->tables[t].assigned != layout->tables[t].assigned)
            return status_fail(
                why, FAILURE_MODEL_INVALID,
                "rows of table \"%s\" are written before the start by %s and "
                "not by %s: all ranks write them, with rows or none, and those "
                "of rank 0 count",
                all->tables[t].name,
                all->tables[t].assigned ? "this rank" : "rank 0",
                all->tables[t].assigned ? "rank 0" : "this rank");
    }
    return STATUS_OK;
}

/* Rank 0 of a new run sends its weights and first rows, the others ask for
 * them. */
static enum status request_weights(struct external *external,
                                   struct trainer *trainer,
                                   struct failure *why) {
    const struct plan *plan = trainer->plan;
    struct row_batch *rows;
    enum status status = check_first_rows(external, trainer, why);
    if (!status)
        status = external_first_rows(external, trainer, &rows, why);
    if (status)
        return status;
    struct exchange *exchange = trainer->exchange;
    bool first = !plan->pull_first && trainer->from == 1;
    trainer->clock = trainer->from - 1;
    for (uint32_t p = 0; p < external->count; p++) {
        external->tensors[p].stale = true;
        external->tensors[p].answers_push = false;
    }
    if (first && trainer->settings.rank == 0)
        exchange->assign(exchange, trainer->clock, rows);
    else
        exchange->pull(exchange, trainer->clock, 0);
    if (external->tables)
        row_writes_sent(&external->tables->writes);
    external->requested = true;
    return STATUS_OK;
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
        trainer->exchange->epoch(trainer->exchange, &external->epoch,
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

/* A chief that adopts the run has the epochs from rank 0 alone. */
static void report_position(const struct external *external,
                            struct trainer *trainer) {
    bool synchronous = trainer_is_synchronous(trainer);
    uint64_t step = external_step_of_run(trainer);
    uint64_t done = (trainer->clock - external->epoch_first) *
                    (synchronous ? 1 : trainer->settings.num_ranks);
    struct trainer_report begun = {.event = TRAINER_EPOCH,
                                   .id = external->epoch,
                                   .step = step - (done < step ? done : step),
                                   .under_way = true};
    if (trainer->settings.rank == 0)
        event_queue_push(&trainer->event_queue, &begun);
}

/* False: the call is not allowed now. */
static bool begin_epoch(struct external *external, struct trainer *trainer,
                        uint64_t number, uint64_t back) {
    bool stale = !trainer_is_synchronous(trainer);
    if (!external->started || back > trainer->clock || (back && stale))
        return false;
    struct trainer_report begun = {.event = TRAINER_EPOCH,
                                   .id = number,
                                   .step =
                                       external_step_of_run(trainer) - back};
    external->epoch = number;
    external->epoch_first = trainer->clock - back;
    trainer->exchange->set_epoch(trainer->exchange, number,
                                 external->epoch_first);
    if (trainer->settings.rank == 0)
        event_queue_push(&trainer->event_queue, &begun);
    return true;
}

enum external_result external_epoch(struct external *external, uint64_t number,
                                    uint64_t back) {
    struct trainer *trainer = external_enter(external);
    if (!trainer || external_is_behind(external)) {
        if (trainer)
            external_leave(external);
        return external_is_behind(external) ? EXTERNAL_DONE : EXTERNAL_OVER;
    }
    bool begun = begin_epoch(external, trainer, number, back);
    if (!begun)
        external_misused(
            trainer, "an epoch begins before the start, or has begun before "
                     "step 0 or, with staleness, before this call");
    external_leave(external);
    return begun ? EXTERNAL_DONE : EXTERNAL_OVER;
}

/* The first bytes: from now on checkpoints wait for this rank's. */
static void announce_first_kept(struct trainer *trainer) {
    struct trainer_report keeps = {.event = TRAINER_KEPT};
    event_queue_push(&trainer->event_queue, &keeps);
}

static enum external_result start_training(struct external *external,
                                           struct trainer *trainer,
                                           int64_t until) {
    struct failure why;
    if (!external->sent && send_model(external, trainer, &why)) {
        external_report(trainer, &why);
        return EXTERNAL_OVER;
    }
    if (!trainer_wait_exchange(trainer, until))
        return external_late(external, until);
    if (!external->requested &&
        take_planned_optimizer(external, trainer, &why)) {
        external_report(trainer, &why);
        return EXTERNAL_OVER;
    }
    if (!external->requested && external->back && !trainer->plan->pull_first &&
        trainer->from == 1) {
        status_fail(&why, FAILURE_PEER_LOST,
                    "the run goes back, and there is no checkpoint: its "
                    "trainers no longer have the values of its start");
        external_report(trainer, &why);
        return EXTERNAL_OVER;
    }
    if (!external->requested && external_has_joined(trainer))
        trainer_group_awaits(external->trainers, trainer->from - 1, true);
    if (!external->requested && request_weights(external, trainer, &why)) {
        external_report(trainer, &why);
        return EXTERNAL_OVER;
    }
    if (!external_wait_all(external, trainer, until))
        return external_late(external, until);
    /* Rank 0 is needed until the ps have its first rows. */
    if (external->tables &&
        !trainer->exchange->wait_pushed(trainer->exchange, until))
        return external_late(external, until);
    read_position(external, trainer);
    report_position(external, trainer);
    external->values_changed |= differs_from_plan(external, trainer->plan);
    trainer->started_at = time_now();
    trainer->waited = trainer->exchange->waited(trainer->exchange);
    external->past_end =
        external_step_of_run(trainer) >= trainer->plan->run_schedule.total;
    external->started = true;
    return EXTERNAL_DONE;
}

/* Is the start to be made with another trainer, as the run begins anew? Waits
 * for that one. */
static bool is_begun_anew(struct external *external, int64_t until,
                          enum external_result *result) {
    waiter_enter(&external->waiter);
    bool anew = external->anew;
    while (external->anew && !external->ended &&
           waiter_wait(&external->waiter, until, NULL))
        ;
    bool is_late = external->anew && !external->ended;
    if (anew)
        *result = is_late ? EXTERNAL_LATE : EXTERNAL_OVER;
    bool begun = anew && !is_late && !external->ended;
    waiter_leave(&external->waiter);
    return begun;
}

enum external_result external_start(struct external *external, int64_t until) {
    enum external_result result = EXTERNAL_OVER;
    do {
        struct trainer *trainer = external_enter(external);
        if (!trainer)
            continue;
        result = EXTERNAL_DONE;
        if (!external->started)
            result = external_start_again(external, trainer, until);
        external_leave(external);
    } while (result == EXTERNAL_OVER &&
             is_begun_anew(external, until, &result));
    return result;
}

enum external_result external_start_again(struct external *external,
                                          struct trainer *trainer,
                                          int64_t until) {
    enum external_result result = start_training(external, trainer, until);
    if (!result && external_keeps(external))
        announce_first_kept(trainer);
    return result;
}

void external_position(struct external *external,
                       struct external_position *position) {
    struct trainer *trainer = external_enter(external);
    *position = external->left_at;
    if (!trainer)
        return;
    external_find_position(external, trainer, position);
    external_leave(external);
}

/* What the caller keeps: bytes that belong to a step. With the first push of
 * the next step, or at its end, the bytes of a step at which a checkpoint is
 * taken are written into its folder, and the chief is told. */

static const int64_t POLL_TIME = 10 * TIME_MS;

static uint32_t index_of(const struct external *external, const char *key) {
    uint32_t k = 0;
    while (k < external->num_kept && strcmp(external->kept[k].key, key))
        k++;
    return k;
}

static void drop_item(struct external *external, uint32_t k) {
    if (k == external->num_kept)
        return;
    free(external->kept[k].data);
    external->kept[k] = external->kept[--external->num_kept];
}

static enum status set_item(struct external *external, struct trainer *trainer,
                            const char *key, const void *data, size_t size,
                            struct failure *why) {
    uint32_t k = index_of(external, key);
    if (!kept_file_is_key(key))
        return status_fail(why, FAILURE_WRONG_CALL,
                           "kept \"%.40s\": a name has 1 to %d of a-z, 0-9, _",
                           key, KEPT_FILE_KEY_BYTES - 1);
    if (!data) {
        drop_item(external, k);
        return STATUS_OK;
    }
    if (k == KEPT_FILE_KEYS)
        return status_fail(why, FAILURE_WRONG_CALL,
                           "kept \"%s\": a rank keeps at most %d names", key,
                           KEPT_FILE_KEYS);
    void *copy = malloc(size + 1);
    if (!copy)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for %zu bytes to keep", size);
    memcpy(copy, data, size);
    struct kept_item *item = &external->kept[k];
    if (k == external->num_kept) {
        if (!external->keeps)
            announce_first_kept(trainer);
        external->keeps = true;
        external->num_kept++;
        snprintf(item->key, sizeof item->key, "%s", key);
        item->data = NULL;
    }
    free(item->data);
    item->data = copy;
    item->size = size;
    return STATUS_OK;
}

enum external_result external_keep(struct external *external, const char *key,
                                   const void *data, size_t size) {
    struct trainer *trainer = external_enter(external);
    struct failure why;
    if (!trainer)
        return external_left_out(external);
    pthread_mutex_lock(&external->kept_mutex);
    enum status status =
        trainer->settings.job->backup_workers
            ? status_fail(&why, FAILURE_WRONG_CALL,
                          "kept \"%.40s\" with strategy.backup_workers: a late "
                          "rank has no state after a step that it missed; keep "
                          "nothing (in Python leave run.keep out), or set that "
                          "to 0",
                          key)
            : set_item(external, trainer, key, data, size, &why);
    pthread_mutex_unlock(&external->kept_mutex);
    if (status)
        external_report(trainer, &why);
    external_leave(external);
    return status ? EXTERNAL_OVER : EXTERNAL_DONE;
}

bool external_keeps(struct external *external) {
    pthread_mutex_lock(&external->kept_mutex);
    bool keeps = external->keeps;
    pthread_mutex_unlock(&external->kept_mutex);
    return keeps;
}

/* Is a copy in memory, and no checkpoint, taken of the state after the last
 * step? */
static bool is_copied(const struct trainer *trainer, bool last) {
    uint32_t lowest;
    return trainer_is_synchronous(trainer) && trainer->settings.copies &&
           !last && trainer->clock >= trainer->from &&
           run_schedule_copies(&trainer->plan->run_schedule, trainer->clock) &&
           trainer->exchange->due(trainer->exchange, &lowest) != trainer->clock;
}

/* Is a checkpoint taken of the state after the last step? *LEAD: is this the
 * lowest rank that trains? With a copy in memory each rank is one: it has all
 * that it may need in its own. */
static bool is_due(const struct external *external,
                   const struct trainer *trainer, bool last, bool *lead) {
    uint64_t clock = trainer->clock;
    uint32_t lowest;
    uint64_t requested = trainer->exchange->due(trainer->exchange, &lowest);
    bool copied = is_copied(trainer, last);
    *lead = copied || lowest == trainer->settings.rank;
    if (copied)
        return true;
    if (!trainer_is_synchronous(trainer))
        return external->must_save;
    return trainer->plan->checkpoint_dir && clock >= trainer->from &&
           (last || requested == clock ||
            run_schedule_saves(&trainer->plan->run_schedule, clock));
}

enum external_due external_due(struct external *external, bool ending) {
    struct trainer *trainer = external_enter(external);
    enum external_due due = EXTERNAL_NOT_DUE;
    bool lead;
    if (!trainer)
        return due;
    pthread_mutex_lock(&external->kept_mutex);
    external->asks_due = true;
    if (external->started && is_due(external, trainer, ending, &lead)) {
        external->due_seen = true;
        due = lead ? EXTERNAL_DUE_LEAD : EXTERNAL_DUE;
        external->due_as_lead = lead ? trainer->clock + 1 : 0;
    }
    pthread_mutex_unlock(&external->kept_mutex);
    external_leave(external);
    return due;
}

/* As a ps does; once a step, as the directory may be replaced. */
static enum status lock_own_folder(struct external *external,
                                   const struct trainer *trainer,
                                   struct failure *why) {
    char owner[32];
    struct dir_lock_settings settings = {.dir = trainer->plan->checkpoint_dir,
                                         .run = trainer->settings.run,
                                         .owner = owner,
                                         .log = trainer->settings.log};
    bool shares;
    if (external->dir_lock)
        return dir_lock_renew(external->dir_lock, why);
    snprintf(owner, sizeof owner, "rank %u", trainer->settings.rank);
    return dir_lock_join(&external->dir_lock, &shares, &settings, why);
}

static enum status write_items(struct external *external,
                               const struct trainer *trainer, uint64_t step,
                               struct kept_report *report,
                               struct failure *why) {
    const char *dir = trainer->plan->checkpoint_dir;
    char folder[PATH_MAX];
    checkpoint_folder(dir, step, folder, sizeof folder);
    enum status status = lock_own_folder(external, trainer, why);
    if (!status)
        status = checkpoint_make_folder(dir, step, why);
    for (uint32_t k = 0; !status && k < external->num_kept; k++) {
        const struct kept_item *item = &external->kept[k];
        struct shard_info *info = &report->files[report->count++];
        status = kept_file_write(folder, trainer->settings.rank, item->key,
                                 trainer->settings.run, item->data, item->size,
                                 info, why);
        if (external->dir_lock)
            gethostname(info->host, sizeof info->host - 1);
    }
    return status;
}

/* With staleness a checkpoint may be told at any time. Has a caller that asks
 * for it, and keeps nothing otherwise, been told? */
static bool is_renewed(const struct external *external) {
    return !external->asks_due || external->due_seen || external->pushes_over;
}

void external_save_kept(struct external *external, struct trainer *trainer,
                        bool last) {
    struct trainer_report saved = {.event = TRAINER_KEPT,
                                   .step = trainer->clock};
    bool lead, due = false, synchronous = trainer_is_synchronous(trainer);
    pthread_mutex_lock(&external->kept_mutex);
    if (!synchronous)
        saved.step = external->save_with;
    if (external->keeps &&
        (!synchronous || external->kept_checked != trainer->clock + last)) {
        external->kept_checked = trainer->clock + last;
        due = is_due(external, trainer, last, &lead) &&
              (synchronous ? external->saved_kept != saved.step
                           : last || is_renewed(external));
    }
    if (due) {
        external->due_seen = false;
        external->saved_kept = saved.step;
        external->must_save = false;
        saved.kept.lead =
            synchronous && external->due_as_lead == trainer->clock + 1;
        saved.kept.copy = is_copied(trainer, last);
        if (saved.kept.copy
                ? kept_file_copy(trainer->settings.copies, saved.step,
                                 trainer->settings.rank, external->kept,
                                 external->num_kept, &saved.why)
                : write_items(external, trainer, saved.step, &saved.kept,
                              &saved.why))
            saved.kept.failed = true;
    }
    pthread_mutex_unlock(&external->kept_mutex);
    if (due)
        event_queue_push(&trainer->event_queue, &saved);
}

void external_save_with(struct external *external, uint64_t step) {
    struct trainer *trainer = external_enter_any(external);
    if (!trainer)
        return;
    pthread_mutex_lock(&external->kept_mutex);
    external->save_with = step;
    external->must_save = true;
    bool now = external->pushes_over;
    pthread_mutex_unlock(&external->kept_mutex);
    if (now)
        external_save_kept(external, trainer, true);
    external_leave(external);
}

void external_retain(struct external *external, const uint64_t *steps,
                     size_t count) {
    struct trainer *trainer = external_enter(external);
    struct failure why;
    if (!trainer)
        return;
    pthread_mutex_lock(&external->kept_mutex);
    if (external->dir_lock && dir_lock_is_held(external->dir_lock) &&
        checkpoint_retain(trainer->plan->checkpoint_dir, steps, count, &why))
        log_warning(trainer->settings.log, "checkpoint_removal_failed",
                    "old checkpoints were not removed: %s", why.text);
    pthread_mutex_unlock(&external->kept_mutex);
    external_leave(external);
}

/* A trainer that joins reads what was kept at the step before its first, once
 * the checkpoint is complete. */
static enum status await_manifest(struct external *external,
                                  struct trainer *trainer, const char *folder,
                                  struct manifest *manifest,
                                  struct failure *why) {
    int64_t until =
        time_now() + time_from_seconds(trainer->settings.job->timeouts.step);
    while (manifest_read(manifest, folder, why) ||
           manifest->run != trainer->settings.run) {
        manifest_clear(manifest);
        if (external_is_over(external) || trainer_is_leaving(trainer))
            return status_fail(why, FAILURE_RUN_ENDED,
                               "the run ends before the checkpoint in %s, "
                               "whose kept state this trainer joins with",
                               folder);
        if (time_now() > until)
            return status_fail(why, FAILURE_CHECKPOINT_MISSING,
                               "no checkpoint in %s within %g s "
                               "(timeouts.step), whose kept state this trainer "
                               "joins with",
                               folder, trainer->settings.job->timeouts.step);
        usleep((useconds_t)(POLL_TIME / TIME_US));
    }
    return STATUS_OK;
}

/* With staleness a trainer that joins takes what the newest checkpoint has; it
 * trains without where none is complete. */
static enum status open_newest(struct trainer *trainer, char folder[PATH_MAX],
                               struct manifest *manifest) {
    const char *dir = trainer->plan->checkpoint_dir;
    struct failure why;
    bool found;
    if (checkpoint_reader_newest(dir, CHECKPOINT_READER_ANY, manifest, &found,
                                 trainer->settings.log, &why)) {
        *manifest = (struct manifest){0};
        log_warning(trainer->settings.log, "checkpoint_passed_over",
                    "joins without kept state: %s", why.text);
    } else if (found) {
        checkpoint_folder(dir, manifest->step, folder, PATH_MAX);
    }
    return STATUS_OK;
}

/* The manifest with what is given back, and its FOLDER; empty in a new run. */
static enum status open_restored(struct external *external,
                                 struct trainer *trainer, char folder[PATH_MAX],
                                 struct manifest *manifest,
                                 struct failure *why) {
    const struct plan *plan = trainer->plan;
    *manifest = (struct manifest){0};
    if (external_has_joined(trainer)) {
        if (!plan->checkpoint_dir)
            return STATUS_OK;
        if (!trainer_is_synchronous(trainer))
            return open_newest(trainer, folder, manifest);
        checkpoint_folder(plan->checkpoint_dir, trainer->from - 1, folder,
                          PATH_MAX);
        return await_manifest(external, trainer, folder, manifest, why);
    }
    if (!plan->restore_manifest)
        return STATUS_OK;
    snprintf(folder, PATH_MAX, "%s", plan->restore_folder);
    return manifest_parse(manifest, plan->restore_manifest, why);
}

static enum status read_from_folder(struct external *external,
                                    struct trainer *trainer, const char *key,
                                    void **read, size_t *size,
                                    struct failure *why) {
    struct manifest manifest;
    char folder[PATH_MAX];
    enum status status =
        open_restored(external, trainer, folder, &manifest, why);
    const struct shard_info *info =
        status ? NULL : kept_file_find(&manifest, trainer->settings.rank, key);
    *size = info ? info->size : 0;
    if (info)
        status = kept_file_read(folder, info, read, why);
    manifest_clear(&manifest);
    return status;
}

static enum status read_kept(struct external *external, struct trainer *trainer,
                             const char *key, const void **data, size_t *size,
                             struct failure *why) {
    void *read = NULL;
    enum status status =
        trainer->plan->num_buddies && !external_has_joined(trainer)
            ? kept_file_of_copy(trainer->settings.copies,
                                trainer->plan->run_schedule.start,
                                trainer->settings.rank, key, &read, size, why)
            : read_from_folder(external, trainer, key, &read, size, why);
    pthread_mutex_lock(&external->kept_mutex);
    free(external->given);
    *data = external->given = read;
    pthread_mutex_unlock(&external->kept_mutex);
    return status;
}

enum external_result external_kept(struct external *external, const char *key,
                                   const void **data, size_t *size) {
    struct trainer *trainer = external_enter(external);
    struct failure why;
    *data = NULL;
    *size = 0;
    if (!trainer)
        return EXTERNAL_OVER;
    bool failed = !external->started;
    if (failed)
        external_misused(trainer, "kept state is read before the start");
    if (!failed && read_kept(external, trainer, key, data, size, &why)) {
        failed = true;
        if (why.code != FAILURE_RUN_ENDED)
            external_report(trainer, &why);
    }
    external_leave(external);
    return failed ? EXTERNAL_OVER : EXTERNAL_DONE;
}

enum external_result external_request_save(struct external *external) {
    struct trainer *trainer = external_enter(external);
    struct trainer_report request = {.event = TRAINER_SAVE_REQUESTED};
    if (!trainer)
        return external_left_out(external);
    if (external->started)
        request.step = external_step_of_run(trainer);
    event_queue_push(&trainer->event_queue, &request);
    external_leave(external);
    return EXTERNAL_DONE;
}
