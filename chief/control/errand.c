/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/control/errand.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct errand {
    pthread_t thread;
    errand_work *work;
    void *context;
    int done, cancel; /* eventfds */
    enum status status;
    struct failure why;
};

static void *run(void *argument) {
    struct errand *errand = argument;
    errand->status =
        errand->work(errand->context, errand->cancel, &errand->why);
    eventfd_write(errand->done, 1);
    return NULL;
}

static void destroy(struct errand *errand) {
    if (errand->done >= 0)
        close(errand->done);
    if (errand->cancel >= 0)
        close(errand->cancel);
    free(errand);
}

enum status errand_open(struct errand **out, errand_work *work, void *context,
                        struct failure *why) {
    struct errand *errand = calloc(1, sizeof *errand);
    *out = NULL;
    if (!errand)
        return status_fail(why, STATUS_RETRY, "no memory for a thread");
    errand->work = work;
    errand->context = context;
    errand->done = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    errand->cancel = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int error = errand->done < 0 || errand->cancel < 0
                    ? errno
                    : pthread_create(&errand->thread, NULL, run, errand);
    if (error) {
        destroy(errand);
        return status_errno(why, STATUS_FAILED, error, "cannot start a thread");
    }
    *out = errand;
    return STATUS_OK;
}

void errand_cancel(struct errand *errand) {
    eventfd_write(errand->cancel, 1);
}

void errand_close(struct errand **where) {
    struct errand *errand = *where;
    *where = NULL;
    if (!errand)
        return;
    errand_cancel(errand);
    pthread_join(errand->thread, NULL);
    destroy(errand);
}

int errand_descriptor(const struct errand *errand) {
    return errand->done;
}

bool errand_over(struct errand *errand, enum status *status,
                 struct failure *why) {
    eventfd_t count;
    if (eventfd_read(errand->done, &count))
        return false;
    *status = errand->status;
    *why = errand->why;
    return true;
}
