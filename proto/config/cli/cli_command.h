/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs of the command line: their flags and help texts. */
#ifndef CAPSTAN_CLI_COMMAND_H
#define CAPSTAN_CLI_COMMAND_H

#include "proto/config/cli/options.h"

#include <argp.h>

/* argp's keys of the flags. The keys from SIZES, SIMULATE, NPROC and
 * COMPARED_PS on are those of bench_options.h, simulate_options.h,
 * launch_options.h and compare_options.h, in their order. */
enum cli_command_key {
    CLI_COMMAND_KEY_HELP = 'h',
    CLI_COMMAND_KEY_VERSION = 'V',
    CLI_COMMAND_KEY_JSON = 0x100,
    CLI_COMMAND_KEY_JSON_LOG,
    CLI_COMMAND_KEY_LOG_FORMAT,
    CLI_COMMAND_KEY_JOB_NAME,
    CLI_COMMAND_KEY_TASK_INDEX,
    CLI_COMMAND_KEY_PS_HOSTS,
    CLI_COMMAND_KEY_WORKER_HOSTS,
    CLI_COMMAND_KEY_CHIEF_HOSTS,
    CLI_COMMAND_KEY_NUM_PS,
    CLI_COMMAND_KEY_LOCAL_RANK,
    CLI_COMMAND_KEY_ALONE,
    CLI_COMMAND_KEY_DISTRIBUTION,
    CLI_COMMAND_KEY_INPUT,
    CLI_COMMAND_KEY_INSTANCES,
    CLI_COMMAND_KEY_SET,
    CLI_COMMAND_KEY_DEEPSPEED,
    CLI_COMMAND_KEY_JOIN_TIMEOUT,
    CLI_COMMAND_KEY_LINK,
    CLI_COMMAND_KEY_CHECKPOINT_DIR,
    CLI_COMMAND_KEY_COORDINATE,
    CLI_COMMAND_KEY_TRANSPORT,
    CLI_COMMAND_KEY_METRICS_PORT,
    CLI_COMMAND_KEY_INTERFACE,
    CLI_COMMAND_KEY_PS,
    CLI_COMMAND_KEY_WORKERS,
    CLI_COMMAND_KEY_STEP,
    CLI_COMMAND_KEY_FORMAT,
    CLI_COMMAND_KEY_STATE,
    CLI_COMMAND_KEY_TABLE,
    CLI_COMMAND_KEY_ROWS,
    CLI_COMMAND_KEY_EXPLAIN,
    CLI_COMMAND_KEY_CHECK,
    CLI_COMMAND_KEY_TRAIN_STEPS,
    CLI_COMMAND_KEY_EPOCHS,
    CLI_COMMAND_KEY_BATCH_SIZE,
    CLI_COMMAND_KEY_LEARNING_RATE,
    CLI_COMMAND_KEY_DATA_DIR,
    CLI_COMMAND_KEY_MODEL_DIR,
    CLI_COMMAND_KEY_NUM_GPUS,
    CLI_COMMAND_KEY_SYNC_REPLICAS,
    CLI_COMMAND_KEY_NOSYNC_REPLICAS,
    CLI_COMMAND_KEY_REPLICAS_TO_AGGREGATE,
    CLI_COMMAND_KEY_SIZES,
    CLI_COMMAND_KEY_REPEATS,
    CLI_COMMAND_KEY_SECONDS,
    CLI_COMMAND_KEY_REQUESTS,
    CLI_COMMAND_KEY_BATCHED,
    CLI_COMMAND_KEY_LANE,
    CLI_COMMAND_KEY_VERBOSE,
    CLI_COMMAND_KEY_SIMULATE,
    CLI_COMMAND_KEY_SWEEP,
    CLI_COMMAND_KEY_SHARE_CORES,
    CLI_COMMAND_KEY_LINK_GBITS,
    CLI_COMMAND_KEY_LATENCY,
    CLI_COMMAND_KEY_COMPUTE,
    CLI_COMMAND_KEY_JITTER,
    CLI_COMMAND_KEY_OVERHEAD,
    CLI_COMMAND_KEY_CORES,
    CLI_COMMAND_KEY_BATCH,
    CLI_COMMAND_KEY_BYTES,
    CLI_COMMAND_KEY_GROUP,
    CLI_COMMAND_KEY_ROUNDS,
    CLI_COMMAND_KEY_SEED,
    CLI_COMMAND_KEY_PLACE,
    CLI_COMMAND_KEY_NPROC,
    CLI_COMMAND_KEY_NNODES,
    CLI_COMMAND_KEY_NODE_RANK,
    CLI_COMMAND_KEY_ADDR,
    CLI_COMMAND_KEY_PORT,
    CLI_COMMAND_KEY_USE_ENV,
    CLI_COMMAND_KEY_NO_PYTHON,
    CLI_COMMAND_KEY_MODULE,
    CLI_COMMAND_KEY_GRACE,
    CLI_COMMAND_KEY_COMPARED_PS,
    CLI_COMMAND_KEY_COMPARED_WORKERS,
    CLI_COMMAND_KEY_STEPS,
    CLI_COMMAND_KEY_COMPARED_REPEATS,
    CLI_COMMAND_KEY_LIMIT,
    CLI_COMMAND_KEY_CSV,
    CLI_COMMAND_KEY_PLOT,
    CLI_COMMAND_KEY_PREDICT,
    CLI_COMMAND_KEY_PARAMS,
    CLI_COMMAND_KEY_WIRE,
    CLI_COMMAND_KEY_CLIP,
    CLI_COMMAND_KEY_COMPARED_LINK,
    CLI_COMMAND_KEY_COMPARED_LATENCY,
    CLI_COMMAND_KEY_COMPUTE_MS,
    CLI_COMMAND_KEY_INPUT_MS,
    CLI_COMMAND_KEY_UPDATE,
    CLI_COMMAND_KEY_OVERLAP,
    CLI_COMMAND_KEY_TARGET,
    CLI_COMMAND_KEY_INNER,
    CLI_COMMAND_KEY_PER_HOST,
    CLI_COMMAND_KEY_VM,
};

struct cli_command {
    const char *name, *arguments;
    const char *summary; /* one sentence */
    const char *details; /* NULL: none */
    const struct argp_option *options;
    int min_arguments, max_arguments;
    const char *epilog;   /* below the options in its help; NULL: none */
    const char *examples; /* command lines, one a line */
    const struct cli_command
        *subcommands; /* named "ckpt ls"; their arguments count the second
                         word; ended by one without a name */
};

/* The values of OPTION, separated by blanks, or NULL: they are not words. */
const char *cli_command_words(const struct argp_option *option);

/* The verb of NUMBER. */
const struct cli_command *cli_command_get(enum cli_command_id number);

/* The verb called NAME and its *NUMBER, or NULL. */
const struct cli_command *cli_command_find(const char *name,
                                           enum cli_command_id *number);

/* The subcommand of COMMAND called WORD, or NULL. */
const struct cli_command *cli_command_subcommand(
    const struct cli_command *command, const char *word);

#endif
