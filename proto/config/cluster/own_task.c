/* SPDX-License-Identifier: Apache-2.0 */
/* Two steps, as a place among the tasks can be judged only when the tasks are
 * known: first what the process says of itself is taken as it stands, whether
 * it makes sense or not, then it is settled against the cluster. */
#include "proto/config/cluster/own_task.h"

#include "proto/config/decimal.h"

#include <string.h>

static void take_type(struct own_task *own, const char *type) {
    own->has_type = *type != '\0';
    own->type = quoted_text(type);
    own->known = role_name_find(own->names, type, &own->role);
    own->nearest = role_name_nearest(type);
}

static enum status bad_index(const struct own_task *own, struct quoted found,
                             struct failure *why) {
    return status_fail(why, STATUS_CONFIG,
                       "bad_index: %s is %s; it is a whole number from 0, or "
                       "its digits in a string. The first task of a job has "
                       "index 0.",
                       own->index_place, found.text);
}

static enum status take_index(struct own_task *own, const json_t *value,
                              struct failure *why) {
    if (!value || json_is_null(value))
        return STATUS_OK;
    own->has_index = true;
    own->index = (uint64_t)json_integer_value(value);
    bool fits = json_is_integer(value) && json_integer_value(value) >= 0;
    if (json_is_string(value))
        fits = decimal_parse(json_string_value(value), &own->index);
    return fits ? STATUS_OK : bad_index(own, quoted_json(value), why);
}

enum status own_task_from_json(struct own_task *own, const json_t *task,
                               struct failure *why) {
    if (!task)
        return STATUS_OK;
    if (!json_is_object(task))
        return status_fail(why, STATUS_CONFIG,
                           "task_not_object: %s is %s, not an object. Write "
                           "\"task\": {\"type\": \"worker\", \"index\": 0}.",
                           own->place, quoted_json(task).text);
    own->given = true;
    const json_t *type = json_object_get(task, "type");
    if (json_is_string(type)) {
        take_type(own, json_string_value(type));
    } else if (type && !json_is_null(type)) {
        own->has_type = true;
        own->type = quoted_json(type);
    }
    return take_index(own, json_object_get(task, "index"), why);
}

enum status own_task_from_text(struct own_task *own, const char *type,
                               const char *index, struct failure *why) {
    own->given = type || index;
    if (type)
        take_type(own, type);
    own->has_index = index != NULL;
    if (index && !decimal_parse(index, &own->index))
        return bad_index(own, quoted_text(index), why);
    return STATUS_OK;
}

static enum status settle_alone(const struct own_task *own,
                                struct cluster *cluster, struct failure *why) {
    if (own->has_type && !(own->known && own->role == CLUSTER_WORKER))
        return status_fail(why, STATUS_CONFIG,
                           "local_type: %s is %s, but no task is listed, and "
                           "who is alone is the worker. List the tasks of the "
                           "cluster, or leave the type out.",
                           own->type_place, own->type.text);
    if (own->has_index && own->index != 0)
        return status_fail(why, STATUS_CONFIG,
                           "local_index: %s is %ju, but no task is listed, "
                           "and who is alone has index 0. List the tasks of "
                           "the cluster, or leave the index out.",
                           own->index_place, (uintmax_t)own->index);
    cluster->local = true;
    cluster->role = CLUSTER_WORKER;
    cluster->index = 0;
    return STATUS_OK;
}

static enum status missing(const struct own_task *own, struct failure *why) {
    if (!own->given)
        return status_fail(why, STATUS_CONFIG,
                           "task_missing: the cluster lists more than one "
                           "task, and nothing says which one this process is. "
                           "Give %s.",
                           own->place);
    if (!own->has_type)
        return status_fail(why, STATUS_CONFIG,
                           "task_type_missing: %s is missing. Give one of the "
                           "jobs that the cluster lists.",
                           own->type_place);
    return status_fail(why, STATUS_CONFIG,
                       "task_index_missing: %s is missing. Give this task's "
                       "place in its job, from 0.",
                       own->index_place);
}

static enum status unknown_type(const struct own_task *own,
                                struct failure *why) {
    return status_fail(why, STATUS_CONFIG,
                       "task_type_not_in_cluster: %s is %s, which is no job; "
                       "the jobs are %s.%s%s%s",
                       own->type_place, own->type.text,
                       role_name_list(own->names), own->nearest ? " Is \"" : "",
                       own->nearest ? own->nearest : "",
                       own->nearest ? "\" meant?" : "");
}

static enum status too_large(const struct own_task *own, enum cluster_role role,
                             struct failure *why) {
    return status_fail(why, STATUS_CONFIG,
                       "%s: %s is %ju, which no task can have. The first task "
                       "of a job has index 0.",
                       role == CLUSTER_EVALUATOR ? "evaluator_index"
                                                 : "index_out_of_range",
                       own->index_place, (uintmax_t)own->index);
}

