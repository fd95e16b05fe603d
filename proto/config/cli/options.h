/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: one struct for all verbs, filled by argp. */
#ifndef CAPSTAN_OPTIONS_H
#define CAPSTAN_OPTIONS_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/cli/bench_options.h"
#include "proto/config/cli/compare_options.h"
#include "proto/config/cli/launch_options.h"
#include "proto/config/cli/legacy_options.h"
#include "proto/config/cli/simulate_options.h"
#include "proto/config/cluster/cluster.h"

#include <stdbool.h>
#include <stdint.h>

enum { OPTIONS_MAX_SETS = 256, OPTIONS_MAX_INPUTS = 64 };

enum cli_command_id {
    CLI_COMMAND_RUN,
    CLI_COMMAND_LOCAL,
    CLI_COMMAND_LAUNCH,
    CLI_COMMAND_CLUSTER,
    CLI_COMMAND_CKPT,
    CLI_COMMAND_DATA,
    CLI_COMMAND_EVAL,
    CLI_COMMAND_PREDICT,
    CLI_COMMAND_SCHEMA,
    CLI_COMMAND_MANUAL,
    CLI_COMMAND_INFO,
    CLI_COMMAND_BENCH,
    CLI_COMMAND_COMPARE,
    CLI_COMMANDS
};

struct options {
    enum cli_command_id cli_command;
    bool printed_help; /* help or version was printed: nothing else to do */
    bool json;
    enum log_format log_format; /* also if the command line is wrong */
    struct cluster_flags flags;
    const char *job, *deepspeed; /* manual: job is the page; eval, predict: a
                                    job or a checkpoint directory */
    const char *sets[OPTIONS_MAX_SETS]; /* some are in `of_flags` */
    unsigned num_sets;
    char of_flags[LEGACY_OPTIONS_KEYS][LEGACY_OPTIONS_SET];
    double join_timeout; /* seconds; 0: not given */
    double link_gbits;   /* 10^9 bits/s; 0: not given */
    const char *checkpoint_dir;
    const char *interface;    /* its name or a CIDR; NULL: not given */
    const char *lane;         /* "auto" or "tcp"; NULL: not given */
    const char *metrics_port; /* address_parse_listener; NULL: not given */
    bool coordinate; /* the chief coordinates unless the job says train */
    unsigned num_ps, num_workers; /* local, bench */
    bool ps_given;                /* --ps was given; else num_ps is 1 */
    bool workers_given;
    const char *azureml_distribution, *instances; /* local; NULL: not given */
    const char *inputs[OPTIONS_MAX_INPUTS];       /* of that job: NAME=VALUE */
    unsigned num_inputs;
    struct bench_options bench;
    struct simulate_options simulate;
    struct compare_options compare;
    struct launch_flags launch;
    char *const *words; /* words after the verb, NULL-ended */
    const char *action, *dir, *out, *format, *table; /* ckpt; data: action;
                                                        predict: out */
    const char *input;                               /* predict */
    bool has_step, with_state;
    uint64_t step;
    unsigned rows;       /* data peek; 0: not given */
    bool explain, check; /* cluster */
};

/* Reads ARGV. Help and version go to standard output. Strings are views of
 * ARGV. On STATUS_CONFIG WHY says what is wrong. */
enum status options_read(struct options *options, int argc, char **argv,
                         struct failure *why) MUST_CHECK;

#endif
