/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of all verbs. This file is included where the macros are defined:
 * options.h makes the members of struct options of it, cli_flag.c the table.
 *
 *   FLAG(kind, member, verbs, name, value, text, ...)
 *
 * is a flag of these verbs. Its value, of the type CLI_FLAG_TYPE_kind, is the
 * MEMBER of struct options. VALUE is the value's name in the help; NULL: it
 * takes none. More columns of struct cli_flag follow; BY_DEFAULT("5") at the
 * end of a text sets the default too. SAME is a flag whose
 * member another row has: the flag of other verbs where its text, bounds or
 * place differ. AT is a flag whose member is declared in options.h.
 *
 * A verb's help has its flags in the order of the rows: a flag stands after
 * those that its text mentions. The flags below a HEADING are in its group. */

AT(SWITCH, printed_help, ALL, "help", NULL, "show this text", .letter = 'h')
AT(SWITCH, printed_help, ALL, "version", NULL,
   "show the release and its commit", .letter = 'V')

FLAG(COUNT, num_ps, LOCAL | BENCH, "ps", "N", "number of ps" BY_DEFAULT("1"),
     .noun = "a count", .max = 1024)
FLAG(COUNT, num_workers, LOCAL, "workers", "N",
     "number of workers" BY_DEFAULT("1"), .noun = "a count", .max = 1024)

/* launch: launch_options.c checks the values. */
FLAG(COUNT, max_restarts, LOCAL, "max-restarts", "N",
     "restarts of one process within 10 minutes" BY_DEFAULT("10"),
     .noun = "a count", .max = 1000)
SAME(COUNT, max_restarts, LAUNCH, "max-restarts", "N",
     "restarts of one process within 10 minutes" BY_DEFAULT("10"),
     .also = "max_restarts", .noun = "a count", .max = 1000)
FLAG(REAL, kill_every, LOCAL, "kill-every", "S",
     "a drill: about every S seconds end a process of --kill by SIGKILL, once "
     "the run survives that, and start it again; these do not count as "
     "restarts",
     .min = 0.1, .max = 1e6, .takes = "seconds, at least 0.1")
FLAG(WORD, kill, LOCAL, "kill", "ROLE",
     "with --kill-every: ps, chief (the process that leads), worker or any of "
     "these, drawn evenly",
     .words = "ps chief worker any", .takes = "ps, chief, worker or any")
FLAG(TEXT, nnodes, LAUNCH, "nnodes", "N", "number of nodes (default: 1)")
FLAG(TEXT, node_rank, LAUNCH, "node_rank", "N",
     "rank of this node, from 0 (default: 0)", .also = "node-rank")
FLAG(TEXT, nproc_per_node, LAUNCH, "nproc_per_node", "N",
     "processes to start on this node; gpu: one for each GPU; cpu: one for "
     "each processor; auto: gpu if there is one, else cpu (default: 1)",
     .also = "nproc-per-node", .words = "auto gpu cpu")
FLAG(TEXT, master_addr, LAUNCH, "master_addr", "HOST",
     "host of rank 0 (default: 127.0.0.1)", .also = "master-addr")
FLAG(TEXT, master_port, LAUNCH, "master_port", "PORT",
     "port of rank 0 (default: 29500)", .also = "master-port")
FLAG(SWITCH, module, LAUNCH, "module", NULL, "the command is a Python module",
     .also = "m")
FLAG(SWITCH, use_env, LAUNCH, "use_env", NULL,
     "start the command as it is; without this flag --local_rank=N is "
     "appended to it",
     .also = "use-env")
FLAG(SWITCH, no_python, LAUNCH, "no_python", NULL,
     "as --use_env, and start a command that ends in .py directly, not with "
     "python3",
     .also = "no-python")
FLAG(TEXT, grace, LAUNCH, "grace", "SECONDS",
     "time from SIGTERM to SIGKILL after a process fails or a signal arrives "
     "(default: 40)")

/* bench */
FLAG(SIZES, sizes, BENCH, "sizes", "LIST",
     "vector sizes in bytes" BYTES_SUFFIXES BY_DEFAULT("64,4K,64K,1M,16M,64M"),
     .amount = {AMOUNT_BYTES, 4, UINT64_C(8) << 30, 4})
