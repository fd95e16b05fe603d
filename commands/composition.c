/* SPDX-License-Identifier: Apache-2.0 */
/* Four cases: the process leads the run, is one of its ps or workers,
 * evaluates, or is a bench's client. Only the leader reads the job. Beside its
 * chief the leader may have a trainer, and a ps if no other process holds the
 * weights. Roles of one process find each other by name (`inside`) and
 * communicate as over the network. */
#include "commands/composition.h"

#include "chief/report/page_points.h"
#include "chief/rewind.h"
#include "commands/bench_cluster.h"
#include "commands/launch/death_report.h"
#include "commands/launch/launch.h"
#include "core/base/plugin.h"
#include "core/base/secret_file.h"
#include "core/net/link/interface.h"
#include "core/net/link/link_keys.h"
#include "core/net/link/zap_handler.h"
#include "proto/cluster/chief_address.h"
#include "proto/cluster/cluster_rank.h"
#include "worker/models/model.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { MOST_WORKERS = 1024 };
static const double JOIN_TIMEOUT = 600, BENCH_SILENCE = 30; /* seconds */
/* If the job's values are not known. */
static const double PEER_TIMEOUT = 30, STOP_TIMEOUT = 5;

/* A worker without an index is the chief's trainer. */
static struct health *open_health(enum role_kind kind, int index) {
    static const char *const names[] = {[ROLE_CHIEF] = "chief",
                                        [ROLE_PS] = "ps",
                                        [ROLE_WORKER] = "worker",
                                        [ROLE_EVALUATOR] = "evaluator",
                                        [ROLE_BENCH] = "bench"};
    return health_open(names[kind],
                       index < 0 && kind != ROLE_WORKER ? 0 : index);
}
/* Adds a role, called NAME INDEX (below 0: without a number) in its log, which
 * is silent if QUIET. Returns a view; the caller fills in the settings of its
 * KIND. */
static struct role *roles_add(struct roles *roles, enum role_kind kind,
                              const char *name, int index, bool quiet) {
    struct role *role = &roles->list[roles->count++];
    int pipe_ends[2] = {-1, -1};
    role->name = name;
    role->kind = kind;
    role->done = roles->done;
    log_open(&role->log, name, index);
    role->log.quiet = quiet;
    if (pipe2(pipe_ends, O_NONBLOCK | O_CLOEXEC))
        log_warning(&role->log, "signals_unavailable",
                    "no pipe: signals are ignored");
    role->interrupts = pipe_ends[0];
    role->interrupt_writer = pipe_ends[1];
    return role;
}

static struct role *add_role(struct composition *composition,
                             enum role_kind kind, const char *name, int index) {
    bool quiet = composition->options->cli_command == CLI_COMMAND_BENCH &&
                 !composition->options->verbose;
    struct role *role =
        roles_add(&composition->roles, kind, name, index, quiet);
    role->log.silent = composition->process_settings.silent;
    role->log.terminal &= !role->log.silent;
    role->health = open_health(kind, index);
    return role;
}

/* Two processes on one host cannot share the port: one fails with an exit code
 * that means retry, again and again. */
static void warn_duplicate_address(const struct composition *composition,
                                   const struct role *role) {
    const struct cluster_task *task =
        cluster_duplicate_address(composition->cluster);
    char address[270];
    if (!task)
        return;
    cluster_address(task, address, sizeof address);
    log_warning(&role->log, "address_listed_twice",
                "the cluster lists %s twice, and two processes cannot listen "
                "on one port of a host: give each task an address of its own",
                address);
}

/* The job selects the device, which a trainer learns when it joins; a ps opens
 * only this device. */
static bool may_use_gpu(const struct composition *composition) {
    char path[PATH_MAX + 64];
    plugin_path("cuda", path, sizeof path);
    return composition->cluster->role != CLUSTER_PS && !access(path, R_OK);
}

