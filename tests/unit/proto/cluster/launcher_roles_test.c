/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers that give roles, what is wrong with their variables, and which of
 * several launchers counts. */
#include "tests/cluster/cluster_case.h"
#include "tests/lib/test.h"

#define DMLC(role)                                                             \
    {"DMLC_ROLE", role}, {"DMLC_PS_ROOT_URI", "s"},                            \
        {"DMLC_PS_ROOT_PORT", "9000"}, {"DMLC_NUM_WORKER", "2"}, {             \
        "DMLC_NUM_SERVER", "2"                                                 \
    }
#define HOROVOD                                                                \
    {"HOROVOD_RANK", "1"}, {"HOROVOD_SIZE", "2"}, {                            \
        "HOROVOD_LOCAL_SIZE", "2"                                              \
    }

TEST(dmlc_indices_come_from_the_first_variable_that_has_one) {
    static const struct cluster_case forms[] = {
        {"its own variable",
         {DMLC("server"), {"DMLC_SERVER_ID", "1"}, {"DMLC_RANK", "0"}},
         .expect = "{'role': 'ps', 'index': 1}"},
        {"a worker's DMLC_SERVER_ID says nothing",
         {DMLC("worker"), {"DMLC_SERVER_ID", "0"}, {"DMLC_RANK", "1"}},
         .expect = "{'role': 'worker', 'index': 1}"},
        {"a server's task number, behind the workers'",
         {DMLC("server"), {"DMLC_TASK_ID", "2"}, {"DMLC_JOB_CLUSTER", "sge"}},
         .expect = "{'role': 'ps', 'index': 0}"},
        {"a server's task number on YARN",
         {DMLC("server"), {"DMLC_TASK_ID", "1"}, {"DMLC_JOB_CLUSTER", "yarn"}},
         .expect = "{'role': 'ps', 'index': 1}"},
        {"a server's task number, nobody says how counted",
         {DMLC("server"), {"DMLC_TASK_ID", "2"}},
         .expect = "not_alone"},
        {"no index", {DMLC("worker")}, .expect = "not_alone"},
        {"IPv6",
         {{"DMLC_PS_ROOT_URI", "fe80::1"}, DMLC("scheduler")},
         .expect = "{'role': 'chief', 'chief': '[fe80::1]:9000'}"},
    };
    cluster_case_check_all(forms);
}

TEST(wrong_dmlc_variables_are_refused) {
    static const struct cluster_case forms[] = {
        {"a role", {DMLC("joint")}, .expect = "task_type_not_in_cluster"},
        {"an index out of range",
         {DMLC("worker"), {"DMLC_WORKER_ID", "2"}},
         .expect = "index_out_of_range"},
        {"no index",
         {DMLC("worker"), {"DMLC_WORKER_ID", "a"}},
         .expect = "bad_index"},
        {"a task number below the workers'",
         {DMLC("server"), {"DMLC_TASK_ID", "1"}, {"DMLC_JOB_CLUSTER", "local"}},
         .expect = "index_out_of_range"},
        {"a task number above the servers'",
         {DMLC("server"), {"DMLC_TASK_ID", "4"}, {"DMLC_JOB_CLUSTER", "local"}},
         .expect = "index_out_of_range"},
        {"a port",
         {{"DMLC_PS_ROOT_PORT", "70000"}, DMLC("scheduler")},
         .expect = "bad_port"},
        {"a port in the host",
         {{"DMLC_PS_ROOT_URI", "s:1"}, DMLC("scheduler")},
         .expect = "bad_host"},
        {"a count",
         {{"DMLC_NUM_WORKER", "0"}, DMLC("scheduler")},
         .expect = "bad_world_size"},
        {"--num-ps", {DMLC("scheduler")}, "num_ps_given", {.num_ps = "1"}},
        {"more workers than any job has",
         {DMLC("scheduler"), {"BYTEPS_LOCAL_SIZE", "1000000"}},
         .expect = "bad_world_size"},
        {"a rank on its machine",
         {DMLC("worker"),
          {"DMLC_WORKER_ID", "0"},
          {"BYTEPS_LOCAL_SIZE", "2"},
          {"BYTEPS_LOCAL_RANK", "2"}},
         .expect = "index_out_of_range"},
        {"no rank on a machine of several",
         {DMLC("worker"), {"DMLC_WORKER_ID", "1"}, {"BYTEPS_LOCAL_SIZE", "2"}},
         .expect = "rank_missing"},
        {"one of several on one machine, of an unknown root",
         {{"DMLC_ROLE", "worker"},
          {"DMLC_NUM_WORKER", "1"},
          {"DMLC_NUM_SERVER", "0"},
          {"BYTEPS_LOCAL_SIZE", "8"},
          {"BYTEPS_LOCAL_RANK", "3"}},
         .expect = "not_alone"},
    };
    cluster_case_check_all(forms);
}

