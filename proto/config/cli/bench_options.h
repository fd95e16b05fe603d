/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of `capstan bench`: values and their checks. */
#ifndef CAPSTAN_BENCH_OPTIONS_H
#define CAPSTAN_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BENCH_OPTIONS_MAX_SIZES = 16, BENCH_OPTIONS_MAX_REPEATS = 101 };

/* Transport between the processes. */
enum bench_options_transport {
    BENCH_TRANSPORT_AUTO,
    BENCH_TRANSPORT_TCP,
    BENCH_TRANSPORT_SHM
};

struct bench_options {
    uint64_t sizes[BENCH_OPTIONS_MAX_SIZES]; /* bytes, multiples of 4 */
    unsigned num_sizes, repeats;
    double seconds;    /* measuring time of one figure */
    uint64_t requests; /* 0: not given */
    bool batched;      /* requests are packed into shared messages */
    enum bench_options_transport transport;
    bool verbose;
};

enum bench_options_key {
    BENCH_OPTIONS_SIZES,
    BENCH_OPTIONS_REPEATS,
    BENCH_OPTIONS_SECONDS,
    BENCH_OPTIONS_REQUESTS,
    BENCH_OPTIONS_BATCHED,
    BENCH_OPTIONS_LANE,
    BENCH_OPTIONS_VERBOSE,
};

/* Sets the defaults. */
void bench_options_open(struct bench_options *bench);

/* Sets the flag KEY to TEXT. On false PROBLEM says what was found and what is
 * allowed. */
bool bench_options_set(struct bench_options *bench, enum bench_options_key key,
                       const char *text, char *problem, size_t size);

#endif
