/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the cluster description from one of several sources into one struct.
 * Each source has functions of its own, which read only that source. Rules for
 * all sources (duplicate addresses, flags that need a certain source) are
 * checked here afterwards. */
#include "proto/cluster/cluster.h"

#include "core/base/decimal.h"
#include "core/base/diagnostics.h"
#include "proto/cluster/cluster_input.h"
#include "proto/cluster/cluster_jobs.h"
#include "proto/cluster/cluster_self.h"
#include "proto/cluster/ranks.h"
#include "proto/cluster/role_name.h"

#include <assert.h>
#include <fnmatch.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The flags of legacy scripts: --job_name --task_index --ps_hosts
 * --worker_hosts --chief_hosts. True if any of them is given and not blank. */
static bool legacy_flags_set(const struct cluster_input *input) {
    const struct cluster_flags *flags = &input->flags;
    return cluster_input_text(flags->job_name) ||
           cluster_input_text(flags->task_index) ||
           cluster_input_text(flags->ps_hosts) ||
           cluster_input_text(flags->worker_hosts) ||
           cluster_input_text(flags->chief_hosts);
}

static void add_job(json_t *map, const char *job, const char *list) {
    if (cluster_input_text(list))
        json_object_set_new(map, job, cluster_jobs_split(list, strlen(list)));
}

/* Reads the flags, and nothing else, into CLUSTER, which is empty. */
static enum status legacy_flags_read(struct cluster *cluster,
                                     const struct cluster_input *input,
                                     struct failure *why) {
    const struct cluster_flags *flags = &input->flags;
    struct cluster_self self = {.names = ROLE_NAMES_TF,
                                .location = "--job_name and --task_index",
                                .type_location = "--job_name",
                                .index_location = "--task_index"};
    json_t *map = json_object();
    add_job(map, "chief", flags->chief_hosts);
    add_job(map, "worker", flags->worker_hosts);
    add_job(map, "ps", flags->ps_hosts);
    enum status status =
        cluster_jobs_read(cluster, map, self.names, "the --*_hosts flags", why);
    json_decref(map);
    if (status != STATUS_OK)
        return status;
    status = cluster_self_from_text(&self, cluster_input_text(flags->job_name),
                                    cluster_input_text(flags->task_index), why);
    return status ? status : cluster_self_resolve(&self, cluster, why);
}

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

/* What shows other processes, though no source describes them. */
struct launcher {
    const char *name;
    struct variable {
        const char *name;
        enum kind kind;
    } variables[MAX_VARIABLES]; /* a rank stands before its size */
    const char *advice; /* what to set; NULL: by the kinds of its variables */
};

#define SET_ADDRESS                                                            \
    "Set MASTER_ADDR to the host of rank 0 in each (127.0.0.1 if all are on "  \
    "one host), beside its rank and the size"

