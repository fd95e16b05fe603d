#include "process.h"

#include "chief/bench.h"
#include "chief/launch.h"
#include "chief/strategy.h"
#include "proto/base/plugin.h"
#include "proto/conf/cluster_rank.h"
#include "proto/conf/job.h"
#include "roles.h"

#include <limits.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

enum { MAX_SOCKETS = 16384 };
static const double JOIN_TIMEOUT = 600, BENCH_SILENCE = 30;

struct process {
    const struct options *options;
    const struct cluster *cluster;
    struct process_choices choices;
    struct cluster_neighbours neighbours;
    struct process_lead *lead; /* the run is one of several, or NULL */
    double back; /* seconds within which the chief leads the next; 0: this run
                    is the first or the last */
    struct job *job;
    void *zmq;
    struct roles roles;
};

const char *process_environment(void *context, const char *name) {
    (void)context;
    return getenv(name);
}

enum status process_choose(struct process_choices *choices,
                           const struct options *options, struct failure *why) {
    const char *lane = options->lane ? options->lane : getenv("CAPSTAN_LANE");
    choices->lanes = !lane || strcmp(lane, "tcp");
    if (lane && strcmp(lane, "auto") && strcmp(lane, "tcp"))
        return status_fail(why, STATUS_CONFIG,
                           "CAPSTAN_LANE is '%.64s'; allowed are auto and tcp",
                           lane);
    return rule_choose(&choices->loops, getenv("CAPSTAN_CPU"), why);
}

/* Nothing of a step may cost a page fault: freed memory stays, and few arenas
 * share it. */
static void settle_memory(void) {
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
    mallopt(M_ARENA_MAX, 2);
}

static struct role *add_role(struct process *process, enum role_kind kind,
                             const char *name, int index) {
    bool quiet = process->options->verb == OPTIONS_BENCH &&
                 !process->options->bench.verbose;
    return roles_add(&process->roles, kind, name, index, quiet);
}

/* What is set by launchers that start several, and is not enough. */
static void warn_alone(const struct process *process, const struct role *role) {
    static const char *const names[] = {"WORLD_SIZE", "RANK", "HOROVOD_RANK"};
    if (strcmp(process->cluster->source, "alone") != 0)
        return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (!value || !*value)
            continue;
        log_warning(&role->log,
                    "%s is \"%s\", and this process trains alone all the same: "
                    "ranks take both RANK and WORLD_SIZE (docs/cluster.md)",
                    names[i], value);
        return;
    }
}

/* Of two processes on one host one finds the port in use, and ends with a code
 * that says retry, again and again. */
static void warn_twice(const struct process *process, const struct role *role) {
    const struct cluster_task *task = cluster_twice(process->cluster);
    char address[270];
    if (!task)
        return;
    cluster_address(task, address, sizeof address);
    log_warning(&role->log,
                "the cluster lists %s twice, and two processes cannot listen "
                "on one port of a host: give each task an address of its own",
                address);
}

/* Which it is the job decides, which a trainer hears when it joins; a ps opens
 * no other. */
static bool may_take_gpu(const struct process *process) {
    char path[PATH_MAX + 64];
    plugin_path("cuda", path, sizeof path);
    return process->cluster->role != CLUSTER_PS && !access(path, R_OK);
}

static void say_who(const struct process *process, const struct role *role) {
    char host[256] = "", rank[64];
    gethostname(host, sizeof host - 1);
    cluster_rank_text(process->cluster, rank, sizeof rank);
    log_info(&role->log, "%shost %s, pid %d, device %scpu (%s), %s%s", rank,
             host, (int)getpid(),
             may_take_gpu(process) ? "as the job says: cuda or " : "",
             rule_variant_name(process->choices.loops),
             process->cluster->local ? "" : "cluster from ",
             process->cluster->local ? "no cluster: alone"
                                     : process->cluster->source);
    warn_alone(process, role);
    warn_twice(process, role);
}

static double join_timeout(const struct process *process) {
    if (process->back > 0)
        return process->back;
    if (process->options->join_timeout > 0)
        return process->options->join_timeout;
    return process->job && cluster_is_chief(process->cluster)
               ? process->job->timeouts.join
               : JOIN_TIMEOUT;
}

/* Names of the links between roles of this process; in all-reduce rank 0's
 * keeper has the ps's. */
static const char inside_chief[] = "chief", inside_ps[] = "ps";

