/* SPDX-License-Identifier: Apache-2.0 */
/* Forward layer by layer, backward from the last to the first. Outputs lie in
 * activation buffers, which recompute.h assigns: either all are kept, or some
 * are recomputed in the backward pass (Chen et al. 2016). Of the gradients of
 * pre-activations (dz) only two are needed at a time, above and below the
 * current layer, so they alternate between two buffers.
 *
 * Every call of the device only enqueues work, in order. */
#include "worker/models/mlp.h"

#include "worker/models/dense_layers.h"
#include "worker/models/model_pass.h"
#include "worker/models/recompute.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Layer l maps width l to width l + 1; its parameters are 2l, the weight, and
 * 2l + 1, the bias. */
struct model_instance {
    struct mlp_settings settings;
    const struct ops *ops;
    struct ops_device *device;
    uint32_t max_batch, layers;
    struct recompute plan;
    float *activations[JOB_MAX_WIDTHS]; /* [max_batch, the buffer's width] */
    uint32_t present_segment; /* first output of the segment that is in its
                                 buffers */
    float *dz_buffers[2]; /* dz above and below the current layer, of output l
                             in number l % 2: [max_batch, widest] */
    struct model_loss loss;
    size_t bytes; /* of activations, as requested */
};

static uint32_t weight_of(uint32_t layer) {
    return 2 * layer;
}

static uint32_t bias_of(uint32_t layer) {
    return 2 * layer + 1;
}

static const struct job_widths *mlp_widths(const struct job_model *model) {
    const struct mlp_settings *settings = model->settings;
    return &settings->layers;
}

static uint32_t mlp_parameters(const struct job_model *model,
                               const struct features *features,
                               struct parameter *parameters) {
    (void)features;
    const struct mlp_settings *settings = model->settings;
    uint32_t count = 2 * (settings->layers.count - 1);
    if (parameters)
        dense_layers_parameters(&settings->layers, &settings->init, "layer",
                                parameters);
    for (uint32_t p = 0; parameters && p < count; p++)
        parameters[p].group = model->group[JOB_GROUP_DEEP];
    return count;
}

/* Is the label a number, not a class? */
static bool mlp_has_target(const struct mlp_settings *settings) {
    const struct job_widths *widths = &settings->layers;
    return widths->items[widths->count - 1] == 1 &&
           settings->loss != JOB_SOFTMAX_CROSS_ENTROPY;
}

static void mlp_inputs(const struct job_model *model,
                       const struct features *features,
                       struct batch_spec *spec) {
    (void)features;
    const struct mlp_settings *settings = model->settings;
    const struct job_widths *widths = &settings->layers;
    *spec = (struct batch_spec){
        .num_columns = 2,
        .columns = {
            [MLP_INPUTS] = {.type = BATCH_FLOATS, .width = widths->items[0]},
            [MLP_LABELS] = {.type = BATCH_CLASSES,
                            .width = 1,
                            .num_classes = widths->items[widths->count - 1]},
        }};
    spec->regression = mlp_has_target(settings) && settings->loss == JOB_MSE;
    if (mlp_has_target(settings))
        spec->columns[MLP_LABELS] = (struct batch_column){
            .type = BATCH_FLOATS, .width = 1, .max = settings->loss != JOB_MSE};
}

static enum status mlp_check_data(const struct job_model *model,
                                  const struct dataset *dataset,
                                  const struct job_files *files,
                                  struct failure *why) {
    const struct job_widths *widths = mlp_widths(model);
    uint32_t inputs = widths->items[0];
    uint32_t outputs = widths->items[widths->count - 1];
    char from[PATH_MAX + 32] = "the numbers that its features give";
    if (dataset->num_classes)
        snprintf(from, sizeof from, "the bytes of an image in %s",
                 files->paths[0]);
    if (dataset->features != inputs)
        return status_fail(why, FAILURE_DATA_MISMATCH,
                           "model.layers[0]: found %u inputs, expected %u, %s",
                           inputs, dataset->features, from);
    if (dataset->num_classes > outputs)
        return status_fail(why, FAILURE_DATA_MISMATCH,
                           "model.layers[%u]: found %u outputs, expected %u "
                           "or more: the largest label in %s is %u",
                           widths->count - 1, outputs, dataset->num_classes,
                           files->paths[1], dataset->num_classes - 1);
    return STATUS_OK;
}

static uint32_t mlp_larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static uint32_t widest_output(const struct job_widths *widths) {
    uint32_t widest = 0;
    for (uint32_t l = 1; l < widths->count; l++)
        widest = mlp_larger(widest, widths->items[l]);
    return widest;
}

