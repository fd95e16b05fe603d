/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/decimal.h"
#include "proto/cluster/address.h"
#include "proto/cluster/chief_address.h"
#include "proto/cluster/cluster_input.h"
#include "proto/cluster/cluster_jobs.h"
#include "proto/cluster/cluster_self.h"
#include "proto/cluster/ranks.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MAX_COUNT = 1 << 20 };

/* Reads variable NAME, a number of processes from LEAST on. */
static enum status read_process_count(const struct cluster_input *input,
                                      const char *name, uint32_t least,
                                      uint32_t *count, struct failure *why) {
    const char *text = cluster_input_variable(input, name);
    uint64_t found;
    if (!decimal_parse(text, &found) || found < least || found > MAX_COUNT)
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "bad_world_size: %s is %s; it is a number of "
                           "processes, from %u to %d.",
                           name, diagnostics_quote_text(text).text, least,
                           MAX_COUNT);
    *count = (uint32_t)found;
    return STATUS_OK;
}

struct dmlc_role {
    const char *text;
    enum cluster_role role;
    const char *id, *count; /* names of variables; NULL: there is one */
};

static const struct dmlc_role *find_dmlc_role(
    const struct cluster_input *input) {
    static const struct dmlc_role roles[] = {
        {"scheduler", CLUSTER_CHIEF, NULL, NULL},
        {"server", CLUSTER_PS, "DMLC_SERVER_ID", "DMLC_NUM_SERVER"},
        {"worker", CLUSTER_WORKER, "DMLC_WORKER_ID", "DMLC_NUM_WORKER"},
    };
    const char *text = cluster_input_variable(input, "DMLC_ROLE");
    for (size_t i = 0; text && i < sizeof roles / sizeof *roles; i++)
        if (!strcasecmp(text, roles[i].text))
            return &roles[i];
    return NULL;
}

/* The tracker of dmlc-core numbers servers behind the workers, except on YARN.
 */
static const char *find_dmlc_index(const struct dmlc_role *role,
                                   const struct cluster_input *input) {
    static const char task[] = "DMLC_TASK_ID";
    if (cluster_input_variable(input, role->id))
        return role->id;
    if (cluster_input_variable(input, "DMLC_RANK"))
        return "DMLC_RANK";
    bool usable = role->role == CLUSTER_WORKER ||
                  cluster_input_variable(input, "DMLC_JOB_CLUSTER");
    return usable && cluster_input_variable(input, task) ? task : NULL;
}

static bool variable_is(const struct cluster_input *input, const char *name,
                        const char *text) {
    const char *found = cluster_input_variable(input, name);
    return found && !strcasecmp(found, text);
}

static bool dmlc_set(const struct cluster_input *input) {
    static const char *const needed[] = {"DMLC_ROLE", "DMLC_PS_ROOT_URI",
                                         "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER",
                                         "DMLC_NUM_SERVER"};
    const struct dmlc_role *role = find_dmlc_role(input);
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!cluster_input_variable(input, needed[i]))
            return false;
    const char *local = cluster_input_variable(input, "BYTEPS_LOCAL_SIZE");
    if (role && role->role == CLUSTER_WORKER &&
        variable_is(input, "DMLC_NUM_WORKER", "1") &&
        variable_is(input, "DMLC_NUM_SERVER", "0") &&
        (!local || !strcmp(local, "1")))
        return false;
    return !role || !role->id || find_dmlc_index(role, input) ||
           variable_is(input, role->count, "1");
}

static enum status read_dmlc_address(struct cluster *cluster,
                                     const struct cluster_input *input,
                                     struct failure *why) {
    static const char uri[] = "DMLC_PS_ROOT_URI", name[] = "DMLC_PS_ROOT_PORT";
    const char *text = cluster_input_variable(input, name);
    struct cluster_task *chief = cluster->jobs[CLUSTER_CHIEF].tasks;
    uint64_t port;
    enum status status = chief_address_read_host(
        chief, cluster_input_variable(input, uri), uri, name, why);
    if (status)
        return status;
    if (!decimal_parse(text, &port) || port < 1 || port > UINT16_MAX)
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "bad_port: %s is %s; a port is a number from 1 to "
                           "%d.",
                           name, diagnostics_quote_text(text).text, UINT16_MAX);
    chief->port = (uint16_t)port;
    return STATUS_OK;
}

