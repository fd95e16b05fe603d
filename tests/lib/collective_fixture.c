/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/collective_fixture.h"

#include "core/base/time.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096 };

static const int64_t TICK = 10 * TIME_MS;

struct collective {
    struct collective_fixture *fixture;
    uint32_t rank;
    int64_t timeout;
    bool aborted; /* the fixture's mutex */
};

void collective_fixture_open(struct collective_fixture *fixture,
                             uint32_t size) {
    pthread_condattr_t monotonic;
    *fixture = (struct collective_fixture){.size = size};
    pthread_mutex_init(&fixture->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&fixture->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void collective_fixture_close(struct collective_fixture *fixture) {
    pthread_mutex_destroy(&fixture->mutex);
    pthread_cond_destroy(&fixture->changed);
}

/* The mutex is held. */
static void lose(struct collective_fixture *fixture, uint32_t rank) {
    if (!fixture->lost)
        fixture->lost_rank = rank;
    fixture->lost = true;
    pthread_cond_broadcast(&fixture->changed);
}

/* The mutex is held: all are here. */
static void all_here(struct collective_fixture *fixture) {
    for (uint32_t r = 0; r < fixture->size; r++) {
        fixture->mismatch |=
            strcmp(fixture->ranks[r].call, fixture->ranks[0].call) ||
            fixture->ranks[r].count != fixture->ranks[0].count;
        fixture->ranks[r].here = false;
    }
    fixture->arrived = 0;
    fixture->num_rendezvous++;
    pthread_cond_broadcast(&fixture->changed);
}

static uint32_t first_missing(const struct collective_fixture *fixture) {
    uint32_t r = 0;
    while (r + 1 < fixture->size && fixture->ranks[r].here)
        r++;
    return r;
}

/* The mutex is held; the number of the rendezvous that the rank waits for. */
static uint64_t arrive(struct collective *group) {
    struct collective_fixture *fixture = group->fixture;
    uint64_t rendezvous = fixture->num_rendezvous;
    fixture->ranks[group->rank].here = true;
    if (++fixture->arrived == fixture->size)
        all_here(fixture);
    return rendezvous;
}

/* The mutex is held. Time passes by the tick, so that a pause of this machine
 * is one tick and loses no rank. */
static bool wait_for_all(struct collective *group) {
    struct collective_fixture *fixture = group->fixture;
    int64_t left = group->timeout;
    uint64_t rendezvous = arrive(group);
    while (rendezvous == fixture->num_rendezvous && !fixture->lost &&
           !group->aborted) {
        int64_t until = time_now() + TICK;
        struct timespec at = {until / TIME_S, until % TIME_S};
        if (pthread_cond_timedwait(&fixture->changed, &fixture->mutex, &at) ==
                ETIMEDOUT &&
            (left -= TICK) <= 0)
            lose(fixture, first_missing(fixture));
    }
    return rendezvous != fixture->num_rendezvous;
}

static enum status meet(struct collective *group, struct failure *why) {
    struct collective_fixture *fixture = group->fixture;
    pthread_mutex_lock(&fixture->mutex);
    bool met = !fixture->lost && !group->aborted && wait_for_all(group);
    uint32_t lost = fixture->lost_rank;
    pthread_mutex_unlock(&fixture->mutex);
    return met ? STATUS_OK
               : status_fail(why, FAILURE_PEER_LOST, "rank %u was lost", lost);
}

/* Ends a call for which all have met. Every rank comes here, also one that is
 * cancelled: until then the others read its data. */
static void meet_at_end(struct collective *group) {
    struct collective_fixture *fixture = group->fixture;
    pthread_mutex_lock(&fixture->mutex);
    uint64_t rendezvous = arrive(group);
    while (rendezvous == fixture->num_rendezvous)
        pthread_cond_wait(&fixture->changed, &fixture->mutex);
    pthread_mutex_unlock(&fixture->mutex);
}

/* A planted fault of this call. */
static void fail_here(struct collective *group) {
    struct collective_fixture *fixture = group->fixture;
    if (fixture->fault == COLLECTIVE_FAULT_FAIL)
        lose(fixture, group->rank);
    while (fixture->fault == COLLECTIVE_FAULT_HANG && !group->aborted)
        pthread_cond_wait(&fixture->changed, &fixture->mutex);
}

static enum status begin(struct collective *group, const char *call,
                         float *data, size_t count, struct failure *why) {
    struct collective_fixture *fixture = group->fixture;
    uint32_t rank = group->rank;
    if (fixture->called)
        fixture->called(fixture->context, rank, call, count);
    pthread_mutex_lock(&fixture->mutex);
    fixture->ranks[rank].call = call;
    fixture->ranks[rank].data = data;
    fixture->ranks[rank].count = count;
    uint32_t number = fixture->ranks[rank].calls++;
    if (fixture->fault && fixture->fault_rank == rank &&
        fixture->fault_call == number)
        fail_here(group);
    pthread_mutex_unlock(&fixture->mutex);
    return meet(group, why);
}

static enum status check(struct failure *why) {
    (void)why;
    return STATUS_OK;
}

static enum status open_group(struct collective **out,
                              const struct collective_settings *settings,
                              struct failure *why) {
    struct collective *group = calloc(1, sizeof *group);
    group->fixture = settings->store->context;
    group->rank = settings->rank;
    group->timeout = time_from_seconds(settings->timeout);
    enum status status = begin(group, "open", NULL, 0, why);
    if (status)
        free(group);
    else
        *out = group;
    return status;
}

static void abort_group(struct collective *group) {
    pthread_mutex_lock(&group->fixture->mutex);
    group->aborted = true;
    pthread_cond_broadcast(&group->fixture->changed);
    pthread_mutex_unlock(&group->fixture->mutex);
}

static bool close_group(struct collective **group) {
    free(*group);
    *group = NULL;
    return true;
}

/* Each rank writes its own piece of its own data, which no other reads. */
static void sum_piece(struct collective *group, float *data, size_t count) {
    const struct collective_fixture *fixture = group->fixture;
    size_t first;
    size_t piece = collective_piece(count, group->rank, fixture->size, &first);
    for (size_t i = first; i < first + piece; i++) {
        float sum = fixture->ranks[0].data[i];
        for (uint32_t r = 1; r < fixture->size; r++)
            sum += fixture->ranks[r].data[i];
        data[i] = sum;
    }
}

static void spoil_others(struct collective *group, float *data, size_t count) {
    size_t first;
    size_t piece =
        collective_piece(count, group->rank, group->fixture->size, &first);
    for (size_t i = 0; i < count; i++)
        if (i < first || i >= first + piece)
            data[i] = NAN;
}

static void copy_others(struct collective *group, float *data, size_t count) {
    const struct collective_fixture *fixture = group->fixture;
    for (uint32_t r = 0; r < fixture->size; r++) {
        size_t first;
        size_t piece = collective_piece(count, r, fixture->size, &first);
        if (r != group->rank)
            memcpy(data + first, fixture->ranks[r].data + first,
                   piece * sizeof *data);
    }
}

static enum status reduce_scatter(struct collective *group, float *data,
                                  size_t count, struct failure *why) {
    enum status status = begin(group, "reduce_scatter", data, count, why);
    if (status)
        return status;
    sum_piece(group, data, count);
    meet_at_end(group);
    spoil_others(group, data, count);
    return STATUS_OK;
}

static enum status all_gather(struct collective *group, float *data,
                              size_t count, struct failure *why) {
    enum status status = begin(group, "all_gather", data, count, why);
    if (status)
        return status;
    copy_others(group, data, count);
    meet_at_end(group);
    return STATUS_OK;
}

static enum status all_reduce(struct collective *group, float *data,
                              size_t count, struct failure *why) {
    enum status status = reduce_scatter(group, data, count, why);
    return status ? status : all_gather(group, data, count, why);
}

static enum status broadcast(struct collective *group, void *data, size_t bytes,
                             uint32_t root, struct failure *why) {
    enum status status = begin(group, "broadcast", data, bytes, why);
    if (status)
        return status;
    if (group->rank != root)
        memcpy(data, group->fixture->ranks[root].data, bytes);
    meet_at_end(group);
    return STATUS_OK;
}

static void transport(const struct collective *group, char *text, size_t size) {
    snprintf(text, size, "by thread %u", group->rank);
}

const struct collective_ops collective_fixture_ops = {
    .abi = COLLECTIVE_ABI,
    .name = "threads",
    .version = "of a test",
    .check = check,
    .open = open_group,
    .abort = abort_group,
    .close = close_group,
    .all_reduce = all_reduce,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .transport = transport,
};

static struct {
    bool unmet;
    uint32_t rank, failing;
} arranged;
static atomic_uint left_whole;

/* They stay: a rank may hear of one that others have left. */
static struct collective_fixture *_Atomic newest;

void collective_fixture_arrange(bool unmet, uint32_t rank, uint32_t failing) {
    arranged.unmet = unmet;
    arranged.rank = rank;
    arranged.failing = failing;
}

unsigned collective_fixture_unaborted_exits(void) {
    return atomic_load(&left_whole);
}

/* A sum is two calls. */
static struct collective_fixture *make(uint32_t size) {
    struct collective_fixture *fixture = malloc(sizeof *fixture);
    collective_fixture_open(fixture, size);
    fixture->fault =
        arranged.failing ? COLLECTIVE_FAULT_FAIL : COLLECTIVE_FAULT_NONE;
    fixture->fault_rank = arranged.rank;
    fixture->fault_call = 2 * (arranged.failing - 1);
    fixture->before = atomic_exchange(&newest, fixture);
    return fixture;
}

/* Rank 0 makes it and tells the others where it is. */
static enum status find(struct collective_fixture **out,
                        const struct collective_settings *settings,
                        struct failure *why) {
    const struct collective_store *store = settings->store;
    int64_t until = time_now() + time_from_seconds(settings->timeout);
    void *value;
    size_t size;
    if (settings->rank == 0) {
        *out = make(settings->size);
        return store->set(store->context, "where", out, sizeof *out, why);
    }
    enum status status =
        store->get(store->context, "where", until, &value, &size, why);
    if (!status) {
        memcpy(out, value, sizeof *out);
        free(value);
    }
    return status;
}

static enum status open_on_devices(struct collective **out,
                                   const struct collective_settings *settings,
                                   struct failure *why) {
    struct collective_fixture *fixture;
    if (arranged.unmet && settings->rank == arranged.rank)
        return status_fail(why, FAILURE_COLLECTIVE_UNUSABLE, "as arranged");
    enum status status = find(&fixture, settings, why);
    if (status)
        return status;
    struct collective *group = calloc(1, sizeof *group);
    group->fixture = fixture;
    group->rank = settings->rank;
    group->timeout = time_from_seconds(settings->timeout);
    *out = group;
    return STATUS_OK;
}

static void abort_on_devices(struct collective *group) {
    pthread_mutex_lock(&group->fixture->mutex);
    group->fixture->aborted = true;
    lose(group->fixture, group->rank);
    pthread_mutex_unlock(&group->fixture->mutex);
}

static bool close_on_devices(struct collective **group) {
    if (*group) {
        pthread_mutex_lock(&(*group)->fixture->mutex);
        atomic_fetch_add(&left_whole, !(*group)->fixture->aborted);
        pthread_mutex_unlock(&(*group)->fixture->mutex);
    }
    return close_group(group);
}

static void protect(const float *data, size_t count, int rights) {
    uintptr_t first = (uintptr_t)data / PAGE * PAGE;
    uintptr_t end = (uintptr_t)(data + count);
    if (mprotect((void *)first, end - first, rights))
        abort();
}

/* The device is at rest in this call, also for ranks that read its memory. One
 * that fails as arranged is not heard of by the others. */
static enum status sum_on_devices(struct collective *group, float *data,
                                  size_t count, struct failure *why) {
    struct collective_fixture *fixture = group->fixture;
    if (fixture->fault && fixture->fault_rank == group->rank &&
        fixture->fault_call == fixture->ranks[group->rank].calls)
        return status_fail(why, FAILURE_PEER_LOST, "lost, as arranged");
    protect(data, count, PROT_READ | PROT_WRITE);
    enum status status = all_reduce(group, data, count, why);
    protect(data, count, PROT_NONE);
    pthread_mutex_lock(&fixture->mutex);
    if (fixture->mismatch)
        abort();
    if (status && fixture->aborted)
        status = status_fail(why, FAILURE_CANCELLED, "it was ended");
    pthread_mutex_unlock(&fixture->mutex);
    return status;
}

const struct collective_ops collective_fixture_device_ops = {
    .abi = COLLECTIVE_ABI,
    .name = "threads with devices",
    .version = "of a test",
    .check = check,
    .open = open_on_devices,
    .abort = abort_on_devices,
    .close = close_on_devices,
    .all_reduce = sum_on_devices,
};
