/* SPDX-License-Identifier: Apache-2.0 */
/* Layers on the CPU: products by oneDNN, all else as plain loops that the
 * compiler vectorises. With bf16 or fp16 the operands of a product are first
 * rounded to it and back, as a GPU's tensor cores take them; sums are float32
 * in all cases. */
#include "core/tensor/bf16.h"
#include "core/tensor/fp16.h"
#include "worker/ops/activation.h"
#include "worker/ops/cpu/loss.h"
#include "worker/ops/cpu/ops_cpu_internal.h"
#include "worker/ops/loss_element.h"

#include <dnnl.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* c[m, n] = a b, or c + a b if ADD; a is [m, k], or [k, m] if 'T'; b is [k, n],
 * or [n, k] if 'T'. */
struct product {
    char transpose_a, transpose_b;
    uint32_t m, n, k;
    const float *a, *b;
    float *c;
    bool add;
};

static bool ops_cpu_layer_reserve(struct ops_cpu_operand *rounded,
                                  size_t count) {
    if (count <= rounded->capacity)
        return true;
    free(rounded->floats);
    rounded->floats = aligned_alloc(
        OPS_CPU_ALIGNMENT,
        (count * sizeof(float) / OPS_CPU_ALIGNMENT + 1) * OPS_CPU_ALIGNMENT);
    rounded->capacity = rounded->floats ? count : 0;
    return rounded->floats;
}

/* COUNT floats as operand of a product of DEVICE, rounded if necessary; NULL:
 * no memory. */
static const float *ops_cpu_layer_operand(const struct device *device,
                                          struct ops_cpu_operand *rounded,
                                          const float *floats, size_t count) {
    if (!job_precision_is_half(device->precision))
        return floats;
    if (!ops_cpu_layer_reserve(rounded, count))
        return NULL;
    float *restrict to = rounded->floats;
    if (device->precision == JOB_PRECISION_BF16)
        for (size_t i = 0; i < count; i++)
            to[i] = bf16_to_float(bf16_from_float(floats[i]));
    else
        for (size_t i = 0; i < count; i++)
            to[i] = fp16_to_float(fp16_from_float(floats[i]));
    return to;
}

static struct product ops_cpu_layer_product(const struct op *op) {
    const float *a = op->reads[0].data, *b = op->reads[1].data;
    float *c = op->writes[0].data;
    if (op->kind == OP_LINEAR)
        return (struct product){'N', 'T', op->n, op->out, op->in,
                                a,   b,   c,     false};
    if (op->kind == OP_LINEAR_INPUT_GRADIENT)
        return (struct product){'N', 'N', op->n, op->in, op->out,
                                a,   b,   c,     false};
    return (struct product){'T', 'N', op->out, op->in, op->n, a, b, c, op->add};
}

static bool uses_matmul(const struct product *p) {
    return p->transpose_a == 'N' && p->transpose_b == 'T' && !p->add &&
           p->m >= OPS_CPU_MATMUL_ROWS;
}

/* oneDNN's OpenMP takes the number of threads from the calling thread's
 * setting, so it is set here and below, on the calling thread. A shape that
 * oneDNN's matmul lacks is sgemm's. */
static bool ops_cpu_layer_prepare(struct device *device, const struct op *op) {
    struct product p = ops_cpu_layer_product(op);
    omp_set_num_threads(device->threads);
    if (uses_matmul(&p))
        (void)ops_cpu_matmul_prepare(&device->matmul, p.m, p.k, p.n);
    return !job_precision_is_half(device->precision) ||
           (ops_cpu_layer_reserve(&device->a, (size_t)p.m * p.k) &&
            ops_cpu_layer_reserve(&device->b, (size_t)p.k * p.n));
}