/* Turns *INDEX, a server's DMLC_TASK_ID, into its number among the servers. */
static enum status count_dmlc_server(const struct cluster *cluster,
                                     uint32_t machines,
                                     const struct cluster_input *input,
                                     int64_t *index, struct failure *why) {
    uint32_t servers = cluster->jobs[CLUSTER_PS].count;
    *index -= machines;
    if (*index >= 0 && *index < servers)
        return STATUS_OK;
    const char *text = cluster_input_variable(input, "DMLC_TASK_ID");
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "index_out_of_range: DMLC_TASK_ID is %s; the tracker numbers servers "
        "behind the workers: with DMLC_NUM_WORKER %u and DMLC_NUM_SERVER %u a "
        "server's is at least %u and less than %u. Set DMLC_SERVER_ID to count "
        "servers from 0.",
        diagnostics_quote_text(text).text, machines, servers, machines,
        machines + servers);
}

/* The number of this process, or of its machine, in its role. */
static enum status read_dmlc_index(const struct cluster *cluster,
                                   const struct dmlc_role *role,
                                   uint32_t machines,
                                   const struct cluster_input *input,
                                   int64_t *index, struct failure *why) {
    const char *name = role->id ? find_dmlc_index(role, input) : NULL;
    enum status status = ranks_read_number(input, name, index, why);
    if (status)
        return status;
    if (*index < 0)
        *index = 0;
    if (role->role == CLUSTER_PS && name && !strcmp(name, "DMLC_TASK_ID") &&
        !variable_is(input, "DMLC_JOB_CLUSTER", "yarn"))
        return count_dmlc_server(cluster, machines, input, index, why);
    return STATUS_OK;
}

/* Turns the *INDEX of a machine into that of a worker on it. */
static enum status read_byteps_rank(struct cluster *cluster, uint32_t local,
                                    const struct cluster_input *input,
                                    int64_t *index, struct failure *why) {
    static const char name[] = "BYTEPS_LOCAL_RANK";
    int64_t here;
    enum status status = ranks_read_number(input, name, &here, why);
    if (status)
        return status;
    if (here < 0 && local > 1)
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "rank_missing: BYTEPS_LOCAL_SIZE is %u, and %s is "
                           "not set: set it to the number of this worker on "
                           "its machine, from 0.",
                           local, name);
    if (here >= local)
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "index_out_of_range: %s is %jd, and "
                           "BYTEPS_LOCAL_SIZE is %u: count from 0.",
                           name, (intmax_t)here, local);
    cluster->local_rank = here;
    *index = *index * local + (here > 0 ? here : 0);
    return STATUS_OK;
}

/* Finds this process, of the role NAME and INDEX, in CLUSTER. */
static enum status find_self(struct cluster *cluster, struct cluster_self *self,
                             const char *name, int64_t index,
                             struct failure *why) {
    char text[24];
    snprintf(text, sizeof text, "%jd", (intmax_t)index);
    enum status status = cluster_self_from_text(self, name, text, why);
    return status ? status : cluster_self_resolve(self, cluster, why);
}

/* Fills the jobs; *MACHINES have *LOCAL workers each. */
static enum status read_dmlc_counts(struct cluster *cluster, uint32_t *machines,
                                    uint32_t *local,
                                    const struct cluster_input *input,
                                    struct failure *why) {
    static const char each[] = "BYTEPS_LOCAL_SIZE";
    uint32_t servers = 0;
    *machines = *local = 1;
    enum status status =
        read_process_count(input, "DMLC_NUM_WORKER", 1, machines, why);
    if (!status && cluster_input_variable(input, each))
        status = read_process_count(input, each, 1, local, why);
    if (!status && (uint64_t)*machines * *local > MAX_COUNT)
        status = status_fail(why, FAILURE_CLUSTER_INVALID,
                             "bad_world_size: DMLC_NUM_WORKER x %s is more "
                             "than %d workers.",
                             each, MAX_COUNT);
    if (!status)
        status = read_process_count(input, "DMLC_NUM_SERVER", 0, &servers, why);
    if (!status)
        status = ranks_fill_tasks(&cluster->jobs[CLUSTER_CHIEF], 1, why);
    if (!status)
        status = ranks_fill_tasks(&cluster->jobs[CLUSTER_WORKER],
                                  *machines * *local, why);
    if (!status)
        status = ranks_fill_tasks(&cluster->jobs[CLUSTER_PS], servers, why);
    return status;
}

