/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas of the model: one for each device that a trainer computes on. What
 * trainers declare the plan counts: a batch, the samplers, the learning rate
 * and the mean of gradients go by them. */
#ifndef CAPSTAN_DEVICE_REPLICAS_H
#define CAPSTAN_DEVICE_REPLICAS_H

#include "chief/run.h"

/* The trainer in SLOT computes on the devices of DECLARATION. Once there is a
 * plan one that has fewer than that counts on is told to end, and the run goes
 * on without it: false. */
bool device_replicas_declare(struct run *run, struct roster_slot *slot,
                             const Capstan__ModelSpec *model_spec);

/* The trainers' `devices` are what they will take, though they have not said so
 * yet. False: the run cannot be with as many, and is stopped. */
bool device_replicas_precheck(struct run *run);

/* All have declared: counts, solves the batch and says how many there are.
 * False: that cannot be, and the run is stopped. */
bool device_replicas_resolve(struct run *run);

/* Fills LIST [num_ranks] with those of each rank; returns num_ranks. */
uint32_t device_replicas_list(const struct run *run, uint32_t *list);

/* "replicas: 16 (4 workers x 4 devices)" */
void device_replicas_describe(const struct run *run, char *text, size_t size);

#endif
