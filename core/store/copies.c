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

static void forget_manifests(struct copies *copies) {
    free(copies->manifest);
    free(copies->base_manifest);
    copies->manifest = copies->base_manifest = NULL;
}

static void close_all(struct copies *copies) {
    while (copies->count)
        close_copy(copies, copies->count - 1);
    copies->complete = copies->base = copies->ordered = 0;
    forget_manifests(copies);
}

void copies_begin(struct copies *copies, uint64_t start, uint64_t base) {
    pthread_mutex_lock(&copies->mutex);
    for (uint32_t i = copies->count; i-- > 0;)
        if (copies->list[i].step != start &&
            (!base || copies->list[i].step != base))
            close_copy(copies, i);
    copies->complete = start;
    copies->base = base;
    copies->ordered = 0;
    if (copies->described != start)
        forget_manifests(copies);
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
           copy->step != copies->base && copy->step != copies->ordered;
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

void copies_order(struct copies *copies, uint64_t step, uint64_t complete,
                  uint64_t base) {
    pthread_mutex_lock(&copies->mutex);
    for (uint32_t i = copies->count; i-- > 0 && complete > copies->complete;)
        if (copies->list[i].step < complete && copies->list[i].step != base)
            close_copy(copies, i);
    if (complete > copies->complete) {
        copies->complete = complete;
        copies->base = base;
    }
    if (step)
        copies->ordered = step;
    pthread_mutex_unlock(&copies->mutex);
}

static char *duplicate(const char *text) {
    return text ? strdup(text) : NULL;
}

/* Both manifests, or without memory for one of them none. */
static void copy_manifests(char *const from[2], char *to[2]) {
    to[0] = duplicate(from[0]);
    to[1] = to[0] ? duplicate(from[1]) : NULL;
    if (from[1] && !to[1]) {
        free(to[0]);
        to[0] = NULL;
    }
}

void copies_describe(struct copies *copies, uint64_t step, const char *manifest,
                     const char *base) {
    char *const given[2] = {(char *)manifest, (char *)base};
    char *copied[2];
    copy_manifests(given, copied);
    pthread_mutex_lock(&copies->mutex);
    forget_manifests(copies);
    copies->manifest = copied[0];
    copies->base_manifest = copied[1];
    copies->described = step;
    pthread_mutex_unlock(&copies->mutex);
}

char *copies_manifest(struct copies *copies, char **base) {
    char *copied[2];
    pthread_mutex_lock(&copies->mutex);
    copy_manifests((char *const[]){copies->manifest, copies->base_manifest},
                   copied);
    pthread_mutex_unlock(&copies->mutex);
    *base = copied[1];
    return copied[0];
}

void copies_close(struct copies *copies) {
    pthread_mutex_lock(&copies->mutex);
    close_all(copies);
    pthread_mutex_unlock(&copies->mutex);
}
