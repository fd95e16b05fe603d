/* SPDX-License-Identifier: Apache-2.0 */
/* A turn is a step. The trainer's thread raises `go`; each thread computes, and
 * waits in it for the weights that the trainer's thread raises as they come.
 * Each says when the losses of its samples are known (`settled`): from them the
 * trainer tells whether the gradients are wanted (`decided`), then all gather
 * them. A member that fails goes through the rest of its turn, so that nobody
 * waits for it: what it lacks is told once all are through. */
#include "worker/train/team.h"

#include "worker/train/team_sum.h"

#include <math.h>

/* Seconds that a call of all devices may take: what each computes before it is
 * awaited before. */
static const double MEETING = 300;

/* Marks of parameters at the beginning of the present turn. */
static uint64_t begin_of(const struct team *team) {
    return (team->turn - 1) * team->layout->num_parameters;
}

/* The first member's: the others hear that a parameter is here. */
static bool need_first(void *context, uint32_t parameter) {
    struct team *team = context;
    uint64_t mark = begin_of(team) + parameter + 1;
    if (!team->step.need(team->step.context, parameter))
        return false;
    if (team->count > 1 && mark > team->brought) {
        team->brought = mark;
        mark_raise(&team->weights, mark);
    }
    return true;
}

static void done_first(void *context, uint32_t parameter) {
    struct team *team = context;
    team->step.done(team->step.context, parameter);
}

static bool goes_on_first(void *context) {
    struct team *team = context;
    return team->step.goes_on(team->step.context);
}

static bool need_other(void *context, uint32_t parameter) {
    struct team_member *member = context;
    struct team *team = member->team;
    if (!mark_await(&team->weights, begin_of(team) + parameter + 1, NULL) ||
        atomic_load(&team->abandoned))
        member->forsaken = true;
    return !member->forsaken;
}

static bool goes_on_other(void *context) {
    struct team_member *member = context;
    struct team *team = member->team;
    return !member->forsaken &&
           (!team->given_up || !team->given_up(team->context));
}

static void compute_other(struct team_member *member) {
    struct replica_step step = member->team->step;
    step.context = member;
    step.need = need_other;
    step.done = NULL;
    step.goes_on = goes_on_other;
    member->forsaken = false;
    if (replica_compute(&member->replica, &step, &member->result, &member->why))
        atomic_store(&member->failed, true);
}

/* The thread's device is the one it goes on with. */
static void join(struct team_member *member) {
    struct team *team = member->team;
    const struct device *device = &member->replica.engine.device;
    engine_rest(&member->replica.engine);
    if (team->siblings && siblings_join(team->siblings, member->index,
                                        device->index, &member->why)) {
        atomic_store(&member->failed, true);
        team_sum_fail(member);
    }
}

/* Turn 1 is to meet the others. */
static void *serve(void *argument) {
    struct team_member *member = argument;
    struct team *team = member->team;
    join(member);
    mark_raise(&member->settled, 1);
    for (uint64_t turn = 2; mark_await(&team->go, turn, NULL); turn++) {
        compute_other(member);
        mark_raise(&member->settled, turn);
        if (!mark_await(&team->decided, turn, NULL))
            break;
        team_sum_follow(member, begin_of(team));
    }
    if (team->siblings)
        siblings_leave(team->siblings, member->index);
    return NULL;
}

static enum status start_threads(struct team *team, struct failure *why) {
    mark_open(&team->go);
    mark_open(&team->weights);
    mark_open(&team->decided);
    for (team->joined = 1; team->joined < team->count; team->joined++) {
        struct team_member *member = &team->members[team->joined];
        mark_open(&member->settled);
        mark_open(&member->gathered);
        int error = pthread_create(&member->thread, NULL, serve, member);
        if (!error)
            continue;
        mark_close(&member->settled);
        mark_close(&member->gathered);
        return status_errno(why, STATUS_FAILED, error,
                            "cannot start a thread for device %s",
                            member->replica.engine.device.name);
    }
    return STATUS_OK;
}

static enum status tell(const struct team_member *member, struct failure *why) {
    return status_fail(why, member->why.status, "%s", member->why.text);
}

/* Whose failure all others follow from, or the first that has failed; of those
 * that have settled. Into WHY. */
static enum status find_failure(const struct team *team, struct failure *why) {
    uint32_t culprit = atomic_load(&team->culprit);
    if (culprit && atomic_load(&team->members[culprit - 1].failed))
        return tell(&team->members[culprit - 1], why);
    for (uint32_t i = 0; i < team->count; i++)
        if (atomic_load(&team->members[i].failed))
            return tell(&team->members[i], why);
    return STATUS_OK;
}

static void await_settled(struct team *team) {
    for (uint32_t i = 1; i < team->joined; i++)
        (void)mark_await(&team->members[i].settled, team->turn, NULL);
}

static void end_threads(struct team *team) {
    if (!team->joined)
        return;
    if (team->siblings && team->broken) /* who is lost takes no leave */
        siblings_abort(team->siblings);
    mark_cancel(&team->go);
    mark_cancel(&team->weights);
    mark_cancel(&team->decided);
    if (team->siblings)
        siblings_leave(team->siblings, 0);
    for (uint32_t i = 1; i < team->joined; i++) {
        struct team_member *member = &team->members[i];
        pthread_join(member->thread, NULL);
        mark_close(&member->settled);
        mark_close(&member->gathered);
    }
    mark_close(&team->go);
    mark_close(&team->weights);
    mark_close(&team->decided);
    siblings_close(&team->siblings);
    team->joined = 0;
}

