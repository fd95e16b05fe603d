/* SPDX-License-Identifier: Apache-2.0 */
/* The part common to TF_CONFIG and CLUSTER_SPEC. A description that TensorFlow
 * accepts has the same meaning here. If TensorFlow would accept it but hang, or
 * read it differently from its writer's intent, it is an error that says how to
 * mend it. Each error begins with its class, a word that docs/cluster.md lists
 * and that scripts can match. */
#include "proto/cluster/cluster_jobs.h"

#include "core/base/decimal.h"
#include "core/base/diagnostics.h"
#include "proto/cluster/address.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLANKS " \t\r\n"

/* The position of a task's address, for error texts. */
struct location {
    char text[128];
};

static struct location location_of(const char *job, size_t index,
                                   const char *where) {
    struct location location;
    snprintf(location.text, sizeof location.text, "%s[%zu] of %s", job, index,
             where);
    return location;
}

/* The tasks of one job in the map; all borrowed. */
struct job_entry {
    const char *name; /* NULL: the map has no such job */
    json_t *tasks;
};

static size_t cluster_jobs_count_tasks(const json_t *tasks) {
    return json_is_array(tasks) ? json_array_size(tasks)
                                : json_object_size(tasks);
}

static enum status bad_job_name(const char *name, enum role_names names,
                                const char *location, struct failure *why) {
    const char *nearest = role_name_nearest(name);
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "bad_job_name: %s names a job %s; the jobs are %s.%s%s%s", location,
        diagnostics_quote_text(name).text, role_name_list(names),
        nearest ? " Rename it to \"" : " Rename or remove it",
        nearest ? nearest : "", nearest ? "\"." : ".");
}

static enum status duplicate_job(const char *first, const char *second,
                                 enum cluster_role role, const char *location,
                                 struct failure *why) {
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "%s: %s lists both %s and %s, which are two names of one job. Remove "
        "one of them.",
        role == CLUSTER_CHIEF ? "master_and_chief" : "bad_job_name", location,
        diagnostics_quote_text(first).text,
        diagnostics_quote_text(second).text);
}

static enum status bad_tasks_type(const char *name, const json_t *tasks,
                                  const char *location, struct failure *why) {
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "bad_tasks_type: %s of %s is %s; it must be a list of addresses, or an "
        "object of \"<index>\": address. Write [\"host:port\", ...].",
        name, location, diagnostics_quote_json(tasks).text);
}

static enum status check_names(const json_t *map, enum role_names names,
                               const char *location, struct failure *why) {
    const char *name;
    json_t *tasks;
    enum cluster_role role;
    json_object_foreach((json_t *)map, name, tasks) {
        if (!role_name_find(names, name, &role))
            return bad_job_name(name, names, location, why);
    }
    return STATUS_OK;
}

/* Finds the entry of each role in MAP. An empty job does not conflict with
 * another name of the same role. */
static enum status group_by_role(struct job_entry *entry, const json_t *map,
                                 enum role_names names, const char *location,
                                 struct failure *why) {
    const char *name;
    json_t *tasks;
    enum cluster_role role;
    json_object_foreach((json_t *)map, name, tasks) {
        if (!json_is_array(tasks) && !json_is_object(tasks) &&
            !json_is_null(tasks))
            return bad_tasks_type(name, tasks, location, why);
        if (!role_name_find(names, name, &role))
            continue;
        struct job_entry *job = &entry[role];
        if (job->name && cluster_jobs_count_tasks(job->tasks) &&
            cluster_jobs_count_tasks(tasks))
            return duplicate_job(job->name, name, role, location, why);
        if (!job->name || cluster_jobs_count_tasks(tasks))
            *job = (struct job_entry){name, tasks};
    }
    return STATUS_OK;
}

static enum status check_count(enum cluster_role role, size_t count,
                               const char *name, const char *location,
                               struct failure *why) {
    if (count > 1 && role == CLUSTER_CHIEF)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "multiple_chiefs: %s of %s lists %zu tasks; there is at most one "
            "chief. List the others as workers.",
            name, location, count);
    if (count > 1 && role == CLUSTER_EVALUATOR)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "multiple_evaluators: %s of %s lists %zu tasks; there is at most "
            "one evaluator. Keep one.",
            name, location, count);
    return STATUS_OK;
}

/* Appends a task to ROLE's array, which has room for it. */
static enum status add_task(struct cluster *cluster, enum cluster_role role,
                            const json_t *address, uint32_t index,
                            const char *location, struct failure *why) {
    struct cluster_job *job = &cluster->jobs[role];
    struct cluster_task *task = &job->tasks[job->count];
    if (!json_is_string(address))
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "bad_address_type: %s is %s, not a string. Write "
                           "\"host:port\".",
                           location, diagnostics_quote_json(address).text);
    enum status status =
        address_parse(task, json_string_value(address), location, why);
    if (status != STATUS_OK)
        return status;
    task->index = index;
    job->count++;
    if (task->port == 0)
        cluster->warnings |= CLUSTER_PORT_ZERO;
    return STATUS_OK;
}

static enum status cluster_jobs_reserve(struct cluster_job *job, size_t count,
                                        struct failure *why) {
    job->present = true;
    if (count == 0)
        return STATUS_OK;
    job->tasks = calloc(count, sizeof *job->tasks);
    if (!job->tasks)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a cluster of %zu tasks", count);
    return STATUS_OK;
}

