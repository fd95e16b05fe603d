/* SPDX-License-Identifier: Apache-2.0 */
/* The passes of ranker.h's models. Parameters are needed and done in the order
 * of the parts: first order, bottom, top. */
#include "worker/models/ranker.h"

#include "worker/data/features.h"
#include "worker/models/dense_layers.h"
#include "worker/models/ranker_form.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Philox's key of dropout is the seed with this, so that its numbers are not
 * those of initial weights. */
#define DROPOUT_KEY UINT64_C(0x64726f706f757400)

struct model_instance {
    struct ranker_parts parts;
    bool bias;
    enum job_loss kind;
    const struct device_ops *ops;
    struct device *device;
    struct dense_layers bottom, top;
    float *logits, *dz;      /* [max_batch]; with dots the top's output is the
                                logits */
    float *inputs;           /* of the top: [max_batch, inputs] */
    float *dinputs;          /* their gradient */
    float *fields, *dfields; /* dots: [max_batch, fields, dim] */
    struct model_loss loss;
};

static uint32_t ranker_parameters(const struct job_model *model,
                                  const struct features *features,
                                  struct parameter *parameters) {
    struct batch_spec spec;
    struct ranker_parts parts;
    struct failure why; /* check_data says it */
    uint32_t tables;
    (void)ranker_form_build(model, features, &spec, NULL, &tables, &why);
    ranker_form_parts(&parts, model, &spec);
    return ranker_form_parameters(&parts, parameters);
}

static uint32_t ranker_tables(const struct job_model *model,
                              const struct features *features,
                              struct table *tables) {
    struct batch_spec spec;
    struct failure why;
    uint32_t count;
    (void)ranker_form_build(model, features, &spec, tables, &count, &why);
    return count;
}

static void ranker_inputs(const struct job_model *model,
                          const struct features *features,
                          struct batch_spec *spec) {
    struct failure why;
    uint32_t tables;
    (void)ranker_form_build(model, features, spec, NULL, &tables, &why);
}

static enum status ranker_check_features(const struct job_model *model,
                                         const struct features *features,
                                         struct failure *why) {
    struct batch_spec spec;
    uint32_t tables;
    return ranker_form_build(model, features, &spec, NULL, &tables, why);
}

static enum status ranker_check_data(const struct job_model *model,
                                     const struct dataset *dataset,
                                     const struct job_files *files,
                                     struct failure *why) {
    (void)files;
    return ranker_check_features(model, dataset->feature_set, why);
}

/* Without the files of vocabularies the features are not known: each is taken
 * for one float, and rows have the widths that the job says. */
static uint64_t ranker_guess_floats(const struct job *job) {
    const struct ranker_settings *settings = job->model.settings;
    json_t *features =
        job->features ? json_loads(job->features, 0, NULL) : NULL;
    uint64_t floats = 1;
    const char *name;
    json_t *of_name;
    json_object_foreach(features, name, of_name) {
        json_int_t dim = json_integer_value(json_object_get(of_name, "dim"));
        floats += 1 + (dim > 0 ? (uint64_t)dim : settings->dim);
    }
    json_decref(features);
    return floats;
}

/* Rows, their gradients, and what layers join of them. */
static void ranker_memory(const struct job *job, uint64_t samples,
                          struct memory_footprint_model *out) {
    const struct ranker_settings *settings = job->model.settings;
    uint64_t floats = ranker_guess_floats(job);
    const struct job_widths *const stacks[] = {
        &settings->hidden, &settings->bottom, &settings->top};
    uint64_t layers = 0;
    for (int i = 0; i < 3; i++)
        layers += dense_layers_floats(stacks[i], settings->activation,
                                      settings->dropout);
    bool rounds = job_precision_is_half(job->model.precision);
    *out = (struct memory_footprint_model){
        .activations = samples * (3 * floats + layers) * sizeof(float),
        .rounded = rounds ? samples * 2 * floats * sizeof(float) : 0,
        .sample = (floats + 1) * sizeof(float),
        .stored = floats + 1,
    };
}

