/* The program: the verb, signals, the ZeroMQ context, one to three roles as
 * threads, the exit. */
#include "chief/bench.h"
#include "chief/bench_table.h"
#include "chief/chief.h"
#include "chief/ckpt.h"
#include "chief/info.h"
#include "chief/launch.h"
#include "chief/strategy.h"
#include "model/forecast.h"
#include "model/probe.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/conf/cluster.h"
#include "proto/conf/cluster_rank.h"
#include "proto/conf/job.h"
#include "proto/conf/options.h"
#include "ps/ps.h"
#include "worker/bench_client.h"
#include "worker/evaluator.h"
#include "worker/mlp.h"
#include "worker/pace.h"
#include "worker/worker.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
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
    struct cluster *cluster;
    struct job *job;
    void *zmq;
    int done;
    const struct rule_loops *loops;
    bool lanes;
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

static const char *environment(void *context, const char *name) {
    (void)context;
    return getenv(name);
}

/* The variant of the update rules' loops that the user wants. */
static enum status choose_loops(const struct rule_loops **loops,
                                struct failure *why) {
    enum status status = rule_choose(loops, getenv("CAPSTAN_CPU"), why);
    if (status)
        fprintf(stderr, "error: %s\n", why->text);
    return status;
}

/* Shared memory between processes of one host, unless the user says no. */
static enum status choose_lanes(const struct options *options, bool *lanes,
                                struct failure *why) {
    const char *lane = options->lane ? options->lane : getenv("CAPSTAN_LANE");
    *lanes = !lane || strcmp(lane, "tcp");
    if (!lane || !strcmp(lane, "auto") || !strcmp(lane, "tcp"))
        return STATUS_OK;
    enum status status =
        status_fail(why, STATUS_CONFIG,
                    "CAPSTAN_LANE is '%.64s'; allowed are auto and tcp", lane);
    fprintf(stderr, "error: %s\n", why->text);
    return status;
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

static void say_who(const struct process *process, const struct role *role) {
    char host[256] = "", rank[64];
    gethostname(host, sizeof host - 1);
    cluster_rank_text(process->cluster, rank, sizeof rank);
    log_info(&role->log, "%shost %s, pid %d, device cpu (%s), %s%s", rank, host,
             (int)getpid(), rule_variant_name(process->loops),
             process->cluster->local ? "" : "cluster from ",
             process->cluster->local ? "no cluster: alone"
                                     : process->cluster->source);
}

static double join_timeout(const struct process *process) {
    if (process->options->join_timeout > 0)
        return process->options->join_timeout;
    return process->job && cluster_is_chief(process->cluster)
               ? process->job->timeouts.join
               : JOIN_TIMEOUT;
}

/* Names of the links between roles of this process. */
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
        .loops = process->loops,
        .join_timeout = join_timeout(process),
        .lanes = process->lanes,
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
        .loops = process->loops,
        .join_timeout = join_timeout(process),
        .lanes = process->lanes,
        .interrupts = role->interrupts,
    };
}

/* INSIDE: the chief is in this process, and its port is the chief's. */
static void add_worker(struct process *process, bool inside, bool ps_inside) {
    const struct cluster *cluster = process->cluster;
    bool chief = cluster->role == CLUSTER_CHIEF;
    struct role *role = add_role(process, chief ? "chief" : "worker",
                                 chief ? -1 : (int)cluster->index, run_worker);
    role->worker = (struct worker_settings){
        .zmq = process->zmq,
        .log = &role->log,
        .role = cluster->role,
        .index = cluster->index,
        .self = inside ? NULL : cluster_self(cluster),
        .chief = inside ? NULL : cluster_chief(cluster),
        .chief_inside = inside ? inside_chief : NULL,
        .ps_inside = ps_inside ? inside_ps : NULL,
        .ps = &cluster->jobs[CLUSTER_PS],
        .loops = process->loops,
        .join_timeout = join_timeout(process),
        .lanes = process->lanes,
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
    status = strategy_choose(process->job, &given, &role->log, why);
    if (!status)
        status = job_solve_batch(process->job, workers + trains, why);
    if (status)
        return status;
    role->chief = (struct chief_settings){
        .zmq = process->zmq,
        .log = &role->log,
        .job = process->job,
        .cluster = cluster,
        .inside = inside_chief,
        .ps_inside = num_ps ? NULL : inside_ps,
        .trains = trains,
        .num_workers = workers,
        .num_ps = num_ps ? num_ps : 1,
        .join_timeout = join_timeout(process),
        .link_gbits = process->options->link_gbits,
        .json =
            process->options->json && process->options->verb != OPTIONS_BENCH,
        .interrupts = role->interrupts,
    };
    bool trainer_inside = trains || cluster->role == CLUSTER_WORKER;
    if (!num_ps)
        add_inner_ps(process, trainer_inside);
    if (trainer_inside)
        add_worker(process, true, !num_ps);
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
        .lanes = process->lanes,
        .interrupts = role->interrupts,
    };
}

