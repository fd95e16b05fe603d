/* SPDX-License-Identifier: Apache-2.0 */
/* What launchers set that are no source of a cluster description. */
#include "tests/cluster/cluster_case.h"
#include "tests/lib/test.h"

enum { VARIABLES = 5 };

struct setting {
    const char *names; /* what the error names first; NULL: it is no error */
    struct cluster_case_variable variables[VARIABLES];
};

/* What becomes of SETTING, with --alone or without. */
static void resolve(const struct setting *setting, bool alone,
                    struct failure *why) {
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {{0}};
    struct cluster_flags flags = {.alone = alone};
    struct cluster *cluster = NULL;
    memcpy(environment, setting->variables, sizeof setting->variables);
    *why = (struct failure){0};
    enum status status = cluster_resolve(&cluster, &flags, cluster_case_lookup,
                                         environment, why);
    if (!status && (!cluster->local || strcmp(cluster->source, "alone")))
        fail_msg("%s: not alone", setting->variables[0].name);
    assert_int_equal(status, failure_code_status(why->code));
    cluster_free(&cluster);
}

static void check(const struct setting *settings, size_t count,
                  const char *class) {
    char start[96];
    for (size_t i = 0; i < count; i++) {
        const struct setting *setting = &settings[i];
        resolve(setting, false, &failure);
        snprintf(start, sizeof start, "%s: %s is \"", class, setting->names);
        if (failure.code != FAILURE_CLUSTER_INVALID ||
            strncmp(failure.text, start, strlen(start)) ||
            !strstr(failure.text, "MASTER_ADDR") ||
            !strstr(failure.text, "--alone"))
            fail_msg("%s is expected, not: %s", start, failure.text);
        resolve(setting, true, &failure);
        if (failure.code)
            fail_msg("%s, --alone: %s", setting->names, failure.text);
    }
}
#define CHECK(settings, class)                                                 \
    check(settings, sizeof settings / sizeof *(settings), class)

TEST(a_rank_a_role_or_a_size_is_refused_and_named) {
    static const struct setting settings[] = {
        {"HOROVOD_RANK", {{"HOROVOD_RANK", "0"}, {"HOROVOD_SIZE", "2"}}},
        {"HOROVOD_SIZE", {{"HOROVOD_SIZE", "4"}}},
        {"MV2_COMM_WORLD_RANK",
         {{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "2"}}},
        {"MPIRUN_RANK", {{"MPIRUN_RANK", "0"}}},
        {"PMI_SIZE", {{"PMI_SIZE", "2"}}},
        {"JSM_NAMESPACE_SIZE", {{"JSM_NAMESPACE_SIZE", "20"}}},
        {"FLUX_TASK_RANK", {{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "2"}}},
        {"FLUX_JOB_SIZE", {{"FLUX_JOB_SIZE", "2"}}},
        {"PALS_RANKID", {{"PALS_RANKID", "0"}}},
        {"ALPS_APP_PE", {{"ALPS_APP_PE", "3"}}},
        {"PBS_VNODENUM", {{"PBS_VNODENUM", "1"}}},
        {"LSF_PM_TASKID", {{"LSF_PM_TASKID", "1"}, {"LSB_DJOB_NUMPROC", "2"}}},
        {"DMLC_ROLE", {{"DMLC_ROLE", "scheduler"}}},
        {"DMLC_ROLE", {{"DMLC_ROLE", "worker"}, {"DMLC_NUM_WORKER", "2"}}},
        {"DMLC_ROLE", {{"DMLC_ROLE", "server"}, {"DMLC_NUM_WORKER", "1"}}},
        {"DMLC_NUM_SERVER",
         {{"DMLC_ROLE", "worker"},
          {"DMLC_NUM_WORKER", "1"},
          {"DMLC_NUM_SERVER", "1"}}},
        {"TRAINING_ROLE", {{"TRAINING_ROLE", "TRAINER"}}},
        {"TRAINING_ROLE",
         {{"TRAINING_ROLE", "PSERVER"}, {"PADDLE_TRAINERS_NUM", "1"}}},
        {"PADDLE_PSERVERS_IP_PORT_LIST",
         {{"TRAINING_ROLE", "TRAINER"},
          {"PADDLE_TRAINERS_NUM", "1"},
          {"PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:6174"}}},
        {"PADDLE_TRAINER_ENDPOINTS",
         {{"PADDLE_TRAINER_ENDPOINTS", "a:6170,b:6170"}}},
        {"MS_ROLE", {{"MS_ROLE", "MS_SCHED"}, {"MS_WORKER_NUM", "1"}}},
        {"RANK_ID", {{"RANK_ID", "0"}, {"RANK_SIZE", "8"}}},
        {"SM_HOSTS", {{"SM_HOSTS", "[\"algo-1\", \"algo-2\"]"}}},
        {"TPU_WORKER_ID", {{"TPU_WORKER_ID", "0"}}},
        {"TPU_WORKER_HOSTNAMES", {{"TPU_WORKER_HOSTNAMES", "t0,t1"}}},
        {"JAX_NUM_PROCESSES", {{"JAX_NUM_PROCESSES", "2"}}},
        {"AZ_BATCHAI_TASK_INDEX", {{"AZ_BATCHAI_TASK_INDEX", "1"}}},
        {"AZUREML_NODE_COUNT", {{"AZUREML_NODE_COUNT", "2"}}},
        {"AZ_BATCH_NODE_LIST", {{"AZ_BATCH_NODE_LIST", "10.0.0.4;10.0.0.5"}}},
        {"AWS_BATCH_JOB_NUM_NODES", {{"AWS_BATCH_JOB_NUM_NODES", "2"}}},
        {"SKYPILOT_NUM_NODES", {{"SKYPILOT_NUM_NODES", "2"}}},
        {"VC_TASK_INDEX", {{"VC_TASK_INDEX", "1"}}},
        {"LWS_GROUP_SIZE", {{"LWS_GROUP_SIZE", "4"}}},
        {"PET_NNODES", {{"PET_NNODES", "1:4"}}},
        {"JOB_NAME", {{"JOB_NAME", "ps"}, {"TASK_INDEX", "3"}}},
        {"WORKER_HOSTS", {{"WORKER_HOSTS", "a:2222,b:2222"}}},
        {"PS_HOSTS", {{"PS_HOSTS", "a:2222"}}},
    };
    CHECK(settings, "not_alone");
}