static void log_identity(const struct composition *composition,
                         const struct role *role) {
    const struct cluster *cluster = composition->cluster;
    char host[256] = "", rank[64], text[512];
    gethostname(host, sizeof host - 1);
    cluster_rank_text(cluster, rank, sizeof rank);
    snprintf(text, sizeof text, "%shost %s, pid %d, device %scpu (%s), %s%s",
             rank, host, (int)getpid(),
             may_use_gpu(composition) ? "as the job says: cuda or " : "",
             rule_variant_name(composition->process_settings.loops),
             cluster->local ? "" : "cluster from ",
             cluster->local ? "no cluster: alone" : cluster->source);
    if (cluster_is_chief(cluster))
        log_info(&role->log, "process_started", "%s", text);
    else
        log_detail(&role->log, "process_started", "%s", text);
    warn_duplicate_address(composition, role);
}

/* What `--set timeouts.join=5`, or a caller's override, says to a process that
 * does not read the job; 0: nothing, or what the chief refuses. */
static double set_join_timeout(const struct options *options) {
    static const char key[] = "timeouts.join=";
    double seconds = 0;
    for (unsigned i = 0; i < options->num_sets; i++)
        if (!strncmp(options->sets[i], key, sizeof key - 1))
            seconds = strtod(options->sets[i] + sizeof key - 1, NULL);
    return isfinite(seconds) && seconds > 0 ? seconds : 0;
}

static double join_timeout(const struct composition *composition) {
    double set = set_join_timeout(composition->options);
    if (composition->rejoin_within > 0)
        return composition->rejoin_within;
    if (composition->options->join_timeout > 0)
        return composition->options->join_timeout;
    return composition->job && cluster_is_chief(composition->cluster)
               ? composition->job->timeouts.join
           : set > 0 ? set
                     : JOIN_TIMEOUT;
}

/* Names of the links between roles of this process. In all-reduce rank 0's
 * snapshot agent uses the ps's name. */
static const char inside_chief[] = "chief", inside_ps[] = "ps";

static uint32_t past_last(const struct cluster_job *job) {
    uint32_t count = job->count;
    for (uint32_t i = 0; i < job->count; i++)
        if (job->tasks[i].index >= count)
            count = job->tasks[i].index + 1;
    return count;
}

/* Workers may be more than those that are listed here, unless ALL_LISTED. A
 * chief may have a ps beside it, and rank 0 of an all-reduce serves weights as
 * ps 0. The launchers of processes, which report deaths, are one observer. */
static struct link_keys_settings keys_settings(const struct cluster *cluster,
                                               bool all_listed) {
    uint32_t ps = past_last(&cluster->jobs[CLUSTER_PS]);
    uint32_t workers = past_last(&cluster->jobs[CLUSTER_WORKER]);
    struct link_party self = cluster_is_chief(cluster)
                                 ? cluster_party(CLUSTER_CHIEF, 0)
                                 : cluster_party(cluster->role, cluster->index);
    return (struct link_keys_settings){
        .roles = {{cluster_role_name(CLUSTER_CHIEF), 1, 1},
                  {cluster_role_name(CLUSTER_PS), ps ? ps : 1, ps ? ps : 1},
                  {cluster_role_name(CLUSTER_WORKER),
                   all_listed ? workers : MOST_WORKERS, workers},
                  {DEATH_REPORT_ROLE, 1, 0}},
        .client = self,
        .servers = {self, cluster->role == CLUSTER_PS && !cluster->index
                              ? (struct link_party){0}
                              : cluster_party(CLUSTER_PS, 0)}};
}

enum status composition_open_keys(struct composition *composition,
                                  const char *secret_file,
                                  struct failure *why) {
    const struct process_settings *given = &composition->process_settings;
    const char *path = given->secret_file ? given->secret_file : secret_file;
    unsigned char *secret = NULL;
    struct link_keys_settings settings = keys_settings(
        composition->cluster,
        given->secret_is_own && !composition->cluster->from_ranks);
    if (!path || composition->keys || !composition->zmq)
        return STATUS_OK;
    if (given->secret_is_own && secret_file)
        return status_fail(
            why, FAILURE_SECRET_UNUSABLE,
            "security.secret_file of the job names %s, and this process has "
            "the secret that capstan local has made for all that it starts: "
            "give the file to it (capstan local --secret-file %s ...), or "
            "leave the key out of the job",
            secret_file, secret_file);
    /* A caller's process is the caller's; the launcher has its own secret. */
    if (!given->external && !given->secret_is_own)
        prctl(PR_SET_DUMPABLE, 0);
    enum status status = secret_file_read(
        &secret, path,
        given->secret_is_own ? SECRET_OWN_VARIABLE
        : given->secret_file ? "--secret-file or " SECRET_FILE_VARIABLE
                             : "security.secret_file",
        why);
    if (!status)
        status = link_keys_open(&composition->keys, secret, &settings, why);
    secret_file_forget(&secret);
    if (!status)
        status = zap_handler_open(&composition->zap_handler, composition->zmq,
                                  composition->keys, settings.client, why);
    return status;
}

