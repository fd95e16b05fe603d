/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as processes of a test, and the board where they leave what others are
 * to know: the store of collectives, and how each of them ended. */
#ifndef CAPSTAN_RANK_BOARD_H
#define CAPSTAN_RANK_BOARD_H

#include "proto/base/status.h"
#include "worker/collective/collective.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { RANK_BOARD_RANKS = 8, RANK_BOARD_NOTES = 64, RANK_BOARD_SECONDS = 60 };

struct rank_end {
    enum status status;
    char text[512];
    uint64_t bits;  /* of its results */
    int64_t waited; /* nanoseconds, in the call that failed */
};

struct rank_note {
    char key[64];
    size_t size;
    char value[8192];
};

/* Shared by all the processes. */
struct rank_board {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t num_notes, arrived;
    struct rank_note notes[RANK_BOARD_NOTES];
    struct rank_end ends[RANK_BOARD_RANKS];
    pid_t pids[RANK_BOARD_RANKS];
    struct collective_store store;
};

struct rank_board *rank_board_open(void);
void rank_board_close(struct rank_board **board);

/* Starts rank RANK: a process that calls PLAY and ends; the kernel kills it
 * after RANK_BOARD_SECONDS. */
void rank_board_start(struct rank_board *board, uint32_t rank,
                      void (*play)(struct rank_board *board, uint32_t rank,
                                   const void *context),
                      const void *context);

/* One more has arrived. */
void rank_board_arrive(struct rank_board *board);

/* Waits until COUNT have arrived. False: not within RANK_BOARD_SECONDS. */
bool rank_board_await(struct rank_board *board, uint32_t count);

/* Waits for the end of RANK; its exit code, or minus the signal. */
int rank_board_end(struct rank_board *board, uint32_t rank);

#endif
