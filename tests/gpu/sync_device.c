/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/sync_device.h"

#include "proto/base/plugin.h"

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

static float *lend_floats(struct device *device, const float *host, size_t rows,
                          size_t columns) {
    return lend(device, host, rows * columns * sizeof *host);
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

static void set_precision(struct device *device, enum job_precision precision) {
    device->ops->set_precision(device->far, precision);
}

static void linear(struct device *device, const float *x, const float *w,
                   const float *bias, float *y, uint32_t n, uint32_t in,
                   uint32_t out, enum job_activation activation) {
    x = lend_floats(device, x, n, in);
    w = lend_floats(device, w, out, in);
    bias = lend_floats(device, bias, 1, out);
    y = lend_floats(device, y, n, out);
    device->ops->linear(device->far, x, w, bias, y, n, in, out, activation);
    give_back(device, 1);
}

static void input_gradient(struct device *device, const float *dy,
                           const float *w, float *dx, uint32_t n, uint32_t in,
                           uint32_t out) {
    dy = lend_floats(device, dy, n, out);
    w = lend_floats(device, w, out, in);
    dx = lend_floats(device, dx, n, in);
    device->ops->linear_input_gradient(device->far, dy, w, dx, n, in, out);
    give_back(device, 1);
}

static void weight_gradient(struct device *device, const float *dy,
                            const float *x, float *dw, uint32_t n, uint32_t in,
                            uint32_t out, bool add) {
    dy = lend_floats(device, dy, n, out);
    x = lend_floats(device, x, n, in);
    dw = lend_floats(device, dw, out, in);
    device->ops->linear_weight_gradient(device->far, dy, x, dw, n, in, out,
                                        add);
    give_back(device, 1);
}

static void column_sums(struct device *device, const float *dy, float *db,
                        uint32_t n, uint32_t out, bool add) {
    dy = lend_floats(device, dy, n, out);
    db = lend_floats(device, db, 1, out);
    device->ops->column_sums(device->far, dy, db, n, out, add);
    give_back(device, 1);
}

static void activation_gradient(struct device *device,
                                enum job_activation activation, const float *y,
                                float *dy, uint32_t n, uint32_t out) {
    y = lend_floats(device, y, n, out);
    dy = lend_floats(device, dy, n, out);
    device->ops->activation_gradient(device->far, activation, y, dy, n, out);
    give_back(device, 1);
}

static void loss(struct device *device, enum job_loss kind, const float *z,
                 const uint32_t *labels, float *dz, uint32_t n, uint32_t out,
                 float scale, double *sum, uint32_t *correct) {
    z = lend_floats(device, z, n, out);
    labels = lend(device, labels, n * sizeof *labels);
    sum = lend(device, sum, sizeof *sum);
    correct = lend(device, correct, sizeof *correct);
    dz = lend_floats(device, dz, n, out);
    device->ops->loss(device->far, kind, z, labels, dz, n, out, scale, sum,
                      correct);
    give_back(device, dz ? 3 : 2);
}

/* Rows of all operands up to the end of their last one. */
static void rows(struct device *device, const struct ops_rows *call) {
    struct ops_rows there = *call;
    there.x = lend_floats(device, call->x, 1, ops_rows_x(call));
    there.dy = lend_floats(device, call->dy, 1, ops_rows_dy(call));
    there.y = lend_floats(device, call->y, 1, ops_rows_y(call));
    device->ops->rows(device->far, &there);
    give_back(device, 1);
}

static void fill(struct device *device, enum device_stream stream, float *x,
                 size_t count, float value) {
    (void)stream;
    x = lend_floats(device, x, 1, count);
    device->ops->fill(device->far, STREAM_COMPUTE, x, count, value);
    give_back(device, 1);
}

static void scale(struct device *device, enum device_stream stream, float *x,
                  size_t count, float by) {
    (void)stream;
    x = lend_floats(device, x, 1, count);
    device->ops->scale(device->far, STREAM_COMPUTE, x, count, by);
    give_back(device, 1);
}

static void find_overflow(struct device *device, enum device_stream stream,
                          const float *x, size_t count, uint32_t *found) {
    (void)stream;
    x = lend_floats(device, x, 1, count);
    found = lend(device, found, sizeof *found);
    device->ops->find_overflow(device->far, STREAM_COMPUTE, x, count, found);
    give_back(device, 1);
}

static void square_sums(struct device *device, enum device_stream stream,
                        const float *x, size_t count, float by,
                        double *pieces) {
    size_t bytes = (count + RULE_PIECE - 1) / RULE_PIECE * sizeof *pieces;
    (void)stream;
    x = lend_floats(device, x, 1, count);
    pieces = lend(device, pieces, bytes);
    device->ops->square_sums(device->far, STREAM_COMPUTE, x, count, by, pieces);
    give_back(device, 1);
}

static void reduce_sum(struct device *device, enum device_stream stream,
                       const double *pieces, size_t count, double *sum) {
    (void)stream;
    pieces = lend(device, pieces, count * sizeof *pieces);
    sum = lend(device, sum, sizeof *sum);
    device->ops->reduce_sum(device->far, STREAM_COMPUTE, pieces, count, sum);
    give_back(device, 1);
}

static void clip(struct device *device, enum device_stream stream,
                 const double *squares, size_t count, size_t step, double limit,
                 float *factor) {
    (void)stream;
    squares = lend(device, squares, count * step * sizeof *squares);
    factor = lend(device, factor, sizeof *factor);
    device->ops->clip(device->far, STREAM_COMPUTE, squares, count, step, limit,
                      factor);
    give_back(device, 1);
}

static void apply_rule(struct device *device, enum device_stream stream,
                       const struct optimizer *rule,
                       const struct rule_update *update, const float *factor) {
    struct rule_update there = *update;
    size_t count = update->elements;
    unsigned slots = rule_slots(rule);
    const void *gradient = lend_floats(device, update->gradients[0], 1, count);
    (void)stream;
    factor = lend(device, factor, sizeof *factor);
    there.gradients = &gradient;
    there.weights_out = lend_floats(device, update->weights_out, 1, count);
    there.weights = there.weights_out;
    for (unsigned s = 0; s < slots; s++) {
        there.state_out[s] =
            lend_floats(device, update->state_out[s], 1, count);
        there.state[s] = there.state_out[s];
    }
    device->ops->rule(device->far, STREAM_COMPUTE, rule, &there, factor);
    give_back(device, 1 + slots);
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
        .set_precision = set_precision,
        .linear = linear,
        .linear_input_gradient = input_gradient,
        .linear_weight_gradient = weight_gradient,
        .column_sums = column_sums,
        .activation_gradient = activation_gradient,
        .loss = loss,
        .rows = rows,
        .fill = fill,
        .scale = scale,
        .find_overflow = find_overflow,
        .square_sums = square_sums,
        .reduce_sum = reduce_sum,
        .clip = clip,
        .rule = apply_rule,
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
