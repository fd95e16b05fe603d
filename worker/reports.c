/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that reports waits when nobody takes its reports, rather than lose
 * one; cancelled, it goes on and what finds no room is lost, as nobody will
 * ask. */
#include "worker/reports.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum status reports_open(struct reports *reports, void *values, size_t size,
                         unsigned capacity, struct failure *why) {
    *reports =
        (struct reports){.values = values, .size = size, .capacity = capacity};
    reports->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (reports->descriptor < 0)
        return status_errno(why, STATUS_FAILED, errno,
                            "no descriptor for a thread's reports");
    pthread_mutex_init(&reports->mutex, NULL);
    pthread_cond_init(&reports->taken, NULL);
    return STATUS_OK;
}

void reports_close(struct reports *reports) {
    pthread_mutex_destroy(&reports->mutex);
    pthread_cond_destroy(&reports->taken);
    close(reports->descriptor);
}

void reports_put(struct reports *reports, const void *value) {
    pthread_mutex_lock(&reports->mutex);
    while (reports->count == reports->capacity && !reports->cancelled)
        pthread_cond_wait(&reports->taken, &reports->mutex);
    if (reports->count < reports->capacity) {
        unsigned last = (reports->first + reports->count++) % reports->capacity;
        memcpy(reports->values + last * reports->size, value, reports->size);
    }
    pthread_mutex_unlock(&reports->mutex);
    eventfd_write(reports->descriptor, 1);
}

bool reports_take(struct reports *reports, void *value) {
    eventfd_t count;
    eventfd_read(reports->descriptor, &count);
    pthread_mutex_lock(&reports->mutex);
    bool any = reports->count;
    if (any) {
        memcpy(value, reports->values + reports->first * reports->size,
               reports->size);
        reports->first = (reports->first + 1) % reports->capacity;
        reports->count--;
        pthread_cond_signal(&reports->taken);
    }
    pthread_mutex_unlock(&reports->mutex);
    return any;
}

void reports_cancel(struct reports *reports) {
    pthread_mutex_lock(&reports->mutex);
    reports->cancelled = true;
    pthread_cond_signal(&reports->taken);
    pthread_mutex_unlock(&reports->mutex);
}
