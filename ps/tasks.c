/* SPDX-License-Identifier: Apache-2.0 */
/* A task is used again and again: it lies on the `spare` list between two uses,
 * with room behind it for one pointer a rank. What it does to a block's bytes
 * is done on one of the crew's threads; that tasks of one block never run
 * beside each other, and in which order, is the crew's promise (crew.h), so the
 * shard needs no lock. */
#include "ps/tasks.h"

#include "proto/base/time.h"

#include <pthread.h>
#include <stdlib.h>

struct tasks {
    struct shard *shard;
    struct crew *crew;
    uint32_t num_ranks;
    struct task *spare; /* by crew.next */
    pthread_mutex_t mutex;
    struct failure why; /* the mutex is held */
};

static void keep_failure(struct tasks *tasks, const struct failure *why) {
    pthread_mutex_lock(&tasks->mutex);
    if (!tasks->why.status)
        tasks->why = *why;
    pthread_mutex_unlock(&tasks->mutex);
}

static void update(struct tasks *tasks, struct task *task) {
    struct failure why;
    int64_t start = time_now();
    task->status =
        shard_update(tasks->shard, task->action.block, &task->round, &why);
    task->ns = time_now() - start;
    if (task->status)
        keep_failure(tasks, &why);
}

static void work(void *context, struct crew_task *crew_task) {
    struct tasks *tasks = context;
    struct task *task = (struct task *)crew_task;
    uint32_t b = task->action.block;
    if (task->action.kind == EXCHANGE_UPDATE)
        update(tasks, task);
    else if (task->action.kind == EXCHANGE_SUM)
        task->sum = shard_square_sum(tasks->shard, b, &task->round);
    else if (!task->receipt)
        task->weights = buffer_hold(shard_tensor(tasks->shard, b, 0));
}

enum status tasks_open(struct tasks **out, struct shard *shard,
                       uint32_t num_ranks, uint32_t threads,
                       struct failure *why) {
    struct tasks *tasks = calloc(1, sizeof *tasks);
    *out = tasks;
    if (!tasks)
        return status_fail(why, STATUS_RETRY, "no memory for a ps's tasks");
    tasks->shard = shard;
    tasks->num_ranks = num_ranks;
    pthread_mutex_init(&tasks->mutex, NULL);
    enum status status = crew_open(&tasks->crew, threads, work, tasks, why);
    if (status)
        tasks_close(out);
    return status;
}

void tasks_close(struct tasks **where) {
    struct tasks *tasks = *where;
    *where = NULL;
    if (!tasks)
        return;
    crew_close(&tasks->crew);
    while (tasks->spare) {
        struct task *task = tasks->spare;
        tasks->spare = (struct task *)task->crew.next;
        free(task);
    }
    pthread_mutex_destroy(&tasks->mutex);
    free(tasks);
}

/* A task and the room of its two arrays behind it. */
static struct task *allocate(const struct tasks *tasks) {
    size_t ranks = tasks->num_ranks;
    struct task *task = malloc(sizeof *task + 2 * ranks * sizeof(void *));
    if (!task)
        return NULL;
    task->gradients = (const void **)(task + 1);
    task->parcels = (struct parcel **)(task->gradients + ranks);
    return task;
}

struct task *tasks_take(struct tasks *tasks,
                        const struct exchange_action *action) {
    struct task *task = tasks->spare;
    if (task)
        tasks->spare = (struct task *)task->crew.next;
    else
        task = allocate(tasks);
    if (!task)
        return NULL;
    task->crew.block = action->block;
    task->action = *action;
    task->receipt = false;
    task->num_parcels = 0;
    task->status = STATUS_OK;
    task->weights = NULL;
    return task;
}

void tasks_put(struct tasks *tasks, struct task *task) {
    crew_put(tasks->crew, &task->crew);
}

void tasks_start(struct tasks *tasks) {
    crew_start(tasks->crew);
}

void tasks_settle(struct tasks *tasks) {
    crew_settle(tasks->crew);
}

struct task *tasks_done(struct tasks *tasks) {
    return (struct task *)crew_finished(tasks->crew);
}

void tasks_give_back(struct tasks *tasks, struct task *task) {
    task->crew.next = (struct crew_task *)tasks->spare;
    tasks->spare = task;
}

const struct failure *tasks_failure(const struct tasks *tasks) {
    return &tasks->why;
}

int tasks_descriptor(const struct tasks *tasks) {
    return crew_descriptor(tasks->crew);
}
