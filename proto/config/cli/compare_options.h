/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of `capstan compare`: values and their checks. */
#ifndef CAPSTAN_COMPARE_OPTIONS_H
#define CAPSTAN_COMPARE_OPTIONS_H

#include "proto/config/job/job.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct compare_options {
    struct job_counts ps, workers;

    unsigned given; /* bit 1 << enum compare_options_key of each flag given */

    /* For runs. */
    uint64_t steps; /* rounds of each run; 0: not given */
    uint64_t repeats;
    double limit; /* longest time of one run, seconds */
    const char *csv, *plot;

    /* For predictions. */
    bool predict, bf16, clip;
    bool has_predict_flags,
        has_run_flags;   /* a flag of predictions, a flag of runs was given */
    uint64_t parameters; /* 0: not given */
    double link_gbits;   /* in each direction of a host; 0: not given */
    double latency_us;   /* between two hosts */
    double compute_ms, input_ms; /* of a step of one worker */
    double update_gbytes; /* gradients that an update rule applies in a second;
                             0: no limit */
    double overlap; /* fraction of the computing time during which bytes can be
                       sent */
    double target;  /* efficiency for which to find the step time */
    double inner_gbits; /* in each direction of a device inside a host; 0: not
                           given */
    uint64_t per_host;  /* workers on a host; 0: not given */
    const char *vm;     /* NULL: not given */
};

enum compare_options_key {
    COMPARE_OPTIONS_PS,
    COMPARE_OPTIONS_WORKERS,
    COMPARE_OPTIONS_STEPS,
    COMPARE_OPTIONS_REPEATS,
    COMPARE_OPTIONS_LIMIT,
    COMPARE_OPTIONS_CSV,
    COMPARE_OPTIONS_PLOT,
    COMPARE_OPTIONS_PREDICT,
    COMPARE_OPTIONS_PARAMS,
    COMPARE_OPTIONS_WIRE,
    COMPARE_OPTIONS_CLIP,
    COMPARE_OPTIONS_LINK,
    COMPARE_OPTIONS_LATENCY,
    COMPARE_OPTIONS_COMPUTE,
    COMPARE_OPTIONS_INPUT,
    COMPARE_OPTIONS_UPDATE,
    COMPARE_OPTIONS_OVERLAP,
    COMPARE_OPTIONS_TARGET,
    COMPARE_OPTIONS_INNER,
    COMPARE_OPTIONS_PER_HOST,
    COMPARE_OPTIONS_VM,
    COMPARE_OPTIONS_KEYS
};

/* Sets the defaults. */
void compare_options_open(struct compare_options *compare);

/* Sets the flag KEY to TEXT (NULL if the flag takes none), which is borrowed.
 * On false PROBLEM says what was found and what is allowed. */
bool compare_options_set(struct compare_options *compare,
                         enum compare_options_key key, const char *text,
                         char *problem, size_t size);

/* Is the list of cloud machines requested (--vm list)? */
bool compare_options_lists_vms(const struct compare_options *compare);

/* Checks whether the flags can be combined; HAS_MODEL: a job file or a command
 * was named. Returns NULL, or the problem. */
const char *compare_options_error(const struct compare_options *compare,
                                  bool has_model);

#endif
