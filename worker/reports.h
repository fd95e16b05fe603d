/* SPDX-License-Identifier: Apache-2.0 */
/* What one thread reports to another, which polls: a queue of values of one
 * size. */
#ifndef CAPSTAN_REPORTS_H
#define CAPSTAN_REPORTS_H

#include "proto/base/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct reports {
    pthread_mutex_t mutex;
    pthread_cond_t taken;
    int descriptor;        /* polls readable after a put: take all there are */
    unsigned char *values; /* a ring */
    size_t size;           /* bytes of a value */
    unsigned capacity, first, count;
    bool cancelled;
};

/* Borrows VALUES, room for CAPACITY values of SIZE bytes. */
enum status reports_open(struct reports *reports, void *values, size_t size,
                         unsigned capacity, struct failure *why) MUST_CHECK;

/* Neither thread uses it any more. */
void reports_close(struct reports *reports);

/* Copies VALUE into the queue. Waits while that is full; once cancelled it does
 * not, and VALUE is lost. */
void reports_put(struct reports *reports, const void *value);

/* Takes the oldest; false: there is none. */
bool reports_take(struct reports *reports, void *value);

/* No put waits, now or later; from any thread. */
void reports_cancel(struct reports *reports);

#endif
