/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as processes of a test, and the board where they leave what others are
 * to know: the store of collectives, and how each of them ended. */
#ifndef CAPSTAN_RENDEZVOUS_FAKE_H
#define CAPSTAN_RENDEZVOUS_FAKE_H

#include "core/base/status.h"
#include "worker/collective/collective.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    RENDEZVOUS_FAKE_RANKS = 8,
    RENDEZVOUS_FAKE_ENTRIES = 64,
    RENDEZVOUS_FAKE_SECONDS = 60
};

struct rank_result {
    enum status status;
    char text[512];
    uint64_t bits;  /* of its results */
    int64_t waited; /* nanoseconds, in the call that failed */
};

struct rendezvous_fake_entry {
    char key[64];
    size_t size;
    char value[8192];
};

/* Shared by all the processes. */
struct rendezvous_fake {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t num_entries, arrived;
    struct rendezvous_fake_entry entries[RENDEZVOUS_FAKE_ENTRIES];
    struct rank_result ends[RENDEZVOUS_FAKE_RANKS];
    pid_t pids[RENDEZVOUS_FAKE_RANKS];
    struct collective_store store;
};

struct rendezvous_fake *rendezvous_fake_open(void);
void rendezvous_fake_close(struct rendezvous_fake **rendezvous);

/* Starts rank RANK: a process that calls PLAY and ends; the kernel kills it
 * after RENDEZVOUS_FAKE_SECONDS. */
void rendezvous_fake_start(struct rendezvous_fake *rendezvous, uint32_t rank,
                           void (*fixture)(struct rendezvous_fake *rendezvous,
                                           uint32_t rank, const void *context),
                           const void *context);

/* One more has arrived. */
void rendezvous_fake_arrive(struct rendezvous_fake *rendezvous);

/* Waits until COUNT have arrived. False: not within RENDEZVOUS_FAKE_SECONDS. */
bool rendezvous_fake_await_arrivals(struct rendezvous_fake *rendezvous,
                                    uint32_t count);

/* Waits for the end of RANK; its exit code, or minus the signal. */
int rendezvous_fake_await_exit(struct rendezvous_fake *rendezvous,
                               uint32_t rank);

#endif
