/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU as a device: its memory is the host's and every call is done when it
 * returns, so streams and events have nothing to order. ops_cpu_layer.c
 * computes layers; rules and sums are core/tensor's. */
#include "worker/ops/cpu/ops_cpu_internal.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(offsetof(struct device_ops, identify) ==
                   offsetof(struct device_head, identify),
               "a table begins as a device_head");

static void *cpu_allocate(struct device *device, size_t bytes) {
    (void)device;
    if (bytes > SIZE_MAX - OPS_CPU_ALIGNMENT)
        return NULL;
    size_t rounded =
        (bytes + OPS_CPU_ALIGNMENT - 1) / OPS_CPU_ALIGNMENT * OPS_CPU_ALIGNMENT;
    void *memory =
        aligned_alloc(OPS_CPU_ALIGNMENT, rounded ? rounded : OPS_CPU_ALIGNMENT);
    if (memory)
        memset(memory, 0, rounded);
    return memory;
}

static void cpu_release(struct device *device, void *memory) {
    (void)device;
    free(memory);
}

static enum status cpu_check(struct failure *why) {
    (void)why;
    return STATUS_OK;
}

static uint32_t cpu_count(void) {
    return 1;
}

static enum status cpu_describe(uint32_t index, struct device_description *out,
                                struct failure *why) {
    (void)index, (void)why;
    *out = (struct device_description){.name = "cpu", .usable = true};
    return STATUS_OK;
}

static enum status cpu_open(struct device **out,
                            const struct device_settings *settings,
                            struct failure *why) {
    enum status status = ops_cpu_open(out, settings->threads, why);
    if (!status && settings->loops)
        (*out)->loops = settings->loops;
    return status;
}

/* All calls are synchronous: there is nothing to wait for, and host memory
 * needs no pinning. */
static bool cpu_pin(struct device *device, void *memory, size_t bytes) {
    (void)device, (void)memory, (void)bytes;
    return true;
}

static void cpu_unpin(struct device *device, void *memory) {
    (void)device, (void)memory;
}

static void cpu_copy(struct device *device, enum device_stream stream, void *to,
                     const void *from, size_t bytes) {
    (void)device, (void)stream;
    if (to != from)
        memcpy(to, from, bytes);
}

static void *cpu_native_stream(struct device *device,
                               enum device_stream stream) {
    (void)device, (void)stream;
    return NULL;
}

/* One object stands for all events: every recorded event is complete. */
static struct device_event *cpu_event_open(struct device *device) {
    return (struct device_event *)device;
}

static void cpu_event_close(struct device *device,
                            struct device_event **event) {
    (void)device;
    *event = NULL;
}

static void cpu_order(struct device *device, enum device_stream stream,
                      struct device_event *event) {
    (void)device, (void)stream, (void)event;
}

static enum status cpu_event_sync(struct device *device,
                                  struct device_event *event,
                                  struct failure *why) {
    (void)device, (void)event, (void)why;
    return STATUS_OK;
}

static enum status cpu_synchronize(struct device *device, struct failure *why) {
    (void)device, (void)why;
    return STATUS_OK;
}

static void cpu_set_precision(struct device *device,
                              enum job_precision precision) {
    device->precision = precision;
}

static void cpu_capture(struct device *device) {
    (void)device;
}

static void cpu_range(struct device *device, const char *name) {
    (void)device, (void)name;
}

static void ops_cpu_fill(struct device *device, const struct op *op) {
    float *x = op->writes[0].data, value = op->scale;
    size_t count = op->writes[0].bytes / sizeof *x;
    (void)device;
    for (size_t i = 0; i < count; i++)
        x[i] = value;
}

static void ops_cpu_scale(struct device *device, const struct op *op) {
    float *x = op->writes[0].data, by = op->scale;
    size_t count = op->writes[0].bytes / sizeof *x;
    (void)device;
    for (size_t i = 0; i < count; i++)
        x[i] *= by;
}

/* Tests the exponent, which is all ones only in infinities and NaN: a loop
 * without branches. */
static void ops_cpu_find_overflow(struct device *device, const struct op *op) {
    const uint32_t exponent = 0x7f800000;
    const float *x = op->reads[0].data;
    size_t count = op->reads[0].bytes / sizeof *x;
    uint32_t any = 0;
    (void)device;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        any |= (bits & exponent) == exponent;
    }
    *(uint32_t *)op->writes[0].data = any;
}

static void ops_cpu_pixels(struct device *device, const struct op *op) {
    const uint8_t *restrict x = op->reads[0].data;
    float *restrict y = op->writes[0].data;
    (void)device;
    for (size_t i = 0; i < op->reads[0].bytes; i++)
        y[i] = (float)x[i] / 255.0f;
}

static void ops_cpu_square_sums(struct device *device, const struct op *op) {
    const void *floats = op->reads[0].data;
    struct rule_update update = {.scale = op->scale,
                                 .elements = op->reads[0].bytes / sizeof(float),
                                 .num_gradients = 1,
                                 .gradients = &floats};
    rule_square_sums(device->loops, &update, op->writes[0].data);
}

static double ops_cpu_add_in_order(const double *pieces, size_t count,
                                   size_t step) {
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += pieces[i * step];
    return sum;
}

static void ops_cpu_reduce_sum(struct device *device, const struct op *op) {
    (void)device;
    *(double *)op->writes[0].data = ops_cpu_add_in_order(
        op->reads[0].data, op->reads[0].bytes / sizeof(double), 1);
}

