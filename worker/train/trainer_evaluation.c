/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's thread on the test set: its own part after a planned round, and
 * the part of a snapshot that the chief has ordered; and its life after the
 * loop, when that is all there is to do. */
#include "proto/base/time.h"
#include "worker/train/trainer_parts.h"

/* A part of the test set, on the weights as they stand. */
static enum status evaluate(struct trainer *trainer,
                            const struct trainer_order *order,
                            struct failure *why) {
    struct trainer_report result = {.event = TRAINER_EVALUATED,
                                    .id = order->id,
                                    .step = order->step,
                                    .part = order->part};
    uint64_t total = trainer->test ? trainer->test->count : 0;
    struct evaluation_part part = {.test = trainer->test,
                                   .first = total * order->part / order->parts,
                                   .end = total * (order->part + 1) /
                                          order->parts};
    int64_t start = time_now();
    struct evaluation found = {0};
    enum status status = STATUS_OK;
    if (trainer->test)
        status = engine_evaluate(&trainer->team.members[0].replica.engine,
                                 &part, &found, why);
    if (status)
        return status;
    result.loss_sum = found.loss_sum;
    result.correct = found.correct;
    result.count = found.count;
    trainer_progress(trainer, &result.progress);
    reports_put(&trainer->reports, &result);
    trainer->evaluating += time_now() - start;
    return STATUS_OK;
}

/* After a planned round: the weights here are that round's. */
enum status trainer_evaluate_own(struct trainer *trainer, struct failure *why) {
    struct trainer_order order = {.step = trainer->clock,
                                  .part = trainer->settings.rank,
                                  .parts = trainer->settings.num_ranks};
    return evaluate(trainer, &order, why);
}

/* A snapshot is read over the present weights, which are read again after. */
static enum status evaluate_snapshot(struct trainer *trainer,
                                     const struct trainer_order *order,
                                     struct failure *why) {
    if (!trainer_await_all(trainer))
        return STATUS_OK;
    partner_pull(trainer->partner, trainer->clock, order->id);
    if (!trainer_await_all(trainer))
        return STATUS_OK;
    enum status status = evaluate(trainer, order, why);
    if (status)
        return status;
    partner_pull(trainer->partner, trainer->clock, 0);
    trainer_await_all(trainer);
    return STATUS_OK;
}

static bool take_order(struct trainer *trainer, struct trainer_order *order) {
    pthread_mutex_lock(&trainer->mutex);
    bool ordered = trainer->ordered;
    *order = trainer->order;
    trainer->ordered = false;
    pthread_mutex_unlock(&trainer->mutex);
    return ordered;
}

enum status trainer_evaluate_ordered(struct trainer *trainer,
                                     struct failure *why) {
    struct trainer_order order;
    return take_order(trainer, &order) ? evaluate_snapshot(trainer, &order, why)
                                       : STATUS_OK;
}

/* Out of the loop: evaluations are still taken part in. */
enum status trainer_stay(struct trainer *trainer, struct failure *why) {
    enum status status = STATUS_OK;
    while (!status) {
        pthread_mutex_lock(&trainer->mutex);
        while (!trainer->ordered && !trainer->called && !trainer->cancelled)
            pthread_cond_wait(&trainer->changed, &trainer->mutex);
        bool cancelled = trainer->cancelled;
        trainer->called = false;
        pthread_mutex_unlock(&trainer->mutex);
        if (cancelled)
            return STATUS_OK;
        partner_serve(trainer->partner);
        status = trainer_evaluate_ordered(trainer, why);
    }
    return status;
}
