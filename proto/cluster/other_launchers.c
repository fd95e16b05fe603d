/* SPDX-License-Identifier: Apache-2.0 */
/* The table has every variable and the kind of its value; the code below
 * handles the kinds. */
#include "proto/cluster/other_launchers.h"

#include "core/base/decimal.h"
#include "core/base/diagnostics.h"
#include "proto/cluster/role_name.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum kind {
    NOTHING,
    RANK,   /* rank: set for launched processes */
    INDEX,  /* index: 0 may also mean that there is one process */
    SIZE,   /* number of processes */
    SLOTS,  /* number of allocated slots; beside a rank, number of processes */
    HOSTS,  /* a list of the hosts */
    OTHERS, /* number of processes in another role */
    ADDRESSES, /* addresses of processes in another role */
    ROLE,
    JOB, /* a role, or the name of anything */
};

enum { MAX_VARIABLES = 6 };

struct launcher {
    const char *name;
    struct variable {
        const char *name;
        enum kind kind;
    } variables[MAX_VARIABLES]; /* a rank stands before its size */
};

static const struct launcher launchers[] = {
    {"Horovod", {{"HOROVOD_RANK", RANK}, {"HOROVOD_SIZE", SIZE}}},
    {"MVAPICH2",
     {{"MV2_COMM_WORLD_RANK", RANK}, {"MV2_COMM_WORLD_SIZE", SIZE}}},
    {"MVAPICH", {{"MPIRUN_RANK", RANK}, {"MPIRUN_NPROCS", SIZE}}},
    {"an MPI's process manager", {{"PMI_SIZE", SIZE}}},
    {"jsrun", {{"JSM_NAMESPACE_RANK", RANK}, {"JSM_NAMESPACE_SIZE", SIZE}}},
    {"Flux", {{"FLUX_TASK_RANK", RANK}, {"FLUX_JOB_SIZE", SIZE}}},
    {"Cray PALS", {{"PALS_RANKID", RANK}}},
    {"Cray ALPS", {{"ALPS_APP_PE", RANK}}},
    {"pbsdsh", {{"PBS_VNODENUM", INDEX}, {"PBS_NODENUM", INDEX}}},
    {"blaunch", {{"LSF_PM_TASKID", RANK}, {"LSB_DJOB_NUMPROC", SLOTS}}},
    {"MXNet, ps-lite",
     {{"DMLC_ROLE", ROLE},
      {"DMLC_WORKER_ID", RANK},
      {"DMLC_TASK_ID", RANK},
      {"DMLC_NUM_WORKER", SIZE},
      {"DMLC_NUM_SERVER", OTHERS}}},
    {"BytePS", {{"BYTEPS_LOCAL_RANK", INDEX}, {"BYTEPS_LOCAL_SIZE", SIZE}}},
    {"Paddle",
     {{"TRAINING_ROLE", ROLE},
      {"PADDLE_TRAINER_ID", RANK},
      {"PADDLE_TRAINERS_NUM", SIZE},
      {"PADDLE_TRAINER_ENDPOINTS", HOSTS},
      {"PADDLE_PSERVERS_IP_PORT_LIST", ADDRESSES}}},
    {"MindSpore",
     {{"MS_ROLE", ROLE},
      {"MS_NODE_ID", RANK},
      {"MS_WORKER_NUM", SIZE},
      {"MS_SERVER_NUM", OTHERS}}},
    {"Ascend", {{"RANK_ID", RANK}, {"RANK_SIZE", SIZE}}},
    {"SageMaker", {{"SM_HOSTS", HOSTS}}},
    {"TPU",
     {{"TPU_WORKER_ID", RANK},
      {"TPU_WORKER_HOSTNAMES", HOSTS},
      {"TPU_PROCESS_ADDRESSES", HOSTS},
      {"CLOUD_TPU_TASK_ID", INDEX}}},
    {"JAX", {{"JAX_PROCESS_ID", RANK}, {"JAX_NUM_PROCESSES", SIZE}}},
    {"Azure",
     {{"AZ_BATCHAI_TASK_INDEX", INDEX},
      {"AZUREML_NODE_COUNT", SIZE},
      {"AZ_BATCH_NODE_LIST", HOSTS},
      {"AZ_BATCH_HOST_LIST", HOSTS},
      {"AZ_BATCHAI_WORKER_HOSTS", HOSTS},
      {"AZ_BATCHAI_PS_HOSTS", ADDRESSES}}},
    {"AWS Batch",
     {{"AWS_BATCH_JOB_NODE_INDEX", RANK}, {"AWS_BATCH_JOB_NUM_NODES", SIZE}}},
    {"SkyPilot", {{"SKYPILOT_NODE_RANK", RANK}, {"SKYPILOT_NUM_NODES", SIZE}}},
    {"Volcano",
     {{"VC_TASK_INDEX", INDEX},
      {"VK_TASK_INDEX", INDEX},
      {"VC_WORKER_NUM", SIZE},
      {"VC_PS_NUM", OTHERS}}},
    {"LeaderWorkerSet",
     {{"LWS_WORKER_INDEX", INDEX}, {"LWS_GROUP_SIZE", SIZE}}},
    {"torchrun",
     {{"PET_NODE_RANK", INDEX},
      {"PET_NNODES", SIZE},
      {"GROUP_WORLD_SIZE", SIZE},
      {"LOCAL_WORLD_SIZE", SIZE}}},
    {"a TensorFlow script",
     {{"JOB_NAME", JOB}, {"WORKER_HOSTS", HOSTS}, {"PS_HOSTS", ADDRESSES}}},
};

