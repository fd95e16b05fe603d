/* SPDX-License-Identifier: Apache-2.0 */
/* Selects a trainer's device: GPU number (rank on the host) modulo the number
 * of visible GPUs. With "auto" a GPU that cannot be used is reported in one
 * line, where one could be expected, and the CPU is used; with "cuda" it is an
 * error. */
#include "worker/ops/local_device.h"

#include "core/base/plugin.h"

#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static double gib(uint64_t bytes) {
    return (double)bytes / (1 << 30);
}

static enum status open_cpu(struct local_device *device,
                            const struct local_device_request *request,
                            struct failure *why) {
    device->ops = ops_cpu();
    snprintf(device->name, sizeof device->name, "cpu");
    return ops_cpu_open(&device->handle, request->threads, why);
}

static enum status find_backend(const struct device_ops **out,
                                const struct local_device_request *request,
                                struct failure *why) {
    const void *table = request->cuda;
    enum status status = STATUS_OK;
    if (!table)
        status = plugin_find(&table, "cuda", DEVICE_SYMBOL, DEVICE_ABI, why);
    *out = table;
    if (!status && (*out)->count() == 0)
        status = status_fail(why, FAILURE_NO_DEVICE, "there is no GPU");
    return status;
}

uint32_t local_device_list_ids(const struct local_device_request *request,
                               char (*ids)[DEVICE_ID], uint32_t capacity,
                               uint32_t *usable) {
    const struct device_ops *ops;
    struct failure why;
    *usable = 0;
    if (request->kind == JOB_DEVICE_CPU || find_backend(&ops, request, &why))
        return 0;
    uint32_t count = ops->count() < capacity ? ops->count() : capacity;
    for (uint32_t i = 0; i < count; i++) {
        struct device_description description;
        if (ops->identify(i, &description, &why) || !description.id[0])
            return 0;
        memcpy(ids[i], description.id, DEVICE_ID);
        *usable += description.usable;
    }
    return count;
}

/* If the number of trainers is unknown, this trainer's local rank decides. */
static bool is_shared(const struct local_device_request *request,
                      uint32_t count) {
    return request->local_trainers ? request->local_trainers > count
                                   : request->local_rank >= count;
}

static void log_device(const struct local_device *device,
                       const struct local_device_request *request,
                       const struct device_description *description,
                       uint32_t count) {
    log_info(device->log, "device_chosen",
             "device %s %u of %u: %s, compute capability %u.%u, %.1f of %.1f "
             "GiB free%s",
             device->ops->name, device->index, count, description->name,
             description->major, description->minor, gib(description->free),
             gib(description->total),
             is_shared(request, count)
                 ? "; more trainers than devices here: they share them unless "
                   "each sees different ones (CUDA_VISIBLE_DEVICES)"
             : request->local_trainers > 1 && request->local_trainers < count
                 ? "; fewer trainers than devices here: one each, and the rest "
                   "stay unused (a single trainer would use all)"
                 : "");
}

static void warn(void *warn_context, const char *line) {
    log_warning(warn_context, "device_degraded", "%s", line);
}

/* For whoever suspects a graph of what a run does on a GPU. */
static enum status read_graphs(bool *no_graphs, struct failure *why) {
    const char *given = getenv("CAPSTAN_CUDA_GRAPHS");
    if (given && strcmp(given, "0") && strcmp(given, "1"))
        return status_fail(
            why, FAILURE_BAD_VARIABLE,
            "CAPSTAN_CUDA_GRAPHS is '%.64s'; allowed are 0 and 1", given);
    *no_graphs = given && *given == '0';
    return STATUS_OK;
}

/* cuBLAS obeys NVIDIA_TF32_OVERRIDE whatever its caller asks for. */
static enum status check_override(bool tf32, struct failure *why) {
    const char *given = getenv("NVIDIA_TF32_OVERRIDE");
    if (!given || !*given || (*given == '0') != tf32)
        return STATUS_OK;
    return status_fail(why, FAILURE_BAD_VARIABLE,
                       "NVIDIA_TF32_OVERRIDE is '%.64s', which makes cuBLAS "
                       "ignore the job's tf32, %s: unset it, or set tf32 to %s",
                       given, tf32 ? "true" : "false", tf32 ? "false" : "true");
}

static void log_no_tf32(const struct local_device *device) {
    log_info(device->log, "precision_chosen",
             "tf32: device %s has none, and computes in float32", device->name);
}

enum { TF32_SINCE = 8 /* compute capability */ };

