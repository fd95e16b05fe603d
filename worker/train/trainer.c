/* SPDX-License-Identifier: Apache-2.0 */
/* The thread's life: data, layout and device are declared; a plan is awaited;
 * then memory, first weights, steps; and after the last step it stays for
 * evaluations until it is cancelled. The mutex holds what the communication
 * thread sets (plan, partner, an order, leaving, cancelled) and what it reads
 * (progress); all else is the thread's own until it is joined, but for the
 * layout, which is there for all once it has been declared. */
#include "worker/train/trainer.h"

#include "proto/base/time.h"
#include "proto/tensor/encoding.h"
#include "worker/data/sampler.h"
#include "worker/train/trainer_parts.h"

#include <stdlib.h>

/* Memory for the model: had once the plan is here, as the chief may find that
 * it is too much. */
static enum status open_model(struct trainer *trainer, struct failure *why) {
    struct partner partner = trainer->partner;
    struct team_model model = {
        .count = plan_replicas(trainer->plan, trainer->settings.rank),
        .job = trainer->settings.job,
        .layout = trainer->layout,
        .arena = &trainer->arena,
        .evaluates = trainer->test != NULL,
        .resident = partner.resident,
    };
    enum status status = team_open(&trainer->team, &model, why);
    if (status || !partner.resident)
        return status;
    struct reducer_place place =
        ferry_place(&trainer_device_first(trainer)->ferry);
    return partner_begin(partner, &place, why);
}

/* Of the first of its replicas. */
static struct sampler_options sampling(const struct trainer *trainer) {
    const struct job *job = trainer->settings.job;
    return (struct sampler_options){
        .num_samples = trainer->train->count,
        .rank = plan_first_replica(trainer->plan, trainer->settings.rank),
        .num_ranks = plan_all_replicas(trainer->plan),
        .micro_batch = job->micro_batch,
        .seed = job->seed,
        .shuffle = job->data.shuffle,
        .drop_last = job->data.drop_last,
    };
}

bool trainer_is_cancelled(struct trainer *trainer) {
    pthread_mutex_lock(&trainer->mutex);
    bool cancelled = trainer->cancelled;
    pthread_mutex_unlock(&trainer->mutex);
    return cancelled;
}

/* Waits for trainer_begin; false when there is to be no training. */
static bool await_plan(struct trainer *trainer) {
    pthread_mutex_lock(&trainer->mutex);
    while (!trainer->partner.verbs && !trainer->cancelled)
        pthread_cond_wait(&trainer->changed, &trainer->mutex);
    bool go = !trainer->cancelled;
    pthread_mutex_unlock(&trainer->mutex);
    return go;
}

bool trainer_await(struct trainer *trainer, uint32_t parameter) {
    if (!partner_wait(trainer->partner, parameter))
        trainer->forsaken = true;
    return !trainer->forsaken;
}

bool trainer_await_all(struct trainer *trainer) {
    for (uint32_t p = 0; p < trainer->layout->num_parameters; p++)
        if (!trainer_await(trainer, p))
            return false;
    return true;
}

/* First weights: computed, when the ps compute the same, as they would have
 * been read, else read. */
static bool first_weights(struct trainer *trainer) {
    const struct job *job = trainer->settings.job;
    const struct plan *plan = trainer->plan;
    const struct layout *layout = trainer->layout;
    if (trainer->partner.sets_first)
        return trainer_await_all(trainer);
    if (plan->pull_first || trainer->from > plan->rounds.start + 1) {
        partner_pull(trainer->partner, trainer->from - 1, 0);
        return trainer_await_all(trainer);
    }
    for (uint32_t b = 0; b < layout->num_blocks; b++) {
        const struct block *block = &layout->blocks[b];
        float *weights =
            trainer->arena.weight_of[block->parameter] + block->offset;
        layout_init_block(layout, b, job->seed, weights);
        encoding_round(job->wire, weights, block->elements);
    }
    return true;
}

/* Micro batches of each of its replicas before push CLOCK. */
static uint64_t position(const struct trainer *trainer, uint64_t clock) {
    const struct rounds *rounds = &trainer->plan->rounds;
    uint64_t steps = clock - 1;
    if (trainer_is_synchronous(trainer))
        steps = steps - rounds->start + rounds->start_batch;
    return steps * trainer->settings.job->accumulation;
}

