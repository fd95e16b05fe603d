/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/models/dense_layers.h"

#include "core/tensor/initializer.h"

#include <math.h>
#include <stdio.h>

static uint32_t dense_layers_count(const struct job_widths *widths) {
    return widths->count ? widths->count - 1 : 0;
}

static uint32_t dense_layers_widest(const struct job_widths *widths) {
    uint32_t widest = 0;
    for (uint32_t l = 1; l < widths->count; l++)
        if (widths->items[l] > widest)
            widest = widths->items[l];
    return widest;
}

/* The gradients of tanh and sigmoid read the layer's value, from which a
 * dropped one cannot tell. A dropped output of relu is 0 and a kept one has the
 * sign of the layer's, which is all that its gradient reads. */
static bool keeps_both(enum job_activation activation, double dropout) {
    return dropout > 0 && (activation == JOB_TANH || activation == JOB_SIGMOID);
}

uint64_t dense_layers_floats(const struct job_widths *widths,
                             enum job_activation activation, double dropout) {
    uint64_t floats = 2 * (uint64_t)dense_layers_widest(widths);
    for (uint32_t l = 1; l < widths->count; l++)
        floats += (keeps_both(activation, dropout) ? 2 : 1) *
                  (uint64_t)widths->items[l];
    return floats;
}

void dense_layers_parameters(const struct job_widths *widths,
                             const struct job_init *init, const char *name,
                             struct parameter *parameters) {
    uint32_t layers = dense_layers_count(widths);
    for (uint32_t l = 0; l < layers; l++) {
        uint32_t in = widths->items[l], out = widths->items[l + 1];
        struct initializer of_weight = {.bound = (float)(1 / sqrt(in))};
        float bound = init->kind ? 0 : of_weight.bound;
        struct parameter *weight = &parameters[2 * l], *bias = weight + 1;
        if (init->kind)
            of_weight = initializer_of_job(init, in, out);
        *weight = (struct parameter){.num_dims = 2,
                                     .dims = {out, in},
                                     .init_bound = of_weight.bound,
                                     .init_shift = of_weight.shift,
                                     .init_kind = of_weight.kind,
                                     .elements = (uint64_t)out * in};
        *bias = (struct parameter){
            .num_dims = 1, .dims = {out}, .init_bound = bound, .elements = out};
        snprintf(weight->name, sizeof weight->name, "%s%u.weight", name, l);
        snprintf(bias->name, sizeof bias->name, "%s%u.bias", name, l);
    }
}

enum status dense_layers_prepare(const struct device_ops *ops,
                                 struct device *device,
                                 const struct job_widths *widths,
                                 uint32_t max_batch, struct failure *why) {
    enum status status = STATUS_OK;
    for (uint32_t l = 0; !status && l < dense_layers_count(widths); l++) {
        uint32_t in = widths->items[l], out = widths->items[l + 1];
        const struct op ops_of_layer[] = {
            op_linear(NULL, NULL, NULL, NULL, max_batch, in, out, JOB_IDENTITY),
            op_linear_input_gradient(NULL, NULL, NULL, max_batch, in, out),
            op_linear_weight_gradient(NULL, NULL, NULL, max_batch, in, out,
                                      false),
            op_column_sums(NULL, NULL, max_batch, out, false)};
        for (int i = 0; !status && i < 4; i++)
            status = model_pass_prepare(ops, device, ops_of_layer[i], why);
    }
    return status;
}

bool dense_layers_open(struct dense_layers *layers, uint32_t max_batch) {
    uint32_t count = dense_layers_count(&layers->widths);
    size_t floats = (size_t)max_batch * dense_layers_widest(&layers->widths);
    bool complete = true;
    for (uint32_t l = 0; l < count; l++) {
        size_t bytes =
            (size_t)max_batch * layers->widths.items[l + 1] * sizeof(float);
        bool both = keeps_both(layers->activation, layers->dropout);
        layers->outputs[l] = layers->ops->allocate(layers->device, bytes);
        if (both)
            layers->dropped[l] = layers->ops->allocate(layers->device, bytes);
        complete =
            complete && layers->outputs[l] && (!both || layers->dropped[l]);
    }
    for (int i = 0; count && i < 2; i++) {
        layers->dz[i] =
            layers->ops->allocate(layers->device, floats * sizeof(float));
        complete = complete && layers->dz[i];
    }
    return complete;
}

void dense_layers_close(struct dense_layers *layers) {
    for (uint32_t l = 0; l < dense_layers_count(&layers->widths); l++) {
        layers->ops->release(layers->device, layers->outputs[l]);
        layers->ops->release(layers->device, layers->dropped[l]);
    }
    for (int i = 0; layers->ops && i < 2; i++)
        layers->ops->release(layers->device, layers->dz[i]);
}

