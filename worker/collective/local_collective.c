/* SPDX-License-Identifier: Apache-2.0 */
/* Members use the same rendezvous interface as the ranks of a cluster, here
 * with an in-memory store. */
#include "worker/collective/local_collective.h"

#include "proto/base/time.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    struct entry *next;
    char key[64];
    void *value;
    size_t size;
};

struct local_collective {
    const struct collective_ops *ops;
    uint32_t count;
    double timeout;
    struct collective_store store;

    pthread_mutex_t mutex; /* guards all fields below */
    pthread_cond_t changed;
    struct entry *entries;
    struct collective **groups; /* per member; NULL: not joined */
    bool aborted;
};

static enum status local_collective_set(void *context, const char *key,
                                        const void *value, size_t size,
                                        struct failure *why) {
    struct local_collective *local_collective = context;
    struct entry *entry = calloc(1, sizeof *entry);
    void *copy = malloc(size + 1);
    if (!entry || !copy) {
        free(entry);
        free(copy);
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a rendezvous");
    }
    memcpy(copy, value, size);
    strncpy(entry->key, key, sizeof entry->key - 1);
    entry->value = copy;
    entry->size = size;
    pthread_mutex_lock(&local_collective->mutex);
    entry->next = local_collective->entries;
    local_collective->entries = entry;
    pthread_cond_broadcast(&local_collective->changed);
    pthread_mutex_unlock(&local_collective->mutex);
    return STATUS_OK;
}

/* The mutex is held. */
static const struct entry *local_collective_find(
    const struct local_collective *local_collective, const char *key) {
    const struct entry *entry = local_collective->entries;
    while (entry && strcmp(entry->key, key) != 0)
        entry = entry->next;
    return entry;
}

/* The mutex is held. NULL: it was not set in time. */
static const struct entry *wait_entry(struct local_collective *local_collective,
                                      const char *key, int64_t until) {
    struct timespec end = {.tv_sec = until / TIME_S, .tv_nsec = until % TIME_S};
    int error = 0;
    const struct entry *entry = NULL;
    while (!error && !local_collective->aborted &&
           !(entry = local_collective_find(local_collective, key)))
        error = pthread_cond_timedwait(&local_collective->changed,
                                       &local_collective->mutex, &end);
    return entry;
}

static enum status local_collective_get(void *context, const char *key,
                                        int64_t until, void **value,
                                        size_t *size, struct failure *why) {
    struct local_collective *local_collective = context;
    pthread_mutex_lock(&local_collective->mutex);
    const struct entry *entry = wait_entry(local_collective, key, until);
    *value = entry ? malloc(entry->size + 1) : NULL;
    *size = entry ? entry->size : 0;
    if (*value)
        memcpy(*value, entry->value, entry->size);
    bool aborted = local_collective->aborted;
    pthread_mutex_unlock(&local_collective->mutex);
    if (*value)
        return STATUS_OK;
    if (aborted)
        return status_fail(why, FAILURE_CANCELLED,
                           "another device of this trainer has failed");
    return status_fail(why, FAILURE_DEVICE_TIMEOUT,
                       "another device of this trainer did not answer within "
                       "%.3g s",
                       local_collective->timeout);
}

static bool local_collective_is_cancelled(void *context) {
    struct local_collective *local_collective = context;
    pthread_mutex_lock(&local_collective->mutex);
    bool aborted = local_collective->aborted;
    pthread_mutex_unlock(&local_collective->mutex);
    return aborted;
}

enum status local_collective_open(struct local_collective **out,
                                  const struct collective_ops *ops,
                                  uint32_t count, double timeout,
                                  struct failure *why) {
    pthread_condattr_t attributes;
    struct local_collective *local_collective =
        calloc(1, sizeof *local_collective);
    *out = local_collective;
    if (local_collective)
        local_collective->groups =
            calloc(count, sizeof *local_collective->groups);
    if (!local_collective || !local_collective->groups) {
        free(local_collective);
        *out = NULL;
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for %u devices",
                           count);
    }
    local_collective->ops = ops;
    local_collective->count = count;
    local_collective->timeout = timeout;
    local_collective->store = (struct collective_store){
        local_collective, local_collective_set, local_collective_get,
        local_collective_is_cancelled};
    pthread_mutex_init(&local_collective->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&local_collective->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return STATUS_OK;
}

void local_collective_close(struct local_collective **where) {
    struct local_collective *local_collective = *where;
    *where = NULL;
    if (!local_collective)
        return;
    while (local_collective->entries) {
        struct entry *entry = local_collective->entries;
        local_collective->entries = entry->next;
        free(entry->value);
        free(entry);
    }
    pthread_cond_destroy(&local_collective->changed);
    pthread_mutex_destroy(&local_collective->mutex);
    free(local_collective->groups);
    free(local_collective);
}

enum status local_collective_join(struct local_collective *local_collective,
                                  uint32_t member, uint32_t device,
                                  struct failure *why) {
    struct collective *group = NULL;
    struct collective_settings settings = {.rank = member,
                                           .size = local_collective->count,
                                           .store = &local_collective->store,
                                           .algorithm = COLLECTIVE_RING,
                                           .timeout = local_collective->timeout,
                                           .device = device};
    enum status status = local_collective->ops->open(&group, &settings, why);
    if (status)
        return status;
    pthread_mutex_lock(&local_collective->mutex);
    local_collective->groups[member] = group;
    if (local_collective->aborted)
        local_collective->ops->abort(group);
    pthread_mutex_unlock(&local_collective->mutex);
    return STATUS_OK;
}

enum status local_collective_all_reduce(
    struct local_collective *local_collective, uint32_t member, float *data,
    size_t count, struct failure *why) {
    return local_collective->ops->all_reduce(local_collective->groups[member],
                                             data, count, why);
}

void local_collective_abort(struct local_collective *local_collective) {
    pthread_mutex_lock(&local_collective->mutex);
    local_collective->aborted = true;
    for (uint32_t m = 0; m < local_collective->count; m++)
        if (local_collective->groups[m])
            local_collective->ops->abort(local_collective->groups[m]);
    pthread_cond_broadcast(&local_collective->changed);
    pthread_mutex_unlock(&local_collective->mutex);
}

/* Removed first, so that no thread aborts a group that is being closed. */
void local_collective_leave(struct local_collective *local_collective,
                            uint32_t member) {
    pthread_mutex_lock(&local_collective->mutex);
    struct collective *group = local_collective->groups[member];
    local_collective->groups[member] = NULL;
    pthread_mutex_unlock(&local_collective->mutex);
    local_collective->ops->close(&group);
}
