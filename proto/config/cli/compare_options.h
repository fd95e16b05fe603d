/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of `capstan compare`: values and their checks. */
#ifndef CAPSTAN_COMPARE_OPTIONS_H
#define CAPSTAN_COMPARE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { COMPARE_OPTIONS_MAX_COUNTS = 16, COMPARE_OPTIONS_MAX_REPEATS = 101 };

/* Numbers of processes, ascending. */
struct compare_counts {
    unsigned values[COMPARE_OPTIONS_MAX_COUNTS], count;
};

struct compare_options {
    struct compare_counts ps, workers;

    unsigned given; /* 1 << enum compare_options_key of each flag that was */

    /* Measured. */
    uint64_t steps; /* rounds of each run; 0: not given */
    uint64_t repeats;
    double limit; /* seconds that one run may take */
    const char *csv, *plot;

    /* Predicted. */
    bool predict, bf16, clip;
    bool has_predict_flags, has_run_flags; /* a flag of the one, of the other */
    double parameters;                     /* 0: not given */
    double link_gbits;                     /* each way a host; 0: not given */
    double latency_us;                     /* between two hosts */
    double compute_ms, input_ms;           /* of a step of one worker */
    double update_gbytes; /* of gradients that a rule takes a second; 0: any */
    double overlap;       /* share of computing beside which bytes may travel */
    double target;        /* efficiency to find the step time for */
    double inner_gbits;   /* each way a device, inside a host; 0: not given */
    uint64_t per_host;    /* workers of a host; 0: not given */
    const char *vm;       /* NULL: not given */
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

/* What counts when no flag is given. */
void compare_options_open(struct compare_options *compare);

/* Takes the flag of KEY with its TEXT (NULL where it has none), which is
 * borrowed. False: PROBLEM says what was found and what is allowed. */
bool compare_options_set(struct compare_options *compare,
                         enum compare_options_key key, const char *text,
                         char *problem, size_t size);

/* Is it the table of machines that is asked for (--vm list)? */
bool compare_options_lists_vms(const struct compare_options *compare);

/* Do the flags go together, HAS_JOB telling whether a job was named? NULL, or
 * what is wrong. */
const char *compare_options_error(const struct compare_options *compare,
                                  bool has_job);

#endif
