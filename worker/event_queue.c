/* SPDX-License-Identifier: Apache-2.0 */
/* A full queue blocks the producer rather than dropping an event. After
 * cancellation the producer does not block, and events that find no space are
 * dropped because no consumer is left. */
#include "worker/event_queue.h"

#include "core/base/time.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum status event_queue_open(struct event_queue *queue, void *values,
                             size_t size, unsigned capacity,
                             struct failure *why) {
    *queue = (struct event_queue){
        .values = values, .size = size, .capacity = capacity};
    queue->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (queue->descriptor < 0)
        return status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                            "no descriptor for an event queue");
    waiter_open(&queue->waiter);
    return STATUS_OK;
}

void event_queue_close(struct event_queue *queue) {
    waiter_close(&queue->waiter);
    close(queue->descriptor);
}

void event_queue_push(struct event_queue *queue, const void *value) {
    waiter_enter(&queue->waiter);
    while (queue->count == queue->capacity &&
           waiter_wait(&queue->waiter, TIME_NEVER, NULL))
        ;
    if (queue->count < queue->capacity) {
        unsigned last = (queue->first + queue->count++) % queue->capacity;
        memcpy(queue->values + last * queue->size, value, queue->size);
    }
    waiter_leave(&queue->waiter);
    eventfd_write(queue->descriptor, 1);
}

bool event_queue_pop(struct event_queue *event_queue, void *value) {
    eventfd_t count;
    eventfd_read(event_queue->descriptor, &count);
    waiter_enter(&event_queue->waiter);
    bool any = event_queue->count;
    if (any) {
        memcpy(value,
               event_queue->values + event_queue->first * event_queue->size,
               event_queue->size);
        event_queue->first = (event_queue->first + 1) % event_queue->capacity;
        event_queue->count--;
    }
    waiter_leave_changed(&event_queue->waiter);
    return any;
}

void event_queue_cancel(struct event_queue *queue) {
    waiter_cancel(&queue->waiter);
}
