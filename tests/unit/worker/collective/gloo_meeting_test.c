/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks of the gloo plugin meet, by TCP, before there is a line of either
 * kind; who does not come or goes, and strangers. */
#include "proto/base/time.h"
#include "tests/lib/gloo_play.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void a_rank_that_never_comes_is_named(void **state) {
    (void)state;
    struct gloo_play play = {
        .ops = gloo_play_load(), .lanes = true, .size = 3, .timeout = 1};
    struct rank_board *board = rank_board_open();
    int64_t begun = time_now();
    rank_board_start(board, 0, gloo_play_without_end, &play);
    rank_board_start(board, 1, gloo_play_without_end, &play);
    for (uint32_t i = 0; i < 2; i++) {
        rank_board_end(board, i);
        assert_int_equal(board->ends[i].status, STATUS_RETRY);
        assert_non_null(strstr(board->ends[i].text, "rank 2 did not come"));
    }
    assert_true(time_now() - begun < 4 * TIME_S);
    rank_board_close(&board);
}

/* Shows DO what this process listens to, with the address. */
static void for_each_listener(
    void (*do_with)(int fd, const struct sockaddr_storage *address)) {
    for (int fd = 3; fd < 64; fd++) {
        struct sockaddr_storage address;
        socklen_t size = sizeof address, word = sizeof(int);
        int listens = 0;
        if (!getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &word) &&
            listens && !getsockname(fd, (struct sockaddr *)&address, &size))
            do_with(fd, &address);
    }
}

/* The store of a rank that goes when it has told where it is. */
static struct collective_store last_word;

static enum status tell_and_go(void *context, const char *key,
                               const void *value, size_t size,
                               struct failure *why) {
    struct collective_store *board = context;
    if (!board->set(board->context, key, value, size, why) &&
        !strncmp(key, "gloo.at.", 8))
        _exit(0);
    return STATUS_OK;
}

static enum status hear(void *context, const char *key, int64_t until,
                        void **value, size_t *size, struct failure *why) {
    struct collective_store *board = context;
    return board->get(board->context, key, until, value, size, why);
}

static void go_while_meeting(struct rank_board *board, uint32_t rank,
                             const void *context) {
    last_word = (struct collective_store){
        .context = &board->store, .set = tell_and_go, .get = hear};
    struct rank_board *mine = malloc(sizeof *mine);
    *mine = *board; /* its store alone is another */
    mine->store = last_word;
    gloo_play_without_end(mine, rank, context);
}

/* Rank GONE plays GOES; the other, which plays STAYS, fails within SECONDS,
 * however long a step may take. Returns what it says, for free(3). */
static char *play_beside(uint32_t gone, gloo_play_part *goes,
                         gloo_play_part *stays, int seconds) {
    struct gloo_play play = {
        .ops = gloo_play_load(), .lanes = true, .size = 2, .timeout = 1000};
    struct rank_board *board = rank_board_open();
    struct rank_end *end = &board->ends[1 - gone];
    int64_t begun = time_now();
    rank_board_start(board, gone, goes, &play);
    rank_board_start(board, 1 - gone, stays, &play);
    rank_board_end(board, 1 - gone);
    assert_int_equal(end->status, STATUS_RETRY);
    assert_true(time_now() - begun < seconds * TIME_S);
    char *text = strdup(end->text);
    rank_board_close(&board);
    return text;
}

/* It may have answered by its last breath. */
static void a_rank_that_goes_while_ranks_meet_is_named(void **state) {
    (void)state;
    for (uint32_t gone = 0; gone < 2; gone++) {
        char name[32];
        char *text =
            play_beside(gone, go_while_meeting, gloo_play_without_end, 20);
        snprintf(name, sizeof name, "rank %u ", gone);
        if (strncmp(text, name, strlen(name)))
            fail_msg("%s", text);
        free(text);
    }
}

static void close_listener(int fd, const struct sockaddr_storage *address) {
    (void)address;
    close(fd);
}

/* Nobody meets it: the system answers for a process that still listens. */
static enum status tell_unheard(void *context, const char *key,
                                const void *value, size_t size,
                                struct failure *why) {
    if (!strncmp(key, "gloo.at.", 8))
        for_each_listener(close_listener);
    return tell_and_go(context, key, value, size, why);
}

static void go_unheard(struct rank_board *board, uint32_t rank,
                       const void *context) {
    struct collective_store store = {
        .context = &board->store, .set = tell_unheard, .get = hear};
    gloo_play_meet_by(&store, board, rank, context);
}

static enum status set_there(void *context, const char *key, const void *value,
                             size_t size, struct failure *why) {
    (void)context;
    return last_word.set(last_word.context, key, value, size, why);
}

static enum status get_there(void *context, const char *key, int64_t until,
                             void **value, size_t *size, struct failure *why) {
    (void)context;
    return last_word.get(last_word.context, key, until, value, size, why);
}

static bool is_late(void *context) {
    const int64_t *until = context;
    return time_now() > *until;
}

/* Its meeting is given up a little later. */
static void give_up_soon(struct rank_board *board, uint32_t rank,
                         const void *context) {
    int64_t until = time_now() + TIME_S / 2;
    struct collective_store store = {&until, set_there, get_there, is_late};
    last_word = board->store;
    gloo_play_meet_by(&store, board, rank, context);
    gloo_play_end(board, rank, STATUS_OK, "it met one that is gone");
}

static void a_meeting_that_is_given_up_ends_soon(void **state) {
    (void)state;
    for (uint32_t gone = 0; gone < 2; gone++)
        free(play_beside(gone, go_unheard, give_up_soon, 5));
}

