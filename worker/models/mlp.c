/* SPDX-License-Identifier: Apache-2.0 */
/* Forward layer by layer, backward from the last to the first. Outputs lie in
 * activation buffers, which recompute_plan assigns: either all are kept, or
 * some are recomputed in the backward pass (Chen et al. 2016). Of the gradients
 * of pre-activations (dz) only two are needed at a time, above and below the
 * current layer, so they alternate between two buffers.
 *
 * Every call of the device only enqueues work, in order. */
#include "worker/models/mlp.h"

#include "core/base/log.h"
#include "proto/job/job.h"
#include "worker/models/dense_layers.h"
#include "worker/models/model_pass.h"
#include "worker/models/ranker_form.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keeps KEPT of HIDDEN outputs; the other layers form segments whose lengths
 * differ by at most one. The last segments are the longer ones, because the
 * last one's outputs are still in memory when the backward pass begins. */
static void choose_kept(struct recompute *plan, uint32_t hidden,
                        uint32_t kept) {
    uint32_t rest = hidden - kept, at = 0;
    for (uint32_t i = 1; i <= kept; i++) {
        uint64_t before = (uint64_t)i * rest / (kept + 1);
        at = (uint32_t)before + i - 1;
        plan->kept[at] = true;
    }
    plan->kept[hidden] = true;
}

static uint32_t recompute_larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* Shared buffers first, then the buffers of kept outputs. */
static void assign_activations(struct recompute *plan, const uint32_t *widths) {
    uint32_t length = 0;
    for (uint32_t l = 0; l < plan->layers; l++) {
        plan->segment[l] = l - length;
        length = plan->kept[l] ? 0 : length + 1;
        if (plan->kept[l])
            continue;
        uint32_t activation_of = length - 1;
        plan->activation_of[l] = activation_of;
        plan->width[activation_of] =
            recompute_larger(plan->width[activation_of], widths[l]);
        plan->activations = recompute_larger(plan->activations, length);
    }
    for (uint32_t l = 0; l < plan->layers; l++)
        if (plan->kept[l]) {
            plan->activation_of[l] = plan->activations++;
            plan->width[plan->activation_of[l]] = widths[l];
        }
}

void recompute_plan(struct recompute *plan, const struct job_widths *widths,
                    uint32_t kept) {
    uint32_t hidden = widths->count - 2;
    bool all = !kept || kept >= hidden;
    *plan = (struct recompute){.layers = hidden + 1};
    choose_kept(plan, hidden, all ? hidden : kept);
    assign_activations(plan, widths->items + 1);
}

uint64_t recompute_floats(const struct recompute *plan) {
    uint64_t floats = 0;
    for (uint32_t r = 0; r < plan->activations; r++)
        floats += plan->width[r];
    return floats;
}

/* Layer l maps width l to width l + 1; its parameters are 2l, the weight, and
 * 2l + 1, the bias. */
