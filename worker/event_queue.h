/* SPDX-License-Identifier: Apache-2.0 */
/* A bounded queue of equal-sized values from one thread to another, which
 * polls. */
#ifndef CAPSTAN_EVENT_QUEUE_H
#define CAPSTAN_EVENT_QUEUE_H

#include "core/base/status.h"
#include "core/base/waiter.h"

#include <stdbool.h>
#include <stddef.h>

struct event_queue {
    struct waiter waiter; /* for space */
    int descriptor; /* readable after a push: pop until the queue is empty */
    unsigned char *values; /* a ring */
    size_t size;           /* bytes of a value */
    unsigned capacity, first, count;
};

/* Borrows VALUES, room for CAPACITY values of SIZE bytes. */
enum status event_queue_open(struct event_queue *queue, void *values,
                             size_t size, unsigned capacity,
                             struct failure *why) MUST_CHECK;

/* Neither thread may use the queue afterwards. */
void event_queue_close(struct event_queue *queue);

/* Copies VALUE into the queue. Waits while the queue is full; after
 * event_queue_cancel it returns at once and drops VALUE. */
void event_queue_push(struct event_queue *queue, const void *value);

/* Removes the oldest value; false if the queue is empty. */
bool event_queue_pop(struct event_queue *queue, void *value);

/* Ends current and future waits in event_queue_push; from any thread. */
void event_queue_cancel(struct event_queue *queue);

#endif
