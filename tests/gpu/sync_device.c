/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/sync_device.h"

#include "core/base/plugin.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64, MAX_COPIES = 8 };

/* What a call has there of the host's memory. */
struct copy {
    void *host, *there;
    size_t bytes;
};

struct device {
    const struct device_ops *ops;
    struct device *far;
    struct copy copies[MAX_COPIES];
    unsigned num_copies;
};

static void failed(const char *what) {
    fprintf(stderr, "near device: %s\n", what);
    abort();
}

/* HOST's BYTES there, as they are here; NULL stays. */
static void *lend(struct device *device, const void *host, size_t bytes) {
    if (!host)
        return NULL;
    void *there = device->ops->allocate(device->far, bytes);
    if (!there || device->num_copies == MAX_COPIES)
        failed("no memory");
    device->ops->upload(device->far, STREAM_COMPUTE, there, host, bytes);
    device->copies[device->num_copies++] =
        (struct copy){(void *)host, there, bytes};
    return there;
}

/* All that was lent is here again. What was lent to be read is only let go:
 * else a device could not spoil it. */
static void give_back(struct device *device, unsigned written) {
    struct failure why;
    unsigned first = device->num_copies - written;
    for (unsigned i = first; i < device->num_copies; i++)
        device->ops->download(device->far, STREAM_COMPUTE,
                              device->copies[i].host, device->copies[i].there,
                              device->copies[i].bytes);
    if (device->ops->synchronize(device->far, &why))
        failed(why.text);
    while (device->num_copies)
        device->ops->release(device->far,
                             device->copies[--device->num_copies].there);
}

static void *allocate(struct device *device, size_t bytes) {
    (void)device;
    if (bytes > SIZE_MAX - ALIGNMENT)
        return NULL;
    size_t rounded = (bytes / ALIGNMENT + 1) * ALIGNMENT;
    void *memory = aligned_alloc(ALIGNMENT, rounded);
    if (memory)
        memset(memory, 0, rounded);
    return memory;
}

static void release(struct device *device, void *memory) {
    (void)device;
    free(memory);
}

static void pass(struct device *device) {
    (void)device;
}

static void range(struct device *device, const char *name) {
    (void)device, (void)name;
}

static void set_precision(struct device *device, enum job_precision precision) {
    device->ops->set_precision(device->far, precision);
}

static bool supports(const struct device *device, struct op op) {
    return device->ops->supports(device->far, op);
}

static enum status prepare(struct device *device, struct op op,
                           struct failure *why) {
    return device->ops->prepare(device->far, op, why);
}

static void run(struct device *device, enum device_stream stream,
                struct op op) {
    unsigned written = 0;
    (void)stream;
    for (int i = 0; i < OP_READS; i++)
        op.reads[i].data = lend(device, op.reads[i].data, op.reads[i].bytes);
    for (int i = 0; i < OP_WRITES; i++) {
        written += op.writes[i].data != NULL;
        op.writes[i].data = lend(device, op.writes[i].data, op.writes[i].bytes);
    }
    device->ops->run(device->far, STREAM_COMPUTE, op);
    give_back(device, written);
}

static void close_device(struct device **where) {
    struct device *device = *where;
    *where = NULL;
    if (!device)
        return;
    device->ops->close(&device->far);
    free(device);
}

enum status sync_device_open(struct device **out, const struct device_ops *ops,
                             struct failure *why) {
    struct device_settings settings = {.threads = 1, .timeout = 60};
    struct device *device = calloc(1, sizeof *device);
    if (!device)
        failed("no memory");
    device->ops = ops;
    enum status status = ops->open(&device->far, &settings, why);
    if (status)
        close_device(&device);
    *out = device;
    return status;
}

const struct device_ops *sync_device_ops(void) {
    static const struct device_ops near_device = {
        .abi = DEVICE_ABI,
        .name = "near",
        .version = "",
        .close = close_device,
        .allocate = allocate,
        .release = release,
        .capture_begin = pass,
        .capture_end = pass,
        .range = range,
        .set_precision = set_precision,
        .supports = supports,
        .prepare = prepare,
        .run = run,
    };
    return &near_device;
}

const struct device_ops *sync_device_plugin(struct failure *why) {
    const char *program = getenv("CAPSTAN");
    char path[PATH_MAX];
    const void *table;
    snprintf(path, sizeof path - 32, "%s", program ? program : "build/capstan");
    char *slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, "capstan-cuda.so");
    if (plugin_load(&table, path, DEVICE_SYMBOL, DEVICE_ABI, why))
        return NULL;
    const struct device_ops *ops = table;
    return ops->check(why) ? NULL : ops;
}