/* A ps beside its chief; the trainer may be in another process. */
static void add_inner_ps(struct process *process, bool trainer_inside) {
    const struct cluster_task *self = cluster_self(process->cluster);
    struct role *role = add_role(process, ROLE_PS, "ps", 0);
    role->ps = (struct ps_settings){
        .zmq = process->zmq,
        .log = &role->log,
        .chief_inside = inside_chief,
        .inside = inside_ps,
        .loops = process->choices.loops,
        .join_timeout = join_timeout(process),
        .lanes = process->choices.lanes,
        .interrupts = role->interrupts,
    };
    if (trainer_inside || !self)
        return;
    role->ps_address = *self;
    role->ps_address.port = 0;
    role->ps.self = &role->ps_address;
}

static void add_ps(struct process *process) {
    const struct cluster *cluster = process->cluster;
    struct role *role = add_role(process, ROLE_PS, "ps", (int)cluster->index);
    role->ps = (struct ps_settings){
        .zmq = process->zmq,
        .log = &role->log,
        .index = cluster->index,
        .self = cluster_self(cluster),
        .chief = cluster_chief(cluster),
        .chief_ports = cluster->chief_ports,
        .key = cluster->key,
        .size = cluster_size_told(cluster),
        .loops = process->choices.loops,
        .join_timeout = join_timeout(process),
        .lanes = process->choices.lanes,
        .interrupts = role->interrupts,
        .again = &role->again,
    };
}

/* INSIDE: the chief is in this process, and its port is the chief's. */
static void add_worker(struct process *process, bool inside, bool ps_inside) {
    const struct cluster *cluster = process->cluster;
    bool chief = cluster->role == CLUSTER_CHIEF;
    bool listed = !cluster->by_ranks; /* else nobody calls it */
    struct role *role =
        add_role(process, ROLE_WORKER, chief ? "chief" : "worker",
                 chief ? -1 : (int)cluster->index);
    role->worker = (struct worker_settings){
        .zmq = process->zmq,
        .log = &role->log,
        .role = cluster->role,
        .index = cluster->index,
        .self = inside || !listed ? NULL : cluster_self(cluster),
        .chief = inside ? NULL : cluster_chief(cluster),
        .chief_ports = cluster->chief_ports,
        .key = cluster->key,
        .size = cluster_size_told(cluster),
        .chief_inside = inside ? inside_chief : NULL,
        .ps_inside = ps_inside ? inside_ps : NULL,
        .keeper_inside = inside_ps,
        .ps = &cluster->jobs[CLUSTER_PS],
        .loops = process->choices.loops,
        .neighbours = process->neighbours,
        .join_timeout = join_timeout(process),
        .lanes = process->choices.lanes,
        .interrupts = role->interrupts,
        .again = &role->again,
    };
}

static bool chief_trains(const struct options *options,
                         const struct cluster *cluster, const struct job *job) {
    if (cluster->role != CLUSTER_CHIEF)
        return false; /* worker 0 leads: it trains as a worker */
    if (job->chief == JOB_CHIEF_UNSET)
        return !options->coordinate;
    return job->chief == JOB_CHIEF_TRAIN;
}

static uint32_t count_workers(const struct cluster *cluster,
                              const struct job *job) {
    uint32_t listed = cluster->jobs[CLUSTER_WORKER].count;
    if (cluster->local)
        return 1;
    return job->workers ? job->workers : listed;
}

struct strategy_case process_members(const struct options *options,
                                     const struct cluster *cluster,
                                     const struct job *job) {
    uint32_t trains = chief_trains(options, cluster, job);
    return (struct strategy_case){
        .trainers = count_workers(cluster, job) + trains,
        .num_ps = cluster->jobs[CLUSTER_PS].count,
        .alone = cluster->local,
        .members = cluster->by_ranks ? STRATEGY_BY_RANKS : STRATEGY_BY_LISTS};
}

static enum status load_job(struct process *process, const struct log *log,
                            struct failure *why) {
    const struct options *options = process->options;
    const char *sets[OPTIONS_MAX_SETS + 1];
    char dir[4200];
    struct job_source source = {.path = options->job,
                                .deepspeed = options->deepspeed,
                                .overrides = sets,
                                .num_overrides = options->num_sets};
    if (!options->job && !options->deepspeed)
        return status_fail(why, STATUS_CONFIG,
                           "this process leads the run and needs the job: "
                           "capstan run JOB.json");
    memcpy(sets, options->sets, sizeof options->sets);
    enum status status = job_load(&process->job, &source, log, why);
    const char *model_dir = process->cluster->model_dir;
    if (status || process->job->checkpoint.dir || !model_dir)
        return status;
    job_free(&process->job);
    snprintf(dir, sizeof dir, "checkpoint.dir=%s", model_dir);
    sets[source.num_overrides++] = dir;
    return job_load(&process->job, &source, NULL, why);
}

