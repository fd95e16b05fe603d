/* SPDX-License-Identifier: Apache-2.0 */
/* Where a cluster description may come from: the command line and the
 * environment. Each source takes its own part and nothing else. */
#ifndef CAPSTAN_CLUSTER_INPUT_H
#define CAPSTAN_CLUSTER_INPUT_H

#include "proto/config/cluster/cluster.h"

/* All borrowed. */
struct cluster_input {
    struct cluster_flags flags;
    cluster_getenv *lookup;
    void *context;
};

/* TEXT, or NULL when it is NULL, empty or blank: which is not given. */
const char *cluster_input_text(const char *text);

/* The same for variable NAME of the environment. */
const char *cluster_input_variable(const struct cluster_input *input,
                                   const char *name);

#endif
