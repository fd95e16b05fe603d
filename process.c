#include "process.h"

#include "chief/bench.h"
#include "chief/chief.h"
#include "chief/launch.h"
#include "chief/strategy.h"
#include "proto/base/log.h"
#include "proto/base/plugin.h"
#include "proto/conf/cluster_rank.h"
#include "proto/conf/job.h"
#include "ps/ps.h"
#include "worker/bench_client.h"
#include "worker/evaluator.h"
#include "worker/worker.h"

#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <zmq.h>

enum { MAX_ROLES = 3, MAX_SOCKETS = 16384, END_WITH_CHIEF_MS = 500 };
static const double JOIN_TIMEOUT = 600, BENCH_SILENCE = 30;

/* One role of this process, on a thread of its own. */
struct role {
    const char *name;
    pthread_t thread;
    struct log log;
    int interrupts, raise; /* a pipe: a signal's number, 8 bytes, each */
    int done;              /* eventfd shared by all roles */
    atomic_bool ended;
    enum status status;
    struct failure why;
    enum status (*run)(struct role *role);
    struct chief_settings chief;
    struct ps_settings ps;
    struct cluster_task ps_address;
    struct worker_settings worker;
    struct evaluator_settings evaluator;
    struct bench_client_settings bench;
    char *result; /* the bench's, or NULL */
};

struct process {
    const struct options *options;
    const struct cluster *cluster;
    struct process_choices choices;
    struct cluster_neighbours neighbours;
    struct job *job;
    void *zmq;
    int done;
    struct role roles[MAX_ROLES];
    unsigned num_roles;
};

static enum status run_chief(struct role *role) {
    return chief_run(&role->chief, &role->why);
}

static enum status run_ps(struct role *role) {
    return ps_run(&role->ps, &role->why);
}

static enum status run_worker(struct role *role) {
    return worker_run(&role->worker, &role->why);
}

static enum status run_evaluator(struct role *role) {
    return evaluator_run(&role->evaluator, &role->why);
}

static enum status run_bench(struct role *role) {
    return bench_client_run(&role->bench, &role->result, &role->why);
}

static void *run_role(void *argument) {
    struct role *role = argument;
    role->status = role->run(role);
    atomic_store(&role->ended, true);
    eventfd_write(role->done, 1);
    return NULL;
}

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

static struct role *add_role(struct process *process, const char *name,
                             int index, enum status (*run)(struct role *)) {
    struct role *role = &process->roles[process->num_roles++];
    role->name = name;
    role->run = run;
    role->done = process->done;
    int ends[2] = {-1, -1};
    log_open(&role->log, name, index);
    role->log.quiet = process->options->verb == OPTIONS_BENCH &&
                      !process->options->bench.verbose;
    if (pipe2(ends, O_NONBLOCK | O_CLOEXEC))
        log_warning(&role->log, "no pipe: signals are not heard");
    role->interrupts = ends[0];
    role->raise = ends[1];
    return role;
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
}

static double join_timeout(const struct process *process) {
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
    struct role *role = add_role(process, "ps", 0, run_ps);
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
    struct role *role = add_role(process, "ps", (int)cluster->index, run_ps);
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
    };
}

/* INSIDE: the chief is in this process, and its port is the chief's. */
static void add_worker(struct process *process, bool inside, bool ps_inside) {
    const struct cluster *cluster = process->cluster;
    bool chief = cluster->role == CLUSTER_CHIEF;
    bool listed = !cluster->by_ranks; /* else nobody calls it */
    struct role *role = add_role(process, chief ? "chief" : "worker",
                                 chief ? -1 : (int)cluster->index, run_worker);
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
    };
}

static bool chief_trains(const struct process *process) {
    if (process->cluster->role != CLUSTER_CHIEF)
        return false; /* worker 0 leads: it trains as a worker */
    if (process->job->chief == JOB_CHIEF_UNSET)
        return !process->options->coordinate;
    return process->job->chief == JOB_CHIEF_TRAIN;
}