/* What ROLE shares with its parts. */
static struct process role_process(const struct composition *composition,
                                   const struct role *role) {
    return (struct process){
        .zmq = composition->zmq,
        .address = process_settings_address(&composition->process_settings),
        .keys = composition->keys,
        .log = &role->log,
        .loops = composition->process_settings.loops,
        .shm = composition->process_settings.shm,
        .stays_here = composition->process_settings.secret_is_own,
        .interrupts = role->interrupts,
        .health = role->health,
    };
}

/* A member whose chief is in another process. */
static struct member role_member(struct composition *composition,
                                 struct role *role) {
    const struct cluster *cluster = composition->cluster;
    const struct cluster_task *chief = cluster_chief(cluster);
    return (struct member){
        .role = cluster->role,
        .index = cluster->index,
        .self = cluster_own_task(cluster),
        .chief = chief,
        .chief_ports = cluster->chief_ports,
        .discovery_cluster = chief ? NULL : cluster,
        .key = cluster->key,
        .size = cluster_size_known(cluster),
        .join_timeout = join_timeout(composition),
        .record = composition->process_settings.record,
        .restart_within = &role->restart_within,
        .past = &composition->past,
        .copies = &composition->copies,
    };
}

/* Adds a ps beside its chief; the trainer may be in another process. */
static void add_inner_ps(struct composition *composition, bool trainer_inside) {
    const struct cluster_task *self = cluster_own_task(composition->cluster);
    struct role *role = add_role(composition, ROLE_PS, "ps", 0);
    role->ps = (struct ps_settings){
        .process = role_process(composition, role),
        .member = {.role = CLUSTER_PS,
                   .chief_inproc = inside_chief,
                   .join_timeout = join_timeout(composition)},
        .inproc = inside_ps,
    };
    if (trainer_inside || !self)
        return;
    role->ps_address = *self;
    role->ps_address.port = 0;
    role->ps.member.self = &role->ps_address;
}

static void add_ps(struct composition *composition) {
    struct role *role =
        add_role(composition, ROLE_PS, "ps", (int)composition->cluster->index);
    role->ps = (struct ps_settings){.process = role_process(composition, role),
                                    .member = role_member(composition, role)};
}

/* INPROC: the chief is in this process, and the worker uses its port. */
static void add_worker(struct composition *composition, bool inproc,
                       bool ps_inproc) {
    const struct cluster *cluster = composition->cluster;
    bool chief = cluster->role == CLUSTER_CHIEF;
    bool listed = !cluster->from_ranks; /* else no peer connects to it */
    struct role *role =
        add_role(composition, ROLE_WORKER, chief ? "chief" : "worker",
                 chief ? -1 : (int)cluster->index);
    role->worker = (struct worker_settings){
        .process = role_process(composition, role),
        .member = role_member(composition, role),
        .ps_inproc = ps_inproc ? inside_ps : NULL,
        .weights_server_inproc = inside_ps,
        .external = composition->process_settings.external,
        .kept = composition->lineage ? &composition->kept : NULL,
        .local_peers = composition->local_peers,
    };
    if (inproc || !listed)
        role->worker.member.self = NULL;
    if (inproc) {
        role->worker.member.chief = NULL;
        role->worker.member.chief_inproc = inside_chief;
        role->worker.member.discovery_cluster = NULL;
        role->worker.member.past = NULL;
    }
}

static bool chief_trains(const struct options *options,
                         const struct cluster *cluster, const struct job *job) {
    if (cluster->role != CLUSTER_CHIEF)
        return false; /* worker 0 leads: it trains as a worker */
    if (job->chief == JOB_CHIEF_UNSET)
        return !options->coordinate && !cluster->coordinates;
    return job->chief == JOB_CHIEF_TRAIN;
}