static enum status open_gpu(struct local_device *device,
                            const struct local_device_request *request,
                            bool no_graphs, struct failure *why) {
    struct device_description description;
    enum status status = find_backend(&device->ops, request, why);
    if (status)
        return status;
    uint32_t count = device->ops->count();
    device->index = request->local_rank % count;
    status = device->ops->describe(device->index, &description, why);
    if (!status && !description.usable)
        status =
            status_fail(why, FAILURE_DEVICE_UNUSABLE, "device %u (%s): %s",
                        device->index, description.name, description.reason);
    struct device_settings settings = {
        .index = device->index,
        .threads = request->threads,
        .timeout = request->timeout,
        .is_cancelled = request->is_cancelled,
        .context = request->context,
        .warn = warn,
        .warn_context = (void *)device->log,
        .no_graphs = no_graphs,
    };
    if (!status)
        status = check_override(request->tf32, why);
    if (!status)
        status = device->ops->open(&device->handle, &settings, why);
    if (status)
        return status;
    snprintf(device->name, sizeof device->name, "%s %u (%s)", device->ops->name,
             device->index, description.name);
    log_device(device, request, &description, count);
    if (request->tf32 && description.major < TF32_SINCE)
        log_no_tf32(device);
    return STATUS_OK;
}

/* Is an NVIDIA device on this host, or asked for? Where nobody can expect one,
 * the CPU is no news. */
static bool expects_gpu(void) {
    static const char pattern[] = "/sys/bus/pci/devices/*/vendor";
    char vendor[8] = "";
    glob_t found;
    if (getenv("CUDA_VISIBLE_DEVICES") || getenv("NVIDIA_VISIBLE_DEVICES") ||
        access("/sys/bus", R_OK))
        return true;
    if (glob(pattern, GLOB_NOSORT, NULL, &found))
        return false;
    bool any = false;
    for (size_t i = 0; i < found.gl_pathc && !any; i++) {
        FILE *file = fopen(found.gl_pathv[i], "r");
        any = file && fgets(vendor, sizeof vendor, file) &&
              !strncmp(vendor, "0x10de", 6);
        if (file)
            fclose(file);
    }
    globfree(&found);
    return any;
}

enum status local_device_open(struct local_device *device,
                              const struct local_device_request *request,
                              const struct log *log, struct failure *why) {
    struct failure reason;
    bool no_graphs = false;
    *device = (struct local_device){.log = log};
    enum status status = read_graphs(&no_graphs, why);
    if (status)
        return status;
    if (request->kind == JOB_DEVICE_CPU)
        return open_cpu(device, request, why);
    status = open_gpu(device, request, no_graphs, &reason);
    if (!status)
        return STATUS_OK;
    *device = (struct local_device){.log = log};
    if (reason.code == FAILURE_BAD_VARIABLE) {
        *why = reason;
        return status;
    }
    if (request->kind == JOB_DEVICE_CUDA)
        return status_fail(why, reason.code,
                           "device: \"cuda\": %s; docs/gpu.md lists what it "
                           "needs; \"auto\" uses the CPU otherwise",
                           reason.text);
    if (expects_gpu() || (log && log->json))
        log_info(log, "device_chosen", "device cpu; cuda: %s", reason.text);
    status = open_cpu(device, request, why);
    if (!status && request->tf32)
        log_no_tf32(device);
    return status;
}

void local_device_close(struct local_device *device) {
    if (device->ops)
        device->ops->close(&device->handle);
    *device = (struct local_device){0};
}

void local_device_pin(const struct local_device *device, void *memory,
                      size_t bytes) {
    if (!device->ops->pin(device->handle, memory, bytes))
        log_warning(device->log, "memory_not_pinned",
                    "device %s: %zu bytes of host memory cannot be "
                    "pinned: copies from and to it are slower",
                    device->name, bytes);
}

void local_device_unpin(const struct local_device *device, void *memory) {
    device->ops->unpin(device->handle, memory);
}

bool local_device_query_memory(const struct local_device *device,
                               uint64_t *free, char id[static DEVICE_ID]) {
    struct device_description description;
    if (!device->ops->async ||
        device->ops->describe(device->index, &description, NULL))
        return false;
    *free = description.free;
    memcpy(id, description.id, DEVICE_ID);
    return true;
}

static void local_device_append(struct failure *why, const char *text) {
    size_t used = strlen(why->text);
    snprintf(why->text + used, sizeof why->text - used, "%s", text);
}

/* Half the samples at a time, twice as often: the same batch. */
static void append_smaller_batch(const struct job *job, struct failure *why) {
    char text[160];
    if (job->micro_batch < 2)
        return;
    snprintf(text, sizeof text,
             "train_micro_batch_size_per_gpu %u with "
             "gradient_accumulation_steps %u; ",
             job->micro_batch / 2, job->accumulation * 2);
    local_device_append(why, text);
}

enum status local_device_add_memory_hint(const struct local_device *device,
                                         const struct job *job,
                                         struct failure *why) {
    struct device_description description;
    char text[128];
    if (device->ops->async &&
        !device->ops->describe(device->index, &description, NULL)) {
        snprintf(text, sizeof text, ", where %.3g of %.3g GiB are free",
                 gib(description.free), gib(description.total));
        local_device_append(why, text);
    }
    local_device_append(why, ". What needs less: ");
    append_smaller_batch(job, why);
    local_device_append(
        why,
        "activation_checkpointing.number_checkpoints, of the same bits; "
        "zero_optimization.stage 2, or strategy.type \"ps\"; bf16.enabled");
    return failure_code_status(why->code);
}
