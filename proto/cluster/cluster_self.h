/* SPDX-License-Identifier: Apache-2.0 */
/* The role and index that this process is given, and its position among the
 * tasks of the cluster. */
#ifndef CAPSTAN_CLUSTER_SELF_H
#define CAPSTAN_CLUSTER_SELF_H

#include "core/base/diagnostics.h"
#include "proto/cluster/cluster.h"
#include "proto/cluster/role_name.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* The source sets the first four; the rest is read. */
struct cluster_self {
    enum role_names names;
    const char
        *location; /* "task in TF_CONFIG", "--job_name and --task_index" */
    const char *type_location; /* "task.type in TF_CONFIG", "--job_name" */
    const char *index_location;
    bool given;                    /* there is a value at `location` */
    bool has_type, known;          /* known: the type is one of `names` */
    enum cluster_role role;        /* when known */
    struct diagnostics_quote type; /* the type as it was written */
    const char *nearest; /* nearest name of a job, or NULL; if not known */
    bool has_index;
    uint64_t index; /* a number beyond 64 bits is UINT64_MAX */
};

/* Reads type and index from TASK, which must be an object. NULL counts as
 * missing, as do a null or empty type and a null index. Errors:
 * task_not_object, bad_index. */
enum status cluster_self_from_json(struct cluster_self *self,
                                   const json_t *task,
                                   struct failure *why) MUST_CHECK;

/* The same from two texts; NULL is missing. Errors: bad_index. */
enum status cluster_self_from_text(struct cluster_self *self, const char *type,
                                   const char *index,
                                   struct failure *why) MUST_CHECK;

/* Checks SELF against the jobs in CLUSTER and sets CLUSTER's role, index, local
 * and warnings. A ps in a description without other tasks takes its given
 * index; with CLUSTER's `join` a worker need not be listed. Errors:
 * task_missing, task_type_missing, task_index_missing,
 * task_type_not_in_cluster, index_out_of_range, evaluator_index, local_type,
 * local_index. */
enum status cluster_self_resolve(const struct cluster_self *self,
                                 struct cluster *cluster,
                                 struct failure *why) MUST_CHECK;

#endif
