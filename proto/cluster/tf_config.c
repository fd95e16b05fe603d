/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/diagnostics.h"
#include "core/base/strict_json.h"
#include "proto/cluster/cluster_input.h"
#include "proto/cluster/cluster_jobs.h"
#include "proto/cluster/cluster_self.h"

#include <stdio.h>
#include <string.h>

static bool tf_config_set(const struct cluster_input *input) {
    return cluster_input_variable(input, "TF_CONFIG") != NULL;
}

static enum status read_jobs(struct cluster *cluster, const json_t *root,
                             const char *name, enum role_names names,
                             struct failure *why) {
    char location[64];
    const char *key = "cluster";
    const json_t *map = json_object_get(root, key);
    if (!map) {
        key = "sparseCluster";
        map = json_object_get(root, key);
    }
    if (!map)
        return STATUS_OK;
    snprintf(location, sizeof location, "%s in %s", key, name);
    if (!json_is_object(map))
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "cluster_not_object: %s is %s, not an object. "
                           "Write {\"worker\": [\"host:port\", ...], \"ps\": "
                           "[...]}.",
                           location, diagnostics_quote_json(map).text);
    return cluster_jobs_read(cluster, map, names, location, why);
}

/* True if NAME with VALUE looks like a job and its tasks, even if misspelt. It
 * detects a map of jobs in a wrong place. */
static bool looks_like_job(const char *name, const json_t *value) {
    enum cluster_role role;
    if (role_name_find(ROLE_NAMES_VERTEX, name, &role))
        return true;
    return role_name_nearest(name) &&
           (json_is_array(value) || json_is_object(value));
}

/* Jobs beside "cluster" are ignored if "cluster" exists. */
static enum status check_bare_map(const struct cluster *cluster,
                                  const json_t *root, const char *name,
                                  struct failure *why) {
    const char *key;
    json_t *value;
    for (enum cluster_role r = 0; r < CLUSTER_ROLES; r++)
        if (cluster->jobs[r].count > 0)
            return STATUS_OK;
    json_object_foreach((json_t *)root, key, value) {
        if (looks_like_job(key, value))
            return status_fail(why, FAILURE_CLUSTER_INVALID,
                               "bare_cluster_map: %s has the job %s at the "
                               "top. Put the jobs under \"cluster\", with "
                               "\"task\" beside it: {\"cluster\": {\"worker\": "
                               "[...]}, \"task\": {...}}.",
                               name, diagnostics_quote_text(key).text);
    }
    return STATUS_OK;
}

/* Unknown keys are ignored, unless one is a misspelling of a key that is
 * missing: then each process would silently train alone. */
static enum status check_misspelt_keys(const json_t *root, const char *name,
                                       struct failure *why) {
    static const char *const words[] = {"cluster", "task"};
    const char *key;
    json_t *value;
    for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
        if (json_object_get(root, words[w]) ||
            (w == 0 && json_object_get(root, "sparseCluster")))
            continue;
        json_object_foreach((json_t *)root, key, value) {
            if (json_is_object(value) &&
                diagnostics_nearest_distance(key, words[w]) <=
                    strlen(words[w]) / 3)
                return status_fail(
                    why, FAILURE_CLUSTER_INVALID,
                    "misspelt_key: %s has %s, which is ignored. Did you mean "
                    "\"%s\"?",
                    name, diagnostics_quote_text(key).text, words[w]);
        }
    }
    return STATUS_OK;
}

static enum status read_model_dir(struct cluster *cluster, const json_t *root,
                                  const char *name, struct failure *why) {
    const json_t *dir = json_object_get(root, "model_dir");
    if (!dir || json_is_null(dir))
        return STATUS_OK;
    if (json_string_length(dir) == 0)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "model_dir_empty: model_dir in %s is %s, not the path of a folder. "
            "Give one, or leave it out.",
            name, diagnostics_quote_json(dir).text);
    cluster->model_dir = strdup(json_string_value(dir));
    if (!cluster->model_dir)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory to read %s",
                           name);
    return STATUS_OK;
}