FLAG(WORD, transport, BENCH, "lane", "LANE",
     "tcp, shm (shared memory on one host) or auto (default: auto)",
     .words = "auto tcp shm", .takes = "tcp, shm or auto")
FLAG(REAL, seconds, BENCH, "seconds", "S",
     "measuring time of each figure" BY_DEFAULT("0.3"), .min = DBL_TRUE_MIN,
     .max = 3600, .takes = "more than 0, up to 3600")
SAME(COUNT, repeats, BENCH, "repeats", "N",
     "measurements of each figure; the median is shown" BY_DEFAULT("5"),
     .noun = "a number", .min = 1, .max = 101)
FLAG(COUNT, requests, BENCH, "requests", "N",
     "do not print the table; push the first size of --sizes N times and print "
     "the ps's memory before and after",
     .noun = "a number", .min = 1, .max = UINT64_C(1) << 40)
FLAG(SWITCH, batched, BENCH, "batched", NULL,
     "with --requests: vectors of 64 bytes, 1024 in a message")
SAME(TEXT, checkpoint_dir, BENCH, "checkpoint-dir", "DIR",
     "write a checkpoint to DIR at the end")

/* compare */
FLAG(COUNTS, ps, COMPARE, "ps", "LIST",
     "numbers of ps, such as 1,2" BY_DEFAULT("1"))
FLAG(COUNTS, workers, COMPARE, "workers", "LIST",
     "numbers of workers, such as 1,2,4" BY_DEFAULT("2"))
FLAG(COUNT, steps, COMPARE, "steps", "N",
     "rounds of a run (default: as long as the job or COMMAND trains)",
     .min = 1, .max = 1e12)
FLAG(COUNT, repeats, COMPARE, "repeats", "N",
     "runs of each kind; the median is shown" BY_DEFAULT("3"), .min = 1,
     .max = JOB_MAX_REPEATS)
FLAG(REAL, limit, COMPARE, "limit", "SECONDS",
     "longest time of one run" BY_DEFAULT("600"), .min = 1, .max = 1e6)

FLAG(TEXT, output, REPORT, "output", "FILE", "the page to write", .letter = 'o')
FLAG(COUNT, rows, DATA | DATA_PEEK, "rows", "N",
     "peek: samples to print" BY_DEFAULT("5"), .noun = "a count", .min = 1,
     .max = 1000000)
FLAG(COUNT, step, EVAL | PREDICT, "step", "N",
     "this step (default: the newest that verifies)", .max = UINT64_MAX,
     .takes = "a number")
AT(OTHER, sets,
   RUN | LOCAL | DATA | DATA_PEEK | DATA_BENCH | EVAL | PREDICT | COMPARE,
   "set", "KEY.PATH=VALUE",
   "override a key of the job; VALUE is read as JSON, else as a string; "
   "repeatable",
   .own = add_set, .handed = LOCAL | COMPARE)
FLAG(TEXT, deepspeed, RUN | LOCAL | COMPARE, "deepspeed_config", "FILE",
     "read keys that the job does not have from this DeepSpeed configuration",
     .handed = LOCAL | COMPARE)
SAME(TEXT, lane, COMPARE, "lane", "LANE",
     "auto: processes on one host use shared memory; tcp: they use TCP "
     "(default: auto)",
     .words = "auto tcp", .takes = "auto or tcp", .handed = COMPARE)
FLAG(REAL, link_gbits, COMPARE, "link-gbits", "G",
     "bandwidth of a host's link in each direction, 10^9 bits/s; on one "
     "machine only predictions use it",
     .min = 1e-3, .max = 1e5, .handed = COMPARE)
FLAG(REAL, latency_us, COMPARE, "latency-us", "US",
     "latency between two hosts in microseconds" BY_DEFAULT("50"), .max = 1e6)
FLAG(SWITCH, json,
     RUN | LOCAL | CLUSTER | CKPT | CKPT_LS | CKPT_VERIFY | CKPT_EXPORT |
         CKPT_DIFF | DATA | DATA_PEEK | DATA_BENCH | EVAL | PREDICT | INFO |
         STATUS | BENCH | COMPARE,
     "json", NULL,
     "print one JSON object, and nothing else, on standard output",
     .handed = LOCAL)
