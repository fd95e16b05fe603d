/* SPDX-License-Identifier: Apache-2.0 */
/* The multilayer perceptron: weights layerI.weight [out, in], layerI.bias
 * [out], as in PyTorch's Linear and with its initial bounds, 1/sqrt(in). It
 * keeps the activations of model.kept hidden layers and of the longest segment
 * between them; the backward pass recomputes the others to the same bits. Over
 * records with embeddings its inputs are the numbers, then the rows. */
#ifndef CAPSTAN_MLP_H
#define CAPSTAN_MLP_H

#include "proto/job/job_init.h"
#include "proto/job/job_schema.h"
#include "worker/models/model.h"

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

#endif