static float *ranker_allocate(const struct model_instance *model,
                              uint32_t max_batch, uint32_t width,
                              bool *complete) {
    if (!width)
        return NULL;
    float *rows = model->ops->allocate(
        model->device, (size_t)max_batch * width * sizeof(float));
    *complete = *complete && rows;
    return rows;
}

static bool ranker_allocate_all(struct model_instance *model,
                                uint32_t max_batch) {
    const struct ranker_parts *parts = &model->parts;
    uint32_t inputs = parts->top.count ? parts->top.items[0] : 0;
    uint32_t fields = parts->dots ? parts->fields * parts->dim : 0;
    bool complete = dense_layers_open(&model->bottom, max_batch);
    complete = dense_layers_open(&model->top, max_batch) && complete;
    model->logits = ranker_allocate(model, max_batch, 1, &complete);
    model->dz = ranker_allocate(model, max_batch, 1, &complete);
    model->inputs = ranker_allocate(model, max_batch, inputs, &complete);
    model->dinputs = ranker_allocate(model, max_batch, inputs, &complete);
    model->fields = ranker_allocate(model, max_batch, fields, &complete);
    model->dfields = ranker_allocate(model, max_batch, fields, &complete);
    return model_loss_open(&model->loss, model->ops, model->device) && complete;
}

static void ranker_close(struct model_instance **where) {
    struct model_instance *model = where ? *where : NULL;
    if (!model)
        return;
    float *const buffers[] = {model->logits,  model->dz,     model->inputs,
                              model->dinputs, model->fields, model->dfields};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        model->ops->release(model->device, buffers[i]);
    dense_layers_close(&model->bottom);
    dense_layers_close(&model->top);
    model_loss_close(&model->loss);
    free(model);
    *where = NULL;
}

static void set_layers(struct model_instance *model,
                       const struct job_model *job) {
    const struct ranker_settings *settings = job->settings;
    const struct dense_layers layers = {.activation = settings->activation,
                                        .dropout = settings->dropout,
                                        .key = job->seed ^ DROPOUT_KEY,
                                        .ops = model->ops,
                                        .device = model->device};
    uint32_t bottom = model->parts.bottom.count;
    model->bottom = model->top = layers;
    model->bottom.last_active = true;
    model->bottom.widths = model->parts.bottom;
    model->top.widths = model->parts.top;
    model->bottom.first = ranker_form_first(&model->parts);
    model->top.first = model->bottom.first + (bottom ? 2 * (bottom - 1) : 0);
}

static enum status ranker_prepare(const struct model_instance *model,
                                  uint32_t max_batch, struct failure *why) {
    const struct device_ops *ops = model->ops;
    uint32_t wide = model->parts.width[RANKER_WIDE];
    const struct op first[] = {
        op_linear(NULL, NULL, NULL, NULL, max_batch, wide, 1, JOB_IDENTITY),
        op_linear_weight_gradient(NULL, NULL, NULL, max_batch, wide, 1, false)};
    enum status status = STATUS_OK;
    for (int i = 0; !status && wide && i < 2; i++)
        status = model_pass_prepare(ops, model->device, first[i], why);
    if (!status)
        status = dense_layers_prepare(ops, model->device, &model->parts.bottom,
                                      max_batch, why);
    if (!status)
        status = dense_layers_prepare(ops, model->device, &model->parts.top,
                                      max_batch, why);
    return status ? status
                  : model_loss_prepare(&model->loss, model->kind, max_batch, 1,
                                       why);
}