/* ps-lite's scheduler has no worker in it. */
TEST(a_scheduler_coordinates_unless_the_job_says_otherwise) {
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {
        DMLC("scheduler")};
    struct cluster *cluster;
    assert_int_equal(
        cluster_resolve(&cluster, NULL, cluster_case_lookup, environment, NULL),
        STATUS_OK);
    assert_true(cluster->coordinates);
    assert_true(cluster_expects_joins(cluster));
    cluster_free(&cluster);
}

#define TWO_PS                                                                 \
    { "PADDLE_PSERVERS_IP_PORT_LIST", "10.0.0.1:1,10.0.0.2:1" }
#define TWO_LOCAL_PS                                                           \
    { "PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:1,localhost:2," }
#define TRAINER(id)                                                            \
    {"TRAINING_ROLE", "TRAINER"}, {                                            \
        "PADDLE_TRAINER_ID", id                                                \
    }

TEST(paddle_trainers_are_listed_or_counted) {
    static const struct cluster_case forms[] = {
        {"counted, ps on this host; a comma at the end",
         {TRAINER("1"), {"PADDLE_TRAINERS_NUM", "2"}, TWO_LOCAL_PS},
         .expect =
             "{'source': 'PADDLE', 'role': 'worker', 'index': 1, 'num_ps': 2, "
             "'num_workers': 2, 'chief': '127.0.0.1:54965'}"},
        {"a ps without a host is on this one",
         {{"TRAINING_ROLE", "PSERVER"},
          {"PADDLE_TRAINERS_NUM", "1"},
          {"POD_IP", "127.0.0.1"},
          {"PADDLE_PORT", "1"},
          TWO_LOCAL_PS},
         .expect = "{'role': 'ps', 'index': 0, 'num_workers': 1}"},
        {"counted, ps on other hosts",
         {TRAINER("0"), {"PADDLE_TRAINERS_NUM", "2"}, TWO_PS},
         .expect = "not_alone"},
        {"the same with the address of trainer 0",
         {TRAINER("0"),
          {"PADDLE_TRAINERS_NUM", "2"},
          TWO_PS,
          {"MASTER_ADDR", "10.0.0.1"}},
         .expect = "{'chief': '10.0.0.1:6105', 'is_chief': true}"},
        {"without ps, by PADDLE_MASTER",
         {{"PADDLE_TRAINER_ID", "3"},
          {"PADDLE_TRAINERS_NUM", "4"},
          {"PADDLE_MASTER", "10.0.0.1:36767"}},
         .expect =
             "{'role': 'worker', 'index': 3, 'num_ps': 0, 'num_workers': 4, "
             "'chief': '10.0.0.1:36767'}"},
        {"a ps that names itself otherwise",
         {{"TRAINING_ROLE", "PSERVER"},
          {"PADDLE_CURRENT_ENDPOINT", "10.0.0.2:1"},
          {"PADDLE_TRAINER_ENDPOINTS", "t:1"},
          TWO_PS},
         .expect =
             "{'role': 'ps', 'index': 1, 'num_workers': 1, 'chief': 't:1'}"},
    };
    cluster_case_check_all(forms);
}

TEST(wrong_paddle_variables_are_refused) {
#define LIST                                                                   \
    { "PADDLE_TRAINER_ENDPOINTS", "a:1,b:1" }
    static const struct cluster_case forms[] = {
        {"a role",
         {{"TRAINING_ROLE", "HETER_TRAINER"}, {"PADDLE_TRAINER_ID", "0"}, LIST},
         .expect = "task_type_not_in_cluster"},
        {"a count that differs from the list",
         {TRAINER("0"), {"PADDLE_TRAINERS_NUM", "3"}, LIST},
         .expect = "bad_world_size"},
        {"no count",
         {TRAINER("0"), {"PADDLE_TRAINERS_NUM", "two"}, LIST},
         .expect = "bad_world_size"},
        {"an index", {TRAINER("2"), LIST}, .expect = "index_out_of_range"},
        {"no index", {TRAINER("x"), LIST}, .expect = "bad_index"},
        {"an address that is not listed",
         {{"PADDLE_CURRENT_ENDPOINT", "c:1"}, LIST},
         .expect = "index_out_of_range"},
        {"an address without a port",
         {TRAINER("0"), {"PADDLE_TRAINER_ENDPOINTS", "a,b:1"}},
         .expect = "bad_port"},
        {"--num-ps", {TRAINER("0"), LIST}, "num_ps_given", {.num_ps = "1"}},
    };
#undef LIST
    cluster_case_check_all(forms);
}

