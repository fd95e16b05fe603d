/* SPDX-License-Identifier: Apache-2.0 */
/* A task passes through lists: put by the caller for the hand that its block
 * belongs to, started with all others when the caller says so, taken by the
 * hand as one list, and finished as one list. So a lock is taken once for many
 * tasks, in both directions, and those of one block keep their order. The
 * descriptor is written when the list of what is finished was empty before. */
#include "ps/crew.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct list {
    struct crew_task *first, **end; /* where the next one is hung */
};

struct hand {
    struct crew *crew;
    pthread_t thread;
    pthread_cond_t called;
    struct list put;     /* the caller's: not started */
    struct list started; /* the mutex is held */
    bool working;        /* the mutex is held */
};

struct crew {
    crew_work *work;
    void *context;
    uint32_t threads;
    struct hand *hands;
    int descriptor;
    struct list taken; /* the caller's: finished and taken from below */

    pthread_mutex_t mutex;
    pthread_cond_t idle;
    struct list finished;
    uint32_t busy; /* hands with work */
    bool closing;
};

static void clear(struct list *list) {
    list->first = NULL;
    list->end = &list->first;
}

static void append(struct list *list, struct crew_task *task) {
    task->next = NULL;
    *list->end = task;
    list->end = &task->next;
}

/* Moves all of FROM behind TO. */
static void move(struct list *to, struct list *from) {
    if (!from->first)
        return;
    *to->end = from->first;
    to->end = from->end;
    clear(from);
}

static void work_through(struct crew *crew, struct list *mine) {
    for (struct crew_task *task = mine->first; task; task = task->next)
        crew->work(crew->context, task);
}

/* The mutex is held. */
static void report(struct crew *crew, struct list *mine) {
    bool first = !crew->finished.first;
    move(&crew->finished, mine);
    if (first)
        eventfd_write(crew->descriptor, 1);
}

static void *serve(void *argument) {
    struct hand *hand = argument;
    struct crew *crew = hand->crew;
    struct list mine;
    clear(&mine);
    pthread_mutex_lock(&crew->mutex);
    for (;;) {
        while (!hand->started.first && !crew->closing)
            pthread_cond_wait(&hand->called, &crew->mutex);
        if (!hand->started.first)
            break;
        move(&mine, &hand->started);
        pthread_mutex_unlock(&crew->mutex);
        work_through(crew, &mine);
        pthread_mutex_lock(&crew->mutex);
        report(crew, &mine);
        hand->working = hand->started.first;
        if (!hand->working && --crew->busy == 0)
            pthread_cond_signal(&crew->idle);
    }
    pthread_mutex_unlock(&crew->mutex);
    return NULL;
}

static int start_thread(struct crew *crew) {
    struct hand *hand = &crew->hands[crew->threads];
    hand->crew = crew;
    clear(&hand->put);
    clear(&hand->started);
    pthread_cond_init(&hand->called, NULL);
    int error = pthread_create(&hand->thread, NULL, serve, hand);
    if (error)
        pthread_cond_destroy(&hand->called);
    else
        crew->threads++;
    return error;
}

uint32_t crew_usual(unsigned cores) {
    enum { FEW = 4, ENOUGH = 4 };
    if (cores < FEW)
        return 0;
    return cores / 2 < ENOUGH ? cores / 2 : ENOUGH;
}

enum status crew_open(struct crew **out, uint32_t threads, crew_work *work,
                      void *context, struct failure *why) {
    struct crew *crew = calloc(1, sizeof *crew);
    *out = NULL;
    if (!crew)
        return status_fail(why, STATUS_RETRY, "no memory for a crew");
    crew->work = work;
    crew->context = context;
    clear(&crew->taken);
    clear(&crew->finished);
    pthread_mutex_init(&crew->mutex, NULL);
    pthread_cond_init(&crew->idle, NULL);
    crew->descriptor = threads ? eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC) : -1;
    crew->hands = calloc(threads + 1, sizeof *crew->hands);
    int error = !crew->hands                      ? ENOMEM
                : threads && crew->descriptor < 0 ? errno
                                                  : 0;
    while (!error && crew->threads < threads)
        error = start_thread(crew);
    if (!error) {
        *out = crew;
        return STATUS_OK;
    }
    crew_close(&crew);
    return status_errno(why, STATUS_FAILED, error,
                        "cannot start %u threads (strategy.ps_threads)",
                        threads);
}

void crew_close(struct crew **where) {
    struct crew *crew = *where;
    *where = NULL;
    if (!crew)
        return;
    pthread_mutex_lock(&crew->mutex);
    crew->closing = true;
    for (uint32_t t = 0; t < crew->threads; t++)
        pthread_cond_signal(&crew->hands[t].called);
    pthread_mutex_unlock(&crew->mutex);
    for (uint32_t t = 0; t < crew->threads; t++) {
        pthread_join(crew->hands[t].thread, NULL);
        pthread_cond_destroy(&crew->hands[t].called);
    }
    pthread_mutex_destroy(&crew->mutex);
    pthread_cond_destroy(&crew->idle);
    if (crew->descriptor >= 0)
        close(crew->descriptor);
    free(crew->hands);
    free(crew);
}

void crew_put(struct crew *crew, struct crew_task *task) {
    if (crew->threads) {
        append(&crew->hands[task->block % crew->threads].put, task);
        return;
    }
    crew->work(crew->context, task);
    append(&crew->taken, task);
}

/* The mutex is held. */
static void start_all(struct crew *crew) {
    for (uint32_t t = 0; t < crew->threads; t++) {
        struct hand *hand = &crew->hands[t];
        if (!hand->put.first)
            continue;
        move(&hand->started, &hand->put);
        if (hand->working)
            continue;
        hand->working = true;
        crew->busy++;
        pthread_cond_signal(&hand->called);
    }
}

void crew_start(struct crew *crew) {
    if (!crew->threads)
        return;
    pthread_mutex_lock(&crew->mutex);
    start_all(crew);
    pthread_mutex_unlock(&crew->mutex);
}

void crew_settle(struct crew *crew) {
    if (!crew->threads)
        return;
    pthread_mutex_lock(&crew->mutex);
    start_all(crew);
    while (crew->busy)
        pthread_cond_wait(&crew->idle, &crew->mutex);
    pthread_mutex_unlock(&crew->mutex);
}

static void take_finished(struct crew *crew) {
    eventfd_t count;
    pthread_mutex_lock(&crew->mutex);
    if (crew->finished.first) {
        move(&crew->taken, &crew->finished);
        eventfd_read(crew->descriptor, &count);
    }
    pthread_mutex_unlock(&crew->mutex);
}

struct crew_task *crew_finished(struct crew *crew) {
    if (!crew->taken.first && crew->threads)
        take_finished(crew);
    struct crew_task *task = crew->taken.first;
    if (!task)
        return NULL;
    crew->taken.first = task->next;
    if (!task->next)
        clear(&crew->taken);
    return task;
}

int crew_descriptor(const struct crew *crew) {
    return crew->descriptor;
}
