/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_case.h"
#include "tests/lib/test.h"

TEST(rank_and_world_size_select_torch) {
    static const struct cluster_case forms[] = {
        {"as torchrun writes it",
         {{"LOCAL_RANK", "1"},
          {"RANK", "1"},
          {"GROUP_RANK", "0"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"WORLD_SIZE", "2"},
          {"MASTER_ADDR", "h"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RUN_ID", "none"}},
         .expect = "{'source': 'torch', 'role': 'worker', 'index': 1, "
                   "'chief': 'h:29501'}"},
        {"as Kubeflow's PyTorchJob writes it",
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
         .expect = "{'source': 'torch', 'index': 2, 'num_workers': 3, "
                   "'chief': 'job-master-0:23456'}"},
        {"as Azure ML writes it",
         {{"MASTER_ADDR", "10.0.0.4"},
          {"MASTER_PORT", "6105"},
          {"WORLD_SIZE", "4"},
          {"RANK", "3"},
          {"LOCAL_RANK", "1"},
          {"NODE_RANK", "1"}},
         .expect = "{'source': 'torch', 'chief': '10.0.0.4:6105'}"},
        {"a port by default",
         {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}},
         .expect = "{'chief': 'h:6105'}"},
        {"all on one host",
         {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}},
         .expect = "{'chief': '127.0.0.1:54965'}"},
        {"before MPI and Slurm",
         {{"RANK", "0"},
          {"WORLD_SIZE", "2"},
          {"MASTER_ADDR", "h"},
          {"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "3"},
          {"SLURM_PROCID", "1"}},
         .expect = "{'source': 'torch', 'index': 0}"},
        {"after CLUSTER_SPEC",
         {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"CLUSTER_SPEC", "{}"}},
         .expect = "{'source': 'CLUSTER_SPEC'}"},
    };
    cluster_case_check_all(forms);
}