FLAG(WORD, log_format, RUN | LOCAL | LAUNCH | EVAL | PREDICT | BENCH | COMPARE,
     "log-format", "FORMAT",
     "text or json: how each line of the log on standard error is written; "
     "json is the same as CAPSTAN_JSON_LOG=1 (default: text)",
     .words = "text json", .takes = "text or json")
AT(OTHER, log_format, RUN | LOCAL | LAUNCH | EVAL | PREDICT | BENCH | COMPARE,
   "json-log", NULL, "the same as --log-format json", .own = set_json_log)
FLAG(TEXT, csv, COMPARE, "csv", "FILE", "also write the table as CSV")
FLAG(TEXT, plot, COMPARE, "plot", "FILE",
     "also draw the table with gnuplot, as .svg or .png", .own = set_plot,
     .takes = "a file that ends in .svg or .png")
FLAG(TEXT, tensorboard, COMPARE, "tensorboard", "DIR",
     "also write each case for TensorBoard, whose tab HParams compares them")
FLAG(TEXT, report, COMPARE, "report", "FILE",
     "also write the table, with bars, the machine and the job, as one page of "
     "HTML")
FLAG(TEXT, from, COMPARE, "from", "FILE",
     "run nothing: show, and write, what --json has printed into FILE")

FLAG(SWITCH, explain, CLUSTER, "explain", NULL,
     "say for people which source counts and why, and list every role")
FLAG(SWITCH, check, CLUSTER, "check", NULL,
     "connect to every role and name the addresses that do not answer")

SAME(COUNT, step, CKPT, "step", "N",
     "only this step (default: all; export: the newest that verifies; diff: "
     "the newest)",
     .max = UINT64_MAX, .takes = "a number")
SAME(COUNT, step, CKPT_LS | CKPT_VERIFY, "step", "N",
     "only this step (default: all)", .max = UINT64_MAX, .takes = "a number")
SAME(COUNT, step, CKPT_EXPORT, "step", "N",
     "this step (default: the newest that verifies)", .max = UINT64_MAX,
     .takes = "a number")
SAME(COUNT, step, CKPT_DIFF, "step", "N",
     "this step of both (default: the newest of each)", .max = UINT64_MAX,
     .takes = "a number")
FLAG(TEXT, format, CKPT, "format", "FORMAT",
     "export: safetensors or npz, of a table npz or csv (default: by the "
     "ending of OUT)",
     .words = "safetensors npz csv")
FLAG(SWITCH, state, CKPT, "state", NULL,
     "export: also the optimizer state; not with --table")
FLAG(TEXT, table, CKPT, "table", "NAME",
     "export: the rows of this table, to npz or csv")
SAME(TEXT, format, CKPT_EXPORT, "format", "FORMAT",
     "safetensors or npz, of a table npz or csv (default: by the ending of "
     "OUT)",
     .words = "safetensors npz csv")
SAME(SWITCH, state, CKPT_EXPORT, "state", NULL,
     "also the optimizer state, as layer0.weight.momentum_buffer; not with "
     "--table")
SAME(TEXT, table, CKPT_EXPORT, "table", "NAME",
     "the rows of this table, ascending by id, not the tensors")

FLAG(SWITCH, coordinate, RUN, "coordinate", NULL,
     "the chief does not train unless the job says so")
FLAG(TEXT, checkpoint_dir, RUN, "checkpoint-dir", "DIR",
     "the job's checkpoint.dir; evaluator: the one to evaluate")
FLAG(REAL, join_timeout, RUN, "join-timeout", "SECONDS",
     "time to wait for the chief (default: 600)", .min = DBL_TRUE_MIN,
     .max = INFINITY, .takes = "seconds above 0")
SAME(REAL, join_timeout, BENCH, "join-timeout", "SECONDS",
     "time to wait for the chief; chief: for the others (default: 600)",
     .min = DBL_TRUE_MIN, .max = INFINITY, .takes = "seconds above 0")
FLAG(SWITCH, verbose, BENCH, "verbose", NULL, "show the log of every process")
FLAG(TEXT, lane, RUN | LOCAL, "lane", "LANE",
     "auto: processes on one host use shared memory; tcp: they use TCP "
     "(default: auto)",
     .words = "auto tcp", .takes = "auto or tcp")
