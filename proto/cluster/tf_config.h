/* SPDX-License-Identifier: Apache-2.0 */
/* TF_CONFIG: {"cluster": {...}, "task": {"type": ..., "index": ...}}.
 *
 * CLUSTER_SPEC has two forms. Vertex AI: an object like TF_CONFIG's, with jobs
 * named workerpool0 (chief), workerpool1 (worker), workerpool2 (ps) and
 * workerpool3 (evaluator), or as in TF_CONFIG. TonY: only the map of jobs, with
 * JOB_NAME and TASK_INDEX as separate variables.
 *
 * Errors: cluster_not_object, bare_cluster_map, misspelt_key, model_dir_empty
 * and those of cluster_jobs.h and cluster_self.h. */
#ifndef CAPSTAN_TF_CONFIG_H
#define CAPSTAN_TF_CONFIG_H

#include "proto/cluster/cluster_input.h"

/* True if the variable is set and not blank. */
bool tf_config_set(const struct cluster_input *input);

/* Reads TF_CONFIG, and nothing else, into CLUSTER, which is empty. */
enum status tf_config_read(struct cluster *cluster,
                           const struct cluster_input *input,
                           struct failure *why) MUST_CHECK;

/* True if CLUSTER_SPEC is set and not blank. */
bool tf_config_spec_set(const struct cluster_input *input);

/* Reads CLUSTER_SPEC, in TonY's form also JOB_NAME and TASK_INDEX, into
 * CLUSTER, which is empty. */
enum status tf_config_spec_read(struct cluster *cluster,
                                const struct cluster_input *input,
                                struct failure *why) MUST_CHECK;

#endif