static enum status ranker_open(struct model_instance **out,
                               const struct job_model *job,
                               const struct batch_spec *spec,
                               const struct device_ops *ops,
                               struct device *device, uint32_t max_batch,
                               struct failure *why) {
    const struct ranker_settings *settings = job->settings;
    struct model_instance *model = calloc(1, sizeof *model);
    if (!model)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a model");
    model->bias = settings->bias || job->type != JOB_LINEAR;
    model->kind = settings->loss;
    model->ops = ops;
    model->device = device;
    ranker_form_parts(&model->parts, job, spec);
    set_layers(model, job);
    ops->set_precision(device, job->precision);
    enum status status =
        ranker_allocate_all(model, max_batch)
            ? ranker_prepare(model, max_batch, why)
            : status_fail(why, FAILURE_DEVICE_MEMORY,
                          "no memory on device %s for the activations of %u "
                          "samples",
                          ops->name, max_batch);
    if (status)
        ranker_close(&model);
    *out = model;
    return status;
}

static float *column_of(const struct model_instance *model,
                        const struct model_pass *pass, enum ranker_column tag) {
    return pass->batch->columns[model->parts.place[tag]];
}

/* Copies WIDTH values of each sample, or adds them. */
static void ranker_put_values(const struct model_pass *pass, const float *x,
                              uint32_t x_row, float *y, uint32_t y_row,
                              uint32_t width, bool add) {
    if (width)
        model_pass_run(pass, op_rows_copy(x, x_row, y, y_row,
                                          pass->batch->count, width, add));
}

static void forward_pairs(const struct model_instance *model,
                          const struct model_pass *pass) {
    const struct ranker_parts *parts = &model->parts;
    const struct op pairs = {.kind = OP_ROWS_PAIRS,
                             .n = pass->batch->count,
                             .fields = parts->fields,
                             .width = parts->dim,
                             .x_row = parts->width[RANKER_ROWS],
                             .y_row = 1,
                             .add = true};
    if (parts->pairs)
        model_pass_run(pass, op_rows(pairs, column_of(model, pass, RANKER_ROWS),
                                     NULL, model->logits));
}

static void forward_first_order(const struct model_instance *model,
                                const struct model_pass *pass) {
    const struct ranker_parts *parts = &model->parts;
    uint32_t wide = parts->width[RANKER_WIDE], first = wide ? 1 : 0;
    const float *bias = pass->weights[first];
    model_pass_need(pass, 0, first + 1);
    if (wide)
        model_pass_run(pass,
                       op_linear(column_of(model, pass, RANKER_WIDE),
                                 pass->weights[0], bias, model->logits,
                                 pass->batch->count, wide, 1, JOB_IDENTITY));
    else
        ranker_put_values(pass, bias, 0, model->logits, 1, 1, false);
    if (parts->width[RANKER_SUMS])
        ranker_put_values(pass, column_of(model, pass, RANKER_SUMS), 1,
                          model->logits, 1, 1, true);
    forward_pairs(model, pass);
}

static void forward_deep(const struct model_instance *model,
                         const struct model_pass *pass) {
    const struct ranker_parts *parts = &model->parts;
    uint32_t numbers = parts->width[RANKER_DEEP];
    uint32_t rows = parts->width[RANKER_ROWS];
    if (numbers)
        ranker_put_values(pass, column_of(model, pass, RANKER_DEEP), numbers,
                          model->inputs, numbers + rows, numbers, false);
    if (rows)
        ranker_put_values(pass, column_of(model, pass, RANKER_ROWS), rows,
                          model->inputs + numbers, numbers + rows, rows, false);
    ranker_put_values(pass,
                      dense_layers_forward(&model->top, pass, model->inputs), 1,
                      model->logits, 1, 1, true);
}

/* The products of rows of fields, without their tensors. */
static struct op ranker_dots(const struct model_instance *model,
                             const struct model_pass *pass) {
    const struct ranker_parts *parts = &model->parts;
    return (struct op){.kind = OP_ROWS_DOTS,
                       .n = pass->batch->count,
                       .fields = parts->fields,
                       .width = parts->dim,
                       .x_row = parts->fields * parts->dim,
                       .y_row = parts->top.items[0]};
}

