/* SPDX-License-Identifier: Apache-2.0 */
/* CLUSTER_SPEC, in two forms. Vertex AI: an object like TF_CONFIG's, its jobs
 * named workerpool0 (chief), workerpool1 (worker), workerpool2 (ps) and
 * workerpool3 (evaluator), or as in TF_CONFIG. TonY: the map of jobs alone,
 * with JOB_NAME and TASK_INDEX beside it in the environment. */
#ifndef CAPSTAN_CLUSTER_SPEC_H
#define CAPSTAN_CLUSTER_SPEC_H

#include "proto/config/cluster/cluster_input.h"

/* True when the variable is there and not blank. */
bool cluster_spec_set(const struct cluster_input *input);

/* Reads it into CLUSTER, which is empty; JOB_NAME and TASK_INDEX in TonY's
 * form, and nothing else. */
enum status cluster_spec_read(struct cluster *cluster,
                              const struct cluster_input *input,
                              struct failure *why) MUST_CHECK;

#endif
