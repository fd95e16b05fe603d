/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/cli_command.h"

#include "proto/config/cli/legacy_options.h"

#include <string.h>

_Static_assert(CLI_COMMAND_KEY_VM - CLI_COMMAND_KEY_COMPARED_PS ==
                   COMPARE_OPTIONS_VM,
               "flags of a comparison in the order of their keys");

_Static_assert(CLI_COMMAND_KEY_PLACE - CLI_COMMAND_KEY_SIMULATE ==
                   SIMULATE_OPTIONS_PLACE,
               "flags of a simulation in the order of their keys");

_Static_assert(CLI_COMMAND_KEY_REPLICAS_TO_AGGREGATE -
                       CLI_COMMAND_KEY_TRAIN_STEPS ==
                   LEGACY_OPTIONS_REPLICAS_TO_AGGREGATE,
               "flags of scripts in the order of their keys");

_Static_assert(CLI_COMMAND_KEY_GRACE - CLI_COMMAND_KEY_NPROC ==
                   LAUNCH_OPTIONS_GRACE,
               "flags of a launch in the order of their keys");

_Static_assert(CLI_COMMAND_KEY_VERBOSE - CLI_COMMAND_KEY_SIZES ==
                   BENCH_OPTIONS_VERBOSE,
               "flags of a bench in the order of their keys");

/* A table lists the flags in the order of the help: a flag stands after those
 * that its text mentions. argp sorts only the usage line. */