static enum status dmlc_read(struct cluster *cluster,
                             const struct cluster_input *input,
                             struct failure *why) {
    const struct dmlc_role *role = find_dmlc_role(input);
    struct cluster_self self = {.names = ROLE_NAMES_TF,
                                .type_location = "DMLC_ROLE",
                                .index_location = "the index of DMLC_ROLE"};
    uint32_t machines, local;
    int64_t index = 0;
    if (!role)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "task_type_not_in_cluster: DMLC_ROLE is %s; it is scheduler, "
            "server or worker.",
            diagnostics_quote_text(cluster_input_variable(input, "DMLC_ROLE"))
                .text);
    enum status status =
        read_dmlc_counts(cluster, &machines, &local, input, why);
    if (!status)
        status = read_dmlc_address(cluster, input, why);
    if (!status)
        status = read_dmlc_index(cluster, role, machines, input, &index, why);
    if (!status && role->role == CLUSTER_WORKER && local > 1)
        status = read_byteps_rank(cluster, local, input, &index, why);
    cluster->from_ranks = cluster->coordinates = true;
    return status ? status
                  : find_self(cluster, &self, cluster_role_name(role->role),
                              index, why);
}

const struct cluster_reader launcher_roles_dmlc = {dmlc_set, dmlc_read};

/* Values of Paddle's variables; NULL: not set. */
struct paddle {
    const char *id, *count, *here, *trainers, *servers;
    bool is_server;
    char pod[300]; /* POD_IP and PADDLE_PORT, "": not set */
};

static struct paddle paddle_load(const struct cluster_input *input) {
    const char *ip = cluster_input_variable(input, "POD_IP");
    const char *port = cluster_input_variable(input, "PADDLE_PORT");
    struct paddle paddle = {
        .id = cluster_input_variable(input, "PADDLE_TRAINER_ID"),
        .count = cluster_input_variable(input, "PADDLE_TRAINERS_NUM"),
        .here = cluster_input_variable(input, "PADDLE_CURRENT_ENDPOINT"),
        .trainers = cluster_input_variable(input, "PADDLE_TRAINER_ENDPOINTS"),
        .servers =
            cluster_input_variable(input, "PADDLE_PSERVERS_IP_PORT_LIST"),
        .is_server = variable_is(input, "TRAINING_ROLE", "PSERVER"),
    };
    if (ip && port)
        snprintf(paddle.pod, sizeof paddle.pod, "%s:%s", ip, port);
    return paddle;
}

/* Are all processes on this host, because the ps listen for no other? */
static struct chief_location paddle_location(const struct paddle *paddle) {
    struct chief_location location = {.one_node = paddle->servers};
    for (const char *at = paddle->servers; at; at = strchr(at, ',')) {
        char host[256];
        at += strspn(at, ", ");
        snprintf(host, sizeof host, "%.*s", (int)strcspn(at, ":,"), at);
        location.one_node &= !*at || chief_address_is_loopback(host);
    }
    return location;
}

static bool paddle_set(const struct cluster_input *input) {
    struct paddle paddle = paddle_load(input);
    struct chief_location location = paddle_location(&paddle);
    bool several =
        paddle.servers ||
        (paddle.trainers ? strchr(paddle.trainers, ',') != NULL
                         : paddle.count && strcmp(paddle.count, "1"));
    bool others =
        paddle.trainers ||
        (paddle.count && (cluster_input_variable(input, "PADDLE_MASTER") ||
                          chief_address_is_known(&location, input)));
    bool self = paddle.is_server
                    ? paddle.servers && (paddle.pod[0] || paddle.here)
                    : paddle.id || (paddle.trainers && paddle.here);
    return several && others && self;
}

/* Reads LIST, the value of variable NAME, as the tasks of JOB. A script may
 * leave a comma at its end. */
static enum status read_paddle_list(struct cluster *cluster, const char *job,
                                    const char *list, const char *name,
                                    struct failure *why) {
    size_t length = list ? strlen(list) : 0;
    if (!list)
        return STATUS_OK;
    while (length && strchr(", \t\r\n", list[length - 1]))
        length--;
    json_t *map = json_pack("{s:o}", job, cluster_jobs_split(list, length));
    enum status status =
        cluster_jobs_read(cluster, map, ROLE_NAMES_TF, name, why);
    json_decref(map);
    return status;
}

