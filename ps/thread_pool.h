/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that work on blocks: each block belongs to one of them, which does
 * what is asked of it in the order asked. With no thread the caller does the
 * work itself. Puts, starts and takes back: one thread alone. */
#ifndef CAPSTAN_THREAD_POOL_H
#define CAPSTAN_THREAD_POOL_H

#include "proto/base/status.h"

#include <stdint.h>

/* First member of what the caller wants done. */
struct thread_pool_task {
    struct thread_pool_task *next;
    uint32_t block;
};

/* Does TASK; on the thread of its block. */
typedef void thread_pool_function(void *context, struct thread_pool_task *task);

struct thread_pool;

enum { THREAD_POOL_MAX_THREADS = 64 };

/* How many threads serve a ps on a host of CORES: none below four, where they
 * would take turns with the caller, else half of them, four at most. */
uint32_t thread_pool_default_threads(unsigned cores);

/* THREADS, 0 to THREAD_POOL_MAX_THREADS. */
enum status thread_pool_open(struct thread_pool **out, uint32_t num_threads,
                             thread_pool_function *work, void *context,
                             struct failure *why) MUST_CHECK;

/* Ends the threads after what was started and clears *CREW (may be NULL). What
 * has finished is to be taken back before. */
void thread_pool_close(struct thread_pool **thread_pool);

/* TASK is to be done after all that was put before for its block: begun by
 * thread_pool_dispatch, or done now when there is no thread. */
void thread_pool_submit(struct thread_pool *thread_pool,
                        struct thread_pool_task *task);

/* Begins what was put. */
void thread_pool_dispatch(struct thread_pool *thread_pool);

/* A task that is done, NULL when there is none yet. Those of a block come in
 * the order they were put. */
struct thread_pool_task *thread_pool_completed(struct thread_pool *thread_pool);

/* Begins what was put and returns when all is done. The threads wait for
 * nobody, so this lasts as long as their work does. */
void thread_pool_wait(struct thread_pool *thread_pool);

/* Readable when thread_pool_completed has something; -1 when there is no
 * thread. */
int thread_pool_descriptor(const struct thread_pool *thread_pool);

#endif