static const struct launcher launchers[] = {
    {"Horovod", .variables = {{"HOROVOD_RANK", RANK}, {"HOROVOD_SIZE", SIZE}},
     SET_ADDRESS},
    {"MVAPICH2",
     .variables = {{"MV2_COMM_WORLD_RANK", RANK},
                   {"MV2_COMM_WORLD_SIZE", SIZE}},
     SET_ADDRESS},
    {"MVAPICH", .variables = {{"MPIRUN_RANK", RANK}, {"MPIRUN_NPROCS", SIZE}}},
    {"an MPI's process manager", .variables = {{"PMI_SIZE", SIZE}}},
    {"jsrun",
     .variables = {{"JSM_NAMESPACE_RANK", RANK}, {"JSM_NAMESPACE_SIZE", SIZE}},
     SET_ADDRESS},
    {"Flux", .variables = {{"FLUX_TASK_RANK", RANK}, {"FLUX_JOB_SIZE", SIZE}},
     SET_ADDRESS},
    {"Cray PALS", .variables = {{"PALS_RANKID", RANK}}},
    {"Cray ALPS", .variables = {{"ALPS_APP_PE", RANK}}},
    {"pbsdsh", .variables = {{"PBS_VNODENUM", INDEX}, {"PBS_NODENUM", INDEX}}},
    {"blaunch",
     .variables = {{"LSF_PM_TASKID", RANK}, {"LSB_DJOB_NUMPROC", SLOTS}}},
    {"MXNet, ps-lite",
     .variables = {{"DMLC_ROLE", ROLE},
                   {"DMLC_WORKER_ID", RANK},
                   {"DMLC_TASK_ID", RANK},
                   {"DMLC_NUM_WORKER", SIZE},
                   {"DMLC_NUM_SERVER", OTHERS}},
     "Set DMLC_ROLE, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_NUM_WORKER and "
     "DMLC_NUM_SERVER in each; and DMLC_WORKER_ID in each worker, "
     "DMLC_SERVER_ID in each server (0, 1, ...), as no index is assigned here; "
     "or RANK, WORLD_SIZE and MASTER_ADDR"},
    {"BytePS",
     .variables = {{"BYTEPS_LOCAL_RANK", INDEX}, {"BYTEPS_LOCAL_SIZE", SIZE}}},
    {"Paddle",
     .variables = {{"TRAINING_ROLE", ROLE},
                   {"PADDLE_TRAINER_ID", RANK},
                   {"PADDLE_TRAINERS_NUM", SIZE},
                   {"PADDLE_TRAINER_ENDPOINTS", HOSTS},
                   {"PADDLE_PSERVERS_IP_PORT_LIST", ADDRESSES}},
     "Set PADDLE_TRAINER_ENDPOINTS, or PADDLE_TRAINERS_NUM with MASTER_ADDR, "
     "the host of trainer 0; in a trainer PADDLE_TRAINER_ID, in a ps "
     "PADDLE_PSERVERS_IP_PORT_LIST with POD_IP and PADDLE_PORT"},
    {"MindSpore", .variables = {{"MS_ROLE", ROLE},
                                {"MS_NODE_ID", RANK},
                                {"MS_WORKER_NUM", SIZE},
                                {"MS_SERVER_NUM", OTHERS}}},
    {"Ascend", .variables = {{"RANK_ID", RANK}, {"RANK_SIZE", SIZE}}},
    {"SageMaker", .variables = {{"SM_HOSTS", HOSTS}},
     "Set SM_CURRENT_HOST to this host's name in SM_HOSTS, or RANK, WORLD_SIZE "
     "and MASTER_ADDR"},
    {"TPU", .variables = {{"TPU_WORKER_ID", RANK},
                          {"TPU_WORKER_HOSTNAMES", HOSTS},
                          {"TPU_PROCESS_ADDRESSES", HOSTS},
                          {"CLOUD_TPU_TASK_ID", INDEX}}},
    {"JAX",
     .variables = {{"JAX_PROCESS_ID", RANK}, {"JAX_NUM_PROCESSES", SIZE}}},
    {"Azure", .variables = {{"AZ_BATCHAI_TASK_INDEX", INDEX},
                            {"AZUREML_NODE_COUNT", SIZE},
                            {"AZ_BATCH_NODE_LIST", HOSTS},
                            {"AZ_BATCH_HOST_LIST", HOSTS},
                            {"AZ_BATCHAI_WORKER_HOSTS", HOSTS},
                            {"AZ_BATCHAI_PS_HOSTS", ADDRESSES}}},
    {"AWS Batch", .variables = {{"AWS_BATCH_JOB_NODE_INDEX", RANK},
                                {"AWS_BATCH_JOB_NUM_NODES", SIZE}}},
    {"SkyPilot",
     .variables = {{"SKYPILOT_NODE_RANK", RANK}, {"SKYPILOT_NUM_NODES", SIZE}}},
    {"Volcano", .variables = {{"VC_TASK_INDEX", INDEX},
                              {"VK_TASK_INDEX", INDEX},
                              {"VC_WORKER_NUM", SIZE},
                              {"VC_PS_NUM", OTHERS}}},
    {"LeaderWorkerSet",
     .variables = {{"LWS_WORKER_INDEX", INDEX}, {"LWS_GROUP_SIZE", SIZE}}},
    {"torchrun", .variables = {{"PET_NODE_RANK", INDEX},
                               {"PET_NNODES", SIZE},
                               {"GROUP_WORLD_SIZE", SIZE},
                               {"LOCAL_WORLD_SIZE", SIZE}}},
    {"a TensorFlow script", .variables = {{"JOB_NAME", JOB},
                                          {"WORKER_HOSTS", HOSTS},
                                          {"PS_HOSTS", ADDRESSES}}},
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
static uint64_t count_in(enum kind kind, const char *text) {
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
        if (text && count_in(variable->kind, text) <= 1)
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
        return !one || count_in(kind, text) > 0;
    case INDEX:
    case OTHERS:
        return count_in(kind, text) > 0;
    case SIZE:
    case HOSTS:
        return count_in(kind, text) > 1;
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
static const struct variable *find_variable(const struct launcher *launcher,
                                            const struct cluster_input *input) {
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
    if (launcher->advice)
        snprintf(text, size, "%s", launcher->advice);
    else if (variables[0].kind == RANK && variables[1].kind == SIZE)
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
    bool half = rank || (size && count_in(SIZE, size) > 1);
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

/* For a process without a source: fails if a variable gives a rank, a role or a
 * size above one, because each of the processes would train a model of its own.
 * Variables that mean one process, or that show only what a batch system
 * allocated, do not count. Errors: not_alone, rank_missing,
 * world_size_missing. */
static enum status check_other_launchers(const struct cluster_input *input,
                                         struct failure *why) {
    enum status status = check_torch(input, why);
    for (size_t i = 0; !status && i < sizeof launchers / sizeof *launchers;
         i++) {
        const struct variable *found = find_variable(&launchers[i], input);
        if (found)
            status = report_others(&launchers[i], found, input, why);
    }
    return status;
}

/* Without `reader` the first variables are those of a struct launcher_ranks, in
 * its order. */
struct source {
    const char *name;
    const struct cluster_reader *reader;
    const char *variables[CLUSTER_SOURCE_VARIABLES];
    /* Further ones that come with them, for fnmatch(3). */
    const char *others[CLUSTER_SOURCE_VARIABLES];
    bool inherited; /* scripts read its variables too */
};

static bool is_alone_given(const struct cluster_input *input) {
    return input->flags.alone;
}

static enum status read_alone(struct cluster *cluster,
                              const struct cluster_input *input,
                              struct failure *why) {
    cluster->local = true;
    cluster->role = CLUSTER_WORKER;
    if (!legacy_flags_set(input))
        return STATUS_OK;
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "alone_given: --alone means that no other process takes part, but "
        "other flags describe a cluster. Leave out one or the others.");
}

static bool always(const struct cluster_input *input) {
    (void)input;
    return true;
}

static enum status read_nothing(struct cluster *cluster,
                                const struct cluster_input *input,
                                struct failure *why) {
    enum status status = check_other_launchers(input, why);
    return status ? status : read_alone(cluster, input, why);
}

/* Only the first source that is set is read, even if it is wrong. Slurm comes
 * before PMI: srun sets PMI's variables for other MPIs, and its own say more.
 * Of the rest, those that a user or the innermost launcher sets come first. */
static const struct source sources[] = {
    {"alone", &(const struct cluster_reader){is_alone_given, read_alone},
     .variables = {"--alone"}},
    {"flags",
     &(const struct cluster_reader){legacy_flags_set, legacy_flags_read},
     .variables = {"--job_name", "--task_index", "--ps_hosts", "--worker_hosts",
                   "--chief_hosts"},
     .others = {"JOB_NAME", "TASK_INDEX"}},
    {"TF_CONFIG", &tf_config, .variables = {"TF_CONFIG"}},
    {"CLUSTER_SPEC", &tf_config_spec, .variables = {"CLUSTER_SPEC"}},
    {"torch", &launcher_ranks_torch, .variables = {"RANK", "WORLD_SIZE"},
     .others = {"NODE_RANK", "LOCAL_RANK", "LOCAL_WORLD_*", "GROUP_RANK",
                "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE",
                "MASTER_*", "TORCHELASTIC_*", "PET_*"}},
    {"mpi", &launcher_ranks_mpi,
     .variables = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
     .others = {"OMPI_*", "AZ_BATCH*"}},
    {"slurm", &launcher_ranks_slurm,
     .variables = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
     .others = {"SLURM_*"}},
    {"mpi", &launcher_ranks_pmi,
     .variables = {"PMI_RANK", "PMI_SIZE", "PMIX_RANK"},
     .others = {"PMI_*", "PMIX_*", "MPI_LOCAL*"}},
    {"DMLC", &launcher_roles_dmlc,
     .variables = {"DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT",
                   "DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_WORKER_ID",
                   "DMLC_SERVER_ID", "DMLC_RANK", "DMLC_TASK_ID"}},
    {"PADDLE", &launcher_roles_paddle,
     .variables = {"TRAINING_ROLE", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM",
                   "PADDLE_TRAINER_ENDPOINTS", "PADDLE_PSERVERS_IP_PORT_LIST",
                   "PADDLE_CURRENT_ENDPOINT", "PADDLE_PORT", "PADDLE_MASTER"}},
    {"HOROVOD",
     .variables = {"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK",
                   "HOROVOD_LOCAL_SIZE", "HOROVOD_GLOO_RENDEZVOUS_PORT"}},
    {"MV2",
     .variables = {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                   "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"}},
    {"FLUX", .variables = {"FLUX_TASK_RANK", "FLUX_JOB_SIZE",
                           "FLUX_TASK_LOCAL_ID", NULL, "FLUX_JOB_ID"}},
    {"JSM", .variables = {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
                          "JSM_NAMESPACE_LOCAL_RANK",
                          "JSM_NAMESPACE_LOCAL_SIZE", "PMIX_NAMESPACE"}},
    {"SM_HOSTS", &launcher_ranks_sagemaker,
     .variables = {"SM_HOSTS", "SM_CURRENT_HOST", "SM_RESOURCE_CONFIG"},
     .inherited = true},
    {"mpi", &launcher_ranks_pmix, .variables = {"PMIX_RANK"}},
    {"alone", &(const struct cluster_reader){always, read_nothing},
     .variables = {NULL}},
};
enum { SOURCES = sizeof sources / sizeof *sources - 1 }; /* without the last */
static_assert((int)SOURCES <= CLUSTER_SOURCES_MAX, "callers keep all of them");

bool cluster_hides(const char *variable) {
    for (size_t s = 0; s < SOURCES; s++)
        for (size_t v = 0; v < CLUSTER_SOURCE_VARIABLES; v++) {
            const char *read = sources[s].variables[v];
            const char *other = sources[s].others[v];
            if (!sources[s].inherited &&
                ((read && !strcmp(read, variable)) ||
                 (other && !fnmatch(other, variable, 0))))
                return true;
        }
    return false;
}

static struct launcher_ranks ranks_of_source(const struct source *source) {
    const char *const *names = source->variables;
    return (struct launcher_ranks){names[0], names[1], names[2], names[3],
                                   names[4]};
}

static bool is_source_set(const struct source *source,
                          const struct cluster_input *input) {
    struct launcher_ranks ranks = ranks_of_source(source);
    return source->reader ? source->reader->is_set(input)
                          : launcher_ranks_set(&ranks, input);
}

static enum status read_source(const struct source *source,
                               struct cluster *cluster,
                               const struct cluster_input *input,
                               struct failure *why) {
    struct launcher_ranks ranks = ranks_of_source(source);
    return source->reader ? source->reader->read(cluster, input, why)
                          : launcher_ranks_read(&ranks, cluster, input, why);
}

static enum status check_addresses(struct cluster *cluster,
                                   struct failure *why) MUST_CHECK;

/* In the order of enum cluster_warning's bits. */
static const char *const warning_names[] = {
    "duplicate_key",    "null_job",  "task_missing",
    "own_address_only", "port_zero", "address_twice",
};

enum status cluster_resolve(struct cluster **out,
                            const struct cluster_flags *flags,
                            cluster_getenv *lookup, void *context,
                            struct failure *why) {
    struct cluster_input input = {.lookup = lookup, .context = context};
    if (flags)
        input.flags = *flags;
    const struct source *source = sources;
    while (!is_source_set(source, &input))
        source++;
    struct cluster *cluster = calloc(1, sizeof *cluster);
    if (!cluster)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for the cluster");
    cluster->source = source->name;
    cluster->join = input.flags.join;
    cluster->local_rank = cluster->local_size = CLUSTER_UNKNOWN;
    enum status status = read_source(source, cluster, &input, why);
    if (status == STATUS_OK)
        status = ranks_check_flags(cluster, &input, why);
    if (status == STATUS_OK)
        status = check_addresses(cluster, why);
    if (status != STATUS_OK)
        cluster_free(&cluster);
    *out = cluster;
    return status;
}

/* The value of variable or flag NAME. */
static const char *variable_or_flag(const struct cluster_input *input,
                                    const char *name) {
    const struct cluster_flags *flags = &input->flags;
    const struct {
        const char *name, *text;
    } given[] = {
        {"--alone", flags->alone ? "given" : NULL},
        {"--job_name", flags->job_name},
        {"--task_index", flags->task_index},
        {"--ps_hosts", flags->ps_hosts},
        {"--worker_hosts", flags->worker_hosts},
        {"--chief_hosts", flags->chief_hosts},
    };
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (!strcmp(given[i].name, name))
            return cluster_input_text(given[i].text);
    return cluster_input_variable(input, name);
}

uint32_t cluster_sources(struct cluster_source out[CLUSTER_SOURCES_MAX],
                         const struct cluster_flags *flags,
                         cluster_getenv *lookup, void *context) {
    struct cluster_input input = {.lookup = lookup, .context = context};
    bool taken = false;
    if (flags)
        input.flags = *flags;
    for (uint32_t i = 0; i < SOURCES; i++) {
        const struct source *source = &sources[i];
        struct cluster_source *state = &out[i];
        bool set = is_source_set(source, &input);
        *state = (struct cluster_source){.name = source->name,
                                         .first = source->variables[0]};
        uint32_t shown = source->reader ? CLUSTER_SOURCE_VARIABLES : 2;
        for (uint32_t v = 0; v < shown; v++) {
            const char *name = source->variables[v];
            if (name && variable_or_flag(&input, name))
                state->variables[state->count++] = name;
        }
        if (state->count)
            state->state =
                set ? CLUSTER_SOURCE_LATER : CLUSTER_SOURCE_INCOMPLETE;
        if (set && !taken)
            state->state = CLUSTER_SOURCE_TAKEN;
        taken |= set;
    }
    return SOURCES;
}

void cluster_free(struct cluster **cluster) {
    if (!cluster || !*cluster)
        return;
    for (enum cluster_role r = 0; r < CLUSTER_ROLES; r++)
        free((*cluster)->jobs[r].tasks);
    free((*cluster)->model_dir);
    free(*cluster);
    *cluster = NULL;
}

/* Names of one address. */
static const char *plain_host(const char *host) {
    bool own = !strcmp(host, "127.0.0.1") || !strcmp(host, "::1");
    return own ? "localhost" : host;
}

static int compare_address(const void *a, const void *b) {
    const struct cluster_task *one = *(const struct cluster_task *const *)a;
    const struct cluster_task *other = *(const struct cluster_task *const *)b;
    int difference = (one->port > other->port) - (one->port < other->port);
    return difference
               ? difference
               : strcasecmp(plain_host(one->host), plain_host(other->host));
}

/* Two tasks at one address, of those to which others CONNECT, or of all that
 * listen; NULL: none. Sorted, as there may be tens of thousands. */
static const struct cluster_task *find_twice(const struct cluster *cluster,
                                             bool connect,
                                             const struct cluster_task **with) {
    const struct cluster_task **all = NULL, *found = NULL;
    size_t count = 0, used = 0;
    for (enum cluster_role r = 0; r < CLUSTER_EVALUATOR; r++)
        count += cluster->jobs[r].count;
    all = calloc(count + 1, sizeof(struct cluster_task *));
    for (enum cluster_role r = 0; all && r < CLUSTER_EVALUATOR; r++)
        for (uint32_t i = 0; i < cluster->jobs[r].count; i++) {
            const struct cluster_task *task = &cluster->jobs[r].tasks[i];
            if (task->port &&
                (!connect || r == CLUSTER_PS || task == cluster_chief(cluster)))
                all[used++] = task;
        }
    if (used)
        qsort(all, used, sizeof(struct cluster_task *), compare_address);
    for (size_t i = 1; i < used && !found; i++)
        if (!compare_address(&all[i - 1], &all[i])) {
            found = all[i];
            *with = all[i - 1];
        }
    free(all);
    return found;
}

const struct cluster_task *cluster_duplicate_address(
    const struct cluster *cluster) {
    const struct cluster_task *with;
    return find_twice(cluster, false, &with);
}

static void name_task(const struct cluster *cluster,
                      const struct cluster_task *task, char text[32]) {
    enum cluster_role role = CLUSTER_PS;
    while (role > 0 && cluster_find(cluster, role, task->index) != task)
        role--;
    snprintf(text, 32, "%s %u", cluster_role_name(role), task->index);
}

/* A worker that does not lead may be on another host of that name: nobody
 * connects to it by its address. */
static enum status check_addresses(struct cluster *cluster,
                                   struct failure *why) {
    const struct cluster_task *tasks[2];
    char names[2][32], addresses[2][270];
    if (cluster_duplicate_address(cluster))
        cluster->warnings |= CLUSTER_DUPLICATE_ADDRESS;
    tasks[0] = find_twice(cluster, true, &tasks[1]);
    if (!tasks[0])
        return STATUS_OK;
    for (int i = 0; i < 2; i++) {
        name_task(cluster, tasks[i], names[i]);
        cluster_address(tasks[i], addresses[i], sizeof addresses[i]);
    }
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "address_twice: %s lists %s at %s and %s at %s, and two processes "
        "cannot listen on one port of a host. Give each task an address of its "
        "own.",
        cluster->source, names[0], addresses[0], names[1], addresses[1]);
}

const struct cluster_task *cluster_chief(const struct cluster *cluster) {
    const struct cluster_task *chief = cluster_find(cluster, CLUSTER_CHIEF, 0);
    return chief ? chief : cluster_find(cluster, CLUSTER_WORKER, 0);
}

bool cluster_is_chief(const struct cluster *cluster) {
    const struct cluster_task *self = cluster_own_task(cluster);
    return cluster->local || (self && self == cluster_chief(cluster));
}

bool cluster_expects_joins(const struct cluster *cluster) {
    return cluster_is_chief(cluster) && !cluster->local;
}

static json_t *json_warnings(unsigned warnings) {
    json_t *names = json_array();
    for (size_t i = 0; i < sizeof warning_names / sizeof *warning_names; i++)
        if (warnings & 1u << i)
            json_array_append_new(names, json_string(warning_names[i]));
    return names;
}

char *cluster_json(const struct cluster *cluster) {
    char address[270];
    const struct cluster_task *chief = cluster_chief(cluster);
    if (chief)
        cluster_address(chief, address, sizeof address);
    uint32_t workers = cluster->jobs[CLUSTER_WORKER].count;
    json_t *root =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:s?, s:b, s:s, s:o}", "source",
                  cluster->source, "role", cluster_role_name(cluster->role),
                  "index", (json_int_t)cluster->index, "num_ps",
                  (json_int_t)cluster->jobs[CLUSTER_PS].count, "num_workers",
                  (json_int_t)(cluster->local ? 1 : workers), "chief",
                  chief ? address : NULL, "is_chief", cluster_is_chief(cluster),
                  "mode", cluster->local ? "local" : "cluster", "warnings",
                  json_warnings(cluster->warnings));
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}
