/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/plan/device_replicas.h"

#include "chief/control/membership.h"
#include "chief/plan/memory_plan.h"
#include "chief/rewind.h"
#include "chief/run.h"
#include "proto/plan/run_schedule.h"

#include <stdio.h>
#include <string.h>

static void store_devices(struct memory_plan_limits *reported,
                          uint32_t replicas,
                          const Capstan__ModelSpec *model_spec) {
    memory_plan_clear_devices(reported);
    for (size_t i = 0; i < model_spec->n_devices; i++) {
        const Capstan__MemoryLimit *device = model_spec->devices[i];
        memory_plan_add_device(reported, device->key, device->name,
                               device->free);
    }
    reported->replicas = replicas;
    reported->adds_on_host = model_spec->adds_on_host;
}

/* The mean of a round and the samplers of the other trainers assume the planned
 * replicas, so there cannot be fewer. Additional devices stay unused. */
static void dismiss(struct run *run, struct roster_slot *slot) {
    const struct run_trainer *trainer = &run->trainers[slot->rank];
    char text[512], name[64];
    roster_name(slot, name, sizeof name);
    snprintf(
        text, sizeof text,
        "%s on host %s has %u device%s to compute on, and this run needs %u: "
        "start it where there are as many (CUDA_VISIBLE_DEVICES, docs/gpu.md)",
        name, slot->host, trainer->devices, log_plural(trainer->devices),
        trainer->replicas);
    membership_dismiss(run, slot, FAILURE_TOO_FEW_DEVICES, text);
}

bool device_replicas_declare(struct run *run, struct roster_slot *slot,
                             const Capstan__ModelSpec *model_spec) {
    struct run_trainer *trainer = &run->trainers[slot->rank];
    uint32_t devices = model_spec->replicas;
    trainer->devices = devices > JOB_MAX_DEVICES ? JOB_MAX_DEVICES
                       : devices                 ? devices
                                                 : 1;
    store_devices(&run->plan.limits[slot - run->roster.slots], trainer->devices,
                  model_spec);
    if (trainer->devices >= trainer->replicas)
        return true;
    dismiss(run, slot);
    return false;
}

/* Does each trainer have as many replicas as rank 0? OTHER: one that does not.
 */
static bool is_uniform(const struct run *run, uint32_t *other) {
    for (*other = 1; *other < run->roster.num_ranks; ++*other)
        if (run->trainers[*other].replicas != run->trainers[0].replicas)
            return false;
    return true;
}

/* With staleness each push is an update, and all updates have the same batch. A
 * series also contains synchronous runs, which allow different counts. */
static bool check_uniform(struct run *run) {
    uint32_t other;
    char names[2][64];
    if (run_synchronous(run) || is_uniform(run, &other))
        return true;
    const struct roster_slot *slots = run->roster.slots;
    uint32_t counts[2] = {run->trainers[0].replicas,
                          run->trainers[other].replicas};
    roster_name(&slots[0], names[0], sizeof names[0]);
    roster_name(&slots[other], names[1], sizeof names[1]);
    run_stop(run, run->series ? FAILURE_COMPARE_FAILED : FAILURE_DEVICES_DIFFER,
             "replicas: %s on host %s computes on %u devices, %s on host %s on "
             "%u; with strategy.staleness each push is an update of the same "
             "batch, so all trainers need as many: show each as many "
             "(CUDA_VISIBLE_DEVICES), or set \"devices\": %u",
             names[0], slots[0].host, counts[0], names[1], slots[other].host,
             counts[1], counts[0] < counts[1] ? counts[0] : counts[1]);
    return false;
}

/* Solves JOB's batch for the replicas of all trainers. */
static bool device_replicas_solve_batch(struct run *run, struct job *job) {
    uint32_t other;
    struct job_replicas replicas = {
        run_num_shares(run), run->plan.num_replicas,
        is_uniform(run, &other) ? run->trainers[0].replicas : 0};
    struct failure why;
    if (job_solve_replicas(job, replicas, &why)) {
        run_stop(run, why.code, "%s", why.text);
        return false;
    }
    return true;
}

/* The batches of the longest share: a trainer whose own is over sends nothing
 * for the rest of the epoch. */
static uint64_t longest_share(struct run *run) {
    uint64_t most = 0;
    run->plan.share_samples = 0;
    for (uint32_t r = 0; r < run_num_shares(run); r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        uint64_t batches = run_schedule_share_batches(
            trainer->share_samples / trainer->replicas, 1,
            run->job->micro_batch, run->job->data.drop_last);
        most = batches > most ? batches : most;
        run->plan.share_samples += trainer->share_samples;
    }
    return most;
}

