/* SPDX-License-Identifier: Apache-2.0 */
/* What a model of ranker.h is over a data set's features: its parts, columns
 * and tables. Pure. */
#ifndef CAPSTAN_RANKER_FORM_H
#define CAPSTAN_RANKER_FORM_H

#include "worker/models/ranker.h"

/* Fills SPEC and TABLES (NULL, or room for BATCH_MAX_FEATURES) and *NUM_TABLES.
 * STATUS_CONFIG if a feature is not there or does not give what the model takes
 * of it; then SPEC has what was right. */
enum status ranker_form_build(const struct job_model *model,
                              const struct features *features,
                              struct batch_spec *spec, struct table *tables,
                              uint32_t *num_tables, struct failure *why);

/* Inputs of layers alone, and a label. */
struct ranker_form_inputs {
    const char *names; /* a JSON array; NULL: all numbers and embeddings */
    const uint32_t *group;
    struct batch_column label;
};

/* The same of INPUTS: SPEC has numbers, if there are any, then the label, then
 * rows, if there are any. */
enum status ranker_form_inputs(const struct ranker_form_inputs *inputs,
                               const struct features *features,
                               struct batch_spec *spec, struct table *tables,
                               uint32_t *num_tables, struct failure *why);

/* The parts of MODEL over columns of SPEC. */
struct ranker_parts {
    uint32_t place[RANKER_COLUMNS]; /* in the batch; UINT32_MAX: none */
    uint32_t width[RANKER_COLUMNS]; /* 0: none */
    uint32_t weights; /* of the samples: their place in the batch; 0: none */
    bool first_order, pairs;
    bool dots;                /* between `bottom` and `top` */
    uint32_t fields, dim;     /* of RANKER_ROWS, where there are pairs; with
                                 dots and the bottom's output */
    struct job_widths bottom; /* count 0: none, as `top` */
    struct job_widths top;    /* the deep part's, or DLRM's */
    uint32_t group[JOB_GROUPS];
    struct job_init init; /* of layers */
};

void ranker_form_parts(struct ranker_parts *parts,
                       const struct job_model *model,
                       const struct batch_spec *spec);

/* Fills PARAMETERS (NULL: only counts them); returns how many. */
uint32_t ranker_form_parameters(const struct ranker_parts *parts,
                                struct parameter *parameters);

/* Those of the first order. */
uint32_t ranker_form_first(const struct ranker_parts *parts);

#endif
