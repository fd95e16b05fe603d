/* SPDX-License-Identifier: Apache-2.0 */
/* A task passes through four lists: queued by the caller for the thread of its
 * block, started with all others by thread_pool_dispatch, taken by the thread
 * as one batch, and finished as one batch. So the lock is taken once for many
 * tasks in both directions, and the tasks of one block keep their order. The
 * descriptor is written when the finished list changes from empty. */
#include "ps/thread_pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct list {
    struct thread_pool_task *first, **end; /* where the next task is appended */
};

struct thread {
    struct thread_pool *thread_pool;
    pthread_t handle;
    pthread_cond_t work_available;
    struct list queued;  /* the caller's: not yet started */
    struct list started; /* the mutex is held */
    bool working;        /* the mutex is held */
};

struct thread_pool {
    thread_pool_function *work;
    void *context;
    uint32_t num_threads;
    struct thread *threads;
    int descriptor;
    struct list collected; /* the caller's: taken from `finished` */

    pthread_mutex_t mutex;
    pthread_cond_t idle;
    struct list finished;
    uint32_t num_busy; /* threads with work */
    bool stopping;
};

static void clear(struct list *list) {
    list->first = NULL;
    list->end = &list->first;
}

static void thread_pool_append(struct list *list,
                               struct thread_pool_task *task) {
    task->next = NULL;
    *list->end = task;
    list->end = &task->next;
}

/* Appends all of FROM to TO and empties FROM. */
static void thread_pool_move(struct list *to, struct list *from) {
    if (!from->first)
        return;
    *to->end = from->first;
    to->end = from->end;
    clear(from);
}

static void run_batch(struct thread_pool *thread_pool, struct list *batch) {
    for (struct thread_pool_task *task = batch->first; task; task = task->next)
        thread_pool->work(thread_pool->context, task);
}

/* The mutex is held. */
static void thread_pool_publish(struct thread_pool *thread_pool,
                                struct list *batch) {
    bool first = !thread_pool->finished.first;
    thread_pool_move(&thread_pool->finished, batch);
    if (first)
        eventfd_write(thread_pool->descriptor, 1);
}

static void *thread_main(void *argument) {
    struct thread *thread = argument;
    struct thread_pool *thread_pool = thread->thread_pool;
    struct list batch;
    clear(&batch);
    pthread_mutex_lock(&thread_pool->mutex);
    for (;;) {
        while (!thread->started.first && !thread_pool->stopping)
            pthread_cond_wait(&thread->work_available, &thread_pool->mutex);
        if (!thread->started.first)
            break;
        thread_pool_move(&batch, &thread->started);
        pthread_mutex_unlock(&thread_pool->mutex);
        run_batch(thread_pool, &batch);
        pthread_mutex_lock(&thread_pool->mutex);
        thread_pool_publish(thread_pool, &batch);
        thread->working = thread->started.first;
        if (!thread->working && --thread_pool->num_busy == 0)
            pthread_cond_signal(&thread_pool->idle);
    }
    pthread_mutex_unlock(&thread_pool->mutex);
    return NULL;
}

static int start_thread(struct thread_pool *thread_pool) {
    struct thread *thread = &thread_pool->threads[thread_pool->num_threads];
    thread->thread_pool = thread_pool;
    clear(&thread->queued);
    clear(&thread->started);
    pthread_cond_init(&thread->work_available, NULL);
    int error = pthread_create(&thread->handle, NULL, thread_main, thread);
    if (error)
        pthread_cond_destroy(&thread->work_available);
    else
        thread_pool->num_threads++;
    return error;
}

uint32_t thread_pool_default_threads(unsigned cores) {
    enum { MIN_CORES = 4, MAX_DEFAULT = 4 };
    if (cores < MIN_CORES)
        return 0;
    return cores / 2 < MAX_DEFAULT ? cores / 2 : MAX_DEFAULT;
}

