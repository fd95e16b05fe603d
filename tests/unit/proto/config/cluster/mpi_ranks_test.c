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

static void open_mpi_variables_give_rank_and_size(void **state) {
    (void)state;
    static const struct cluster_case forms[] = {
        {"on one host",
         {.num_ps = "1"},
         {{"OMPI_COMM_WORLD_RANK", "3"},
          {"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}},
         "{'source': 'mpi', 'role': 'ps', 'index': 0, 'num_workers': 3, "
         "'chief': '127.0.0.1:54965'}"},
        {"on Azure's hosts",
         {0},
         {{"OMPI_COMM_WORLD_RANK", "2"},
          {"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"AZ_BATCH_MASTER_NODE", "10.0.0.4:6000"},
          {"AZ_BATCHAI_MPI_MASTER_NODE", "10.0.0.4"}},
         "{'source': 'mpi', 'role': 'worker', 'index': 2, "
         "'chief': '10.0.0.4:6000'}"},
        {"the address by mpirun -x",
         {0},
         {{"OMPI_COMM_WORLD_RANK", "0"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
          {"MASTER_ADDR", "h"},
          {"MASTER_PORT", "7"}},
         "{'is_chief': true, 'chief': 'h:7'}"},
        {"before Slurm",
         {0},
         {{"OMPI_COMM_WORLD_RANK", "0"},
          {"OMPI_COMM_WORLD_SIZE", "1"},
          {"SLURM_PROCID", "1"},
          {"SLURM_NTASKS", "2"}},
         "{'source': 'mpi', 'mode': 'local'}"},
        {"several hosts and no address",
         {0},
         {{"OMPI_COMM_WORLD_RANK", "0"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
          {"AZ_BATCHAI_MPI_MASTER_NODE", "localhost"}},
         "master_addr_missing"},
        {"no size", {0}, {{"OMPI_COMM_WORLD_RANK", "0"}}, "world_size_missing"},
        {"no rank", {0}, {{"OMPI_COMM_WORLD_SIZE", "2"}}, "rank_missing"},
        {"a rank past the end",
         {0},
         {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
         "index_out_of_range"},
    };
    check(forms, sizeof forms / sizeof *forms);
}

static void process_manager_variables_are_the_fallback(void **state) {
    (void)state;
    static const struct cluster_case forms[] = {
        {"MPICH's hydra",
         {0},
         {{"PMI_RANK", "1"},
          {"PMI_SIZE", "2"},
          {"MPI_LOCALRANKID", "1"},
          {"MPI_LOCALNRANKS", "2"}},
         "{'source': 'mpi', 'index': 1, 'chief': '127.0.0.1:54965'}"},
        {"PMIx with a size",
         {0},
         {{"PMIX_RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}},
         "{'source': 'mpi', 'index': 1, 'chief': 'h:6105'}"},
        {"PMIx without",
         {0},
         {{"PMIX_RANK", "1"}, {"MASTER_ADDR", "h"}},
         "world_size_missing"},
        {"srun --mpi=pmi2",
         {0},
         {{"PMI_RANK", "1"},
          {"PMI_SIZE", "2"},
          {"SLURM_PROCID", "1"},
          {"SLURM_STEP_NUM_TASKS", "2"},
          {"SLURM_STEP_NODELIST", "n[1-2]"}},
         "{'source': 'slurm', 'chief': 'n1:6105'}"},
        {"hosts not known",
         {0},
         {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}},
         "master_addr_missing"},
    };
    check(forms, sizeof forms / sizeof *forms);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_mpi_variables_give_rank_and_size),
        cmocka_unit_test(process_manager_variables_are_the_fallback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
