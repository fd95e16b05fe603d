/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: one struct for all verbs, filled by argp. */
#ifndef CAPSTAN_OPTIONS_H
#define CAPSTAN_OPTIONS_H

#include "core/base/log.h"
#include "core/base/status.h"
#include "proto/cluster/cluster.h"
#include "proto/job/job.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    OPTIONS_MAX_SETS = 256,
    OPTIONS_MAX_INPUTS = 64,
    OPTIONS_MAX_SIZES = 16,
    OPTIONS_SET = 1280 /* bytes of the longest setting of a flag of scripts */
};

/* The verbs, then the subcommands. */
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
    CLI_COMMAND_HOW,
    CLI_COMMAND_KEYGEN,
    CLI_COMMAND_INFO,
    CLI_COMMAND_STATUS,
    CLI_COMMAND_BENCH,
    CLI_COMMAND_COMPARE,
    CLI_COMMAND_REPORT,
    CLI_COMMANDS,
    CLI_COMMAND_CKPT_LS = CLI_COMMANDS,
    CLI_COMMAND_CKPT_VERIFY,
    CLI_COMMAND_CKPT_EXPORT,
    CLI_COMMAND_CKPT_DIFF,
    CLI_COMMAND_DATA_PEEK,
    CLI_COMMAND_DATA_BENCH,
};

/* Vector sizes in bytes, multiples of 4. */
struct options_sizes {
    uint64_t values[OPTIONS_MAX_SIZES];
    unsigned count;
};

/* Values of flags that take one of some words, in their order; 0: not given. */
enum { OPTIONS_TRANSPORT_TCP = 2, OPTIONS_TRANSPORT_SHM };
enum { OPTIONS_PLACE_APART = 1, OPTIONS_PLACE_PAIRS, OPTIONS_PLACE_ONE };
enum {
    OPTIONS_KILL_PS = 1,
    OPTIONS_KILL_CHIEF,
    OPTIONS_KILL_WORKER,
    OPTIONS_KILL_ANY,
};

/* The types of the kinds in flag_rows.h. */
#define CLI_FLAG_TYPE_SWITCH bool
#define CLI_FLAG_TYPE_TEXT const char *
#define CLI_FLAG_TYPE_WORD unsigned
#define CLI_FLAG_TYPE_COUNT uint64_t
#define CLI_FLAG_TYPE_AMOUNT uint64_t
#define CLI_FLAG_TYPE_REAL double
#define CLI_FLAG_TYPE_COUNTS struct job_counts
#define CLI_FLAG_TYPE_SIZES struct options_sizes
#define CLI_FLAG_TYPE_KEY options_set
typedef char options_set[OPTIONS_SET]; /* KEY.PATH=VALUE */

#define SAME(kind, member, ...)
#define AT(kind, member, ...)
#define HEADING(...)
/* Besides what is listed here it has a member for each FLAG of flag_rows.h; a
 * number, a text or a word that was not given is 0 or NULL. */
struct options {
    enum cli_command_id cli_command;
    bool printed_help; /* help or version was printed: nothing else to do */
    struct cluster_flags flags;
    const char *job; /* manual: the page; how: the framework; keygen: the file;
                        eval, predict: a job or a checkpoint directory; report:
                        lines of metrics; status: an address */
    const char *sets[OPTIONS_MAX_SETS]; /* some are members of this struct */
    unsigned num_sets;
    const char *inputs[OPTIONS_MAX_INPUTS]; /* NAME=VALUE */
    unsigned num_inputs;
    char *const *words;   /* words after the verb, NULL-ended */
    char *const *command; /* a command with its arguments, NULL-ended */
    const char *action, *dir, *out; /* ckpt (of diff A is dir, B out); data:
                                       action; predict: out */
    const char *input;              /* predict */
#define FLAG(kind, member, ...) CLI_FLAG_TYPE_##kind member;
#include "commands/cli/flag_rows.h"
#undef FLAG
    struct {
#define FLAG(kind, member, ...) bool member;
#include "commands/cli/flag_rows.h"
#undef FLAG
    } given; /* the flag was given */
};
#undef SAME
#undef AT
#undef HEADING

/* Sets the defaults of the flags for VERB. */
void options_open(struct options *options, enum cli_command_id verb);

/* Reads ARGV. Help and version go to standard output. Strings are views of
 * ARGV. On STATUS_CONFIG WHY says what is wrong. */
enum status options_read(struct options *options, int argc, char **argv,
                         struct failure *why) MUST_CHECK;

/* Checks which flags can be combined, when all are read. On STATUS_CONFIG WHY
 * names those that cannot, and the help to read. */
enum status options_check(const struct options *options,
                          struct failure *why) MUST_CHECK;

/* Is the list of cloud machines requested (--vm list)? */
bool options_lists_vms(const struct options *options);

#endif
