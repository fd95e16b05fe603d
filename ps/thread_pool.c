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
    thread_pool_prefetch *prefetch;
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

static void run_batch(struct thread_pool *pool, const struct list *batch) {
    for (struct thread_pool_task *task = batch->first; task;
         task = task->next) {
        const struct thread_pool_task *next = task->next;
        if (next && next->next)
            pool->prefetch(pool->context, next->next, 2);
        if (next)
            pool->prefetch(pool->context, next, 1);
        pool->work(pool->context, task);
    }
}

/* The mutex is held. */
static void thread_pool_publish(struct thread_pool *pool, struct list *batch) {
    bool first = !pool->finished.first;
    thread_pool_move(&pool->finished, batch);
    if (first)
        eventfd_write(pool->descriptor, 1);
}

static void *thread_main(void *argument) {
    struct thread *thread = argument;
    struct thread_pool *pool = thread->thread_pool;
    struct list batch;
    clear(&batch);
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (!thread->started.first && !pool->stopping)
            pthread_cond_wait(&thread->work_available, &pool->mutex);
        if (!thread->started.first)
            break;
        thread_pool_move(&batch, &thread->started);
        pthread_mutex_unlock(&pool->mutex);
        run_batch(pool, &batch);
        pthread_mutex_lock(&pool->mutex);
        thread_pool_publish(pool, &batch);
        thread->working = thread->started.first;
        if (!thread->working && --pool->num_busy == 0)
            pthread_cond_signal(&pool->idle);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

static int start_thread(struct thread_pool *pool) {
    struct thread *thread = &pool->threads[pool->num_threads];
    thread->thread_pool = pool;
    clear(&thread->queued);
    clear(&thread->started);
    pthread_cond_init(&thread->work_available, NULL);
    int error = pthread_create(&thread->handle, NULL, thread_main, thread);
    if (error)
        pthread_cond_destroy(&thread->work_available);
    else
        pool->num_threads++;
    return error;
}

uint32_t thread_pool_default_threads(unsigned cores) {
    enum { MIN_CORES = 4, MAX_DEFAULT = 4 };
    if (cores < MIN_CORES)
        return 0;
    return cores / 2 < MAX_DEFAULT ? cores / 2 : MAX_DEFAULT;
}

enum status thread_pool_open(struct thread_pool **out, uint32_t num_threads,
                             thread_pool_function *work,
                             thread_pool_prefetch *prefetch, void *context,
                             struct failure *why) {
    struct thread_pool *pool = calloc(1, sizeof *pool);
    *out = NULL;
    if (!pool)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a thread pool");
    pool->work = work;
    pool->prefetch = prefetch;
    pool->context = context;
    clear(&pool->collected);
    clear(&pool->finished);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->idle, NULL);
    pool->descriptor =
        num_threads ? eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC) : -1;
    pool->threads = calloc(num_threads + 1, sizeof *pool->threads);
    if (pool->threads && !num_threads)
        clear(&pool->threads->queued);
    int error = !pool->threads                        ? ENOMEM
                : num_threads && pool->descriptor < 0 ? errno
                                                      : 0;
    while (!error && pool->num_threads < num_threads)
        error = start_thread(pool);
    if (!error) {
        *out = pool;
        return STATUS_OK;
    }
    thread_pool_close(&pool);
    return status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                        "cannot start %u threads (strategy.ps_threads)",
                        num_threads);
}

void thread_pool_close(struct thread_pool **where) {
    struct thread_pool *pool = *where;
    *where = NULL;
    if (!pool)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->stopping = true;
    for (uint32_t t = 0; t < pool->num_threads; t++)
        pthread_cond_signal(&pool->threads[t].work_available);
    pthread_mutex_unlock(&pool->mutex);
    for (uint32_t t = 0; t < pool->num_threads; t++) {
        pthread_join(pool->threads[t].handle, NULL);
        pthread_cond_destroy(&pool->threads[t].work_available);
    }
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->idle);
    if (pool->descriptor >= 0)
        close(pool->descriptor);
    free(pool->threads);
    free(pool);
}

void thread_pool_submit(struct thread_pool *pool,
                        struct thread_pool_task *task) {
    uint32_t thread = pool->num_threads ? task->block % pool->num_threads : 0;
    thread_pool_append(&pool->threads[thread].queued, task);
}

/* Without threads. */
static void run_queued(struct thread_pool *pool) {
    struct list *queued = &pool->threads->queued;
    run_batch(pool, queued);
    thread_pool_move(&pool->collected, queued);
}

/* The mutex is held. */
static void start_all(struct thread_pool *pool) {
    for (uint32_t t = 0; t < pool->num_threads; t++) {
        struct thread *thread = &pool->threads[t];
        if (!thread->queued.first)
            continue;
        thread_pool_move(&thread->started, &thread->queued);
        if (thread->working)
            continue;
        thread->working = true;
        pool->num_busy++;
        pthread_cond_signal(&thread->work_available);
    }
}

void thread_pool_dispatch(struct thread_pool *pool) {
    if (!pool->num_threads) {
        run_queued(pool);
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    start_all(pool);
    pthread_mutex_unlock(&pool->mutex);
}

void thread_pool_wait(struct thread_pool *pool) {
    if (!pool->num_threads) {
        run_queued(pool);
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    start_all(pool);
    while (pool->num_busy)
        pthread_cond_wait(&pool->idle, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

static void collect_finished(struct thread_pool *pool) {
    eventfd_t count;
    pthread_mutex_lock(&pool->mutex);
    if (pool->finished.first) {
        thread_pool_move(&pool->collected, &pool->finished);
        eventfd_read(pool->descriptor, &count);
    }
    pthread_mutex_unlock(&pool->mutex);
}

struct thread_pool_task *thread_pool_completed(struct thread_pool *pool) {
    if (!pool->collected.first && pool->num_threads)
        collect_finished(pool);
    struct thread_pool_task *task = pool->collected.first;
    if (!task)
        return NULL;
    pool->collected.first = task->next;
    if (!task->next)
        clear(&pool->collected);
    return task;
}

int thread_pool_descriptor(const struct thread_pool *pool) {
    return pool->descriptor;
}
