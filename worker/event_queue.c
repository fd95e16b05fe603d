/* SPDX-License-Identifier: Apache-2.0 */
/* A full queue blocks the producer rather than dropping an event. After
 * cancellation the producer does not block, and events that find no space are
 * dropped because no consumer is left. */
#include "worker/event_queue.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum status event_queue_open(struct event_queue *event_queue, void *values,
                             size_t size, unsigned capacity,
                             struct failure *why) {
    *event_queue = (struct event_queue){
        .values = values, .size = size, .capacity = capacity};
    event_queue->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (event_queue->descriptor < 0)
        return status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                            "no descriptor for an event queue");
    pthread_mutex_init(&event_queue->mutex, NULL);
    pthread_cond_init(&event_queue->space_freed, NULL);
    return STATUS_OK;
}

void event_queue_close(struct event_queue *event_queue) {
    pthread_mutex_destroy(&event_queue->mutex);
    pthread_cond_destroy(&event_queue->space_freed);
    close(event_queue->descriptor);
}

void event_queue_push(struct event_queue *event_queue, const void *value) {
    pthread_mutex_lock(&event_queue->mutex);
    while (event_queue->count == event_queue->capacity &&
           !event_queue->cancelled)
        pthread_cond_wait(&event_queue->space_freed, &event_queue->mutex);
    if (event_queue->count < event_queue->capacity) {
        unsigned last =
            (event_queue->first + event_queue->count++) % event_queue->capacity;
        memcpy(event_queue->values + last * event_queue->size, value,
               event_queue->size);
    }
    pthread_mutex_unlock(&event_queue->mutex);
    eventfd_write(event_queue->descriptor, 1);
}

bool event_queue_pop(struct event_queue *event_queue, void *value) {
    eventfd_t count;
    eventfd_read(event_queue->descriptor, &count);
    pthread_mutex_lock(&event_queue->mutex);
    bool any = event_queue->count;
    if (any) {
        memcpy(value,
               event_queue->values + event_queue->first * event_queue->size,
               event_queue->size);
        event_queue->first = (event_queue->first + 1) % event_queue->capacity;
        event_queue->count--;
        pthread_cond_signal(&event_queue->space_freed);
    }
    pthread_mutex_unlock(&event_queue->mutex);
    return any;
}

void event_queue_cancel(struct event_queue *event_queue) {
    pthread_mutex_lock(&event_queue->mutex);
    event_queue->cancelled = true;
    pthread_cond_signal(&event_queue->space_freed);
    pthread_mutex_unlock(&event_queue->mutex);
}
