/* SPDX-License-Identifier: Apache-2.0 */
/* A process beside this one, on this machine, that answers the plain socket
 * and the bare libzmq which a lane is compared with. It ends with this one. */
#ifndef CAPSTAN_BENCH_BASELINE_H
#define CAPSTAN_BENCH_BASELINE_H

#include "proto/base/status.h"

#include <stdint.h>
#include <sys/types.h>

struct bench_baseline {
    pid_t pid;
    uint16_t plain_port, zmq_port;
};

/* Starts it. Call it from a process of one thread: it forks. */
enum status bench_baseline_start(struct bench_baseline *bench_baseline,
                                 struct failure *why) MUST_CHECK;

/* Ends it; may be called twice. */
void bench_baseline_stop(struct bench_baseline *bench_baseline);

#endif