static uint32_t count_workers(const struct cluster *cluster,
                              const struct job *job) {
    uint32_t listed = cluster->jobs[CLUSTER_WORKER].count;
    if (cluster->local)
        return 1;
    return job->workers ? job->workers : listed;
}

/* Of those, the workers beyond the list that may join. */
static uint32_t count_beyond(const struct cluster *cluster,
                             const struct job *job) {
    uint32_t listed = cluster->jobs[CLUSTER_WORKER].count;
    bool may_join = cluster->join && !cluster->local && job->workers > listed;
    return may_join ? job->workers - listed : 0;
}

struct strategy_case composition_members(const struct options *options,
                                         const struct cluster *cluster,
                                         const struct job *job) {
    uint32_t trains = chief_trains(options, cluster, job);
    return (struct strategy_case){
        .trainers =
            count_workers(cluster, job) - count_beyond(cluster, job) + trains,
        .num_ps = cluster->jobs[CLUSTER_PS].count,
        .alone = cluster->local,
        .members =
            cluster->takes_num_ps ? STRATEGY_BY_RANKS : STRATEGY_BY_LISTS};
}

static struct job_source source_of(const struct options *options) {
    return (struct job_source){.models = &model_schemas,
                               .path = options->job,
                               .deepspeed = options->deepspeed,
                               .overrides = options->sets,
                               .num_overrides = options->num_sets};
}

/* A relative path starts at the working directory FROM. */
static const char *dir_set(const char *from, const char *dir, char *text,
                           size_t size) {
    bool starts = *from && dir[0] != '/';
    snprintf(text, size, "checkpoint.dir=%s%s%s", starts ? from : "",
             starts ? "/" : "", dir);
    return text;
}

static enum status load_job(struct composition *composition, bool external,
                            const struct log *log, struct failure *why) {
    const struct options *options = composition->options;
    const char *sets[OPTIONS_MAX_SETS + 1];
    char folder[PATH_MAX] = "", dir[2 * PATH_MAX];
    struct job_source source = source_of(options);
    source.overrides = sets;
    source.external = external;
    if (!options->job && !options->deepspeed && !external)
        return status_fail(why, FAILURE_JOB_MISSING,
                           "this process leads the run and needs the job: "
                           "capstan run JOB.json");
    memcpy(sets, options->sets, sizeof options->sets);
    const char *given = options->checkpoint_dir;
    if (given && !getcwd(folder, sizeof folder))
        return status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                            "the current folder");
    if (given)
        sets[source.num_overrides++] = dir_set(folder, given, dir, sizeof dir);
    enum status status = job_load(&composition->job, &source, log, why);
    const char *model_dir = composition->cluster->model_dir;
    if (status || composition->job->checkpoint.dir || !model_dir)
        return status;
    job_free(&composition->job);
    sets[source.num_overrides++] = dir_set("", model_dir, dir, sizeof dir);
    return job_load(&composition->job, &source, NULL, why);
}

enum status composition_trains(const struct options *options,
                               const struct cluster *cluster, bool *trains,
                               struct failure *why) {
    struct composition composition = {.options = options, .cluster = cluster};
    *trains = cluster->role == CLUSTER_WORKER;
    if (cluster->role != CLUSTER_CHIEF || !cluster_is_chief(cluster))
        return STATUS_OK;
    enum status status = load_job(&composition, true, NULL, why);
    *trains = !status && chief_trains(options, cluster, composition.job);
    job_free(&composition.job);
    return status;
}

/* The text of a job given to a process that does not lead, to compare it with
 * the chief's. An unreadable job counts as different. */
static const char *own_job(struct composition *composition) {
    struct failure problem;
    if (!composition->options->job)
        return NULL;
    if (load_job(composition, false, NULL, &problem)) {
        log_warning(
            &composition->roles.list[0].log, "job_ignored",
            "the job given here is wrong; it is ignored, as the chief's job is "
            "used: %.*s",
            (int)strcspn(problem.text, "\n"), problem.text);
        return NULL;
    }
    return composition->job->compare.on ? NULL : composition->job->text;
}

