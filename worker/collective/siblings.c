/* SPDX-License-Identifier: Apache-2.0 */
/* Members find each other as ranks of a cluster do, by what one tells all; but
 * here that is a list in memory. */
#include "worker/collective/siblings.h"

#include "proto/base/time.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct saying {
    struct saying *next;
    char key[64];
    void *value;
    size_t size;
};

struct siblings {
    const struct collective_ops *ops;
    uint32_t count;
    double timeout;
    struct collective_store store;

    pthread_mutex_t mutex; /* holds all below */
    pthread_cond_t said;
    struct saying *sayings;
    struct collective **groups; /* of each member; NULL: it has not joined */
    bool aborted;
};

static enum status say(void *context, const char *key, const void *value,
                       size_t size, struct failure *why) {
    struct siblings *siblings = context;
    struct saying *saying = calloc(1, sizeof *saying);
    void *copy = malloc(size + 1);
    if (!saying || !copy) {
        free(saying);
        free(copy);
        return status_fail(why, STATUS_RETRY, "no memory for a meeting");
    }
    memcpy(copy, value, size);
    strncpy(saying->key, key, sizeof saying->key - 1);
    saying->value = copy;
    saying->size = size;
    pthread_mutex_lock(&siblings->mutex);
    saying->next = siblings->sayings;
    siblings->sayings = saying;
    pthread_cond_broadcast(&siblings->said);
    pthread_mutex_unlock(&siblings->mutex);
    return STATUS_OK;
}

/* The mutex is held. */
static const struct saying *find(const struct siblings *siblings,
                                 const char *key) {
    const struct saying *saying = siblings->sayings;
    while (saying && strcmp(saying->key, key) != 0)
        saying = saying->next;
    return saying;
}

/* The mutex is held. NULL: it was not said in time. */
static const struct saying *await(struct siblings *siblings, const char *key,
                                  int64_t until) {
    struct timespec end = {.tv_sec = until / TIME_S, .tv_nsec = until % TIME_S};
    int error = 0;
    const struct saying *saying = NULL;
    while (!error && !siblings->aborted && !(saying = find(siblings, key)))
        error = pthread_cond_timedwait(&siblings->said, &siblings->mutex, &end);
    return saying;
}

static enum status hear(void *context, const char *key, int64_t until,
                        void **value, size_t *size, struct failure *why) {
    struct siblings *siblings = context;
    pthread_mutex_lock(&siblings->mutex);
    const struct saying *saying = await(siblings, key, until);
    *value = saying ? malloc(saying->size + 1) : NULL;
    *size = saying ? saying->size : 0;
    if (*value)
        memcpy(*value, saying->value, saying->size);
    bool aborted = siblings->aborted;
    pthread_mutex_unlock(&siblings->mutex);
    if (*value)
        return STATUS_OK;
    if (aborted)
        return status_fail(why, STATUS_RETRY,
                           "another device of this trainer has failed");
    return status_fail(why, STATUS_RETRY,
                       "another device of this trainer did not come within "
                       "%.3g s",
                       siblings->timeout);
}

static bool given_up(void *context) {
    struct siblings *siblings = context;
    pthread_mutex_lock(&siblings->mutex);
    bool aborted = siblings->aborted;
    pthread_mutex_unlock(&siblings->mutex);
    return aborted;
}

enum status siblings_open(struct siblings **out,
                          const struct collective_ops *ops, uint32_t count,
                          double timeout, struct failure *why) {
    pthread_condattr_t attributes;
    struct siblings *siblings = calloc(1, sizeof *siblings);
    *out = siblings;
    if (siblings)
        siblings->groups = calloc(count, sizeof *siblings->groups);
    if (!siblings || !siblings->groups) {
        free(siblings);
        *out = NULL;
        return status_fail(why, STATUS_RETRY, "no memory for %u devices",
                           count);
    }
    siblings->ops = ops;
    siblings->count = count;
    siblings->timeout = timeout;
    siblings->store = (struct collective_store){siblings, say, hear, given_up};
    pthread_mutex_init(&siblings->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&siblings->said, &attributes);
    pthread_condattr_destroy(&attributes);
    return STATUS_OK;
}

void siblings_close(struct siblings **where) {
    struct siblings *siblings = *where;
    *where = NULL;
    if (!siblings)
        return;
    while (siblings->sayings) {
        struct saying *saying = siblings->sayings;
        siblings->sayings = saying->next;
        free(saying->value);
        free(saying);
    }
    pthread_cond_destroy(&siblings->said);
    pthread_mutex_destroy(&siblings->mutex);
    free(siblings->groups);
    free(siblings);
}

enum status siblings_join(struct siblings *siblings, uint32_t member,
                          uint32_t device, struct failure *why) {
    struct collective *group = NULL;
    struct collective_settings settings = {.rank = member,
                                           .size = siblings->count,
                                           .store = &siblings->store,
                                           .algorithm = COLLECTIVE_RING,
                                           .timeout = siblings->timeout,
                                           .device = device};
    enum status status = siblings->ops->open(&group, &settings, why);
    if (status)
        return status;
    pthread_mutex_lock(&siblings->mutex);
    siblings->groups[member] = group;
    if (siblings->aborted)
        siblings->ops->abort(group);
    pthread_mutex_unlock(&siblings->mutex);
    return STATUS_OK;
}

enum status siblings_sum(struct siblings *siblings, uint32_t member,
                         float *data, size_t count, struct failure *why) {
    return siblings->ops->all_reduce(siblings->groups[member], data, count,
                                     why);
}

void siblings_abort(struct siblings *siblings) {
    pthread_mutex_lock(&siblings->mutex);
    siblings->aborted = true;
    for (uint32_t m = 0; m < siblings->count; m++)
        if (siblings->groups[m])
            siblings->ops->abort(siblings->groups[m]);
    pthread_cond_broadcast(&siblings->said);
    pthread_mutex_unlock(&siblings->mutex);
}

/* Taken out first: nobody aborts what is being closed. */
void siblings_leave(struct siblings *siblings, uint32_t member) {
    pthread_mutex_lock(&siblings->mutex);
    struct collective *group = siblings->groups[member];
    siblings->groups[member] = NULL;
    pthread_mutex_unlock(&siblings->mutex);
    siblings->ops->close(&group);
}
