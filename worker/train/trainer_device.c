/* SPDX-License-Identifier: Apache-2.0 */
/* Device selection. Trainers that see the same device id are on one machine,
 * whatever the cluster calls their hosts: each reports its device ids to the
 * chief, which assigns each a place among the device's users. For devices
 * without ids the host names decide. */
#include "worker/train/trainer_internal.h"

#include <stdio.h>
#include <string.h>

/* If other ranks are lost, the device's work would wait for them forever. */
static bool is_aborted(void *context) {
    struct trainer *trainer = context;
    return trainer_is_cancelled(trainer) ||
           exchange_peer_lost(trainer->exchange, NULL);
}

/* Local ranks come from the cluster description or the launcher. */
static struct local_device_request make_request(struct trainer *trainer) {
    const struct job *job = trainer->settings.job;
    return (struct local_device_request){
        .kind = job->device,
        .threads = job->threads,
        .local_rank = trainer->settings.local_rank,
        .local_trainers = trainer->settings.local_trainers,
        .cuda = trainer->settings.cuda,
        .timeout = job->timeouts.step,
        .tf32 = job->tf32,
        .is_cancelled = is_aborted,
        .context = trainer,
    };
}

/* A launcher that gives local ranks means one process per device, so a trainer
 * takes one only; unless the launcher says that it is the only process. */
static bool may_use_all_devices(const struct trainer *trainer) {
    const struct trainer_settings *settings = &trainer->settings;
    return !settings->reported ||
           (settings->local_trainers == 1 && settings->local_rank == 0);
}

static uint32_t device_limit(const struct job *job) {
    return job->devices && job->devices < JOB_MAX_DEVICES ? job->devices
                                                          : JOB_MAX_DEVICES;
}

void trainer_device_report(struct trainer *trainer) {
    struct trainer_report report = {.event = TRAINER_DEVICES_LISTED,
                                    .replicas = 1};
    struct local_device_request request = make_request(trainer);
    char ids[JOB_MAX_DEVICES][DEVICE_ID];
    uint32_t usable, max_devices = device_limit(trainer->settings.job);
    if (!trainer->settings.requests_assignment)
        return;
    report.num_devices =
        local_device_list_ids(&request, ids, JOB_MAX_DEVICES, &usable);
    for (uint32_t i = 0; i < report.num_devices; i++)
        memcpy(report.devices[i].id, ids[i], DEVICE_ID);
    if (usable && may_use_all_devices(trainer))
        report.replicas = usable < max_devices ? usable : max_devices;
    trainer->devices_reported = report.num_devices > 0;
    event_queue_push(&trainer->event_queue, &report);
}

void trainer_assign_device(struct trainer *trainer, uint32_t sharer_index,
                           uint32_t trainers) {
    pthread_mutex_lock(&trainer->mutex);
    trainer->sharer_index = sharer_index;
    trainer->device_sharers = trainers;
    pthread_cond_broadcast(&trainer->changed);
    pthread_mutex_unlock(&trainer->mutex);
}

/* False: it was cancelled. */
static bool wait_assignment(struct trainer *trainer) {
    pthread_mutex_lock(&trainer->mutex);
    while (trainer->devices_reported && !trainer->device_sharers &&
           !trainer->cancelled)
        pthread_cond_wait(&trainer->changed, &trainer->mutex);
    bool go = !trainer->cancelled;
    pthread_mutex_unlock(&trainer->mutex);
    return go;
}

enum status trainer_device_find(struct trainer *trainer, struct failure *why) {
    const struct trainer_settings *settings = &trainer->settings;
    struct local_device_request request = make_request(trainer);
    bool alone = request.local_trainers == 1 && request.local_rank == 0;
    if (!wait_assignment(trainer))
        return STATUS_OK;
    if (trainer->devices_reported) {
        alone = trainer->device_sharers == 1 && may_use_all_devices(trainer);
        request.local_trainers = trainer->device_sharers;
        if (!settings->reported)
            request.local_rank = trainer->sharer_index;
    }
    struct local_group_search search = {.request = &request,
                                        .alone = alone,
                                        .max_devices = settings->job->devices,
                                        .nccl = settings->nccl,
                                        .log = settings->log};
    return local_group_find(&trainer->local_group, &search, why);
}

static void trainer_device_describe_device(struct trainer_report *model_spec,
                                           const struct local_device *device) {
    struct trainer_device *reported =
        &model_spec->devices[model_spec->num_devices];
    if (!local_device_query_memory(device, &reported->free, reported->id))
        return;
    snprintf(reported->name, sizeof reported->name, "%s", device->name);
    model_spec->num_devices++;
}

void trainer_device_declare(const struct trainer *trainer,
                            struct trainer_report *model_spec) {
    const struct local_group *group = &trainer->local_group;
    model_spec->replicas = group->count;
    model_spec->adds_on_host = local_group_reduces_on_host(group);
    for (uint32_t i = 0; i < group->count; i++)
        trainer_device_describe_device(
            model_spec, &group->members[i].device_replica.executor.device);
}

const struct executor *trainer_device_first(const struct trainer *trainer) {
    return &trainer->local_group.members[0].device_replica.executor;
}

bool trainer_has_device_memory(const struct trainer *trainer) {
    const struct device_ops *ops = trainer_device_first(trainer)->device.ops;
    return ops && ops->async; /* an external model's is the caller's */
}

uint32_t trainer_device_index(const struct trainer *trainer) {
    return trainer_device_first(trainer)->device.index;
}
