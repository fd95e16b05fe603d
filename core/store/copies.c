/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/copies.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void close_copy(struct copies *copies, uint32_t i) {
    close(copies->list[i].fd);
    copies->count--;
    for (; i < copies->count; i++)
        copies->list[i] = copies->list[i + 1];
}

static void close_all(struct copies *copies) {
    while (copies->count)
        close_copy(copies, copies->count - 1);
    copies->complete = copies->ordered = 0;
    free(copies->manifest);
    copies->manifest = NULL;
}

void copies_begin(struct copies *copies, uint64_t start) {
    pthread_mutex_lock(&copies->mutex);
    for (uint32_t i = copies->count; i-- > 0;)
        if (copies->list[i].step != start)
            close_copy(copies, i);
    copies->complete = start;
    copies->ordered = 0;
    if (copies->described != start) {
        free(copies->manifest);
        copies->manifest = NULL;
    }
    pthread_mutex_unlock(&copies->mutex);
}

/* COPIES_MOST: there is none. The mutex is held. */
static uint32_t place_of_copy(const struct copies *copies, uint64_t step,
                              uint32_t part) {
    for (uint32_t i = 0; i < copies->count; i++)
        if (copies->list[i].step == step && copies->list[i].part == part)
            return i;
    return COPIES_MOST;
}

bool copies_find(struct copies *copies, uint64_t step, uint32_t part,
                 struct copy *out) {
    pthread_mutex_lock(&copies->mutex);
    uint32_t i = place_of_copy(copies, step, part);
    if (i < COPIES_MOST && out)
        *out = copies->list[i];
    pthread_mutex_unlock(&copies->mutex);
    return i < COPIES_MOST;
}

void copies_drop(struct copies *copies, uint64_t step, uint32_t part) {
    pthread_mutex_lock(&copies->mutex);
    uint32_t i = place_of_copy(copies, step, part);
    if (i < COPIES_MOST)
        close_copy(copies, i);
    pthread_mutex_unlock(&copies->mutex);
}

bool copies_open(struct copies *copies, uint64_t step, uint32_t part,
                 struct copy *out) {
    pthread_mutex_lock(&copies->mutex);
    uint32_t i = place_of_copy(copies, step, part);
    if (i < COPIES_MOST) {
        *out = copies->list[i];
        out->fd = fcntl(out->fd, F_DUPFD_CLOEXEC, 0);
    }
    pthread_mutex_unlock(&copies->mutex);
    return i < COPIES_MOST && out->fd >= 0;
}

static bool waits(const struct copies *copies, uint32_t i, uint32_t part) {
    const struct copy *copy = &copies->list[i];
    return copy->part == part && copy->step != copies->complete &&
           copy->step != copies->ordered;
}

/* The oldest of PART that waits, where too many do. */
static void drop_waiting(struct copies *copies, uint32_t part) {
    uint32_t count = 0, oldest = 0;
    for (uint32_t i = copies->count; i-- > 0;)
        if (waits(copies, i, part)) {
            count++;
            oldest = i;
        }
    if (count >= COPIES_WAITING)
        close_copy(copies, oldest);
}

void copies_put(struct copies *copies, struct copy copy) {
    pthread_mutex_lock(&copies->mutex);
    uint32_t old = place_of_copy(copies, copy.step, copy.part);
    if (old < COPIES_MOST)
        close_copy(copies, old);
    drop_waiting(copies, copy.part);
    if (copies->count == COPIES_MOST)
        close_copy(copies, 0);
    copies->list[copies->count++] = copy;
    pthread_mutex_unlock(&copies->mutex);
}

uint32_t copies_list(struct copies *copies, struct copy list[COPIES_MOST]) {
    pthread_mutex_lock(&copies->mutex);
    uint32_t count = copies->count;
    for (uint32_t i = 0; i < count; i++) {
        list[i] = copies->list[i];
        list[i].fd = -1;
    }
    pthread_mutex_unlock(&copies->mutex);
    return count;
}

void copies_order(struct copies *copies, uint64_t step, uint64_t complete) {
    pthread_mutex_lock(&copies->mutex);
    for (uint32_t i = copies->count; i-- > 0 && complete > copies->complete;)
        if (copies->list[i].step < complete)
            close_copy(copies, i);
    if (complete > copies->complete)
        copies->complete = complete;
    if (step)
        copies->ordered = step;
    pthread_mutex_unlock(&copies->mutex);
}

void copies_describe(struct copies *copies, uint64_t step,
                     const char *manifest) {
    char *copied = strdup(manifest);
    pthread_mutex_lock(&copies->mutex);
    free(copies->manifest);
    copies->manifest = copied;
    copies->described = step;
    pthread_mutex_unlock(&copies->mutex);
}

char *copies_manifest(struct copies *copies) {
    pthread_mutex_lock(&copies->mutex);
    char *copied = copies->manifest ? strdup(copies->manifest) : NULL;
    pthread_mutex_unlock(&copies->mutex);
    return copied;
}

void copies_close(struct copies *copies) {
    pthread_mutex_lock(&copies->mutex);
    close_all(copies);
    pthread_mutex_unlock(&copies->mutex);
}