/* Trainers of which only the first has a known address. */
static enum status read_paddle_count(struct cluster *cluster,
                                     const struct paddle *paddle,
                                     uint32_t count,
                                     const struct cluster_input *input,
                                     struct failure *why) {
    static const char name[] = "PADDLE_MASTER";
    const char *master = cluster_input_variable(input, name);
    struct chief_location location = paddle_location(paddle);
    struct cluster_job *job = &cluster->jobs[CLUSTER_WORKER];
    enum status status = ranks_fill_tasks(job, count, why);
    cluster->from_ranks = true;
    if (status)
        return status;
    return master ? address_parse(job->tasks, master, name, why)
                  : chief_address_read(job->tasks, &cluster->chief_ports,
                                       &location, input, why);
}

static enum status read_paddle_jobs(struct cluster *cluster,
                                    const struct paddle *paddle,
                                    const struct cluster_input *input,
                                    struct failure *why) {
    static const char counted[] = "PADDLE_TRAINERS_NUM";
    static const char listed[] = "PADDLE_TRAINER_ENDPOINTS";
    const struct cluster_job *job = &cluster->jobs[CLUSTER_WORKER];
    uint32_t count = 0;
    enum status status = read_paddle_list(cluster, "ps", paddle->servers,
                                          "PADDLE_PSERVERS_IP_PORT_LIST", why);
    if (!status && paddle->count)
        status = read_process_count(input, counted, 1, &count, why);
    if (!status && !paddle->trainers)
        status = read_paddle_count(cluster, paddle, count, input, why);
    else if (!status)
        status =
            read_paddle_list(cluster, "worker", paddle->trainers, listed, why);
    if (status || !paddle->count || count == job->count)
        return status;
    return status_fail(why, FAILURE_CLUSTER_INVALID,
                       "bad_world_size: %s is %u, and %s lists %u. Correct one "
                       "of them.",
                       counted, count, listed, job->count);
}

/* The index of ADDRESS in JOB. */
static enum status find_address(const struct cluster_job *job,
                                const char *address, int64_t *index,
                                struct failure *why) {
    for (uint32_t i = 0; i < job->count; i++) {
        char text[270];
        cluster_address(&job->tasks[i], text, sizeof text);
        *index = i;
        if (!strcasecmp(text, address))
            return STATUS_OK;
    }
    return status_fail(why, FAILURE_CLUSTER_INVALID,
                       "index_out_of_range: this process is at %s by "
                       "PADDLE_CURRENT_ENDPOINT, or POD_IP and PADDLE_PORT, "
                       "and the list of its role has no such address. Correct "
                       "one of them.",
                       diagnostics_quote_text(address).text);
}

static enum status paddle_read(struct cluster *cluster,
                               const struct cluster_input *input,
                               struct failure *why) {
    static const char role[] = "TRAINING_ROLE";
    const char *given = cluster_input_variable(input, role);
    struct paddle paddle = paddle_load(input);
    struct cluster_self self = {.names = ROLE_NAMES_TF,
                                .type_location = role,
                                .index_location = "PADDLE_TRAINER_ID"};
    const char *here = paddle.pod[0] ? paddle.pod : paddle.here;
    int64_t index = 0;
    if (given && !paddle.is_server && strcasecmp(given, "TRAINER") != 0)
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "task_type_not_in_cluster: %s is %s; it is TRAINER "
                           "or PSERVER.",
                           role, diagnostics_quote_text(given).text);
    enum status status = read_paddle_jobs(cluster, &paddle, input, why);
    if (!status && paddle.is_server)
        status = find_address(&cluster->jobs[CLUSTER_PS], here, &index, why);
    else if (!status && paddle.id)
        status = ranks_read_number(input, "PADDLE_TRAINER_ID", &index, why);
    else if (!status)
        status = find_address(&cluster->jobs[CLUSTER_WORKER], paddle.here,
                              &index, why);
    return status ? status
                  : find_self(cluster, &self,
                              paddle.is_server ? "ps" : "worker", index, why);
}

const struct cluster_reader launcher_roles_paddle = {paddle_set, paddle_read};
