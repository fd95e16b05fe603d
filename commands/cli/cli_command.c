/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/cli/cli_command.h"

#include <ctype.h>
#include <string.h>

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
     CLI_COMMAND_CKPT_LS, 2, 2, CKPT_EXITS("folder or step"),
     "capstan ckpt ls run/checkpoint", NULL},
    {"ckpt verify", "DIR", "Reads and checks the checkpoints in DIR.",
     "DIR is the job's checkpoint.dir. Each file is read whole and compared "
     "with the size and the hash in its manifest. The exit code is 1 if a "
     "checkpoint fails or there is none. Files held by another host are "
     "counted but not checked. A step without a manifest is reported and does "
     "not count as a failure.",
     CLI_COMMAND_CKPT_VERIFY, 2, 2, NULL, "capstan ckpt verify run/checkpoint",
     NULL},
    {"ckpt export", "DIR OUT",
     "Writes the weights of a checkpoint in DIR to the file OUT.",
     "DIR is the job's checkpoint.dir. The tensors have PyTorch's names, such "
     "as layer0.weight.",
     CLI_COMMAND_CKPT_EXPORT, 3, 3, CKPT_EXITS("folder, step or table"),
     "capstan ckpt export run/checkpoint model.safetensors\n"
     "capstan ckpt export --step 500 --state run/checkpoint model.npz\n"
     "capstan ckpt export --table e1 run/checkpoint e1.csv",
     NULL},
    {"ckpt diff", "A B", "Shows what two checkpoints differ in.",
     "A and B are each the folder of a step, or a job's checkpoint.dir, whose "
     "newest step counts. Tensors, the optimizers' state and the rows of "
     "tables are compared by bits, and how far training was. Files, runs and "
     "job files are not compared: runs on other numbers of ps may have equal "
     "checkpoints.",
     CLI_COMMAND_CKPT_DIFF, 3, 3,
     "Exit codes: 0 equal; 1 different; 2 one of them is missing or damaged, "
     "or bad command line.",
     "capstan ckpt diff run/checkpoint other/checkpoint\n"
     "capstan ckpt diff run/checkpoint/step-000000500 other/checkpoint\n"
     "capstan ckpt diff --step 500 --json run/checkpoint other/checkpoint",
     NULL},
    {0}};

