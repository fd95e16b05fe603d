/* SPDX-License-Identifier: Apache-2.0 */
/* The tasks of each job: {"ps": ["host:port", ...], "worker": {"1": ...}}. */
#ifndef CAPSTAN_TASK_MAP_H
#define CAPSTAN_TASK_MAP_H

#include "proto/config/cluster/cluster.h"
#include "proto/config/cluster/role_name.h"

#include <jansson.h>

/* Reads MAP (an object, borrowed), found at PLACE ("cluster in TF_CONFIG"),
 * into CLUSTER's jobs and warnings. Errors are bad_job_name, bad_tasks_type,
 * bad_address_type, master_and_chief, multiple_chiefs, multiple_evaluators,
 * index_out_of_range, evaluator_index and those of address_parse. */
enum status task_map_read(struct cluster *cluster, const json_t *map,
                          enum role_names names, const char *place,
                          struct failure *why) MUST_CHECK;

/* True when NAME with VALUE looks like a job and its tasks, well spelt or
 * not: tells a map of jobs that stands where it should not. */
bool task_map_like(const char *name, const json_t *value);

#endif
