/* SPDX-License-Identifier: Apache-2.0 */
/* Model replicas: one for each device that a trainer computes on. The plan
 * counts them; batch size, samplers, learning rate and the mean of gradients
 * depend on the count. */
#ifndef CAPSTAN_DEVICE_REPLICAS_H
#define CAPSTAN_DEVICE_REPLICAS_H

#include "chief/run.h"

/* Stores the devices in MODEL_SPEC for the trainer in SLOT. False: there is a
 * plan and the trainer has fewer devices than planned; it is told to end, and
 * the run continues without it. */
bool device_replicas_declare(struct run *run, struct roster_slot *slot,
                             const Capstan__ModelSpec *model_spec);

/* Checks the `devices` that trainers will use before they have sent their model
 * spec. False: the run is impossible with them, and is stopped. */
bool device_replicas_precheck(struct run *run);

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

#endif
