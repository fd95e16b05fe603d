/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/gpu_watch.h"

#include "core/base/background_task.h"
#include "proto/job/job.h"
#include "worker/ops/nvml.h"

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { INTERVAL_MS = 1000 };

struct gpu_watch {
    struct background_task *task;
    char ids[JOB_MAX_DEVICES][DEVICE_ID];
    struct nvml_device devices[JOB_MAX_DEVICES]; /* the thread's */
    uint32_t count;
    pthread_mutex_t lock; /* of what follows */
    bool known;
    struct gpu_watch_use use;
};

static void ask_all(struct gpu_watch *watch) {
    struct gpu_watch_use sum = {0};
    bool known = true;
    for (uint32_t i = 0; i < watch->count && known; i++) {
        struct nvml_use one = {0};
        known = nvml_ask(&watch->devices[i], &one);
        sum.utilization += (double)one.percent / watch->count;
        sum.memory += (double)one.memory;
    }
    sum.utilization = fmin(sum.utilization, 100); /* rounding */
    pthread_mutex_lock(&watch->lock);
    watch->known = known;
    watch->use = sum;
    pthread_mutex_unlock(&watch->lock);
}

static enum status run_watch(void *context, int cancel, struct failure *why) {
    struct gpu_watch *watch = context;
    struct pollfd item = {.fd = cancel, .events = POLLIN};
    uint32_t opened = 0;
    bool found = true;
    (void)why;
    while (found && opened < watch->count) {
        found = nvml_open(&watch->devices[opened], watch->ids[opened]);
        opened++;
    }
    while (found && poll(&item, 1, 0) <= 0) {
        ask_all(watch);
        poll(&item, 1, INTERVAL_MS);
    }
    for (uint32_t i = 0; i < opened; i++)
        nvml_close(&watch->devices[i]);
    return STATUS_OK;
}

struct gpu_watch *gpu_watch_open(const char *const *ids, uint32_t count) {
    struct failure why;
    struct gpu_watch *watch = count ? calloc(1, sizeof *watch) : NULL;
    if (!watch)
        return NULL;
    watch->count = count;
    for (uint32_t i = 0; i < count; i++)
        snprintf(watch->ids[i], DEVICE_ID, "%s", ids[i]);
    pthread_mutex_init(&watch->lock, NULL);
    if (background_task_open(&watch->task, run_watch, watch, &why))
        gpu_watch_close(&watch);
    return watch;
}

void gpu_watch_close(struct gpu_watch **where) {
    struct gpu_watch *watch = *where;
    *where = NULL;
    if (!watch)
        return;
    background_task_close(&watch->task);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
}

uint32_t gpu_watch_read(struct gpu_watch *watch, struct gpu_watch_use *out) {
    if (!watch)
        return 0;
    pthread_mutex_lock(&watch->lock);
    bool known = watch->known;
    if (known)
        *out = watch->use;
    pthread_mutex_unlock(&watch->lock);
    return known ? watch->count : 0;
}
