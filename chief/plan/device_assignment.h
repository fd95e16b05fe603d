/* SPDX-License-Identifier: Apache-2.0 */
/* Which trainers are on one machine, for the devices that they share: those who
 * see the same one. What the cluster calls their hosts, by name or by number,
 * says nothing here; and who is shown devices that nobody else sees has them to
 * itself. */
#ifndef CAPSTAN_DEVICE_ASSIGNMENT_H
#define CAPSTAN_DEVICE_ASSIGNMENT_H

#include "proto/base/device_head.h"
#include "proto/config/job/job.h"
#include "proto/net/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct run;
struct roster_slot;

/* What a trainer sees. It stays when its process is gone: who comes back finds
 * its place again. */
struct visible_devices {
    bool reported, answered; /* the present process */
    bool known;              /* it, or one before it, has told */
    uint32_t wanted_devices; /* it takes so many where nobody shares them */
    uint32_t count;
    char ids[JOB_MAX_DEVICES][DEVICE_ID];
};

/* The trainer in SLOT tells what it sees. Once all have told each hears its
 * place, and the run is stopped if it cannot be with as many devices as they
 * will take. */
void device_assignment_receive(struct run *run, struct roster_slot *slot,
                               const Capstan__VisibleDevices *visible_devices);

/* The trainer in SLOT declares: nobody waits any more for what it sees, should
 * it not have told. */
void device_assignment_declared(struct run *run,
                                const struct roster_slot *slot);

/* Of RANK: its place among the trainers, by rank, who see one of its devices,
 * and how many those are, 1 at least. */
struct device_assignment_local_rank {
    uint32_t sharer_index, trainers;
};
struct device_assignment_local_rank device_assignment_local_rank(
    const struct run *run, uint32_t rank);

/* Does the trainer of RANK wait for what others see? */
bool device_assignment_is_pending(const struct run *run, uint32_t rank);

#endif