/* The chief's job: that of a bench, of a run of a series, or from the file. */
static enum status load_chief_job(struct composition *composition,
                                  const struct role *role,
                                  struct failure *why) {
    if (composition->options->cli_command == CLI_COMMAND_BENCH)
        return bench_cluster_job(&composition->job, composition->options, why);
    if (composition->job) /* that of the run before */
        return STATUS_OK;
    if (!composition->series_run)
        return load_job(composition, composition->process_settings.external,
                        &role->log, why);
    composition->job = composition->series_run->job;
    composition->series_run->job = NULL;
    return STATUS_OK;
}

static enum status check_comparison(const struct job *job,
                                    struct failure *why) {
    if (!job->compare.on || job->model.type != JOB_EXTERNAL)
        return STATUS_OK;
    return status_fail(why, FAILURE_JOB_UNFIT,
                       "\"compare\" in a job whose model.type is external: "
                       "`capstan compare JOB.json -- COMMAND` compares on one "
                       "machine");
}

/* Runs of a series would write one file after the other. */
static enum status check_trace(const struct process_settings *settings,
                               bool reports, struct failure *why) {
    if (reports || !settings->trace_first)
        return STATUS_OK;
    return status_fail(why, FAILURE_JOB_UNFIT,
                       "the steps of a bench or a comparison are not traced "
                       "(--trace-steps, " TRACE_STEPS_VARIABLE
                       "): trace one run, such as by `capstan local`");
}

/* Where no launcher says it, a person or a scheduler may do so. */
static bool process_restarts(void) {
    const char *value = getenv(LAUNCH_RESTARTS);
    return !value || strcmp(value, "0") != 0;
}

static void log_secret(const struct log *log, bool allreduce) {
    log_info(log, "secret_used",
             "only processes with the run's secret take part; what chief, ps "
             "and workers send each other by TCP is encrypted%s",
             allreduce ? ", but trainers send each other gradients and weights "
                         "in the clear, over connections that are proved and "
                         "not encrypted: keep these in a network that you trust"
                       : "");
}

/* The listed addresses that other hosts may reach, the first of them by name;
 * "" if there are none. */
static void list_open_ports(const struct cluster *cluster, char *text,
                            size_t size) {
    enum { NAMED = 8 };
    size_t used = 0;
    unsigned count = 0;
    text[0] = 0;
    for (int role = 0; role < CLUSTER_ROLES; role++)
        for (uint32_t i = 0; i < cluster->jobs[role].count; i++) {
            const struct cluster_task *task = &cluster->jobs[role].tasks[i];
            char address[300];
            if (!task->port || chief_address_is_loopback(task->host) ||
                count++ >= NAMED)
                continue;
            cluster_address(task, address, sizeof address);
            used += (size_t)snprintf(text + used, size - used, "%s%s",
                                     used ? ", " : "", address);
        }
    if (count > NAMED)
        snprintf(text + used, size - used, " and %u more", count - NAMED);
}

static void warn_of_open_ports(const struct log *log,
                               const struct cluster *cluster, bool allreduce) {
    char ports[8 * 302 + 32];
    list_open_ports(cluster, ports, sizeof ports);
    if (ports[0])
        log_warning(log, "secret_missing",
                    "this run has no secret: whoever reaches %s%s can take "
                    "part in it, read its weights and change them. Make a "
                    "secret (capstan keygen FILE) and give it to all processes "
                    "(--secret-file FILE), or keep these ports in a network "
                    "that you trust",
                    ports,
                    allreduce ? " and, by all-reduce, ports that the system "
                                "assigns"
                              : "");
}

/* Is it the first run that this process leads? */
static bool leads_first(const struct composition *composition) {
    return composition->series_run ? composition->series_run->series.first
                                   : !composition->rejoin_within;
}

/* Why no worker beyond the list may join the run of JOB, whatever its cluster;
 * NULL: none. */
static const char *find_join_obstacle(const struct composition *composition,
                                      bool allreduce) {
    const struct job *job = composition->job;
    if (composition->series_run)
        return "all trainers take part in every run of a comparison";
    if (job->model.type == JOB_EXTERNAL)
        return "model.type is external, and the ranks of a script or program "
               "are fixed";
    if (allreduce)
        return "the run is by all-reduce, whose ranks are fixed: list a ps";
    if (!job->staleness)
        return "strategy.staleness is 0: allowed are 1 and more, and \"inf\"";
    return NULL;
}

