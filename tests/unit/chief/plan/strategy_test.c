/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/strategy.h"

#include "tests/lib/assert_fails.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static struct failure why;
static struct strategy strategy;

static enum status choose(const struct job *job, uint32_t trainers,
                          uint32_t num_ps, bool alone) {
    struct strategy_case given = {trainers, num_ps, alone, STRATEGY_BY_LISTS};
    return strategy_choose(&strategy, job, &given, NULL, &why);
}

static void listed_ps_select_the_ps_strategy(void **state) {
    struct job job = {0};
    (void)state;
    assert_int_equal(choose(&job, 2, 1, false), STATUS_OK);
    assert_false(strategy.allreduce);
    job.strategy = JOB_PS;
    assert_int_equal(choose(&job, 2, 1, false), STATUS_OK);
    assert_false(strategy.allreduce);
}

static void several_trainers_without_ps_select_all_reduce(void **state) {
    struct job job = {0};
    (void)state;
    assert_int_equal(choose(&job, 2, 0, false), STATUS_OK);
    assert_true(strategy.allreduce);
    assert_string_equal(strategy.backend, "auto");
    job.backend = JOB_GLOO;
    assert_int_equal(choose(&job, 2, 0, false), STATUS_OK);
    assert_string_equal(strategy.backend, "gloo");
}

static void the_job_overrides_the_cluster(void **state) {
    struct job job = {.strategy = JOB_ALLREDUCE, .backend = JOB_NCCL};
    (void)state;
    assert_int_equal(choose(&job, 2, 3, false), STATUS_OK);
    assert_true(strategy.allreduce);
    assert_string_equal(strategy.backend, "nccl");
    job.strategy = JOB_PS;
    assert_fails(choose(&job, 2, 0, false), &why, FAILURE_JOB_UNFIT);
    assert_non_null(strstr(why.text, "lists no ps"));
}

static void one_trainer_without_ps_keeps_its_weights(void **state) {
    struct job job = {0};
    (void)state;
    assert_int_equal(choose(&job, 1, 0, true), STATUS_OK);
    assert_false(strategy.allreduce);
    job.strategy = JOB_PS;
    assert_int_equal(choose(&job, 1, 0, true), STATUS_OK);
}

static void a_cluster_without_trainers_is_an_error(void **state) {
    struct job job = {0};
    (void)state;
    assert_fails(choose(&job, 0, 1, false), &why, FAILURE_JOB_UNFIT);
    assert_non_null(strstr(why.text, "no trainer at all"));
}

static void advice_uses_the_launchers_terms(void **state) {
    static const struct {
        enum strategy_members members;
        const char *ps, *worker;
    } cases[] = {
        {STRATEGY_BY_LISTS, "list a ps", "list a worker"},
        {STRATEGY_BY_RANKS, "--num-ps N", "more processes"},
        {STRATEGY_BY_FLAGS, "--ps N", "--workers N"},
        {STRATEGY_BY_COUNTS, "parameter_server_count", "worker_count"},
    };
    struct job ps = {.strategy = JOB_PS};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct strategy_case no_ps = {2, 0, false, cases[i].members};
        struct strategy_case nobody = {0, 1, false, cases[i].members};
        assert_fails(strategy_choose(&strategy, &ps, &no_ps, NULL, &why), &why,
                     FAILURE_JOB_UNFIT);
        assert_non_null(strstr(why.text, cases[i].ps));
        assert_fails(strategy_choose(&strategy, &ps, &nobody, NULL, &why), &why,
                     FAILURE_JOB_UNFIT);
        assert_non_null(strstr(why.text, cases[i].worker));
    }
}

/* Said of the job alone they would be no error: the cluster makes them one. */
static void settings_unsupported_by_all_reduce_are_named(void **state) {
    struct job stale = {.staleness = JOB_STALENESS_INF};
    struct job halved = {.wire = JOB_WIRE_BF16};
    (void)state;
    assert_fails(choose(&stale, 2, 0, false), &why, FAILURE_JOB_UNFIT);
    assert_non_null(strstr(why.text, "strategy.staleness"));
    assert_fails(choose(&halved, 2, 0, false), &why, FAILURE_JOB_UNFIT);
    assert_non_null(strstr(why.text, "wire is bf16"));
    assert_int_equal(choose(&stale, 2, 1, false), STATUS_OK);
    assert_int_equal(choose(&halved, 2, 1, false), STATUS_OK);
}

static void auto_selects_nccl_when_each_trainer_has_a_device(void **state) {
    struct job job = {0};
    struct strategy_rank ranks[] = {{"worker 0", "device a", "", 1},
                                    {"worker 1", "device b", "", 1},
                                    {"worker 2", "device c", "", 1}};
    (void)state;
    assert_string_equal(strategy_resolve_backend(&job, ranks, 3, NULL), "nccl");
    ranks[2].device = "device a";
    assert_string_equal(strategy_resolve_backend(&job, ranks, 3, NULL), "gloo");
    assert_string_equal(strategy_resolve_backend(&job, ranks, 2, NULL), "nccl");
    ranks[1].without_nccl = "no libnccl.so.2";
    assert_string_equal(strategy_resolve_backend(&job, ranks, 2, NULL), "gloo");
    ranks[1] = (struct strategy_rank){"worker 1", NULL, "", 1};
    assert_string_equal(strategy_resolve_backend(&job, ranks, 2, NULL), "gloo");
    assert_string_equal(strategy_resolve_backend(&job, ranks, 1, NULL), "nccl");
    ranks[0].replicas = 2;
    assert_string_equal(strategy_resolve_backend(&job, ranks, 1, NULL), "gloo");
    ranks[0].replicas = 1;
    job.zero.offload = true;
    assert_string_equal(strategy_resolve_backend(&job, ranks, 1, NULL), "gloo");
}

static void offloaded_state_and_gloo_sums_use_host_memory(void **state) {
    struct job job = {0};
    struct strategy_rank ranks[] = {{"worker 0", "device a", "", 1},
                                    {"worker 1", "device a", "", 1}};
    (void)state;
    assert_true(strategy_resident(&job, "nccl", ranks, 2));
    assert_false(strategy_resident(&job, "gloo", ranks, 2));
    assert_true(strategy_resident(&job, "gloo", ranks, 1));
    ranks[1].replicas = 2;
    assert_false(strategy_resident(&job, "nccl", ranks, 2));
    ranks[1] = (struct strategy_rank){"worker 1", NULL, "", 1};
    assert_false(strategy_resident(&job, "nccl", ranks, 2));
    job.zero.offload = true;
    assert_false(strategy_resident(&job, "nccl", ranks, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(listed_ps_select_the_ps_strategy),
        cmocka_unit_test(several_trainers_without_ps_select_all_reduce),
        cmocka_unit_test(the_job_overrides_the_cluster),
        cmocka_unit_test(one_trainer_without_ps_keeps_its_weights),
        cmocka_unit_test(a_cluster_without_trainers_is_an_error),
        cmocka_unit_test(advice_uses_the_launchers_terms),
        cmocka_unit_test(settings_unsupported_by_all_reduce_are_named),
        cmocka_unit_test(auto_selects_nccl_when_each_trainer_has_a_device),
        cmocka_unit_test(offloaded_state_and_gloo_sums_use_host_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
