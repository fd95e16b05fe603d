/* SPDX-License-Identifier: Apache-2.0 */
/* What a trainer computes on. Trainers who see the same device are on one
 * machine, whatever the cluster calls their hosts: the chief hears what each
 * sees and tells each its place among those. Where devices tell no ids, the
 * hosts' names have to do. */
#include "worker/train/trainer_parts.h"

#include <stdio.h>

/* Where other ranks are lost the device would wait for them. */
static bool gives_up(void *context) {
    struct trainer *trainer = context;
    return trainer_is_cancelled(trainer) ||
           partner_lost(trainer->partner, NULL);
}

/* As the cluster lists hosts, or its launcher tells. */
static struct device_wish listed_wish(struct trainer *trainer) {
    const struct job *job = trainer->settings.job;
    return (struct device_wish){
        .kind = job->device,
        .threads = job->threads,
        .local_rank = trainer->settings.local_rank,
        .local_trainers = trainer->settings.local_trainers,
        .cuda = trainer->settings.cuda,
        .timeout = job->timeouts.step,
        .given_up = gives_up,
        .context = trainer,
    };
}

/* One process a device, as a local rank that was told means, takes one, unless
 * it was told too that there is no other. */
static bool may_be_alone(const struct trainer *trainer) {
    const struct trainer_settings *settings = &trainer->settings;
    return !settings->told ||
           (settings->local_trainers == 1 && settings->local_rank == 0);
}

static uint32_t most_devices(const struct job *job) {
    return job->devices && job->devices < JOB_MOST_DEVICES ? job->devices
                                                           : JOB_MOST_DEVICES;
}

void trainer_device_see(struct trainer *trainer) {
    struct trainer_report sight = {.event = TRAINER_SEES, .replicas = 1};
    struct device_wish wish = listed_wish(trainer);
    char ids[JOB_MOST_DEVICES][DEVICE_ID];
    uint32_t usable, most = most_devices(trainer->settings.job);
    if (!trainer->settings.asks)
        return;
    sight.num_devices = device_see(&wish, ids, JOB_MOST_DEVICES, &usable);
    for (uint32_t i = 0; i < sight.num_devices; i++)
        snprintf(sight.devices[i].id, DEVICE_ID, "%s", ids[i]);
    if (usable && may_be_alone(trainer))
        sight.replicas = usable < most ? usable : most;
    trainer->sees = sight.num_devices > 0;
    reports_put(&trainer->reports, &sight);
}

void trainer_share(struct trainer *trainer, uint32_t place, uint32_t trainers) {
    pthread_mutex_lock(&trainer->mutex);
    trainer->place = place;
    trainer->sharers = trainers;
    pthread_cond_broadcast(&trainer->changed);
    pthread_mutex_unlock(&trainer->mutex);
}

/* False: it was cancelled. */
static bool await_share(struct trainer *trainer) {
    pthread_mutex_lock(&trainer->mutex);
    while (trainer->sees && !trainer->sharers && !trainer->cancelled)
        pthread_cond_wait(&trainer->changed, &trainer->mutex);
    bool go = !trainer->cancelled;
    pthread_mutex_unlock(&trainer->mutex);
    return go;
}

enum status trainer_device_find(struct trainer *trainer, struct failure *why) {
    const struct trainer_settings *settings = &trainer->settings;
    struct device_wish wish = listed_wish(trainer);
    bool alone = wish.local_trainers == 1 && wish.local_rank == 0;
    if (!await_share(trainer))
        return STATUS_OK;
    if (trainer->sees) {
        alone = trainer->sharers == 1 && may_be_alone(trainer);
        wish.local_trainers = trainer->sharers;
        if (!settings->told)
            wish.local_rank = trainer->place;
    }
    struct team_search search = {.wish = &wish,
                                 .alone = alone,
                                 .most = settings->job->devices,
                                 .nccl = settings->nccl,
                                 .log = settings->log};
    return team_find(&trainer->team, &search, why);
}

static void declare_one(struct trainer_report *declaration,
                        const struct device *device) {
    struct trainer_device *told =
        &declaration->devices[declaration->num_devices];
    if (!device_free(device, &told->free, told->id))
        return;
    snprintf(told->name, sizeof told->name, "%s", device->name);
    declaration->num_devices++;
}

void trainer_device_declare(const struct trainer *trainer,
                            struct trainer_report *declaration) {
    const struct team *team = &trainer->team;
    declaration->replicas = team->count;
    declaration->adds_on_host = team_adds_on_host(team);
    for (uint32_t i = 0; i < team->count; i++)
        declare_one(declaration, &team->members[i].replica.engine.device);
}

const struct engine *trainer_device_first(const struct trainer *trainer) {
    return &trainer->team.members[0].replica.engine;
}

bool trainer_is_remote(const struct trainer *trainer) {
    return trainer_device_first(trainer)->device.ops->later;
}

uint32_t trainer_device_index(const struct trainer *trainer) {
    return trainer_device_first(trainer)->device.index;
}
