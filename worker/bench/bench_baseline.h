/* SPDX-License-Identifier: Apache-2.0 */
/* A child process on this host that answers the plain-socket and bare-libzmq
 * baselines. It ends with this process. */
#ifndef CAPSTAN_BENCH_BASELINE_H
#define CAPSTAN_BENCH_BASELINE_H

#include "proto/base/status.h"

#include <stdint.h>
#include <sys/types.h>

struct bench_baseline {
    pid_t pid;
    uint16_t plain_port, zmq_port;
};

/* Starts the process. It forks: call it from a single-threaded process. */
enum status bench_baseline_start(struct bench_baseline *bench_baseline,
                                 struct failure *why) MUST_CHECK;

/* Stops the process; may be called twice. */
void bench_baseline_stop(struct bench_baseline *bench_baseline);

#endif
