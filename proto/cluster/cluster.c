/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the cluster description from one of several sources into one struct.
 * Each source has functions of its own, which read only that source. Rules for
 * all sources (duplicate addresses, flags that need a certain source) are
 * checked here afterwards. */
#include "proto/cluster/cluster.h"

#include "proto/cluster/cluster_input.h"
#include "proto/cluster/cluster_jobs.h"
#include "proto/cluster/cluster_self.h"
#include "proto/cluster/launcher_ranks.h"
#include "proto/cluster/launcher_roles.h"
#include "proto/cluster/other_launchers.h"
#include "proto/cluster/ranks.h"
#include "proto/cluster/tf_config.h"

#include <assert.h>
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

/* Without `is_set` and `read` the first variables are those of a struct
 * launcher_ranks, in its order. */
struct source {
    const char *name;
    bool (*is_set)(const struct cluster_input *input);
    enum status (*read)(struct cluster *cluster,
                        const struct cluster_input *input, struct failure *why);
    const char *variables[CLUSTER_SOURCE_VARIABLES];
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
    enum status status = other_launchers_check(input, why);
    return status ? status : read_alone(cluster, input, why);
}

/* Only the first source that is set is read, even if it is wrong. Slurm comes
 * before PMI: srun sets PMI's variables for other MPIs, and its own say more.
 * Of the rest, those that a user or the innermost launcher sets come first. */
static const struct source sources[] = {
    {"alone", is_alone_given, read_alone, {"--alone"}},
    {"flags",
     legacy_flags_set,
     legacy_flags_read,
     {"--job_name", "--task_index", "--ps_hosts", "--worker_hosts",
      "--chief_hosts"}},
    {"TF_CONFIG", tf_config_set, tf_config_read, {"TF_CONFIG"}},
    {"CLUSTER_SPEC", tf_config_spec_set, tf_config_spec_read, {"CLUSTER_SPEC"}},
    {"torch",
     launcher_ranks_torch_set,
     launcher_ranks_torch_read,
     {"RANK", "WORLD_SIZE"}},
    {"mpi",
     launcher_ranks_mpi_set,
     launcher_ranks_mpi_read,
     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}},
    {"slurm",
     launcher_ranks_slurm_set,
     launcher_ranks_slurm_read,
     {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}},
    {"mpi",
     launcher_ranks_pmi_set,
     launcher_ranks_pmi_read,
     {"PMI_RANK", "PMI_SIZE", "PMIX_RANK"}},
    {"DMLC",
     launcher_roles_dmlc_set,
     launcher_roles_dmlc_read,
     {"DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER",
      "DMLC_NUM_SERVER", "DMLC_WORKER_ID", "DMLC_SERVER_ID", "DMLC_RANK",
      "DMLC_TASK_ID"}},
    {"PADDLE",
     launcher_roles_paddle_set,
     launcher_roles_paddle_read,
     {"TRAINING_ROLE", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM",
      "PADDLE_TRAINER_ENDPOINTS", "PADDLE_PSERVERS_IP_PORT_LIST",
      "PADDLE_CURRENT_ENDPOINT", "PADDLE_PORT", "PADDLE_MASTER"}},
    {"HOROVOD",
     NULL,
     NULL,
     {"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK",
      "HOROVOD_LOCAL_SIZE", "HOROVOD_GLOO_RENDEZVOUS_PORT"}},
    {"MV2",
     NULL,
     NULL,
     {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
      "MV2_COMM_WORLD_LOCAL_SIZE"}},
    {"FLUX",
     NULL,
     NULL,
     {"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", NULL,
      "FLUX_JOB_ID"}},
    {"JSM",
     NULL,
     NULL,
     {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
      "JSM_NAMESPACE_LOCAL_SIZE", "PMIX_NAMESPACE"}},
    {"SM_HOSTS",
     launcher_ranks_sagemaker_set,
     launcher_ranks_sagemaker_read,
     {"SM_HOSTS", "SM_CURRENT_HOST", "SM_RESOURCE_CONFIG"}},
    {"mpi", launcher_ranks_pmix_set, launcher_ranks_pmi_read, {"PMIX_RANK"}},
    {"alone", always, read_nothing, {NULL}},
};
static_assert(sizeof sources / sizeof *sources == CLUSTER_SOURCES + 1,
              "CLUSTER_SOURCES is the number of those before the last");

static struct launcher_ranks ranks_of_source(const struct source *source) {
    const char *const *names = source->variables;
    return (struct launcher_ranks){names[0], names[1], names[2], names[3],
                                   names[4]};
}

static bool is_source_set(const struct source *source,
                          const struct cluster_input *input) {
    struct launcher_ranks ranks = ranks_of_source(source);
    return source->is_set ? source->is_set(input)
                          : launcher_ranks_set(&ranks, input);
}

static enum status read_source(const struct source *source,
                               struct cluster *cluster,
                               const struct cluster_input *input,
                               struct failure *why) {
    struct launcher_ranks ranks = ranks_of_source(source);
    return source->read ? source->read(cluster, input, why)
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

uint32_t cluster_sources(struct cluster_source out[CLUSTER_SOURCES],
                         const struct cluster_flags *flags,
                         cluster_getenv *lookup, void *context) {
    struct cluster_input input = {.lookup = lookup, .context = context};
    bool taken = false;
    if (flags)
        input.flags = *flags;
    for (uint32_t i = 0; i < CLUSTER_SOURCES; i++) {
        const struct source *source = &sources[i];
        struct cluster_source *state = &out[i];
        bool set = is_source_set(source, &input);
        *state = (struct cluster_source){.name = source->name,
                                         .first = source->variables[0]};
        uint32_t shown = source->is_set ? CLUSTER_SOURCE_VARIABLES : 2;
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
    return CLUSTER_SOURCES;
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
