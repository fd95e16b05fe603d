/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/strategy.h"

#include "tests/lib/test.h"

static struct failure why;
static struct strategy strategy;

static enum status choose(const struct job *job, uint32_t trainers,
                          uint32_t num_ps, bool alone) {
    struct strategy_case given = {trainers, num_ps, alone, STRATEGY_BY_LISTS};
    return strategy_choose(&strategy, job, &given, NULL, &why);
}

TEST(listed_ps_select_the_ps_strategy) {
    struct job job = {0};
    assert_int_equal(choose(&job, 2, 1, false), STATUS_OK);
    assert_false(strategy.allreduce);
    job.strategy = JOB_PS;
    assert_int_equal(choose(&job, 2, 1, false), STATUS_OK);
    assert_false(strategy.allreduce);
}

TEST(several_trainers_without_ps_select_all_reduce) {
    struct job job = {0};
    assert_int_equal(choose(&job, 2, 0, false), STATUS_OK);
    assert_true(strategy.allreduce);
    assert_string_equal(strategy.backend, "auto");
    job.backend = JOB_GLOO;
    assert_int_equal(choose(&job, 2, 0, false), STATUS_OK);
    assert_string_equal(strategy.backend, "gloo");
}

TEST(the_job_overrides_the_cluster) {
    struct job job = {.strategy = JOB_ALLREDUCE, .backend = JOB_NCCL};
    assert_int_equal(choose(&job, 2, 3, false), STATUS_OK);
    assert_true(strategy.allreduce);
    assert_string_equal(strategy.backend, "nccl");
    job.strategy = JOB_PS;
    assert_fails(choose(&job, 2, 0, false), &why, FAILURE_JOB_UNFIT);
    assert_contains(why.text, "lists no ps");
}

TEST(one_trainer_without_ps_keeps_its_weights) {
    struct job job = {0};
    assert_int_equal(choose(&job, 1, 0, true), STATUS_OK);
    assert_false(strategy.allreduce);
    job.strategy = JOB_PS;
    assert_int_equal(choose(&job, 1, 0, true), STATUS_OK);
}

TEST(a_round_keeps_a_trainer_whatever_is_to_spare) {
    struct job job = {.backup_workers = 2};
    assert_int_equal(choose(&job, 3, 1, false), STATUS_OK);
    assert_fails(choose(&job, 2, 1, false), &why, FAILURE_JOB_UNFIT);
    assert_contains(why.text, "found 2, and the run has 2 trainers");
    assert_fails(choose(&job, 1, 0, true), &why, FAILURE_JOB_UNFIT);
    assert_fails(choose(&job, 3, 0, false), &why, FAILURE_JOB_UNFIT);
    assert_contains(why.text, "strategy.backup_workers is set");
}

TEST(a_cluster_without_trainers_is_an_error) {
    struct job job = {0};
    assert_fails(choose(&job, 0, 1, false), &why, FAILURE_JOB_UNFIT);
    assert_contains(why.text, "no trainer at all");
}

TEST(advice_uses_the_launchers_terms) {
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
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct strategy_case no_ps = {2, 0, false, cases[i].members};
        struct strategy_case nobody = {0, 1, false, cases[i].members};
        assert_fails(strategy_choose(&strategy, &ps, &no_ps, NULL, &why), &why,
                     FAILURE_JOB_UNFIT);
        assert_contains(why.text, cases[i].ps);
        assert_fails(strategy_choose(&strategy, &ps, &nobody, NULL, &why), &why,
                     FAILURE_JOB_UNFIT);
        assert_contains(why.text, cases[i].worker);
    }
}

/* Said of the job alone they would be no error: the cluster makes them one. */
TEST(settings_unsupported_by_all_reduce_are_named) {
    struct job stale = {.staleness = JOB_STALENESS_INF};
    struct job halved = {.wire = JOB_WIRE_BF16};
    assert_fails(choose(&stale, 2, 0, false), &why, FAILURE_JOB_UNFIT);
    assert_contains(why.text, "strategy.staleness");
    assert_fails(choose(&halved, 2, 0, false), &why, FAILURE_JOB_UNFIT);
    assert_contains(why.text, "wire is bf16");
    assert_int_equal(choose(&stale, 2, 1, false), STATUS_OK);
    assert_int_equal(choose(&halved, 2, 1, false), STATUS_OK);
}

TEST(auto_selects_nccl_when_each_trainer_has_a_device) {
    struct job job = {0};
    struct strategy_rank ranks[] = {{"worker 0", "device a", "", 1},
                                    {"worker 1", "device b", "", 1},
                                    {"worker 2", "device c", "", 1}};
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

TEST(offloaded_state_and_gloo_sums_use_host_memory) {
    struct job job = {0};
    struct strategy_rank ranks[] = {{"worker 0", "device a", "", 1},
                                    {"worker 1", "device a", "", 1}};
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
