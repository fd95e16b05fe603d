/* SPDX-License-Identifier: Apache-2.0 */
/* The device replicas of one trainer. The first computes on the trainer's
 * thread, each other on its own, so that all devices get their work at once.
 * Their gradients are summed in replica order: on the devices if a collective
 * can (NCCL), else in host memory. Weights are uploaded to each device from the
 * trainer's arena. With one replica there is no thread and nothing to sum. */
#ifndef CAPSTAN_LOCAL_GROUP_H
#define CAPSTAN_LOCAL_GROUP_H

#include "core/base/log.h"
#include "core/base/status.h"
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
    struct device_replica_result result; /* of this step */
    bool aborted; /* set by its thread: the step was aborted */

    /* Of all but the first: */
    pthread_t thread;
    struct sequence computed; /* steps whose samples are computed */
    struct sequence gathered; /* parameters summed, or downloaded to the host */
    atomic_bool failed;
    struct failure why; /* read after `computed` or `gathered` is complete */
};

struct local_group {
    const struct log *log; /* borrowed, as are all pointers */
    const struct layout *layout;
    const struct features *features; /* of the data; NULL: none */
    struct arena *arena;             /* the trainer's */
    /* Sums on the devices; NULL: the host sums. */
    const struct collective_ops *collective;
    struct local_collective *local_collective; /* the group of these, or NULL */
    bool (*is_cancelled)(void *context);       /* from any thread */
    void *context;
    double timeout;  /* seconds */
    uint32_t count;  /* of members */
    uint32_t joined; /* members that have a thread */
    struct local_group_member members[JOB_MAX_DEVICES];

    /* The compute thread raises these; the other threads wait for them. */
    struct sequence started;        /* steps begun */
    struct sequence weights;        /* parameters in the arena */
    struct sequence gather_decided; /* steps for which gathering is decided */
    uint64_t step_number, uploaded;
    struct device_replica_step step;
    atomic_bool weights_unavailable; /* this step's weights will not come */
    atomic_uint failed_member; /* 1 + the member whose failure ended a joint
                                  operation; 0: none */
    bool gathers;
    bool broken; /* no further joint operation */
};

/* How a group's devices are selected; borrowed until the group is closed. */
struct local_group_search {
    const struct local_device_request *request; /* the first device's */
    bool alone; /* the only trainer on its host: uses the other devices too */
    uint32_t max_devices; /* 0: any number */
    /* Sums on devices; NULL: capstan-nccl.so, if it works. */
    const struct collective_ops *nccl;
    bool has_secret; /* of the run: not by capstan-nccl.so */
    const struct log *log;
};

/* Selects the devices of SEARCH. A device other than the first for which there
 * is no code is skipped with a warning unless the job asks for CUDA; else as
 * executor_select_device. */
enum status local_group_find(struct local_group *group,
                             const struct local_group_search *search,
                             struct failure *why) MUST_CHECK;

/* True if several devices' gradients are summed in host memory. */
bool local_group_reduces_on_host(const struct local_group *group);

/* What each device of a group computes; borrowed until the group is closed. */
struct local_group_model {
    uint32_t count; /* number of devices, the first ones: the plan's device
                       replicas */
    const struct job *job;
    const struct layout *layout;
    const struct features *features; /* of the data; NULL: none */
    bool pixels;                     /* executor.h */
    struct arena *arena;             /* the trainer's weights and gradients */
    bool evaluates;                  /* the first device also evaluates */
    /* Gradients and state stay on the only device (executor.h). */
    bool resident;
};

/* Opens MODEL and closes the devices beyond its count. STATUS_RETRY: there are
 * fewer; else as executor_open. */
enum status local_group_open(struct local_group *group,
                             const struct local_group_model *model,
                             struct failure *why) MUST_CHECK;

/* Opens the loaders: SAMPLES is the first replica's, the others have the
 * following ranks. As device_replica_load. */
enum status local_group_load(struct local_group *group,
                             const struct dataset *dataset,
                             struct sampler_options samples, uint64_t first,
                             const struct job_data *data,
                             struct failure *why) MUST_CHECK;

/* Ends the threads and closes all; GROUP may be all zero. */
void local_group_close(struct local_group *group);

/* Leaves out the samples of COUNT micro batches of each replica, between two
 * steps. */
enum status local_group_skip(struct local_group *group, uint64_t count,
                             struct failure *why) MUST_CHECK;

/* The compute thread computes a step together with all others. STEP's
 * callbacks run on that thread only. RESULT is the sum over the replicas, with
 * the longest `input`. Always followed by local_group_gather, also after a
 * failure. */
enum status local_group_compute(struct local_group *group,
                                const struct device_replica_step *step,
                                struct device_replica_result *result,
                                struct failure *why) MUST_CHECK;

/* Puts the sum of the step's gradients into the arena; if not WANTED, discards
 * them. Calls ON_REDUCED (may be NULL) for each parameter, the last first; on
 * devices without ops.async local_group_compute has done so already. */
enum status local_group_gather(struct local_group *group, bool wanted,
                               void (*on_reduced)(void *context,
                                                  uint32_t parameter),
                               void *context, struct failure *why) MUST_CHECK;

#endif
