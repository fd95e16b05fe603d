/* SPDX-License-Identifier: Apache-2.0 */
/* Whole runs of 1 ps and 1 worker for gpu_bench, and the wire between them:
 * `capstan local` and `capstan bench`, whose objects are read. */
#ifndef CAPSTAN_GPU_CLUSTER_H
#define CAPSTAN_GPU_CLUSTER_H

#include "core/base/status.h"
#include "tests/bench/gpu_use.h"

#include <stdbool.h>
#include <stdint.h>

struct gpu_cluster {
    const char *program;     /* the path of capstan */
    const char *job;         /* the file */
    const char *device;      /* "cuda", "cpu" */
    const char *const *sets; /* more of --set */
    unsigned num_sets;
    bool tf32;           /* the job's */
    struct gpu_use *use; /* sampled meanwhile */
};

/* Seconds a step, as the run's object tells them: of the trainer, and the
 * ps's `update`. */
struct gpu_cluster_run {
    double step, input, compute, waiting, update;
    double samples; /* of a step */
    double bytes;   /* of all weights on the wire, one way */
    double gpu_use; /* percent while it trained; NAN: not known */
};

/* Trains for STEPS batches of BATCH samples by LANE ("tcp", "auto"); fails if
 * they had others. */
enum status gpu_cluster_train(struct gpu_cluster_run *out,
                              const struct gpu_cluster *cluster,
                              const char *lane, uint32_t batch, uint64_t steps,
                              struct failure *why) MUST_CHECK;

/* Gbit/s of a plain TCP connection to this machine's own address with vectors
 * of BYTES: one way, and each way with the other under way. */
struct gpu_cluster_wire {
    double one_way, both_ways;
};

enum status gpu_cluster_wire(struct gpu_cluster_wire *out,
                             const struct gpu_cluster *cluster, uint64_t bytes,
                             double seconds, struct failure *why) MUST_CHECK;

#endif