enum status thread_pool_open(struct thread_pool **out, uint32_t num_threads,
                             thread_pool_function *work, void *context,
                             struct failure *why) {
    struct thread_pool *thread_pool = calloc(1, sizeof *thread_pool);
    *out = NULL;
    if (!thread_pool)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a thread pool");
    thread_pool->work = work;
    thread_pool->context = context;
    clear(&thread_pool->collected);
    clear(&thread_pool->finished);
    pthread_mutex_init(&thread_pool->mutex, NULL);
    pthread_cond_init(&thread_pool->idle, NULL);
    thread_pool->descriptor =
        num_threads ? eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC) : -1;
    thread_pool->threads =
        calloc(num_threads + 1, sizeof *thread_pool->threads);
    int error = !thread_pool->threads                        ? ENOMEM
                : num_threads && thread_pool->descriptor < 0 ? errno
                                                             : 0;
    while (!error && thread_pool->num_threads < num_threads)
        error = start_thread(thread_pool);
    if (!error) {
        *out = thread_pool;
        return STATUS_OK;
    }
    thread_pool_close(&thread_pool);
    return status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                        "cannot start %u threads (strategy.ps_threads)",
                        num_threads);
}

void thread_pool_close(struct thread_pool **where) {
    struct thread_pool *thread_pool = *where;
    *where = NULL;
    if (!thread_pool)
        return;
    pthread_mutex_lock(&thread_pool->mutex);
    thread_pool->stopping = true;
    for (uint32_t t = 0; t < thread_pool->num_threads; t++)
        pthread_cond_signal(&thread_pool->threads[t].work_available);
    pthread_mutex_unlock(&thread_pool->mutex);
    for (uint32_t t = 0; t < thread_pool->num_threads; t++) {
        pthread_join(thread_pool->threads[t].handle, NULL);
        pthread_cond_destroy(&thread_pool->threads[t].work_available);
    }
    pthread_mutex_destroy(&thread_pool->mutex);
    pthread_cond_destroy(&thread_pool->idle);
    if (thread_pool->descriptor >= 0)
        close(thread_pool->descriptor);
    free(thread_pool->threads);
    free(thread_pool);
}

void thread_pool_submit(struct thread_pool *thread_pool,
                        struct thread_pool_task *task) {
    if (thread_pool->num_threads) {
        thread_pool_append(
            &thread_pool->threads[task->block % thread_pool->num_threads]
                 .queued,
            task);
        return;
    }
    thread_pool->work(thread_pool->context, task);
    thread_pool_append(&thread_pool->collected, task);
}

/* The mutex is held. */
static void start_all(struct thread_pool *thread_pool) {
    for (uint32_t t = 0; t < thread_pool->num_threads; t++) {
        struct thread *thread = &thread_pool->threads[t];
        if (!thread->queued.first)
            continue;
        thread_pool_move(&thread->started, &thread->queued);
        if (thread->working)
            continue;
        thread->working = true;
        thread_pool->num_busy++;
        pthread_cond_signal(&thread->work_available);
    }
}

void thread_pool_dispatch(struct thread_pool *thread_pool) {
    if (!thread_pool->num_threads)
        return;
    pthread_mutex_lock(&thread_pool->mutex);
    start_all(thread_pool);
    pthread_mutex_unlock(&thread_pool->mutex);
}

void thread_pool_wait(struct thread_pool *thread_pool) {
    if (!thread_pool->num_threads)
        return;
    pthread_mutex_lock(&thread_pool->mutex);
    start_all(thread_pool);
    while (thread_pool->num_busy)
        pthread_cond_wait(&thread_pool->idle, &thread_pool->mutex);
    pthread_mutex_unlock(&thread_pool->mutex);
}

static void collect_finished(struct thread_pool *thread_pool) {
    eventfd_t count;
    pthread_mutex_lock(&thread_pool->mutex);
    if (thread_pool->finished.first) {
        thread_pool_move(&thread_pool->collected, &thread_pool->finished);
        eventfd_read(thread_pool->descriptor, &count);
    }
    pthread_mutex_unlock(&thread_pool->mutex);
}

struct thread_pool_task *thread_pool_completed(
    struct thread_pool *thread_pool) {
    if (!thread_pool->collected.first && thread_pool->num_threads)
        collect_finished(thread_pool);
    struct thread_pool_task *task = thread_pool->collected.first;
    if (!task)
        return NULL;
    thread_pool->collected.first = task->next;
    if (!task->next)
        clear(&thread_pool->collected);
    return task;
}

int thread_pool_descriptor(const struct thread_pool *thread_pool) {
    return thread_pool->descriptor;
}
