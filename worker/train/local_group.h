/* SPDX-License-Identifier: Apache-2.0 */
/* The replicas of one trainer, each on a device of its own. The first computes
 * on the trainer's thread, every other on one of its own, so that each device
 * is given its work at once. Their gradients become one sum, in the order of
 * the replicas: on the devices, where a collective adds there (NCCL), else in
 * the host's memory. Weights go up to each device from where the trainer has
 * them. With one replica there is no thread and nothing to add. */
#ifndef CAPSTAN_LOCAL_GROUP_H
#define CAPSTAN_LOCAL_GROUP_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "worker/collective/local_collective.h"
#include "worker/exchange/allreduce/sequence.h"
#include "worker/train/device_replica.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct local_group;

struct local_group_member {
    struct local_group *local_group;
    uint32_t index;
    struct device_replica device_replica;
    struct device_replica_result result; /* of the present step */
    bool aborted; /* its thread's: the step lost its meaning */

    /* Of all but the first: */
    pthread_t thread;
    struct sequence computed; /* turns whose samples are computed */
    struct sequence gathered; /* parameters added up or brought to the host */
    atomic_bool failed;
    struct failure why; /* read after it has settled, or gathered all */
};

struct local_group {
    const struct log *log; /* borrowed, as all pointers */
    const struct layout *layout;
    struct arena *arena; /* the trainer's */
    const struct collective_ops
        *collective; /* adds on the devices; NULL: the host */
    struct local_collective *local_collective; /* does that, or NULL */
    bool (*is_cancelled)(void *context);       /* from any thread */
    void *context;
    double timeout;  /* seconds */
    uint32_t count;  /* of members */
    uint32_t joined; /* that have a thread */
    struct local_group_member members[JOB_MAX_DEVICES];

    /* The trainer's thread raises these; the others follow. */
    struct sequence started; /* turns begun */
    struct sequence weights; /* parameters that are in the arena */
    struct sequence
        gather_decided; /* turns of which it is known whether to gather */
    uint64_t step_number, uploaded;
    struct device_replica_step step;
    atomic_bool weights_unavailable; /* this turn's weights do not come */
    atomic_uint failed_member; /* 1 + the member whose failure ended what all do
                            together; 0: none */
    bool gathers;
    bool broken; /* nothing more is done together */
};

/* What a team's devices are looked for by; borrowed until it is closed. */
struct local_group_search {
    const struct device_request *request; /* the first's */
    bool alone; /* the only trainer on its host: takes the others too */
    uint32_t max_devices;              /* of devices; 0: any number */
    const struct collective_ops *nccl; /* would add on devices; NULL:
                                          capstan-nccl.so, where it can work */
    const struct log *log;
};

/* Takes the devices that SEARCH means. One but the first that there is no code
 * for is left out with a warning, unless the job asks for CUDA; else as
 * executor_select_device. */
enum status local_group_find(struct local_group *local_group,
                             const struct local_group_search *search,
                             struct failure *why) MUST_CHECK;

/* Do its devices compute later than they are asked (ops.h)? */
bool local_group_is_async(const struct local_group *local_group);

/* Are gradients of several devices added up in the host's memory? */
bool local_group_reduces_on_host(const struct local_group *local_group);

/* What each device of a team computes; borrowed until it is closed. */
struct local_group_model {
    uint32_t count; /* of devices, the first ones: the plan's replicas */
    const struct job *job;
    const struct layout *layout;
    struct arena *arena; /* the trainer's weights and gradients */
    bool evaluates;      /* the first one, too */
    bool resident; /* gradients and state stay on the one device (executor.h) */
};

/* Opens MODEL and lets the devices beyond its count go. STATUS_RETRY: there
 * are fewer; else as executor_open. */
enum status local_group_open(struct local_group *local_group,
                             const struct local_group_model *model,
                             struct failure *why) MUST_CHECK;

/* Opens what delivers samples: SAMPLES is the first replica's, the others'
 * ranks follow. As device_replica_load. */
enum status local_group_load(struct local_group *local_group,
                             const struct dataset *dataset,
                             struct sampler_options samples, uint64_t first,
                             const struct job_data *data,
                             struct failure *why) MUST_CHECK;

/* Ends the threads and closes all; TEAM may be all zero. */
void local_group_close(struct local_group *local_group);

/* The trainer's thread computes a step with all others. STEP's calls come on
 * that thread alone. RESULT is the sum over the replicas, `input` the longest.
 * Be it as it may, local_group_gather follows. */
enum status local_group_compute(struct local_group *local_group,
                                const struct device_replica_step *step,
                                struct device_replica_result *result,
                                struct failure *why) MUST_CHECK;

/* The step's gradients come into the arena, as their sum; where WANTED is
 * false they are left. SAID (may be NULL) hears of each parameter, the last
 * first. On devices without ops.later they were told during
 * local_group_compute. */
enum status local_group_gather(struct local_group *local_group, bool wanted,
                               void (*on_reduced)(void *context,
                                                  uint32_t parameter),
                               void *context, struct failure *why) MUST_CHECK;

#endif