/* What to set where a launcher is a source, but too little is set. */
static const struct {
    const char *launcher, *text;
} advices[] = {
#define SET_ADDRESS                                                            \
    "Set MASTER_ADDR to the host of rank 0 in each (127.0.0.1 if all are on "  \
    "one host), beside its rank and the size"
    {"Horovod", SET_ADDRESS},
    {"MVAPICH2", SET_ADDRESS},
    {"jsrun", SET_ADDRESS},
    {"Flux", SET_ADDRESS},
#undef SET_ADDRESS
    {"MXNet, ps-lite",
     "Set DMLC_ROLE, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_NUM_WORKER and "
     "DMLC_NUM_SERVER in each; and DMLC_WORKER_ID in each worker, "
     "DMLC_SERVER_ID in each server (0, 1, ...), as no index is assigned here; "
     "or RANK, WORLD_SIZE and MASTER_ADDR"},
    {"Paddle",
     "Set PADDLE_TRAINER_ENDPOINTS, or PADDLE_TRAINERS_NUM with MASTER_ADDR, "
     "the host of trainer 0; in a trainer PADDLE_TRAINER_ID, in a ps "
     "PADDLE_PSERVERS_IP_PORT_LIST with POD_IP and PADDLE_PORT"},
    {"SageMaker",
     "Set SM_CURRENT_HOST to this host's name in SM_HOSTS, or RANK, WORLD_SIZE "
     "and MASTER_ADDR"},
};

/* Number of entries of a list: JSON, or separated by blanks, commas or
 * semicolons. */
static uint64_t count_entries(const char *text) {
    static const char between[] = ",; \t\r\n[]";
    uint64_t count = 0;
    for (text += strspn(text, between); *text; text += strspn(text, between)) {
        text += strcspn(text, between);
        count++;
    }
    return count;
}

/* Number of processes or hosts that TEXT gives; a text that is not a number
 * counts as unknown. */
static uint64_t other_launchers_count(enum kind kind, const char *text) {
    uint64_t number;
    if (kind == HOSTS)
        return count_entries(text);
    return decimal_parse(text, &number) ? number : UINT64_MAX;
}

static bool is_size(enum kind kind) {
    return kind == SIZE || kind == SLOTS || kind == HOSTS;
}

/* True if a variable of LAUNCHER says that there is one process. */
static bool says_single(const struct launcher *launcher,
                        const struct cluster_input *input) {
    for (size_t i = 0; i < MAX_VARIABLES; i++) {
        const struct variable *variable = &launcher->variables[i];
        const char *text = is_size(variable->kind)
                               ? cluster_input_variable(input, variable->name)
                               : NULL;
        if (text && other_launchers_count(variable->kind, text) <= 1)
            return true;
    }
    return false;
}

