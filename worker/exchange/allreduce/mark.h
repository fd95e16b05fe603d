/* SPDX-License-Identifier: Apache-2.0 */
/* A number that only rises: one thread raises it, others wait for it. */
#ifndef CAPSTAN_MARK_H
#define CAPSTAN_MARK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct mark {
    pthread_mutex_t mutex;
    pthread_cond_t raised;
    uint64_t value;
    bool ended, cancelled;
};

/* From 0 on. */
void mark_open(struct mark *mark);

/* Nobody waits any more. */
void mark_close(struct mark *mark);

/* VALUE is not below any before it. What the caller has written is seen by who
 * waits for VALUE. */
void mark_raise(struct mark *mark, uint64_t value);

/* Waits until the mark is at VALUE or above. *WAITED (may be NULL) grows by the
 * nanoseconds it took, when it was not there yet. False when it has ended below
 * VALUE, or was cancelled: then at once, whatever the mark is. */
bool mark_await(struct mark *mark, uint64_t value, int64_t *waited);

/* It rises no more; from any thread. */
void mark_end(struct mark *mark);

/* Ends all waits, from any thread. */
void mark_cancel(struct mark *mark);

/* Where it is now; from any thread. */
uint64_t mark_value(struct mark *mark);

#endif
