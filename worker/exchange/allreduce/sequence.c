/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/exchange/allreduce/sequence.h"

#include "core/base/time.h"

void sequence_open(struct sequence *sequence) {
    *sequence = (struct sequence){0};
    waiter_open(&sequence->waiter);
}

void sequence_close(struct sequence *sequence) {
    waiter_close(&sequence->waiter);
}

/* Signals after unlocking, so that the woken thread does not block on the
 * mutex. */
void sequence_advance(struct sequence *sequence, uint64_t value) {
    waiter_enter(&sequence->waiter);
    sequence->value = value;
    waiter_leave(&sequence->waiter);
    pthread_cond_broadcast(&sequence->waiter.changed);
}

bool sequence_wait(struct sequence *sequence, uint64_t value, int64_t *waited) {
    return sequence_wait_until(sequence, value, TIME_NEVER, waited);
}

bool sequence_wait_until(struct sequence *sequence, uint64_t value,
                         int64_t until, int64_t *waited) {
    waiter_enter(&sequence->waiter);
    while (sequence->value < value && !sequence->ended &&
           waiter_wait(&sequence->waiter, until, waited))
        ;
    bool reached = sequence->value >= value && !sequence->waiter.cancelled;
    waiter_leave(&sequence->waiter);
    return reached;
}

void sequence_end(struct sequence *sequence) {
    waiter_enter(&sequence->waiter);
    sequence->ended = true;
    waiter_leave_changed(&sequence->waiter);
}

void sequence_cancel(struct sequence *sequence) {
    waiter_cancel(&sequence->waiter);
}

uint64_t sequence_value(struct sequence *sequence) {
    waiter_enter(&sequence->waiter);
    uint64_t value = sequence->value;
    waiter_leave(&sequence->waiter);
    return value;
}