FLAG(TEXT, metrics_port, RUN, "metrics-port", "PORT",
     METRICS("; the same as CAPSTAN_METRICS_PORT (default: 0)"),
     .own = set_metrics_port, .takes = "PORT or ADDRESS:PORT")
SAME(TEXT, metrics_port, LOCAL, "metrics-port", "PORT",
     METRICS("; the chief's, and the other processes have the ports after it; "
             "the same as CAPSTAN_METRICS_PORT (default: 0)"),
     .own = set_metrics_port, .takes = "PORT or ADDRESS:PORT")
FLAG(TEXT, trace_steps, RUN | LOCAL, "trace-steps", "FIRST:LAST",
     "write a timeline of these steps, of all processes, for ui.perfetto.dev; "
     "chief: it tells the others; the same as CAPSTAN_TRACE_STEPS",
     .own = set_trace_steps,
     .takes = "FIRST:LAST, two steps from 1 on, such as 100:110")
FLAG(TEXT, trace_file, RUN | LOCAL, "trace-file", "FILE",
     "with --trace-steps: the file to write; the same as CAPSTAN_TRACE_FILE "
     "(default: capstan-RUN.pftrace in the current folder)")
FLAG(TEXT, interface, RUN, "interface", "NAME|CIDR",
     INTERFACE("every interface"))
SAME(TEXT, interface, LOCAL, "interface", "NAME|CIDR",
     INTERFACE("lo, which no other machine reaches"))
FLAG(TEXT, secret_file, RUN | LOCAL | LAUNCH, "secret-file", "FILE",
     "the job's secret, as capstan keygen writes it: only processes that have "
     "it take part, and what they send each other by TCP is encrypted; the "
     "same as CAPSTAN_SECRET_FILE (default: the job's security.secret_file)")
SAME(REAL, link_gbits, RUN, "link-gbits", "G",
     "chief: bandwidth of a host's link in each direction, 10^9 bits/s "
     "(default: measured if every process has its own host)",
     .min = DBL_TRUE_MIN, .max = 1e5,
     .takes = "10^9 bits/s above 0 and up to 100000")
SAME(REAL, link_gbits, LOCAL, "link-gbits", "G",
     "bandwidth, 10^9 bits/s in each direction, with which the summary "
     "computes what the network would allow if each process had a host of its "
     "own",
     .min = DBL_TRUE_MIN, .max = 1e5,
     .takes = "10^9 bits/s above 0 and up to 100000", .handed = LOCAL)

HEADING(RUN | CLUSTER | BENCH,
        "The cluster, where the environment does not describe it:", 1)
AT(TEXT, flags.chief_hosts, RUN | CLUSTER | BENCH, "chief_hosts", "HOST:PORT",
   "address of the chief")
AT(TEXT, flags.ps_hosts, RUN | CLUSTER | BENCH, "ps_hosts", "HOST:PORT,...",
   "addresses of the ps")
AT(TEXT, flags.worker_hosts, RUN | CLUSTER | BENCH, "worker_hosts",
   "HOST:PORT,...", "addresses of the workers")
AT(TEXT, flags.job_name, RUN | CLUSTER | BENCH, "job_name", "NAME",
   "role of this process: chief, worker, ps or evaluator",
   .words = "chief worker ps evaluator")
AT(TEXT, flags.task_index, RUN | CLUSTER | BENCH, "task_index", "N",
   "index of this process in its role, from 0")
AT(TEXT, flags.num_ps, RUN | CLUSTER | BENCH, "num-ps", "N",
   "where a launcher gives ranks (torchrun, MPI, Slurm, ...): the last N are "
   "ps (default: 0)",
   .also = "num_ps")
AT(TEXT, flags.local_rank, RUN | CLUSTER | BENCH, "local_rank", "N",
   "rank of this process on its host, as LOCAL_RANK", .also = "local-rank",
   .own = set_local_rank)
AT(SWITCH, flags.alone, RUN | CLUSTER | BENCH, "alone", NULL,
   "use no cluster; ignore the variables of launchers")
AT(SWITCH, flags.join, RUN | CLUSTER, "join", NULL,
   "worker: take part as one beyond the workers that the cluster lists; chief: "
   "such workers may join an asynchronous run, up to the job's workers")

