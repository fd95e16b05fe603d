/* SPDX-License-Identifier: Apache-2.0 */
/* A stack of fully connected layers as part of a model, with all outputs kept.
 * Layer l has the parameters first + 2l, its weight [out, in], and first + 2l +
 * 1, its bias [out], by default initially as in PyTorch's Linear. (The MLP has
 * its own loops, which recompute outputs.) */
#ifndef CAPSTAN_DENSE_LAYERS_H
#define CAPSTAN_DENSE_LAYERS_H

#include "core/tensor/initializer.h"
#include "worker/models/model_pass.h"

struct dense_layers {
    uint32_t first;           /* parameter */
    struct job_widths widths; /* inputs, outputs of each layer; count 0: no
                                 layers, and no function below is called */
    enum job_activation activation;
    bool last_active; /* else the last layer has no activation */
    double dropout;   /* after each activation, in training */
    uint64_t key;     /* of Philox */
    const struct device_ops *ops;
    struct device *device;
    float *outputs[JOB_MAX_WIDTHS]; /* of layer l: [max_batch, widths[l + 1]] */
    float *dropped[JOB_MAX_WIDTHS]; /* the same after dropout, or NULL: it is in
                                       place */
    float *dz[2]; /* of layer l in number l % 2: [max_batch, widest] */
};

/* Floats a sample of the buffers of layers of WIDTHS, with ACTIVATION and
 * DROPOUT. */
uint64_t dense_layers_floats(const struct job_widths *widths,
                             enum job_activation activation, double dropout);

/* Fills PARAMETERS with those of layers of WIDTHS, named NAMEl.weight and
 * NAMEl.bias. With an INIT that is given, weights begin by it and biases at
 * 0. */
void dense_layers_parameters(const struct job_widths *widths,
                             const struct job_init *init, const char *name,
                             struct parameter *parameters);

/* Prepares the ops of layers of WIDTHS for MAX_BATCH samples. Fails as
 * model_pass_prepare. */
enum status dense_layers_prepare(const struct device_ops *ops,
                                 struct device *device,
                                 const struct job_widths *widths,
                                 uint32_t max_batch,
                                 struct failure *why) MUST_CHECK;

/* Allocates buffers for MAX_BATCH samples; the fields down to `device` are
 * filled. False: no memory. */
bool dense_layers_open(struct dense_layers *layers, uint32_t max_batch);

/* Frees the buffers; LAYERS may be all zero or half open. */
void dense_layers_close(struct dense_layers *layers);

/* The output for X [count, inputs], a view. */
const float *dense_layers_forward(const struct dense_layers *layers,
                                  const struct model_pass *pass,
                                  const float *x);

/* Where the caller puts the gradient of the output before the next call. */
float *dense_layers_dz(const struct dense_layers *layers);

/* Gradients of the parameters and, unless DX is NULL, of X: [count, inputs],
 * overwritten. */
void dense_layers_backward(const struct dense_layers *layers,
                           const struct model_pass *pass, const float *x,
                           float *dx);

#endif
