/* SPDX-License-Identifier: Apache-2.0 */
/* A built-in model as a table of functions: what it learns, what it computes.
 * A model is written once against device.h and opened once per device. */
#ifndef CAPSTAN_MODEL_H
#define CAPSTAN_MODEL_H

#include "core/base/status.h"
#include "core/tensor/layout.h"
#include "proto/job/job.h"
#include "proto/plan/memory_footprint.h"
#include "worker/data/batch.h"
#include "worker/data/dataset.h"
#include "worker/ops/device.h"

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
struct model_hooks {
    void *context;
    void (*need)(void *context, uint32_t first, uint32_t count);
    bool (*loss)(void *context, double loss);
    void (*done)(void *context, uint32_t parameter);
};

struct model_result {
    double loss; /* sum over the samples */
    uint32_t correct, count;
};

/* What the last layer has of the samples of a pass. */
struct model_outputs {
    const float *values; /* [count, width], device memory: logits, with JOB_MSE
                            the numbers themselves; until the next pass */
    uint32_t width;
    enum job_loss loss;
};

struct model_instance; /* open on a device; the model's own type */

struct model {
    /* Fills PARAMETERS (NULL: only counts them) in model order; returns how
     * many, at least one. FEATURES of the data, NULL for samples that are no
     * records, here and in the next two functions. */
    uint32_t (*parameters)(const struct job_model *model,
                           const struct features *features,
                           struct parameter *parameters);

    /* The same of the tables on the ps; NULL: it has none. */
    uint32_t (*tables)(const struct job_model *model,
                       const struct features *features, struct table *tables);

    /* The columns of its batches, without those of weights (model_inputs). */
    void (*inputs)(const struct job_model *model,
                   const struct features *features, struct batch_spec *spec);

    /* STATUS_CONFIG unless DATASET, read from FILES, has the model's inputs and
     * no label beyond its outputs; WHY names the file at fault. */
    enum status (*check_data)(const struct job_model *model,
                              const struct dataset *dataset,
                              const struct job_files *files,
                              struct failure *why);

    /* The part of check_data that follows from FEATURES. */
    enum status (*check_features)(const struct job_model *model,
                                  const struct features *features,
                                  struct failure *why);

    /* What it takes in a trainer's memory. */
    memory_footprint_of_model *memory;

    /* Allocates what batches up to MAX_BATCH with SPEC's columns need. Borrows
     * OPS and DEVICE, which takes the model's precision. */
    enum status (*open)(struct model_instance **out,
                        const struct job_model *model,
                        const struct batch_spec *spec,
                        const struct device_ops *ops, struct device *device,
                        uint32_t max_batch, struct failure *why);

    /* Frees *INSTANCE (may be NULL) and clears it. */
    void (*close)(struct model_instance **instance);

    /* Forward and backward over BATCH, of 1 to MAX_BATCH samples. WEIGHTS and
     * GRADIENTS are arrays of one pointer per parameter, in device memory, as
     * is the batch; HOOKS may be NULL. Gradients are those of scale * (sum of
     * the losses), added to the existing ones if ADD; those of BATCH's columns
     * of rows are never added. On a device with ops.async `settle` fills
     * RESULT. */
    void (*gradient)(struct model_instance *instance, const struct batch *batch,
                     float *const *weights, float *const *gradients,
                     float scale, bool add, const struct model_hooks *hooks,
                     struct model_result *result);

    /* Forward only: `done` is never called. */
    void (*evaluate)(struct model_instance *instance, const struct batch *batch,
                     float *const *weights, const struct model_hooks *hooks,
                     struct model_result *result);

    /* Those of the last pass, after its settle. */
    struct model_outputs (*outputs)(const struct model_instance *instance);

    /* Waits for the result of the last pass and fills RESULT. Fails as
     * ops.event_sync, with RESULT as after a batch of no samples. */
    enum status (*settle)(struct model_instance *instance,
                          struct model_result *result, struct failure *why);
};

/* The keys of all of them. */
extern const struct job_models model_schemas;

/* The model of a job; NULL: an external one. */
const struct model *model_find(const struct job_model *model);

/* The columns of the batches of JOB's model, which is not external, over
 * FEATURES (NULL: none): with weights if its data have some. */
void model_inputs(const struct job *job, const struct features *features,
                  struct batch_spec *spec);

/* The memory function of its model; NULL: an external one. */
memory_footprint_of_model *model_memory(const struct job_model *model);

/* The layout of MODEL's parameters and tables over FEATURES (NULL: none). Fails
 * as layout_build and layout_add_tables; the caller frees it. */
enum status model_layout(struct layout **out, const struct job_model *model,
                         const struct features *features,
                         struct failure *why) MUST_CHECK;

#endif
