/* SPDX-License-Identifier: Apache-2.0 */
/* Two steps: the first reads the task as it is written, valid or not; the
 * second checks it against the cluster, whose tasks must be known by then. */
#include "proto/cluster/cluster_self.h"

#include "core/base/decimal.h"

#include <string.h>

static void set_type(struct cluster_self *self, const char *type) {
    self->has_type = *type != '\0';
    self->type = diagnostics_quote_text(type);
    self->known = role_name_find(self->names, type, &self->role);
    self->nearest = role_name_nearest(type);
}

static enum status cluster_self_bad_index(const struct cluster_self *self,
                                          struct diagnostics_quote found,
                                          struct failure *why) {
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "bad_index: %s is %s; it must be a whole number from 0, or its digits "
        "in a string. The first task of a job has index 0.",
        self->index_location, found.text);
}

static enum status set_index(struct cluster_self *self, const json_t *value,
                             struct failure *why) {
    if (!value || json_is_null(value))
        return STATUS_OK;
    self->has_index = true;
    self->index = (uint64_t)json_integer_value(value);
    bool fits = json_is_integer(value) && json_integer_value(value) >= 0;
    if (json_is_string(value))
        fits = decimal_parse(json_string_value(value), &self->index);
    return fits ? STATUS_OK
                : cluster_self_bad_index(self, diagnostics_quote_json(value),
                                         why);
}

enum status cluster_self_from_json(struct cluster_self *self,
                                   const json_t *task, struct failure *why) {
    if (!task)
        return STATUS_OK;
    if (!json_is_object(task))
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "task_not_object: %s is %s, not an object. Write "
                           "\"task\": {\"type\": \"worker\", \"index\": 0}.",
                           self->location, diagnostics_quote_json(task).text);
    self->given = true;
    const json_t *type = json_object_get(task, "type");
    if (json_is_string(type)) {
        set_type(self, json_string_value(type));
    } else if (type && !json_is_null(type)) {
        self->has_type = true;
        self->type = diagnostics_quote_json(type);
    }
    return set_index(self, json_object_get(task, "index"), why);
}

enum status cluster_self_from_text(struct cluster_self *self, const char *type,
                                   const char *index, struct failure *why) {
    self->given = type || index;
    if (type)
        set_type(self, type);
    self->has_index = index != NULL;
    if (index && !decimal_parse(index, &self->index))
        return cluster_self_bad_index(self, diagnostics_quote_text(index), why);
    return STATUS_OK;
}

static enum status resolve_single(const struct cluster_self *self,
                                  struct cluster *cluster,
                                  struct failure *why) {
    if (self->has_type && !(self->known && self->role == CLUSTER_WORKER))
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "local_type: %s is %s, but no task is listed, and a process alone "
            "is the worker. List the tasks of the cluster, or leave the type "
            "out.",
            self->type_location, self->type.text);
    if (self->has_index && self->index != 0)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "local_index: %s is %ju, but no task is listed, and a process "
            "alone has index 0. List the tasks of the cluster, or leave the "
            "index out.",
            self->index_location, (uintmax_t)self->index);
    cluster->local = true;
    cluster->role = CLUSTER_WORKER;
    cluster->index = 0;
    return STATUS_OK;
}

static enum status cluster_self_report_missing(const struct cluster_self *self,
                                               struct failure *why) {
    if (!self->given)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "task_missing: the cluster lists more than one task, and the task "
            "of this process is not given. Give %s.",
            self->location);
    if (!self->has_type)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "task_type_missing: %s is missing. Give one of the jobs that the "
            "cluster lists.",
            self->type_location);
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "task_index_missing: %s is missing. Give the index of this task in its "
        "job, from 0.",
        self->index_location);
}

static enum status report_unknown_type(const struct cluster_self *self,
                                       struct failure *why) {
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "task_type_not_in_cluster: %s is %s, which is not a job; the jobs are "
        "%s.%s%s%s",
        self->type_location, self->type.text, role_name_list(self->names),
        self->nearest ? " Is \"" : "", self->nearest ? self->nearest : "",
        self->nearest ? "\" meant?" : "");
}

static enum status report_too_large(const struct cluster_self *self,
                                    enum cluster_role role,
                                    struct failure *why) {
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "%s: %s is %ju, which is above the largest index. The first task of a "
        "job has index 0.",
        role == CLUSTER_EVALUATOR ? "evaluator_index" : "index_out_of_range",
        self->index_location, (uintmax_t)self->index);
}