static enum status read_self(struct cluster *cluster, const json_t *root,
                             const char *name, enum role_names names,
                             struct failure *why) {
    char location[64], type_location[64], index_location[64];
    snprintf(location, sizeof location, "task in %s", name);
    snprintf(type_location, sizeof type_location, "task.type in %s", name);
    snprintf(index_location, sizeof index_location, "task.index in %s", name);
    struct cluster_self self = {.names = names,
                                .location = location,
                                .type_location = type_location,
                                .index_location = index_location};
    enum status status =
        cluster_self_from_json(&self, json_object_get(root, "task"), why);
    return status ? status : cluster_self_resolve(&self, cluster, why);
}

/* Reads ROOT, an object of TF_CONFIG's form found in variable NAME, whose jobs
 * have NAMES. */
static enum status tf_config_read_object(struct cluster *cluster,
                                         const json_t *root, const char *name,
                                         enum role_names names,
                                         struct failure *why) {
    enum status status = read_jobs(cluster, root, name, names, why);
    if (status == STATUS_OK)
        status = check_bare_map(cluster, root, name, why);
    if (status == STATUS_OK)
        status = check_misspelt_keys(root, name, why);
    if (status == STATUS_OK)
        status = read_model_dir(cluster, root, name, why);
    if (status == STATUS_OK)
        status = read_self(cluster, root, name, names, why);
    return status;
}

static enum status parse_variable(json_t **root, struct cluster *cluster,
                                  const struct cluster_input *input,
                                  const char *name, struct failure *why) {
    bool duplicate = false;
    enum status status = strict_json_object(
        root, cluster_input_variable(input, name), name, &duplicate, why);
    if (!status && duplicate)
        cluster->warnings |= CLUSTER_DUPLICATE_KEY;
    return status;
}

static enum status tf_config_read(struct cluster *cluster,
                                  const struct cluster_input *input,
                                  struct failure *why) {
    json_t *root;
    enum status status =
        parse_variable(&root, cluster, input, "TF_CONFIG", why);
    if (status)
        return status;
    status =
        tf_config_read_object(cluster, root, "TF_CONFIG", ROLE_NAMES_TF, why);
    json_decref(root);
    return status;
}

const struct cluster_reader tf_config = {tf_config_set, tf_config_read};

static bool spec_set(const struct cluster_input *input) {
    return cluster_input_variable(input, "CLUSTER_SPEC") != NULL;
}

static bool is_bare_map(const json_t *root) {
    return !json_object_get(root, "cluster") &&
           !json_object_get(root, "sparseCluster") &&
           !json_object_get(root, "task");
}

static enum status read_bare_map(struct cluster *cluster, const json_t *root,
                                 const struct cluster_input *input,
                                 struct failure *why) {
    struct cluster_self self = {.names = ROLE_NAMES_VERTEX,
                                .location = "JOB_NAME and TASK_INDEX",
                                .type_location = "JOB_NAME",
                                .index_location = "TASK_INDEX"};
    enum status status =
        cluster_jobs_read(cluster, root, self.names, "CLUSTER_SPEC", why);
    if (status == STATUS_OK)
        status = cluster_self_from_text(
            &self, cluster_input_variable(input, "JOB_NAME"),
            cluster_input_variable(input, "TASK_INDEX"), why);
    return status ? status : cluster_self_resolve(&self, cluster, why);
}

static enum status spec_read(struct cluster *cluster,
                             const struct cluster_input *input,
                             struct failure *why) {
    json_t *root;
    enum status status =
        parse_variable(&root, cluster, input, "CLUSTER_SPEC", why);
    if (status)
        return status;
    status = is_bare_map(root)
                 ? read_bare_map(cluster, root, input, why)
                 : tf_config_read_object(cluster, root, "CLUSTER_SPEC",
                                         ROLE_NAMES_VERTEX, why);
    json_decref(root);
    return status;
}

const struct cluster_reader tf_config_spec = {spec_set, spec_read};
