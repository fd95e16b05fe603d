/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/report_board.h"

#include "commands/composition.h"
#include "core/base/time.h"
#include "proto/messages/process_report.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const int64_t BOARD_LIMIT = (HEALTH_ANSWER_S + 1) * TIME_S;
enum { BOARD_TICK_MS = 20 };

struct report_board {
    pthread_mutex_t mutex;
    uint64_t generation; /* of the roles */
    struct health *healths[ROLES_MAX];
    unsigned count;
};

struct report_board *report_board_open(void) {
    struct report_board *board = calloc(1, sizeof *board);
    if (board)
        pthread_mutex_init(&board->mutex, NULL);
    return board;
}

void report_board_close(struct report_board **where) {
    struct report_board *board = *where;
    *where = NULL;
    if (!board)
        return;
    pthread_mutex_destroy(&board->mutex);
    free(board);
}

void report_board_set(struct report_board *board, struct health *const *healths,
                      unsigned count) {
    if (!board)
        return;
    pthread_mutex_lock(&board->mutex);
    board->generation++;
    board->count = count;
    if (count)
        memcpy(board->healths, healths, count * sizeof *healths);
    pthread_mutex_unlock(&board->mutex);
}

/* The chief's answer to TICKET. The roles may end while it is awaited: the
 * mutex is held only for a look. */
static json_t *await_answer(struct report_board *board, uint64_t generation,
                            uint64_t ticket) {
    int64_t until = time_now() + BOARD_LIMIT;
    char *text = NULL;
    bool same = true;
    while (!text && same && time_now() < until) {
        poll(NULL, 0, BOARD_TICK_MS);
        pthread_mutex_lock(&board->mutex);
        same = board->count && board->generation == generation;
        text = same ? health_take_answer(board->healths[0], ticket) : NULL;
        pthread_mutex_unlock(&board->mutex);
    }
    json_t *object = text ? json_loads(text, 0, NULL) : NULL;
    free(text);
    return object;
}

json_t *report_board_read(struct report_board *board) {
    uint64_t ticket = 0;
    json_t *object = NULL;
    pthread_mutex_lock(&board->mutex);
    uint64_t generation = board->generation;
    if (board->count && health_is_chiefs(board->healths[0]))
        ticket = health_ask(board->healths[0]);
    pthread_mutex_unlock(&board->mutex);
    if (ticket)
        object = await_answer(board, generation, ticket);
    if (object)
        return object;
    pthread_mutex_lock(&board->mutex);
    if (board->count)
        object =
            process_report_of_roles(board->healths, board->count, time_now());
    pthread_mutex_unlock(&board->mutex);
    return object;
}
