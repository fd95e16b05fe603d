/* SPDX-License-Identifier: Apache-2.0 */
/* The models of one output over records with features: docs/models.md has their
 * formulas, tables and parameters. All are one computation whose parts a model
 * has or not:
 *
 *   logit = bias + wide.weight x + the sum of rows of one float    (first
 * order)
 *         + the products of all pairs of rows of factors           (pairs)
 *         + layers over numbers and rows                           (deep)
 *
 * and DLRM, which joins layers over numbers with its rows by products of all
 * pairs, and has layers over those. */
#ifndef CAPSTAN_RANKER_H
#define CAPSTAN_RANKER_H

#include "core/tensor/initializer.h"
#include "proto/job/job_schema.h"
#include "worker/models/model.h"

/* The keys of all of them; each has some. Names are JSON arrays, or NULL. */
struct ranker_settings {
    char *features, *wide, *deep, *dense, *embeddings, *user, *item;
    struct job_widths hidden, bottom, top;
    uint32_t dim;
    enum job_activation activation; /* of layers */
    double dropout;
    bool bias;
    enum job_loss loss;
    struct job_init init, factors_init; /* of layers, of tables of factors */
};

/* The columns of its batches, as their `tag`, in this order; what a model has
 * nothing for is left out. */
enum ranker_column {
    RANKER_WIDE,  /* floats of the first order */
    RANKER_SUMS,  /* the sum of rows of one float */
    RANKER_DEEP,  /* floats of layers */
    RANKER_ROWS,  /* rows of embeddings or of factors, side by side */
    RANKER_LABEL, /* the last column */
    RANKER_COLUMNS
};

extern const struct model model_ranker;
extern const struct job_model_schema linear_schema, fm_schema, deepfm_schema,
    wide_deep_schema, dlrm_schema, matrix_factorization_schema;

#endif