static void reset(int fd, const struct sockaddr_storage *address) {
    static const struct linger at_once = {1, 0};
    (void)fd;
    int stranger = socket(address->ss_family, SOCK_STREAM, 0);
    connect(stranger, (const struct sockaddr *)address, sizeof *address);
    setsockopt(stranger, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(stranger);
}

static enum status reset_and_tell(void *context, const char *key,
                                  const void *value, size_t size,
                                  struct failure *why) {
    struct collective_store *board = context;
    if (!strncmp(key, "gloo.at.", 8))
        for_each_listener(reset);
    return board->set(board->context, key, value, size, why);
}

static void meet_beside_strangers(struct rank_board *board, uint32_t rank,
                                  const void *context) {
    static struct collective_store beset;
    beset = (struct collective_store){
        .context = &board->store, .set = reset_and_tell, .get = hear};
    struct rank_board *mine = malloc(sizeof *mine);
    *mine = *board;
    mine->store = beset;
    struct collective *group = gloo_play_meet(mine, rank, context);
    const struct gloo_play *play = context;
    struct failure why = {0};
    float one = 1;
    enum status status = play->ops->all_reduce(group, &one, 1, &why);
    play->ops->close(&group);
    gloo_play_end(mine, rank, status, why.text);
}

/* Gloo's thread throws at some of them, which must not end the process. */
static void a_stranger_that_resets_its_connection_ends_no_process(
    void **state) {
    (void)state;
    for (int round = 0; round < 3; round++) {
        struct gloo_play play = {
            .ops = gloo_play_load(), .lanes = true, .size = 2, .timeout = 2};
        struct rank_board *board = rank_board_open();
        for (uint32_t i = 0; i < 2; i++)
            rank_board_start(board, i, meet_beside_strangers, &play);
        for (uint32_t i = 0; i < 2; i++)
            assert_in_range(rank_board_end(board, i), 0, 1);
        rank_board_close(&board);
    }
}

static enum status tell(void *context, const char *key, const void *value,
                        size_t size, struct failure *why) {
    struct collective_store *board = context;
    return board->set(board->context, key, value, size, why);
}

static enum status reset_and_fail(void *context, const char *key, int64_t until,
                                  void **value, size_t *size,
                                  struct failure *why) {
    struct collective_store *board = context;
    if (strncmp(key, "gloo.at.", 8))
        return board->get(board->context, key, until, value, size, why);
    for_each_listener(reset);
    return status_fail(why, STATUS_RETRY, "nobody else comes");
}

static void fail_beside_strangers(struct rank_board *board, uint32_t rank,
                                  const void *context) {
    struct collective_store beset = {
        .context = &board->store, .set = tell, .get = reset_and_fail};
    gloo_play_meet_by(&beset, board, rank, context);
    gloo_play_end(board, rank, STATUS_OK, "it met nobody");
}

/* Gloo's thread throws while what it holds is freed, or before. */
static void a_stranger_that_resets_as_ranks_part_holds_nobody_up(void **state) {
    (void)state;
    struct gloo_play play = {
        .ops = gloo_play_load(), .lanes = true, .size = 2, .timeout = 2};
    for (int round = 0; round < 10; round++) {
        struct rank_board *board = rank_board_open();
        int64_t begun = time_now();
        for (uint32_t i = 0; i < 2; i++)
            rank_board_start(board, i, fail_beside_strangers, &play);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(rank_board_end(board, i), 1);
            assert_non_null(strstr(board->ends[i].text, "nobody else comes"));
        }
        assert_true(time_now() - begun < 10 * TIME_S);
        rank_board_close(&board);
    }
}

/* The store as a rank sees it whose others are on another host. */
static enum status get_elsewhere(void *context, const char *key, int64_t until,
                                 void **data, size_t *size,
                                 struct failure *why) {
    struct rank_board *board = context;
    enum status status = board->store.get(context, key, until, data, size, why);
    if (!status && !strcmp(key, "gloo.host.1"))
        memset(*data, 'x', 8);
    return status;
}

static void play_elsewhere(struct rank_board *board, uint32_t rank,
                           const void *context) {
    const struct gloo_play *play = context;
    struct collective *group;
    struct failure why = {0};
    struct collective_store store = {
        .context = board, .set = board->store.set, .get = get_elsewhere};
    struct collective_settings settings = {.rank = rank,
                                           .size = 2,
                                           .host = play->host,
                                           .store = &store,
                                           .timeout = 1};
    gloo_play_end(board, rank, play->ops->open(&group, &settings, &why),
                  why.text);
}

static void an_address_that_others_do_not_reach_is_not_taken(void **state) {
    (void)state;
    struct gloo_play play = {.ops = gloo_play_load(),
                             .lanes = true,
                             .size = 2,
                             .timeout = 5,
                             .host = "localhost"};
    struct rank_board *board = rank_board_open();
    rank_board_start(board, 0, play_elsewhere, &play);
    rank_board_start(board, 1, play_elsewhere, &play);
    rank_board_end(board, 0);
    assert_int_equal(board->ends[0].status, STATUS_RETRY);
    assert_non_null(strstr(board->ends[0].text,
                           "rank 0: \"localhost\" is no address of this host "
                           "that other hosts reach"));
    rank_board_close(&board);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_never_comes_is_named),
        cmocka_unit_test(a_rank_that_goes_while_ranks_meet_is_named),
        cmocka_unit_test(a_meeting_that_is_given_up_ends_soon),
        cmocka_unit_test(a_stranger_that_resets_its_connection_ends_no_process),
        cmocka_unit_test(a_stranger_that_resets_as_ranks_part_holds_nobody_up),
        cmocka_unit_test(an_address_that_others_do_not_reach_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
