/* SPDX-License-Identifier: Apache-2.0 */
/* Does what the job takes fit into the memory of those who are to hold it? The
 * sum is made of each limit that members have told of, for all that share it.
 * Pure. */
#ifndef CAPSTAN_MEMORY_PLAN_H
#define CAPSTAN_MEMORY_PLAN_H

#include "proto/base/free_memory.h"
#include "proto/base/status.h"
#include "proto/tensor/memory_footprint.h"

#include <stdbool.h>
#include <stdint.h>

/* What a member has told of its memory as it joined and since, and of that of
 * its devices as it declared. */
struct memory_plan_limits {
    struct free_memory_limit limits[FREE_MEMORY_LIMITS + JOB_MAX_DEVICES];
    unsigned count;
    unsigned devices;  /* the last are those where the trainer computes */
    uint32_t replicas; /* that it has; 0: 1 */
    bool adds_on_host; /* as in memory_footprint.h */
};

/* A member tells again of COUNT limits: where there is more now, that counts.
 * Less does not, as it is what members themselves have begun to take. */
void memory_plan_update_limits(struct memory_plan_limits *reported,
                               const struct free_memory_limit *limits,
                               unsigned count);

/* Forgets the devices of an earlier declaration. */
void memory_plan_clear_devices(struct memory_plan_limits *reported);

/* Keeps the limit of one more device: KEY, NAME and FREE bytes. Beyond
 * JOB_MAX_DEVICES it does nothing. */
void memory_plan_add_device(struct memory_plan_limits *reported,
                            const char *key, const char *name, uint64_t free);

/* All borrowed. */
struct memory_plan_member {
    const char *name, *host;
    const struct memory_plan_limits *reported;
    bool trains;       /* else it is a ps: */
    uint64_t elements; /* that it holds */
    uint32_t remote;   /* trainers on other hosts */
};

/* STATUS_CONFIG when COUNT MEMBERS (at least one) cannot hold what GIVEN takes:
 * WHY has the limit that is passed most, the two figures, whose they are, and
 * which keys of the job help, with what would be taken then. STATUS_RETRY, with
 * the same, when they could if others took nothing of it. */
enum status memory_plan_check(const struct memory_plan_member *members,
                              uint32_t count,
                              const struct memory_footprint_case *given,
                              struct failure *why) MUST_CHECK;

/* What the first trainer and the fullest ps take, and the fullest host. */
void memory_plan_describe(const struct memory_plan_member *members,
                          uint32_t count,
                          const struct memory_footprint_case *given, char *text,
                          size_t size);

#endif
