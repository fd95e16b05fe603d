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
#include "worker/train/external_internal.h"

#include "core/base/time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct external *external_open(void) {
    struct external *external = calloc(1, sizeof *external);
    if (!external)
        return NULL;
    pthread_mutex_init(&external->mutex, NULL);
    pthread_cond_init(&external->changed, NULL);
    pthread_mutex_init(&external->kept_mutex, NULL);
    return external;
}

static void close_tables(struct external_tables *all) {
    if (!all)
        return;
    table_steps_close(&all->steps);
    free(all->tables);
    free(all->groups);
    free(all->has_group);
    free(all);
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
    pthread_mutex_destroy(&external->kept_mutex);
    for (uint32_t k = 0; k < external->num_kept; k++)
        free(external->kept[k].data);
    close_tables(external->tables);
    free(external->given);
    free(external->state_read.floats);
    free(external->groups);
    free(external->parameters);
    free(external->values);
    free(external->means);
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
    pthread_mutex_lock(&external->kept_mutex);
    dir_lock_release(&external->dir_lock);
    pthread_mutex_unlock(&external->kept_mutex);
    external->trainer = NULL;
    pthread_mutex_unlock(&external->mutex);
}

float *const *external_values(const struct external *external) {
    return external->values;
}

float *const *external_means(const struct external *external) {
    return external->means;
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

struct trainer *external_enter(struct external *external) {
    pthread_mutex_lock(&external->mutex);
    bool may = external->trainer && !external->detached && !external->ended;
    external->inside += may;
    pthread_mutex_unlock(&external->mutex);
    return may ? external->trainer : NULL;
}

void external_leave(struct external *external) {
    pthread_mutex_lock(&external->mutex);
    if (!--external->inside && external->detached)
        pthread_cond_broadcast(&external->changed);
    pthread_mutex_unlock(&external->mutex);
}

enum external_result external_late(struct external *external, int64_t until) {
    pthread_mutex_lock(&external->mutex);
    while (!external->detached && !external->ended &&
           time_cond_wait(&external->changed, &external->mutex, until))
        ;
    bool over = external->detached || external->ended;
    pthread_mutex_unlock(&external->mutex);
    return over ? EXTERNAL_OVER : EXTERNAL_LATE;
}

bool external_is_over(struct external *external) {
    pthread_mutex_lock(&external->mutex);
    bool over = external->detached || external->ended;
    pthread_mutex_unlock(&external->mutex);
    return over;
}

bool external_is_past_end(struct external *external) {
    pthread_mutex_lock(&external->mutex);
    bool past_end = external->past_end && !external->finished;
    pthread_mutex_unlock(&external->mutex);
    return past_end;
}

void external_report(struct trainer *trainer, const struct failure *why) {
    struct trainer_report failed = {.event = TRAINER_FAILED, .why = *why};
    event_queue_push(&trainer->event_queue, &failed);
}

void external_misused(struct trainer *trainer, const char *text) {
    struct failure why;
    status_fail(&why, FAILURE_WRONG_CALL, "%s", text);
    external_report(trainer, &why);
}

bool external_fail(struct external *external, const struct failure *why) {
    struct trainer *trainer = external_enter(external);
    if (!trainer)
        return false;
    external_report(trainer, why);
    external_leave(external);
    return true;
}

enum status external_default_group(struct optimizer_group *group,
                                   const char *type, struct failure *why) {
    char override[128];
    const char *overrides[] = {override};
    struct job_source source = {.models = &model_schemas,
                                .overrides = overrides,
                                .num_overrides = 1,
                                .external = true};
    struct job *job;
    snprintf(override, sizeof override, "optimizer.type=%.64s", type);
    enum status status = job_load(&job, &source, NULL, why);
    if (status)
        return status;
    *group = (struct optimizer_group){job->optimizer, job->schedule.lr};
    job_free(&job);
    return STATUS_OK;
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

/* All-reduce: what the round left in the arena. */
static void take_from_arena(const struct external *external,
                            const struct trainer *trainer, uint32_t p) {
    bool mean =
        external->started && external->takes_means && external->means[p];
    if (!mean || exchange_has_bytes(trainer->exchange, p))
        memcpy(mean ? external->means[p] : external->values[p],
               trainer->arena.weight_of[p],
               external->parameters[p].elements * sizeof(float));
}

bool external_wait_weights(struct external *external, struct trainer *trainer,
                           uint32_t p, int64_t until) {
    struct tensor *tensor = &external->tensors[p];
    if (!exchange_wait(trainer->exchange, p, until))
        return false;
    pthread_mutex_lock(&external->mutex);
    struct buffer *own = tensor->owned ? tensor->gradient : NULL;
    bool lent = tensor->lent;
    tensor->owned = false;
    pthread_mutex_unlock(&external->mutex);
    if (own) /* the first wait after the push */
        buffer_release(&own);
    if (lent)
        return await_gradient(external, tensor, until);
    if (tensor->stale)
        take_from_arena(external, trainer, p);
    tensor->stale = false;
    return true;
}

bool external_wait_all(struct external *external, struct trainer *trainer,
                       int64_t until) {
    for (uint32_t p = 0; p < external->count; p++)
        if (!external_wait_weights(external, trainer, p, until))
            return false;
    return true;
}
