/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of `capstan bench --simulate`: values and their checks. */
#ifndef CAPSTAN_SIMULATE_OPTIONS_H
#define CAPSTAN_SIMULATE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where the simulated processes are. */
enum simulate_options_colocation {
    SIMULATE_COLOCATE_NONE,
    SIMULATE_COLOCATE_PAIRS,
    SIMULATE_COLOCATE_ALL,
};

struct simulate_options {
    bool on, sweep, share_cores;
    bool given;        /* any flag */
    double link_gbits; /* each way a host */
    double latency_us; /* between two hosts */
    double compute;    /* seconds of a step; below 0: not given */
    double jitter;     /* a share */
    double overhead;   /* measured costs of the exchange times this */
    uint64_t cores;    /* of a host; 0: as this machine has */
    uint64_t batch;    /* 0: the job's */
    uint64_t bytes;    /* of a flat vector; 0: the job's model */
    uint64_t group;    /* bytes of blocks in a message; 0: as in a run */
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

/* What counts when no flag is given. */
void simulate_options_open(struct simulate_options *simulate);

/* Takes the flag of KEY with its TEXT (NULL where it has none). False: PROBLEM
 * says what was found and what is allowed. */
bool simulate_options_set(struct simulate_options *simulate,
                          enum simulate_options_key key, const char *text,
                          char *problem, size_t size);

#endif
