/* SPDX-License-Identifier: Apache-2.0 */
/* A collective for tests that adds up what lies in the memory of several fake
 * devices of one process, which nobody may touch else: built as
 * build/fake/capstan-nccl.so. It works where CAPSTAN_FAKE_DEVICE has "nccl",
 * refuses to meet where that has "nccl=unmet", and fails the call of rank 1
 * that "nccl=N" counts to. Ranks that join a stream are processes of their own:
 * they meet by stream_collective.h, over the plugin for gloo beside this one.
 */
#include "tests/gpu/fake_nccl.h"

#include "core/base/plugin.h"
#include "core/base/time.h"
#include "tests/gpu/stream_collective.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAXIMUM = 16, PAGE = 4096 };

static atomic_uint left_whole;

/* What the ranks of a group share; rank 0 makes it and tells the others where
 * it is. */
struct shared {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct shared *before; /* the one made before it */
    uint32_t size, arrived;
    uint64_t round;
    float *data[MAXIMUM];
    size_t count;
    bool aborted;
};

struct collective {
    struct shared *shared;
    uint32_t rank;
    uint64_t calls, failing;
    struct collective *joined; /* a stream is: all is done by it */
};

/* They stay: a rank may hear of one that others have left. */
static struct shared *_Atomic newest;

static const char *failure_text(void) {
    const char *text = getenv("CAPSTAN_FAKE_DEVICE");
    return text ? strstr(text, "nccl") : NULL;
}

static enum status check(struct failure *why) {
    return failure_text() ? STATUS_OK
                          : status_fail(why, FAILURE_COLLECTIVE_UNUSABLE,
                                        "there is no fake NCCL");
}

static enum status make(struct shared **out,
                        const struct collective_settings *settings,
                        struct failure *why) {
    struct shared *shared = calloc(1, sizeof *shared);
    if (!shared || settings->size > MAXIMUM)
        abort();
    pthread_mutex_init(&shared->mutex, NULL);
    pthread_cond_init(&shared->changed, NULL);
    shared->size = settings->size;
    shared->before = atomic_exchange(&newest, shared);
    *out = shared;
    return settings->store->set(settings->store->context, "where", out,
                                sizeof *out, why);
}

static enum status find(struct shared **out,
                        const struct collective_settings *settings,
                        struct failure *why) {
    int64_t until = time_now() + time_from_seconds(settings->timeout);
    void *value;
    size_t size;
    enum status status = settings->store->get(settings->store->context, "where",
                                              until, &value, &size, why);
    if (status)
        return status;
    memcpy(out, value, sizeof *out);
    free(value);
    return STATUS_OK;
}

static enum status join(struct collective **out,
                        const struct collective_settings *settings,
                        struct failure *why) {
    const void *gloo;
    struct collective *group = calloc(1, sizeof *group);
    enum status status =
        plugin_find(&gloo, "gloo", COLLECTIVE_SYMBOL, COLLECTIVE_ABI, why);
    if (!group)
        abort();
    stream_collective_wrap(gloo);
    if (!status)
        status = stream_collective_ops()->open(&group->joined, settings, why);
    if (status)
        free(group);
    else
        *out = group;
    return status;
}

static enum status open_group(struct collective **out,
                              const struct collective_settings *settings,
                              struct failure *why) {
    struct shared *shared = NULL;
    const char *text = failure_text();
    if (settings->stream)
        return join(out, settings, why);
    if (text && !strncmp(text, "nccl=unmet", 10) && settings->rank == 1)
        return status_fail(why, FAILURE_COLLECTIVE_UNUSABLE,
                           "nccl: as arranged");
    enum status status = settings->rank ? find(&shared, settings, why)
                                        : make(&shared, settings, why);
    if (status)
        return status;
    struct collective *group = calloc(1, sizeof *group);
    if (!group)
        abort();
    group->shared = shared;
    group->rank = settings->rank;
    group->failing = text && text[4] == '=' ? strtoull(text + 5, NULL, 10) : 0;
    *out = group;
    return STATUS_OK;
}

static void abort_group(struct collective *group) {
    if (group->joined) {
        stream_collective_ops()->abort(group->joined);
        return;
    }
    pthread_mutex_lock(&group->shared->mutex);
    group->shared->aborted = true;
    pthread_cond_broadcast(&group->shared->changed);
    pthread_mutex_unlock(&group->shared->mutex);
}