static bool is_active(const struct dense_layers *layers, uint32_t layer) {
    return layers->last_active ||
           layer + 1 < dense_layers_count(&layers->widths);
}

static bool drops(const struct dense_layers *layers,
                  const struct model_pass *pass, uint32_t layer) {
    return pass->gradients && layers->dropout > 0 && is_active(layers, layer);
}

/* What layer LAYER reads, X or the output before it. */
static const float *dense_layers_input(const struct dense_layers *layers,
                                       const struct model_pass *pass,
                                       uint32_t layer, const float *x) {
    if (!layer)
        return x;
    return layers->dropped[layer - 1] && drops(layers, pass, layer - 1)
               ? layers->dropped[layer - 1]
               : layers->outputs[layer - 1];
}

/* Y becomes X, dropped. The mask follows from the batch, the layer and the
 * element, so that the backward pass and a resumed run have the same. The
 * batch's number is read from memory, so that the ops of all batches are equal
 * (graphs: device.h). */
static void dense_layers_drop(const struct dense_layers *layers,
                              const struct model_pass *pass, uint32_t layer,
                              const float *x, float *y) {
    uint32_t width = layers->widths.items[layer + 1];
    const struct batch *batch = pass->batch;
    if (!drops(layers, pass, layer))
        return;
    const struct op drop = {.kind = OP_ROWS_DROPOUT,
                            .key = layers->key,
                            .number = layer,
                            .step = JOB_MAX_WIDTHS,
                            .rate = layers->dropout,
                            .n = batch->count,
                            .fields = 1,
                            .width = width,
                            .x_row = width,
                            .y_row = width};
    model_pass_run(pass,
                   op_rows_dropout(drop, x,
                                   batch->device_number ? batch->device_number
                                                        : &batch->number,
                                   y));
}

const float *dense_layers_forward(const struct dense_layers *layers,
                                  const struct model_pass *pass,
                                  const float *x) {
    uint32_t count = dense_layers_count(&layers->widths);
    for (uint32_t l = 0; l < count; l++) {
        uint32_t weight = layers->first + 2 * l;
        model_pass_need(pass, weight, 2);
        model_pass_run(pass,
                       op_linear(dense_layers_input(layers, pass, l, x),
                                 pass->weights[weight],
                                 pass->weights[weight + 1], layers->outputs[l],
                                 pass->batch->count, layers->widths.items[l],
                                 layers->widths.items[l + 1],
                                 is_active(layers, l) ? layers->activation
                                                      : JOB_IDENTITY));
        dense_layers_drop(layers, pass, l, layers->outputs[l],
                          layers->dropped[l] ? layers->dropped[l]
                                             : layers->outputs[l]);
    }
    return dense_layers_input(layers, pass, count, x);
}

float *dense_layers_dz(const struct dense_layers *layers) {
    return layers->dz[(dense_layers_count(&layers->widths) - 1) % 2];
}

/* Of layer L, whose output's gradient is in its buffer. */
static void dense_layers_one_back(const struct dense_layers *layers,
                                  const struct model_pass *pass, uint32_t l,
                                  const float *x, float *dx) {
    uint32_t weight = layers->first + 2 * l, n = pass->batch->count;
    uint32_t in = layers->widths.items[l], out = layers->widths.items[l + 1];
    float *dz = layers->dz[l % 2];
    dense_layers_drop(layers, pass, l, dz, dz);
    if (is_active(layers, l))
        model_pass_run(pass,
                       op_activation_gradient(layers->activation,
                                              layers->outputs[l], dz, n, out));
    model_pass_run(pass, op_column_sums(dz, pass->gradients[weight + 1], n, out,
                                        pass->add));
    model_pass_done(pass, weight + 1);
    model_pass_run(pass, op_linear_weight_gradient(
                             dz, dense_layers_input(layers, pass, l, x),
                             pass->gradients[weight], n, in, out, pass->add));
    if (dx)
        model_pass_run(pass, op_linear_input_gradient(dz, pass->weights[weight],
                                                      dx, n, in, out));
    model_pass_done(pass, weight);
}

void dense_layers_backward(const struct dense_layers *layers,
                           const struct model_pass *pass, const float *x,
                           float *dx) {
    for (uint32_t l = dense_layers_count(&layers->widths); l-- > 0;)
        dense_layers_one_back(layers, pass, l, x,
                              l ? layers->dz[(l - 1) % 2] : dx);
}