TEST(partial_torch_variables_are_refused) {
    static const struct setting ranks[] = {
        {"RANK", {{"RANK", "1"}, {"MASTER_ADDR", "h"}}},
        {"RANK", {{"RANK", "0"}, {"WORLD_SIZE", " "}}}};
    static const struct setting sizes[] = {
        {"WORLD_SIZE", {{"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}},
        {"WORLD_SIZE", {{"RANK", " "}, {"WORLD_SIZE", "2"}}}};
    CHECK(ranks, "world_size_missing");
    CHECK(sizes, "rank_missing");
}

TEST(a_single_process_is_alone_under_any_launcher) {
    static const struct setting settings[] = {
        {NULL, {{"WORLD_SIZE", "1"}}},
        {NULL, {{"HOROVOD_RANK", "0"}, {"HOROVOD_SIZE", "1"}}},
        {NULL, {{"HOROVOD_RANK", ""}}},
        {NULL, {{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "1"}}},
        {NULL, {{"LSF_PM_TASKID", "0"}, {"LSB_DJOB_NUMPROC", "1"}}},
        {NULL,
         {{"DMLC_ROLE", "worker"},
          {"DMLC_NUM_WORKER", "1"},
          {"DMLC_NUM_SERVER", "0"}}},
        {NULL,
         {{"TRAINING_ROLE", "TRAINER"},
          {"PADDLE_TRAINER_ID", "0"},
          {"PADDLE_TRAINERS_NUM", "1"},
          {"PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:6170"}}},
        {NULL, {{"SM_HOSTS", "[\"algo-1\"]"}, {"SM_NUM_GPUS", "4"}}},
        {NULL, {{"TPU_WORKER_ID", "0"}, {"TPU_WORKER_HOSTNAMES", "localhost"}}},
        {NULL,
         {{"AZ_BATCHAI_TASK_INDEX", "0"},
          {"AZUREML_NODE_COUNT", "1"},
          {"AZ_BATCH_NODE_LIST", "10.0.0.4"}}},
        {NULL, {{"VC_TASK_INDEX", "0"}}},
        {NULL, {{"JOB_NAME", "nightly/main"}}},
        {NULL, {{"MASTER_ADDR", "h"}, {"LOCAL_RANK", "1"}}},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        resolve(&settings[i], false, &failure);
        if (failure.code)
            fail_msg("%s", failure.text);
    }
}

/* The script of a batch job runs once, however large its allocation. */
TEST(an_allocation_without_launch_is_ignored) {
    static const struct setting settings[] = {
        {NULL, {{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "8"}}},
        {NULL,
         {{"PBS_NP", "8"}, {"PBS_NUM_NODES", "2"}, {"PBS_VNODENUM", "0"}}},
        {NULL, {{"LSB_DJOB_NUMPROC", "8"}, {"LSB_HOSTS", "a a b b"}}},
        {NULL, {{"SLURM_ARRAY_TASK_ID", "3"}}},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        resolve(&settings[i], false, &failure);
        if (failure.code)
            fail_msg("%s", failure.text);
    }
}

TEST(a_source_takes_precedence_over_other_launchers) {
    const struct cluster_case forms[] = {
        {"ranks beside Horovod's", .expect = "{'source': 'torch', 'index': 1}",
         .environment = {{"RANK", "1"},
                         {"WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "h"},
                         {"HOROVOD_RANK", "1"},
                         {"HOROVOD_SIZE", "2"}}},
        {"MPI beside jsrun's", .expect = "{'source': 'mpi', 'mode': 'local'}",
         .environment = {{"OMPI_COMM_WORLD_RANK", "0"},
                         {"OMPI_COMM_WORLD_SIZE", "1"},
                         {"JSM_NAMESPACE_RANK", "0"}}},
    };
    cluster_case_check_all(forms);
}

TEST(the_alone_option_overrides_any_source) {
    const struct cluster_case forms[] = {
        {"ranks",
         .expect = "{'source': 'alone', 'mode': 'local', 'is_chief': true}",
         .environment = {{"RANK", "1"},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "1"}},
         .flags = {.alone = true}},
        {"a wrong TF_CONFIG", .expect = "{'source': 'alone', 'mode': 'local'}",
         .environment = {{"TF_CONFIG", "{"}}, .flags = {.alone = true}},
        {"a cluster by flags", .expect = "alone_given",
         .flags = {.alone = true, .worker_hosts = "a:1,b:1"}},
        {"ps by flags", .expect = "num_ps_given",
         .flags = {.alone = true, .num_ps = "1"}},
    };
    cluster_case_check_all(forms);
}
