/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses parameter server or all-reduce, from the job or else from the
 * cluster. */
#ifndef CAPSTAN_STRATEGY_H
#define CAPSTAN_STRATEGY_H

#include "core/base/log.h"
#include "core/base/status.h"
#include "proto/job/job.h"
#include "proto/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct run;
struct run_trainer;

/* How the cluster lists its members; error texts say accordingly what to add.
 */
enum strategy_members {
    STRATEGY_BY_LISTS,
    STRATEGY_BY_RANKS,  /* --num-ps of them are ps */
    STRATEGY_BY_FLAGS,  /* flags of capstan local */
    STRATEGY_BY_COUNTS, /* of a TensorFlow distribution */
};

struct strategy_case {
    uint32_t trainers, num_ps;
    bool alone; /* no cluster is configured */
    enum strategy_members members;
};

struct strategy {
    bool allreduce;
    const char *backend; /* with all-reduce: "gloo", "nccl", or "auto", which
                            strategy_resolve_backend resolves */
};

/* Fills *OUT and logs the choice with its reason. STATUS_CONFIG: there is no
 * trainer, or the job asks for ps and none is listed, or the chosen strategy
 * does not support a setting of the job. */
enum status strategy_choose(struct strategy *out, const struct job *job,
                            const struct strategy_case *given,
                            const struct log *log,
                            struct failure *why) MUST_CHECK;

/* Where a trainer computes, from its model spec. */
struct strategy_rank {
    const char *name;
    const char *device; /* name of its device with own memory; NULL: none */
    const char *without_nccl; /* why nccl cannot work there; "": it can */
    uint32_t replicas;        /* devices that it computes on */
};

/* Resolves "auto": "nccl" if each of COUNT RANKS has a device of its own on
 * which the reduced tensors stay, else "gloo". Logs the choice with its reason.
 */
const char *strategy_resolve_backend(const struct job *job,
                                     const struct strategy_rank *ranks,
                                     uint32_t count, const struct log *log);

/* Do weights, gradients and optimizer state of COUNT RANKS stay on their
 * devices? The answer is the same for all ranks. */
bool strategy_resident(const struct job *job, const char *backend,
                       const struct strategy_rank *ranks, uint32_t count);

/* Stores in TRAINER from its model spec where it computes. */
void strategy_declare_rank(struct run_trainer *trainer,
                           const Capstan__ModelSpec *model_spec);

/* Selects the collective backend, and whether the reduced tensors stay on the
 * trainers' devices; the plan fixes both, so that all ranks agree. Fills
 * `backend` and `resident` once all trainers have sent their model spec
 * and have their replicas. False: it failed, and the run is stopped. */
bool strategy_select_collective(struct run *run);

#endif