/* oneDNN fails only for lack of memory; the result is then NaN. */
static void ops_cpu_layer_multiply(struct device *device, const struct op *op) {
    struct product p = ops_cpu_layer_product(op);
    const float *a =
        ops_cpu_layer_operand(device, &device->a, p.a, (size_t)p.m * p.k);
    const float *b =
        ops_cpu_layer_operand(device, &device->b, p.b, (size_t)p.k * p.n);
    omp_set_num_threads(device->threads);
    if (a && b && uses_matmul(&p) &&
        ops_cpu_matmul(&device->matmul, a, b, p.c, p.m, p.k, p.n))
        return;
    if (a && b &&
        dnnl_sgemm(p.transpose_a, p.transpose_b, p.m, p.n, p.k, 1, a,
                   p.transpose_a == 'T' ? p.m : p.k, b,
                   p.transpose_b == 'T' ? p.k : p.n, p.add ? 1 : 0, p.c,
                   p.n) == dnnl_success)
        return;
    for (size_t i = 0; i < (size_t)p.m * p.n; i++)
        p.c[i] = NAN;
}

static void ops_cpu_layer_activate(float *restrict y,
                                   const float *restrict bias, uint32_t out,
                                   enum job_activation activation) {
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

/* The bias is added in the activation's loop: one pass over y in all. */
static void ops_cpu_layer_linear(struct device *device, const struct op *op) {
    float *y = op->writes[0].data;
    ops_cpu_layer_multiply(device, op);
    for (size_t i = 0; i < op->n; i++)
        ops_cpu_layer_activate(y + i * op->out, op->reads[2].data, op->out,
                               op->activation);
}

static void add_row(float *restrict sums, const float *restrict row,
                    uint32_t out) {
    for (uint32_t j = 0; j < out; j++)
        sums[j] += row[j];
}

static void ops_cpu_layer_column_sums(struct device *device,
                                      const struct op *op) {
    const float *dy = op->reads[0].data;
    float *db = op->writes[0].data;
    (void)device;
    if (!op->add)
        memset(db, 0, op->out * sizeof *db);
    for (size_t i = 0; i < op->n; i++)
        add_row(db, dy + i * op->out, op->out);
}

static void ops_cpu_layer_derivative(const float *restrict y,
                                     float *restrict dy, size_t count,
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

static void ops_cpu_layer_activation_gradient(struct device *device,
                                              const struct op *op) {
    (void)device;
    ops_cpu_layer_derivative(op->reads[0].data, op->writes[0].data,
                             (size_t)op->n * op->out, op->activation);
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

static void ops_cpu_layer_loss(struct device *device, const struct op *op) {
    const float *z = op->reads[0].data;
    const uint32_t *labels = op->reads[1].data;
    const float *weights = op->reads[2].data;
    float *dz = op->writes[0].data;
    double sum = 0;
    uint32_t correct = 0, out = op->out;
    bool target = loss_has_target(op->loss, out);
    (void)device;
    for (size_t i = 0; i < op->n; i++) {
        const float *logits = z + i * out;
        correct += target ? loss_hits_target(op->loss, *logits,
                                             loss_target(labels[i], 0, 1))
                          : loss_is_correct(logits, labels[i], out);
        float weight = weights ? weights[i] : 1;
        sum += (double)weight * sample_loss(op->loss, logits, labels[i],
                                            dz ? dz + i * out : NULL, out,
                                            weight * op->scale);
    }
    *(double *)op->writes[1].data = sum;
    *(uint32_t *)op->writes[2].data = correct;
}

#define LAYER_ROWS(ROW)                                                        \
    ROW(OP_LINEAR, ops_cpu_layer_prepare, ops_cpu_layer_linear)                \
    ROW(OP_LINEAR_INPUT_GRADIENT, ops_cpu_layer_prepare,                       \
        ops_cpu_layer_multiply)                                                \
    ROW(OP_LINEAR_WEIGHT_GRADIENT, ops_cpu_layer_prepare,                      \
        ops_cpu_layer_multiply)                                                \
    ROW(OP_COLUMN_SUMS, NULL, ops_cpu_layer_column_sums)                       \
    ROW(OP_ACTIVATION_GRADIENT, NULL, ops_cpu_layer_activation_gradient)       \
    ROW(OP_LOSS, NULL, ops_cpu_layer_loss)
const struct ops_cpu_kind ops_cpu_layer_kinds[OP_KINDS] = {LAYER_ROWS(OP_ROW)};
_Static_assert(LAYER_ROWS(OP_ONE) == OP_ROWS_COPY - OP_LINEAR,
               "each op of layers has its row");