HEADING(LOCAL,
        "The processes of an Azure ML job, instead of --ps and --workers:", 1)
FLAG(TEXT, azureml_distribution, LOCAL, "distribution", "FILE|JSON",
     "the job's YAML file, of SDK v1 or v2, or its distribution block, of type "
     "tensorflow, pytorch or mpi. Without JOB.json and COMMAND each process "
     "runs the file's command, in its code folder")
AT(OTHER, inputs, LOCAL, "input", "NAME=VALUE",
   "value or local path of an input of that command (default: the file's)",
   .own = add_input, .takes = "NAME=VALUE")
FLAG(TEXT, instances, LOCAL, "instances", "N",
     "instances of the job (default: those of the file, else 1)")
AT(TEXT, flags.num_ps, LOCAL, "num-ps", "N",
   "with pytorch or mpi: the last N ranks are ps (default: 0)")

HEADING(RUN | LOCAL,
        "Flags of TensorFlow's scripts, each the same as --set of a key:", 2)
FLAG(KEY, train_steps, RUN | LOCAL, "train_steps", "N", "steps=N",
     .key = "steps", .own = set_key_count, .takes = "a count")
FLAG(KEY, epochs, RUN | LOCAL, "epochs", "N", "epochs=N", .key = "epochs",
     .own = set_key_count, .takes = "a count")
FLAG(KEY, batch_size, RUN | LOCAL, "batch_size", "N",
     "train_micro_batch_size_per_gpu=N",
     .key = "train_micro_batch_size_per_gpu", .own = set_key_batch,
     .takes = "a count")
FLAG(KEY, learning_rate, RUN | LOCAL, "learning_rate", "RATE",
     "optimizer.params.lr=RATE", .key = "optimizer.params.lr",
     .own = set_key_real, .takes = "a number, at least 0")
FLAG(KEY, data_dir, RUN | LOCAL, "data_dir", "DIR", "data.dir=DIR",
     .key = "data.dir", .own = set_key_path, .takes = "a folder's path")
FLAG(KEY, model_dir, RUN | LOCAL, "model_dir", "DIR", "checkpoint.dir=DIR",
     .key = "checkpoint.dir", .own = set_key_path, .takes = "a folder's path")
FLAG(KEY, num_gpus, RUN | LOCAL, "num_gpus", "N", "devices=N; 0: device=cpu",
     .key = "devices", .own = set_key_gpus, .takes = "a count")
FLAG(KEY, sync_replicas, RUN | LOCAL, "sync_replicas", "BOOL",
     "strategy.staleness=0, or with false \"inf\"", .key = "strategy.staleness",
     .own = set_key_bool, .takes = "true or false", .optional = true)
FLAG(KEY, nosync_replicas, RUN | LOCAL, "nosync_replicas", NULL,
     "strategy.staleness=\"inf\"", .key = "strategy.staleness",
     .own = set_key_bool)
AT(OTHER, sets, RUN | LOCAL, "replicas_to_aggregate", "N",
   "refused: strategy.backup_workers has what is left out",
   .own = refuse_aggregate)

HEADING(BENCH, "A cluster in simulated time, instead of a measurement:", 2)
FLAG(SWITCH, simulate, BENCH, "simulate", NULL,
     "predict the time of a round with the model of JOB.json")
AT(COUNT, num_workers, BENCH, "workers", "N",
   "number of workers" BY_DEFAULT("1"), .noun = "a count", .max = 1024)
FLAG(SWITCH, sweep, BENCH, "sweep", NULL,
     "simulate 1 to 256 workers with 1 to 64 ps")
AT(OTHER, sets, BENCH, "set", "KEY.PATH=VALUE", "override a key of the job",
   .own = add_set)
FLAG(AMOUNT, bytes, BENCH, "bytes", "N",
     "instead of a job: a flat vector, such as 102.4M" BYTES_SUFFIXES,
     .amount = {AMOUNT_BYTES, 4, UINT64_C(16) << 30, 4})
FLAG(COUNT, batch, BENCH, "batch", "N",
     "samples of a micro batch (default: the job's)", .min = 1, .max = 1 << 20)
FLAG(REAL, compute, BENCH, "compute", "S",
     "seconds of computing in a step (default: measured; with --bytes: 0)",
     .max = 1e4)
