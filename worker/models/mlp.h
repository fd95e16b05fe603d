/* SPDX-License-Identifier: Apache-2.0 */
/* The multilayer perceptron: weights layerI.weight [out, in], layerI.bias
 * [out], as in PyTorch's Linear. */
#ifndef CAPSTAN_MLP_H
#define CAPSTAN_MLP_H

#include "proto/base/status.h"
#include "proto/config/job/job.h"
#include "proto/tensor/layout.h"
#include "worker/data/loader.h"
#include "worker/ops/ops.h"

/* Callbacks of a pass; each may be NULL. `need` is called before the first read
 * of the weights of COUNT parameters from FIRST on, one layer's. `loss` is
 * called with the sum of the losses before the backward pass (false: skip it),
 * only on a device without ops.async, where the loss is known by then. `done`
 * is called when a parameter's gradient is complete and its weights will not be
 * read again in this pass, in order of the device's computing stream. Between
 * the two the weights may be read several times: recomputing activations reads
 * those of lower layers once more. Parameters are needed in model order and
 * done in reverse, each once. The work between calls of `need` is captured
 * (ops.capture_begin): without `need` the whole pass is one capture, including
 * the work that `done` enqueues. */
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

/* Fills PARAMETERS (room for 2 * layers) in model order, with PyTorch's initial
 * bounds 1/sqrt(in) for weight and bias; returns how many. */
uint32_t mlp_parameters(const struct job_model *model,
                        struct parameter *parameters);

/* STATUS_CONFIG unless DATASET has as many features as the model has inputs and
 * no label beyond its outputs; WHY names the file at fault, IMAGES or
 * LABELS. */
enum status mlp_check_data(const struct job_model *model,
                           const struct dataset *dataset, const char *images,
                           const char *labels, struct failure *why) MUST_CHECK;

/* Allocates activations for batches up to MAX_BATCH: those of model.kept hidden
 * layers and of the longest segment between them. The backward pass recomputes
 * the others to the same bits. Borrows OPS and DEVICE, which takes the model's
 * precision. */
enum status mlp_open(struct mlp **out, const struct job_model *model,
                     const struct ops *ops, struct ops_device *device,
                     uint32_t max_batch, struct failure *why) MUST_CHECK;

/* Frees *MLP (may be NULL) and clears it. */
void mlp_close(struct mlp **mlp);

/* Forward and backward over BATCH, of 1 to MAX_BATCH samples. WEIGHTS and
 * GRADIENTS are arrays of one pointer per parameter, in device memory, as is
 * the batch; HOOKS may be NULL. Gradients are those of scale * (sum of the
 * losses), added to the existing ones if ADD. On a device with ops.async
 * mlp_wait_result fills RESULT. */
void mlp_gradient(struct mlp *mlp, const struct loader_batch *batch,
                  float *const *weights, float *const *gradients, float scale,
                  bool add, const struct mlp_hooks *hooks,
                  struct mlp_result *result);

/* Forward only: `done` is never called. */
void mlp_evaluate(struct mlp *mlp, const struct loader_batch *batch,
                  float *const *weights, const struct mlp_hooks *hooks,
                  struct mlp_result *result);

/* Waits for the result of the last pass and fills RESULT. Fails as
 * ops.event_sync, with RESULT as after a batch of no samples. */
enum status mlp_wait_result(struct mlp *mlp, struct mlp_result *result,
                            struct failure *why) MUST_CHECK;

#endif