TEST(address_and_local_ranks_alone_select_nothing) {
    static const struct cluster_case forms[] = {
        {"the others",
         {{"LOCAL_RANK", "1"},
          {"NODE_RANK", "1"},
          {"MASTER_ADDR", "h"},
          {"MASTER_PORT", "1"}},
         .expect = "{'source': 'alone'}"},
    };
    cluster_case_check_all(forms);
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
         {{"OMPI_COMM_WORLD_RANK", "3"},
          {"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}},
         "{'source': 'mpi', 'role': 'ps', 'index': 0, 'num_workers': 3, "
         "'chief': '127.0.0.1:54965'}",
         {.num_ps = "1"}},
        {"on Azure's hosts",
         {{"OMPI_COMM_WORLD_RANK", "2"},
          {"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"AZ_BATCH_MASTER_NODE", "10.0.0.4:6000"},
          {"AZ_BATCHAI_MPI_MASTER_NODE", "10.0.0.4"}},
         .expect = "{'source': 'mpi', 'role': 'worker', 'index': 2, "
                   "'chief': '10.0.0.4:6000'}"},
        {"the address by mpirun -x",
         {{"OMPI_COMM_WORLD_RANK", "0"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
          {"MASTER_ADDR", "h"},
          {"MASTER_PORT", "7"}},
         .expect = "{'is_chief': true, 'chief': 'h:7'}"},
        {"before Slurm",
         {{"OMPI_COMM_WORLD_RANK", "0"},
          {"OMPI_COMM_WORLD_SIZE", "1"},
          {"SLURM_PROCID", "1"},
          {"SLURM_NTASKS", "2"}},
         .expect = "{'source': 'mpi', 'mode': 'local'}"},
        {"several hosts and no address",
         {{"OMPI_COMM_WORLD_RANK", "0"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
          {"AZ_BATCHAI_MPI_MASTER_NODE", "localhost"}},
         .expect = "master_addr_missing"},
        {"no size",
         {{"OMPI_COMM_WORLD_RANK", "0"}},
         .expect = "world_size_missing"},
        {"no rank", {{"OMPI_COMM_WORLD_SIZE", "2"}}, .expect = "rank_missing"},
        {"a rank past the end",
         {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
         .expect = "index_out_of_range"},
    };
    cluster_case_check_all(forms);
}

TEST(process_manager_variables_are_the_fallback) {
    static const struct cluster_case forms[] = {
        {"MPICH's hydra",
         {{"PMI_RANK", "1"},
          {"PMI_SIZE", "2"},
          {"MPI_LOCALRANKID", "1"},
          {"MPI_LOCALNRANKS", "2"}},
         .expect = "{'source': 'mpi', 'index': 1, 'chief': '127.0.0.1:54965'}"},
        {"PMIx with a size",
         {{"PMIX_RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}},
         .expect = "{'source': 'mpi', 'index': 1, 'chief': 'h:6105'}"},
        {"PMIx without",
         {{"PMIX_RANK", "1"}, {"MASTER_ADDR", "h"}},
         .expect = "world_size_missing"},
        {"srun --mpi=pmi2",
         {{"PMI_RANK", "1"},
          {"PMI_SIZE", "2"},
          {"SLURM_PROCID", "1"},
          {"SLURM_STEP_NUM_TASKS", "2"},
          {"SLURM_STEP_NODELIST", "n[1-2]"}},
         .expect = "{'source': 'slurm', 'chief': 'n1:6105'}"},
        {"hosts not known",
         {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}},
         .expect = "master_addr_missing"},
    };
    cluster_case_check_all(forms);
}

#define STEP(rank, size, nodes, counts)                                        \
    {"SLURM_PROCID", rank}, {"SLURM_STEP_NUM_TASKS", size},                    \
        {"SLURM_STEP_NODELIST", nodes}, {                                      \
        "SLURM_STEP_TASKS_PER_NODE", counts                                    \
    }

TEST(a_task_of_a_step_knows_its_cluster) {
    static const struct cluster_case forms[] = {
        {"two nodes",
         {STEP("2", "3", "n[001-002]", "2,1"), {"SLURM_LOCALID", "0"}},
         "{'source': 'slurm', 'role': 'ps', 'index': 0, 'num_workers': 2, "
         "'chief': 'n001:6105'}",
         {.num_ps = "1"}},
        {"one node",
         {STEP("1", "2", "n7", "2"), {"SLURM_LOCALID", "1"}},
         .expect = "{'chief': '127.0.0.1:54965'}"},
        {"the step counts, not the job",
         {STEP("1", "2", "n[8-9]", "1(x2)"),
          {"SLURM_NTASKS", "9"},
          {"SLURM_JOB_NODELIST", "n[1-9]"}},
         .expect = "{'num_workers': 2, 'chief': 'n8:6105'}"},
        {"what older scripts set",
         {{"SLURM_PROCID", "0"},
          {"SLURM_NTASKS", "2"},
          {"SLURM_JOB_NODELIST", "a,b"}},
         .expect = "{'num_workers': 2, 'chief': 'a:6105', 'is_chief': true}"},
        {"another address",
         {STEP("0", "2", "n[1-2]", "1(x2)"),
          {"MASTER_ADDR", "ib1"},
          {"MASTER_PORT", "7"}},
         .expect = "{'chief': 'ib1:7'}"},
        {"the script of a batch job",
         {{"SLURM_PROCID", "0"},
          {"SLURM_NTASKS", "2"},
          {"ENVIRONMENT", "BATCH"}},
         .expect = "{'source': 'alone'}"},
        {"a task of a batch job",
         {STEP("0", "2", "n[1-2]", "1(x2)"), {"ENVIRONMENT", "BATCH"}},
         .expect = "{'source': 'slurm'}"},
        {"an allocation's shell",
         {{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "2"}},
         .expect = "{'source': 'alone'}"},
    };
    cluster_case_check_all(forms);
}

TEST(contradictory_variables_are_refused) {
    static const struct cluster_case forms[] = {
        {"a list cut off",
         {STEP("0", "2", "n[1-2", "1(x2)")},
         .expect = "bad_node_list"},
        {"counts of other nodes",
         {STEP("0", "2", "n[1-3]", "1(x2)")},
         .expect = "task_counts_differ"},
        {"counts of other tasks",
         {STEP("0", "3", "n[1-2]", "1(x2)")},
         .expect = "task_counts_differ"},
        {"no counts",
         {STEP("0", "2", "n[1-2]", "1x2")},
         .expect = "bad_task_counts"},
        {"no size", {{"SLURM_PROCID", "0"}}, .expect = "world_size_missing"},
        {"a rank past the end",
         {STEP("2", "2", "n[1-2]", "1(x2)")},
         .expect = "index_out_of_range"},
    };
    cluster_case_check_all(forms);
}
