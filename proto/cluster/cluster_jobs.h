/* SPDX-License-Identifier: Apache-2.0 */
/* The tasks of each job: {"ps": ["host:port", ...], "worker": {"1": ...}}. */
#ifndef CAPSTAN_CLUSTER_JOBS_H
#define CAPSTAN_CLUSTER_JOBS_H

#include "proto/cluster/cluster.h"
#include "proto/cluster/role_name.h"

#include <jansson.h>

/* Reads MAP (an object, borrowed), found at LOCATION ("cluster in TF_CONFIG"),
 * into CLUSTER's jobs and warnings. Errors: bad_job_name, bad_tasks_type,
 * bad_address_type, master_and_chief, multiple_chiefs, multiple_evaluators,
 * index_out_of_range, evaluator_index and those of address_parse. */
enum status cluster_jobs_read(struct cluster *cluster, const json_t *map,
                              enum role_names names, const char *location,
                              struct failure *why) MUST_CHECK;

/* The entries of a comma-separated LIST of LENGTH bytes, without blanks around
 * them; the caller decrefs it. Bytes that are not UTF-8 pass: the address is
 * checked later. */
json_t *cluster_jobs_split(const char *list, size_t length);

#endif