struct model_instance {
    struct mlp_settings settings;
    const struct device_ops *ops;
    struct device *device;
    uint32_t max_batch, layers;
    uint32_t labels, rows, weights; /* columns; 0: no weights */
    uint32_t row_width; /* 0: no rows; the numbers before them have the
                           rest of the inputs */
    float *inputs; /* [max_batch, inputs]: numbers and rows side by side, then
                      their gradient; NULL: one column has all */
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

static struct batch_column mlp_label(const struct mlp_settings *settings) {
    const struct job_widths *widths = &settings->layers;
    if (mlp_has_target(settings))
        return (struct batch_column){
            .type = BATCH_FLOATS, .width = 1, .max = settings->loss != JOB_MSE};
    return (struct batch_column){.type = BATCH_CLASSES,
                                 .width = 1,
                                 .num_classes =
                                     widths->items[widths->count - 1]};
}

/* Samples that are no records have one column of numbers. */
static enum status mlp_form(const struct job_model *model,
                            const struct features *features,
                            struct batch_spec *spec, struct table *tables,
                            uint32_t *num_tables, struct failure *why) {
    const struct mlp_settings *settings = model->settings;
    const struct ranker_form_inputs inputs = {settings->features, model->group,
                                              mlp_label(settings)};
    enum status status = STATUS_OK;
    *num_tables = 0;
    if (features)
        status = ranker_form_inputs(&inputs, features, spec, tables, num_tables,
                                    why);
    else
        *spec = (struct batch_spec){
            .num_columns = 2,
            .columns = {[MLP_INPUTS] = {.type = BATCH_FLOATS,
                                        .width = settings->layers.items[0]},
                        [MLP_LABELS] = inputs.label}};
    spec->regression = mlp_has_target(settings) && settings->loss == JOB_MSE;
    return status;
}

static void mlp_inputs(const struct job_model *model,
                       const struct features *features,
                       struct batch_spec *spec) {
    struct failure why; /* check_data says it */
    uint32_t tables;
    (void)mlp_form(model, features, spec, NULL, &tables, &why);
}

static uint32_t mlp_tables(const struct job_model *model,
                           const struct features *features,
                           struct table *tables) {
    struct batch_spec spec;
    struct failure why;
    uint32_t count;
    (void)mlp_form(model, features, &spec, tables, &count, &why);
    return count;
}

/* Values of a sample in all columns but the label's. */
static uint32_t mlp_input_width(const struct batch_spec *spec) {
    uint32_t width = 0;
    for (uint32_t c = 0; c < spec->num_columns; c++)
        if (c != batch_label_column(spec) &&
            spec->columns[c].type != BATCH_WEIGHTS)
            width += spec->columns[c].width;
    return width;
}

static enum status mlp_check_features(const struct job_model *model,
                                      const struct features *features,
                                      struct failure *why) {
    struct batch_spec spec;
    uint32_t tables;
    return mlp_form(model, features, &spec, NULL, &tables, why);
}

static enum status mlp_check_data(const struct job_model *model,
                                  const struct dataset *dataset,
                                  const struct job_files *files,
                                  struct failure *why) {
    const struct job_widths *widths = mlp_widths(model);
    uint32_t inputs = widths->items[0], expected = dataset->features, tables;
    uint32_t outputs = widths->items[widths->count - 1];
    char from[PATH_MAX + 32] = "the numbers and the embeddings of its features";
    struct batch_spec spec;
    enum status status =
        mlp_form(model, dataset->feature_set, &spec, NULL, &tables, why);
    if (!status && !dataset->feature_set &&
        ((const struct mlp_settings *)model->settings)->features)
        status = status_fail(why, FAILURE_JOB_INVALID,
                             "model.features: data.format has none; allowed: a "
                             "format of records");
    if (status)
        return status;
    if (dataset->feature_set)
        expected = mlp_input_width(&spec);
    else
        snprintf(from, sizeof from, "the values of an image in %s",
                 files->paths[0]);
    if (expected != inputs)
        return status_fail(why, FAILURE_DATA_MISMATCH,
                           "model.layers[0]: found %u input%s, expected %u, %s",
                           inputs, log_plural(inputs), expected, from);
    const struct batch_column *label = &spec.columns[batch_label_column(&spec)];
    if (label->type == BATCH_CLASSES && dataset->num_classes > outputs)
        return status_fail(why, FAILURE_DATA_MISMATCH,
                           "model.layers[%u]: found %u output%s, expected %u "
                           "or more: the largest label in %s is %u",
                           widths->count - 1, outputs, log_plural(outputs),
                           dataset->num_classes, files->paths[1],
                           dataset->num_classes - 1);
    return dataset_check_labels(dataset, label, files->paths[1], why);
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

/* Has the job an embedding? */
static bool mlp_joins(const struct job *job) {
    json_t *features =
        job->features ? json_loads(job->features, 0, NULL) : NULL;
    const char *name;
    json_t *of_name;
    bool joins = false;
    json_object_foreach(features, name, of_name) joins =
        joins || json_object_get(of_name, "dim");
    json_decref(features);
    return joins;
}

/* Rows of all activation buffers and of the two of dz; a data set has one byte
 * for a pixel and for a label. */
static void mlp_memory(const struct job *job, uint64_t samples,
                       struct memory_footprint_model *out) {
    const struct job_model *model = &job->model;
    const struct job_widths *widths = mlp_widths(model);
    uint64_t inputs = widths->items[0];
    bool rounds = job_precision_is_half(model->precision);
    struct recompute plan;
    recompute_plan(&plan, widths, model->kept);
    uint64_t floats =
        recompute_floats(&plan) + 2 * (uint64_t)widest_output(widths);
    if (mlp_joins(job))
        floats += 2 * inputs; /* side by side, and the rows' gradients */
    *out = (struct memory_footprint_model){
        .activations = samples * floats * sizeof(float),
        .rounded = rounds ? operand_floats(widths, samples) * sizeof(float) : 0,
        .sample = inputs * sizeof(float) + sizeof(uint32_t),
        .stored = inputs + sizeof(float),
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
    if (mlp->row_width && mlp->row_width < mlp->settings.layers.items[0]) {
        mlp->inputs = allocate_rows(mlp, mlp->settings.layers.items[0]);
        complete = complete && mlp->inputs;
    }
    return complete && model_loss_open(&mlp->loss, mlp->ops, mlp->device);
}

static void mlp_close(struct model_instance **mlp) {
    if (!mlp || !*mlp)
        return;
    const struct device_ops *ops = (*mlp)->ops;
    for (uint32_t r = 0; r < (*mlp)->plan.activations; r++)
        ops->release((*mlp)->device, (*mlp)->activations[r]);
    for (int i = 0; i < 2; i++)
        ops->release((*mlp)->device, (*mlp)->dz_buffers[i]);
    ops->release((*mlp)->device, (*mlp)->inputs);
    model_loss_close(&(*mlp)->loss);
    free(*mlp);
    *mlp = NULL;
}

static enum status mlp_prepare(const struct model_instance *mlp,
                               struct failure *why) {
    const struct job_widths *widths = &mlp->settings.layers;
    enum status status = dense_layers_prepare(mlp->ops, mlp->device, widths,
                                              mlp->max_batch, why);
    return status ? status
                  : model_loss_prepare(&mlp->loss, mlp->settings.loss,
                                       mlp->max_batch,
                                       widths->items[mlp->layers], why);
}

static enum status mlp_open(struct model_instance **out,
                            const struct job_model *model,
                            const struct batch_spec *spec,
                            const struct device_ops *ops, struct device *device,
                            uint32_t max_batch, struct failure *why) {
    struct model_instance *mlp = calloc(1, sizeof *mlp);
    if (!mlp)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a model");
    mlp->settings = *(const struct mlp_settings *)model->settings;
    mlp->ops = ops;
    mlp->device = device;
    mlp->max_batch = max_batch;
    mlp->layers = mlp->settings.layers.count - 1;
    mlp->labels = spec ? batch_label_column(spec) : MLP_LABELS;
    mlp->rows = mlp->labels + 1;
    if (spec && mlp->rows < spec->num_columns &&
        spec->columns[mlp->rows].type == BATCH_ROWS)
        mlp->row_width = spec->columns[mlp->rows].width;
    mlp->weights = spec ? batch_weights_column(spec) : 0;
    recompute_plan(&mlp->plan, &mlp->settings.layers, model->kept);
    ops->set_precision(device, model->precision);
    enum status status =
        mlp_allocate(mlp)
            ? mlp_prepare(mlp, why)
            : status_fail(why, FAILURE_DEVICE_MEMORY,
                          "no memory on device %s for the activations of %u "
                          "samples of %zu bytes",
                          ops->name, max_batch, mlp->bytes);
    if (status)
        mlp_close(&mlp);
    *out = mlp;
    return status;
}

static void mlp_run(const struct model_instance *mlp, struct op op) {
    mlp->ops->run(mlp->device, STREAM_COMPUTE, op);
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
    if (layer)
        return output_of(mlp, layer - 1);
    return mlp->inputs      ? mlp->inputs
           : mlp->row_width ? batch->columns[mlp->rows]
                            : batch->columns[MLP_INPUTS];
}

/* Numbers and rows, side by side. */
static void join_inputs(const struct model_instance *mlp,
                        const struct batch *batch) {
    uint32_t inputs = mlp->settings.layers.items[0];
    uint32_t rows = mlp->row_width, numbers = inputs - rows;
    if (!mlp->inputs)
        return;
    mlp_run(mlp, op_rows_copy(batch->columns[MLP_INPUTS], numbers, mlp->inputs,
                              inputs, batch->count, numbers, false));
    mlp_run(mlp,
            op_rows_copy(batch->columns[mlp->rows], rows, mlp->inputs + numbers,
                         inputs, batch->count, rows, false));
}

/* From dz of the first layer to the gradient of the rows; the inputs are not
 * read any more. */
static void propagate_to_rows(const struct model_instance *mlp,
                              const struct batch *batch, const float *weight) {
    uint32_t inputs = mlp->settings.layers.items[0];
    uint32_t rows = mlp->row_width, numbers = inputs - rows;
    if (!rows)
        return;
    float *gradient = batch->gradients[mlp->rows];
    mlp_run(mlp, op_linear_input_gradient(
                     dz_of(mlp, 0), weight, numbers ? mlp->inputs : gradient,
                     batch->count, inputs, mlp->settings.layers.items[1]));
    if (numbers)
        mlp_run(mlp, op_rows_copy(mlp->inputs + numbers, inputs, gradient, rows,
                                  batch->count, rows, false));
}

static void mlp_compute(struct model_instance *mlp, uint32_t layer,
                        const struct batch *batch, float *const *weights) {
    bool last = layer == mlp->layers - 1;
    mlp_run(mlp,
            op_linear(inputs_of(mlp, layer, batch), weights[weight_of(layer)],
                      weights[bias_of(layer)], output_of(mlp, layer),
                      batch->count, mlp->settings.layers.items[layer],
                      mlp->settings.layers.items[layer + 1],
                      last ? JOB_IDENTITY : mlp->settings.activation));
    if (!mlp->plan.kept[layer])
        mlp->present_segment = mlp->plan.segment[layer];
}

static void mlp_forward(struct model_instance *mlp, const struct batch *batch,
                        float *const *weights,
                        const struct model_hooks *hooks) {
    join_inputs(mlp, batch);
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
                       batch->columns[mlp->labels],
                       mlp->weights ? batch->columns[mlp->weights] : NULL, dz,
                       mlp->settings.layers.items[mlp->layers], scale);
}

/* From dz of the layer to dz of the layer below. */
static void propagate(struct model_instance *mlp, uint32_t layer, uint32_t n,
                      const float *weight) {
    uint32_t in = mlp->settings.layers.items[layer],
             out = mlp->settings.layers.items[layer + 1];
    float *below = dz_of(mlp, layer - 1);
    mlp_run(mlp, op_linear_input_gradient(dz_of(mlp, layer), weight, below, n,
                                          in, out));
    mlp_run(mlp,
            op_activation_gradient(mlp->settings.activation,
                                   output_of(mlp, layer - 1), below, n, in));
}

/* In the order of every push: the last parameter first. A weight is read for
 * the last time before its gradient is announced. */
static void backward(struct model_instance *mlp, const struct batch *batch,
                     float *const *weights, float *const *gradients, bool add,
                     const struct model_hooks *hooks) {
    for (uint32_t l = mlp->layers; l-- > 0;) {
        uint32_t in = mlp->settings.layers.items[l],
                 out = mlp->settings.layers.items[l + 1];
        mlp_run(mlp, op_column_sums(dz_of(mlp, l), gradients[bias_of(l)],
                                    batch->count, out, add));
        mlp_done(hooks, bias_of(l));
        if (l > 0)
            recompute_segment(mlp, l - 1, batch, weights);
        mlp_run(mlp, op_linear_weight_gradient(
                         dz_of(mlp, l), inputs_of(mlp, l, batch),
                         gradients[weight_of(l)], batch->count, in, out, add));
        if (l > 0)
            propagate(mlp, l, batch->count, weights[weight_of(l)]);
        else
            propagate_to_rows(mlp, batch, weights[weight_of(l)]);
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

static struct model_outputs mlp_outputs(const struct model_instance *mlp) {
    return (struct model_outputs){output_of(mlp, mlp->layers - 1),
                                  mlp->settings.layers.items[mlp->layers],
                                  mlp->settings.loss};
}

static void mlp_check_job(const struct job *job, const struct log *log) {
    uint32_t hidden = mlp_widths(&job->model)->count - 2;
    if (job->model.kept && job->model.kept >= hidden)
        log_info(log, "activations_kept",
                 "activation_checkpointing.number_checkpoints: the model has "
                 "%u hidden layer%s: all activations are kept",
                 hidden, log_plural(hidden));
}

#define MLP_KEY(member)                                                        \
    .of_model = true, .models = 1u << JOB_MLP,                                 \
    .field = offsetof(struct mlp_settings, member)
#define MLP_CHOICE(member, ...)                                                \
    .kind = JOB_KIND_CHOICE, MLP_KEY(member), .words = (const char *const[]) { \
        __VA_ARGS__ NULL                                                       \
    }

static const struct job_key mlp_keys[] = {
    {"model.layers", "mlp: widths: inputs, hidden, outputs",
     .kind = JOB_KIND_WIDTHS, MLP_KEY(layers), .least = 2,
     .most = JOB_MAX_WIDTHS, .min = 1, .max = 16777216, .required = true},
    {"model.features",
     "linear, fm, deepfm, mlp over records: names of features",
     .kind = JOB_KIND_NAMES, MLP_KEY(features)},
    {"model.activation",
     "after each layer except the last; mlp, deepfm, wide_deep, dlrm",
     MLP_CHOICE(activation, JOB_ACTIVATION_ROWS(JOB_WORD)),
     .default_value = "\"relu\""},
    {"model.init",
     "mlp, deepfm, wide_deep, dlrm: initial weights of the layers; their biases are then 0",
     .kind = JOB_KIND_INIT, MLP_KEY(init), .tf = "\"glorot_uniform\""},
    {"model.loss",
     "the label is a class below the number of outputs. With records, one output and one of the last two it is a number: a probability (0 or 1), or any (regression)",
     MLP_CHOICE(loss, JOB_LOSS_ROWS(JOB_WORD, "softmax_cross_entropy")),
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
    .tables = mlp_tables,
    .inputs = mlp_inputs,
    .check_data = mlp_check_data,
    .check_features = mlp_check_features,
    .memory = mlp_memory,
    .open = mlp_open,
    .close = mlp_close,
    .gradient = mlp_gradient,
    .evaluate = mlp_evaluate,
    .settle = mlp_settle,
    .outputs = mlp_outputs,
};