/* Starts the threads, which meet where devices add up. */
static enum status meet(struct team *team, struct failure *why) {
    enum status status = STATUS_OK;
    if (team->by)
        status = siblings_open(&team->siblings, team->by, team->count,
                               fmin(team->timeout, MEETING), why);
    if (!status)
        status = start_threads(team, why);
    team->turn = 1;
    if (status)
        return status;
    join(&team->members[0]);
    await_settled(team);
    return find_failure(team, why);
}

/* Where they cannot meet, the host adds: slower, and the same sum. */
static enum status gather_threads(struct team *team, struct failure *why) {
    enum status status = meet(team, why);
    if (!status || !team->siblings)
        return status;
    log_warning(team->log,
                "gradients of %u devices are added up in the host's memory: %s",
                team->count, why->text);
    team->broken = true;
    end_threads(team);
    team->broken = false;
    for (uint32_t i = 0; i < team->count; i++)
        atomic_store(&team->members[i].failed, false);
    atomic_store(&team->culprit, 0);
    team->by = NULL;
    return meet(team, why);
}

static enum status open_member(struct team_member *member,
                               const struct team_model *model,
                               struct failure *why) {
    struct team *team = member->team;
    struct replica *replica = &member->replica;
    struct engine_use use = {.micro_batch = model->job->micro_batch,
                             .evaluates = model->evaluates && !member->index,
                             .resident = model->resident};
    struct arena *arena = member->index ? &replica->arena : team->arena;
    enum status status = STATUS_OK;
    if (member->index)
        status =
            arena_open_beside(arena, team->arena, team->layout, !team->by, why);
    return status ? status
                  : engine_open(&replica->engine, model->job, team->layout,
                                arena, &use, why);
}

enum status team_open(struct team *team, const struct team_model *model,
                      struct failure *why) {
    enum status status = STATUS_OK;
    if (model->count > team->count)
        return status_fail(why, STATUS_RETRY,
                           "the plan counts on %u devices here, where there "
                           "are %u",
                           model->count, team->count);
    while (team->count > model->count)
        replica_close(&team->members[--team->count].replica);
    team->layout = model->layout;
    team->arena = model->arena;
    if (team->count < 2)
        team->by = NULL;
    if (team->count > 1)
        status = gather_threads(team, why);
    for (uint32_t i = 0; !status && i < team->count; i++)
        status = open_member(&team->members[i], model, why);
    engine_rest(&team->members[0].replica.engine);
    return status;
}

enum status team_load(struct team *team, const struct dataset *dataset,
                      struct sampler_options samples, uint64_t first,
                      const struct job_data *data, struct failure *why) {
    enum status status = STATUS_OK;
    for (uint32_t i = 0; !status && i < team->count; i++) {
        status = replica_load(&team->members[i].replica, dataset, &samples,
                              first, data, why);
        samples.rank++;
    }
    engine_rest(&team->members[0].replica.engine);
    return status;
}

/* The first has pinned what all copy from: it is closed last. */
void team_close(struct team *team) {
    end_threads(team);
    for (uint32_t i = team->count; i-- > 0;)
        replica_close(&team->members[i].replica);
    team->count = 0;
}

static void begin_turn(struct team *team, const struct replica_step *step) {
    team->step = *step;
    team->step.together = team->siblings != NULL;
    for (uint32_t i = 0; i < team->count; i++)
        ferry_renew(&team->members[i].replica.engine.ferry);
    if (team->count < 2)
        return;
    atomic_store(&team->abandoned, false);
    mark_raise(&team->go, ++team->turn);
}

/* What the first did not need any more does not hold the others up. */
static void end_weights(struct team *team, bool whole) {
    if (team->count < 2)
        return;
    if (!whole)
        atomic_store(&team->abandoned, true);
    team->brought = begin_of(team) + team->layout->num_parameters;
    mark_raise(&team->weights, team->brought);
}

static void add_up(const struct team *team, struct replica_result *result) {
    *result = (struct replica_result){0};
    for (uint32_t i = 0; i < team->count; i++) {
        const struct replica_result *one = &team->members[i].result;
        result->loss += one->loss;
        result->poisoned |= one->poisoned;
        result->finite += one->finite;
        result->samples += one->samples;
        result->correct += one->correct;
        result->last_loss += one->last_loss;
        result->last_samples += one->last_samples;
        if (one->input > result->input)
            result->input = one->input;
    }
}

enum status team_compute(struct team *team, const struct replica_step *step,
                         struct replica_result *result, struct failure *why) {
    struct team_member *first = &team->members[0];
    begin_turn(team, step);
    struct replica_step own = team->step;
    own.context = team;
    own.need = need_first;
    own.done = done_first;
    own.goes_on = goes_on_first;
    enum status status =
        replica_compute(&first->replica, &own, &first->result, why);
    end_weights(team, !status && step->goes_on(step->context));
    await_settled(team);
    add_up(team, result);
    if (!status)
        status = find_failure(team, why);
    team->broken |= status != STATUS_OK;
    return status;
}

enum status team_gather(struct team *team, bool wanted,
                        void (*said)(void *context, uint32_t parameter),
                        void *context, struct failure *why) {
    enum status status = STATUS_OK;
    bool remote = team_is_remote(team);
    team->gathers = wanted && remote;
    if (team->count > 1)
        mark_raise(&team->decided, team->turn);
    if (team->gathers)
        status = team_sum_lead(team, begin_of(team), said, context, why);
    else if (remote && !team->members[0].replica.engine.ferry.resident &&
             !team->broken) /* what is on its way lands before others
                                         write there */
        engine_rest(&team->members[0].replica.engine);
    uint64_t end =
        team->count > 1 ? begin_of(team) + team->layout->num_parameters : 0;
    for (uint32_t i = 1; i < team->joined; i++)
        (void)mark_await(&team->members[i].gathered, end, NULL);
    enum status others = find_failure(team, why);
    team->broken |= others || status;
    return others ? others : status;
}