/* How many tasks CLUSTER lists; *ONLY and *ROLE are one of them. */
static uint64_t count_tasks(const struct cluster *cluster,
                            struct cluster_task **only,
                            enum cluster_role *role) {
    uint64_t count = 0;
    for (enum cluster_role r = 0; r < CLUSTER_ROLES; r++) {
        count += cluster->jobs[r].count;
        if (cluster->jobs[r].count > 0) {
            *only = cluster->jobs[r].tasks;
            *role = r;
        }
    }
    return count;
}

/* Sets role and index of CLUSTER. What OWN leaves out can only be that of
 * ONLY, the one task of ONLY_ROLE, or NULL when there are more. */
static enum status take_claim(const struct own_task *own,
                              const struct cluster_task *only,
                              enum cluster_role only_role,
                              struct cluster *cluster, struct failure *why) {
    bool complete = own->has_type && own->has_index;
    if (!complete && !only)
        return missing(own, why);
    if (!complete)
        cluster->warnings |= CLUSTER_TASK_MISSING;
    if (own->has_type && !own->known)
        return unknown_type(own, why);
    cluster->role = own->has_type ? own->role : only_role;
    if (own->has_index && own->index > UINT32_MAX)
        return too_large(own, cluster->role, why);
    cluster->index = 0;
    if (own->has_index)
        cluster->index = (uint32_t)own->index;
    else if (cluster->role == only_role)
        cluster->index = only->index;
    return STATUS_OK;
}

static enum status no_such_job(const struct own_task *own, const char *name,
                               struct failure *why) {
    return status_fail(why, STATUS_CONFIG,
                       "task_type_not_in_cluster: %s is %s, but the cluster "
                       "lists no %s. List it, or give the type of a task that "
                       "is listed.",
                       own->type_place, own->type.text, name);
}

static enum status not_listed(const struct own_task *own,
                              const struct cluster *cluster,
                              struct failure *why) {
    const struct cluster_job *job = &cluster->jobs[cluster->role];
    const char *name = cluster_role_name(cluster->role);
    if (!job->named || (cluster->role == CLUSTER_CHIEF && job->count == 0))
        return no_such_job(own, name, why);
    if (job->sparse)
        return status_fail(why, STATUS_CONFIG,
                           "index_out_of_range: %s is %u, and \"%s\" has no "
                           "key \"%u\". Add it, or give the index of a key "
                           "that is there.",
                           own->index_place, cluster->index, name,
                           cluster->index);
    return status_fail(why, STATUS_CONFIG,
                       "index_out_of_range: %s is %u, and \"%s\" lists %u, "
                       "counted from 0. Add the address, or give a smaller "
                       "index.",
                       own->index_place, cluster->index, name, job->count);
}

/* The evaluator need not be listed. */
static enum status settle_evaluator(const struct own_task *own,
                                    const struct cluster *cluster,
                                    struct failure *why) {
    if (cluster->index == 0)
        return STATUS_OK;
    return status_fail(why, STATUS_CONFIG,
                       "evaluator_index: %s is %u; there is one evaluator, "
                       "with index 0.",
                       own->index_place, cluster->index);
}

/* True when JOB may have more tasks than it lists: its indices have gaps, or
 * it is given by index and holds one task alone. */
static bool lists_a_part(const struct cluster_job *job) {
    return job->sparse &&
           (job->count == 1 || job->tasks[job->count - 1].index >= job->count);
}

enum status own_task_settle(const struct own_task *own, struct cluster *cluster,
                            struct failure *why) {
    struct cluster_task *only = NULL;
    enum cluster_role only_role = CLUSTER_WORKER;
    uint64_t count = count_tasks(cluster, &only, &only_role);
    if (count == 0)
        return settle_alone(own, cluster, why);
    if (count > 1)
        only = NULL;
    enum status status = take_claim(own, only, only_role, cluster, why);
    if (status != STATUS_OK)
        return status;
    if (cluster->role == CLUSTER_EVALUATOR)
        return settle_evaluator(own, cluster, why);
    /* Who starts a ps may tell it no address but its own: which one of the
     * ps it is, the index alone says. */
    struct cluster_job *job = &cluster->jobs[cluster->role];
    bool lone_ps = only && cluster->role == CLUSTER_PS && job->count == 1;
    if (lone_ps && !job->sparse)
        only->index = cluster->index;
    if (!cluster_self(cluster))
        return not_listed(own, cluster, why);
    if (lone_ps || lists_a_part(job))
        cluster->warnings |= CLUSTER_OWN_ADDRESS_ONLY;
    return STATUS_OK;
}