/* With --join. */
static enum status check_join(const struct composition *composition,
                              const struct strategy_case *members,
                              bool allreduce, struct failure *why) {
    const struct cluster_job *workers =
        &composition->cluster->jobs[CLUSTER_WORKER];
    const char *obstacle = find_join_obstacle(composition, allreduce);
    if (!obstacle && !members->num_ps)
        obstacle = "the cluster lists no ps";
    if (!obstacle && workers->sparse)
        obstacle = "the cluster gives its workers by index, so that none is "
                   "beyond the list";
    if (obstacle)
        return status_fail(why, FAILURE_JOB_UNFIT, "--join: %s", obstacle);
    uint32_t beyond = count_beyond(composition->cluster, composition->job);
    if (beyond && members->trainers + beyond > REWIND_MAX_TRAINERS)
        return status_fail(
            why, FAILURE_JOB_UNFIT,
            "--join: the job's workers, %u, and the chief, which "
            "trains, are more than %d",
            composition->job->workers, REWIND_MAX_TRAINERS);
    if (beyond)
        return STATUS_OK;
    return status_fail(why, FAILURE_JOB_UNFIT,
                       "--join: the job's workers, the most that may take "
                       "part, is %u%s; allowed are more than the cluster "
                       "lists, %u",
                       composition->job->workers,
                       composition->job->workers ? "" : " (not given)",
                       workers->count);
}

/* Reads the job and the secret, and chooses how the MEMBERS train. */
static enum status choose_strategy(struct composition *composition,
                                   const struct role *role,
                                   struct strategy_case *members,
                                   struct strategy *strategy,
                                   struct failure *why) {
    enum status status = load_chief_job(composition, role, why);
    const struct job *job = composition->job;
    if (!status)
        status = check_comparison(job, why);
    if (!status)
        status = composition_open_keys(composition, job->secret_file, why);
    if (status)
        return status;
    *members =
        composition_members(composition->options, composition->cluster, job);
    status = strategy_choose(strategy, job, members, &role->log, why);
    if (!status && composition->cluster->join)
        status = check_join(composition, members, strategy->allreduce, why);
    return status ? status
                  : job_check_batch(composition->job, members->trainers, why);
}

/* Who may take part in the run. */
static void log_openness(const struct composition *composition,
                         const struct log *log, bool allreduce) {
    bool is_own = composition->process_settings.secret_is_own;
    if (composition->keys && !is_own)
        log_secret(log, allreduce);
    else if (!composition->keys && leads_first(composition))
        warn_of_open_ports(log, composition->cluster, allreduce);
}

/* Worker 0 leads a cluster without a chief, and trains. */
static void warn_of_no_chief(const struct composition *composition,
                             const struct log *log) {
    bool asked = composition->options->coordinate ||
                 composition->job->chief == JOB_CHIEF_COORDINATE;
    if (asked && composition->cluster->role != CLUSTER_CHIEF &&
        leads_first(composition))
        log_warning(log, "key_ignored",
                    "chief: \"coordinate\" has no effect: the cluster lists no "
                    "chief, so worker 0 leads, and trains; a chief that its "
                    "description lists (TF_CONFIG's \"chief\", --chief_hosts) "
                    "would only coordinate");
}

/* A bench, or a comparison, tells by itself of the runs that it makes. */
static bool reports_run(const struct composition *composition) {
    return composition->options->cli_command != CLI_COMMAND_BENCH &&
           !composition->series_run;
}

static enum status open_outlets(const struct composition *composition,
                                struct role *role,
                                struct mlflow_settings *mlflow,
                                struct failure *why) {
    const struct process_settings *settings = &composition->process_settings;
    bool reports = reports_run(composition);
    enum status status = check_trace(settings, reports, why);
    if (status)
        return status;
    if (settings->metrics.port)
        role->page_points = page_points_open();
    return reports ? mlflow_settings_read(mlflow, composition->job,
                                          process_settings_getenv, NULL,
                                          &role->log, why)
                   : STATUS_OK;
}

