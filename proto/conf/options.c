#include "proto/conf/options.h"

#include "proto/base/version.h"
#include "proto/conf/wrong_flag.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum key {
    KEY_HELP = 'h',
    KEY_VERSION = 'V',
    KEY_JSON = 0x100,
    KEY_JOB_NAME,
    KEY_TASK_INDEX,
    KEY_PS_HOSTS,
    KEY_WORKER_HOSTS,
    KEY_CHIEF_HOSTS,
    KEY_NUM_PS,
    KEY_LOCAL_RANK,
    KEY_DISTRIBUTION,
    KEY_INSTANCES,
    KEY_SET,
    KEY_DEEPSPEED,
    KEY_JOIN_TIMEOUT,
    KEY_LINK,
    KEY_CHECKPOINT_DIR,
    KEY_COORDINATE,
    KEY_WAY,
    KEY_PS,
    KEY_WORKERS,
    KEY_STEP,
    KEY_FORMAT,
    KEY_STATE,
    KEY_SIZES,
    KEY_REPEATS,
    KEY_SECONDS,
    KEY_REQUESTS,
    KEY_BATCHED,
    KEY_LANE,
    KEY_VERBOSE,
    KEY_SIMULATE,
    KEY_SWEEP,
    KEY_SHARE_CORES,
    KEY_LINK_GBITS,
    KEY_LATENCY,
    KEY_COMPUTE,
    KEY_JITTER,
    KEY_OVERHEAD,
    KEY_CORES,
    KEY_BATCH,
    KEY_BYTES,
    KEY_GROUP,
    KEY_ROUNDS,
    KEY_SEED,
    KEY_PLACE,
    KEY_NPROC,
    KEY_NNODES,
    KEY_NODE_RANK,
    KEY_ADDR,
    KEY_PORT,
    KEY_USE_ENV,
    KEY_NO_PYTHON,
    KEY_MODULE,
    KEY_GRACE,
    KEY_COMPARED_PS,
    KEY_COMPARED_WORKERS,
    KEY_STEPS,
    KEY_COMPARED_REPEATS,
    KEY_LIMIT,
    KEY_CSV,
    KEY_PLOT,
    KEY_PREDICT,
    KEY_PARAMS,
    KEY_WIRE,
    KEY_CLIP,
    KEY_COMPARED_LINK,
    KEY_COMPARED_LATENCY,
    KEY_COMPUTE_MS,
    KEY_INPUT_MS,
    KEY_UPDATE,
    KEY_OVERLAP,
    KEY_TARGET,
    KEY_INNER,
    KEY_PER_HOST,
    KEY_VM,
};

_Static_assert(KEY_VM - KEY_COMPARED_PS == COMPARE_OPTIONS_VM,
               "flags of a comparison in the order of their keys");

_Static_assert(KEY_PLACE - KEY_SIMULATE == SIMULATE_OPTIONS_PLACE,
               "flags of a simulation in the order of their keys");

_Static_assert(KEY_GRACE - KEY_NPROC == LAUNCH_OPTIONS_GRACE,
               "flags of a launch in the order of their keys");

_Static_assert(KEY_VERBOSE - KEY_SIZES == BENCH_OPTIONS_VERBOSE,
               "flags of a bench in the order of their keys");

#define HELP                                                                   \
    {"help", KEY_HELP, NULL, 0, "show this text", -1}, {                       \
        "version", KEY_VERSION, NULL, 0, "show the release", -1                \
    }
#define JSON                                                                   \
    { "json", KEY_JSON, NULL, 0, "print one JSON object on standard output", 0 }
#define SET                                                                        \
    {                                                                              \
        "set", KEY_SET, "KEY.PATH=VALUE", 0,                                       \
            "override a key of the job (a JSON value, else a string); repeatable", \
            0                                                                      \
    }
#define LANE                                                                   \
    {                                                                          \
        "lane", KEY_WAY, "LANE", 0,                                            \
            "auto: between processes on one host over shared memory; tcp: "    \
            "never (auto)",                                                    \
            0                                                                  \
    }