#define FLAG(name, key, value, text, group)                                    \
    { name, CLI_COMMAND_KEY_##key, value, 0, text, group }
#define ALSO(name, group)                                                      \
    { name, 0, NULL, OPTION_ALIAS, NULL, group }
#define HEADING(text, group)                                                   \
    { NULL, 0, NULL, 0, text, group }
#define HELP                                                                   \
    FLAG("help", HELP, NULL, "show this text", -1),                            \
        FLAG("version", VERSION, NULL, "show the release and its commit", -1)
#define JSON                                                                   \
    FLAG("json", JSON, NULL,                                                   \
         "print one JSON object, and nothing else, on standard output", 0)
#define LOG_FORMAT                                                             \
    FLAG("log-format", LOG_FORMAT, "FORMAT",                                   \
         "text or json: how each line of the log on standard error is "        \
         "written; json is the same as CAPSTAN_JSON_LOG=1 (default: text)",    \
         0),                                                                   \
        FLAG("json-log", JSON_LOG, NULL, "the same as --log-format json", 0)
#define SET                                                                    \
    FLAG("set", SET, "KEY.PATH=VALUE",                                         \
         "override a key of the job; VALUE is read as JSON, else as a "        \
         "string; repeatable",                                                 \
         0)
#define LANE                                                                   \
    FLAG("lane", TRANSPORT, "LANE",                                            \
         "auto: processes on one host use shared memory; tcp: they use TCP "   \
         "(default: auto)",                                                    \
         0)
#define METRICS(ports)                                                         \
    FLAG("metrics-port", METRICS_PORT, "PORT",                                 \
         "serve /healthz and /status over HTTP on this port of 127.0.0.1, or " \
         "on ADDRESS:PORT; 0: off" ports "; the same as CAPSTAN_METRICS_PORT " \
         "(default: 0)",                                                       \
         0)
#define INTERFACE(otherwise)                                                   \
    FLAG("interface", INTERFACE, "NAME|CIDR",                                  \
         "the network for all traffic: an interface, such as ib0, or the one " \
         "with an address in a CIDR, such as 10.1.0.0/16; the same as "        \
         "CAPSTAN_INTERFACE (default: " otherwise ")",                         \
         0)
#define DEEPSPEED                                                              \
    FLAG("deepspeed_config", DEEPSPEED, "FILE",                                \
         "read keys that the job does not have from this DeepSpeed "           \
         "configuration",                                                      \
         0)
#define CLUSTER_FLAGS                                                          \
    HEADING("The cluster, where the environment does not describe it:", 1),    \
        FLAG("chief_hosts", CHIEF_HOSTS, "HOST:PORT", "address of the chief",  \
             1),                                                               \
        FLAG("ps_hosts", PS_HOSTS, "HOST:PORT,...", "addresses of the ps", 1), \
        FLAG("worker_hosts", WORKER_HOSTS, "HOST:PORT,...",                    \
             "addresses of the workers", 1),                                   \
        FLAG("job_name", JOB_NAME, "NAME",                                     \
             "role of this process: chief, worker, ps or evaluator", 1),       \
        FLAG("task_index", TASK_INDEX, "N",                                    \
             "index of this process in its role, from 0", 1),                  \
        FLAG("num-ps", NUM_PS, "N",                                            \
             "where a launcher gives ranks (torchrun, MPI, Slurm, ...): the "  \
             "last N are ps (default: 0)",                                     \
             1),                                                               \
        ALSO("num_ps", 1),                                                     \
        FLAG("local_rank", LOCAL_RANK, "N",                                    \
             "rank of this process on its host, as LOCAL_RANK", 1),            \
        ALSO("local-rank", 1),                                                 \
        FLAG("alone", ALONE, NULL,                                             \
             "use no cluster; ignore the variables of launchers", 1)

#define SCRIPT_FLAGS                                                           \
    HEADING("Flags of TensorFlow's scripts, each the same as --set of a key:", \
            2),                                                                \
        FLAG("train_steps", TRAIN_STEPS, "N", "steps=N", 2),                   \
        FLAG("epochs", EPOCHS, "N", "epochs=N", 2),                            \
        FLAG("batch_size", BATCH_SIZE, "N",                                    \
             "train_micro_batch_size_per_gpu=N", 2),                           \
        FLAG("learning_rate", LEARNING_RATE, "RATE",                           \
             "optimizer.params.lr=RATE", 2),                                   \
        FLAG("data_dir", DATA_DIR, "DIR", "data.dir=DIR", 2),                  \
        FLAG("model_dir", MODEL_DIR, "DIR", "checkpoint.dir=DIR", 2),          \
        FLAG("num_gpus", NUM_GPUS, "N", "devices=N; 0: device=cpu", 2),        \
        {"sync_replicas",                                                      \
         CLI_COMMAND_KEY_SYNC_REPLICAS,                                        \
         "BOOL",                                                               \
         OPTION_ARG_OPTIONAL,                                                  \
         "strategy.staleness=0, or with false \"inf\"",                        \
         2},                                                                   \
        FLAG("nosync_replicas", NOSYNC_REPLICAS, NULL,                         \
             "strategy.staleness=\"inf\"", 2),                                 \
        FLAG("replicas_to_aggregate", REPLICAS_TO_AGGREGATE, "N",              \
             "refused: a synchronous step takes all gradients", 2)

static const struct argp_option run_options[] = {
    HELP,
    SET,
    DEEPSPEED,
    JSON,
    LOG_FORMAT,
    FLAG("coordinate", COORDINATE, NULL,
         "the chief does not train unless the job says so", 0),
    FLAG("checkpoint-dir", CHECKPOINT_DIR, "DIR",
         "evaluator: the checkpoint directory to evaluate", 0),
    FLAG("join-timeout", JOIN_TIMEOUT, "SECONDS",
         "time to wait for the chief (default: 600)", 0),
    LANE,
    METRICS(""),
    INTERFACE("every interface"),
    FLAG("link-gbits", LINK, "G",
         "chief: bandwidth of a host's link in each direction, 10^9 bits/s "
         "(default: measured if every process has its own host)",
         0),
    CLUSTER_FLAGS,
    SCRIPT_FLAGS,
    {0}};

static const struct argp_option local_options[] = {
    HELP,
    FLAG("ps", PS, "N", "number of ps (default: 1)", 0),
    FLAG("workers", WORKERS, "N", "number of workers (default: 1)", 0),
    SET,
    DEEPSPEED,
    JSON,
    LOG_FORMAT,
    LANE,
    METRICS("; the chief's, and the other processes have the ports after it"),
    INTERFACE("lo, which no other machine reaches"),
    FLAG("link-gbits", LINK, "G",
         "bandwidth, 10^9 bits/s in each direction, with which the summary "
         "computes what the network would allow if each process had a host of "
         "its own",
         0),
    HEADING("The processes of an Azure ML job, instead of --ps and --workers:",
            1),
    FLAG("distribution", DISTRIBUTION, "FILE|JSON",
         "the job's YAML file, of SDK v1 or v2, or its distribution block, of "
         "type tensorflow, pytorch or mpi. Without JOB.json and COMMAND each "
         "process runs the file's command, in its code folder",
         1),
    FLAG("input", INPUT, "NAME=VALUE",
         "value or local path of an input of that command (default: the "
         "file's)",
         1),
    FLAG("instances", INSTANCES, "N",
         "instances of the job (default: those of the file, else 1)", 1),
    FLAG("num-ps", NUM_PS, "N",
         "with pytorch or mpi: the last N ranks are ps (default: 0)", 1),
    SCRIPT_FLAGS,
    {0}};

static const struct argp_option launch_options[] = {
    HELP,
    FLAG("nnodes", NNODES, "N", "number of nodes (default: 1)", 0),
    FLAG("node_rank", NODE_RANK, "N", "rank of this node, from 0 (default: 0)",
         0),
    ALSO("node-rank", 0),
    FLAG("nproc_per_node", NPROC, "N",
         "processes to start on this node; gpu: one for each GPU; cpu: one for "
         "each processor; auto: gpu if there is one, else cpu (default: 1)",
         0),
    ALSO("nproc-per-node", 0),
    FLAG("master_addr", ADDR, "HOST", "host of rank 0 (default: 127.0.0.1)", 0),
    ALSO("master-addr", 0),
    FLAG("master_port", PORT, "PORT", "port of rank 0 (default: 29500)", 0),
    ALSO("master-port", 0),
    FLAG("module", MODULE, NULL, "the command is a Python module", 0),
    {NULL, 'm', NULL, OPTION_ALIAS, NULL, 0},
    FLAG("use_env", USE_ENV, NULL,
         "start the command as it is; without this flag --local_rank=N is "
         "appended to it",
         0),
    ALSO("use-env", 0),
    FLAG("no_python", NO_PYTHON, NULL,
         "as --use_env, and start a command that ends in .py directly, not "
         "with python3",
         0),
    ALSO("no-python", 0),
    FLAG("grace", GRACE, "SECONDS",
         "time from SIGTERM to SIGKILL after a process fails or a "
         "signal arrives (default: 40)",
         0),
    LOG_FORMAT,
    {0}};

static const struct argp_option cluster_options[] = {
    HELP,
    JSON,
    FLAG("explain", EXPLAIN, NULL,
         "say for people which source counts and why, and list every role", 0),
    FLAG("check", CHECK, NULL,
         "connect to every role and name the addresses that do not answer", 0),
    CLUSTER_FLAGS,
    {0}};

static const struct argp_option ckpt_command_options[] = {
    HELP,
    JSON,
    FLAG("step", STEP, "N",
         "only this step (default: all; export: the newest that verifies)", 0),
    FLAG("format", FORMAT, "FORMAT",
         "export: safetensors or npz, of a table npz or csv (default: by the "
         "ending of OUT)",
         0),
    FLAG("state", STATE, NULL,
         "export: also the optimizer state; not with --table", 0),
    FLAG("table", TABLE, "NAME",
         "export: the rows of this table, to npz or csv", 0),
    {0}};

static const struct argp_option export_options[] = {
    HELP,
    JSON,
    FLAG("step", STEP, "N", "this step (default: the newest that verifies)", 0),
    FLAG("format", FORMAT, "FORMAT",
         "safetensors or npz, of a table npz or csv (default: by the ending of "
         "OUT)",
         0),
    FLAG("state", STATE, NULL,
         "also the optimizer state, as layer0.weight.momentum_buffer; not with "
         "--table",
         0),
    FLAG("table", TABLE, "NAME",
         "the rows of this table, ascending by id, not the tensors", 0),
    {0}};

static const struct argp_option ckpt_read_options[] = {
    HELP,
    JSON,
    FLAG("step", STEP, "N", "only this step (default: all)", 0),
    {0}};

#define SHORT_EXITS                                                            \
    "Exit codes: 0 done; 1 failed; 2 bad configuration or command line."

#define CKPT_EXITS(missing)                                                    \
    "Exit codes: 0 done; 1 failed, or there is no such " missing               \
    "; 2 bad configuration or command line."

/* The subcommands of `capstan ckpt`. */
static const struct cli_command ckpt_subcommands[] = {
    {"ckpt ls", "DIR", "Lists the checkpoints in DIR.",
     "DIR is the job's checkpoint.dir. The list is oldest first: step, epochs "
     "and samples trained, size, files, whether it is the last of a run, age. "
     "Damaged checkpoints follow with the reason, then step directories "
     "without a manifest, as incomplete. Only manifests are read.",
     ckpt_read_options, 2, 2, CKPT_EXITS("folder or step"),
     "capstan ckpt ls run/checkpoint", NULL},
    {"ckpt verify", "DIR", "Reads and checks the checkpoints in DIR.",
     "DIR is the job's checkpoint.dir. Each file is read whole and compared "
     "with the size and the hash in its manifest. The exit code is 1 if a "
     "checkpoint fails or there is none. Files held by another host are "
     "counted but not checked. A step without a manifest is reported and does "
     "not count as a failure.",
     ckpt_read_options, 2, 2, NULL, "capstan ckpt verify run/checkpoint", NULL},
    {"ckpt export", "DIR OUT",
     "Writes the weights of a checkpoint in DIR to the file OUT.",
     "DIR is the job's checkpoint.dir. The tensors have PyTorch's names, such "
     "as layer0.weight.",
     export_options, 3, 3, CKPT_EXITS("folder, step or table"),
     "capstan ckpt export run/checkpoint model.safetensors\n"
     "capstan ckpt export --step 500 --state run/checkpoint model.npz\n"
     "capstan ckpt export --table e1 run/checkpoint e1.csv",
     NULL},
    {0}};

static const struct argp_option data_options[] = {
    HELP,
    FLAG("rows", ROWS, "N", "peek: samples to print (default: 5)", 0),
    SET,
    JSON,
    {0}};

static const struct argp_option data_bench_options[] = {HELP, SET, JSON, {0}};

/* The subcommands of `capstan data`. */
static const struct cli_command data_subcommands[] = {
    {"data peek", "JOB.json",
     "Prints samples as the model of a job reads them.",
     "The first samples of data.train: file and line, the columns that the "
     "features read, the numbers that they give, the label. Of a record that "
     "cannot be read, what is wrong.",
     data_options, 2, 2, SHORT_EXITS,
     "capstan data peek job.json\n"
     "capstan data peek --rows 20 --set data.train=other.csv job.json",
     NULL},
    {"data bench", "JOB.json", "Measures how fast the data of a job are read.",
     "One thread reads data.train for a few seconds each: the files' bytes, "
     "unpacked; the records in them; the samples that a model gets.",
     data_bench_options, 2, 2, SHORT_EXITS, "capstan data bench job.json",
     NULL},
    {0}};

static const struct argp_option eval_options[] = {
    HELP,
    FLAG("step", STEP, "N", "this step (default: the newest that verifies)", 0),
    SET,
    JSON,
    LOG_FORMAT,
    {0}};

static const struct argp_option schema_options[] = {HELP, {0}};

static const struct argp_option manual_options[] = {HELP, {0}};

static const struct argp_option info_options[] = {HELP, JSON, {0}};

#define BYTES_SUFFIXES "; K, M and G are powers of 1024: 1M is 1MiB, 1048576"

#define LOOPS                                                                  \
    "The environment variable CAPSTAN_CPU (plain, avx2 or avx512) chooses "    \
    "the variant of the update rules' loops; the default is the best that "    \
    "the processor has. All variants give the same bits."

#define EXITS                                                                  \
    "Exit codes: 0 done; 1 failed, and a retry fails again; 2 bad "            \
    "configuration; 129, 130, 143 ended by SIGHUP, SIGINT, SIGTERM here; 137 " \
    "killed; 138 a peer or a machine failed, and a retry may succeed. On "     \
    "SIGUSR1 the chief or `capstan local` writes a checkpoint and the run "    \
    "continues."

static const struct argp_option bench_options[] = {
    HELP,
    FLAG("ps", PS, "N", "number of ps (default: 1)", 0),
    FLAG("sizes", SIZES, "LIST",
         "vector sizes in bytes" BYTES_SUFFIXES
         " (default: 64,4K,64K,1M,16M,64M)",
         0),
    FLAG("lane", LANE, "LANE",
         "tcp, shm (shared memory on one host) or auto (default: auto)", 0),
    FLAG("seconds", SECONDS, "S",
         "measuring time of each figure (default: 0.3)", 0),
    FLAG("repeats", REPEATS, "N",
         "measurements of each figure; the median is shown (default: 5)", 0),
    FLAG("requests", REQUESTS, "N",
         "do not print the table; push the first size of --sizes N times and "
         "print the ps's memory before and after",
         0),
    FLAG("batched", BATCHED, NULL,
         "with --requests: vectors of 64 bytes, 1024 in a message", 0),
    FLAG("checkpoint-dir", CHECKPOINT_DIR, "DIR",
         "write a checkpoint to DIR at the end", 0),
    JSON,
    LOG_FORMAT,
    FLAG("join-timeout", JOIN_TIMEOUT, "SECONDS",
         "time to wait for the chief; chief: for the others (default: 600)", 0),
    FLAG("verbose", VERBOSE, NULL, "show the log of every process", 0),
    CLUSTER_FLAGS,
    HEADING("A cluster in simulated time, instead of a measurement:", 2),
    FLAG("simulate", SIMULATE, NULL,
         "predict the time of a round with the model of JOB.json", 2),
    FLAG("workers", WORKERS, "N", "number of workers (default: 1)", 2),
    FLAG("sweep", SWEEP, NULL, "simulate 1 to 256 workers with 1 to 64 ps", 2),
    FLAG("set", SET, "KEY.PATH=VALUE", "override a key of the job", 2),
    FLAG("bytes", BYTES, "N",
         "instead of a job: a flat vector, such as 102.4M" BYTES_SUFFIXES, 2),
    FLAG("batch", BATCH, "N", "samples of a micro batch (default: the job's)",
         2),
    FLAG("compute", COMPUTE, "S",
         "seconds of computing in a step (default: measured; with --bytes: 0)",
         2),
    FLAG("jitter", JITTER, "X",
         "standard deviation of the computing time, as a fraction of it "
         "(default: 0.05)",
         2),
    FLAG("seed", SEED, "N", "seed of the jitter (default: 1)", 2),
    FLAG("link-gbits", LINK_GBITS, "G",
         "bandwidth of a host's link in each direction, 10^9 bits/s (default: "
         "1)",
         2),
    FLAG("latency-us", LATENCY, "US",
         "latency between two hosts in microseconds (default: 50)", 2),
    FLAG("place", PLACE, "PLACE",
         "apart: one process on a host; pairs: a worker and a ps on a host; "
         "one: all on one host (default: apart)",
         2),
    FLAG("cores", CORES, "N", "cores of a host (default: as this machine)", 2),
    FLAG("share-cores", SHARE_CORES, NULL,
         "all hosts share the cores of one machine", 2),
    FLAG("overhead", OVERHEAD, "X",
         "multiply the measured processor time of messages and updates by X "
         "(default: 1)",
         2),
    FLAG("group", GROUP, "N",
         "size of a message of blocks in bytes, such as 256K (default: as in "
         "a run)",
         2),
    FLAG("rounds", ROUNDS, "N",
         "rounds to simulate (default: 20; with --sweep at most 4)", 2),
    {0}};

static const struct argp_option compare_options[] = {
    HELP,
    FLAG("ps", COMPARED_PS, "LIST", "numbers of ps, such as 1,2 (default: 1)",
         0),
    FLAG("workers", COMPARED_WORKERS, "LIST",
         "numbers of workers, such as 1,2,4 (default: 2)", 0),
    FLAG("steps", STEPS, "N",
         "rounds of a run (default: as long as the job or COMMAND trains)", 0),
    FLAG("repeats", COMPARED_REPEATS, "N",
         "runs of each kind; the median is shown (default: 3)", 0),
    FLAG("limit", LIMIT, "SECONDS", "longest time of one run (default: 600)",
         0),
    SET,
    DEEPSPEED,
    LANE,
    FLAG("link-gbits", COMPARED_LINK, "G",
         "bandwidth of a host's link in each direction, 10^9 bits/s; on one "
         "machine only predictions use it",
         0),
    FLAG("latency-us", COMPARED_LATENCY, "US",
         "latency between two hosts in microseconds (default: 50)", 0),
    JSON,
    LOG_FORMAT,
    FLAG("csv", CSV, "FILE", "also write the table as CSV", 0),
    FLAG("plot", PLOT, "FILE",
         "also draw the table with gnuplot, as .svg or .png", 0),
    HEADING("A prediction by formulas, instead of runs:", 2),
    FLAG("predict", PREDICT, NULL, "predict without a job", 2),
    FLAG("params", PARAMS, "P",
         "parameters of the model, such as 25.6M; K, M, G (or B) and T are "
         "powers of 1000",
         2),
    FLAG("vm", VM, "NAME",
         "use the devices and network of this cloud machine, such as "
         "ND96asr_v4 or HBv3; --vm list prints the names",
         2),
    FLAG("gpus-per-host", PER_HOST, "N",
         "workers that share a host and its link (default: 1)", 2),
    FLAG("inner-gbits", INNER, "G",
         "bandwidth of a worker inside its host in each direction (default: no "
         "limit)",
         2),
    FLAG("compute-ms", COMPUTE_MS, "MS",
         "time of a worker's forward and backward pass (default: 0)", 2),
    FLAG("overlap", OVERLAP, "X",
         "fraction of that time during which bytes can be sent (default: 2/3, "
         "the backward pass)",
         2),
    FLAG("input-ms", INPUT_MS, "MS",
         "time to read a step's samples (default: 0)", 2),
    FLAG("update-gbytes", UPDATE, "G",
         "10^9 bytes of float32 gradients that a process applies in a second "
         "(default: no limit)",
         2),
    FLAG("wire", WIRE, "FORMAT", "float32 or bf16 (default: float32)", 2),
    FLAG("clip", CLIP, NULL, "gradients are clipped by their global norm", 2),
    FLAG("target", TARGET, "X",
         "find the computing time at which this scaling efficiency is reached "
         "(default: 0.875)",
         2),
    {0}};

static const struct cli_command commands[CLI_COMMANDS] = {
    [CLI_COMMAND_RUN] =
        {"run", "[JOB.json]",
         "Runs the role of this process in a training job.",
         "The role comes from the flags, from TF_CONFIG or CLUSTER_SPEC, or "
         "from the ranks of torchrun, mpirun or srun. Without these this "
         "process trains alone. Only the chief needs the job. If the job has "
         "the key \"compare\", the cluster trains by parameter server and by "
         "all-reduce in turn, and the chief prints the table of `capstan "
         "compare`.",
         run_options, 0, 1, EXITS "\n\n" LOOPS,
         "capstan run job.json\n"
         "capstan run --set epochs=2 --json job.json\n"
         "capstan run --chief_hosts=a:2222 --ps_hosts=b:2222 "
         "--worker_hosts=c:2222 \\\n"
         "    --job_name=ps --task_index=0"},
    [CLI_COMMAND_LOCAL] =
        {"local", "[JOB.json] [-- COMMAND...]",
         "Starts a whole cluster on this machine.",
         "The cluster is a chief, ps and workers; each is a process of "
         "`capstan run`. With COMMAND, a script or program that trains a model "
         "of its own, each worker is a process of it, and worker 0 leads; the "
         "job and --set apply on top of what it says itself. With "
         "--distribution every process is one of COMMAND.",
         local_options, 1, 1, EXITS "\n\n" LOOPS,
         "capstan local --ps 2 --workers 2 job.json\n"
         "capstan local --ps 1 --workers 2 -- python train.py\n"
         "capstan local --distribution azureml-job.yml\n"
         "capstan local --workers 4 --set strategy.staleness=2 --json "
         "job.json"},
    [CLI_COMMAND_LAUNCH] =
        {"launch", "COMMAND...",
         "Starts the processes of one node, as torch.distributed.launch does.",
         "COMMAND is any command. Each process gets its rank in the "
         "environment. If a process fails, all are ended.",
         launch_options, 1, 1,
         "A value without a flag comes from PET_*, MASTER_ADDR, MASTER_PORT, "
         "NODE_RANK or the variables of Open MPI and Slurm, if they are set.\n\n"
         "Exit codes: 0 done; 2 bad command line; else that of the process "
         "that failed first, 128 + N if signal N ended it.",
         "capstan launch --nproc_per_node 2 capstan run --num-ps 1 job.json\n"
         "capstan launch --nnodes 2 --node_rank 1 --master_addr node0 \\\n"
         "    capstan run job.json"},
    [CLI_COMMAND_CLUSTER] =
        {"cluster", "",
         "Prints the cluster that the environment describes, as a JSON object.",
         "Nothing is started. The output shows the role, the index and the "
         "chief that `capstan run` would use here. With --explain or --check "
         "it is a text for people; with --json as well, the object has more "
         "keys.",
         cluster_options, 0, 0,
         "Exit codes with --check: 0 every address that was tried answers, 1 "
         "one does not.",
         "capstan cluster\n"
         "capstan cluster --explain\n"
         "capstan cluster --check --json\n"
         "capstan cluster --chief_hosts=a:2222 --worker_hosts=b:2222,c:2222 "
         "\\\n"
         "    --job_name=worker --task_index=1"},
    [CLI_COMMAND_CKPT] =
        {"ckpt", "ls|verify|export DIR [OUT]",
         "Lists, verifies or exports the checkpoints in DIR.",
         "DIR is the job's checkpoint.dir. ls lists its checkpoints; verify "
         "reads each one whole and checks it; export writes the weights of one "
         "to the file OUT.",
         ckpt_command_options, 2, 3,
         "`capstan ckpt ls --help`, `capstan ckpt verify --help` and `capstan "
         "ckpt export --help` show more. " CKPT_EXITS("folder or step"),
         "capstan ckpt ls run/checkpoint\n"
         "capstan ckpt verify --step 500 run/checkpoint\n"
         "capstan ckpt export run/checkpoint model.safetensors",
         ckpt_subcommands},
    [CLI_COMMAND_DATA] =
        {"data", "peek|bench JOB.json",
         "Shows samples of a job's data, or how fast they are read.",
         "peek prints the first samples as the model reads them; bench "
         "measures reading them.",
         data_options, 2, 2,
         "`capstan data peek --help` and `capstan data bench --help` show "
         "more. " SHORT_EXITS,
         "capstan data peek job.json\n"
         "capstan data bench job.json",
         data_subcommands},
    [CLI_COMMAND_EVAL] =
        {"eval", "JOB.json|CHECKPOINT",
         "Evaluates a checkpoint on the job's test set.",
         "CHECKPOINT is a checkpoint directory or the folder of a step in it; "
         "with JOB.json it is the job's checkpoint.dir. The model and the data "
         "are those of JOB.json, else of the job in the checkpoint, changed by "
         "--set. One process does it: no cluster runs.",
         eval_options, 1, 1, SHORT_EXITS,
         "capstan eval job.json\n"
         "capstan eval --step 500 --json run/checkpoint\n"
         "capstan eval --set data.test=other.csv run/checkpoint"},
    [CLI_COMMAND_PREDICT] =
        {"predict", "JOB.json|CHECKPOINT INPUT OUTPUT",
         "Writes what the model of a checkpoint predicts for samples.",
         "CHECKPOINT as for `capstan eval`. INPUT is a file or a pattern of "
         "files: .npz, .npy, .safetensors, .csv, .tfrecord or .libsvm by its "
         "ending, the last three perhaps before .gz or .zst, else in the job's "
         "data.format. "
         "Labels may be missing and are not read. OUTPUT ends in .npz or "
         ".csv and has a row for each sample, in order.",
         eval_options, 3, 3, SHORT_EXITS,
         "capstan predict run/checkpoint other.csv predictions.npz\n"
         "capstan predict --step 500 job.json other.csv predictions.csv"},
    [CLI_COMMAND_SCHEMA] =
        {"schema", "[JOB.json]",
         "Prints the JSON Schema of jobs, or checks a job.",
         "An editor that has the schema completes keys and marks mistakes. "
         "With JOB.json the number of its steps is printed if the job is right; "
         "the training data is opened only to count epochs' steps. The schema "
         "does not have the rules about an order of numbers and about names of "
         "features and columns.",
         schema_options, 0, 1,
         "Exit codes with JOB.json: 0 right; 2 wrong, and standard error lists "
         "all mistakes.",
         "capstan schema > job.schema.json\n"
         "capstan schema job.json"},
    [CLI_COMMAND_MANUAL] =
        {"manual", "[PAGE]", "Prints a page of the manual, or bash completion.",
         "PAGE is capstan, capstan-VERB, or capstan-job, about the job file, "
         "for man(1); or bash-completion, a script for bash. Without PAGE the "
         "names of all are printed.",
         manual_options, 0, 1, SHORT_EXITS,
         "capstan manual capstan-job | man -l -\n"
         "source <(capstan manual bash-completion)"},
    [CLI_COMMAND_INFO] =
        {"info", "",
         "Shows version, commit, devices, collectives and libraries.", NULL,
         info_options, 0, 0, SHORT_EXITS "\n\n" LOOPS,
         "capstan info\n"
         "capstan info --json"},
    [CLI_COMMAND_BENCH] =
        {"bench", "[JOB.json]",
         "Measures how fast vectors move between a client and ps.",
         "memcpy, a plain socket and bare libzmq are measured beside it. All "
         "processes are started on this machine. If the flags, TF_CONFIG or "
         "CLUSTER_SPEC describe a cluster (a chief, ps, one worker), this "
         "process runs its role in it: start the same command with the same "
         "flags on each host; the worker prints the table.",
         bench_options, 0, 1, EXITS "\n\n" LOOPS,
         "capstan bench\n"
         "capstan bench --ps 2 --sizes 64K,16M --lane tcp\n"
         "capstan bench --simulate --workers 8 --ps 2 --link-gbits 10 "
         "job.json"},
    [CLI_COMMAND_COMPARE] =
        {"compare", "[JOB.json] [-- COMMAND...]",
         "Compares training by parameter server and by all-reduce.",
         "The job is run by parameter server, synchronous and asynchronous, "
         "and by all-reduce. The table shows how fast each is, how far it is "
         "from the network's bound, what limits it, and from how many ps on "
         "the parameter server is faster. With COMMAND, a script or program "
         "that trains a model of its own, each run is a `capstan local -- "
         "COMMAND`. The runs are made on this machine; to compare across "
         "hosts, put \"compare\" into the job of `capstan run`.",
         compare_options, 0, 1, EXITS "\n\n" LOOPS,
         "capstan compare --ps 1,2 --workers 2 --steps 300 job.json\n"
         "capstan compare --steps 300 -- python train.py\n"
         "capstan compare --predict --params 25.6M --workers 8 --ps 4 \\\n"
         "    --link-gbits 10 --compute-ms 120"},
};

const char *cli_command_words(const struct argp_option *option) {
    static const struct {
        int key;
        const char *words;
    } lists[] = {
        {CLI_COMMAND_KEY_JOB_NAME, "chief worker ps evaluator"},
        {CLI_COMMAND_KEY_TRANSPORT, "auto tcp"},
        {CLI_COMMAND_KEY_LANE, "auto tcp shm"},
        {CLI_COMMAND_KEY_FORMAT, "safetensors npz csv"},
        {CLI_COMMAND_KEY_LOG_FORMAT, "text json"},
        {CLI_COMMAND_KEY_PLACE, "apart pairs one"},
        {CLI_COMMAND_KEY_NPROC, "auto gpu cpu"},
        {CLI_COMMAND_KEY_WIRE, "float32 bf16"},
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (lists[i].key == option->key)
            return lists[i].words;
    return NULL;
}

const struct cli_command *cli_command_get(enum cli_command_id number) {
    return &commands[number];
}

const struct cli_command *cli_command_subcommand(
    const struct cli_command *command, const char *word) {
    for (const struct cli_command *subcommand = command->subcommands;
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
