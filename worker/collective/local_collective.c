/* SPDX-License-Identifier: Apache-2.0 */
/* Members use the same rendezvous interface as the ranks of a cluster, here
 * with an in-memory store. */
#include "worker/collective/local_collective.h"

#include "core/base/plugin.h"
#include "core/base/time.h"

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
    struct local_collective *collective = context;
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
    pthread_mutex_lock(&collective->mutex);
    entry->next = collective->entries;
    collective->entries = entry;
    pthread_cond_broadcast(&collective->changed);
    pthread_mutex_unlock(&collective->mutex);
    return STATUS_OK;
}

/* The mutex is held. */
static const struct entry *local_collective_find(
    const struct local_collective *collective, const char *key) {
    const struct entry *entry = collective->entries;
    while (entry && strcmp(entry->key, key) != 0)
        entry = entry->next;
    return entry;
}

/* The mutex is held. NULL: it was not set in time. */
static const struct entry *wait_entry(struct local_collective *collective,
                                      const char *key, int64_t until) {
    struct timespec end = {.tv_sec = until / TIME_S, .tv_nsec = until % TIME_S};
    int error = 0;
    const struct entry *entry = NULL;
    while (!error && !collective->aborted &&
           !(entry = local_collective_find(collective, key)))
        error = pthread_cond_timedwait(&collective->changed, &collective->mutex,
                                       &end);
    return entry;
}

static enum status local_collective_get(void *context, const char *key,
                                        int64_t until, void **value,
                                        size_t *size, struct failure *why) {
    struct local_collective *collective = context;
    pthread_mutex_lock(&collective->mutex);
    const struct entry *entry = wait_entry(collective, key, until);
    *value = entry ? malloc(entry->size + 1) : NULL;
    *size = entry ? entry->size : 0;
    if (*value)
        memcpy(*value, entry->value, entry->size);
    bool aborted = collective->aborted;
    pthread_mutex_unlock(&collective->mutex);
    if (*value)
        return STATUS_OK;
    if (aborted)
        return status_fail(why, FAILURE_CANCELLED,
                           "another device of this trainer has failed");
    return status_fail(why, FAILURE_DEVICE_TIMEOUT,
                       "another device of this trainer did not answer within "
                       "%.3g s",
                       collective->timeout);
}

static bool local_collective_is_cancelled(void *context) {
    struct local_collective *collective = context;
    pthread_mutex_lock(&collective->mutex);
    bool aborted = collective->aborted;
    pthread_mutex_unlock(&collective->mutex);
    return aborted;
}

enum status local_collective_open(struct local_collective **out,
                                  const struct collective_ops *ops,
                                  uint32_t count, double timeout,
                                  struct failure *why) {
    pthread_condattr_t attributes;
    struct local_collective *collective = calloc(1, sizeof *collective);
    *out = collective;
    if (collective)
        collective->groups = calloc(count, sizeof *collective->groups);
    if (!collective || !collective->groups) {
        free(collective);
        *out = NULL;
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for %u devices",
                           count);
    }
    collective->ops = ops;
    collective->count = count;
    collective->timeout = timeout;
    collective->store = (struct collective_store){
        collective, local_collective_set, local_collective_get,
        local_collective_is_cancelled};
    pthread_mutex_init(&collective->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&collective->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return STATUS_OK;
}

void local_collective_close(struct local_collective **where) {
    struct local_collective *collective = *where;
    *where = NULL;
    if (!collective)
        return;
    while (collective->entries) {
        struct entry *entry = collective->entries;
        collective->entries = entry->next;
        free(entry->value);
        free(entry);
    }
    pthread_cond_destroy(&collective->changed);
    pthread_mutex_destroy(&collective->mutex);
    free(collective->groups);
    free(collective);
}

static void close_member(const struct local_collective *collective,
                         struct collective *group) {
    if (!collective->ops->close(&group))
        plugin_leave_thread(collective->ops->name);
}

enum status local_collective_join(struct local_collective *collective,
                                  uint32_t member, uint32_t device,
                                  struct failure *why) {
    struct collective *group = NULL;
    struct collective_settings settings = {.rank = member,
                                           .size = collective->count,
                                           .store = &collective->store,
                                           .algorithm = COLLECTIVE_RING,
                                           .timeout = collective->timeout,
                                           .device = device};
    enum status status = collective->ops->open(&group, &settings, why);
    if (status) {
        close_member(collective, group);
        return status;
    }
    pthread_mutex_lock(&collective->mutex);
    collective->groups[member] = group;
    if (collective->aborted)
        collective->ops->abort(group);
    pthread_mutex_unlock(&collective->mutex);
    return STATUS_OK;
}

enum status local_collective_all_reduce(struct local_collective *collective,
                                        uint32_t member, float *data,
                                        size_t count, struct failure *why) {
    return collective->ops->all_reduce(collective->groups[member], data, count,
                                       why);
}

void local_collective_abort(struct local_collective *collective) {
    pthread_mutex_lock(&collective->mutex);
    collective->aborted = true;
    for (uint32_t m = 0; m < collective->count; m++)
        if (collective->groups[m])
            collective->ops->abort(collective->groups[m]);
    pthread_cond_broadcast(&collective->changed);
    pthread_mutex_unlock(&collective->mutex);
}

/* Removed first, so that no thread aborts a group that is being closed. */
void local_collective_leave(struct local_collective *collective,
                            uint32_t member) {
    pthread_mutex_lock(&collective->mutex);
    struct collective *group = collective->groups[member];
    collective->groups[member] = NULL;
    pthread_mutex_unlock(&collective->mutex);
    close_member(collective, group);
}
