/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that work on blocks. Each block belongs to one thread, which runs the
 * block's tasks in the order submitted. With no threads the caller runs them,
 * as it dispatches them. One thread submits, dispatches and collects tasks. */
#ifndef CAPSTAN_THREAD_POOL_H
#define CAPSTAN_THREAD_POOL_H

#include "core/base/status.h"

#include <stdint.h>

/* First member of the caller's task struct. */
struct thread_pool_task {
    struct thread_pool_task *next;
    uint32_t block;
};

/* Runs TASK, on the thread of its block. */
typedef void thread_pool_function(void *context, struct thread_pool_task *task);

/* Prefetches memory of TASK, which is AHEAD tasks after the one that runs: 2,
 * then 1. */
typedef void thread_pool_prefetch(void *context,
                                  const struct thread_pool_task *task,
                                  unsigned ahead);

struct thread_pool;

enum { THREAD_POOL_MAX_THREADS = 64 };

/* The default number of threads on a host of CORES: none below four cores,
 * where they would compete with the caller, else half of them, at most four. */
uint32_t thread_pool_default_threads(unsigned cores);

/* NUM_THREADS: 0 to THREAD_POOL_MAX_THREADS. */
enum status thread_pool_open(struct thread_pool **out, uint32_t num_threads,
                             thread_pool_function *work,
                             thread_pool_prefetch *prefetch, void *context,
                             struct failure *why) MUST_CHECK;

/* Ends the threads after all dispatched tasks and clears *POOL (may be
 * NULL). Collect completed tasks before. */
void thread_pool_close(struct thread_pool **pool);

/* Queues TASK behind the earlier tasks of its block until
 * thread_pool_dispatch. */
void thread_pool_submit(struct thread_pool *pool,
                        struct thread_pool_task *task);

/* Starts the queued tasks. */
void thread_pool_dispatch(struct thread_pool *pool);

/* The next completed task; NULL: none yet. Tasks of one block complete in the
 * order submitted. */
struct thread_pool_task *thread_pool_completed(struct thread_pool *pool);

/* Starts the queued tasks and returns when all are done. Tasks never block on
 * the caller, so this takes as long as their work does. */
void thread_pool_wait(struct thread_pool *pool);

/* Readable when thread_pool_completed has a task; -1 without threads. */
int thread_pool_descriptor(const struct thread_pool *pool);

#endif
