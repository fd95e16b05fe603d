/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/background_task.h"

#include "core/base/limits.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
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
    void (*release)(void *context); /* for the later of the two that set: */
    atomic_bool left;               /* the thread, and its owner, without it */
};

static void background_task_destroy(struct background_task *task) {
    if (task->done >= 0)
        close(task->done);
    if (task->cancel >= 0)
        close(task->cancel);
    free(task);
}

static void leave(struct background_task *task) {
    if (!atomic_exchange(&task->left, true))
        return;
    task->release(task->context);
    background_task_destroy(task);
}

static void *background_task_run(void *argument) {
    struct background_task *task = argument;
    task->status = task->work(task->context, task->cancel, &task->why);
    eventfd_write(task->done, 1);
    leave(task);
    return NULL;
}

enum status background_task_open(struct background_task **out,
                                 background_task_function *work, void *context,
                                 struct failure *why) {
    struct background_task *task = calloc(1, sizeof *task);
    *out = NULL;
    if (!task)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a thread");
    task->work = work;
    task->context = context;
    limits_await_descriptors();
    task->done = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    task->cancel = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int error =
        task->done < 0 || task->cancel < 0
            ? errno
            : pthread_create(&task->thread, NULL, background_task_run, task);
    if (error) {
        background_task_destroy(task);
        return status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                            "cannot start a thread");
    }
    *out = task;
    return STATUS_OK;
}

void background_task_cancel(struct background_task *task) {
    eventfd_write(task->cancel, 1);
}

void background_task_close(struct background_task **where) {
    struct background_task *task = *where;
    *where = NULL;
    if (!task)
        return;
    background_task_cancel(task);
    pthread_join(task->thread, NULL);
    background_task_destroy(task);
}

void background_task_abandon(struct background_task **where,
                             void (*release)(void *context)) {
    struct background_task *task = *where;
    *where = NULL;
    background_task_cancel(task);
    pthread_detach(task->thread);
    task->release = release;
    leave(task);
}

int background_task_descriptor(const struct background_task *task) {
    return task->done;
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
