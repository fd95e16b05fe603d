/* The command line of one run of a comparison: `capstan local` with what makes
 * the case, and without what a run leaves behind. */
#ifndef CAPSTAN_COMPARISON_COMMAND_H
#define CAPSTAN_COMPARISON_COMMAND_H

#include "chief/verdict.h"
#include "proto/conf/job.h"
#include "proto/conf/options.h"

#include <stdbool.h>
#include <stdint.h>

enum { COMPARISON_COMMAND_MOST = 2 * OPTIONS_MAX_SETS + 64 };

struct comparison_asked {
    struct verdict_case of;
    uint64_t steps; /* as the run counts them; 0: the job's epochs */
    bool tests;     /* with the test set */
};

struct comparison_command {
    char *words[COMPARISON_COMMAND_MOST + 1]; /* NULL-terminated */
    unsigned count;
};

/* Fills COMMAND for what is ASKED of JOB, whose batch is solved: its micro
 * batch and accumulation are every worker's in each case. */
void comparison_command_make(struct comparison_command *command,
                             const struct options *flags, const struct job *job,
                             const struct comparison_asked *asked);
void comparison_command_forget(struct comparison_command *command);

#endif