/* The text of a job given to a process that does not lead: to be compared with
 * the chief's. One that cannot be read differs from it, too. */
static const char *own_job(struct process *process) {
    struct failure wrong;
    if (!process->options->job)
        return NULL;
    if (load_job(process, NULL, &wrong)) {
        log_warning(&process->roles.list[0].log,
                    "the job given here is wrong, and not needed, as the "
                    "chief's counts: %.*s",
                    (int)strcspn(wrong.text, "\n"), wrong.text);
        return NULL;
    }
    return process->job->compare.on ? NULL : process->job->text;
}

/* The chief's job: a bench's, that of a run of a series, or the file's. */
static enum status take_job(struct process *process, const struct role *role,
                            struct failure *why) {
    if (process->options->verb == OPTIONS_BENCH)
        return bench_job(&process->job, process->options, why);
    if (!process->lead)
        return load_job(process, &role->log, why);
    process->job = process->lead->job;
    process->lead->job = NULL;
    return STATUS_OK;
}

static enum status compose_chief(struct process *process, struct failure *why) {
    const struct cluster *cluster = process->cluster;
    struct role *role = add_role(process, ROLE_CHIEF, "chief", -1);
    struct series *series = process->lead ? &process->lead->series : NULL;
    if (!series || series->first)
        say_who(process, role);
    else
        role->log.quiet = true;
    enum status status = take_job(process, role, why);
    if (status)
        return status;
    const struct job *job = process->job;
    struct strategy_case given =
        process_members(process->options, cluster, job);
    uint32_t num_ps = given.num_ps;
    struct strategy strategy;
    status = strategy_choose(&strategy, job, &given, &role->log, why);
    if (!status)
        status = job_check_batch(process->job, given.trainers, why);
    if (status)
        return status;
    bool trains = chief_trains(process->options, cluster, job);
    bool trainer_inside = trains || cluster->role == CLUSTER_WORKER;
    bool alone = !num_ps && !strategy.allreduce; /* it keeps its weights */
    role->chief = (struct chief_settings){
        .zmq = process->zmq,
        .log = &role->log,
        .job = process->job,
        .cluster = cluster,
        .inside = inside_chief,
        .ps_inside =
            alone || (strategy.allreduce && trainer_inside) ? inside_ps : NULL,
        .allreduce = strategy.allreduce,
        .backend = strategy.backend,
        .trains = trains,
        .num_workers = count_workers(cluster, job),
        .num_ps = alone ? 1 : num_ps,
        .join_timeout = join_timeout(process),
        .link_gbits = process->options->link_gbits,
        .json = process->options->json &&
                process->options->verb != OPTIONS_BENCH && !series,
        .together = getenv(LAUNCH_TOGETHER),
        .series = series,
        .interrupts = role->interrupts,
    };
    if (alone)
        add_inner_ps(process, trainer_inside);
    if (trainer_inside)
        add_worker(process, true, alone);
    return STATUS_OK;
}

static enum status compose_evaluator(struct process *process) {
    const struct cluster *cluster = process->cluster;
    const struct options *options = process->options;
    struct role *role = add_role(process, ROLE_EVALUATOR, "evaluator", -1);
    say_who(process, role);
    role->evaluator = (struct evaluator_settings){
        .log = &role->log,
        .dir = options->checkpoint_dir ? options->checkpoint_dir
                                       : cluster->model_dir,
        .timeout = join_timeout(process),
        .json = options->json,
        .interrupts = role->interrupts,
    };
    return STATUS_OK;
}

static void add_bench_client(struct process *process,
                             const struct reference *reference) {
    const struct cluster *cluster = process->cluster;
    const struct bench_options *bench = &process->options->bench;
    struct role *role =
        add_role(process, ROLE_BENCH, "bench", (int)cluster->index);
    role->bench = (struct bench_client_settings){
        .zmq = process->zmq,
        .log = &role->log,
        .index = cluster->index,
        .chief = cluster_chief(cluster),
        .chief_ports = cluster->chief_ports,
        .key = cluster->key,
        .sizes = bench->sizes,
        .num_sizes = bench->num_sizes,
        .repeats = bench->repeats,
        .seconds = bench->seconds,
        .requests = bench->requests,
        .batched = bench->batched,
        .timeout = BENCH_SILENCE,
        .ps_pids = getenv(LAUNCH_PS_PIDS),
        .reference = reference,
        .join_timeout = join_timeout(process),
        .lanes = process->choices.lanes,
        .interrupts = role->interrupts,
    };
}

