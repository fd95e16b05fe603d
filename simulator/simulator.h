/* SPDX-License-Identifier: Apache-2.0 */
/* A run of a cluster, simulated: what a round takes with these hosts, links and
 * costs, and the bound of it. Which blocks there are, where they lie, when each
 * is sent, updated and answered is decided by the code that decides it in a
 * real run (layout, placement, window, exchange); time is simulated. Pure: the
 * same case gives the same result. */
#ifndef CAPSTAN_SIMULATOR_H
#define CAPSTAN_SIMULATOR_H

#include "proto/base/status.h"
#include "proto/tensor/layout.h"

#include <stdbool.h>
#include <stdint.h>

#define SIMULATOR_ASYNCHRONOUS UINT64_MAX
enum { SIMULATOR_MAX_WORKERS = 1024, SIMULATOR_MAX_PS = 1024 };

/* Seconds of a core that is busy alone. */
struct simulator_costs {
    double step;         /* of a step of a worker, beside its parameters */
    double message;      /* of a message in each thread that it passes */
    double idle_wakeup;  /* of a thread that has slept until then, and its core
                            too */
    double busy_wakeup;  /* of one that has slept while all cores are busy */
    double send_byte;    /* in the thread that gives it to the kernel */
    double receive_byte; /* in the thread that takes it from there */
    double copy_byte;   /* gathering several blocks, putting weights in place */
    double update_byte; /* of weights */
    double gradient_byte; /* of each gradient that an update or a norm reads */
};

/* Where processes are. */
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
    double link_rate;     /* bytes a second each way a host; 0: no limit */
    double latency;       /* seconds between two hosts */
    uint32_t group_bytes; /* of blocks that share a message, or one block */
    uint32_t cores;       /* of a machine */
    double parallel_efficiency; /* speed of a core when all are busy: (0, 1] */
    bool share_cores; /* all hosts are one machine (network namespaces) */
    double jitter;    /* standard deviation of a step's computing, a share */
    uint64_t seed;
    uint32_t warmup_steps,
        rounds; /* steps of each worker before and while measured */
};

/* What can be busy all the time. */
enum simulator_resource {
    SIMULATOR_PS_OUT,
    SIMULATOR_PS_IN,
    SIMULATOR_WORKER_OUT,
    SIMULATOR_WORKER_IN,
    SIMULATOR_PS_CPU,
    SIMULATOR_WORKER_CPU,
    SIMULATOR_PS_THREAD,     /* the one that updates */
    SIMULATOR_WORKER_THREAD, /* the one that computes */
    SIMULATOR_RESOURCES
};

struct simulator_result {
    double mean, median, p99; /* seconds of a worker's step: a round */
    double rate;  /* rounds, otherwise steps of all workers, a second */
    double bound; /* seconds: max(M/B, nM/(mB)), twice when clipping; 0: no
                     link, or pairs with staleness */
    double share; /* bound / mean */
    double usage[SIMULATOR_RESOURCES];  /* of the busiest of a kind, 0..1 */
    enum simulator_resource bottleneck; /* the most used */
    uint64_t pushed, received; /* bytes of gradients that left, that came */
    uint64_t replied, stored;  /* bytes of weights likewise */
    uint64_t events;
};

/* Simulates GIVEN. STATUS_CONFIG when it cannot be (no worker, more than
 * MODEL_MOST_..., a number that is not positive), STATUS_FAILED when there is
 * no memory or nothing more happens before the end. */
enum status simulator_run(const struct simulator_config *config,
                          struct simulator_result *result,
                          struct failure *why) MUST_CHECK;

/* "link into ps", ... */
const char *simulator_resource_name(enum simulator_resource resource);

#endif