#define DEEPSPEED                                                              \
    {                                                                          \
        "deepspeed_config", KEY_DEEPSPEED, "FILE", 0,                          \
            "a DeepSpeed configuration to fill in what the job leaves out", 0  \
    }
#define LINK                                                                   \
    {                                                                          \
        "link-gbits", KEY_LINK, "G", 0,                                        \
            "chief: what the network passes each way a host, 10^9 bits/s "     \
            "(else measured where every process has its own host)",            \
            0                                                                  \
    }
#define CLUSTER_FLAGS                                                           \
    {                                                                           \
        "job_name", KEY_JOB_NAME, "NAME", 0, "chief, worker, ps or evaluator",  \
        1},                                                                     \
        {"task_index", KEY_TASK_INDEX, "N", 0, "which one of them this is", 1}, \
        {"ps_hosts", KEY_PS_HOSTS, "HOST:PORT,...", 0, "the ps", 1},            \
        {"worker_hosts",  KEY_WORKER_HOSTS,                                     \
         "HOST:PORT,...", 0,                                                    \
         "the workers",   1},                                                   \
        {"chief_hosts", KEY_CHIEF_HOSTS, "HOST:PORT", 0, "the chief", 1},       \
        {"num-ps",                                                              \
         KEY_NUM_PS,                                                            \
         "N",                                                                   \
         0,                                                                     \
         "under torch, MPI, Slurm: the last N ranks are ps (0)",                \
         1},                                                                    \
        {"local_rank", KEY_LOCAL_RANK, "N", 0, "the same as LOCAL_RANK", 1}, {  \
        "local-rank", 0, NULL, OPTION_ALIAS, NULL, 1                            \
    }

static const struct argp_option run_options[] = {
    HELP,
    JSON,
    SET,
    DEEPSPEED,
    {"join-timeout", KEY_JOIN_TIMEOUT, "SECONDS", 0,
     "how long to wait for the chief (600)", 0},
    {"checkpoint-dir", KEY_CHECKPOINT_DIR, "DIR", 0,
     "evaluator: the checkpoint directory to follow", 0},
    {"coordinate", KEY_COORDINATE, NULL, 0,
     "the chief does not train unless the job says so", 0},
    LANE,
    LINK,
    CLUSTER_FLAGS,
    {0}};

static const struct argp_option local_options[] = {
    HELP,
    JSON,
    SET,
    DEEPSPEED,
    {"ps", KEY_PS, "N", 0, "how many ps (1)", 0},
    {"workers", KEY_WORKERS, "N", 0, "how many workers (1)", 0},
    {"distribution", KEY_DISTRIBUTION, "JSON", 0,
     "instead: what this block of an Azure ML job starts (type tensorflow, "
     "pytorch or mpi)",
     0},
    {"instances", KEY_INSTANCES, "N", 0, "of that job (1)", 0},
    {"num-ps", KEY_NUM_PS, "N", 0,
     "with pytorch or mpi: the last N ranks are ps (0)", 0},
    LANE,
    LINK,
    {0}};

#define ALSO(name)                                                             \
    { name, 0, NULL, OPTION_ALIAS, NULL, 0 }
static const struct argp_option launch_options[] = {
    HELP,
    {"nproc_per_node", KEY_NPROC, "N", 0, "processes to start here (1)", 0},
    ALSO("nproc-per-node"),
    {"nnodes", KEY_NNODES, "N", 0, "nodes of the job (1)", 0},
    {"node_rank", KEY_NODE_RANK, "N", 0, "which of them this is (0)", 0},
    ALSO("node-rank"),
    {"master_addr", KEY_ADDR, "HOST", 0, "where rank 0 is (127.0.0.1)", 0},
    ALSO("master-addr"),
    {"master_port", KEY_PORT, "PORT", 0, "its port (29500)", 0},
    ALSO("master-port"),
    {"use_env", KEY_USE_ENV, NULL, 0,
     "do not put --local_rank=N behind the command: LOCAL_RANK says it", 0},
    ALSO("use-env"),
    {"no_python", KEY_NO_PYTHON, NULL, 0,
     "the command is no Python script, and takes no --local_rank", 0},
    ALSO("no-python"),
    {"module", KEY_MODULE, NULL, 0, "the command is a module of Python", 0},
    {NULL, 'm', NULL, OPTION_ALIAS, NULL, 0},
    {"grace", KEY_GRACE, "SECONDS", 0,
     "from SIGTERM to SIGKILL, when one has failed or a signal came (40)", 0},
    {0}};
