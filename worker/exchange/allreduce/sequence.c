/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/exchange/allreduce/sequence.h"

#include "core/base/time.h"

void sequence_open(struct sequence *sequence) {
    *sequence = (struct sequence){0};
    pthread_mutex_init(&sequence->mutex, NULL);
    pthread_cond_init(&sequence->advanced, NULL);
}

void sequence_close(struct sequence *sequence) {
    pthread_mutex_destroy(&sequence->mutex);
    pthread_cond_destroy(&sequence->advanced);
}

/* Signals after unlocking, so that the woken thread does not block on the
 * mutex. */
void sequence_advance(struct sequence *sequence, uint64_t value) {
    pthread_mutex_lock(&sequence->mutex);
    sequence->value = value;
    pthread_mutex_unlock(&sequence->mutex);
    pthread_cond_broadcast(&sequence->advanced);
}

/* The mutex is held. */
static bool wait_locked(const struct sequence *sequence, uint64_t value) {
    return sequence->value < value && !sequence->ended && !sequence->cancelled;
}

bool sequence_wait(struct sequence *sequence, uint64_t value, int64_t *waited) {
    return sequence_wait_until(sequence, value, TIME_NEVER, waited);
}

bool sequence_wait_until(struct sequence *sequence, uint64_t value,
                         int64_t until, int64_t *waited) {
    pthread_mutex_lock(&sequence->mutex);
    if (wait_locked(sequence, value)) {
        int64_t start = time_now();
        while (wait_locked(sequence, value) &&
               time_cond_wait(&sequence->advanced, &sequence->mutex, until))
            ;
        if (waited)
            *waited += time_now() - start;
    }
    bool reached = sequence->value >= value && !sequence->cancelled;
    pthread_mutex_unlock(&sequence->mutex);
    return reached;
}

void sequence_end(struct sequence *sequence) {
    pthread_mutex_lock(&sequence->mutex);
    sequence->ended = true;
    pthread_cond_broadcast(&sequence->advanced);
    pthread_mutex_unlock(&sequence->mutex);
}

void sequence_cancel(struct sequence *sequence) {
    pthread_mutex_lock(&sequence->mutex);
    sequence->cancelled = true;
    pthread_cond_broadcast(&sequence->advanced);
    pthread_mutex_unlock(&sequence->mutex);
}

uint64_t sequence_value(struct sequence *sequence) {
    pthread_mutex_lock(&sequence->mutex);
    uint64_t value = sequence->value;
    pthread_mutex_unlock(&sequence->mutex);
    return value;
}
