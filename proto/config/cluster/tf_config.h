/* SPDX-License-Identifier: Apache-2.0 */
/* TF_CONFIG: {"cluster": {...}, "task": {"type": ..., "index": ...}}. */
#ifndef CAPSTAN_TF_CONFIG_H
#define CAPSTAN_TF_CONFIG_H

#include "proto/config/cluster/cluster_input.h"
#include "proto/config/cluster/role_name.h"

#include <jansson.h>

/* True if the variable is set and not blank. */
bool tf_config_set(const struct cluster_input *input);

/* Reads TF_CONFIG, and nothing else, into CLUSTER, which is empty. */
enum status tf_config_read(struct cluster *cluster,
                           const struct cluster_input *input,
                           struct failure *why) MUST_CHECK;

/* Reads ROOT (borrowed), an object of TF_CONFIG's form found in variable NAME,
 * whose jobs have NAMES. Errors: cluster_not_object, bare_cluster_map,
 * model_dir_empty and those of cluster_jobs.h and cluster_self.h. */
enum status tf_config_read_object(struct cluster *cluster, const json_t *root,
                                  const char *name, enum role_names names,
                                  struct failure *why) MUST_CHECK;

#endif
