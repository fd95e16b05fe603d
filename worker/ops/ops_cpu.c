#include "proto/math/bf16.h"
#include "proto/math/fp16.h"
#include "worker/ops/activation.h"
#include "worker/ops/loss.h"
#include "worker/ops/ops.h"

#include <dnnl.h>
#include <limits.h>
#include <math.h>
#include <omp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

/* Memory that grows with what is rounded into it. */
struct rounded {
    float *floats;
    size_t room;
};

_Static_assert(offsetof(struct ops, identify) ==
                   offsetof(struct device_head, identify),
               "a table begins as a device_head");

struct ops_device {
    int threads;
    enum job_precision precision;
    struct rounded a, b; /* operands of a product */
    const struct rule_loops *loops;
};

static void *cpu_allocate(struct ops_device *device, size_t bytes) {
    (void)device;
    if (bytes > SIZE_MAX - ALIGNMENT)
        return NULL;
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    void *memory = aligned_alloc(ALIGNMENT, rounded ? rounded : ALIGNMENT);
    if (memory)
        memset(memory, 0, rounded);
    return memory;
}

static void cpu_release(struct ops_device *device, void *memory) {
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
    (void)index;
    (void)why;
    *out = (struct device_description){.name = "cpu", .usable = true};
    return STATUS_OK;
}

static enum status cpu_open(struct ops_device **out,
                            const struct ops_settings *settings,
                            struct failure *why) {
    enum status status = ops_cpu_open(out, settings->threads, why);
    if (!status && settings->loops)
        (*out)->loops = settings->loops;
    return status;
}

/* Every call is done when it returns: there is nothing to wait for, and memory
 * of the host needs no preparation. */
static bool cpu_pin(struct ops_device *device, void *memory, size_t bytes) {
    (void)device;
    (void)memory;
    (void)bytes;
    return true;
}

static void cpu_unpin(struct ops_device *device, void *memory) {
    (void)device;
    (void)memory;
}

static void cpu_copy(struct ops_device *device, enum ops_stream stream,
                     void *to, const void *from, size_t bytes) {
    (void)device;
    (void)stream;
    if (to != from)
        memcpy(to, from, bytes);
}

static void *cpu_native(struct ops_device *device, enum ops_stream stream) {
    (void)device;
    (void)stream;
    return NULL;
}

/* One stands for all: whatever was recorded has come. */
static struct ops_event *cpu_event_open(struct ops_device *device) {
    return (struct ops_event *)device;
}

static void cpu_event_close(struct ops_device *device,
                            struct ops_event **event) {
    (void)device;
    *event = NULL;
}

static void cpu_pass(struct ops_device *device, enum ops_stream stream,
                     struct ops_event *event) {
    (void)device;
    (void)stream;
    (void)event;
}

static enum status cpu_await(struct ops_device *device, struct ops_event *event,
                             struct failure *why) {
    (void)device;
    (void)event;
    (void)why;
    return STATUS_OK;
}

static enum status cpu_synchronize(struct ops_device *device,
                                   struct failure *why) {
    (void)device;
    (void)why;
    return STATUS_OK;
}

/* c[m, n] = a b, or c + a b when ADD; a is [m, k], or [k, m] when 'T'; b is
 * [k, n], or [n, k] when 'T'. */
struct product {
    char transpose_a, transpose_b;
    uint32_t m, n, k;
    const float *a, *b;
    float *c;
    bool add;
};

static void cpu_span(struct ops_device *device) {
    (void)device;
}

static void cpu_set_precision(struct ops_device *device,
                              enum job_precision precision) {
    device->precision = precision;
}

static bool make_room(struct rounded *rounded, size_t count) {
    if (count <= rounded->room)
        return true;
    free(rounded->floats);
    rounded->floats = aligned_alloc(
        ALIGNMENT, (count * sizeof(float) / ALIGNMENT + 1) * ALIGNMENT);
    rounded->room = rounded->floats ? count : 0;
    return rounded->floats;
}

/* COUNT floats as a product of DEVICE takes them; NULL: no memory. */
static const float *operand(const struct ops_device *device,
                            struct rounded *rounded, const float *floats,
                            size_t count) {
    if (device->precision == JOB_PRECISE)
        return floats;
    if (!make_room(rounded, count))
        return NULL;
    float *restrict to = rounded->floats;
    if (device->precision == JOB_HALF_BF16)
        for (size_t i = 0; i < count; i++)
            to[i] = bf16_to_float(bf16_from_float(floats[i]));
    else
        for (size_t i = 0; i < count; i++)
            to[i] = fp16_to_float(fp16_from_float(floats[i]));
    return to;
}

