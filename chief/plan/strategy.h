/* SPDX-License-Identifier: Apache-2.0 */
/* Parameter server or all-reduce: what the job says, or what the cluster
 * suggests. */
#ifndef CAPSTAN_STRATEGY_H
#define CAPSTAN_STRATEGY_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/config/job/job.h"

#include <stdbool.h>
#include <stdint.h>

/* By what a cluster has its members, for texts: what to add there. */
enum strategy_members {
    STRATEGY_BY_LISTS,
    STRATEGY_BY_RANKS,  /* of which --num-ps are ps */
    STRATEGY_BY_FLAGS,  /* of capstan local */
    STRATEGY_BY_COUNTS, /* of a TensorFlow distribution */
};

struct strategy_case {
    uint32_t trainers, num_ps;
    bool alone; /* no cluster at all */
    enum strategy_members members;
};

struct strategy {
    bool allreduce;
    const char *backend; /* of all-reduce: "gloo", "nccl", or "auto", which
                            strategy_resolve_backend settles */
};

/* Fills *OUT and logs what is taken and why. STATUS_CONFIG when nobody trains,
 * when ps are asked for and none is listed, or when the job has settings that
 * the strategy which the cluster means cannot have. */
enum status strategy_choose(struct strategy *out, const struct job *job,
                            const struct strategy_case *given,
                            const struct log *log,
                            struct failure *why) MUST_CHECK;

/* What a trainer has told of where it computes. */
struct strategy_rank {
    const char *name;
    const char *device;       /* that has memory of its own: whose name no other
                                 device has; NULL: none */
    const char *without_nccl; /* why its plugin cannot work there; "": it can */
    uint32_t replicas;        /* devices that it computes on */
};

/* "auto" becomes "nccl" where each of COUNT RANKS has a device of its own and
 * what is summed stays there, else "gloo"; LOG hears which, and why. */
const char *strategy_resolve_backend(const struct job *job,
                                     const struct strategy_rank *ranks,
                                     uint32_t count, const struct log *log);

/* Do weights, gradients and state of COUNT RANKS stay on their devices? Either
 * all ranks' do, or nobody's. */
bool strategy_resident(const struct job *job, const char *backend,
                       const struct strategy_rank *ranks, uint32_t count);

#endif
