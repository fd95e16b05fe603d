/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/cli_command.h"

#include <string.h>

_Static_assert(CLI_COMMAND_KEY_VM - CLI_COMMAND_KEY_COMPARED_PS ==
                   COMPARE_OPTIONS_VM,
               "flags of a comparison in the order of their keys");

_Static_assert(CLI_COMMAND_KEY_PLACE - CLI_COMMAND_KEY_SIMULATE ==
                   SIMULATE_OPTIONS_PLACE,
               "flags of a simulation in the order of their keys");

_Static_assert(CLI_COMMAND_KEY_GRACE - CLI_COMMAND_KEY_NPROC ==
                   LAUNCH_OPTIONS_GRACE,
               "flags of a launch in the order of their keys");

_Static_assert(CLI_COMMAND_KEY_VERBOSE - CLI_COMMAND_KEY_SIZES ==
                   BENCH_OPTIONS_VERBOSE,
               "flags of a bench in the order of their keys");

#define FLAG(name, key, value, text, group)                                    \
    { name, CLI_COMMAND_KEY_##key, value, 0, text, group }
#define HELP                                                                   \
    FLAG("help", HELP, NULL, "show this text", -1),                            \
        FLAG("version", VERSION, NULL, "show the release and its commit", -1)
#define JSON                                                                   \
    FLAG("json", JSON, NULL, "print one JSON object on standard output", 0)
#define SET                                                                    \
    FLAG("set", SET, "KEY.PATH=VALUE",                                         \
         "override a key of the job (a JSON value, else a string); "           \
         "repeatable",                                                         \
         0)
#define LANE                                                                   \
    FLAG("lane", TRANSPORT, "LANE",                                            \
         "auto: between processes on one host over shared memory; tcp: never " \
         "(auto)",                                                             \
         0)
#define DEEPSPEED                                                              \
    FLAG("deepspeed_config", DEEPSPEED, "FILE",                                \
         "a DeepSpeed configuration to fill in what the job leaves out", 0)
#define LINK                                                                   \
    FLAG("link-gbits", LINK, "G",                                              \
         "chief: what the network passes each way a host, 10^9 bits/s (else "  \
         "measured where every process has its own host)",                     \
         0)
#define CLUSTER_FLAGS                                                          \
    FLAG("job_name", JOB_NAME, "NAME", "chief, worker, ps or evaluator", 1),   \
        FLAG("task_index", TASK_INDEX, "N", "which one of them this is", 1),   \
        FLAG("ps_hosts", PS_HOSTS, "HOST:PORT,...", "the ps", 1),              \
        FLAG("worker_hosts", WORKER_HOSTS, "HOST:PORT,...", "the workers", 1), \
        FLAG("chief_hosts", CHIEF_HOSTS, "HOST:PORT", "the chief", 1),         \
        FLAG("num-ps", NUM_PS, "N",                                            \
             "under torch, MPI, Slurm: the last N ranks are ps (0)", 1),       \
        {"num_ps", 0, NULL, OPTION_ALIAS, NULL, 1},                            \
        FLAG("local_rank", LOCAL_RANK, "N", "the same as LOCAL_RANK", 1),      \
        {"local-rank", 0, NULL, OPTION_ALIAS, NULL, 1},                        \
        FLAG("alone", ALONE, NULL,                                             \
             "nobody else takes part, whatever launchers have set", 1)

static const struct argp_option run_options[] = {
    HELP,
    JSON,
    SET,
    DEEPSPEED,
    FLAG("join-timeout", JOIN_TIMEOUT, "SECONDS",
         "how long to wait for the chief (600)", 0),
    FLAG("checkpoint-dir", CHECKPOINT_DIR, "DIR",
         "evaluator: the checkpoint directory to follow", 0),
    FLAG("coordinate", COORDINATE, NULL,
         "the chief does not train unless the job says so", 0),
    LANE,
    LINK,
    CLUSTER_FLAGS,
    {0}};

static const struct argp_option local_options[] = {
    HELP,
    JSON,
    SET,
    DEEPSPEED,
    FLAG("ps", PS, "N", "how many ps (1)", 0),
    FLAG("workers", WORKERS, "N", "how many workers (1)", 0),
    FLAG("distribution", DISTRIBUTION, "JSON",
         "instead: what this block of an Azure ML job starts (type tensorflow, "
         "pytorch or mpi)",
         0),
    FLAG("instances", INSTANCES, "N", "of that job (1)", 0),
    FLAG("num-ps", NUM_PS, "N",
         "with pytorch or mpi: the last N ranks are ps (0)", 0),
    LANE,
    LINK,
    {0}};

#define ALSO(name)                                                             \
    { name, 0, NULL, OPTION_ALIAS, NULL, 0 }
static const struct argp_option launch_options[] = {
    HELP,
    FLAG("nproc_per_node", NPROC, "N",
         "processes to start here (1); auto, gpu or cpu: one for each", 0),
    ALSO("nproc-per-node"),
    FLAG("nnodes", NNODES, "N", "nodes of the job (1)", 0),
    FLAG("node_rank", NODE_RANK, "N", "which of them this is (0)", 0),
    ALSO("node-rank"),
    FLAG("master_addr", ADDR, "HOST", "where rank 0 is (127.0.0.1)", 0),
    ALSO("master-addr"),
    FLAG("master_port", PORT, "PORT", "its port (29500)", 0),
    ALSO("master-port"),
    FLAG("use_env", USE_ENV, NULL,
         "do not put --local_rank=N behind the command: LOCAL_RANK says it", 0),
    ALSO("use-env"),
    FLAG("no_python", NO_PYTHON, NULL,
         "the command is no Python script, and takes no --local_rank", 0),
    ALSO("no-python"),
    FLAG("module", MODULE, NULL, "the command is a module of Python", 0),
    {NULL, 'm', NULL, OPTION_ALIAS, NULL, 0},
    FLAG("grace", GRACE, "SECONDS",
         "from SIGTERM to SIGKILL, when one has failed or a signal came (40)",
         0),
    {0}};
#undef ALSO

static const struct argp_option cluster_options[] = {
    HELP, JSON, CLUSTER_FLAGS, {0}};

static const struct argp_option ckpt_command_options[] = {
    HELP,
    JSON,
    FLAG("step", STEP, "N",
         "that one alone (all; export: the newest that verifies)", 0),
    FLAG("format", FORMAT, "FORMAT",
         "export: safetensors or npz (by the ending of OUT)", 0),
    FLAG("state", STATE, NULL, "export: the optimiser's state too", 0),
    {0}};

static const struct argp_option export_options[] = {
    HELP,
    JSON,
    FLAG("step", STEP, "N", "that one (the newest that verifies)", 0),
    FLAG("format", FORMAT, "FORMAT",
         "safetensors or npz (by the ending of OUT)", 0),
    FLAG("state", STATE, NULL,
         "the optimiser's state too, as layer0.weight.momentum_buffer", 0),
    {0}};

static const struct argp_option ckpt_read_options[] = {
    HELP, JSON, FLAG("step", STEP, "N", "that one alone (all)", 0), {0}};

/* What comes after `capstan ckpt`. */
static const struct cli_command ckpt_subcommands[] = {
    {"ckpt ls", "DIR",
     "Lists the checkpoints in DIR, a job's checkpoint.dir, oldest first: step, "
     "epochs and samples behind it, size, files, whether it is a run's last, "
     "age. Damaged ones stand below, with what is wrong, and those that have no "
     "manifest, as incomplete. Nothing is read but manifests.",
     ckpt_read_options, 2, 2, NULL, NULL},
    {"ckpt verify", "DIR",
     "Reads every checkpoint in DIR, a job's checkpoint.dir, whole, and checks "
     "each file against the size and the hash that its manifest has. Exit code "
     "1 when one fails, or there is none. Files that another host holds are "
     "counted and not checked; a step without a manifest is named and fails "
     "nothing.",
     ckpt_read_options, 2, 2, NULL, NULL},
    {"ckpt export", "DIR OUT",
     "Writes the weights of one checkpoint in DIR, a job's checkpoint.dir, to "
     "the file OUT: the newest that verifies, or --step. PyTorch and others "
     "read them by name, such as layer0.weight.",
     export_options, 3, 3, NULL, NULL},
    {0}};

static const struct argp_option info_options[] = {HELP, JSON, {0}};

#define LOOPS                                                                  \
    "CAPSTAN_CPU=plain, avx2 or avx512 in the environment: the variant of "    \
    "the update rules' loops, else the best that the processor has. All give " \
    "the same bits."

#define EXITS                                                                  \
    "Exit codes: 0 done; 1 failed, and a retry meets it again; 2 bad "         \
    "configuration; 129, 130, 143 ended by SIGHUP, SIGINT, SIGTERM here; 137 " \
    "killed; 138 a peer or a machine failed: worth a retry. SIGUSR1 at the "   \
    "chief or at local: one checkpoint, and the run goes on."

static const struct argp_option bench_options[] = {
    HELP,
    JSON,
    FLAG("sizes", SIZES, "LIST",
         "vectors to move, such as 64,4K,1M (64,4K,64K,1M,16M,64M); K is 1024",
         0),
    FLAG("lane", LANE, "LANE",
         "tcp, shm (shared memory, same host) or auto (auto)", 0),
    FLAG("ps", PS, "N", "how many ps (1)", 0),
    FLAG("repeats", REPEATS, "N",
         "laps of each figure, in turns; the median counts (5)", 0),
    FLAG("seconds", SECONDS, "S", "measuring time of each figure (0.3)", 0),
    FLAG(
        "requests", REQUESTS, "N",
        "instead: push the first size N times, and tell the ps's memory before "
        "and after",
        0),
    FLAG("batched", BATCHED, NULL,
         "with --requests: vectors of 64 bytes, 1024 in one message", 0),
    FLAG("checkpoint-dir", CHECKPOINT_DIR, "DIR",
         "write a checkpoint there at the end", 0),
    FLAG("verbose", VERBOSE, NULL, "show what every process says", 0),
    CLUSTER_FLAGS,
    {NULL, 0, NULL, 0, "Instead, a cluster in simulated time:", 2},
    FLAG("simulate", SIMULATE, NULL,
         "how long a round takes with --ps and --workers, JOB.json's model", 2),
    FLAG("sweep", SWEEP, NULL, "1 to 256 workers by 1 to 64 ps", 2),
    FLAG("workers", WORKERS, "N", "how many workers (1)", 2),
    FLAG("link-gbits", LINK_GBITS, "G", "a host's link, each way, Gbit/s (1)",
         2),
    FLAG("latency-us", LATENCY, "US", "between two hosts (50)", 2),
    FLAG("cores", CORES, "N", "of a host (as here)", 2),
    FLAG("place", PLACE, "PLACE",
         "apart (a host each), pairs (a worker and a ps a host) or one (apart)",
         2),
    FLAG("share-cores", SHARE_CORES, NULL,
         "all hosts are one machine with these cores", 2),
    FLAG("bytes", BYTES, "N", "a flat vector, such as 100M, and no job", 2),
    FLAG("batch", BATCH, "N", "samples of a micro batch (the job's)", 2),
    FLAG("compute", COMPUTE, "S",
         "seconds of a step's computing (measured; with --bytes 0)", 2),
    FLAG("jitter", JITTER, "X",
         "standard deviation of that, as a share of it (0.05)", 2),
    FLAG("overhead", OVERHEAD, "X",
         "times the processor time of messages and updates measured here (1)",
         2),
    FLAG("group", GROUP, "N", "bytes of blocks in a message (as a run has it)",
         2),
    FLAG("rounds", ROUNDS, "N", "to measure (20; a sweep: at most 4)", 2),
    FLAG("seed", SEED, "N", "of the jitter (1)", 2),
    FLAG("set", SET, "KEY.PATH=VALUE", "override a key of the job", 2),
    {0}};

static const struct argp_option compare_options[] = {
    HELP,
    JSON,
    SET,
    DEEPSPEED,
    FLAG("ps", COMPARED_PS, "LIST", "numbers of ps, such as 1,2 (1)", 0),
    FLAG("workers", COMPARED_WORKERS, "LIST",
         "numbers of workers, such as 1,2,4 (2)", 0),
    FLAG("steps", STEPS, "N", "rounds of each run (the job's length)", 0),
    FLAG("repeats", COMPARED_REPEATS, "N",
         "runs of each kind, in turns; the median counts (3)", 0),
    FLAG("limit", LIMIT, "SECONDS", "that one run may take (600)", 0),
    LANE,
    FLAG("link-gbits", COMPARED_LINK, "G",
         "what a host's link passes each way, 10^9 bits/s", 0),
    FLAG("latency-us", COMPARED_LATENCY, "US", "between two hosts (50)", 0),
    FLAG("csv", CSV, "FILE", "write the table as CSV too", 0),
    FLAG("plot", PLOT, "FILE", "draw it, .svg or .png, through gnuplot", 0),
    {NULL, 0, NULL, 0, "Instead, by formulas, without a run:", 2},
    FLAG("predict", PREDICT, NULL, "and without a job", 2),
    FLAG("params", PARAMS, "P", "parameters of the model, such as 25.6M", 2),
    FLAG("compute-ms", COMPUTE_MS, "MS",
         "a worker's forward and backward pass (0)", 2),
    FLAG("overlap", OVERLAP, "X",
         "share of that beside which bytes may travel (2/3: the backward pass)",
         2),
    FLAG("input-ms", INPUT_MS, "MS", "reading a step's samples (0)", 2),
    FLAG("wire", WIRE, "FORMAT", "float32 or bf16 (float32)", 2),
    FLAG("clip", CLIP, NULL, "clipped by the global norm", 2),
    FLAG(
        "update-gbytes", UPDATE, "G",
        "10^9 bytes of float32 gradients a second that a process's update rule "
        "takes (no limit)",
        2),
    FLAG("gpus-per-host", PER_HOST, "N",
         "workers that share a host and its link (1)", 2),
    FLAG("inner-gbits", INNER, "G",
         "what a worker passes each way inside its host (no limit)", 2),
    FLAG("vm", VM, "NAME",
         "a cloud's machine: its link, devices and inner link (--vm list shows "
         "names)",
         2),
    FLAG("target", TARGET, "X",
         "efficiency to find the computing time for (0.875)", 2),
    {0}};

static const struct cli_command commands[CLI_COMMANDS] = {
    [CLI_COMMAND_RUN] =
        {"run", "[JOB.json]",
         "Plays the role that the environment describes (flags, "
         "TF_CONFIG, CLUSTER_SPEC; the ranks of torchrun, mpirun, "
         "srun). Only the chief needs the job. With \"compare\" "
         "in it the cluster trains by ps and by all-reduce in "
         "turns, and the chief prints what `capstan compare` "
         "does.",
         run_options, 0, 1, EXITS "\n\n" LOOPS},
    [CLI_COMMAND_LOCAL] =
        {"local", "JOB.json",
         "Starts a whole cluster on this machine: a chief, ps "
         "and workers, each a process of `capstan run`.",
         local_options, 1, 1, EXITS "\n\n" LOOPS},
    [CLI_COMMAND_LAUNCH] =
        {"launch", "COMMAND...",
         "Starts the processes of one node of a job, any command, each told "
         "its rank in the environment, as torch.distributed.launch does. Ends "
         "all when one fails.",
         launch_options, 1, 1,
         "What no flag says is taken from PET_*, MASTER_ADDR, MASTER_PORT, "
         "NODE_RANK, Open MPI's and Slurm's variables, where they are set."},
    [CLI_COMMAND_CLUSTER] =
        {"cluster", "",
         "Prints the cluster that the environment describes, "
         "as one JSON object.",
         cluster_options, 0, 0},
    [CLI_COMMAND_CKPT] =
        {"ckpt", "ls|verify|export DIR [OUT]",
         "ls lists the checkpoints in DIR, a job's "
         "checkpoint.dir; verify reads all of each and checks "
         "it; export writes the weights of one to OUT.",
         ckpt_command_options, 2, 3,
         "`capstan ckpt ls --help`, `verify --help` and `export "
         "--help` tell more.",
         ckpt_subcommands},
    [CLI_COMMAND_INFO] =
        {"info", "",
         "Shows version, commit, devices, collectives and libraries.",
         info_options, 0, 0, LOOPS},
    [CLI_COMMAND_BENCH] =
        {"bench", "[JOB.json]",
         "Measures how fast vectors move between a client and ps, with memcpy, "
         "a plain socket and bare libzmq beside it. Starts them all on this "
         "machine; or, with a cluster in the environment (flags, TF_CONFIG, "
         "CLUSTER_SPEC: a chief, ps, a worker), plays one part of it: give the "
         "same command, with the same flags, in each place. The worker prints.",
         bench_options, 0, 1, LOOPS},
    [CLI_COMMAND_COMPARE] =
        {"compare", "[JOB.json]",
         "The same work by parameter server, synchronous and asynchronous, and "
         "by all-reduce: how fast each is, how far from what the network "
         "allows, what limits it, and from how many ps on the parameter server "
         "wins. With --predict by formulas alone. Runs are made on this "
         "machine; across hosts put \"compare\" into the job of `capstan run`.",
         compare_options, 0, 1, LOOPS},
};

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

void cli_command_show_all(FILE *out) {
    fprintf(out, "Usage: capstan VERB ...\n\n");
    for (int v = 0; v < CLI_COMMANDS; v++) {
        const struct cli_command *cli_command = &commands[v];
        fprintf(out, "  capstan %s%s%s\n", cli_command->name,
                *cli_command->arguments ? " " : "", cli_command->arguments);
        show_paragraph(out, cli_command->text, 8);
    }
    fprintf(out,
            "\n`capstan VERB --help` shows a verb's flags, `capstan --version` "
            "the release\nand its commit.\n");
}

const struct cli_command *cli_command_subcommand(
    const struct cli_command *cli_command, const char *word) {
    for (const struct cli_command *subcommand = cli_command->subcommands;
         subcommand && subcommand->name; subcommand++)
        if (!strcmp(strrchr(subcommand->name, ' ') + 1, word))
            return subcommand;
    return NULL;
}

const struct cli_command *cli_command_find(const char *name,
                                           enum cli_command_id *number) {
    for (int v = 0; v < CLI_COMMANDS; v++) {
        if (strcmp(commands[v].name, name))
            continue;
        *number = (enum cli_command_id)v;
        return &commands[v];
    }
    return NULL;
}
