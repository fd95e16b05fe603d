/* SPDX-License-Identifier: Apache-2.0 */
/* A monotonic counter: one thread raises it, others wait for a value. */
#ifndef CAPSTAN_SEQUENCE_H
#define CAPSTAN_SEQUENCE_H

#include "core/base/waiter.h"

#include <stdbool.h>
#include <stdint.h>

struct sequence {
    struct waiter waiter;
    uint64_t value;
    bool ended;
};

/* Starts at 0. */
void sequence_open(struct sequence *sequence);

/* No thread may wait any more. */
void sequence_close(struct sequence *sequence);

/* VALUE is not below any earlier one. A thread that waits for VALUE sees all
 * that the caller wrote before. */
void sequence_advance(struct sequence *sequence, uint64_t value);

/* Waits until the sequence is at VALUE or above. If it has to wait, *WAITED
 * (may be NULL) grows by the nanoseconds. False if the sequence has ended below
 * VALUE, or at once if it was cancelled, whatever its value. */
bool sequence_wait(struct sequence *sequence, uint64_t value, int64_t *waited);

/* The same until time UNTIL; false also then. */
bool sequence_wait_until(struct sequence *sequence, uint64_t value,
                         int64_t until, int64_t *waited);

/* The sequence rises no further; from any thread. */
void sequence_end(struct sequence *sequence);

/* Ends all waits, from any thread. */
void sequence_cancel(struct sequence *sequence);

/* The current value; from any thread. */
uint64_t sequence_value(struct sequence *sequence);

#endif
