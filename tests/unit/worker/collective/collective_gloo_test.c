/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/base/time.h"
#include "tests/lib/gloo_play.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Each case is played over TCP, and over shared memory. */
static bool kinds[] = {false, true};

static bool lanes_of(void **state) {
    return *(const bool *)*state;
}

static void every_call_is_right_on_all_ranks_and_has_the_same_bits_again(
    void **state) {
    struct gloo_play play = {
        .ops = gloo_play_load(), .lanes = lanes_of(state), .timeout = 20};
    for (uint32_t i = 0; i < RANK_BOARD_RANKS; i++)
        play.ways[i] = play.lanes ? "over shared memory" : "";
    for (play.size = 1; play.size <= 5; play.size++)
        for (int algorithm = 0; algorithm < 2; algorithm++) {
            play.algorithm =
                algorithm ? COLLECTIVE_HALVING_DOUBLING : COLLECTIVE_RING;
            uint64_t bits = gloo_play_run_all(play);
            assert_true(bits == gloo_play_run_all(play));
        }
}

static void a_killed_rank_is_named_by_all_within_seconds(void **state) {
    for (uint32_t size = 2; size <= 5; size++) {
        struct gloo_play play = {.ops = gloo_play_load(),
                                 .lanes = lanes_of(state),
                                 .size = size,
                                 .timeout = 30};
        struct rank_board *board = rank_board_open();
        for (uint32_t i = 0; i < size; i++)
            rank_board_start(board, i, gloo_play_without_end, &play);
        assert_true(rank_board_await(board, size));
        int64_t killed = time_now();
        kill(board->pids[1], SIGKILL);
        gloo_play_expect_named(board, size, 1, "was lost");
        assert_true(time_now() - killed < 5 * TIME_S);
        rank_board_close(&board);
    }
}

/* Who gives up first has waited for as long as it may, by its own clock; the
 * others hear of it. */
static int64_t longest_wait(const struct rank_board *board, uint32_t size) {
    int64_t longest = 0;
    for (uint32_t i = 0; i < size; i++)
        if (board->ends[i].waited > longest)
            longest = board->ends[i].waited;
    return longest;
}

static void a_stopped_rank_is_named_by_all_when_time_is_over(void **state) {
    for (uint32_t size = 2; size <= 5; size++) {
        struct gloo_play play = {.ops = gloo_play_load(),
                                 .lanes = lanes_of(state),
                                 .size = size,
                                 .timeout = 2};
        struct rank_board *board = rank_board_open();
        for (uint32_t i = 0; i < size; i++)
            rank_board_start(board, i, gloo_play_without_end, &play);
        assert_true(rank_board_await(board, size));
        int64_t stopped = time_now();
        kill(board->pids[1], SIGSTOP);
        gloo_play_expect_named(board, size, 1, "did not come");
        assert_true(longest_wait(board, size) > 19 * TIME_S / 10);
        assert_true(time_now() - stopped < 6 * TIME_S);
        rank_board_close(&board);
    }
}

/* Rank 1 cuts its lines, and closes when all others have failed. */
static void play_until_cut(struct rank_board *board, uint32_t rank,
                           const void *context) {
    static float data[1000];
    const struct gloo_play *play = context;
    struct collective *group = gloo_play_meet(board, rank, play);
    struct failure why = {0};
    enum status status = play->ops->all_reduce(group, data, 1000, &why);
    if (rank == 1) {
        play->ops->abort(group);
        rank_board_await(board, play->size - 1);
    } else if (!status) {
        status = play->ops->all_reduce(group, data, 1000, &why);
        rank_board_arrive(board);
    }
    play->ops->close(&group);
    gloo_play_end(board, rank, status, why.text);
}

/* Though it lives: nobody has waited for as long as they may. */
static void a_line_that_ends_is_no_time_that_is_over(void **state) {
    for (uint32_t size = 2; size <= 4; size++) {
        struct gloo_play play = {.ops = gloo_play_load(),
                                 .lanes = lanes_of(state),
                                 .size = size,
                                 .timeout = 500};
        struct rank_board *board = rank_board_open();
        for (uint32_t i = 0; i < size; i++)
            rank_board_start(board, i, play_until_cut, &play);
        gloo_play_expect_named(board, size, 1, "was lost");
        rank_board_close(&board);
    }
}

struct aborter {
    const struct gloo_play *play;
    struct rank_board *board;
    struct collective *group;
};

static void *abort_soon(void *context) {
    struct aborter *aborter = context;
    if (rank_board_await(aborter->board, 2))
        aborter->play->ops->abort(aborter->group);
    return NULL;
}

/* Rank 0 waits in a call for rank 1, which stays away until 0 has ended. */
static void play_abort(struct rank_board *board, uint32_t rank,
                       const void *context) {
    static float data[100000];
    const struct gloo_play *play = context;
    struct collective *group = gloo_play_meet(board, rank, play);
    struct aborter aborter = {play, board, group};
    struct failure why = {0};
    pthread_t thread;
    rank_board_arrive(board);
    if (rank == 1) {
        bool ended = rank_board_await(board, 3);
        play->ops->close(&group);
        gloo_play_end(board, 1, ended ? STATUS_OK : STATUS_FAILED, "");
    }
    pthread_create(&thread, NULL, abort_soon, &aborter);
    int64_t begun = time_now();
    enum status status = play->ops->all_reduce(group, data, 100000, &why);
    enum status later = play->ops->all_gather(group, data, 100000, NULL);
    bool soon = time_now() - begun < 5 * TIME_S;
    pthread_join(thread, NULL);
    rank_board_arrive(board);
    play->ops->close(&group);
    if (!status || !later || !soon)
        gloo_play_end(board, 0, STATUS_FAILED, soon ? "went on" : "late");
    gloo_play_end(board, 0, STATUS_OK, "");
}

static void abort_ends_a_call_under_way_and_later_ones(void **state) {
    struct gloo_play play = {.ops = gloo_play_load(),
                             .lanes = lanes_of(state),
                             .size = 2,
                             .timeout = 30};
    for (int i = 0; i < 20; i++) {
        struct rank_board *board = rank_board_open();
        rank_board_start(board, 0, play_abort, &play);
        rank_board_start(board, 1, play_abort, &play);
        gloo_play_expect_well(board, 2);
        rank_board_close(&board);
    }
}

static void the_plugin_says_what_it_is(void **state) {
    (void)state;
    const struct collective_ops *ops = gloo_play_load();
    struct failure why = {0};
    assert_string_equal(ops->name, "gloo");
    assert_true(strlen(ops->version) > 2);
    assert_int_equal(ops->check(&why), STATUS_OK);
}

int main(void) {
#define BOTH(f)                                                                \
    {"over TCP: " #f, f, NULL, NULL, &kinds[0]}, {                             \
        "over shared memory: " #f, f, NULL, NULL, &kinds[1]                    \
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plugin_says_what_it_is),
        BOTH(every_call_is_right_on_all_ranks_and_has_the_same_bits_again),
        BOTH(a_killed_rank_is_named_by_all_within_seconds),
        BOTH(a_stopped_rank_is_named_by_all_when_time_is_over),
        BOTH(a_line_that_ends_is_no_time_that_is_over),
        BOTH(abort_ends_a_call_under_way_and_later_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