#undef ALSO

static const struct argp_option cluster_options[] = {
    HELP, JSON, CLUSTER_FLAGS, {0}};

static const struct argp_option ckpt_options[] = {
    HELP,
    JSON,
    {"step", KEY_STEP, "N", 0, "which one (the newest that verifies)", 0},
    {"format", KEY_FORMAT, "FORMAT", 0,
     "export: safetensors or npz (by the ending of OUT)", 0},
    {"state", KEY_STATE, NULL, 0, "export: the optimiser's state too", 0},
    {0}};

static const struct argp_option info_options[] = {HELP, JSON, {0}};

#define LOOPS                                                                  \
    "CAPSTAN_CPU=plain, avx2 or avx512 in the environment: the variant of "    \
    "the update rules' loops, else the best that the processor has. All give " \
    "the same bits."

static const struct argp_option bench_options[] = {
    HELP,
    JSON,
    {"sizes", KEY_SIZES, "LIST", 0,
     "vectors to move, such as 64,4K,1M (64,4K,64K,1M,16M,64M); K is 1024", 0},
    {"lane", KEY_LANE, "LANE", 0,
     "tcp, shm (shared memory, same host) or auto (auto)", 0},
    {"ps", KEY_PS, "N", 0, "how many ps (1)", 0},
    {"repeats", KEY_REPEATS, "N", 0,
     "laps of each figure, in turns; the median counts (5)", 0},
    {"seconds", KEY_SECONDS, "S", 0, "measuring time of each figure (0.3)", 0},
    {"requests", KEY_REQUESTS, "N", 0,
     "instead: push the first size N times, and tell the ps's memory before "
     "and after",
     0},
    {"batched", KEY_BATCHED, NULL, 0,
     "with --requests: vectors of 64 bytes, 1024 in one message", 0},
    {"checkpoint-dir", KEY_CHECKPOINT_DIR, "DIR", 0,
     "write a checkpoint there at the end", 0},
    {"verbose", KEY_VERBOSE, NULL, 0, "show what every process says", 0},
    CLUSTER_FLAGS,
    {NULL, 0, NULL, 0, "Instead, a cluster in simulated time:", 2},
    {"simulate", KEY_SIMULATE, NULL, 0,
     "how long a round takes with --ps and --workers, JOB.json's model", 2},
    {"sweep", KEY_SWEEP, NULL, 0, "1 to 256 workers by 1 to 64 ps", 2},
    {"workers", KEY_WORKERS, "N", 0, "how many workers (1)", 2},
    {"link-gbits", KEY_LINK_GBITS, "G", 0,
     "a host's link, each way, Gbit/s (1)", 2},
    {"latency-us", KEY_LATENCY, "US", 0, "between two hosts (50)", 2},
    {"cores", KEY_CORES, "N", 0, "of a host (as here)", 2},
    {"place", KEY_PLACE, "PLACE", 0,
     "apart (a host each), pairs (a worker and a ps a host) or one (apart)", 2},
    {"share-cores", KEY_SHARE_CORES, NULL, 0,
     "all hosts are one machine with these cores", 2},
    {"bytes", KEY_BYTES, "N", 0, "a flat vector, such as 100M, and no job", 2},
    {"batch", KEY_BATCH, "N", 0, "samples of a micro batch (the job's)", 2},
    {"compute", KEY_COMPUTE, "S", 0,
     "seconds of a step's computing (measured; with --bytes 0)", 2},
    {"jitter", KEY_JITTER, "X", 0,
     "standard deviation of that, as a share of it (0.05)", 2},
    {"overhead", KEY_OVERHEAD, "X", 0,
     "times the processor time of messages and updates measured here (1)", 2},
    {"group", KEY_GROUP, "N", 0,
     "bytes of blocks in a message (as a run has it)", 2},
    {"rounds", KEY_ROUNDS, "N", 0, "to measure (20; a sweep: at most 4)", 2},
    {"seed", KEY_SEED, "N", 0, "of the jitter (1)", 2},
    {"set", KEY_SET, "KEY.PATH=VALUE", 0, "override a key of the job", 2},
    {0}};