/* The subcommands of `capstan data`. */
static const struct cli_command data_subcommands[] = {
    {"data peek", "JOB.json",
     "Prints samples as the model of a job reads them.",
     "The first samples of data.train: file and line, the columns that the "
     "features read, the numbers that they give, the label. Of a record that "
     "cannot be read, what is wrong.",
     CLI_COMMAND_DATA_PEEK, 2, 2, SHORT_EXITS,
     "capstan data peek job.json\n"
     "capstan data peek --rows 20 --set data.train=other.csv job.json",
     NULL},
    {"data bench", "JOB.json", "Measures how fast the data of a job are read.",
     "One thread reads data.train for a few seconds each: the files' bytes, "
     "unpacked; the records in them; the samples that a model gets.",
     CLI_COMMAND_DATA_BENCH, 2, 2, SHORT_EXITS, "capstan data bench job.json",
     NULL},
    {0}};

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
         CLI_COMMAND_RUN, 0, 1, EXITS "\n\n" LOOPS,
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
         CLI_COMMAND_LOCAL, 1, 1, EXITS "\n\n" LOOPS,
         "capstan local --ps 2 --workers 2 job.json\n"
         "capstan local --ps 1 --workers 2 -- python train.py\n"
         "capstan local --distribution azureml-job.yml\n"
         "capstan local --workers 4 --set strategy.staleness=2 --json "
         "job.json"},
    [CLI_COMMAND_LAUNCH] =
        {"launch", "COMMAND...",
         "Starts the processes of one node, as torch.distributed.launch does.",
         "COMMAND is any command. Each process gets its rank in the "
         "environment. One that a signal ends, or that ends with 138, while "
         "its run goes on is started again; if one fails otherwise, all are "
         "ended.",
         CLI_COMMAND_LAUNCH, 1, 1,
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
         CLI_COMMAND_CLUSTER, 0, 0,
         "Exit codes with --check: 0 every address that was tried answers, 1 "
         "one does not.",
         "capstan cluster\n"
         "capstan cluster --explain\n"
         "capstan cluster --check --json\n"
         "capstan cluster --chief_hosts=a:2222 --worker_hosts=b:2222,c:2222 "
         "\\\n"
         "    --job_name=worker --task_index=1"},
    [CLI_COMMAND_CKPT] =
        {"ckpt", "ls|verify|export|diff DIR [OUT|DIR]",
         "Lists, verifies, exports or compares checkpoints.",
         "DIR is the job's checkpoint.dir. ls lists its checkpoints; verify "
         "reads each one whole and checks it; export writes the weights of one "
         "to the file OUT; diff shows what the newest of two directories, or two "
         "steps, differ in.",
         CLI_COMMAND_CKPT, 2, 3,
         "`capstan ckpt ls --help` shows more of ls, and so on. " CKPT_EXITS(
             "folder or step"),
         "capstan ckpt ls run/checkpoint\n"
         "capstan ckpt verify --step 500 run/checkpoint\n"
         "capstan ckpt export run/checkpoint model.safetensors",
         ckpt_subcommands},
    [CLI_COMMAND_DATA] =
        {"data", "peek|bench JOB.json",
         "Shows samples of a job's data, or how fast they are read.",
         "peek prints the first samples as the model reads them; bench "
         "measures reading them.",
         CLI_COMMAND_DATA, 2, 2,
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
         CLI_COMMAND_EVAL, 1, 1, SHORT_EXITS,
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
         CLI_COMMAND_PREDICT, 3, 3, SHORT_EXITS,
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
         CLI_COMMAND_SCHEMA, 0, 1,
         "Exit codes with JOB.json: 0 right; 2 wrong, and standard error lists "
         "all mistakes.",
         "capstan schema > job.schema.json\n"
         "capstan schema job.json"},
    [CLI_COMMAND_MANUAL] =
        {"manual", "[PAGE]", "Prints a page of the manual, or bash completion.",
         "PAGE is capstan, capstan-VERB, or capstan-job, about the job file, "
         "for man(1); or bash-completion, a script for bash. Without PAGE the "
         "names of all are printed.",
         CLI_COMMAND_MANUAL, 0, 1, SHORT_EXITS,
         "capstan manual capstan-job | man -l -\n"
         "source <(capstan manual bash-completion)"},
    [CLI_COMMAND_HOW] =
        {"how", "[FRAMEWORK]",
         "Shows how a script of a framework becomes one of Capstan.",
         "FRAMEWORK is ddp, horovod, keras, trainer (of transformers), "
         "lightning or deepspeed. What is printed is diff -u of two examples of "
         "the Python package, below capstan/examples. Without FRAMEWORK the "
         "names of all are printed.",
         CLI_COMMAND_HOW, 0, 1, SHORT_EXITS,
         "capstan how ddp\n"
         "capstan how keras"},
    [CLI_COMMAND_KEYGEN] =
        {"keygen", "FILE", "Writes a new secret of a job to FILE.",
         "FILE is made with mode 0600; one that is there is left as it is. Each "
         "process of a job that gets a copy of it by --secret-file, by "
         "CAPSTAN_SECRET_FILE or by the job's security.secret_file talks to "
         "the others that have it, and to nobody else.",
         CLI_COMMAND_KEYGEN, 1, 1, SHORT_EXITS, "capstan keygen job.secret"},
    [CLI_COMMAND_INFO] =
        {"info", "",
         "Shows version, commit, devices, collectives and libraries.", NULL,
         CLI_COMMAND_INFO, 0, 0, SHORT_EXITS "\n\n" LOOPS,
         "capstan info\n"
         "capstan info --json"},
    [CLI_COMMAND_STATUS] =
        {"status", "HOST:PORT",
         "Shows what the processes of a running job wait for.",
         "HOST:PORT, or PORT of this machine, is that of --metrics-port of a "
         "process. The chief asks all processes and tells of each what it does, "
         "what it waits for and since when, its step, and its last events, or "
         "that it has not answered within 2 s; another process tells of "
         "itself. kill -QUIT writes the same to the process's log.",
         CLI_COMMAND_STATUS, 1, 1,
         "Exit codes: 0 done; 1 what answers is no process of a run; 2 bad "
         "command line; 138 nothing answers within 2 s.",
         "capstan status 2290\n"
         "capstan status --json 127.0.0.1:2290"},
    [CLI_COMMAND_BENCH] =
        {"bench", "[JOB.json]",
         "Measures how fast vectors move between a client and ps.",
         "memcpy, a plain socket and bare libzmq are measured beside it. All "
         "processes are started on this machine. If the flags, TF_CONFIG or "
         "CLUSTER_SPEC describe a cluster (a chief, ps, one worker), this "
         "process runs its role in it: start the same command with the same "
         "flags on each host; the worker prints the table.",
         CLI_COMMAND_BENCH, 0, 1, EXITS "\n\n" LOOPS,
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
         CLI_COMMAND_COMPARE, 0, 1, EXITS "\n\n" LOOPS,
         "capstan compare --ps 1,2 --workers 2 --steps 300 job.json\n"
         "capstan compare --steps 300 -- python train.py\n"
         "capstan compare --from compare.json --report page.html\n"
         "capstan compare --predict --params 25.6M --workers 8 --ps 4 \\\n"
         "    --link-gbits 10 --compute-ms 120"},
    [CLI_COMMAND_REPORT] =
        {"report", "FILE.jsonl", "Writes the page of a run that has ended.",
         "FILE.jsonl is what the run wrote for \"metrics\": {\"jsonl\": FILE}; "
         "the run may still go on. The page is one file that needs nothing "
         "else, with the curves, the summary and the job, as the page at "
         "--metrics-port shows them. A file that has its name is replaced.",
         CLI_COMMAND_REPORT, 1, 1, SHORT_EXITS,
         "capstan report metrics.jsonl -o page.html"},
};

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

