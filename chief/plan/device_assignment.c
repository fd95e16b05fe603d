/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/device_assignment.h"

#include "chief/plan/device_replicas.h"
#include "chief/run.h"

#include <stdio.h>
#include <string.h>

static bool all_known(const struct run *run) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (!run->trainers[r].visible_devices.known)
            return false;
    return true;
}

static void store_report(struct visible_devices *stored,
                         const Capstan__VisibleDevices *reported) {
    *stored = (struct visible_devices){
        .reported = true,
        .known = true,
        .wanted_devices = reported->wanted_devices > JOB_MAX_DEVICES
                              ? JOB_MAX_DEVICES
                          : reported->wanted_devices ? reported->wanted_devices
                                                     : 1};
    for (size_t i = 0; i < reported->n_devices && i < JOB_MAX_DEVICES; i++)
        snprintf(stored->ids[stored->count++], DEVICE_ID, "%s",
                 reported->devices[i]);
}

static void send_assignment(struct run *run, uint32_t rank) {
    struct device_replicas_local_rank local_rank =
        device_replicas_local_rank(run, rank);
    Capstan__DeviceAssignment device_assignment =
        CAPSTAN__DEVICE_ASSIGNMENT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    device_assignment.sharer_index = local_rank.sharer_index;
    device_assignment.trainers = local_rank.trainers;
    control.body_case = CAPSTAN__CONTROL__BODY_DEVICE_ASSIGNMENT;
    control.device_assignment = &device_assignment;
    run->trainers[rank].visible_devices.answered = true;
    control_server_send(run->control_server, &run->roster.slots[rank],
                        &control);
}

/* Checks the device counts early, before any trainer allocates on a device and
 * while data are still read. */
static bool precheck(struct run *run) {
    if (run->phase != RUN_JOINING)
        return run->phase < RUN_STOPPING;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct run_trainer *trainer = &run->trainers[r];
        if (!trainer->declared)
            trainer->devices = trainer->visible_devices.wanted_devices;
    }
    return device_replicas_precheck(run);
}

/* Once all trainers have reported, answers those that have no answer yet. */
static void send_assignments(struct run *run) {
    if (!all_known(run) || !precheck(run))
        return;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->trainers[r].visible_devices.reported &&
            !run->trainers[r].visible_devices.answered)
            send_assignment(run, r);
}

void device_assignment_receive(struct run *run, struct roster_slot *slot,
                               const Capstan__VisibleDevices *visible_devices) {
    store_report(&run->trainers[slot->rank].visible_devices, visible_devices);
    send_assignments(run);
}

void device_assignment_declared(struct run *run,
                                const struct roster_slot *slot) {
    struct visible_devices *devices =
        &run->trainers[slot->rank].visible_devices;
    if (devices->known)
        return;
    *devices = (struct visible_devices){.known = true, .wanted_devices = 1};
    send_assignments(run);
}