/* The products lie behind the bottom's output in the top's inputs. */
static void forward_dlrm(const struct model_instance *model,
                         const struct model_pass *pass) {
    const struct ranker_parts *parts = &model->parts;
    struct op dots = ranker_dots(model, pass);
    uint32_t dim = parts->dim, rows = parts->width[RANKER_ROWS];
    const float *bottom = dense_layers_forward(
        &model->bottom, pass, column_of(model, pass, RANKER_DEEP));
    ranker_put_values(pass, bottom, dim, model->fields, dots.x_row, dim, false);
    ranker_put_values(pass, column_of(model, pass, RANKER_ROWS), rows,
                      model->fields + dim, dots.x_row, rows, false);
    ranker_put_values(pass, bottom, dim, model->inputs, dots.y_row, dim, false);
    model_pass_run(pass,
                   op_rows(dots, model->fields, NULL, model->inputs + dim));
    ranker_put_values(pass,
                      dense_layers_forward(&model->top, pass, model->inputs), 1,
                      model->logits, 1, 1, false);
}

static void ranker_forward(const struct model_instance *model,
                           const struct model_pass *pass) {
    if (model->parts.dots) {
        forward_dlrm(model, pass);
        return;
    }
    forward_first_order(model, pass);
    if (model->parts.top.count)
        forward_deep(model, pass);
}

static void ranker_loss(struct model_instance *model, const struct batch *batch,
                        float *dz, float scale) {
    model->loss.count = batch->count;
    model_loss_compute(
        &model->loss, model->kind, model->logits,
        batch->columns[model->parts.place[RANKER_LABEL]],
        model->parts.weights ? batch->columns[model->parts.weights] : NULL, dz,
        1, scale);
}

static float *row_gradient(const struct model_instance *model,
                           const struct model_pass *pass,
                           enum ranker_column tag) {
    return pass->batch->gradients[model->parts.place[tag]];
}

static void backward_deep(const struct model_instance *model,
                          const struct model_pass *pass) {
    const struct ranker_parts *parts = &model->parts;
    uint32_t numbers = parts->width[RANKER_DEEP];
    uint32_t rows = parts->width[RANKER_ROWS];
    ranker_put_values(pass, model->dz, 1, dense_layers_dz(&model->top), 1, 1,
                      false);
    dense_layers_backward(&model->top, pass, model->inputs,
                          rows ? model->dinputs : NULL);
    if (rows)
        ranker_put_values(pass, model->dinputs + numbers, numbers + rows,
                          row_gradient(model, pass, RANKER_ROWS), rows, rows,
                          false);
}

static void backward_pairs(const struct model_instance *model,
                           const struct model_pass *pass) {
    const struct ranker_parts *parts = &model->parts;
    uint32_t rows = parts->width[RANKER_ROWS];
    const struct op gradient = {.kind = OP_ROWS_PAIRS_GRADIENT,
                                .n = pass->batch->count,
                                .fields = parts->fields,
                                .width = parts->dim,
                                .x_row = rows,
                                .dy_row = 1,
                                .y_row = rows,
                                .add = parts->top.count > 0};
    if (parts->pairs)
        model_pass_run(
            pass, op_rows(gradient, column_of(model, pass, RANKER_ROWS),
                          model->dz, row_gradient(model, pass, RANKER_ROWS)));
}

/* The gradient of a bias that is off is 0, and so it stays 0. */
static void backward_first_order(const struct model_instance *model,
                                 const struct model_pass *pass) {
    uint32_t wide = model->parts.width[RANKER_WIDE], first = wide ? 1 : 0;
    uint32_t n = pass->batch->count;
    if (model->parts.width[RANKER_SUMS])
        ranker_put_values(pass, model->dz, 1,
                          row_gradient(model, pass, RANKER_SUMS), 1, 1, false);
    if (model->bias)
        model_pass_run(pass, op_column_sums(model->dz, pass->gradients[first],
                                            n, 1, pass->add));
    else if (!pass->add)
        model_pass_run(pass, op_fill(pass->gradients[first], 1, 0));
    model_pass_done(pass, first);
    if (!wide)
        return;
    model_pass_run(pass, op_linear_weight_gradient(
                             model->dz, column_of(model, pass, RANKER_WIDE),
                             pass->gradients[0], n, wide, 1, pass->add));
    model_pass_done(pass, 0);
}