static bool is_trainer(const char *role) {
    return !strcasecmp(role, "worker") || !strcasecmp(role, "trainer") ||
           !strcasecmp(role, "MS_WORKER");
}

/* True if a variable of KIND with TEXT shows other processes. ONE: there is one
 * process of its own kind. */
static bool implies_others(enum kind kind, const char *text, bool one) {
    enum cluster_role role;
    switch (kind) {
    case RANK:
        return !one || other_launchers_count(kind, text) > 0;
    case INDEX:
    case OTHERS:
        return other_launchers_count(kind, text) > 0;
    case SIZE:
    case HOSTS:
        return other_launchers_count(kind, text) > 1;
    case ADDRESSES:
        return true;
    case ROLE:
        return !one || !is_trainer(text);
    case JOB:
        return role_name_find(ROLE_NAMES_TF, text, &role) &&
               !(one && is_trainer(text));
    case NOTHING:
    case SLOTS:
        break;
    }
    return false;
}

/* The variable of LAUNCHER that shows other processes, or NULL. */
static const struct variable *other_launchers_find(
    const struct launcher *launcher, const struct cluster_input *input) {
    bool one = says_single(launcher, input);
    for (size_t i = 0; i < MAX_VARIABLES; i++) {
        const struct variable *variable = &launcher->variables[i];
        const char *text = variable->kind
                               ? cluster_input_variable(input, variable->name)
                               : NULL;
        if (text && implies_others(variable->kind, text, one))
            return variable;
    }
    return NULL;
}

/* Writes the variables to set instead: ranks if LAUNCHER gives all of them,
 * else a cluster with roles. */
static void write_advice(const struct launcher *launcher, char *text,
                         size_t size) {
    const struct variable *variables = launcher->variables;
    for (size_t i = 0; i < sizeof advices / sizeof *advices; i++)
        if (!strcmp(advices[i].launcher, launcher->name)) {
            snprintf(text, size, "%s", advices[i].text);
            return;
        }
    if (variables[0].kind == RANK && variables[1].kind == SIZE)
        snprintf(text, size,
                 "Set RANK to $%s, WORLD_SIZE to $%s and MASTER_ADDR to the "
                 "host of rank 0",
                 variables[0].name, variables[1].name);
    else
        snprintf(text, size,
                 "Set TF_CONFIG in each (or --job_name, --task_index and the "
                 "--*_hosts flags), or RANK, WORLD_SIZE and MASTER_ADDR");
}

static enum status report_others(const struct launcher *launcher,
                                 const struct variable *found,
                                 const struct cluster_input *input,
                                 struct failure *why) {
    char advice[512];
    const char *text = cluster_input_variable(input, found->name);
    write_advice(launcher, advice, sizeof advice);
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "not_alone: %s is %s (%s): there are other processes, and the "
        "variables do not describe the cluster, so each would train a model of "
        "its own. %s; or "
        "give --alone, if this process is to train alone.",
        found->name, diagnostics_quote_text(text).text, launcher->name, advice);
}

/* torch's RANK and WORLD_SIZE are a source only if both are set. */
static enum status check_torch(const struct cluster_input *input,
                               struct failure *why) {
    const char *rank = cluster_input_variable(input, "RANK");
    const char *size = cluster_input_variable(input, "WORLD_SIZE");
    bool half = rank || (size && other_launchers_count(SIZE, size) > 1);
    if (!half)
        return STATUS_OK;
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "%s: %s is %s and %s is not set, so it is not known %s. Set both, and "
        "MASTER_ADDR; or neither; or give --alone, if this process is to train "
        "alone.",
        rank ? "world_size_missing" : "rank_missing",
        rank ? "RANK" : "WORLD_SIZE",
        diagnostics_quote_text(rank ? rank : size).text,
        rank ? "WORLD_SIZE" : "RANK",
        rank ? "how many processes there are" : "which process this is");
}

enum status other_launchers_check(const struct cluster_input *input,
                                  struct failure *why) {
    enum status status = check_torch(input, why);
    for (size_t i = 0; !status && i < sizeof launchers / sizeof *launchers;
         i++) {
        const struct variable *found =
            other_launchers_find(&launchers[i], input);
        if (found)
            status = report_others(&launchers[i], found, input, why);
    }
    return status;
}