TEST(the_innermost_launcher_counts) {
#define SAGEMAKER                                                              \
    {"SM_HOSTS", "[\"algo-1\", \"algo-2\"]"}, {                                \
        "SM_CURRENT_HOST", "algo-2"                                            \
    }
    static const struct cluster_case forms[] = {
        {"roles before ranks",
         {DMLC("scheduler"), HOROVOD},
         .expect = "{'source': 'DMLC'}"},
        {"a launcher in a container",
         {HOROVOD, SAGEMAKER},
         "{'source': 'HOROVOD', 'role': 'ps', 'index': 0}",
         {.num_ps = "1"}},
        {"the container alone",
         {SAGEMAKER},
         .expect = "{'source': 'SM_HOSTS'}"},
        {"Flux in a job of jsrun",
         {{"FLUX_TASK_RANK", "1"},
          {"FLUX_JOB_SIZE", "2"},
          {"JSM_NAMESPACE_RANK", "0"},
          {"JSM_NAMESPACE_SIZE", "4"},
          {"MASTER_ADDR", "h"}},
         .expect = "{'source': 'FLUX', 'index': 1}"},
        {"a promised source stays before them",
         {DMLC("scheduler"), {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}},
         .expect = "{'source': 'slurm'}"},
        {"PMI before Flux, whose variables tell that there is one node",
         {{"PMI_RANK", "1"},
          {"PMI_SIZE", "2"},
          {"FLUX_TASK_RANK", "1"},
          {"FLUX_JOB_NNODES", "1"}},
         .expect = "{'source': 'mpi', 'chief': '127.0.0.1:54965'}"},
        {"Open MPI's variables from jsrun, the host from LSF",
         {{"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"JSM_NAMESPACE_RANK", "1"},
          {"LSB_MCPU_HOSTS", "batch5 1 h41n08 42 h41n09 42"}},
         .expect = "{'source': 'mpi', 'chief': 'h41n08:6105'}"},
        {"jsrun without a host for the batch script",
         {{"JSM_NAMESPACE_RANK", "1"},
          {"JSM_NAMESPACE_SIZE", "2"},
          {"LSB_MCPU_HOSTS", "a 1 b 1"}},
         .expect = "{'source': 'JSM', 'chief': 'a:6105'}"},
        {"PMIx alone",
         {{"PMIX_RANK", "1"}, {"MASTER_ADDR", "h"}},
         .expect = "world_size_missing"},
        {"a host that is not listed",
         {{"SM_HOSTS", "[\"a\", \"b\"]"}, {"SM_CURRENT_HOST", "c"}},
         .expect = "bad_node_list"},
        {"a rank that is none, of a known host",
         {{"MV2_COMM_WORLD_RANK", "x"},
          {"MV2_COMM_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "h"}},
         .expect = "bad_index"},
    };
    cluster_case_check_all(forms);
}

static void expect_source(const struct cluster_source *source, const char *name,
                          enum cluster_source_state state,
                          const char *variable) {
    assert_string_equal(source->name, name);
    assert_int_equal(source->state, state);
    assert_int_equal(source->count > 0, variable != NULL);
    if (variable)
        assert_string_equal(source->variables[source->count - 1], variable);
}

TEST(each_source_says_what_became_of_it) {
    const struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {
        {"RANK", "1"}, {"TF_CONFIG", " "}, DMLC("scheduler"), HOROVOD};
    struct cluster_flags flags = {.task_index = " "};
    struct cluster_source sources[CLUSTER_SOURCES_MAX];
    uint32_t count = cluster_sources(sources, &flags, cluster_case_lookup,
                                     (void *)environment);
    assert_int_equal(count, 16);
    expect_source(&sources[1], "flags", CLUSTER_SOURCE_NOT_SET, NULL);
    expect_source(&sources[2], "TF_CONFIG", CLUSTER_SOURCE_NOT_SET, NULL);
    expect_source(&sources[4], "torch", CLUSTER_SOURCE_INCOMPLETE, "RANK");
    expect_source(&sources[8], "DMLC", CLUSTER_SOURCE_TAKEN, "DMLC_NUM_SERVER");
    expect_source(&sources[10], "HOROVOD", CLUSTER_SOURCE_LATER,
                  "HOROVOD_SIZE");
}
