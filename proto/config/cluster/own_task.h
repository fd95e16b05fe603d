/* SPDX-License-Identifier: Apache-2.0 */
/* Who this process says it is, and its place among the tasks of the cluster. */
#ifndef CAPSTAN_OWN_TASK_H
#define CAPSTAN_OWN_TASK_H

#include "proto/config/cluster/cluster.h"
#include "proto/config/cluster/role_name.h"
#include "proto/config/quoted.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* The first four are the source's to set, the rest is read. */
struct own_task {
    enum role_names names;
    const char *place; /* "task in TF_CONFIG", "--job_name and --task_index" */
    const char *type_place; /* "task.type in TF_CONFIG", "--job_name" */
    const char *index_place;
    bool given;             /* anything at `place` at all */
    bool has_type, known;   /* known: the type is one of `names` */
    enum cluster_role role; /* when known */
    struct quoted type;     /* as it was found */
    const char *nearest;    /* name of a job, or NULL; when not known */
    bool has_index;
    uint64_t index; /* beyond 64 bits: UINT64_MAX */
};

/* Takes type and index from TASK, which must be an object; NULL is missing,
 * and so is a null or empty type, or a null index. Errors are task_not_object
 * and bad_index. */
enum status own_task_from_json(struct own_task *own, const json_t *task,
                               struct failure *why) MUST_CHECK;

/* The same from two texts; NULL is missing. Errors are bad_index. */
enum status own_task_from_text(struct own_task *own, const char *type,
                               const char *index,
                               struct failure *why) MUST_CHECK;

/* Checks OWN against the jobs in CLUSTER, and sets its role, index, local and
 * warnings. A ps that lists nobody else takes the index it says. Errors are
 * task_missing, task_type_missing, task_index_missing,
 * task_type_not_in_cluster, index_out_of_range, evaluator_index, local_type
 * and local_index. */
enum status own_task_settle(const struct own_task *own, struct cluster *cluster,
                            struct failure *why) MUST_CHECK;

#endif
