/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/bench_options.h"

#include "proto/config/amount.h"
#include "proto/config/decimal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LIST_LENGTH = 512, MAX_SECONDS = 3600 };
#define MAX_REQUESTS (UINT64_C(1) << 40)

static const struct amount vector_size = {AMOUNT_BYTES, 4, UINT64_C(8) << 30,
                                          4};

void bench_options_open(struct bench_options *bench) {
    *bench = (struct bench_options){
        .sizes = {64, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20},
        .num_sizes = 6,
        .repeats = 5,
        .seconds = 0.3};
}

/* Adds one entry of --sizes. Returns NULL, or the problem. */
static const char *add_size(struct bench_options *bench, const char *text) {
    uint64_t bytes;
    if (!amount_parse(&vector_size, text, &bytes))
        return "takes a list such as 64,4K,1M";
    for (unsigned i = 0; i < bench->num_sizes; i++)
        if (bench->sizes[i] == bytes)
            return "names a size twice";
    if (bench->num_sizes == BENCH_OPTIONS_MAX_SIZES)
        return "takes at most 16 sizes";
    bench->sizes[bench->num_sizes++] = bytes;
    return NULL;
}

static bool set_sizes(struct bench_options *bench, const char *text,
                      char *problem, size_t size) {
    char list[MAX_LIST_LENGTH], allowed[192], *rest = NULL;
    bench->num_sizes = 0;
    snprintf(list, sizeof list, "%s", text);
    char *word = strtok_r(list, ",", &rest);
    const char *error = word ? NULL : "takes a list such as 64,4K,1M";
    for (; word && !error; word = strtok_r(NULL, ",", &rest)) {
        error = add_size(bench, word);
        text = word;
    }
    amount_allowed(&vector_size, allowed, sizeof allowed);
    if (error)
        snprintf(problem, size, "--sizes %s: '%.32s'; allowed: %s", error, text,
                 allowed);
    return !error;
}

static bool set_transport(struct bench_options *bench, const char *text,
                          char *problem, size_t size) {
    static const char *const names[] = {[BENCH_TRANSPORT_AUTO] = "auto",
                                        [BENCH_TRANSPORT_TCP] = "tcp",
                                        [BENCH_TRANSPORT_SHM] = "shm"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i])) {
            bench->transport = (enum bench_options_transport)i;
            return true;
        }
    snprintf(problem, size, "--lane takes tcp, shm or auto, not '%s'", text);
    return false;
}

static bool bench_options_set_count(uint64_t *value, uint64_t max,
                                    const char *flag, const char *text,
                                    char *problem, size_t size) {
    if (decimal_parse(text, value) && *value >= 1 && *value <= max)
        return true;
    snprintf(problem, size, "%s takes a number from 1 to %llu, not '%s'", flag,
             (unsigned long long)max, text);
    return false;
}

static bool set_seconds(struct bench_options *bench, const char *text,
                        char *problem, size_t size) {
    char *end;
    bench->seconds = strtod(text, &end);
    if (!*end && end != text && bench->seconds > 0 &&
        bench->seconds <= MAX_SECONDS)
        return true;
    snprintf(problem, size, "--seconds takes more than 0, up to %d, not '%s'",
             MAX_SECONDS, text);
    return false;
}

bool bench_options_set(struct bench_options *bench, enum bench_options_key key,
                       const char *text, char *problem, size_t size) {
    uint64_t value = bench->repeats;
    bool ok = true;
    switch (key) {
    case BENCH_OPTIONS_SIZES:
        return set_sizes(bench, text, problem, size);
    case BENCH_OPTIONS_REPEATS:
        ok = bench_options_set_count(&value, BENCH_OPTIONS_MAX_REPEATS,
                                     "--repeats", text, problem, size);
        bench->repeats = (unsigned)value;
        return ok;
    case BENCH_OPTIONS_SECONDS:
        return set_seconds(bench, text, problem, size);
    case BENCH_OPTIONS_REQUESTS:
        return bench_options_set_count(&bench->requests, MAX_REQUESTS,
                                       "--requests", text, problem, size);
    case BENCH_OPTIONS_BATCHED:
        bench->batched = true;
        return true;
    case BENCH_OPTIONS_LANE:
        return set_transport(bench, text, problem, size);
    case BENCH_OPTIONS_VERBOSE:
        bench->verbose = true;
    }
    return ok;
}
