/* SPDX-License-Identifier: Apache-2.0 */
/* Who this process says it is, and its place among the tasks of the cluster. */
#ifndef CAPSTAN_CLUSTER_SELF_H
#define CAPSTAN_CLUSTER_SELF_H

#include "proto/config/cluster/cluster.h"
#include "proto/config/cluster/role_name.h"
#include "proto/config/diagnostics_quote.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* The first four are the source's to set, the rest is read. */
struct cluster_self {
    enum role_names names;
    const char
        *location; /* "task in TF_CONFIG", "--job_name and --task_index" */
    const char *type_location; /* "task.type in TF_CONFIG", "--job_name" */
    const char *index_location;
    bool given;                    /* anything at `place` at all */
    bool has_type, known;          /* known: the type is one of `names` */
    enum cluster_role role;        /* when known */
    struct diagnostics_quote type; /* as it was found */
    const char *nearest;           /* name of a job, or NULL; when not known */
    bool has_index;
    uint64_t index; /* beyond 64 bits: UINT64_MAX */
};

/* Takes type and index from TASK, which must be an object; NULL is missing,
 * and so is a null or empty type, or a null index. Errors are task_not_object
 * and bad_index. */
enum status cluster_self_from_json(struct cluster_self *self,
                                   const json_t *task,
                                   struct failure *why) MUST_CHECK;

/* The same from two texts; NULL is missing. Errors are bad_index. */
enum status cluster_self_from_text(struct cluster_self *self, const char *type,
                                   const char *index,
                                   struct failure *why) MUST_CHECK;

/* Checks OWN against the jobs in CLUSTER, and sets its role, index, local and
 * warnings. A ps that lists nobody else takes the index it says. Errors are
 * task_missing, task_type_missing, task_index_missing,
 * task_type_not_in_cluster, index_out_of_range, evaluator_index, local_type
 * and local_index. */
enum status cluster_self_resolve(const struct cluster_self *self,
                                 struct cluster *cluster,
                                 struct failure *why) MUST_CHECK;

#endif
