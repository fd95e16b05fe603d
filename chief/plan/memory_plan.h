/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the job fits into the memory of the hosts and devices: adds up,
 * for each memory limit that members have reported, the need of all members
 * that share it. Pure. */
#ifndef CAPSTAN_MEMORY_PLAN_H
#define CAPSTAN_MEMORY_PLAN_H

#include "core/base/free_memory.h"
#include "core/base/status.h"
#include "proto/plan/memory_footprint.h"

#include <stdbool.h>
#include <stdint.h>

/* A member's report: free memory from its join and its heartbeats, and that of
 * its devices from its model spec. */
struct memory_plan_limits {
    struct free_memory_limit limits[FREE_MEMORY_LIMITS + JOB_MAX_DEVICES];
    unsigned count;
    unsigned devices;  /* the last entries are the devices that the trainer
                          computes on */
    uint32_t replicas; /* of this trainer; 0: 1 */
    bool adds_on_host; /* as in memory_footprint.h */
};

/* A member reports COUNT limits again. Only a higher value counts: a lower one
 * is what members have begun to use themselves. */
void memory_plan_update_limits(struct memory_plan_limits *reported,
                               const struct free_memory_limit *limits,
                               unsigned count);

/* Removes the devices of an earlier model spec. */
void memory_plan_clear_devices(struct memory_plan_limits *reported);

/* Adds the limit of one device: KEY, NAME and FREE bytes. Does nothing beyond
 * JOB_MAX_DEVICES. */
void memory_plan_add_device(struct memory_plan_limits *reported,
                            const char *key, const char *name, uint64_t free);

/* All pointers are borrowed. */
struct memory_plan_member {
    const char *name, *host;
    const struct memory_plan_limits *reported;
    bool trains;       /* otherwise it is a ps */
    uint64_t elements; /* held by the ps; of a trainer: by those of its host */
    uint32_t remote;   /* trainers on other hosts */
};

/* STATUS_CONFIG if COUNT MEMBERS (at least one) cannot hold what GIVEN needs.
 * WHY names the limit that is exceeded most, both figures, the members, and the
 * job keys that help with the resulting need. STATUS_RETRY, with the same text:
 * it would fit if other processes freed their memory. */
enum status memory_plan_check(const struct memory_plan_member *members,
                              uint32_t count,
                              const struct memory_footprint_case *given,
                              struct failure *why) MUST_CHECK;

/* Writes the need of the first trainer, of the fullest ps and of the fullest
 * host. */
void memory_plan_describe(const struct memory_plan_member *members,
                          uint32_t count,
                          const struct memory_footprint_case *given, char *text,
                          size_t size);

#endif
