/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of legacy scripts: --job_name --task_index --ps_hosts
 * --worker_hosts --chief_hosts. */
#ifndef CAPSTAN_LEGACY_FLAGS_H
#define CAPSTAN_LEGACY_FLAGS_H

#include "proto/cluster/cluster_input.h"

/* True if any of them is given and not blank. */
bool legacy_flags_set(const struct cluster_input *input);

/* Reads the flags, and nothing else, into CLUSTER, which is empty. */
enum status legacy_flags_read(struct cluster *cluster,
                              const struct cluster_input *input,
                              struct failure *why) MUST_CHECK;

#endif