static const struct argp_option compare_options[] = {
    HELP,
    JSON,
    SET,
    DEEPSPEED,
    {"ps", KEY_COMPARED_PS, "LIST", 0, "numbers of ps, such as 1,2 (1)", 0},
    {"workers", KEY_COMPARED_WORKERS, "LIST", 0,
     "numbers of workers, such as 1,2,4 (2)", 0},
    {"steps", KEY_STEPS, "N", 0, "rounds of each run (the job's length)", 0},
    {"repeats", KEY_COMPARED_REPEATS, "N", 0,
     "runs of each kind, in turns; the median counts (3)", 0},
    {"limit", KEY_LIMIT, "SECONDS", 0, "that one run may take (600)", 0},
    LANE,
    {"link-gbits", KEY_COMPARED_LINK, "G", 0,
     "what a host's link passes each way, 10^9 bits/s", 0},
    {"latency-us", KEY_COMPARED_LATENCY, "US", 0, "between two hosts (50)", 0},
    {"csv", KEY_CSV, "FILE", 0, "write the table as CSV too", 0},
    {"plot", KEY_PLOT, "FILE", 0, "draw it, .svg or .png, through gnuplot", 0},
    {NULL, 0, NULL, 0, "Instead, by formulas, without a run:", 2},
    {"predict", KEY_PREDICT, NULL, 0, "and without a job", 2},
    {"params", KEY_PARAMS, "P", 0, "parameters of the model, such as 25.6M", 2},
    {"compute-ms", KEY_COMPUTE_MS, "MS", 0,
     "a worker's forward and backward pass (0)", 2},
    {"overlap", KEY_OVERLAP, "X", 0,
     "share of that beside which bytes may travel (2/3: the backward pass)", 2},
    {"input-ms", KEY_INPUT_MS, "MS", 0, "reading a step's samples (0)", 2},
    {"wire", KEY_WIRE, "FORMAT", 0, "float32 or bf16 (float32)", 2},
    {"clip", KEY_CLIP, NULL, 0, "clipped by the global norm", 2},
    {"update-gbytes", KEY_UPDATE, "G", 0,
     "10^9 bytes of float32 gradients a second that a process's update rule "
     "takes (no limit)",
     2},
    {"gpus-per-host", KEY_PER_HOST, "N", 0,
     "workers that share a host and its link (1)", 2},
    {"inner-gbits", KEY_INNER, "G", 0,
     "what a worker passes each way inside its host (no limit)", 2},
    {"vm", KEY_VM, "NAME", 0,
     "a cloud's machine: its link, devices and inner link", 2},
    {"target", KEY_TARGET, "X", 0,
     "efficiency to find the computing time for (0.875)", 2},
    {0}};

struct verb {
    const char *name, *arguments, *text;
    const struct argp_option *options;
    int min_arguments, max_arguments;
    const char *after; /* the flags, in its help; NULL: nothing */
};