/* Number of tasks that CLUSTER lists; *ONLY and *ROLE are one of them. */
static uint64_t cluster_self_count_tasks(const struct cluster *cluster,
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

/* Sets role and index of CLUSTER. A value that SELF leaves out is that of ONLY,
 * the one task of ONLY_ROLE; ONLY is NULL if there are more. */
static enum status resolve_role(const struct cluster_self *self,
                                const struct cluster_task *only,
                                enum cluster_role only_role,
                                struct cluster *cluster, struct failure *why) {
    bool complete = self->has_type && self->has_index;
    if (!complete && !only)
        return cluster_self_report_missing(self, why);
    if (!complete)
        cluster->warnings |= CLUSTER_TASK_MISSING;
    if (self->has_type && !self->known)
        return report_unknown_type(self, why);
    cluster->role = self->has_type ? self->role : only_role;
    if (self->has_index && self->index > UINT32_MAX)
        return report_too_large(self, cluster->role, why);
    cluster->index = 0;
    if (self->has_index)
        cluster->index = (uint32_t)self->index;
    else if (cluster->role == only_role)
        cluster->index = only->index;
    return STATUS_OK;
}

static enum status report_no_such_job(const struct cluster_self *self,
                                      const char *name, struct failure *why) {
    return status_fail(why, FAILURE_CLUSTER_INVALID,
                       "task_type_not_in_cluster: %s is %s, but the cluster "
                       "lists no %s. List it, or give the type of a task that "
                       "is listed.",
                       self->type_location, self->type.text, name);
}

static enum status report_not_listed(const struct cluster_self *self,
                                     const struct cluster *cluster,
                                     struct failure *why) {
    const struct cluster_job *job = &cluster->jobs[cluster->role];
    const char *name = cluster_role_name(cluster->role);
    if (!job->present || (cluster->role == CLUSTER_CHIEF && job->count == 0))
        return report_no_such_job(self, name, why);
    if (job->sparse)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "index_out_of_range: %s is %u, and \"%s\" has no key \"%u\". Add "
            "it, or give the index of a key that exists.",
            self->index_location, cluster->index, name, cluster->index);
    return status_fail(why, FAILURE_CLUSTER_INVALID,
                       "index_out_of_range: %s is %u, and \"%s\" lists %u, "
                       "counted from 0. Add the address, or give a smaller "
                       "index%s.",
                       self->index_location, cluster->index, name, job->count,
                       cluster->role == CLUSTER_WORKER
                           ? ", or --join, if its chief has it too"
                           : "");
}

/* The evaluator may be unlisted. */
static enum status check_evaluator(const struct cluster_self *self,
                                   const struct cluster *cluster,
                                   struct failure *why) {
    if (cluster->index == 0)
        return STATUS_OK;
    return status_fail(why, FAILURE_CLUSTER_INVALID,
                       "evaluator_index: %s is %u; there is one evaluator, "
                       "with index 0.",
                       self->index_location, cluster->index);
}

/* True if JOB may have more tasks than it lists: its indices have gaps, or it
 * is given by index and holds one task. */
static bool is_partial(const struct cluster_job *job) {
    return job->sparse &&
           (job->count == 1 || job->tasks[job->count - 1].index >= job->count);
}

enum status cluster_self_resolve(const struct cluster_self *self,
                                 struct cluster *cluster, struct failure *why) {
    struct cluster_task *only = NULL;
    enum cluster_role only_role = CLUSTER_WORKER;
    uint64_t count = cluster_self_count_tasks(cluster, &only, &only_role);
    if (count == 0)
        return resolve_single(self, cluster, why);
    if (count > 1)
        only = NULL;
    enum status status = resolve_role(self, only, only_role, cluster, why);
    if (status != STATUS_OK)
        return status;
    if (cluster->role == CLUSTER_EVALUATOR)
        return check_evaluator(self, cluster, why);
    /* A launcher may give a ps only its own address; then the index alone says
     * which ps it is. */
    struct cluster_job *job = &cluster->jobs[cluster->role];
    bool lone_ps = only && cluster->role == CLUSTER_PS && job->count == 1;
    if (lone_ps && !job->sparse)
        only->index = cluster->index;
    if (!cluster_own_task(cluster))
        return cluster->join && cluster->role == CLUSTER_WORKER
                   ? STATUS_OK
                   : report_not_listed(self, cluster, why);
    if (lone_ps || is_partial(job))
        cluster->warnings |= CLUSTER_OWN_ADDRESS_ONLY;
    return STATUS_OK;
}
