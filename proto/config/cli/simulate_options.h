/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of `capstan bench --simulate`: values and their checks. */
#ifndef CAPSTAN_SIMULATE_OPTIONS_H
#define CAPSTAN_SIMULATE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Placement of the simulated processes. */
enum simulate_options_colocation {
    SIMULATE_COLOCATE_NONE,
    SIMULATE_COLOCATE_PAIRS,
    SIMULATE_COLOCATE_ALL,
};

struct simulate_options {
    bool on, sweep, share_cores;
    bool given;        /* any flag was given */
    double link_gbits; /* in each direction of a host */
    double latency_us; /* between two hosts */
    double compute;    /* seconds in a step; below 0: not given */
    double jitter;     /* as a fraction of the computing time */
    double overhead; /* factor for the measured costs of messages and updates */
    uint64_t cores;  /* of a host; 0: as this machine */
    uint64_t batch;  /* 0: the job's */
    uint64_t bytes;  /* of a flat vector; 0: the job's model */
    uint64_t group;  /* bytes of blocks in a message; 0: as in a run */
    uint64_t rounds, seed;
    enum simulate_options_colocation colocation;
};

enum simulate_options_key {
    SIMULATE_OPTIONS_ON,
    SIMULATE_OPTIONS_SWEEP,
    SIMULATE_OPTIONS_SHARE_CORES,
    SIMULATE_OPTIONS_LINK_GBITS,
    SIMULATE_OPTIONS_LATENCY,
    SIMULATE_OPTIONS_COMPUTE,
    SIMULATE_OPTIONS_JITTER,
    SIMULATE_OPTIONS_OVERHEAD,
    SIMULATE_OPTIONS_CORES,
    SIMULATE_OPTIONS_BATCH,
    SIMULATE_OPTIONS_BYTES,
    SIMULATE_OPTIONS_GROUP,
    SIMULATE_OPTIONS_ROUNDS,
    SIMULATE_OPTIONS_SEED,
    SIMULATE_OPTIONS_PLACE,
    SIMULATE_OPTIONS_KEYS
};

/* Sets the defaults. */
void simulate_options_open(struct simulate_options *simulate);

/* Sets the flag KEY to TEXT (NULL if the flag takes none). On false PROBLEM
 * says what was found and what is allowed. */
bool simulate_options_set(struct simulate_options *simulate,
                          enum simulate_options_key key, const char *text,
                          char *problem, size_t size);

#endif
