/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void check(const struct cluster_case *forms, size_t count) {
    for (size_t i = 0; i < count; i++)
        cluster_case_check(&forms[i]);
}

static void rank_and_world_size_select_torch(void **state) {
    (void)state;
    static const struct cluster_case forms[] = {
        {"as torchrun writes it",
         {0},
         {{"LOCAL_RANK", "1"},
          {"RANK", "1"},
          {"GROUP_RANK", "0"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"WORLD_SIZE", "2"},
          {"MASTER_ADDR", "h"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RUN_ID", "none"}},
         "{'source': 'torch', 'role': 'worker', 'index': 1, "
         "'chief': 'h:29501'}"},
        {"as Kubeflow's PyTorchJob writes it",
         {0},
         {{"PYTHONUNBUFFERED", "1"},
          {"MASTER_PORT", "23456"},
          {"PET_MASTER_PORT", "23456"},
          {"MASTER_ADDR", "job-master-0"},
          {"PET_MASTER_ADDR", "job-master-0"},
          {"WORLD_SIZE", "3"},
          {"RANK", "2"},
          {"PET_NPROC_PER_NODE", "auto"},
          {"PET_NODE_RANK", "2"},
          {"PET_NNODES", "3"}},
         "{'source': 'torch', 'index': 2, 'num_workers': 3, "
         "'chief': 'job-master-0:23456'}"},
        {"as Azure ML writes it",
         {0},
         {{"MASTER_ADDR", "10.0.0.4"},
          {"MASTER_PORT", "6105"},
          {"WORLD_SIZE", "4"},
          {"RANK", "3"},
          {"LOCAL_RANK", "1"},
          {"NODE_RANK", "1"}},
         "{'source': 'torch', 'chief': '10.0.0.4:6105'}"},
        {"a port by default",
         {0},
         {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}},
         "{'chief': 'h:6105'}"},
        {"all on one host",
         {0},
         {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}},
         "{'chief': '127.0.0.1:54965'}"},
        {"before MPI and Slurm",
         {0},
         {{"RANK", "0"},
          {"WORLD_SIZE", "2"},
          {"MASTER_ADDR", "h"},
          {"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "3"},
          {"SLURM_PROCID", "1"}},
         "{'source': 'torch', 'index': 0}"},
        {"after CLUSTER_SPEC",
         {0},
         {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"CLUSTER_SPEC", "{}"}},
         "{'source': 'CLUSTER_SPEC'}"},
    };
    check(forms, sizeof forms / sizeof *forms);
}

static void address_and_local_ranks_alone_select_nothing(void **state) {
    (void)state;
    static const struct cluster_case forms[] = {
        {"the others",
         {0},
         {{"LOCAL_RANK", "1"},
          {"NODE_RANK", "1"},
          {"MASTER_ADDR", "h"},
          {"MASTER_PORT", "1"}},
         "{'source': 'alone'}"},
    };
    check(forms, sizeof forms / sizeof *forms);
}

static void two_jobs_of_one_host_have_different_keys(void **state) {
    (void)state;
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {
        {"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"MASTER_ADDR", "h"},
        {"MASTER_PORT", "29500"}};
    struct cluster *one, *other;
    assert_int_equal(
        cluster_resolve(&one, NULL, cluster_case_lookup, environment, NULL),
        STATUS_OK);
    environment[3].value = "29501";
    assert_int_equal(
        cluster_resolve(&other, NULL, cluster_case_lookup, environment, NULL),
        STATUS_OK);
    assert_string_not_equal(one->key, other->key);
    cluster_free(&one);
    cluster_free(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_and_world_size_select_torch),
        cmocka_unit_test(address_and_local_ranks_alone_select_nothing),
        cmocka_unit_test(two_jobs_of_one_host_have_different_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
