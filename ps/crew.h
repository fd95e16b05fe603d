/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that work on blocks: each block belongs to one of them, which does
 * what is asked of it in the order asked. With no thread the caller does the
 * work itself. Puts, starts and takes back: one thread alone. */
#ifndef CAPSTAN_CREW_H
#define CAPSTAN_CREW_H

#include "proto/base/status.h"

#include <stdint.h>

/* First member of what the caller wants done. */
struct crew_task {
    struct crew_task *next;
    uint32_t block;
};

/* Does TASK; on the thread of its block. */
typedef void crew_work(void *context, struct crew_task *task);

struct crew;

enum { CREW_MAX_THREADS = 64 };

/* How many threads serve a ps on a host of CORES: none below four, where they
 * would take turns with the caller, else half of them, four at most. */
uint32_t crew_usual(unsigned cores);

/* THREADS, 0 to CREW_MAX_THREADS. */
enum status crew_open(struct crew **out, uint32_t threads, crew_work *work,
                      void *context, struct failure *why) MUST_CHECK;

/* Ends the threads after what was started and clears *CREW (may be NULL). What
 * has finished is to be taken back before. */
void crew_close(struct crew **crew);

/* TASK is to be done after all that was put before for its block: begun by
 * crew_start, or done now when there is no thread. */
void crew_put(struct crew *crew, struct crew_task *task);

/* Begins what was put. */
void crew_start(struct crew *crew);

/* A task that is done, NULL when there is none yet. Those of a block come in
 * the order they were put. */
struct crew_task *crew_finished(struct crew *crew);

/* Begins what was put and returns when all is done. The threads wait for
 * nobody, so this lasts as long as their work does. */
void crew_settle(struct crew *crew);

/* Readable when crew_finished has something; -1 when there is no thread. */
int crew_descriptor(const struct crew *crew);

#endif
