/* SPDX-License-Identifier: Apache-2.0 */
/* The multilayer perceptron: weights layerI.weight [out, in], layerI.bias
 * [out], as PyTorch's Linear has them. */
#ifndef CAPSTAN_MLP_H
#define CAPSTAN_MLP_H

#include "proto/base/status.h"
#include "proto/config/job/job.h"
#include "proto/tensor/layout.h"
#include "worker/data/loader.h"
#include "worker/ops/ops.h"

/* What the model tells its trainer in a pass. `need` is called before the
 * first read of the weights of COUNT parameters from FIRST on, a layer's,
 * `loss` with the sum of the losses before the backward pass (false: leave that
 * out) where it is known by then, on a device without ops.later, `done` when a
 * parameter's gradient is complete and its weights will not be read again in
 * this pass: in order of the device's computing stream, where each call goes
 * on. Between the two they are read as often as the pass likes: where
 * activations are computed anew, those of the layers below once more.
 * Parameters are needed in model order and done in the reverse, each once. Each
 * may be NULL. The stretches of a pass between calls of `need` are spans of the
 * device (ops.begin): without it the whole pass is one, and what `done` gives
 * the device is part of it. */
struct mlp_hooks {
    void *context;
    void (*need)(void *context, uint32_t first, uint32_t count);
    bool (*loss)(void *context, double loss);
    void (*done)(void *context, uint32_t parameter);
};

struct mlp_result {
    double loss; /* sum over the samples */
    uint32_t correct, count;
};

struct mlp;

/* Fills PARAMETERS (room for 2 * layers) in model order, with PyTorch's
 * initial bounds 1/sqrt(in) for weight and bias; returns how many. */
uint32_t mlp_parameters(const struct job_model *model,
                        struct parameter *parameters);

/* STATUS_CONFIG unless DATASET has the model's inputs as features and no label
 * beyond its outputs; names the file that has not, IMAGES or LABELS. */
enum status mlp_check_data(const struct job_model *model,
                           const struct dataset *dataset, const char *images,
                           const char *labels, struct failure *why) MUST_CHECK;

/* Allocates activations for batches up to MAX_BATCH, those of model.kept hidden
 * layers and of the longest stretch between them: the rest is computed anew in
 * the backward pass, to the same bits. Borrows OPS, DEVICE, which takes the
 * model's precision. */
enum status mlp_open(struct mlp **out, const struct job_model *model,
                     const struct ops *ops, struct ops_device *device,
                     uint32_t max_batch, struct failure *why) MUST_CHECK;

/* Frees *MLP (may be NULL) and clears it. */
void mlp_close(struct mlp **mlp);

/* Forward and backward over BATCH, of 1 to MAX_BATCH samples. WEIGHTS and
 * GRADIENTS are arrays of one pointer a parameter, of the device as the batch
 * is; HOOKS may be NULL. Gradients are those of scale * (sum of the losses),
 * added to what is there when ADD. On a device with ops.later RESULT is to be
 * had from mlp_wait_result. */
void mlp_gradient(struct mlp *mlp, const struct loader_batch *batch,
                  float *const *weights, float *const *gradients, float scale,
                  bool add, const struct mlp_hooks *hooks,
                  struct mlp_result *result);

/* Forward only: a `done` is never called. */
void mlp_evaluate(struct mlp *mlp, const struct loader_batch *batch,
                  float *const *weights, const struct mlp_hooks *hooks,
                  struct mlp_result *result);

/* Waits for the result of the last pass and fills RESULT with it; as ops.await
 * fails, with RESULT as after a batch of no samples. */
enum status mlp_wait_result(struct mlp *mlp, struct mlp_result *result,
                            struct failure *why) MUST_CHECK;

#endif