/* oneDNN's OpenMP takes its number of threads from the calling thread's own
 * setting, so that it is set here, where the caller is known. oneDNN refuses
 * only for want of memory; NaN then says that there is no answer. */
static void multiply(struct ops_device *device, const struct product *p) {
    const float *a = operand(device, &device->a, p->a, (size_t)p->m * p->k);
    const float *b = operand(device, &device->b, p->b, (size_t)p->k * p->n);
    omp_set_num_threads(device->threads);
    if (a && b &&
        dnnl_sgemm(p->transpose_a, p->transpose_b, p->m, p->n, p->k, 1, a,
                   p->transpose_a == 'T' ? p->m : p->k, b,
                   p->transpose_b == 'T' ? p->k : p->n, p->add ? 1 : 0, p->c,
                   p->n) == dnnl_success)
        return;
    for (size_t i = 0; i < (size_t)p->m * p->n; i++)
        p->c[i] = NAN;
}

static void activate(float *restrict y, const float *restrict bias,
                     uint32_t out, enum job_activation activation) {
    switch (activation) {
    case JOB_RELU:
        for (uint32_t j = 0; j < out; j++)
            y[j] = activation_relu(y[j] + bias[j]);
        return;
    case JOB_TANH:
        for (uint32_t j = 0; j < out; j++)
            y[j] = activation_tanh(y[j] + bias[j]);
        return;
    case JOB_SIGMOID:
        for (uint32_t j = 0; j < out; j++)
            y[j] = activation_sigmoid(y[j] + bias[j]);
        return;
    case JOB_IDENTITY:
        for (uint32_t j = 0; j < out; j++)
            y[j] += bias[j];
        return;
    }
}

/* The bias joins in the pass of the activation: one pass over y in all. */
static void cpu_linear(struct ops_device *device, const float *x,
                       const float *w, const float *bias, float *y, uint32_t n,
                       uint32_t in, uint32_t out,
                       enum job_activation activation) {
    multiply(device, &(struct product){'N', 'T', n, out, in, x, w, y, false});
    for (size_t i = 0; i < n; i++)
        activate(y + i * out, bias, out, activation);
}

static void cpu_linear_input_gradient(struct ops_device *device,
                                      const float *dy, const float *w,
                                      float *dx, uint32_t n, uint32_t in,
                                      uint32_t out) {
    multiply(device, &(struct product){'N', 'N', n, in, out, dy, w, dx, false});
}

static void cpu_linear_weight_gradient(struct ops_device *device,
                                       const float *dy, const float *x,
                                       float *dw, uint32_t n, uint32_t in,
                                       uint32_t out, bool add) {
    multiply(device, &(struct product){'T', 'N', out, in, n, dy, x, dw, add});
}

static void add_row(float *restrict sums, const float *restrict row,
                    uint32_t out) {
    for (uint32_t j = 0; j < out; j++)
        sums[j] += row[j];
}

static void cpu_column_sums(struct ops_device *device, const float *dy,
                            float *db, uint32_t n, uint32_t out, bool add) {
    (void)device;
    if (!add)
        memset(db, 0, out * sizeof *db);
    for (size_t i = 0; i < n; i++)
        add_row(db, dy + i * out, out);
}

static void slope(const float *restrict y, float *restrict dy, size_t count,
                  enum job_activation activation) {
    switch (activation) {
    case JOB_RELU:
        for (size_t i = 0; i < count; i++)
            dy[i] = activation_relu_gradient(y[i], dy[i]);
        return;
    case JOB_TANH:
        for (size_t i = 0; i < count; i++)
            dy[i] = activation_tanh_gradient(y[i], dy[i]);
        return;
    case JOB_SIGMOID:
        for (size_t i = 0; i < count; i++)
            dy[i] = activation_sigmoid_gradient(y[i], dy[i]);
        return;
    case JOB_IDENTITY:
        return;
    }
}

static void cpu_activation_gradient(struct ops_device *device,
                                    enum job_activation activation,
                                    const float *y, float *dy, uint32_t n,
                                    uint32_t out) {
    (void)device;
    slope(y, dy, (size_t)n * out, activation);
}

static double sample_loss(enum job_loss kind, const float *z, uint32_t label,
                          float *dz, uint32_t out, float factor) {
    switch (kind) {
    case JOB_SOFTMAX_CROSS_ENTROPY:
        return loss_softmax_cross_entropy(z, label, dz, out, factor);
    case JOB_SIGMOID_CROSS_ENTROPY:
        return loss_sigmoid_cross_entropy(z, label, dz, out, factor);
    case JOB_MSE:
        return loss_mse(z, label, dz, out, factor);
    }
    return NAN;
}

