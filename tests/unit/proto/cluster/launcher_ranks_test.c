/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_case.h"
#include "tests/lib/test.h"

static void check(const struct cluster_case *forms, size_t count) {
    for (size_t i = 0; i < count; i++)
        cluster_case_check(&forms[i]);
}

TEST(rank_and_world_size_select_torch) {
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

TEST(address_and_local_ranks_alone_select_nothing) {
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

TEST(two_jobs_of_one_host_have_different_keys) {
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

TEST(open_mpi_variables_give_rank_and_size) {
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

TEST(process_manager_variables_are_the_fallback) {
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

#define STEP(rank, size, nodes, counts)                                        \
    {"SLURM_PROCID", rank}, {"SLURM_STEP_NUM_TASKS", size},                    \
        {"SLURM_STEP_NODELIST", nodes}, {                                      \
        "SLURM_STEP_TASKS_PER_NODE", counts                                    \
    }

TEST(a_task_of_a_step_knows_its_cluster) {
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

TEST(contradictory_variables_are_refused) {
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