/* A batch that is not full has another mean than the learning rate was chosen
 * for, and a trainer with a smaller share takes part in fewer rounds. */
static void warn_of_short_share(const struct run *run) {
    uint64_t least = UINT64_MAX;
    uint32_t rank = 0, replicas = run->plan.num_replicas;
    char name[64];
    for (uint32_t r = 0; r < run_num_shares(run); r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        uint64_t share =
            trainer->share_samples
                ? trainer->share_samples / trainer->replicas
                : run_schedule_share_samples(run->plan.train_samples, replicas);
        rank = share < least ? r : rank;
        least = share < least ? share : least;
    }
    if (!least || least >= run->job->micro_batch)
        return;
    roster_name(&run->roster.slots[rank], name, sizeof name);
    log_warning(run->log, "batch_exceeds_share",
                "%s has %llu sample%s of the data for a replica, less than a "
                "micro batch of %u: its batches are never full; make "
                "train_micro_batch_size_per_gpu %llu or less, or use fewer "
                "trainers",
                name, (unsigned long long)least, log_plural(least),
                run->job->micro_batch, (unsigned long long)least);
}

/* Computes the batches per epoch of one replica. */
static bool set_batches_per_epoch(struct run *run) {
    const struct job *job = run->job;
    if (!run->plan.batches_per_epoch)
        run->plan.batches_per_epoch = longest_share(run);
    if (!run->plan.batches_per_epoch)
        run->plan.batches_per_epoch = run_schedule_share_batches(
            run->plan.train_samples, run->plan.num_replicas, job->micro_batch,
            job->data.drop_last);
    if (run->plan.batches_per_epoch) {
        warn_of_short_share(run);
        return true;
    }
    uint64_t share = run_schedule_share_samples(run->plan.train_samples,
                                                run->plan.num_replicas);
    run_stop(
        run, FAILURE_DATA_TOO_SMALL,
        "data.drop_last leaves nothing of an epoch: a replica's share is "
        "%llu samples (%llu over %u replicas), the micro batch %u; make "
        "train_micro_batch_size_per_gpu %llu or less, or drop_last false",
        (unsigned long long)share, (unsigned long long)run->plan.train_samples,
        run->plan.num_replicas, job->micro_batch, (unsigned long long)share);
    return false;
}

static bool has_device(const struct visible_devices *devices, const char *id) {
    for (uint32_t i = 0; i < devices->count; i++)
        if (!strcmp(devices->ids[i], id))
            return true;
    return false;
}

static bool device_replicas_overlap(const struct visible_devices *a,
                                    const struct visible_devices *b) {
    for (uint32_t i = 0; i < a->count; i++)
        if (has_device(b, a->ids[i]))
            return true;
    return false;
}

struct device_replicas_local_rank device_replicas_local_rank(
    const struct run *run, uint32_t rank) {
    struct device_replicas_local_rank out = {0, 1};
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        bool shares = r != rank && device_replicas_overlap(
                                       &run->trainers[rank].visible_devices,
                                       &run->trainers[r].visible_devices);
        out.trainers += shares;
        out.sharer_index += shares && r < rank;
    }
    return out;
}

/* Is RANK beyond the list, and not here? */
static bool may_join(const struct run *run, uint32_t rank) {
    return run_is_beyond(run, rank) &&
           run->roster.slots[rank].state != ROSTER_HELD;
}

/* A trainer that took all devices before another one joined on its machine
 * keeps only the first. One that may join needs as many as the others. */
static void device_replicas_count(struct run *run) {
    run->plan.num_replicas = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct run_trainer *trainer = &run->trainers[r];
        bool shares = device_replicas_local_rank(run, r).trainers > 1;
        trainer->replicas = shares ? 1 : trainer->devices;
        if (!run_is_beyond(run, r))
            run->plan.num_replicas += trainer->replicas;
        else if (may_join(run, r))
            trainer->replicas = run->trainers[0].replicas;
    }
}

/* Checks the devices that trainers will use before they have sent their model
 * spec. The plan is made later; nothing of this check is kept. False: the run
 * is impossible with them, and is stopped. */
static bool device_replicas_precheck(struct run *run) {
    struct job job = *run->job;
    device_replicas_count(run);
    bool may_be = check_uniform(run) && device_replicas_solve_batch(run, &job);
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        run->trainers[r].replicas = 0;
    run->plan.num_replicas = 0;
    return may_be;
}

/* Does any trainer compute on a device with memory of its own? */
static bool device_replicas_has_devices(const struct run *run) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->plan.limits[r].devices || run->trainers[r].replicas > 1)
            return true;
    return false;
}

