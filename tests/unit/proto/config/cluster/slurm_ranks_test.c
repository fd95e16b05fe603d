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

#define STEP(rank, size, nodes, counts)                                        \
    {"SLURM_PROCID", rank}, {"SLURM_STEP_NUM_TASKS", size},                    \
        {"SLURM_STEP_NODELIST", nodes}, {                                      \
        "SLURM_STEP_TASKS_PER_NODE", counts                                    \
    }

static void a_task_of_a_step_knows_its_cluster(void **state) {
    (void)state;
    static const struct cluster_case forms[] = {
        {"two nodes",
         {.num_ps = "1"},
         {STEP("2", "3", "n[001-002]", "2,1"), {"SLURM_LOCALID", "0"}},
         "{'source': 'slurm', 'role': 'ps', 'index': 0, 'num_workers': 2, "
         "'chief': 'n001:6105'}"},
        {"one node",
         {0},
         {STEP("1", "2", "n7", "2"), {"SLURM_LOCALID", "1"}},
         "{'chief': '127.0.0.1:54965'}"},
        {"the step counts, not the job",
         {0},
         {STEP("1", "2", "n[8-9]", "1(x2)"),
          {"SLURM_NTASKS", "9"},
          {"SLURM_JOB_NODELIST", "n[1-9]"}},
         "{'num_workers': 2, 'chief': 'n8:6105'}"},
        {"what older scripts set",
         {0},
         {{"SLURM_PROCID", "0"},
          {"SLURM_NTASKS", "2"},
          {"SLURM_JOB_NODELIST", "a,b"}},
         "{'num_workers': 2, 'chief': 'a:6105', 'is_chief': true}"},
        {"another address",
         {0},
         {STEP("0", "2", "n[1-2]", "1(x2)"),
          {"MASTER_ADDR", "ib1"},
          {"MASTER_PORT", "7"}},
         "{'chief': 'ib1:7'}"},
        {"the script of a batch job",
         {0},
         {{"SLURM_PROCID", "0"},
          {"SLURM_NTASKS", "2"},
          {"ENVIRONMENT", "BATCH"}},
         "{'source': 'alone'}"},
        {"a task of a batch job",
         {0},
         {STEP("0", "2", "n[1-2]", "1(x2)"), {"ENVIRONMENT", "BATCH"}},
         "{'source': 'slurm'}"},
        {"an allocation's shell",
         {0},
         {{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "2"}},
         "{'source': 'alone'}"},
    };
    check(forms, sizeof forms / sizeof *forms);
}

static void contradictory_variables_are_refused(void **state) {
    (void)state;
    static const struct cluster_case forms[] = {
        {"a list cut off",
         {0},
         {STEP("0", "2", "n[1-2", "1(x2)")},
         "bad_node_list"},
        {"counts of other nodes",
         {0},
         {STEP("0", "2", "n[1-3]", "1(x2)")},
         "task_counts_differ"},
        {"counts of other tasks",
         {0},
         {STEP("0", "3", "n[1-2]", "1(x2)")},
         "task_counts_differ"},
        {"no counts",
         {0},
         {STEP("0", "2", "n[1-2]", "1x2")},
         "bad_task_counts"},
        {"no size", {0}, {{"SLURM_PROCID", "0"}}, "world_size_missing"},
        {"a rank past the end",
         {0},
         {STEP("2", "2", "n[1-2]", "1(x2)")},
         "index_out_of_range"},
    };
    check(forms, sizeof forms / sizeof *forms);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_task_of_a_step_knows_its_cluster),
        cmocka_unit_test(contradictory_variables_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
