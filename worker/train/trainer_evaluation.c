/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluations on the compute thread: its own part of the test set after a
 * planned round, the part of a snapshot that the chief requests, and the
 * requests that it serves after the loop. */
#include "core/base/time.h"
#include "worker/train/trainer_internal.h"

static enum status pack_scores(struct binary_scores *scores,
                               struct trainer_report *result,
                               struct failure *why) {
    if (!scores->count)
        return STATUS_OK;
    result->predicted_sum = scores->predicted_sum;
    result->target_sum = scores->target_sum;
    result->scores = binary_scores_pack(scores, &result->scores_bytes);
    return result->scores
               ? STATUS_OK
               : status_fail(why, FAILURE_NO_MEMORY,
                             "no memory for the scores of %zu samples",
                             scores->count);
}

/* Evaluates a part of the test set on the current weights. */
static enum status trainer_evaluation_evaluate(
    struct trainer *trainer, const struct trainer_evaluation_request *request,
    struct failure *why) {
    struct trainer_report result = {.event = TRAINER_EVALUATED,
                                    .id = request->id,
                                    .step = request->step,
                                    .part = request->part};
    uint64_t total = trainer->test ? trainer->test->count : 0;
    struct evaluation_range part = {
        .test = trainer->test,
        .first = total * request->part / request->parts,
        .end = total * (request->part + 1) / request->parts,
        .embedding = trainer->embedding,
        .clock = request->id ? 0 : trainer->clock,
        .snapshot = request->id};
    int64_t start = time_now();
    struct evaluation found = {0};
    enum status status = STATUS_OK;
    if (trainer->test)
        status = executor_evaluate(
            &trainer->local_group.members[0].device_replica.executor, &part,
            &found, why);
    if (!status)
        status = pack_scores(&found.scores, &result, why);
    binary_scores_clear(&found.scores);
    if (status || trainer->aborted)
        return status;
    result.loss_sum = found.loss_sum;
    result.correct = found.correct;
    result.regression =
        trainer->local_group.members[0].device_replica.executor.spec.regression;
    result.count = found.count;
    result.bad_lines = found.bad_lines;
    trainer_progress(trainer, &result.progress);
    event_queue_push(&trainer->event_queue, &result);
    trainer->evaluating += time_now() - start;
    return STATUS_OK;
}

/* After a planned round the arena has that round's weights, and no ps closes
 * the next one, of rows too, before this trainer's next push. */
enum status trainer_evaluate_own(struct trainer *trainer, struct failure *why) {
    struct trainer_evaluation_request request = {
        .step = trainer->clock,
        .part = trainer->settings.rank,
        .parts = trainer->settings.num_ranks};
    return trainer_evaluation_evaluate(trainer, &request, why);
}

/* A snapshot overwrites the current weights, which are read again
 * afterwards. */
static enum status evaluate_snapshot(
    struct trainer *trainer, const struct trainer_evaluation_request *request,
    struct failure *why) {
    if (!trainer_wait_all_weights(trainer))
        return STATUS_OK;
    exchange_pull(trainer->exchange, trainer->clock, request->id);
    if (!trainer_wait_all_weights(trainer))
        return STATUS_OK;
    enum status status = trainer_evaluation_evaluate(trainer, request, why);
    if (status)
        return status;
    exchange_pull(trainer->exchange, trainer->clock, 0);
    trainer_wait_all_weights(trainer);
    return STATUS_OK;
}

static bool take_request(struct trainer *trainer,
                         struct trainer_evaluation_request *request) {
    pthread_mutex_lock(&trainer->mutex);
    bool evaluation_requested = trainer->evaluation_requested;
    *request = trainer->request;
    trainer->evaluation_requested = false;
    pthread_mutex_unlock(&trainer->mutex);
    return evaluation_requested;
}

enum status trainer_evaluate_requested(struct trainer *trainer,
                                       struct failure *why) {
    struct trainer_evaluation_request request;
    return take_request(trainer, &request)
               ? evaluate_snapshot(trainer, &request, why)
               : STATUS_OK;
}

/* After the loop the trainer still takes part in evaluations. */
enum status trainer_serve_requests(struct trainer *trainer,
                                   struct failure *why) {
    enum status status = STATUS_OK;
    while (!status) {
        pthread_mutex_lock(&trainer->mutex);
        while (!trainer->evaluation_requested && !trainer->serve_requested &&
               !trainer->cancelled)
            pthread_cond_wait(&trainer->changed, &trainer->mutex);
        bool cancelled = trainer->cancelled;
        trainer->serve_requested = false;
        pthread_mutex_unlock(&trainer->mutex);
        if (cancelled)
            return STATUS_OK;
        exchange_serve(trainer->exchange);
        status = trainer_evaluate_requested(trainer, why);
    }
    return status;
}
