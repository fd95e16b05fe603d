/* SPDX-License-Identifier: Apache-2.0 */
/* Which device a trainer gets: its rank on the host modulo the devices that it
 * sees. With "auto" whatever keeps a GPU from being used is said in one line
 * and the processor is taken; with "cuda" it is the end. */
#include "worker/ops/device.h"

#include "proto/base/plugin.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static double gib(uint64_t bytes) {
    return (double)bytes / (1 << 30);
}

static enum status open_cpu(struct device *device,
                            const struct device_wish *wish,
                            struct failure *why) {
    device->ops = ops_cpu();
    snprintf(device->name, sizeof device->name, "cpu");
    return ops_cpu_open(&device->handle, wish->threads, why);
}

static enum status find_table(const struct ops **out,
                              const struct device_wish *wish,
                              struct failure *why) {
    const void *table = wish->cuda;
    enum status status = STATUS_OK;
    if (!table)
        status = plugin_find(&table, "cuda", DEVICE_SYMBOL, DEVICE_ABI, why);
    *out = table;
    if (!status && (*out)->count() == 0)
        status = status_fail(why, STATUS_CONFIG, "there is no GPU");
    return status;
}

uint32_t device_see(const struct device_wish *wish, char (*ids)[DEVICE_ID],
                    uint32_t most, uint32_t *usable) {
    const struct ops *ops;
    struct failure why;
    *usable = 0;
    if (wish->kind == JOB_DEVICE_CPU || find_table(&ops, wish, &why))
        return 0;
    uint32_t count = ops->count() < most ? ops->count() : most;
    for (uint32_t i = 0; i < count; i++) {
        struct device_description about;
        if (ops->identify(i, &about, &why) || !about.id[0])
            return 0;
        memcpy(ids[i], about.id, DEVICE_ID);
        *usable += about.usable;
    }
    return count;
}

/* Where it is not known how many trainers there are their ranks tell. */
static bool shared(const struct device_wish *wish, uint32_t count) {
    return wish->local_trainers ? wish->local_trainers > count
                                : wish->local_rank >= count;
}

static void say_device(const struct device *device,
                       const struct device_wish *wish,
                       const struct device_description *about, uint32_t count) {
    log_info(device->log,
             "device %s %u of %u: %s, compute capability %u.%u, %.1f of %.1f "
             "GiB free%s",
             device->ops->name, device->index, count, about->name, about->major,
             about->minor, gib(about->free), gib(about->total),
             shared(wish, count)
                 ? "; more trainers than devices here: they share them, unless "
                   "each is shown others (CUDA_VISIBLE_DEVICES)"
             : wish->local_trainers > 1 && wish->local_trainers < count
                 ? "; fewer trainers than devices here: one each, and the rest "
                   "stay unused (one trainer alone would take all)"
                 : "");
}

static void warn(void *hearer, const char *line) {
    log_warning(hearer, "%s", line);
}

static enum status open_gpu(struct device *device,
                            const struct device_wish *wish,
                            struct failure *why) {
    struct device_description about;
    enum status status = find_table(&device->ops, wish, why);
    if (status)
        return status;
    uint32_t count = device->ops->count();
    device->index = wish->local_rank % count;
    status = device->ops->describe(device->index, &about, why);
    if (!status && !about.usable)
        status = status_fail(why, STATUS_CONFIG, "device %u (%s): %s",
                             device->index, about.name, about.reason);
    struct ops_settings settings = {
        .index = device->index,
        .threads = wish->threads,
        .timeout = wish->timeout,
        .given_up = wish->given_up,
        .context = wish->context,
        .warn = warn,
        .hearer = (void *)device->log,
    };
    if (!status)
        status = device->ops->open(&device->handle, &settings, why);
    if (status)
        return status;
    snprintf(device->name, sizeof device->name, "%s %u (%s)", device->ops->name,
             device->index, about.name);
    say_device(device, wish, &about, count);
    return STATUS_OK;
}

enum status device_open(struct device *device, const struct device_wish *wish,
                        const struct log *log, struct failure *why) {
    struct failure reason;
    *device = (struct device){.log = log};
    if (wish->kind == JOB_DEVICE_CPU)
        return open_cpu(device, wish, why);
    enum status status = open_gpu(device, wish, &reason);
    if (!status)
        return STATUS_OK;
    *device = (struct device){.log = log};
    if (wish->kind == JOB_DEVICE_CUDA)
        return status_fail(why, status,
                           "device: \"cuda\": %s; docs/gpu.md has what it "
                           "needs, and \"auto\" takes the CPU without it",
                           reason.text);
    log_info(log, "device cpu; cuda: %s", reason.text);
    return open_cpu(device, wish, why);
}

void device_close(struct device *device) {
    if (device->ops)
        device->ops->close(&device->handle);
    *device = (struct device){0};
}

void device_pin(const struct device *device, void *memory, size_t bytes) {
    if (!device->ops->pin(device->handle, memory, bytes))
        log_warning(device->log,
                    "device %s: %zu bytes of the host's memory cannot be "
                    "pinned: copies from and to it are slower",
                    device->name, bytes);
}

void device_unpin(const struct device *device, void *memory) {
    device->ops->unpin(device->handle, memory);
}

bool device_free(const struct device *device, uint64_t *free,
                 char id[static DEVICE_ID]) {
    struct device_description about;
    if (!device->ops->later ||
        device->ops->describe(device->index, &about, NULL))
        return false;
    *free = about.free;
    memcpy(id, about.id, DEVICE_ID);
    return true;
}

static void append(struct failure *why, const char *text) {
    size_t used = strlen(why->text);
    snprintf(why->text + used, sizeof why->text - used, "%s", text);
}

/* Half the samples at a time, twice as often: the same batch. */
static void append_halves(const struct job *job, struct failure *why) {
    char text[160];
    if (job->micro_batch < 2)
        return;
    snprintf(text, sizeof text,
             "train_micro_batch_size_per_gpu %u with "
             "gradient_accumulation_steps %u; ",
             job->micro_batch / 2, job->accumulation * 2);
    append(why, text);
}

enum status device_advise(const struct device *device, const struct job *job,
                          struct failure *why) {
    struct device_description about;
    char text[128];
    if (device->ops->later &&
        !device->ops->describe(device->index, &about, NULL)) {
        snprintf(text, sizeof text, ", where %.3g of %.3g GiB are free",
                 gib(about.free), gib(about.total));
        append(why, text);
    }
    append(why, ". What needs less: ");
    append_halves(job, why);
    append(why,
           "activation_checkpointing.number_checkpoints, of the same bits; "
           "zero_optimization.stage 2, or strategy.type \"ps\"; bf16.enabled");
    return why->status;
}
