/* SPDX-License-Identifier: Apache-2.0 */
/* A number that only rises: one thread raises it, others wait for it. */
#ifndef CAPSTAN_SEQUENCE_H
#define CAPSTAN_SEQUENCE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct sequence {
    pthread_mutex_t mutex;
    pthread_cond_t advanced;
    uint64_t value;
    bool ended, cancelled;
};

/* From 0 on. */
void sequence_open(struct sequence *sequence);

/* Nobody waits any more. */
void sequence_close(struct sequence *sequence);

/* VALUE is not below any before it. What the caller has written is seen by who
 * waits for VALUE. */
void sequence_advance(struct sequence *sequence, uint64_t value);

/* Waits until the mark is at VALUE or above. *WAITED (may be NULL) grows by the
 * nanoseconds it took, when it was not there yet. False when it has ended below
 * VALUE, or was cancelled: then at once, whatever the mark is. */
bool sequence_wait(struct sequence *sequence, uint64_t value, int64_t *waited);

/* It rises no more; from any thread. */
void sequence_end(struct sequence *sequence);

/* Ends all waits, from any thread. */
void sequence_cancel(struct sequence *sequence);

/* Where it is now; from any thread. */
uint64_t sequence_value(struct sequence *sequence);

#endif