static enum status compose(struct process *process, struct failure *why) {
    const struct cluster *cluster = process->cluster;
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
        log_error(&process->roles[0].log, "%s", why->text);
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

static enum status verb_run(const struct options *options,
                            struct failure *why) {
    struct process process = {.options = options};
    enum status status = choose_loops(&process.loops, why);
    if (!status)
        status = choose_lanes(options, &process.lanes, why);
    if (status)
        return status;
    status = cluster_resolve(&process.cluster, &options->flags, environment,
                             NULL, why);
    if (!status)
        status = open_process(&process, why);
    if (!status)
        status = compose(&process, why);
    if (status) {
        fprintf(stderr, "error: %s\n", why->text);
    } else {
        status = play(&process, why);
        zmq_ctx_term(process.zmq);
    }
    job_free(&process.job);
    cluster_free(&process.cluster);
    return status;
}

static enum status verb_cluster(const struct options *options,
                                struct failure *why) {
    struct cluster *cluster = NULL;
    enum status status =
        cluster_resolve(&cluster, &options->flags, environment, NULL, why);
    if (status) {
        fprintf(stderr, "error: %s\n", why->text);
        return status;
    }
    char *text = cluster_json(cluster);
    puts(text ? text : "");
    free(text);
    cluster_free(&cluster);
    return STATUS_OK;
}

/* Where the chief's arguments are spelled out. */
struct local_texts {
    char deepspeed[4096], link[64];
};

/* The chief's command line: the job and what overrides it. Processes that
 * share one machine share its cores: a ps takes one unless JOB says. */
static unsigned local_arguments(const struct options *options,
                                const struct job *job, char **arguments,
                                struct local_texts *texts) {
    unsigned count = 0;
    arguments[count++] = (char *)options->job;
    arguments[count++] = "--coordinate";
    if (options->json)
        arguments[count++] = "--json";
    if (options->link_gbits > 0) {
        snprintf(texts->link, sizeof texts->link, "--link-gbits=%.17g",
                 options->link_gbits);
        arguments[count++] = texts->link;
    }
    if (options->deepspeed) {
        snprintf(texts->deepspeed, sizeof texts->deepspeed,
                 "--deepspeed_config=%s", options->deepspeed);
        arguments[count++] = texts->deepspeed;
    }
    for (unsigned i = 0; i < options->num_sets; i++) {
        arguments[count++] = "--set";
        arguments[count++] = (char *)options->sets[i];
    }
    if (!job->ps_threads && options->num_sets < OPTIONS_MAX_SETS) {
        arguments[count++] = "--set";
        arguments[count++] = "strategy.ps_threads=1";
    }
    return count;
}

/* What the chief would refuse is said before anything is started. */
static enum status check_local(const struct options *options,
                               const struct job_source *source,
                               struct job **job, struct failure *why) {
    enum status status = job_load(job, source, NULL, why);
    if (status)
        return status;
    uint32_t trainers =
        options->num_workers + ((*job)->chief == JOB_CHIEF_TRAIN);
    struct strategy_case given = {trainers, options->num_ps, false};
    status = strategy_choose(*job, &given, NULL, why);
    return status ? status : job_solve_batch(*job, trainers, why);
}

static void find_program(char *program, size_t size) {
    if (readlink("/proc/self/exe", program, size - 1) < 0)
        snprintf(program, size, "/proc/self/exe");
}

/* The part of a bench that the environment describes. The reference forks, so
 * it comes before all threads. */
static enum status play_bench(struct process *process, struct failure *why) {
    const struct cluster *cluster = process->cluster;
    struct reference reference = {0};
    bool client = cluster->role == CLUSTER_WORKER;
    enum status status = choose_loops(&process->loops, why);
    if (!status &&
        (cluster_is_chief(cluster) ? client
                                   : cluster->role == CLUSTER_EVALUATOR))
        status = status_fail(why, STATUS_CONFIG,
                             "capstan bench needs a chief, ps and a worker in "
                             "the cluster description");
    if (!status && client)
        status = reference_start(&reference, why);
    if (!status)
        status = open_process(process, why);
    if (!status && client)
        add_bench_client(process, &reference);
    else if (!status)
        status = compose(process, why);
    if (status) {
        fprintf(stderr, "error: %s\n", why->text);
    } else {
        status = play(process, why);
        zmq_ctx_term(process->zmq);
    }
    reference_stop(&reference);
    return status;
}

static void show_result(const struct options *options, char *result) {
    if (result && options->json)
        puts(result);
    else if (result)
        bench_table_print(stdout, result);
    fflush(stdout);
    free(result);
}

static enum status launch_bench(const struct options *options,
                                struct failure *why) {
    struct log log;
    int code = STATUS_FAILED;
    char program[4096] = "";
    log_open(&log, "bench", -1);
    find_program(program, sizeof program);
    enum status status = bench_local(options, program, &log, &code, why);
    if (status)
        log_error(&log, "%s", why->text);
    return status ? status : (enum status)code;
}

enum { MOST_PARAMETERS = 2 * JOB_MAX_LAYERS };
static const double PROBE_SECONDS = 0.4;

/* What a simulated cluster trains, and what that takes here. */
struct simulation {
    struct job *job; /* NULL: a flat vector */
    struct layout *layout;
    double forward[MOST_PARAMETERS], backward[MOST_PARAMETERS], crowded;
    struct model_costs costs;
};

static enum status lay_out(struct simulation *simulation,
                           const struct options *options, struct failure *why) {
    uint64_t floats = options->simulate.bytes / sizeof(float);
    struct parameter parameters[MOST_PARAMETERS] = {
        {.name = "vector", .num_dims = 2, .dims = {1, (uint32_t)floats}}};
    struct job_source source = {.path = options->job,
                                .overrides = options->sets,
                                .num_overrides = options->num_sets};
    uint32_t count = 1;
    enum status status = STATUS_OK;
    if (floats > UINT32_MAX) /* whole megabytes of it */
        parameters[0].dims[0] = 1 << 18, parameters[0].dims[1] = floats >> 18;
    if (options->job) {
        status = job_load(&simulation->job, &source, NULL, why);
        if (!status)
            status =
                job_solve_batch(simulation->job, options->num_workers, why);
        if (!status)
            count = mlp_parameters(&simulation->job->model, parameters);
    }
    return status ? status
                  : layout_build(&simulation->layout, parameters, count, why);
}

/* SECONDS of a step by size: a third forward, the rest back. */
static void share_out(struct simulation *simulation, double seconds) {
    const struct layout *layout = simulation->layout;
    for (uint32_t p = 0; p < layout->num_parameters; p++) {
        double part = seconds * (double)layout->parameters[p].elements /
                      (double)layout->elements;
        simulation->forward[p] = part / 3;
        simulation->backward[p] = part * 2 / 3;
    }
}

static enum status measure_costs(struct simulation *simulation,
                                 const struct simulate_options *flags,
                                 unsigned cores, struct failure *why) {
    static const struct optimizer plain = {.type = OPTIMIZER_SGD};
    struct job *job = simulation->job;
    struct pace pace = {simulation->forward, simulation->backward, 1};
    enum status status = STATUS_OK;
    if (job && flags->batch)
        job->micro_batch = (uint32_t)flags->batch;
    if (job && flags->compute < 0)
        status = pace_measure(&pace, job, cores, PROBE_SECONDS, why);
    else
        share_out(simulation, flags->compute > 0 ? flags->compute : 0);
    simulation->crowded = pace.crowded;
    return status
               ? status
               : probe_costs(&simulation->costs, job ? &job->optimizer : &plain,
                             PROBE_SECONDS, why);
}

static enum status simulate(const struct options *options,
                            struct failure *why) {
    struct simulation simulation = {0};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    enum status status = lay_out(&simulation, options, why);
    if (!status)
        status = measure_costs(&simulation, &options->simulate,
                               cores > 0 ? (unsigned)cores : 1, why);
    const struct job *job = simulation.job;
    struct forecast forecast = {
        .layout = simulation.layout,
        .forward = simulation.forward,
        .backward = simulation.backward,
        .costs = simulation.costs,
        .crowded = simulation.crowded,
        .cores = cores > 0 ? (uint32_t)cores : 1,
        .num_ps = options->num_ps,
        .num_workers = options->num_workers,
        .staleness = job ? job->staleness : 0,
        .clip = job && job->gradient_clipping > 0,
        .bf16 = job && job->wire == JOB_BF16,
        .json = options->json,
    };
    if (!status)
        status = forecast_print(stdout, &forecast, &options->simulate, why);
    if (status)
        fprintf(stderr, "error: %s\n", why->text);
    layout_free(&simulation.layout);
    job_free(&simulation.job);
    return status;
}

static enum status verb_bench(const struct options *options,
                              struct failure *why) {
    if (options->simulate.on)
        return simulate(options, why);
    struct process process = {.options = options};
    if (options->bench.lane == BENCH_LANE_TCP)
        setenv("CAPSTAN_LANE", "tcp", 1); /* the ps's too */
    else if (options->bench.lane == BENCH_LANE_SHM)
        setenv("CAPSTAN_LANE", "auto", 1);
    enum status status = choose_loops(&process.loops, why);
    if (!status)
        status = choose_lanes(options, &process.lanes, why);
    if (status)
        return status;
    status = cluster_resolve(&process.cluster, &options->flags, environment,
                             NULL, why);
    if (status) {
        fprintf(stderr, "error: %s\n", why->text);
        return status;
    }
    status = process.cluster->local ? launch_bench(options, why)
                                    : play_bench(&process, why);
    show_result(options, process.roles[0].result);
    job_free(&process.job);
    cluster_free(&process.cluster);
    return status;
}

static enum status verb_local(const struct options *options,
                              struct failure *why) {
    char *arguments[2 * OPTIONS_MAX_SETS + 8] = {0};
    struct local_texts texts;
    struct log log;
    struct job *job = NULL;
    struct job_source source = {.path = options->job,
                                .deepspeed = options->deepspeed,
                                .overrides = options->sets,
                                .num_overrides = options->num_sets};
    const struct rule_loops
        *loops; /* which the processes take for themselves */
    log_open(&log, "local", -1);
    bool lanes;
    enum status status = choose_loops(&loops, why);
    if (!status)
        status = choose_lanes(options, &lanes, why);
    if (status)
        return status;
    if (options->lane)
        setenv("CAPSTAN_LANE", options->lane, 1);
    status = check_local(options, &source, &job, why);
    if (status) {
        fprintf(stderr, "error: %s\n", why->text);
        job_free(&job);
        return status;
    }
    char program[4096] = "";
    find_program(program, sizeof program);
    local_arguments(options, job, arguments, &texts);
    struct launch_options launch = {.program = program,
                                    .num_ps = options->num_ps,
                                    .num_workers = options->num_workers,
                                    .run_arguments = arguments,
                                    .grace = job->timeouts.grace,
                                    .stop = job->timeouts.stop,
                                    .log = &log};
    int code = STATUS_FAILED;
    status = launch_run(&launch, &code, why);
    if (status)
        log_error(&log, "%s", why->text);
    job_free(&job);
    return status ? status : (enum status)code;
}

static enum status verb_ckpt(const struct options *options,
                             struct failure *why) {
    struct log log;
    struct ckpt_options ckpt = {.dir = options->dir,
                                .json = options->json,
                                .has_step = options->has_step,
                                .step = options->step,
                                .out = options->out,
                                .state = options->with_state};
    enum status status = STATUS_OK;
    log_open(&log, "ckpt", -1);
    if (options->format) {
        char ending[64];
        snprintf(ending, sizeof ending, ".%s", options->format);
        ckpt.has_format = true;
        status = tensor_format_of(ending, &ckpt.format, why);
    }
    if (status)
        ;
    else if (!strcmp(options->action, "ls"))
        status = ckpt_ls(&ckpt, stdout, why);
    else if (!strcmp(options->action, "verify"))
        status = ckpt_verify(&ckpt, stdout, why);
    else if (!strcmp(options->action, "export") && options->out)
        status = ckpt_export(&ckpt, stdout, &log, why);
    else
        status = status_fail(why, STATUS_CONFIG,
                             "capstan ckpt takes ls DIR, verify DIR, or export "
                             "DIR OUT");
    if (status)
        fprintf(stderr, "error: %s\n", why->text);
    return status;
}

static enum status verb_info(const struct options *options,
                             struct failure *why) {
    const struct rule_loops *loops;
    enum status status = choose_loops(&loops, why);
    if (!status)
        info_print(stdout, options->json, loops);
    return status;
}

int main(int argc, char **argv) {
    static enum status (*const verbs[OPTIONS_VERBS])(const struct options *,
                                                     struct failure *) = {
        [OPTIONS_RUN] = verb_run,         [OPTIONS_LOCAL] = verb_local,
        [OPTIONS_CLUSTER] = verb_cluster, [OPTIONS_CKPT] = verb_ckpt,
        [OPTIONS_INFO] = verb_info,       [OPTIONS_BENCH] = verb_bench,
    };
    struct options options;
    struct failure why = {0};
    enum status status = options_read(&options, argc, argv, &why);
    if (status)
        fprintf(stderr, "error: %s\n", why.text);
    else if (!options.shown)
        status = verbs[options.verb](&options, &why);
    return status;
}