FLAG(REAL, jitter, BENCH, "jitter", "X",
     "standard deviation of the computing time, as a fraction of it" BY_DEFAULT(
         "0.05"),
     .max = 1)
FLAG(COUNT, seed, BENCH, "seed", "N", "seed of the jitter" BY_DEFAULT("1"),
     .max = 1e15)
FLAG(
    REAL, simulated_gbits, BENCH, "link-gbits", "G",
    "bandwidth of a host's link in each direction, 10^9 bits/s" BY_DEFAULT("1"),
    .min = 1e-3, .max = 1e4)
SAME(REAL, latency_us, BENCH, "latency-us", "US",
     "latency between two hosts in microseconds" BY_DEFAULT("50"), .max = 1e6)
FLAG(
    WORD, colocation, BENCH, "place", "PLACE",
    "apart: one process on a host; pairs: a worker and a ps on a host; one: all on one host" BY_DEFAULT(
        "apart"),
    .words = "apart pairs one",
    .takes =
        "apart (a host each), pairs (a worker and a ps a host) or one (one host)")
FLAG(COUNT, cores, BENCH, "cores", "N",
     "cores of a host (default: as this machine)", .min = 1, .max = 4096)
FLAG(SWITCH, share_cores, BENCH, "share-cores", NULL,
     "all hosts share the cores of one machine")
FLAG(
    REAL, overhead, BENCH, "overhead", "X",
    "multiply the measured processor time of messages and updates by X" BY_DEFAULT(
        "1"),
    .max = 1e3)
FLAG(AMOUNT, group, BENCH, "group", "N",
     "size of a message of blocks in bytes, such as 256K (default: as in a "
     "run)",
     .amount = {AMOUNT_BYTES, 4, UINT64_C(1) << 30, 4})
FLAG(COUNT, rounds, BENCH, "rounds", "N",
     "rounds to simulate (default: 20; with --sweep at most 4)",
     .standard = "20", .min = 1, .max = 1e6)

HEADING(COMPARE, "A prediction by formulas, instead of runs:", 2)
FLAG(SWITCH, predict, COMPARE, "predict", NULL, "predict without a job")
FLAG(AMOUNT, parameters, COMPARE, "params", "P",
     "parameters of the model, such as 25.6M; K, M, G (or B) and T are powers "
     "of 1000",
     .amount = {AMOUNT_PARAMETERS, 1, UINT64_C(10000000000000), 1})
FLAG(TEXT, vm, COMPARE, "vm", "NAME",
     "use the devices and network of this cloud machine, such as ND96asr_v4 or "
     "HBv3; --vm list prints the names")
FLAG(COUNT, per_host, COMPARE, "gpus-per-host", "N",
     "workers that share a host and its link (default: 1)", .min = 1, .max = 64)
FLAG(REAL, inner_gbits, COMPARE, "inner-gbits", "G",
     "bandwidth of a worker inside its host in each direction (default: no "
     "limit)",
     .min = 1e-3, .max = 1e6)
FLAG(REAL, compute_ms, COMPARE, "compute-ms", "MS",
     "time of a worker's forward and backward pass (default: 0)", .max = 1e7)
FLAG(REAL, overlap, COMPARE, "overlap", "X",
     "fraction of that time during which bytes can be sent (default: 2/3, the "
     "backward pass)",
     .standard = "0.6666666666666666", .max = 1)
FLAG(REAL, input_ms, COMPARE, "input-ms", "MS",
     "time to read a step's samples (default: 0)", .max = 1e7)
FLAG(REAL, update_gbytes, COMPARE, "update-gbytes", "G",
     "10^9 bytes of float32 gradients that a process applies in a second "
     "(default: no limit)",
     .min = 1e-3, .max = 1e5)
FLAG(SWITCH, bf16, COMPARE, "wire", "FORMAT",
     "float32 or bf16 (default: float32)", .own = set_wire,
     .words = "float32 bf16", .takes = "float32 or bf16")
FLAG(SWITCH, clip, COMPARE, "clip", NULL,
     "gradients are clipped by their global norm")
FLAG(
    REAL, target, COMPARE, "target", "X",
    "find the computing time at which this scaling efficiency is reached" BY_DEFAULT(
        "0.875"),
    .min = 0.01, .max = 0.999)
