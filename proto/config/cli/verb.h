/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs of the command line: their flags, and the texts of their help. */
#ifndef CAPSTAN_VERB_H
#define CAPSTAN_VERB_H

#include "proto/config/cli/options.h"

#include <argp.h>
#include <stdio.h>

/* What argp calls a flag by. From SIZES, SIMULATE, NPROC and COMPARED_PS on,
 * the keys of bench_options.h, simulate_options.h, launch_options.h and
 * compare_options.h, in their order. */
enum verb_key {
    VERB_KEY_HELP = 'h',
    VERB_KEY_VERSION = 'V',
    VERB_KEY_JSON = 0x100,
    VERB_KEY_JOB_NAME,
    VERB_KEY_TASK_INDEX,
    VERB_KEY_PS_HOSTS,
    VERB_KEY_WORKER_HOSTS,
    VERB_KEY_CHIEF_HOSTS,
    VERB_KEY_NUM_PS,
    VERB_KEY_LOCAL_RANK,
    VERB_KEY_ALONE,
    VERB_KEY_DISTRIBUTION,
    VERB_KEY_INSTANCES,
    VERB_KEY_SET,
    VERB_KEY_DEEPSPEED,
    VERB_KEY_JOIN_TIMEOUT,
    VERB_KEY_LINK,
    VERB_KEY_CHECKPOINT_DIR,
    VERB_KEY_COORDINATE,
    VERB_KEY_WAY,
    VERB_KEY_PS,
    VERB_KEY_WORKERS,
    VERB_KEY_STEP,
    VERB_KEY_FORMAT,
    VERB_KEY_STATE,
    VERB_KEY_SIZES,
    VERB_KEY_REPEATS,
    VERB_KEY_SECONDS,
    VERB_KEY_REQUESTS,
    VERB_KEY_BATCHED,
    VERB_KEY_LANE,
    VERB_KEY_VERBOSE,
    VERB_KEY_SIMULATE,
    VERB_KEY_SWEEP,
    VERB_KEY_SHARE_CORES,
    VERB_KEY_LINK_GBITS,
    VERB_KEY_LATENCY,
    VERB_KEY_COMPUTE,
    VERB_KEY_JITTER,
    VERB_KEY_OVERHEAD,
    VERB_KEY_CORES,
    VERB_KEY_BATCH,
    VERB_KEY_BYTES,
    VERB_KEY_GROUP,
    VERB_KEY_ROUNDS,
    VERB_KEY_SEED,
    VERB_KEY_PLACE,
    VERB_KEY_NPROC,
    VERB_KEY_NNODES,
    VERB_KEY_NODE_RANK,
    VERB_KEY_ADDR,
    VERB_KEY_PORT,
    VERB_KEY_USE_ENV,
    VERB_KEY_NO_PYTHON,
    VERB_KEY_MODULE,
    VERB_KEY_GRACE,
    VERB_KEY_COMPARED_PS,
    VERB_KEY_COMPARED_WORKERS,
    VERB_KEY_STEPS,
    VERB_KEY_COMPARED_REPEATS,
    VERB_KEY_LIMIT,
    VERB_KEY_CSV,
    VERB_KEY_PLOT,
    VERB_KEY_PREDICT,
    VERB_KEY_PARAMS,
    VERB_KEY_WIRE,
    VERB_KEY_CLIP,
    VERB_KEY_COMPARED_LINK,
    VERB_KEY_COMPARED_LATENCY,
    VERB_KEY_COMPUTE_MS,
    VERB_KEY_INPUT_MS,
    VERB_KEY_UPDATE,
    VERB_KEY_OVERLAP,
    VERB_KEY_TARGET,
    VERB_KEY_INNER,
    VERB_KEY_PER_HOST,
    VERB_KEY_VM,
};

struct verb {
    const char *name, *arguments, *text;
    const struct argp_option *options;
    int min_arguments, max_arguments;
    const char *after;        /* the flags, in its help; NULL: nothing */
    const struct verb *parts; /* by the word behind it, which their arguments
                                 count: "ckpt ls"; to one without a name */
};

/* The verb of NAME and its NUMBER; NULL: there is none. */
const struct verb *verb_find(const char *name, enum options_verb *number);

/* The part of VERB that WORD means; NULL: it has none of that name. */
const struct verb *verb_part(const struct verb *verb, const char *word);

/* Prints every verb, in lines of at most 80 columns. */
void verb_show_all(FILE *out);

#endif
