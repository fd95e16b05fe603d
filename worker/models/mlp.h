/* SPDX-License-Identifier: Apache-2.0 */
/* The multilayer perceptron: weights layerI.weight [out, in], layerI.bias
 * [out], as in PyTorch's Linear and with its initial bounds, 1/sqrt(in). It
 * keeps the activations of model.kept hidden layers and of the longest segment
 * between them; the backward pass recomputes the others to the same bits. Over
 * records with embeddings its inputs are the numbers, then the rows. */
#ifndef CAPSTAN_MLP_H
#define CAPSTAN_MLP_H

#include "core/tensor/initializer.h"
#include "proto/job/job.h"
#include "proto/job/job_schema.h"
#include "worker/models/model.h"

#include <stdbool.h>
#include <stdint.h>

struct mlp_settings {
    struct job_widths layers; /* inputs, hidden, outputs */
    enum job_activation activation;
    enum job_loss loss;
    struct job_init init; /* of the layers */
    char *features;       /* names, a JSON array; NULL: all */
};

/* The columns of its batches without rows: floats, and a class. */
enum { MLP_INPUTS, MLP_LABELS };

extern const struct model model_mlp;
extern const struct job_model_schema mlp_schema;

/* The layers whose outputs stay in memory from the forward to the backward
 * pass; the other outputs are recomputed (activation_checkpointing; Chen et al.
 * 2016, "Training Deep Nets with Sublinear Memory Cost", section 3). Pure. */

/* Layer l computes output l; the loss reads the last one. Outputs are in
 * activation buffers, whose size is a number of floats a sample. A kept output
 * has its own buffer. The others form segments of consecutive layers: the first
 * outputs of all segments share a buffer, so do the second ones, and so on. */
struct recompute {
    uint32_t layers, activations;
    uint32_t activation_of[JOB_MAX_WIDTHS]; /* of output l */
    uint32_t width[JOB_MAX_WIDTHS]; /* of a buffer, in floats a sample */
    bool kept[JOB_MAX_WIDTHS];
    uint32_t segment[JOB_MAX_WIDTHS]; /* the first output of l's segment */
};

/* Plans layers of WIDTHS: keeps all outputs if KEPT is 0, else that many
 * besides the last, spread evenly. Never more floats than keeping all. */
void recompute_plan(struct recompute *plan, const struct job_widths *widths,
                    uint32_t kept);

/* Floats a sample of all buffers. */
uint64_t recompute_floats(const struct recompute *plan);

#endif