static bool wants_to_leave(struct trainer *trainer) {
    pthread_mutex_lock(&trainer->mutex);
    bool leaving = trainer->leaving || trainer->cancelled;
    pthread_mutex_unlock(&trainer->mutex);
    return leaving;
}

/* Is there a step after trainer->clock? */
static bool goes_on(struct trainer *trainer) {
    uint64_t total = trainer->plan->rounds.total;
    if (trainer->forsaken || wants_to_leave(trainer))
        return false;
    if (trainer_is_synchronous(trainer))
        return trainer->clock < total;
    uint32_t last = trainer->layout->num_parameters - 1;
    return trainer_await(trainer, last) &&
           partner_global_step(trainer->partner) < total &&
           trainer->plan->rounds.start < total;
}

/* With staleness a push is the step of the run that its answer tells. */
static void count_answered(struct trainer *trainer) {
    if (!trainer_is_synchronous(trainer) && trainer->clock >= trainer->from &&
        !trainer->forsaken)
        trainer_step_count(trainer, partner_global_step(trainer->partner));
}

static enum status train(struct trainer *trainer, struct failure *why) {
    enum status status = STATUS_OK;
    trainer->clock = trainer->from - 1;
    trainer->began = time_now();
    trainer->waited = partner_waited(trainer->partner);
    while (!status && goes_on(trainer)) {
        count_answered(trainer);
        trainer->clock++;
        status = trainer_step_take(trainer, why);
        if (!status && trainer_is_synchronous(trainer) &&
            rounds_evaluates(&trainer->plan->rounds, trainer->clock) &&
            trainer_await_all(trainer))
            status = trainer_evaluate_own(trainer, why);
        if (!status)
            status = trainer_evaluate_ordered(trainer, why);
    }
    struct loss_scaler now;
    bool answered = !status && trainer_await_all(trainer);
    if (answered)
        count_answered(trainer);
    if (answered && scaling_checks(trainer->settings.job))
        (void)trainer_step_scale(trainer, &now);
    return status ? status : partner_show(trainer->partner, why);
}

static enum status open_loader(struct trainer *trainer, struct failure *why) {
    struct sampler_options options = sampling(trainer);
    return team_load(&trainer->team, trainer->train, options,
                     position(trainer, trainer->from),
                     &trainer->settings.job->data, why);
}

static enum status run(struct trainer *trainer, struct failure *why) {
    enum status status = trainer_prepare(trainer, why);
    if (status || !await_plan(trainer))
        return status;
    status = open_model(trainer, why);
    if (status || !first_weights(trainer))
        return status;
    status = open_loader(trainer, why);
    if (!status)
        status = train(trainer, why);
    if (status)
        return status;
    struct trainer_report left = {.event = TRAINER_LEFT,
                                  .clock = trainer->clock};
    if (!trainer->forsaken)
        reports_put(&trainer->reports, &left);
    return trainer_stay(trainer, why);
}

static void *run_thread(void *argument) {
    struct trainer *trainer = argument;
    struct trainer_report failed = {.event = TRAINER_FAILED};
    struct failure lost;
    if (!run(trainer, &failed.why))
        return NULL;
    pthread_mutex_lock(&trainer->mutex);
    struct partner partner = trainer->partner;
    pthread_mutex_unlock(&trainer->mutex);
    if (partner_lost(partner, &lost))
        failed.why = lost; /* the wait for the device was given up for it */
    failed.diverged = trainer->diverged;
    reports_put(&trainer->reports, &failed);
    return NULL;
}

