/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/simulate_options.h"

#include "proto/config/cli/cli_number.h"

#include <stdio.h>
#include <string.h>

void simulate_options_open(struct simulate_options *simulate) {
    *simulate = (struct simulate_options){.link_gbits = 1,
                                          .latency_us = 50,
                                          .compute = -1,
                                          .jitter = 0.05,
                                          .overhead = 1,
                                          .rounds = 20,
                                          .seed = 1};
}

#define FLAG(name, member, min, max)                                           \
    CLI_NUMBER(struct simulate_options, name, member, min, max)

/* Flags with a number. */
static const struct cli_number reals[SIMULATE_OPTIONS_KEYS] = {
    [SIMULATE_OPTIONS_LINK_GBITS] = FLAG("link-gbits", link_gbits, 1e-3, 1e4),
    [SIMULATE_OPTIONS_LATENCY] = FLAG("latency-us", latency_us, 0, 1e6),
    [SIMULATE_OPTIONS_COMPUTE] = FLAG("compute", compute, 0, 1e4),
    [SIMULATE_OPTIONS_JITTER] = FLAG("jitter", jitter, 0, 1),
    [SIMULATE_OPTIONS_OVERHEAD] = FLAG("overhead", overhead, 0, 1e3),
};

static const struct cli_number counts[SIMULATE_OPTIONS_KEYS] = {
    [SIMULATE_OPTIONS_CORES] = FLAG("cores", cores, 1, 4096),
    [SIMULATE_OPTIONS_BATCH] = FLAG("batch", batch, 1, 1 << 20),
    [SIMULATE_OPTIONS_ROUNDS] = FLAG("rounds", rounds, 1, 1e6),
    [SIMULATE_OPTIONS_SEED] = FLAG("seed", seed, 0, 1e15),
};

static bool set_colocation(struct simulate_options *simulate, const char *text,
                           char *problem, size_t size) {
    static const char *const names[] = {[SIMULATE_COLOCATE_NONE] = "apart",
                                        [SIMULATE_COLOCATE_PAIRS] = "pairs",
                                        [SIMULATE_COLOCATE_ALL] = "one"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i])) {
            simulate->colocation = (enum simulate_options_colocation)i;
            return true;
        }
    snprintf(problem, size,
             "--place takes apart (a host each), pairs (a worker and a ps a "
             "host) or one (one host), not '%s'",
             text);
    return false;
}

static const struct cli_amount amounts[SIMULATE_OPTIONS_KEYS] = {
    [SIMULATE_OPTIONS_BYTES] = {"bytes",
                                offsetof(struct simulate_options, bytes),
                                {AMOUNT_BYTES, 4, UINT64_C(16) << 30, 4}},
    [SIMULATE_OPTIONS_GROUP] = {"group",
                                offsetof(struct simulate_options, group),
                                {AMOUNT_BYTES, 4, UINT64_C(1) << 30, 4}},
};

bool simulate_options_set(struct simulate_options *simulate,
                          enum simulate_options_key key, const char *text,
                          char *problem, size_t size) {
    simulate->given = true;
    if (reals[key].flag)
        return cli_number_set_real(&reals[key], simulate, text, problem, size);
    if (counts[key].flag)
        return cli_number_set_count(&counts[key], simulate, text, problem,
                                    size);
    if (amounts[key].flag)
        return cli_number_set_amount(&amounts[key], simulate, text, problem,
                                     size);
    if (key == SIMULATE_OPTIONS_PLACE)
        return set_colocation(simulate, text, problem, size);
    simulate->on |= key == SIMULATE_OPTIONS_ON;
    simulate->sweep |= key == SIMULATE_OPTIONS_SWEEP;
    simulate->share_cores |= key == SIMULATE_OPTIONS_SHARE_CORES;
    return true;
}