static enum status read_array(struct cluster *cluster, enum cluster_role role,
                              const struct job_entry *entry,
                              const char *location, struct failure *why) {
    json_t *address;
    size_t i;
    json_array_foreach(entry->tasks, i, address) {
        struct location here = location_of(entry->name, i, location);
        enum status status =
            add_task(cluster, role, address, (uint32_t)i, here.text, why);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* The chief and the evaluator have only index 0. */
static enum status check_key(enum cluster_role role, uint64_t index,
                             const char *location, struct failure *why) {
    if (index == 0 || (role != CLUSTER_EVALUATOR && role != CLUSTER_CHIEF))
        return STATUS_OK;
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "%s: %s: the %s has index 0. Write a list of one address.",
        role == CLUSTER_EVALUATOR ? "evaluator_index" : "index_out_of_range",
        location, cluster_role_name(role));
}

static int cluster_jobs_compare_index(const void *a, const void *b) {
    uint32_t x = ((const struct cluster_task *)a)->index;
    uint32_t y = ((const struct cluster_task *)b)->index;
    return (x > y) - (x < y);
}

static enum status check_duplicate_index(const struct cluster_job *job,
                                         const char *name, const char *location,
                                         struct failure *why) {
    for (uint32_t i = 1; i < job->count; i++)
        if (job->tasks[i].index == job->tasks[i - 1].index)
            return status_fail(
                why, FAILURE_CLUSTER_INVALID,
                "bad_tasks_type: %s of %s has index %u twice, written in two "
                "ways. Keep one.",
                name, location, job->tasks[i].index);
    return STATUS_OK;
}

static enum status read_object(struct cluster *cluster, enum cluster_role role,
                               const struct job_entry *entry,
                               const char *location, struct failure *why) {
    struct cluster_job *job = &cluster->jobs[role];
    const char *key;
    json_t *address;
    uint64_t index;
    job->sparse = true;
    json_object_foreach(entry->tasks, key, address) {
        if (!decimal_parse(key, &index) || index > UINT32_MAX)
            return status_fail(
                why, FAILURE_CLUSTER_INVALID,
                "bad_tasks_type: %s of %s has the key %s; the keys of an "
                "object of tasks are their indices. Write {\"0\": "
                "\"host:port\"}, or a list.",
                entry->name, location, diagnostics_quote_text(key).text);
        struct location here = location_of(entry->name, index, location);
        enum status status = check_key(role, index, here.text, why);
        if (status == STATUS_OK)
            status = add_task(cluster, role, address, (uint32_t)index,
                              here.text, why);
        if (status != STATUS_OK)
            return status;
    }
    if (job->count > 1)
        qsort(job->tasks, job->count, sizeof *job->tasks,
              cluster_jobs_compare_index);
    return check_duplicate_index(job, entry->name, location, why);
}

static enum status read_job(struct cluster *cluster, enum cluster_role role,
                            const struct job_entry *entry, const char *location,
                            struct failure *why) {
    if (!entry->name)
        return STATUS_OK;
    enum status status = cluster_jobs_reserve(
        &cluster->jobs[role], cluster_jobs_count_tasks(entry->tasks), why);
    if (status != STATUS_OK)
        return status;
    if (json_is_object(entry->tasks))
        return read_object(cluster, role, entry, location, why);
    return read_array(cluster, role, entry, location, why);
}

static bool has_null(const json_t *map) {
    const char *name;
    json_t *tasks;
    json_object_foreach((json_t *)map, name, tasks) {
        if (json_is_null(tasks))
            return true;
    }
    return false;
}

enum status cluster_jobs_read(struct cluster *cluster, const json_t *map,
                              enum role_names names, const char *location,
                              struct failure *why) {
    struct job_entry entry[CLUSTER_ROLES] = {{0}};
    enum status status = check_names(map, names, location, why);
    if (status == STATUS_OK)
        status = group_by_role(entry, map, names, location, why);
    for (enum cluster_role r = 0; r < CLUSTER_ROLES && !status; r++)
        status = check_count(r, cluster_jobs_count_tasks(entry[r].tasks),
                             entry[r].name, location, why);
    for (enum cluster_role r = 0; r < CLUSTER_ROLES && !status; r++)
        status = read_job(cluster, r, &entry[r], location, why);
    if (has_null(map))
        cluster->warnings |= CLUSTER_NULL_JOB;
    return status;
}

json_t *cluster_jobs_split(const char *list, size_t length) {
    json_t *entries = json_array();
    const char *last = list + length;
    for (const char *entry = list; entry;) {
        const char *comma = memchr(entry, ',', (size_t)(last - entry));
        const char *end = comma ? comma : last;
        entry += strspn(entry, BLANKS);
        while (end > entry && strchr(BLANKS, end[-1]))
            end--;
        size_t size = end > entry ? (size_t)(end - entry) : 0;
        json_array_append_new(entries, json_stringn_nocheck(entry, size));
        entry = comma ? comma + 1 : NULL;
    }
    return entries;
}

static int cluster_compare_index(const void *key, const void *task) {
    uint32_t x = *(const uint32_t *)key;
    uint32_t y = ((const struct cluster_task *)task)->index;
    return (x > y) - (x < y);
}

const struct cluster_task *cluster_find(const struct cluster *cluster,
                                        enum cluster_role role,
                                        uint32_t index) {
    const struct cluster_job *job = &cluster->jobs[role];
    if (job->count == 0)
        return NULL;
    return bsearch(&index, job->tasks, job->count, sizeof *job->tasks,
                   cluster_compare_index);
}

const struct cluster_task *cluster_own_task(const struct cluster *cluster) {
    return cluster_find(cluster, cluster->role, cluster->index);
}
