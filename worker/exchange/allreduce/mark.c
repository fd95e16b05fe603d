/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/exchange/allreduce/mark.h"

#include "proto/base/time.h"

void mark_open(struct mark *mark) {
    *mark = (struct mark){0};
    pthread_mutex_init(&mark->mutex, NULL);
    pthread_cond_init(&mark->raised, NULL);
}

void mark_close(struct mark *mark) {
    pthread_mutex_destroy(&mark->mutex);
    pthread_cond_destroy(&mark->raised);
}

/* Who is called may take the caller's core at once: the mutex is free then. */
void mark_raise(struct mark *mark, uint64_t value) {
    pthread_mutex_lock(&mark->mutex);
    mark->value = value;
    pthread_mutex_unlock(&mark->mutex);
    pthread_cond_broadcast(&mark->raised);
}

/* The mutex is held. */
static bool is_awaited(const struct mark *mark, uint64_t value) {
    return mark->value < value && !mark->ended && !mark->cancelled;
}

bool mark_await(struct mark *mark, uint64_t value, int64_t *waited) {
    pthread_mutex_lock(&mark->mutex);
    if (is_awaited(mark, value)) {
        int64_t start = time_now();
        while (is_awaited(mark, value))
            pthread_cond_wait(&mark->raised, &mark->mutex);
        if (waited)
            *waited += time_now() - start;
    }
    bool here = mark->value >= value && !mark->cancelled;
    pthread_mutex_unlock(&mark->mutex);
    return here;
}

void mark_end(struct mark *mark) {
    pthread_mutex_lock(&mark->mutex);
    mark->ended = true;
    pthread_cond_broadcast(&mark->raised);
    pthread_mutex_unlock(&mark->mutex);
}

void mark_cancel(struct mark *mark) {
    pthread_mutex_lock(&mark->mutex);
    mark->cancelled = true;
    pthread_cond_broadcast(&mark->raised);
    pthread_mutex_unlock(&mark->mutex);
}

uint64_t mark_value(struct mark *mark) {
    pthread_mutex_lock(&mark->mutex);
    uint64_t value = mark->value;
    pthread_mutex_unlock(&mark->mutex);
    return value;
}