static const struct verb verbs[OPTIONS_VERBS] = {
    [OPTIONS_RUN] = {"run", "[JOB.json]",
                     "Plays the role that the environment describes (flags, "
                     "TF_CONFIG, CLUSTER_SPEC; the ranks of torchrun, mpirun, "
                     "srun). Only the chief needs the job.",
                     run_options, 0, 1, LOOPS},
    [OPTIONS_LOCAL] = {"local", "JOB.json",
                       "Starts a whole cluster on this machine: a chief, ps "
                       "and workers, each a process of `capstan run`.",
                       local_options, 1, 1, LOOPS},
    [OPTIONS_LAUNCH] =
        {"launch", "COMMAND...",
         "Starts the processes of one node of a job, any command, each told "
         "its rank in the environment, as torch.distributed.launch does. Ends "
         "all when one fails.",
         launch_options, 1, 1,
         "What no flag says is taken from PET_*, MASTER_ADDR, MASTER_PORT, "
         "NODE_RANK, Open MPI's and Slurm's variables, where they are set."},
    [OPTIONS_CLUSTER] = {"cluster", "",
                         "Prints the cluster that the environment describes, "
                         "as one JSON object.",
                         cluster_options, 0, 0},
    [OPTIONS_CKPT] = {"ckpt", "ls|verify|export DIR [OUT]",
                      "Lists, checks or exports checkpoints.", ckpt_options, 2,
                      3},
    [OPTIONS_INFO] = {"info", "",
                      "Shows version, devices, collectives and libraries.",
                      info_options, 0, 0, LOOPS},
    [OPTIONS_BENCH] =
        {"bench", "[JOB.json]",
         "Measures how fast vectors move between a client and ps, with memcpy, "
         "a plain socket and bare libzmq beside it. Starts them all on this "
         "machine; or, with a cluster in the environment (flags, TF_CONFIG, "
         "CLUSTER_SPEC: a chief, ps, a worker), plays one part of it: give the "
         "same command, with the same flags, in each place. The worker prints.",
         bench_options, 0, 1, LOOPS},
    [OPTIONS_COMPARE] =
        {"compare", "[JOB.json]",
         "The same work by parameter server, synchronous and asynchronous, and "
         "by all-reduce: how fast each is, how far from what the network "
         "allows, what limits it, and from how many ps on the parameter server "
         "wins. With --predict by formulas alone.",
         compare_options, 0, 1, LOOPS},
};

struct reading {
    struct options *options;
    const struct verb *verb;
    struct failure *why;
    enum status status;
    int num_arguments;
};

static error_t wrong(struct reading *reading, const char *format,
                     const char *found) {
    if (!reading->status) {
        char text[512];
        snprintf(text, sizeof text, format, found);
        reading->status =
            status_fail(reading->why, STATUS_CONFIG,
                        "%s; `capstan %s --help` shows what there is", text,
                        reading->verb->name);
    }
    return EINVAL;
}

static error_t count(struct reading *reading, const char *text,
                     unsigned *number) {
    char *end;
    bool ps = number == &reading->options->num_ps;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno || *end || end == text || text[0] == '-' || value > 1024)
        return wrong(reading,
                     ps ? "--ps takes a count from 0 to 1024, not '%s'"
                        : "--workers takes a count from 0 to 1024, not '%s'",
                     text);
    *number = (unsigned)value;
    return 0;
}

static error_t step(struct reading *reading, const char *text) {
    char *end;
    errno = 0;
    reading->options->step = strtoull(text, &end, 10);
    reading->options->has_step = true;
    if (errno || *end || end == text || text[0] == '-')
        return wrong(reading, "--step takes a number, not '%s'", text);
    return 0;
}

static error_t seconds(struct reading *reading, const char *text) {
    char *end;
    reading->options->join_timeout = strtod(text, &end);
    if (*end || end == text || !(reading->options->join_timeout > 0))
        return wrong(reading, "--join-timeout takes seconds above 0, not '%s'",
                     text);
    return 0;
}

static error_t bench_flag(struct reading *reading, int key, const char *text) {
    char problem[256];
    if (key < KEY_SIZES || key > KEY_VERBOSE)
        return ARGP_ERR_UNKNOWN;
    if (bench_options_set(&reading->options->bench,
                          (enum bench_options_key)(key - KEY_SIZES), text,
                          problem, sizeof problem))
        return 0;
    return wrong(reading, "%s", problem);
}