static void cpu_loss(struct ops_device *device, enum job_loss kind,
                     const float *z, const uint32_t *labels, float *dz,
                     uint32_t n, uint32_t out, float scale, double *loss,
                     uint32_t *correct) {
    (void)device;
    *loss = 0;
    *correct = 0;
    for (size_t i = 0; i < n; i++) {
        const float *logits = z + i * out;
        *correct += loss_is_correct(logits, labels[i], out);
        *loss += sample_loss(kind, logits, labels[i], dz ? dz + i * out : NULL,
                             out, scale);
    }
}

static void cpu_fill(struct ops_device *device, enum ops_stream stream,
                     float *x, size_t count, float value) {
    (void)device;
    (void)stream;
    for (size_t i = 0; i < count; i++)
        x[i] = value;
}

static void cpu_scale(struct ops_device *device, enum ops_stream stream,
                      float *x, size_t count, float by) {
    (void)device;
    (void)stream;
    for (size_t i = 0; i < count; i++)
        x[i] *= by;
}

/* By the exponent, which is all ones in infinities and NaN alone: a loop
 * without branches. */
static void cpu_find_overflow(struct ops_device *device, enum ops_stream stream,
                              const float *x, size_t count, uint32_t *found) {
    const uint32_t exponent = 0x7f800000;
    uint32_t any = 0;
    (void)device;
    (void)stream;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        any |= (bits & exponent) == exponent;
    }
    *found = any;
}

static void cpu_square_sums(struct ops_device *device, enum ops_stream stream,
                            const float *x, size_t count, float scale,
                            double *pieces) {
    const void *floats = x;
    struct rule_update update = {.scale = scale,
                                 .elements = count,
                                 .num_gradients = 1,
                                 .gradients = &floats};
    (void)stream;
    rule_square_sums(device->loops, &update, pieces);
}

static double add_in_order(const double *pieces, size_t count, size_t step) {
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += pieces[i * step];
    return sum;
}

static void cpu_add_up(struct ops_device *device, enum ops_stream stream,
                       const double *pieces, size_t count, double *sum) {
    (void)device;
    (void)stream;
    *sum = add_in_order(pieces, count, 1);
}

/* As torch.nn.utils.clip_grad_norm_ does. */
static void cpu_clip(struct ops_device *device, enum ops_stream stream,
                     const double *squares, size_t count, size_t step,
                     double limit, float *factor) {
    double by = limit / (sqrt(add_in_order(squares, count, step)) + 1e-6);
    (void)device;
    (void)stream;
    *factor = by < 1 ? (float)by : 1;
}

static void cpu_rule(struct ops_device *device, enum ops_stream stream,
                     const struct optimizer *rule,
                     const struct rule_update *update, const float *factor) {
    struct rule_update own = *update;
    (void)stream;
    own.scale *= factor ? *factor : 1;
    rule_apply(device->loops, rule, &own);
}

const struct ops *ops_cpu(void) {
    static const struct ops cpu = {
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
        .native = cpu_native,
        .event_open = cpu_event_open,
        .event_close = cpu_event_close,
        .record = cpu_pass,
        .follow = cpu_pass,
        .await = cpu_await,
        .synchronize = cpu_synchronize,
        .begin = cpu_span,
        .end = cpu_span,
        .set_precision = cpu_set_precision,
        .linear = cpu_linear,
        .linear_input_gradient = cpu_linear_input_gradient,
        .linear_weight_gradient = cpu_linear_weight_gradient,
        .column_sums = cpu_column_sums,
        .activation_gradient = cpu_activation_gradient,
        .loss = cpu_loss,
        .fill = cpu_fill,
        .scale = cpu_scale,
        .find_overflow = cpu_find_overflow,
        .square_sums = cpu_square_sums,
        .add_up = cpu_add_up,
        .clip = cpu_clip,
        .rule = cpu_rule,
    };
    return &cpu;
}

enum status ops_cpu_open(struct ops_device **out, uint32_t threads,
                         struct failure *why) {
    if (threads == 0 || threads > INT_MAX)
        return status_fail(why, STATUS_CONFIG,
                           "threads: found %u, expected 1 to %d", threads,
                           INT_MAX);
    struct ops_device *device = calloc(1, sizeof *device);
    if (!device)
        return status_fail(why, STATUS_FAILED, "no memory for a device");
    size_t variants;
    device->threads = (int)threads;
    device->loops = *rule_variants(&variants);
    *out = device;
    return STATUS_OK;
}

void ops_cpu_close(struct ops_device **device) {
    if (!device || !*device)
        return;
    free((*device)->a.floats);
    free((*device)->b.floats);
    free(*device);
    *device = NULL;
}