/* Floats of the largest left operand, rows as wide as the widest layer, and of
 * the largest right operand, a layer's weights or its inputs. */
static uint64_t operand_floats(const struct job_widths *widths,
                               uint64_t samples) {
    uint64_t right = 0;
    for (uint32_t l = 1; l < widths->count; l++) {
        uint64_t in = widths->items[l - 1], out = widths->items[l];
        uint64_t largest = in * (out > samples ? out : samples);
        right = largest > right ? largest : right;
    }
    return samples * mlp_larger(widths->items[0], widest_output(widths)) +
           right;
}

static uint32_t least_kept(const struct job_widths *widths) {
    uint64_t least = UINT64_MAX;
    uint32_t best = 0;
    for (uint32_t kept = 1; kept + 2 < widths->count; kept++) {
        struct recompute plan;
        recompute_plan(&plan, widths, kept);
        if (recompute_floats(&plan) > least)
            continue;
        least = recompute_floats(&plan);
        best = kept;
    }
    return best;
}

/* Rows of all activation buffers and of the two of dz; a data set has one byte
 * for a pixel and for a label. */
static void mlp_memory(const struct job *job, uint64_t samples,
                       struct memory_footprint_model *out) {
    const struct job_model *model = &job->model;
    const struct job_widths *widths = mlp_widths(model);
    uint64_t inputs = widths->items[0];
    bool rounds = model->precision != JOB_PRECISION_FP32;
    struct recompute plan;
    recompute_plan(&plan, widths, model->kept);
    uint64_t floats =
        recompute_floats(&plan) + 2 * (uint64_t)widest_output(widths);
    *out = (struct memory_footprint_model){
        .activations = samples * floats * sizeof(float),
        .rounded = rounds ? operand_floats(widths, samples) * sizeof(float) : 0,
        .sample = inputs * sizeof(float) + sizeof(uint32_t),
        .stored = inputs + 1,
        .least_kept = least_kept(widths),
    };
}

static float *allocate_rows(struct model_instance *mlp, uint32_t width) {
    size_t bytes = (size_t)mlp->max_batch * width * sizeof(float);
    mlp->bytes += bytes;
    return mlp->ops->allocate(mlp->device, bytes);
}

static bool mlp_allocate(struct model_instance *mlp) {
    uint32_t widest = widest_output(&mlp->settings.layers);
    bool complete = true;
    for (uint32_t r = 0; r < mlp->plan.activations; r++) {
        mlp->activations[r] = allocate_rows(mlp, mlp->plan.width[r]);
        complete = complete && mlp->activations[r];
    }
    for (int i = 0; i < 2; i++) {
        mlp->dz_buffers[i] = allocate_rows(mlp, widest);
        complete = complete && mlp->dz_buffers[i];
    }
    return complete && model_loss_open(&mlp->loss, mlp->ops, mlp->device);
}

static void mlp_close(struct model_instance **mlp) {
    if (!mlp || !*mlp)
        return;
    const struct ops *ops = (*mlp)->ops;
    for (uint32_t r = 0; r < (*mlp)->plan.activations; r++)
        ops->release((*mlp)->device, (*mlp)->activations[r]);
    for (int i = 0; i < 2; i++)
        ops->release((*mlp)->device, (*mlp)->dz_buffers[i]);
    model_loss_close(&(*mlp)->loss);
    free(*mlp);
    *mlp = NULL;
}

static enum status mlp_open(struct model_instance **out,
                            const struct job_model *model,
                            const struct batch_spec *spec,
                            const struct ops *ops, struct ops_device *device,
                            uint32_t max_batch, struct failure *why) {
    struct model_instance *mlp = calloc(1, sizeof *mlp);
    (void)spec;
    if (!mlp)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a model");
    mlp->settings = *(const struct mlp_settings *)model->settings;
    mlp->ops = ops;
    mlp->device = device;
    mlp->max_batch = max_batch;
    mlp->layers = mlp->settings.layers.count - 1;
    recompute_plan(&mlp->plan, &mlp->settings.layers, model->kept);
    ops->set_precision(device, model->precision);
    if (!mlp_allocate(mlp)) {
        status_fail(why, FAILURE_DEVICE_MEMORY,
                    "no memory on device %s for the activations of %u samples "
                    "of %zu bytes",
                    ops->name, max_batch, mlp->bytes);
        mlp_close(&mlp);
        return STATUS_FAILED;
    }
    *out = mlp;
    return STATUS_OK;
}