/* As torch.nn.utils.clip_grad_norm_ does. */
static void ops_cpu_clip(struct device *device, const struct op *op) {
    double squares = ops_cpu_add_in_order(op->reads[0].data, op->n, op->step);
    double by = op->limit / (sqrt(squares) + 1e-6);
    (void)device;
    *(float *)op->writes[0].data = by < 1 ? (float)by : 1;
}

static void ops_cpu_rule(struct device *device, const struct op *op) {
    const void *sum = op->reads[0].data;
    const float *factor = op->reads[1].data;
    float *weights = op->writes[0].data;
    struct rule_constants constants = op->constants;
    struct rule_update update = {
        .elements = op->writes[0].bytes / sizeof *weights,
        .num_gradients = 1,
        .gradients = &sum,
        .weights = weights,
        .weights_out = weights,
        .nonfinite = op->writes[1 + RULE_MAX_SLOTS].data};
    for (unsigned slot = 0; slot < RULE_MAX_SLOTS; slot++)
        update.state[slot] = update.state_out[slot] = op->writes[1 + slot].data;
    constants.scale *= factor ? *factor : 1;
    rule_apply_form(device->loops, op->form, &constants, &update);
}

#define VECTOR_ROWS(ROW)                                                       \
    ROW(OP_FILL, NULL, ops_cpu_fill)                                           \
    ROW(OP_SCALE, NULL, ops_cpu_scale)                                         \
    ROW(OP_PIXELS, NULL, ops_cpu_pixels)                                       \
    ROW(OP_FIND_OVERFLOW, NULL, ops_cpu_find_overflow)                         \
    ROW(OP_SQUARE_SUMS, NULL, ops_cpu_square_sums)                             \
    ROW(OP_REDUCE_SUM, NULL, ops_cpu_reduce_sum)                               \
    ROW(OP_CLIP, NULL, ops_cpu_clip)                                           \
    ROW(OP_RULE, NULL, ops_cpu_rule)
static const struct ops_cpu_kind vector_kinds[OP_KINDS] = {VECTOR_ROWS(OP_ROW)};
_Static_assert(VECTOR_ROWS(OP_ONE) == OP_KINDS - OP_FILL,
               "each op of vectors has its row");

/* NULL: no table has KIND. */
static const struct ops_cpu_kind *ops_cpu_kind_of(uint32_t kind) {
    static const struct ops_cpu_kind *const tables[] = {
        ops_cpu_layer_kinds, ops_cpu_rows_kinds, vector_kinds};
    for (size_t t = 0; kind < OP_KINDS && t < sizeof tables / sizeof *tables;
         t++)
        if (tables[t][kind].run)
            return &tables[t][kind];
    return NULL;
}

static bool cpu_supports(const struct device *device, struct op op) {
    (void)device;
    return ops_cpu_kind_of(op.kind);
}

static enum status cpu_prepare(struct device *device, struct op op,
                               struct failure *why) {
    const struct ops_cpu_kind *kind = ops_cpu_kind_of(op.kind);
    return !kind->prepare || kind->prepare(device, &op)
               ? STATUS_OK
               : status_fail(why, FAILURE_DEVICE_MEMORY,
                             "no memory for the operands of a product");
}

static void cpu_run(struct device *device, enum device_stream stream,
                    struct op op) {
    (void)stream;
    ops_cpu_kind_of(op.kind)->run(device, &op);
}

const struct device_ops *ops_cpu(void) {
    static const struct device_ops cpu = {
        .abi = DEVICE_ABI,
        .name = "cpu",
        .version = "",
        .check = cpu_check,
        .count = cpu_count,
        .describe = cpu_describe,
        .identify = cpu_describe,
        .open = cpu_open,
        .close = ops_cpu_close,
        .allocate = cpu_allocate,
        .release = cpu_release,
        .pin = cpu_pin,
        .unpin = cpu_unpin,
        .upload = cpu_copy,
        .download = cpu_copy,
        .copy = cpu_copy,
        .native_stream = cpu_native_stream,
        .event_open = cpu_event_open,
        .event_close = cpu_event_close,
        .record = cpu_order,
        .stream_wait = cpu_order,
        .event_sync = cpu_event_sync,
        .synchronize = cpu_synchronize,
        .capture_begin = cpu_capture,
        .capture_end = cpu_capture,
        .range = cpu_range,
        .set_precision = cpu_set_precision,
        .supports = cpu_supports,
        .prepare = cpu_prepare,
        .run = cpu_run,
    };
    return &cpu;
}

enum status ops_cpu_open(struct device **out, uint32_t threads,
                         struct failure *why) {
    if (threads == 0 || threads > INT_MAX)
        return status_fail(why, FAILURE_JOB_INVALID,
                           "threads: found %u, expected 1 to %d", threads,
                           INT_MAX);
    struct device *device = calloc(1, sizeof *device);
    if (!device)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a device");
    size_t variants;
    device->threads = (int)threads;
    device->loops = *rule_variants(&variants);
    *out = device;
    return STATUS_OK;
}

void ops_cpu_close(struct device **device) {
    if (!device || !*device)
        return;
    free((*device)->a.floats);
    free((*device)->b.floats);
    ops_cpu_matmul_close(&(*device)->matmul);
    free(*device);
    *device = NULL;
}
