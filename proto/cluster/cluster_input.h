/* SPDX-License-Identifier: Apache-2.0 */
/* The input of a cluster description: command line and environment. Each source
 * reads only its own part. */
#ifndef CAPSTAN_CLUSTER_INPUT_H
#define CAPSTAN_CLUSTER_INPUT_H

#include "proto/cluster/cluster.h"

/* All borrowed. */
struct cluster_input {
    struct cluster_flags flags;
    cluster_getenv *lookup;
    void *context;
};

/* TEXT, or NULL if TEXT is NULL, empty or blank, which counts as not given. */
const char *cluster_input_text(const char *text);

/* The same for the environment variable NAME. */
const char *cluster_input_variable(const struct cluster_input *input,
                                   const char *name);

#endif
