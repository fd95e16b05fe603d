/* SPDX-License-Identifier: Apache-2.0 */
/* Members use the same rendezvous interface as the ranks of a cluster, here
 * with an in-memory store. */
#include "worker/collective/local_collective.h"

#include "core/base/plugin.h"
#include "core/base/waiter.h"

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

    struct waiter waiter; /* guards all fields below; cancelled: aborted */
    struct entry *entries;
    struct collective **groups; /* per member; NULL: not joined */
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
    waiter_enter(&collective->waiter);
    entry->next = collective->entries;
    collective->entries = entry;
    waiter_leave_changed(&collective->waiter);
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
    const struct entry *entry;
    while (!(entry = local_collective_find(collective, key)) &&
           waiter_wait(&collective->waiter, until, NULL))
        ;
    return collective->waiter.cancelled ? NULL : entry;
}

static enum status local_collective_get(void *context, const char *key,
                                        int64_t until, void **value,
                                        size_t *size, struct failure *why) {
    struct local_collective *collective = context;
    waiter_enter(&collective->waiter);
    const struct entry *entry = wait_entry(collective, key, until);
    *value = entry ? malloc(entry->size + 1) : NULL;
    *size = entry ? entry->size : 0;
    if (*value)
        memcpy(*value, entry->value, entry->size);
    bool aborted = collective->waiter.cancelled;
    waiter_leave(&collective->waiter);
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
    return waiter_is_cancelled(&collective->waiter);
}

enum status local_collective_open(struct local_collective **out,
                                  const struct collective_ops *ops,
                                  uint32_t count, double timeout,
                                  struct failure *why) {
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
    waiter_open(&collective->waiter);
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
    waiter_close(&collective->waiter);
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
    waiter_enter(&collective->waiter);
    collective->groups[member] = group;
    if (collective->waiter.cancelled)
        collective->ops->abort(group);
    waiter_leave(&collective->waiter);
    return STATUS_OK;
}

enum status local_collective_all_reduce(struct local_collective *collective,
                                        uint32_t member, float *data,
                                        size_t count, struct failure *why) {
    return collective->ops->all_reduce(collective->groups[member], data, count,
                                       why);
}

void local_collective_abort(struct local_collective *collective) {
    waiter_enter(&collective->waiter);
    collective->waiter.cancelled = true;
    for (uint32_t m = 0; m < collective->count; m++)
        if (collective->groups[m])
            collective->ops->abort(collective->groups[m]);
    waiter_leave_changed(&collective->waiter);
}

/* Removed first, so that no thread aborts a group that is being closed. */
void local_collective_leave(struct local_collective *collective,
                            uint32_t member) {
    waiter_enter(&collective->waiter);
    struct collective *group = collective->groups[member];
    collective->groups[member] = NULL;
    waiter_leave(&collective->waiter);
    close_member(collective, group);
}
