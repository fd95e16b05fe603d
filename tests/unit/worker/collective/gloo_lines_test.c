/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of both kinds beside each other, and what becomes of shared memory when
 * a rank cannot have it, breaks its rules or is killed. */
#include "proto/base/time.h"
#include "proto/net/shm/buffer.h"
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
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static const char shared[] = "over shared memory";

static uint64_t bits_over_tcp(struct gloo_play play) {
    play.lanes = false;
    play.prepare = NULL;
    for (uint32_t i = 0; i < play.size; i++)
        play.ways[i] = "";
    return gloo_play_run_all(play);
}

static void both_kinds_of_line_give_the_same_bits(void **state) {
    (void)state;
    struct gloo_play play = {
        .ops = gloo_play_load(), .lanes = true, .timeout = 20};
    for (play.size = 2; play.size <= 4; play.size++)
        for (int algorithm = 0; algorithm < 2; algorithm++) {
            play.algorithm =
                algorithm ? COLLECTIVE_HALVING_DOUBLING : COLLECTIVE_RING;
            for (uint32_t i = 0; i < play.size; i++)
                play.ways[i] = shared;
            assert_true(gloo_play_run_all(play) == bits_over_tcp(play));
        }
}

/* Rank 1 gets no memory that can be shared. */
static void limit(uint32_t rank, struct collective_settings *settings) {
    struct rlimit files = {4096, 4096};
    (void)settings;
    if (rank != 1)
        return;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &files);
}

/* It calls rank 0, and rank 2 calls it, with memory of its own. */
static void a_rank_that_cannot_share_memory_goes_over_tcp_and_says_why(
    void **state) {
    (void)state;
    struct gloo_play play = {
        .ops = gloo_play_load(),
        .lanes = true,
        .timeout = 20,
        .prepare = limit,
        .ways = {"over shared memory with 1 of 2 ranks",
                 "over TCP with rank 0, though on this host: no shared memory: "
                 "File too large",
                 shared}};
    for (play.size = 3; play.size >= 2; play.size--) {
        uint64_t bits = gloo_play_run_all(play);
        assert_true(bits == bits_over_tcp(play));
        play.ways[0] = "";
    }
}

static void refuse(uint32_t rank, struct collective_settings *settings) {
    settings->lanes = rank != 1;
}

/* There is room enough, but not for whatever others show. */
static void limit_space(uint32_t rank, struct collective_settings *settings) {
    struct rlimit space = {(rlim_t)1 << 47, (rlim_t)1 << 47};
    (void)settings;
    if (rank == 1)
        setrlimit(RLIMIT_AS, &space);
}

static void who_does_not_want_to_share_memory_does_not(void **state) {
    (void)state;
    struct gloo_play play = {.ops = gloo_play_load(),
                             .size = 3,
                             .timeout = 20,
                             .prepare = refuse,
                             .ways = {"over shared memory with 1 of 2 ranks",
                                      "",
                                      "over shared memory with 1 of 2 ranks"}};
    assert_true(gloo_play_run_all(play) == bits_over_tcp(play));
    play.prepare = limit_space;
    play.lanes = true;
    assert_true(gloo_play_run_all(play) == bits_over_tcp(play));
}

/* Everything that this process shares, from the rings' heads on; false: it
 * shares nothing. */
static bool write_over_shared_memory(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    bool shares = false;
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (strstr(line, "memfd:capstan") &&
            sscanf(line, "%lx-%lx", &from, &to) == 2) {
            memset((char *)from + 64, 0x5a, to - from - 64);
            shares = true;
        }
    }
    fclose(maps);
    return shares;
}

/* Rank 1 breaks all rules, and goes when all others have ended. */
static void play_beside_a_breaker(struct rank_board *board, uint32_t rank,
                                  const void *context) {
    static float data[300000];
    const struct gloo_play *play = context;
    struct collective *group = gloo_play_meet(board, rank, play);
    struct failure why = {0};
    enum status status = play->ops->all_reduce(group, data, 300000, &why);
    rank_board_arrive(board);
    rank_board_await(board, play->size);
    if (rank == 1) {
        bool wrote = write_over_shared_memory();
        rank_board_await(board, 2 * play->size - 1);
        _exit(!wrote);
    }
    while (!status)
        status = play->ops->all_reduce(group, data, 300000, &why);
    rank_board_arrive(board);
    play->ops->close(&group);
    gloo_play_end(board, rank, status, why.text);
}

/* By who reads what it writes at once, else as one that reads nothing. */
static void who_breaks_the_rules_of_shared_memory_is_named(void **state) {
    (void)state;
    for (uint32_t size = 2; size <= 3; size++) {
        struct gloo_play play = {
            .ops = gloo_play_load(), .size = size, .lanes = true, .timeout = 2};
        struct rank_board *board = rank_board_open();
        int64_t begun = time_now();
        for (uint32_t i = 0; i < size; i++)
            rank_board_start(board, i, play_beside_a_breaker, &play);
        gloo_play_expect_named(board, size, 1, "");
        assert_int_equal(rank_board_end(board, 1), 0);
        assert_true(time_now() - begun < 10 * TIME_S);
        rank_board_close(&board);
    }
}