static void backward_dlrm(const struct model_instance *model,
                          const struct model_pass *pass) {
    const struct ranker_parts *parts = &model->parts;
    uint32_t dim = parts->dim, rows = parts->width[RANKER_ROWS];
    struct op dots = ranker_dots(model, pass);
    uint32_t inputs = dots.y_row;
    ranker_put_values(pass, model->dz, 1, dense_layers_dz(&model->top), 1, 1,
                      false);
    dense_layers_backward(&model->top, pass, model->inputs, model->dinputs);
    dots.kind = OP_ROWS_DOTS_GRADIENT;
    dots.dy_row = inputs;
    dots.y_row = dots.x_row;
    model_pass_run(pass, op_rows(dots, model->fields, model->dinputs + dim,
                                 model->dfields));
    ranker_put_values(pass, model->dfields + dim, dots.x_row,
                      row_gradient(model, pass, RANKER_ROWS), rows, rows,
                      false);
    float *dz = dense_layers_dz(&model->bottom);
    ranker_put_values(pass, model->dfields, dots.x_row, dz, dim, dim, false);
    ranker_put_values(pass, model->dinputs, inputs, dz, dim, dim, true);
    dense_layers_backward(&model->bottom, pass,
                          column_of(model, pass, RANKER_DEEP), NULL);
}

static void ranker_backward(const struct model_instance *model,
                            const struct model_pass *pass) {
    if (model->parts.dots) {
        backward_dlrm(model, pass);
        return;
    }
    if (model->parts.top.count)
        backward_deep(model, pass);
    backward_pairs(model, pass);
    backward_first_order(model, pass);
}

/* An asynchronous device runs the backward pass whatever the loss is; the
 * caller later discards the gradients. */
static void ranker_gradient(struct model_instance *model,
                            const struct batch *batch, float *const *weights,
                            float *const *gradients, float scale, bool add,
                            const struct model_hooks *hooks,
                            struct model_result *result) {
    const struct model_pass pass = {model->ops, model->device, batch, weights,
                                    gradients,  add,           hooks};
    model->ops->capture_begin(model->device);
    ranker_forward(model, &pass);
    ranker_loss(model, batch, model->dz, scale);
    *result = model_loss_known(&model->loss);
    if (!hooks || !hooks->loss || model->ops->async ||
        hooks->loss(hooks->context, result->loss))
        ranker_backward(model, &pass);
    model->ops->capture_end(model->device);
}

static void ranker_evaluate(struct model_instance *model,
                            const struct batch *batch, float *const *weights,
                            const struct model_hooks *hooks,
                            struct model_result *result) {
    const struct model_pass pass = {model->ops, model->device, batch, weights,
                                    NULL,       false,         hooks};
    model->ops->capture_begin(model->device);
    ranker_forward(model, &pass);
    ranker_loss(model, batch, NULL, 1);
    model->ops->capture_end(model->device);
    *result = model_loss_known(&model->loss);
}

static struct model_outputs ranker_outputs(const struct model_instance *model) {
    return (struct model_outputs){model->logits, 1, model->kind};
}

static enum status ranker_settle(struct model_instance *model,
                                 struct model_result *result,
                                 struct failure *why) {
    return model_loss_settle(&model->loss, result, why);
}

const struct model model_ranker = {
    .parameters = ranker_parameters,
    .tables = ranker_tables,
    .inputs = ranker_inputs,
    .check_data = ranker_check_data,
    .check_features = ranker_check_features,
    .memory = ranker_memory,
    .open = ranker_open,
    .close = ranker_close,
    .gradient = ranker_gradient,
    .evaluate = ranker_evaluate,
    .settle = ranker_settle,
    .outputs = ranker_outputs,
};
