#include "worker/collectives.h"

#include "tests/rank_board.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void plugin_path(char path[PATH_MAX], const char *name) {
    const char *program = getenv("CAPSTAN");
    snprintf(path, PATH_MAX, "%s-%s.so", program ? program : "build/capstan",
             name);
}

static void a_plugin_is_looked_for_beside_the_program(void **state) {
    (void)state;
    char path[PATH_MAX];
    struct failure why = {0};
    const struct collective_ops *ops;
    collectives_path(path, "gloo");
    assert_true(*path == '/');
    assert_non_null(strstr(path, "/tests/capstan-gloo.so"));
    assert_int_equal(collectives_find(&ops, "gloo", &why), STATUS_FAILED);
    assert_null(ops);
    assert_non_null(strstr(why.text, "gloo: not in this build: there is no /"));
}

static void gloo_loads_once_and_works(void **state) {
    (void)state;
    char path[PATH_MAX];
    struct failure why = {0};
    const struct collective_ops *ops, *again;
    plugin_path(path, "gloo");
    if (collectives_load(&ops, path, &why) ||
        collectives_load(&again, path, &why))
        fail_msg("%s", why.text);
    assert_ptr_equal(ops, again);
    assert_string_equal(ops->name, "gloo");
    assert_int_equal(ops->check(&why), STATUS_OK);
}

/* Where there is a GPU it works, else it says so; without CUDA there is none.
 */
static void nccl_loads_and_works_or_says_what_is_missing(void **state) {
    (void)state;
    char path[PATH_MAX];
    struct failure why = {0};
    const struct collective_ops *ops;
    plugin_path(path, "nccl");
    if (collectives_load(&ops, path, &why)) {
        assert_non_null(strstr(why.text, path));
        return;
    }
    assert_string_equal(ops->name, "nccl");
    if (ops->check(&why)) {
        assert_non_null(strstr(why.text, "no GPU"));
        assert_int_equal(ops->devices(), 0);
    } else {
        assert_true(ops->devices() > 0);
    }
}

static void what_is_no_plugin_is_refused(void **state) {
    (void)state;
    char path[] = "/tmp/capstan-plugin-XXXXXX";
    struct failure why = {0};
    const struct collective_ops *ops;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(collectives_load(&ops, path, &why), STATUS_FAILED);
    assert_non_null(strstr(why.text, "does not load"));
    unlink(path);
    close(fd);
    assert_int_equal(
        collectives_load(&ops, "/lib/x86_64-linux-gnu/libz.so.1", &why),
        STATUS_FAILED);
}

#define GLOO .gloo = true
#define GPU(own, all) .gloo = true, .nccl = true, .device = own, .devices = all

static void expect_pick(enum job_backend wants,
                        const struct collectives_rank *ranks, uint32_t count,
                        const char *name, const char *part) {
    char reason[512];
    const char *picked =
        collectives_pick(wants, ranks, count, reason, sizeof reason);
    if ((!picked != !name) || (name && strcmp(picked, name)) ||
        !strstr(reason, part))
        fail_msg("%s: %s; expected %s: %s", picked ? picked : "none", reason,
                 name ? name : "none", part);
}

static void auto_takes_nccl_where_each_rank_has_a_device(void **state) {
    (void)state;
    const struct collectives_rank each[] = {{GPU(0, 2)}, {GPU(1, 2)}};
    const struct collectives_rank shared[] = {{GPU(0, 1)}, {GPU(1, 1)}};
    const struct collectives_rank one[] = {
        {GPU(0, 1)}, {GLOO, .missing = "nccl: no GPU on this host"}};
    const struct collectives_rank none[] = {{GLOO}, {.missing = "gloo: gone"}};
    expect_pick(JOB_BACKEND_AUTO, each, 2, "nccl", "a device of its own");
    expect_pick(JOB_BACKEND_AUTO, shared, 2, "gloo",
                "rank 1 has no device of its own: it is number 1 of its host, "
                "which has 1");
    expect_pick(JOB_BACKEND_AUTO, one, 2, "gloo",
                "rank 1 has no nccl (nccl: no GPU on this host)");
    expect_pick(JOB_BACKEND_AUTO, none, 2, NULL, "rank 1: gloo: gone");
    expect_pick(JOB_GLOO, each, 2, "gloo", "as the job says");
    expect_pick(JOB_GLOO, none, 2, NULL, "rank 1: gloo: gone");
    expect_pick(JOB_NCCL, each, 2, "nccl", "as the job says");
    expect_pick(JOB_NCCL, shared, 2, NULL, "start fewer there");
    expect_pick(JOB_NCCL, one, 2, NULL, "rank 1: nccl: no GPU");
}

/* Ends with what choosing gives: no plugin lies beside a test. */
static void play_choice(struct rank_board *board, uint32_t rank,
                        const void *context) {
    (void)context;
    struct failure why = {0};
    const struct collective_ops *ops;
    struct collective_settings settings = {
        .rank = rank, .size = 2, .store = &board->store, .timeout = 1};
    board->ends[rank].status =
        collectives_choose(&ops, JOB_BACKEND_AUTO, &settings, NULL, &why);
    snprintf(board->ends[rank].text, sizeof board->ends[rank].text, "%.500s",
             why.text);
}

static void all_ranks_choose_by_what_all_have_told(void **state) {
    (void)state;
    struct rank_board *board = rank_board_open();
    rank_board_start(board, 0, play_choice, NULL);
    rank_board_start(board, 1, play_choice, NULL);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(rank_board_end(board, i), 0);
        assert_int_equal(board->ends[i].status, STATUS_CONFIG);
        assert_non_null(
            strstr(board->ends[i].text, "needs gloo, but rank 0: "));
    }
    rank_board_close(&board);
    board = rank_board_open();
    rank_board_start(board, 0, play_choice, NULL);
    assert_int_equal(rank_board_end(board, 0), 0);
    assert_int_equal(board->ends[0].status, STATUS_RETRY);
    assert_non_null(strstr(board->ends[0].text, "rank 1 did not come"));
    rank_board_close(&board);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plugin_is_looked_for_beside_the_program),
        cmocka_unit_test(gloo_loads_once_and_works),
        cmocka_unit_test(nccl_loads_and_works_or_says_what_is_missing),
        cmocka_unit_test(what_is_no_plugin_is_refused),
        cmocka_unit_test(auto_takes_nccl_where_each_rank_has_a_device),
        cmocka_unit_test(all_ranks_choose_by_what_all_have_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
