/* SPDX-License-Identifier: Apache-2.0 */
/* Model replicas: one for each device that a trainer computes on. The plan
 * counts them; batch size, samplers, learning rate and the mean of gradients
 * depend on the count. */
#ifndef CAPSTAN_DEVICE_REPLICAS_H
#define CAPSTAN_DEVICE_REPLICAS_H

#include "core/base/device_head.h"
#include "proto/job/job.h"
#include "proto/messages/message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct run;
struct roster_slot;

/* The devices that a trainer sees. They outlive its process, so that its
 * successor gets the same place. */
struct visible_devices {
    bool reported, answered; /* by the current process */
    bool known;              /* this process or an earlier one has reported */
    uint32_t wanted_devices; /* how many it uses if none are shared */
    uint32_t count;
    char ids[JOB_MAX_DEVICES][DEVICE_ID];
};

/* Stores the devices in MODEL_SPEC for the trainer in SLOT. False: there is a
 * plan and the trainer has fewer devices than planned; it is told to end, and
 * the run continues without it. */
bool device_replicas_declare(struct run *run, struct roster_slot *slot,
                             const Capstan__ModelSpec *model_spec);

/* All trainers have sent their model spec: counts and logs the replicas and
 * solves the batch. False: that is impossible, and the run is stopped. */
bool device_replicas_resolve(struct run *run);

/* Fills LIST [num_ranks] with the replicas of each rank; returns num_ranks. */
uint32_t device_replicas_list(const struct run *run, uint32_t *list);

/* The devices that trainers compute on, each counted once however many share
 * it; 0: CPUs. */
uint32_t device_replicas_devices(const struct run *run);

/* "replicas: 16 (4 workers x 4 devices)" */
void device_replicas_describe(const struct run *run, char *text, size_t size);

/* The place of RANK, in rank order, among the trainers that share a device with
 * it, and their number (at least 1). */
struct device_replicas_local_rank {
    uint32_t sharer_index, trainers;
};
struct device_replicas_local_rank device_replicas_local_rank(
    const struct run *run, uint32_t rank);

/* The trainer in SLOT reports its visible devices. Once all trainers have
 * reported, each gets its assignment. If the run is impossible with the
 * resulting device counts, it is stopped. */
void device_replicas_receive_visible(
    struct run *run, struct roster_slot *slot,
    const Capstan__VisibleDevices *visible_devices);

/* Of a run that this chief adopts: RANK has REPORTED to the chief before, and
 * has its place. NULL: that is not known, and nobody waits for it. */
void device_replicas_take_over(struct run *run, uint32_t rank,
                               const Capstan__VisibleDevices *reported);

/* The trainer in SLOT has sent its model spec: if it has not reported devices,
 * none are expected any more. */
void device_replicas_have_declared(struct run *run,
                                   const struct roster_slot *slot);

#endif