static error_t simulate_flag(struct reading *reading, int key,
                             const char *text) {
    char problem[256];
    if (key < KEY_SIMULATE || key > KEY_PLACE)
        return ARGP_ERR_UNKNOWN;
    if (simulate_options_set(&reading->options->simulate,
                             (enum simulate_options_key)(key - KEY_SIMULATE),
                             text, problem, sizeof problem))
        return 0;
    return wrong(reading, "%s", problem);
}

static error_t launch_flag(struct reading *reading, int key, const char *text) {
    if (key == 'm')
        key = KEY_MODULE;
    if (key < KEY_NPROC || key > KEY_GRACE)
        return ARGP_ERR_UNKNOWN;
    launch_options_set(&reading->options->launch,
                       (enum launch_options_key)(key - KEY_NPROC), text);
    return 0;
}

static error_t compare_flag(struct reading *reading, int key,
                            const char *text) {
    char problem[256];
    if (key < KEY_COMPARED_PS || key > KEY_VM)
        return ARGP_ERR_UNKNOWN;
    if (compare_options_set(&reading->options->compare,
                            (enum compare_options_key)(key - KEY_COMPARED_PS),
                            text, problem, sizeof problem))
        return 0;
    return wrong(reading, "%s", problem);
}

static error_t lane(struct reading *reading, const char *text) {
    reading->options->lane = text;
    if (strcmp(text, "auto") && strcmp(text, "tcp"))
        return wrong(reading, "--lane takes auto or tcp, not '%s'", text);
    return 0;
}

static error_t gbits(struct reading *reading, const char *text) {
    char *end;
    double value = reading->options->link_gbits = strtod(text, &end);
    if (*end || end == text || !(value > 0 && value <= 1e5))
        return wrong(reading,
                     "--link-gbits takes 10^9 bits/s above 0 and up to 100000, "
                     "not '%s'",
                     text);
    return 0;
}

static error_t argument(struct reading *reading, char *text) {
    struct options *options = reading->options;
    if (reading->num_arguments == reading->verb->max_arguments)
        return wrong(reading, "'%s' is one word too many", text);
    int number = reading->num_arguments++;
    if (options->verb != OPTIONS_CKPT)
        options->job = text;
    else if (number == 0)
        options->action = text;
    else if (number == 1)
        options->dir = text;
    else
        options->out = text;
    return 0;
}

static error_t add_set(struct reading *reading, const char *text) {
    struct options *options = reading->options;
    if (options->num_sets == OPTIONS_MAX_SETS || !strchr(text, '='))
        return wrong(reading, "--set takes KEY.PATH=VALUE, not '%s'", text);
    options->sets[options->num_sets++] = text;
    return 0;
}

