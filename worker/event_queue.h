/* SPDX-License-Identifier: Apache-2.0 */
/* What one thread reports to another, which polls: a queue of values of one
 * size. */
#ifndef CAPSTAN_EVENT_QUEUE_H
#define CAPSTAN_EVENT_QUEUE_H

#include "proto/base/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct event_queue {
    pthread_mutex_t mutex;
    pthread_cond_t space_freed;
    int descriptor;        /* polls readable after a put: take all there are */
    unsigned char *values; /* a ring */
    size_t size;           /* bytes of a value */
    unsigned capacity, first, count;
    bool cancelled;
};

/* Borrows VALUES, room for CAPACITY values of SIZE bytes. */
enum status event_queue_open(struct event_queue *event_queue, void *values,
                             size_t size, unsigned capacity,
                             struct failure *why) MUST_CHECK;

/* Neither thread uses it any more. */
void event_queue_close(struct event_queue *event_queue);

/* Copies VALUE into the queue. Waits while that is full; once cancelled it does
 * not, and VALUE is lost. */
void event_queue_push(struct event_queue *event_queue, const void *value);

/* Takes the oldest; false: there is none. */
bool event_queue_pop(struct event_queue *event_queue, void *value);

/* No put waits, now or later; from any thread. */
void event_queue_cancel(struct event_queue *event_queue);

#endif