/* Fills in the chief's settings, and adds the roles beside it. */
static void complete_chief(struct composition *composition, struct role *role,
                           const struct strategy_case *members,
                           const struct strategy *strategy,
                           const struct mlflow_settings *mlflow) {
    const struct options *options = composition->options;
    const struct cluster *cluster = composition->cluster;
    const struct process_settings *settings = &composition->process_settings;
    const struct job *job = composition->job;
    bool reports = reports_run(composition);
    bool trains = chief_trains(options, cluster, job);
    bool trainer_inside = trains || cluster->role == CLUSTER_WORKER;
    bool alone =
        !members->num_ps && !strategy->allreduce; /* it holds its own weights */
    role->chief = (struct chief_settings){
        .zmq = composition->zmq,
        .address = process_settings_address(settings),
        .keys = composition->keys,
        .log = &role->log,
        .page_points = role->page_points,
        .job = composition->job,
        .mlflow = *mlflow,
        .model_memory = model_memory(&job->model),
        .cluster = cluster,
        .inproc = inside_chief,
        .ps_inproc =
            alone || (strategy->allreduce && trainer_inside) ? inside_ps : NULL,
        .allreduce = strategy->allreduce,
        .backend = strategy->backend,
        .trains = trains,
        .num_workers = count_workers(cluster, job),
        .num_beyond = count_beyond(cluster, job),
        .num_ps = alone ? 1 : members->num_ps,
        .join_timeout = join_timeout(composition),
        .link_gbits = options->link_gbits,
        .json = options->json && reports,
        .summary = reports ? settings->summary : NULL,
        .trace_steps = {settings->trace_first, settings->trace_last,
                        settings->trace_file},
        .record = settings->record,
        .together = getenv(LOG_TOGETHER_VARIABLE),
        .no_restart = getenv(LOG_TOGETHER_VARIABLE) && !process_restarts(),
        .starts_once = !process_restarts(),
        .series =
            composition->series_run ? &composition->series_run->series : NULL,
        .lineage = process_restarts() || settings->record ? composition->lineage
                                                          : NULL,
        .interrupts = role->interrupts,
        .health = role->health,
    };
    if (alone)
        add_inner_ps(composition, trainer_inside);
    if (trainer_inside)
        add_worker(composition, true, alone);
}

static enum status add_chief(struct composition *composition,
                             struct failure *why) {
    struct role *role = add_role(composition, ROLE_CHIEF, "chief", -1);
    struct strategy_case members;
    struct strategy strategy;
    struct mlflow_settings mlflow = {0};
    if (leads_first(composition))
        log_identity(composition, role);
    else if (composition->series_run)
        role->log.quiet = true;
    enum status status =
        choose_strategy(composition, role, &members, &strategy, why);
    if (status)
        return status;
    log_openness(composition, &role->log, strategy.allreduce);
    warn_of_no_chief(composition, &role->log);
    status = open_outlets(composition, role, &mlflow, why);
    if (!status)
        complete_chief(composition, role, &members, &strategy, &mlflow);
    return status;
}

/* The keys of a job that is refused: without them anybody would be answered. */
static enum status open_keys_of_refused(struct composition *composition) {
    struct job_source source = source_of(composition->options);
    struct failure ignored;
    char *secret_file = NULL;
    bool usable = composition->process_settings.secret_is_own ||
                  job_find_secret_file(&secret_file, &source);
    enum status status =
        usable ? composition_open_keys(composition, secret_file, &ignored)
               : STATUS_CONFIG;
    free(secret_file);
    return status;
}

enum status composition_add_refusal(struct composition *composition,
                                    const struct failure *why) {
    const struct cluster *cluster = composition->cluster;
    struct job *job = calloc(1, sizeof *job);
    composition->job = job;
    if (!job)
        return STATUS_RETRY;
    job->timeouts = (struct job_timeouts){
        .join = JOIN_TIMEOUT, .peer = PEER_TIMEOUT, .stop = STOP_TIMEOUT};
    enum status status = open_keys_of_refused(composition);
    if (status)
        return status;
    struct role *role = add_role(composition, ROLE_CHIEF, "chief", -1);
    role->chief = (struct chief_settings){
        .zmq = composition->zmq,
        .address = process_settings_address(&composition->process_settings),
        .keys = composition->keys,
        .log = &role->log,
        .job = job,
        .problem = why,
        .cluster = cluster,
        .num_workers = cluster->jobs[CLUSTER_WORKER].count,
        .num_ps = cluster->jobs[CLUSTER_PS].count,
        .join_timeout = join_timeout(composition),
        .interrupts = role->interrupts,
    };
    return STATUS_OK;
}