enum { COLUMNS = 80, TEXT_COLUMN = 29 };

/* Prints TEXT in lines of 80 columns, each after INDENT blanks but for the
 * first, which already has COLUMN characters. A newline ends a line. */
static void wrap(FILE *out, const char *text, size_t indent, size_t column) {
    const size_t width = COLUMNS - indent;
    while (*text) {
        size_t length = strcspn(text, "\n");
        if (length > width) {
            length = width;
            while (length > 1 && text[length] != ' ')
                length--;
        }
        int blanks = length && column < indent ? (int)(indent - column) : 0;
        fprintf(out, "%*s%.*s\n", blanks, "", (int)length, text);
        text += length;
        text += *text == '\n' ? 1 : strspn(text, " ");
        column = 0;
    }
}

void cli_command_show_all(FILE *out) {
    fprintf(out, "Usage: capstan VERB ...\n\n");
    for (int v = 0; v < CLI_COMMANDS; v++) {
        const struct cli_command *command =
            cli_command_get((enum cli_command_id)v);
        fprintf(out, "  capstan %s%s%s\n", command->name,
                *command->arguments ? " " : "", command->arguments);
        wrap(out, command->summary, 8, 0);
    }
    fprintf(out,
            "\n`capstan VERB --help` shows the flags of a verb and examples.\n"
            "`capstan --version` shows the release and its commit.\n\n"
            "Example:\n"
            "    capstan local --ps 2 --workers 2 job.json\n");
}

/* Prints the names of OPTION and of the aliases behind it; returns how many
 * characters. */
static size_t show_names(FILE *out, const struct argp_option *option) {
    const char *value = option->arg;
    bool optional = option->flags & OPTION_ARG_OPTIONAL;
    int used = fprintf(out, "  ");
    if (option->key > 0 && option->key < 0x80 && isgraph(option->key))
        used += fprintf(out, "-%c, ", option->key);
    used += fprintf(out, "--%s%s%s%s%s", option->name, optional ? "[" : "",
                    value ? "=" : "", value ? value : "", optional ? "]" : "");
    while ((++option)->flags & OPTION_ALIAS)
        used += option->name ? fprintf(out, ", --%s", option->name)
                             : fprintf(out, ", -%c", option->key);
    return (size_t)used;
}

static void show_options(FILE *out, const struct argp_option *option) {
    for (; !cli_flag_is_end(option); option++) {
        if (option->flags & OPTION_ALIAS)
            continue;
        if (!option->name) {
            fprintf(out, "\n%s\n", option->doc);
            continue;
        }
        size_t used = show_names(out, option);
        if (used >= TEXT_COLUMN) {
            fputc('\n', out);
            used = 0;
        }
        wrap(out, option->doc, TEXT_COLUMN, used);
    }
}

static void show_examples(FILE *out, const char *examples) {
    fprintf(out, "\nExamples:\n");
    for (const char *line = examples; *line;) {
        size_t length = strcspn(line, "\n");
        fprintf(out, "  %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
}

void cli_command_show(FILE *out, const struct cli_command *command,
                      const struct argp *argp) {
    char name[64];
    snprintf(name, sizeof name, "capstan %s", command->name);
    argp_help(argp, out, ARGP_HELP_USAGE, name);
    wrap(out, command->summary, 0, 0);
    if (command->details)
        wrap(out, command->details, 0, 0);
    fprintf(out, "\nOptions:\n");
    show_options(out, argp->options);
    if (command->epilog) {
        fputc('\n', out);
        wrap(out, command->epilog, 0, 0);
    }
    show_examples(out, command->examples);
}