/* Submits the enqueued work first: the host may have to wait for weights, and
 * the device continues meanwhile. */
static void mlp_need(const struct model_instance *mlp,
                     const struct model_hooks *hooks, uint32_t layer) {
    if (!hooks || !hooks->need)
        return;
    mlp->ops->capture_end(mlp->device);
    hooks->need(hooks->context, weight_of(layer), 2);
    mlp->ops->capture_begin(mlp->device);
}

static void mlp_done(const struct model_hooks *hooks, uint32_t parameter) {
    if (hooks && hooks->done)
        hooks->done(hooks->context, parameter);
}

static float *output_of(const struct model_instance *mlp, uint32_t layer) {
    return mlp->activations[mlp->plan.activation_of[layer]];
}

/* dz of output LAYER. */
static float *dz_of(const struct model_instance *mlp, uint32_t layer) {
    return mlp->dz_buffers[layer % 2];
}

static const float *inputs_of(const struct model_instance *mlp, uint32_t layer,
                              const struct batch *batch) {
    return layer == 0 ? batch->columns[MLP_INPUTS] : output_of(mlp, layer - 1);
}

static void mlp_compute(struct model_instance *mlp, uint32_t layer,
                        const struct batch *batch, float *const *weights) {
    bool last = layer == mlp->layers - 1;
    mlp->ops->linear(mlp->device, inputs_of(mlp, layer, batch),
                     weights[weight_of(layer)], weights[bias_of(layer)],
                     output_of(mlp, layer), batch->count,
                     mlp->settings.layers.items[layer],
                     mlp->settings.layers.items[layer + 1],
                     last ? JOB_IDENTITY : mlp->settings.activation);
    if (!mlp->plan.kept[layer])
        mlp->present_segment = mlp->plan.segment[layer];
}

static void mlp_forward(struct model_instance *mlp, const struct batch *batch,
                        float *const *weights,
                        const struct model_hooks *hooks) {
    for (uint32_t l = 0; l < mlp->layers; l++) {
        mlp_need(mlp, hooks, l);
        mlp_compute(mlp, l, batch, weights);
    }
}

/* Recomputes output LAYER's segment as in the forward pass, from the last kept
 * output before it, so that it has the same bits. This reads weights of lower
 * layers only, which are still unchanged. */
static void recompute_segment(struct model_instance *mlp, uint32_t layer,
                              const struct batch *batch,
                              float *const *weights) {
    uint32_t first = mlp->plan.segment[layer];
    if (mlp->plan.kept[layer] || mlp->present_segment == first)
        return;
    for (uint32_t l = first; l <= layer; l++)
        mlp_compute(mlp, l, batch, weights);
}

/* DZ receives the gradient of scale * (sum of the losses), or is NULL. */
static void mlp_loss(struct model_instance *mlp, const struct batch *batch,
                     float *dz, float scale) {
    mlp->loss.count = batch->count;
    model_loss_compute(&mlp->loss, mlp->settings.loss,
                       output_of(mlp, mlp->layers - 1),
                       batch->columns[MLP_LABELS], dz,
                       mlp->settings.layers.items[mlp->layers], scale);
}

/* From dz of the layer to dz of the layer below. */
static void propagate(struct model_instance *mlp, uint32_t layer, uint32_t n,
                      const float *weight) {
    uint32_t in = mlp->settings.layers.items[layer],
             out = mlp->settings.layers.items[layer + 1];
    float *below = dz_of(mlp, layer - 1);
    mlp->ops->linear_input_gradient(mlp->device, dz_of(mlp, layer), weight,
                                    below, n, in, out);
    mlp->ops->activation_gradient(mlp->device, mlp->settings.activation,
                                  output_of(mlp, layer - 1), below, n, in);
}

/* In the order of every push: the last parameter first. A weight is read for
 * the last time before its gradient is announced. */
static void backward(struct model_instance *mlp, const struct batch *batch,
                     float *const *weights, float *const *gradients, bool add,
                     const struct model_hooks *hooks) {
    const struct ops *ops = mlp->ops;
    for (uint32_t l = mlp->layers; l-- > 0;) {
        uint32_t in = mlp->settings.layers.items[l],
                 out = mlp->settings.layers.items[l + 1];
        ops->column_sums(mlp->device, dz_of(mlp, l), gradients[bias_of(l)],
                         batch->count, out, add);
        mlp_done(hooks, bias_of(l));
        if (l > 0)
            recompute_segment(mlp, l - 1, batch, weights);
        ops->linear_weight_gradient(
            mlp->device, dz_of(mlp, l), inputs_of(mlp, l, batch),
            gradients[weight_of(l)], batch->count, in, out, add);
        if (l > 0)
            propagate(mlp, l, batch->count, weights[weight_of(l)]);
        mlp_done(hooks, weight_of(l));
    }
}