static error_t flag(struct options *options, int key, const char *text) {
    switch (key) {
    case KEY_JOB_NAME:
        options->flags.job_name = text;
        return 0;
    case KEY_TASK_INDEX:
        options->flags.task_index = text;
        return 0;
    case KEY_PS_HOSTS:
        options->flags.ps_hosts = text;
        return 0;
    case KEY_WORKER_HOSTS:
        options->flags.worker_hosts = text;
        return 0;
    case KEY_CHIEF_HOSTS:
        options->flags.chief_hosts = text;
        return 0;
    case KEY_NUM_PS:
        options->flags.num_ps = text;
        return 0;
    case KEY_LOCAL_RANK:
        options->flags.local_rank = text;
        return 0;
    case KEY_DISTRIBUTION:
        options->distribution = text;
        return 0;
    case KEY_INSTANCES:
        options->instances = text;
        return 0;
    case KEY_DEEPSPEED:
        options->deepspeed = text;
        return 0;
    case KEY_CHECKPOINT_DIR:
        options->checkpoint_dir = text;
        return 0;
    case KEY_FORMAT:
        options->format = text;
        return 0;
    case KEY_COORDINATE:
        options->coordinate = true;
        return 0;
    case KEY_STATE:
        options->with_state = true;
        return 0;
    case KEY_JSON:
        options->json = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void show_version(struct options *options) {
    options->shown = true;
    puts("capstan " VERSION_TEXT);
}

/* From here on every word is the command's. */
static error_t command(struct reading *reading, struct argp_state *state) {
    reading->num_arguments = 1;
    reading->options->launch.command = state->argv + state->next - 1;
    state->next = state->argc;
    return 0;
}

/* What was refused is the word before the next one, or among the letters of
 * that one. */
static error_t refused(struct reading *reading,
                       const struct argp_state *state) {
    const struct argp_option *options = reading->verb->options;
    char text[256] = "a flag that is not known";
    int next = state->next;
    if (!wrong_flag(options, state->argv[next - 1], text, sizeof text) &&
        next < state->argc)
        wrong_flag(options, state->argv[next], text, sizeof text);
    return wrong(reading, "%s", text);
}

static error_t parse(int key, char *text, struct argp_state *state) {
    struct reading *reading = state->input;
    struct options *options = reading->options;
    switch (key) {
    case KEY_HELP:
        options->shown = true;
        /* argp_state_help() is silent under ARGP_NO_ERRS. */
        argp_help(state->root_argp, stdout,
                  ARGP_HELP_USAGE | ARGP_HELP_DOC | ARGP_HELP_LONG,
                  state->name);
        return 0;
    case KEY_VERSION:
        show_version(options);
        return 0;
    case KEY_SET:
        return add_set(reading, text);
    case KEY_JOIN_TIMEOUT:
        return seconds(reading, text);
    case KEY_WAY:
        return lane(reading, text);
    case KEY_LINK:
        return gbits(reading, text);
    case KEY_PS:
        options->ps_given = true;
        return count(reading, text, &options->num_ps);
    case KEY_WORKERS:
        options->workers_given = true;
        return count(reading, text, &options->num_workers);
    case KEY_STEP:
        return step(reading, text);
    case ARGP_KEY_ARG:
        if (options->verb == OPTIONS_LAUNCH)
            return command(reading, state);
        return argument(reading, text);
    case ARGP_KEY_ERROR:
        return reading->status ? 0 : refused(reading, state);
    default:
        break;
    }
    error_t known = bench_flag(reading, key, text);
    if (known == ARGP_ERR_UNKNOWN)
        known = simulate_flag(reading, key, text);
    if (known == ARGP_ERR_UNKNOWN)
        known = launch_flag(reading, key, text);
    if (known == ARGP_ERR_UNKNOWN)
        known = compare_flag(reading, key, text);
    return known == ARGP_ERR_UNKNOWN ? flag(options, key, text) : known;
}

/* TEXT in lines of 80 columns, each after INDENT blanks. */
static void show_paragraph(FILE *out, const char *text, size_t indent) {
    const size_t width = 80 - indent;
    while (strlen(text) > width) {
        size_t length = width;
        while (length > 1 && text[length] != ' ')
            length--;
        fprintf(out, "%*s%.*s\n", (int)indent, "", (int)length, text);
        text += length + strspn(text + length, " ");
    }
    fprintf(out, "%*s%s\n", (int)indent, "", text);
}

static void show_verbs(FILE *out) {
    fprintf(out, "Usage: capstan VERB ...\n\n");
    for (int v = 0; v < OPTIONS_VERBS; v++) {
        const struct verb *verb = &verbs[v];
        fprintf(out, "  capstan %s%s%s\n", verb->name,
                *verb->arguments ? " " : "", verb->arguments);
        show_paragraph(out, verb->text, 8);
    }
    fprintf(out,
            "\n`capstan VERB --help` shows a verb's flags, `capstan --version` "
            "the release.\n");
}

static const struct verb *find_verb(const char *name) {
    for (int v = 0; v < OPTIONS_VERBS; v++)
        if (!strcmp(verbs[v].name, name))
            return &verbs[v];
    return NULL;
}

/* What of `capstan bench` goes together. */
static bool check_bench(const struct options *options, struct failure *why) {
    const struct simulate_options *simulate = &options->simulate;
    const char *wrong = NULL;
    if (!options->num_ps || !options->num_workers)
        wrong = "--ps and --workers take at least 1";
    else if (!simulate->on && (simulate->given || options->job ||
                               options->num_sets || options->num_workers > 1))
        wrong = "a job and the flags of a simulation go with --simulate";
    else if (simulate->on && !options->job == !simulate->bytes)
        wrong = "--simulate takes either JOB.json or --bytes N";
    if (wrong)
        status_fail(why, STATUS_CONFIG,
                    "%s; `capstan bench --help` shows what there is", wrong);
    return !wrong;
}

/* What of `capstan local` goes together. */
static bool check_counts(const struct options *options, struct failure *why) {
    bool distributed = options->distribution;
    const char *wrong = NULL;
    if (distributed && (options->ps_given || options->workers_given))
        wrong = "--distribution says how many processes there are: leave --ps "
                "and --workers out";
    else if (!distributed && (options->instances || options->flags.num_ps))
        wrong = "--instances and --num-ps go with --distribution";
    if (wrong)
        status_fail(why, STATUS_CONFIG,
                    "%s; `capstan local --help` shows what there is", wrong);
    return !wrong;
}

static bool check_compare(const struct options *options, struct failure *why) {
    const char *wrong = compare_options_wrong(&options->compare, options->job);
    if (!wrong && options->compare.predict && options->num_sets)
        wrong = "--set changes a job; --predict has none";
    if (wrong)
        status_fail(why, STATUS_CONFIG,
                    "%s; `capstan compare --help` shows what there is", wrong);
    return !wrong;
}

static enum status read_verb(struct options *options, const struct verb *verb,
                             int argc, char **argv, struct failure *why) {
    struct reading reading = {.options = options, .verb = verb, .why = why};
    char name[64], text[1024];
    struct argp argp = {verb->options, parse, verb->arguments, text, NULL,
                        NULL,          NULL};
    snprintf(text, sizeof text, "%s\v%s", verb->text,
             verb->after ? verb->after : "");
    snprintf(name, sizeof name, "capstan %s", verb->name);
    argv[0] = name;
    unsigned flags = ARGP_NO_EXIT | ARGP_NO_HELP | ARGP_NO_ERRS;
    if (options->verb == OPTIONS_LAUNCH)
        flags |= ARGP_IN_ORDER;
    error_t error = argp_parse(&argp, argc, argv, flags, NULL, &reading);
    argv[0] = NULL;
    if (reading.status || options->shown)
        return reading.status;
    if (error)
        return status_fail(why, STATUS_CONFIG,
                           "`capstan %s --help` shows what there is",
                           verb->name);
    if (options->verb == OPTIONS_BENCH && !check_bench(options, why))
        return STATUS_CONFIG;
    if (options->verb == OPTIONS_LOCAL && !check_counts(options, why))
        return STATUS_CONFIG;
    if (options->verb == OPTIONS_COMPARE && !check_compare(options, why))
        return STATUS_CONFIG;
    if (reading.num_arguments < verb->min_arguments)
        return status_fail(why, STATUS_CONFIG,
                           "capstan %s takes %s; `capstan %s --help` tells "
                           "more",
                           verb->name, verb->arguments, verb->name);
    return STATUS_OK;
}

enum status options_read(struct options *options, int argc, char **argv,
                         struct failure *why) {
    *options = (struct options){.num_ps = 1, .num_workers = 1};
    bench_options_open(&options->bench);
    simulate_options_open(&options->simulate);
    compare_options_open(&options->compare);
    if (argc < 2) {
        show_verbs(stderr);
        return status_fail(why, STATUS_CONFIG, "no verb");
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ||
        !strcmp(argv[1], "help")) {
        options->shown = true;
        show_verbs(stdout);
        return STATUS_OK;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        show_version(options);
        return STATUS_OK;
    }
    const struct verb *verb = find_verb(argv[1]);
    if (!verb)
        return status_fail(why, STATUS_CONFIG,
                           "no verb '%s'; `capstan --help` lists them",
                           argv[1]);
    options->verb = (enum options_verb)(verb - verbs);
    options->words = argv + 2;
    return read_verb(options, verb, argc - 1, argv + 1, why);
}
