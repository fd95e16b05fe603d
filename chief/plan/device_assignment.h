/* SPDX-License-Identifier: Apache-2.0 */
/* Divides devices among trainers that share a machine. Two trainers share it if
 * they see a common device; host names and addresses do not matter. A trainer
 * whose visible devices no other trainer sees has them to itself. */
#ifndef CAPSTAN_DEVICE_ASSIGNMENT_H
#define CAPSTAN_DEVICE_ASSIGNMENT_H

#include "core/base/device_head.h"
#include "proto/job/job.h"
#include "proto/messages/message.h"

#include <stdbool.h>
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

/* The trainer in SLOT reports its visible devices. Once all trainers have
 * reported, each gets its assignment. If the run is impossible with the
 * resulting device counts, it is stopped. */
void device_assignment_receive(struct run *run, struct roster_slot *slot,
                               const Capstan__VisibleDevices *visible_devices);

/* The trainer in SLOT has sent its model spec: if it has not reported devices,
 * none are expected any more. */
void device_assignment_declared(struct run *run,
                                const struct roster_slot *slot);

#endif
