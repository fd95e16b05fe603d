/* SPDX-License-Identifier: Apache-2.0 */
/* What one run of a comparison is asked for: the job with what makes the case,
 * and without what a run leaves behind; alone, or as a command line of `capstan
 * local`. */
#ifndef CAPSTAN_COMPARISON_COMMAND_H
#define CAPSTAN_COMPARISON_COMMAND_H

#include "chief/compare/comparison_batch.h"
#include "chief/compare/verdict.h"
#include "proto/config/cli/options.h"
#include "proto/config/job/job.h"

#include <stdbool.h>
#include <stdint.h>

enum { COMPARISON_COMMAND_MOST = 2 * OPTIONS_MAX_SETS + 64 };

struct comparison_asked {
    struct verdict_case of;
    struct comparison_batch batch;
    uint64_t steps; /* as the run counts them; 0: the job's epochs */
    bool tests;     /* with the test set */
    bool more[2];   /* others follow if this one fails, and if it does not */
};

struct comparison_command {
    bool bare;                                /* of settings alone */
    char *words[COMPARISON_COMMAND_MOST + 1]; /* NULL-terminated */
    unsigned count;
};

/* Fills COMMAND for what is ASKED. */
void comparison_command_make(struct comparison_command *command,
                             const struct options *flags,
                             const struct comparison_asked *asked);

/* The same, but the overrides of the job alone, "key.path=value" each. */
void comparison_command_settings(struct comparison_command *command,
                                 const struct options *flags,
                                 const struct comparison_asked *asked);
void comparison_command_forget(struct comparison_command *command);

#endif
