/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/base/background_task.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct background_task {
    pthread_t thread;
    background_task_function *work;
    void *context;
    int done, cancel; /* eventfds */
    enum status status;
    struct failure why;
};

static void *background_task_run(void *argument) {
    struct background_task *background_task = argument;
    background_task->status =
        background_task->work(background_task->context, background_task->cancel,
                              &background_task->why);
    eventfd_write(background_task->done, 1);
    return NULL;
}

static void background_task_destroy(struct background_task *background_task) {
    if (background_task->done >= 0)
        close(background_task->done);
    if (background_task->cancel >= 0)
        close(background_task->cancel);
    free(background_task);
}

enum status background_task_open(struct background_task **out,
                                 background_task_function *work, void *context,
                                 struct failure *why) {
    struct background_task *background_task =
        calloc(1, sizeof *background_task);
    *out = NULL;
    if (!background_task)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a thread");
    background_task->work = work;
    background_task->context = context;
    background_task->done = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    background_task->cancel = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int error = background_task->done < 0 || background_task->cancel < 0
                    ? errno
                    : pthread_create(&background_task->thread, NULL,
                                     background_task_run, background_task);
    if (error) {
        background_task_destroy(background_task);
        return status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                            "cannot start a thread");
    }
    *out = background_task;
    return STATUS_OK;
}

void background_task_cancel(struct background_task *background_task) {
    eventfd_write(background_task->cancel, 1);
}

void background_task_close(struct background_task **where) {
    struct background_task *background_task = *where;
    *where = NULL;
    if (!background_task)
        return;
    background_task_cancel(background_task);
    pthread_join(background_task->thread, NULL);
    background_task_destroy(background_task);
}

int background_task_descriptor(const struct background_task *background_task) {
    return background_task->done;
}

bool background_task_poll(struct background_task *background_task,
                          enum status *status, struct failure *why) {
    eventfd_t count;
    if (eventfd_read(background_task->done, &count))
        return false;
    *status = background_task->status;
    *why = background_task->why;
    return true;
}
