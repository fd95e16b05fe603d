/* SPDX-License-Identifier: Apache-2.0 */
/* Simulates a run of a cluster: the time of a round with given hosts, links and
 * costs, and its bound. The code of a real run decides the blocks, their
 * placement, and when each is sent, updated and answered (layout, placement,
 * window, update_core); only time is simulated. Pure: the same case gives the
 * same result. */
#ifndef CAPSTAN_SIMULATOR_H
#define CAPSTAN_SIMULATOR_H

#include "core/base/status.h"
#include "core/tensor/layout.h"

#include <stdbool.h>
#include <stdint.h>

#define SIMULATOR_ASYNCHRONOUS UINT64_MAX
enum { SIMULATOR_MAX_WORKERS = 1024, SIMULATOR_MAX_PS = 1024 };

/* Seconds on a core while the other cores are idle. */
struct simulator_costs {
    double step;    /* computing of a worker's step, besides its parameters */
    double message; /* for each thread that a message passes */
    double idle_wakeup;  /* waking a thread whose core slept too */
    double busy_wakeup;  /* waking a thread while all cores are busy */
    double send_byte;    /* in the thread that writes it to the kernel */
    double receive_byte; /* in the thread that reads it from the kernel */
    double copy_byte; /* gathering several blocks, copying weights into place */
    double update_byte;   /* of weights */
    double gradient_byte; /* of each gradient that an update or a norm reads */
};

/* Placement of processes. */
enum simulator_colocation {
    SIMULATOR_COLOCATE_NONE,  /* each on a host of its own */
    SIMULATOR_COLOCATE_PAIRS, /* worker i and ps i share a host */
    SIMULATOR_COLOCATE_ALL,   /* all on one host: no link is used */
};

struct simulator_config {
    uint32_t num_ps, num_workers;
    const struct layout *layout;      /* borrowed */
    const double *forward, *backward; /* [num_parameters] seconds; borrowed */
    struct simulator_costs costs;
    uint64_t staleness; /* 0, N, or SIMULATOR_ASYNCHRONOUS */
    bool clip, bf16;    /* strategy.wire: half the bytes */
    enum simulator_colocation colocation;
    double
        link_rate; /* bytes a second in each direction of a host; 0: no limit */
    double latency;             /* seconds between two hosts */
    uint32_t group_bytes;       /* bytes of blocks in a message, or one block */
    uint32_t cores;             /* of a host */
    double parallel_efficiency; /* speed of a core when all are busy: (0, 1] */
    bool share_cores; /* all hosts share one machine (network namespaces) */
    double jitter;    /* standard deviation of a step's computing time, as a
                         fraction */
    uint64_t seed;
    uint32_t warmup_steps,
        rounds; /* steps of each worker before and during the measurement */
};

/* Resources that can be a bottleneck. */
enum simulator_resource {
    SIMULATOR_PS_OUT,
    SIMULATOR_PS_IN,
    SIMULATOR_WORKER_OUT,
    SIMULATOR_WORKER_IN,
    SIMULATOR_PS_CPU,
    SIMULATOR_WORKER_CPU,
    SIMULATOR_PS_THREAD,     /* the thread that updates */
    SIMULATOR_WORKER_THREAD, /* the thread that computes */
    SIMULATOR_RESOURCES
};

struct simulator_result {
    double mean, median, p99; /* seconds of a worker's step: a round */
    double rate;  /* rounds, otherwise steps of all workers, a second */
    double bound; /* seconds: max(M/B, nM/(mB)), doubled with clipping; 0: no
                     link, or pairs with staleness */
    double share; /* bound / mean */
    double usage[SIMULATOR_RESOURCES];  /* of the busiest of a kind, 0..1 */
    enum simulator_resource bottleneck; /* the most used */
    uint64_t pushed, received;          /* bytes of gradients sent, received */
    uint64_t replied, stored;           /* bytes of weights sent, received */
    uint64_t events;
};

/* Simulates CONFIG. STATUS_CONFIG if it is impossible (no worker, too many
 * processes, a number that is not positive); STATUS_FAILED if memory is short
 * or no event is left before the end. */
enum status simulator_run(const struct simulator_config *config,
                          struct simulator_result *result,
                          struct failure *why) MUST_CHECK;

#endif
