/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/rank_board.h"

#include "proto/base/time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static bool wait_change(struct rank_board *board, int64_t until) {
    struct timespec end = {until / TIME_S, until % TIME_S};
    return !pthread_cond_timedwait(&board->changed, &board->lock, &end);
}

static enum status note_set(void *context, const char *key, const void *value,
                            size_t size, struct failure *why) {
    struct rank_board *board = context;
    struct rank_note *note = &board->notes[board->num_notes];
    pthread_mutex_lock(&board->lock);
    bool fits =
        board->num_notes < RANK_BOARD_NOTES && size <= sizeof note->value;
    if (fits) {
        note = &board->notes[board->num_notes++];
        snprintf(note->key, sizeof note->key, "%s", key);
        memcpy(note->value, value, size);
        note->size = size;
        pthread_cond_broadcast(&board->changed);
    }
    pthread_mutex_unlock(&board->lock);
    return fits ? STATUS_OK : status_fail(why, STATUS_FAILED, "board is full");
}

static const struct rank_note *find(const struct rank_board *board,
                                    const char *key) {
    for (uint32_t i = 0; i < board->num_notes; i++)
        if (!strcmp(board->notes[i].key, key))
            return &board->notes[i];
    return NULL;
}

static enum status note_get(void *context, const char *key, int64_t until,
                            void **value, size_t *size, struct failure *why) {
    struct rank_board *board = context;
    const struct rank_note *note;
    pthread_mutex_lock(&board->lock);
    while (!(note = find(board, key)) && wait_change(board, until))
        ;
    if (note) {
        *size = note->size;
        *value = malloc(note->size + 1);
        memcpy(*value, note->value, note->size);
    }
    pthread_mutex_unlock(&board->lock);
    return note ? STATUS_OK
                : status_fail(why, STATUS_RETRY, "no %s on the board", key);
}

struct rank_board *rank_board_open(void) {
    struct rank_board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t lock;
    pthread_condattr_t changed;
    pthread_mutexattr_init(&lock);
    pthread_mutexattr_setpshared(&lock, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&board->lock, &lock);
    pthread_condattr_init(&changed);
    pthread_condattr_setpshared(&changed, PTHREAD_PROCESS_SHARED);
    pthread_condattr_setclock(&changed, CLOCK_MONOTONIC);
    pthread_cond_init(&board->changed, &changed);
    board->store = (struct collective_store){
        .context = board, .set = note_set, .get = note_get};
    return board;
}

void rank_board_close(struct rank_board **board) {
    if (!*board)
        return;
    for (uint32_t i = 0; i < RANK_BOARD_RANKS; i++)
        if ((*board)->pids[i]) {
            kill((*board)->pids[i], SIGKILL);
            rank_board_end(*board, i);
        }
    munmap(*board, sizeof **board);
    *board = NULL;
}

void rank_board_start(struct rank_board *board, uint32_t rank,
                      void (*play)(struct rank_board *board, uint32_t rank,
                                   const void *context),
                      const void *context) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid) {
        board->pids[rank] = pid;
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(RANK_BOARD_SECONDS);
    play(board, rank, context);
    fflush(NULL);
    _exit(0);
}

void rank_board_arrive(struct rank_board *board) {
    pthread_mutex_lock(&board->lock);
    board->arrived++;
    pthread_cond_broadcast(&board->changed);
    pthread_mutex_unlock(&board->lock);
}

bool rank_board_await(struct rank_board *board, uint32_t count) {
    int64_t until = time_now() + RANK_BOARD_SECONDS * TIME_S;
    pthread_mutex_lock(&board->lock);
    while (board->arrived < count && wait_change(board, until))
        ;
    bool come = board->arrived >= count;
    pthread_mutex_unlock(&board->lock);
    return come;
}

int rank_board_end(struct rank_board *board, uint32_t rank) {
    int how = 0;
    waitpid(board->pids[rank], &how, 0);
    board->pids[rank] = 0;
    return WIFEXITED(how) ? WEXITSTATUS(how) : -WTERMSIG(how);
}
