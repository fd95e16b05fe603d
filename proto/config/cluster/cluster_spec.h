/* SPDX-License-Identifier: Apache-2.0 */
/* CLUSTER_SPEC has two forms. Vertex AI: an object like TF_CONFIG's, with jobs
 * named workerpool0 (chief), workerpool1 (worker), workerpool2 (ps) and
 * workerpool3 (evaluator), or as in TF_CONFIG. TonY: only the map of jobs, with
 * JOB_NAME and TASK_INDEX as separate variables. */
#ifndef CAPSTAN_CLUSTER_SPEC_H
#define CAPSTAN_CLUSTER_SPEC_H

#include "proto/config/cluster/cluster_input.h"

/* True if the variable is set and not blank. */
bool cluster_spec_set(const struct cluster_input *input);

/* Reads CLUSTER_SPEC, in TonY's form also JOB_NAME and TASK_INDEX, into
 * CLUSTER, which is empty. */
enum status cluster_spec_read(struct cluster *cluster,
                              const struct cluster_input *input,
                              struct failure *why) MUST_CHECK;

#endif