bool device_replicas_resolve(struct run *run) {
    char text[512];
    device_replicas_count(run);
    if (!check_uniform(run) || !device_replicas_solve_batch(run, run->job) ||
        !set_batches_per_epoch(run))
        return false;
    device_replicas_describe(run, text, sizeof text);
    if (device_replicas_has_devices(run))
        log_info(run->log, "devices_assigned", "%s", text);
    return true;
}

uint32_t device_replicas_list(const struct run *run, uint32_t *list) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        list[r] = run->trainers[r].replicas;
    return run->roster.num_ranks;
}

/* The ids of the devices that RANK's trainer computes on: FIRST, and how many.
 */
static uint32_t devices_of(const struct run *run, uint32_t rank,
                           const struct free_memory_limit **first) {
    const struct memory_plan_limits *limits = &run->plan.limits[rank];
    uint32_t used = run->trainers[rank].replicas;
    *first = &limits->limits[limits->count - limits->devices];
    return used < limits->devices ? used : limits->devices;
}

static bool is_used_before(const struct run *run, uint32_t rank,
                           const char *key) {
    const struct free_memory_limit *other;
    for (uint32_t r = 0; r < rank; r++) {
        uint32_t count = devices_of(run, r, &other);
        for (uint32_t d = 0; d < count; d++)
            if (!strcmp(other[d].key, key))
                return true;
    }
    return false;
}

uint32_t device_replicas_devices(const struct run *run) {
    const struct free_memory_limit *device;
    uint32_t sum = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        uint32_t count = devices_of(run, r, &device);
        for (uint32_t d = 0; d < count; d++)
            sum += !is_used_before(run, r, device[d].key);
    }
    return sum;
}

/* "4 + 4 + 2 devices of 3 workers", truncated to SIZE. */
static void list_devices(const struct run *run, char *text, size_t size) {
    size_t length = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks && length < size; r++)
        length += (size_t)snprintf(text + length, size - length, "%s%u",
                                   r ? " + " : "", run->trainers[r].replicas);
}

void device_replicas_describe(const struct run *run, char *text, size_t size) {
    const char *noun = run->trains ? "trainer" : "worker";
    uint32_t trainers = run_num_shares(run), other;
    uint32_t each = run->trainers[0].replicas;
    char listed[256];
    list_devices(run, listed, sizeof listed);
    if (is_uniform(run, &other))
        snprintf(text, size, "replicas: %u (%u %s%s x %u device%s)",
                 run->plan.num_replicas, trainers, noun, log_plural(trainers),
                 each, log_plural(each));
    else
        snprintf(text, size, "replicas: %u (%u %s%s with %s devices)",
                 run->plan.num_replicas, trainers, noun, log_plural(trainers),
                 listed);
}

/* Divides devices among trainers that share a machine. Two trainers share it if
 * they see a common device; host names and addresses do not matter. A trainer
 * whose visible devices no other trainer sees has them to itself. */

static bool all_known(const struct run *run) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (!run->trainers[r].visible_devices.known && !rewind_lacks(run, r))
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

/* A trainer that the run goes back without still has its part of a machine. */
static void fill_in_lacking(struct run *run) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct visible_devices *devices = &run->trainers[r].visible_devices;
        if (devices->known || !rewind_lacks(run, r) || run_is_beyond(run, r))
            continue;
        uint32_t planned = run->lineage->ranks[r].devices;
        *devices = run->lineage->ranks[r].visible_devices;
        devices->known = devices->answered = true;
        if (planned) /* what it wanted is not known if its chief died too */
            devices->wanted_devices = planned;
    }
}

/* Once all trainers have reported, answers those that have no answer yet. */
static void send_assignments(struct run *run) {
    fill_in_lacking(run);
    if (!all_known(run) || !precheck(run))
        return;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->trainers[r].visible_devices.reported &&
            !run->trainers[r].visible_devices.answered)
            send_assignment(run, r);
}

void device_replicas_receive_visible(
    struct run *run, struct roster_slot *slot,
    const Capstan__VisibleDevices *visible_devices) {
    store_report(&run->trainers[slot->rank].visible_devices, visible_devices);
    send_assignments(run);
}

void device_replicas_take_over(struct run *run, uint32_t rank,
                               const Capstan__VisibleDevices *reported) {
    struct visible_devices *devices = &run->trainers[rank].visible_devices;
    *devices = (struct visible_devices){.known = true, .wanted_devices = 1};
    if (reported)
        store_report(devices, reported);
    devices->answered = true;
}

void device_replicas_have_declared(struct run *run,
                                   const struct roster_slot *slot) {
    struct visible_devices *devices =
        &run->trainers[slot->rank].visible_devices;
    if (devices->known)
        return;
    *devices = (struct visible_devices){.known = true, .wanted_devices = 1};
    send_assignments(run);
}
