/* SPDX-License-Identifier: Apache-2.0 */
/* The replicas of one trainer, each on a device of its own. The first computes
 * on the trainer's thread, every other on one of its own, so that each device
 * is given its work at once. Their gradients become one sum, in the order of
 * the replicas: on the devices, where a collective adds there (NCCL), else in
 * the host's memory. Weights go up to each device from where the trainer has
 * them. With one replica there is no thread and nothing to add. */
#ifndef CAPSTAN_TEAM_H
#define CAPSTAN_TEAM_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "worker/collective/siblings.h"
#include "worker/exchange/allreduce/mark.h"
#include "worker/train/replica.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct team;

struct team_member {
    struct team *team;
    uint32_t index;
    struct replica replica;
    struct replica_result result; /* of the present step */
    bool forsaken;                /* its thread's: the step lost its meaning */

    /* Of all but the first: */
    pthread_t thread;
    struct mark settled;  /* turns whose samples are computed */
    struct mark gathered; /* parameters added up or brought to the host */
    atomic_bool failed;
    struct failure why; /* read after it has settled, or gathered all */
};

struct team {
    const struct log *log; /* borrowed, as all pointers */
    const struct layout *layout;
    struct arena *arena;             /* the trainer's */
    const struct collective_ops *by; /* adds on the devices; NULL: the host */
    struct siblings *siblings;       /* does that, or NULL */
    bool (*given_up)(void *context); /* from any thread */
    void *context;
    double timeout;  /* seconds */
    uint32_t count;  /* of members */
    uint32_t joined; /* that have a thread */
    struct team_member members[JOB_MOST_DEVICES];

    /* The trainer's thread raises these; the others follow. */
    struct mark go;      /* turns begun */
    struct mark weights; /* parameters that are in the arena */
    struct mark decided; /* turns of which it is known whether to gather */
    uint64_t turn, brought;
    struct replica_step step;
    atomic_bool abandoned; /* this turn's weights do not come */
    atomic_uint culprit;   /* 1 + the member whose failure ended what all do
                              together; 0: none */
    bool gathers;
    bool broken; /* nothing more is done together */
};

/* What a team's devices are looked for by; borrowed until it is closed. */
struct team_search {
    const struct device_wish *wish; /* the first's */
    bool alone;    /* the only trainer on its host: takes the others too */
    uint32_t most; /* of devices; 0: any number */
    const struct collective_ops *nccl; /* would add on devices; NULL:
                                          capstan-nccl.so, where it can work */
    const struct log *log;
};

/* Takes the devices that SEARCH means. One but the first that there is no code
 * for is left out with a warning, unless the job asks for CUDA; else as
 * engine_find. */
enum status team_find(struct team *team, const struct team_search *search,
                      struct failure *why) MUST_CHECK;

/* Do its devices compute later than they are asked (ops.h)? */
bool team_is_remote(const struct team *team);

/* Are gradients of several devices added up in the host's memory? */
bool team_adds_on_host(const struct team *team);

/* What each device of a team computes; borrowed until it is closed. */
struct team_model {
    uint32_t count; /* of devices, the first ones: the plan's replicas */
    const struct job *job;
    const struct layout *layout;
    struct arena *arena; /* the trainer's weights and gradients */
    bool evaluates;      /* the first one, too */
    bool resident; /* gradients and state stay on the one device (engine.h) */
};

/* Opens MODEL and lets the devices beyond its count go. STATUS_RETRY: there
 * are fewer; else as engine_open. */
enum status team_open(struct team *team, const struct team_model *model,
                      struct failure *why) MUST_CHECK;

/* Opens what delivers samples: SAMPLES is the first replica's, the others'
 * ranks follow. As replica_load. */
enum status team_load(struct team *team, const struct dataset *dataset,
                      struct sampler_options samples, uint64_t first,
                      const struct job_data *data,
                      struct failure *why) MUST_CHECK;

/* Ends the threads and closes all; TEAM may be all zero. */
void team_close(struct team *team);

/* The trainer's thread computes a step with all others. STEP's calls come on
 * that thread alone. RESULT is the sum over the replicas, `input` the longest.
 * Be it as it may, team_gather follows. */
enum status team_compute(struct team *team, const struct replica_step *step,
                         struct replica_result *result,
                         struct failure *why) MUST_CHECK;

/* The step's gradients come into the arena, as their sum; where WANTED is
 * false they are left. SAID (may be NULL) hears of each parameter, the last
 * first. On devices without ops.later they were told during team_compute. */
enum status team_gather(struct team *team, bool wanted,
                        void (*said)(void *context, uint32_t parameter),
                        void *context, struct failure *why) MUST_CHECK;

#endif