static enum status compose(struct process *process, struct failure *why) {
    const struct cluster *cluster = process->cluster;
    enum status status = cluster_rank_neighbours(
        cluster, process_environment, NULL, &process->neighbours, why);
    if (status)
        return status;
    if (cluster_is_chief(cluster))
        return compose_chief(process, why);
    if (cluster->role == CLUSTER_EVALUATOR)
        return compose_evaluator(process);
    if (cluster->role == CLUSTER_PS)
        add_ps(process);
    else
        add_worker(process, false, false);
    if (!process->back)
        say_who(process, &process->roles.list[0]);
    process->roles.list[0].ps.own_job = process->roles.list[0].worker.own_job =
        own_job(process);
    return STATUS_OK;
}

/* Beside a chief whose lines are seen here too, who only heard of the end is
 * silent: the cause is the last line. */
static void say_end(const struct log *log, struct failure *why) {
    if (!why->heard || !getenv(LAUNCH_TOGETHER))
        log_failure(log, why);
    why->text[0] = 0;
}

static enum status open_process(struct process *process, struct failure *why) {
    enum status status = roles_open(&process->roles, why);
    if (status)
        return status;
    settle_memory();
    process->zmq = zmq_ctx_new();
    if (!process->zmq)
        return status_fail(why, STATUS_RETRY, "cannot start ZeroMQ");
    zmq_ctx_set(process->zmq, ZMQ_MAX_SOCKETS, MAX_SOCKETS);
    return STATUS_OK;
}

/* What a run has opened, its ports with it, is closed when it returns. */
static void close_process(struct process *process) {
    if (process->zmq)
        zmq_ctx_term(process->zmq);
    process->zmq = NULL;
    roles_close(&process->roles);
    job_free(&process->job);
}

static enum status play(struct process *process, struct failure *why) {
    enum status status = roles_play(&process->roles, why);
    if (status && !process->lead)
        say_end(&process->roles.list[0].log, why);
    return status;
}

static enum status play_run(struct process *process, struct failure *why) {
    enum status status = open_process(process, why);
    if (!status)
        status = compose(process, why);
    if (!status)
        status = play(process, why);
    close_process(process);
    return status;
}

enum status process_run(const struct options *options,
                        const struct process_choices *choices,
                        const struct cluster *cluster, struct failure *why) {
    struct process process = {
        .options = options, .cluster = cluster, .choices = *choices};
    enum status status;
    do {
        status = play_run(&process, why);
        process.back = process.roles.list[0].again;
    } while (!status && process.back > 0);
    return status;
}

enum status process_lead(const struct options *options,
                         const struct process_choices *choices,
                         const struct cluster *cluster,
                         struct process_lead *lead, struct failure *why) {
    struct process process = {.options = options,
                              .cluster = cluster,
                              .choices = *choices,
                              .lead = lead};
    enum status status = play_run(&process, why);
    job_free(&lead->job);
    return status;
}

enum status process_bench(const struct options *options,
                          const struct process_choices *choices,
                          const struct cluster *cluster, char **result,
                          struct failure *why) {
    struct process process = {.options = options,
                              .cluster = cluster,
                              .choices = *choices,
                              .roles.done = -1};
    struct reference reference = {0};
    bool client = cluster->role == CLUSTER_WORKER;
    enum status status = STATUS_OK;
    *result = NULL;
    if (cluster_is_chief(cluster) ? client : cluster->role == CLUSTER_EVALUATOR)
        status = status_fail(why, STATUS_CONFIG,
                             "capstan bench needs a chief, ps and a worker in "
                             "the cluster description");
    if (!status && client)
        status = reference_start(&reference, why);
    if (!status)
        status = open_process(&process, why);
    if (!status && client)
        add_bench_client(&process, &reference);
    else if (!status)
        status = compose(&process, why);
    if (!status)
        status = play(&process, why);
    *result = process.roles.list[0].result;
    reference_stop(&reference);
    close_process(&process);
    return status;
}