static enum status add_evaluator(struct composition *composition) {
    const struct cluster *cluster = composition->cluster;
    const struct options *options = composition->options;
    struct role *role = add_role(composition, ROLE_EVALUATOR, "evaluator", -1);
    log_identity(composition, role);
    role->evaluator = (struct evaluator_settings){
        .log = &role->log,
        .dir = options->checkpoint_dir ? options->checkpoint_dir
                                       : cluster->model_dir,
        .timeout = join_timeout(composition),
        .json = options->json,
        .interrupts = role->interrupts,
        .health = role->health,
    };
    return STATUS_OK;
}

void composition_add_bench_client(struct composition *composition,
                                  struct baselines *baselines,
                                  const char *missing) {
    const struct cluster *cluster = composition->cluster;
    const struct options *options = composition->options;
    struct role *role =
        add_role(composition, ROLE_BENCH, "bench", (int)cluster->index);
    role->bench = (struct bench_client_settings){
        .process = role_process(composition, role),
        .member = role_member(composition, role),
        .sizes = options->sizes.values,
        .num_sizes = options->sizes.count,
        .repeats = options->repeats,
        .seconds = options->seconds,
        .requests = options->requests,
        .batched = options->batched,
        .timeout = BENCH_SILENCE,
        .ps_pids = getenv(LAUNCH_PS_PIDS),
        .baselines = baselines,
        .missing = missing,
    };
}

/* Names are not looked up: that may take long, and some come later. */
static bool is_this_host(const char *host) {
    char own[256] = "";
    struct interface found;
    struct failure none;
    gethostname(own, sizeof own - 1);
    return chief_address_is_loopback(host) || !strcasecmp(host, own) ||
           !interface_find(&found, host, "", FAILURE_CLUSTER_INVALID, &none);
}

static enum status check_other_task(const struct composition *composition,
                                    const struct cluster_task *other,
                                    struct failure *why) {
    const struct cluster_task *self = cluster_own_task(composition->cluster);
    char addresses[2][270];
    if (!other || other == self || other->port != self->port ||
        !is_this_host(other->host))
        return STATUS_OK;
    cluster_address(self, addresses[0], sizeof addresses[0]);
    cluster_address(other, addresses[1], sizeof addresses[1]);
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "address_twice: %s lists this process at %s and another one at %s, "
        "which is this host too, and two processes cannot listen on one port "
        "of a host. Give each task an address of its own.",
        composition->cluster->source, addresses[0], addresses[1]);
}

/* As cluster_resolve does, which knows no other names of this host. On one
 * interface each, two may have the same port. */
static enum status check_own_address(const struct composition *composition,
                                     struct failure *why) {
    const struct cluster *cluster = composition->cluster;
    const struct cluster_task *self = cluster_own_task(cluster);
    const struct cluster_job *ps = &cluster->jobs[CLUSTER_PS];
    bool is_reached = cluster->role == CLUSTER_PS || cluster_is_chief(cluster);
    if (!self || !self->port || !is_reached ||
        process_settings_address(&composition->process_settings))
        return STATUS_OK;
    enum status status =
        check_other_task(composition, cluster_chief(cluster), why);
    for (uint32_t i = 0; !status && i < ps->count; i++)
        status = check_other_task(composition, &ps->tasks[i], why);
    return status;
}

enum status composition_add_run(struct composition *composition,
                                struct failure *why) {
    const struct cluster *cluster = composition->cluster;
    enum status status = check_own_address(composition, why);
    if (!status)
        status = cluster_rank_local_peers(cluster, process_settings_getenv,
                                          NULL, &composition->local_peers, why);
    if (status)
        return status;
    if (cluster_is_chief(cluster))
        return add_chief(composition, why);
    if (cluster->role == CLUSTER_EVALUATOR)
        return add_evaluator(composition);
    status = composition_open_keys(composition, NULL, why);
    if (status)
        return status;
    if (cluster->role == CLUSTER_PS)
        add_ps(composition);
    else
        add_worker(composition, false, false);
    if (!composition->rejoin_within)
        log_identity(composition, &composition->roles.list[0]);
    composition->roles.list[0].ps.member.own_job =
        composition->roles.list[0].worker.member.own_job = own_job(composition);
    return STATUS_OK;
}