enum status trainer_open(struct trainer **out,
                         const struct trainer_settings *settings,
                         struct failure *why) {
    struct trainer *trainer = calloc(1, sizeof *trainer);
    if (!trainer)
        return status_fail(why, STATUS_RETRY, "no memory for a trainer");
    enum status status =
        reports_open(&trainer->reports, trainer->room, sizeof *trainer->room,
                     TRAINER_REPORTS, why);
    if (status) {
        free(trainer);
        return status;
    }
    status = reports_open(&trainer->points, trainer->points_room,
                          sizeof *trainer->points_room, TRAINER_POINTS, why);
    if (status) {
        reports_close(&trainer->reports);
        free(trainer);
        return status;
    }
    trainer->settings = *settings;
    trainer->scaling = (struct scaling){
        .job = settings->job, .log = settings->log, .speaks = !settings->rank};
    pthread_mutex_init(&trainer->mutex, NULL);
    pthread_cond_init(&trainer->changed, NULL);
    int error = pthread_create(&trainer->thread, NULL, run_thread, trainer);
    if (!error) {
        *out = trainer;
        return STATUS_OK;
    }
    reports_close(&trainer->reports);
    reports_close(&trainer->points);
    free(trainer);
    return status_errno(why, STATUS_FAILED, error,
                        "cannot start the training thread");
}

void trainer_close(struct trainer **where) {
    struct trainer *trainer = *where;
    *where = NULL;
    if (!trainer)
        return;
    pthread_mutex_lock(&trainer->mutex);
    trainer->cancelled = true;
    pthread_cond_broadcast(&trainer->changed);
    if (trainer->partner.verbs)
        partner_cancel(trainer->partner);
    pthread_mutex_unlock(&trainer->mutex);
    reports_cancel(&trainer->reports);
    reports_cancel(&trainer->points);
    pthread_join(trainer->thread, NULL);
    partner_end(trainer->partner);
    team_close(&trainer->team);
    dataset_free(&trainer->train);
    dataset_free(&trainer->test);
    layout_free(&trainer->layout);
    arena_close(&trainer->arena);
    pthread_mutex_destroy(&trainer->mutex);
    pthread_cond_destroy(&trainer->changed);
    reports_close(&trainer->reports);
    reports_close(&trainer->points);
    free(trainer);
}

int trainer_descriptor(const struct trainer *trainer) {
    return trainer->reports.descriptor;
}

bool trainer_reports(struct trainer *trainer, struct trainer_report *report) {
    return reports_take(&trainer->reports, report);
}

bool trainer_take_point(struct trainer *trainer, struct trainer_point *point) {
    return reports_take(&trainer->points, point);
}

void trainer_progress(struct trainer *trainer,
                      struct trainer_progress *progress) {
    pthread_mutex_lock(&trainer->mutex);
    *progress = trainer->progress;
    pthread_mutex_unlock(&trainer->mutex);
}

const struct layout *trainer_layout(const struct trainer *trainer) {
    return trainer->layout;
}

enum status trainer_allocate(struct trainer *trainer, bool apart,
                             struct failure *why) {
    return trainer->arena.weights
               ? STATUS_OK
               : arena_open(&trainer->arena, trainer->layout, apart, why);
}

void trainer_arenas(struct trainer *trainer, struct buffer **weights,
                    struct buffer **gradients, const uint64_t **offsets) {
    *weights = trainer->arena.weights;
    *gradients = trainer->arena.gradients;
    *offsets = trainer->arena.offsets;
}

void trainer_begin(struct trainer *trainer, struct partner partner,
                   const struct plan *plan, uint64_t from) {
    pthread_mutex_lock(&trainer->mutex);
    trainer->plan = plan;
    trainer->from = from;
    trainer->partner = partner;
    pthread_cond_broadcast(&trainer->changed);
    pthread_mutex_unlock(&trainer->mutex);
}

void trainer_evaluate(struct trainer *trainer,
                      const struct trainer_order *order) {
    pthread_mutex_lock(&trainer->mutex);
    trainer->ordered = true;
    trainer->order = *order;
    pthread_cond_broadcast(&trainer->changed);
    pthread_mutex_unlock(&trainer->mutex);
}

void trainer_serve(struct trainer *trainer) {
    pthread_mutex_lock(&trainer->mutex);
    trainer->called = true;
    pthread_cond_broadcast(&trainer->changed);
    pthread_mutex_unlock(&trainer->mutex);
}

void trainer_leave(struct trainer *trainer) {
    pthread_mutex_lock(&trainer->mutex);
    trainer->leaving = true;
    pthread_cond_broadcast(&trainer->changed);
    pthread_mutex_unlock(&trainer->mutex);
}