static uint32_t count_workers(const struct process *process) {
    uint32_t listed = process->cluster->jobs[CLUSTER_WORKER].count;
    if (process->cluster->local)
        return 1;
    return process->job->workers ? process->job->workers : listed;
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
 * the chief's. */
static const char *own_job(struct process *process) {
    struct failure ignored;
    if (!process->options->job || load_job(process, NULL, &ignored))
        return NULL;
    return process->job->text;
}

static enum status compose_chief(struct process *process, struct failure *why) {
    const struct cluster *cluster = process->cluster;
    struct role *role = add_role(process, "chief", -1, run_chief);
    say_who(process, role);
    enum status status = process->options->verb == OPTIONS_BENCH
                             ? bench_job(&process->job, process->options, why)
                             : load_job(process, &role->log, why);
    if (status)
        return status;
    bool trains = chief_trains(process);
    uint32_t workers = count_workers(process);
    uint32_t num_ps = cluster->jobs[CLUSTER_PS].count;
    struct strategy_case given = {workers + trains, num_ps, cluster->local};
    struct strategy strategy;
    status = strategy_choose(&strategy, process->job, &given, &role->log, why);
    if (!status)
        status = job_solve_batch(process->job, workers + trains, why);
    if (status)
        return status;
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
        .num_workers = workers,
        .num_ps = alone ? 1 : num_ps,
        .join_timeout = join_timeout(process),
        .link_gbits = process->options->link_gbits,
        .json =
            process->options->json && process->options->verb != OPTIONS_BENCH,
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
    struct role *role = add_role(process, "evaluator", -1, run_evaluator);
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
        add_role(process, "bench", (int)cluster->index, run_bench);
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
    process->roles[0].ps.own_job = process->roles[0].worker.own_job =
        own_job(process);
    say_who(process, &process->roles[0]);
    return STATUS_OK;
}

/* Roles beside a chief that has ended without telling them end too. */
static void end_with_chief(struct process *process) {
    for (unsigned i = 1; i < process->num_roles && i < MAX_ROLES; i++)
        if (!atomic_load(&process->roles[i].ended))
            eventfd_write(process->roles[i].raise, SIGTERM);
}

/* A signal goes to the role that the process plays. */
static void await_roles(struct process *process) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    int descriptor = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    unsigned ended = 0;
    while (ended < process->num_roles) {
        struct pollfd items[] = {{descriptor, POLLIN, 0},
                                 {process->done, POLLIN, 0}};
        struct signalfd_siginfo signal;
        eventfd_t count = 0;
        bool chief_ended = atomic_load(&process->roles[0].ended);
        if (!poll(items, 2, chief_ended ? END_WITH_CHIEF_MS : -1))
            end_with_chief(process);
        if (read(descriptor, &signal, sizeof signal) == sizeof signal)
            eventfd_write(process->roles[0].raise, signal.ssi_signo);
        if (!eventfd_read(process->done, &count))
            ended += (unsigned)count;
    }
    close(descriptor);
}

/* Beside a chief whose lines are seen here too, who only heard of the end says
 * no more than that it ends. */
static void say_end(const struct log *log, struct failure *why) {
    if (!why->heard || !getenv(LAUNCH_TOGETHER)) {
        log_failure(log, why);
        return;
    }
    bool signal =
        why->status == STATUS_INTERRUPTED || why->status == STATUS_TERMINATED;
    log_info(log, "ends %s (exit code %d)",
             signal ? "by a signal" : "with the run", why->status);
    why->text[0] = 0;
}

static enum status play(struct process *process, struct failure *why) {
    enum status status = STATUS_OK;
    unsigned started = 0;
    for (; !status && started < process->num_roles; started++) {
        struct role *role = &process->roles[started];
        int error = pthread_create(&role->thread, NULL, run_role, role);
        if (error)
            status =
                status_errno(why, STATUS_RETRY, error, "cannot start a thread");
    }
    if (status)
        return status; /* the process ends with the threads it has */
    await_roles(process);
    for (unsigned i = 0; i < started; i++)
        pthread_join(process->roles[i].thread, NULL);
    *why = process->roles[0].why;
    status = process->roles[0].status;
    for (unsigned i = 1; !status && i < started; i++)
        if (process->roles[i].status)
            log_warning(&process->roles[i].log, "%s",
                        process->roles[i].why.text);
    if (status)
        say_end(&process->roles[0].log, why);
    return status;
}

static enum status open_process(struct process *process, struct failure *why) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    settle_memory();
    process->done = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    process->zmq = zmq_ctx_new();
    if (!process->zmq || process->done < 0)
        return status_fail(why, STATUS_RETRY, "cannot start ZeroMQ");
    zmq_ctx_set(process->zmq, ZMQ_MAX_SOCKETS, MAX_SOCKETS);
    return STATUS_OK;
}

static enum status play_all(struct process *process, struct failure *why) {
    enum status status = play(process, why);
    zmq_ctx_term(process->zmq);
    return status;
}

enum status process_run(const struct options *options,
                        const struct process_choices *choices,
                        const struct cluster *cluster, struct failure *why) {
    struct process process = {
        .options = options, .cluster = cluster, .choices = *choices};
    enum status status = open_process(&process, why);
    if (!status)
        status = compose(&process, why);
    if (!status)
        status = play_all(&process, why);
    job_free(&process.job);
    return status;
}

enum status process_bench(const struct options *options,
                          const struct process_choices *choices,
                          const struct cluster *cluster, char **result,
                          struct failure *why) {
    struct process process = {
        .options = options, .cluster = cluster, .choices = *choices};
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
        status = play_all(&process, why);
    *result = process.roles[0].result;
    reference_stop(&reference);
    job_free(&process.job);
    return status;
}