/* Is there a line with TEXT in this process's map? */
static bool has_mapped(const char *text) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    bool found = false;
    while (fgets(line, sizeof line, maps))
        found |= strstr(line, text) != NULL;
    fclose(maps);
    return found;
}

enum { FLOATS = 150001, ROUNDS = 40 };

/* Of each round of a trainer: gradients are added up, each rank makes weights
 * of its piece, and all gather them. */
static void train(struct rank_board *board, uint32_t rank,
                  const struct gloo_play *play, struct collective *group,
                  float *gradients, float *weights) {
    struct failure why;
    size_t first, own = collective_piece(FLOATS, rank, play->size, &first);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < FLOATS; i++)
            gradients[i] = gloo_play_value(rank, i + round);
        gloo_play_expect_call(
            board, rank,
            play->ops->reduce_scatter(group, gradients, FLOATS, &why), &why);
        for (size_t i = first; i < first + own; i++)
            weights[i] = weights[i] * 0.5f + gradients[i];
        gloo_play_expect_call(
            board, rank, play->ops->all_gather(group, weights, FLOATS, &why),
            &why);
        gloo_play_note_bits(&board->ends[rank], weights,
                            FLOATS * sizeof(float));
        gloo_play_expect_call(
            board, rank,
            play->ops->all_reduce(group, gradients, FLOATS / 2, &why), &why);
    }
}

static void train_in_buffers(struct rank_board *board, uint32_t rank,
                             const void *context) {
    const struct gloo_play *play = context;
    struct collective *group = gloo_play_meet(board, rank, play);
    struct buffer *gradients = buffer_open_shared(FLOATS * sizeof(float));
    struct buffer *weights = buffer_open_shared(FLOATS * sizeof(float));
    if (play->shows) {
        play->ops->show(group, gradients);
        play->ops->show(group, weights);
    }
    train(board, rank, play, group, buffer_data(gradients),
          buffer_data(weights));
    bool reads = has_mapped(" r--s ");
    play->ops->close(&group);
    buffer_release(&gradients);
    buffer_release(&weights);
    if (reads != (play->shows && play->lanes))
        gloo_play_end(board, rank, STATUS_FAILED,
                      reads ? "it maps what is not shown" : "it maps nothing");
    gloo_play_end(board, rank, STATUS_OK, "");
}

static void what_is_shown_is_read_where_it_lies_and_gives_the_same_bits(
    void **state) {
    (void)state;
    struct gloo_play play = {.ops = gloo_play_load(), .timeout = 20};
    for (play.size = 2; play.size <= 4; play.size++) {
        play.lanes = play.shows = false;
        uint64_t bits = gloo_play_run(&play, train_in_buffers);
        play.shows = true; /* nobody reads it over TCP */
        assert_true(gloo_play_run(&play, train_in_buffers) == bits);
        play.lanes = true;
        assert_true(gloo_play_run(&play, train_in_buffers) == bits);
        play.shows = false;
        assert_true(gloo_play_run(&play, train_in_buffers) == bits);
    }
}

/* Nothing that it shares has a name in a file system, where it could stay. */
static void play_and_wait(struct rank_board *board, uint32_t rank,
                          const void *context) {
    static float data[300000];
    const struct gloo_play *play = context;
    struct collective *group = gloo_play_meet(board, rank, play);
    struct failure why = {0};
    play->ops->all_reduce(group, data, 300000, &why);
    board->ends[rank].bits = has_mapped("/memfd:") && !has_mapped("/dev/shm/");
    rank_board_arrive(board);
    rank_board_await(board, play->size + 1);
}

static void who_is_killed_leaves_nothing(void **state) {
    (void)state;
    struct gloo_play play = {
        .ops = gloo_play_load(), .size = 3, .lanes = true, .timeout = 30};
    struct rank_board *board = rank_board_open();
    for (uint32_t i = 0; i < 3; i++)
        rank_board_start(board, i, play_and_wait, &play);
    assert_true(rank_board_await(board, 3));
    for (uint32_t i = 0; i < 3; i++)
        kill(board->pids[i], SIGKILL);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(rank_board_end(board, i), -SIGKILL);
        assert_true(board->ends[i].bits);
    }
    rank_board_close(&board);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_kinds_of_line_give_the_same_bits),
        cmocka_unit_test(
            a_rank_that_cannot_share_memory_goes_over_tcp_and_says_why),
        cmocka_unit_test(who_does_not_want_to_share_memory_does_not),
        cmocka_unit_test(
            what_is_shown_is_read_where_it_lies_and_gives_the_same_bits),
        cmocka_unit_test(who_breaks_the_rules_of_shared_memory_is_named),
        cmocka_unit_test(who_is_killed_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