/* An asynchronous device runs the backward pass whatever the loss is; the
 * caller later discards the gradients. */
static void mlp_gradient(struct model_instance *mlp, const struct batch *batch,
                         float *const *weights, float *const *gradients,
                         float scale, bool add, const struct model_hooks *hooks,
                         struct model_result *result) {
    mlp->ops->capture_begin(mlp->device);
    mlp_forward(mlp, batch, weights, hooks);
    mlp_loss(mlp, batch, dz_of(mlp, mlp->layers - 1), scale);
    *result = model_loss_known(&mlp->loss);
    if (!hooks || !hooks->loss || mlp->ops->async ||
        hooks->loss(hooks->context, result->loss))
        backward(mlp, batch, weights, gradients, add, hooks);
    mlp->ops->capture_end(mlp->device);
}

static void mlp_evaluate(struct model_instance *mlp, const struct batch *batch,
                         float *const *weights, const struct model_hooks *hooks,
                         struct model_result *result) {
    mlp->ops->capture_begin(mlp->device);
    mlp_forward(mlp, batch, weights, hooks);
    mlp_loss(mlp, batch, NULL, 1);
    mlp->ops->capture_end(mlp->device);
    *result = model_loss_known(&mlp->loss);
}

static enum status mlp_settle(struct model_instance *mlp,
                              struct model_result *result,
                              struct failure *why) {
    return model_loss_settle(&mlp->loss, result, why);
}

static enum status mlp_scores(struct model_instance *mlp,
                              const struct batch *batch, uint64_t samples,
                              struct binary_scores *out, struct failure *why) {
    if (!mlp_has_target(&mlp->settings) ||
        mlp->settings.loss != JOB_SIGMOID_CROSS_ENTROPY)
        return STATUS_OK;
    return model_loss_scores(&mlp->loss, output_of(mlp, mlp->layers - 1),
                             batch->columns[MLP_LABELS], samples, out, why);
}

static void mlp_check_job(const struct job *job, const struct log *log) {
    uint32_t hidden = mlp_widths(&job->model)->count - 2;
    if (job->model.kept && job->model.kept >= hidden)
        log_info(log, "activations_kept",
                 "activation_checkpointing.number_checkpoints: the model has "
                 "%u hidden layer%s: all activations are kept",
                 hidden, hidden == 1 ? "" : "s");
}

#define MLP_KEY(member)                                                        \
    .of_model = true, .models = 1u << JOB_MLP,                                 \
    .field = offsetof(struct mlp_settings, member)
#define MLP_CHOICE(member, ...)                                                \
    .kind = JOB_KIND_CHOICE, MLP_KEY(member), .words = (const char *const[]) { \
        __VA_ARGS__, NULL                                                      \
    }

static const struct job_key mlp_keys[] = {
    {"model.layers", .kind = JOB_KIND_WIDTHS, MLP_KEY(layers), .least = 2,
     .most = JOB_MAX_WIDTHS, .min = 1, .max = 16777216, .required = true},
    {"model.activation",
     MLP_CHOICE(activation, "relu", "tanh", "sigmoid", "identity"),
     .default_value = "\"relu\""},
    {"model.init", .kind = JOB_KIND_INIT, MLP_KEY(init)},
    {"model.loss",
     MLP_CHOICE(loss, "softmax_cross_entropy", "sigmoid_cross_entropy", "mse"),
     .default_value = "\"softmax_cross_entropy\""},
};

const struct job_model_schema mlp_schema = {
    .keys = mlp_keys,
    .num_keys = sizeof mlp_keys / sizeof *mlp_keys,
    .bytes = sizeof(struct mlp_settings),
    .check = mlp_check_job,
};

const struct model model_mlp = {
    .parameters = mlp_parameters,
    .inputs = mlp_inputs,
    .check_data = mlp_check_data,
    .memory = mlp_memory,
    .open = mlp_open,
    .close = mlp_close,
    .gradient = mlp_gradient,
    .evaluate = mlp_evaluate,
    .settle = mlp_settle,
    .scores = mlp_scores,
};