static bool close_group(struct collective **where) {
    struct collective *group = *where;
    *where = NULL;
    if (!group)
        return true;
    if (group->joined) {
        bool closed = stream_collective_ops()->close(&group->joined);
        free(group);
        return closed;
    }
    pthread_mutex_lock(&group->shared->mutex);
    atomic_fetch_add(&left_whole, !group->shared->aborted);
    pthread_mutex_unlock(&group->shared->mutex);
    free(group);
    return true;
}

static void protect(const float *data, size_t count, int rights) {
    uintptr_t first = (uintptr_t)data / PAGE * PAGE;
    uintptr_t end = (uintptr_t)(data + count);
    if (mprotect((void *)first, end - first, rights))
        abort();
}

/* In rank order; all devices are at rest in this call. */
static void add_all(struct shared *shared) {
    for (uint32_t r = 0; r < shared->size; r++)
        protect(shared->data[r], shared->count, PROT_READ | PROT_WRITE);
    for (size_t i = 0; i < shared->count; i++) {
        float sum = shared->data[0][i];
        for (uint32_t r = 1; r < shared->size; r++)
            sum += shared->data[r][i];
        for (uint32_t r = 0; r < shared->size; r++)
            shared->data[r][i] = sum;
    }
    for (uint32_t r = 0; r < shared->size; r++)
        protect(shared->data[r], shared->count, PROT_NONE);
}

static enum status all_reduce(struct collective *group, float *data,
                              size_t count, struct failure *why) {
    struct shared *shared = group->shared;
    if (group->joined)
        return stream_collective_ops()->all_reduce(group->joined, data, count,
                                                   why);
    if (group->rank == 1 && ++group->calls == group->failing)
        return status_fail(why, FAILURE_PEER_LOST, "nccl: lost, as arranged");
    pthread_mutex_lock(&shared->mutex);
    uint64_t round = shared->round;
    shared->data[group->rank] = data;
    if (shared->arrived && shared->count != count)
        abort();
    shared->count = count;
    if (++shared->arrived == shared->size && !shared->aborted) {
        add_all(shared);
        shared->arrived = 0;
        shared->round++;
        pthread_cond_broadcast(&shared->changed);
    }
    while (shared->round == round && !shared->aborted)
        pthread_cond_wait(&shared->changed, &shared->mutex);
    bool whole = shared->round != round;
    pthread_mutex_unlock(&shared->mutex);
    return whole ? STATUS_OK
                 : status_fail(why, FAILURE_CANCELLED, "nccl: it was ended");
}

static enum status no_call(struct failure *why) {
    return status_fail(why, FAILURE_COLLECTIVE_UNUSABLE, "no such call here");
}

static enum status reduce_scatter(struct collective *group, float *data,
                                  size_t count, struct failure *why) {
    const struct collective_ops *joined = stream_collective_ops();
    return group->joined
               ? joined->reduce_scatter(group->joined, data, count, why)
               : no_call(why);
}

static enum status all_gather(struct collective *group, float *data,
                              size_t count, struct failure *why) {
    const struct collective_ops *joined = stream_collective_ops();
    return group->joined ? joined->all_gather(group->joined, data, count, why)
                         : no_call(why);
}

static enum status broadcast(struct collective *group, void *data, size_t bytes,
                             uint32_t root, struct failure *why) {
    const struct collective_ops *joined = stream_collective_ops();
    return group->joined
               ? joined->broadcast(group->joined, data, bytes, root, why)
               : no_call(why);
}

static enum status async_error(struct collective *group, struct failure *why) {
    return group->joined
               ? stream_collective_ops()->async_error(group->joined, why)
               : STATUS_OK;
}

__attribute__((visibility("default")))
const struct collective_ops capstan_collective = {
    .abi = COLLECTIVE_ABI,
    .name = "nccl",
    .version = "fake",
    .check = check,
    .open = open_group,
    .abort = abort_group,
    .close = close_group,
    .all_reduce = all_reduce,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .supports_stream = true,
    .async_error = async_error,
};

const struct collective_ops *fake_nccl_ops(void) {
    return &capstan_collective;
}

unsigned fake_nccl_unaborted_exits(void) {
    return atomic_load(&left_whole);
}
