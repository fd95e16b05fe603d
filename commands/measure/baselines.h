/* SPDX-License-Identifier: Apache-2.0 */
/* The baselines of `capstan bench`: what moves the same vectors without
 * Capstan's code. They are a plugin beside the program, capstan-bench.so, which
 * tests/bench/baseline_process.c describes; it exports one such table as the
 * symbol `capstan_baselines`. */
#ifndef CAPSTAN_BASELINES_H
#define CAPSTAN_BASELINES_H

#include "commands/measure/bench_iteration.h"
#include "core/base/plugin.h"
#include "core/base/status.h"

enum { BASELINES_ABI = 1 };
#define BASELINES_SYMBOL "capstan_baselines"

enum baseline { BASELINE_SOCKET, BASELINE_ZMQ };

/* The plugin's own struct begins with it. */
struct baselines {
    const struct baselines_ops *ops;
};

struct baselines_ops {
    struct plugin_head head;

    /* Starts a process on this host that answers all baselines. It forks: call
     * it before the first thread. */
    enum status (*open)(struct baselines **out, struct failure *why);

    /* Stops the process and clears *BASELINES (may be NULL). */
    void (*close)(struct baselines **baselines);

    /* Runs BENCH_ITERATION over BASELINE, the first time after it has
     * connected. STATUS_RETRY: no memory, no connection or no answer. */
    enum status (*run)(struct baselines *baselines, enum baseline baseline,
                       struct bench_iteration *bench_iteration,
                       struct failure *why);
};

#endif
