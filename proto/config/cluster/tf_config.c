/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cluster/tf_config.h"

#include "proto/config/cluster/own_task.h"
#include "proto/config/cluster/task_map.h"
#include "proto/config/nearest.h"
#include "proto/config/quoted.h"
#include "proto/config/strict_json.h"

#include <stdio.h>
#include <string.h>

bool tf_config_set(const struct cluster_input *input) {
    return cluster_input_variable(input, "TF_CONFIG") != NULL;
}

static enum status read_jobs(struct cluster *cluster, const json_t *root,
                             const char *name, enum role_names names,
                             struct failure *why) {
    char place[64];
    const char *key = "cluster";
    const json_t *map = json_object_get(root, key);
    if (!map) {
        key = "sparseCluster";
        map = json_object_get(root, key);
    }
    if (!map)
        return STATUS_OK;
    snprintf(place, sizeof place, "%s in %s", key, name);
    if (!json_is_object(map))
        return status_fail(why, STATUS_CONFIG,
                           "cluster_not_object: %s is %s, not an object. "
                           "Write {\"worker\": [\"host:port\", ...], \"ps\": "
                           "[...]}.",
                           place, quoted_json(map).text);
    return task_map_read(cluster, map, names, place, why);
}

/* Jobs beside the cluster's place are read over when the cluster is there. */
static enum status check_bare(const struct cluster *cluster, const json_t *root,
                              const char *name, struct failure *why) {
    const char *key;
    json_t *value;
    for (enum cluster_role r = 0; r < CLUSTER_ROLES; r++)
        if (cluster->jobs[r].count > 0)
            return STATUS_OK;
    json_object_foreach((json_t *)root, key, value) {
        if (task_map_like(key, value))
            return status_fail(why, STATUS_CONFIG,
                               "bare_cluster_map: %s has the job %s at the "
                               "top. Put the jobs under \"cluster\", with "
                               "\"task\" beside it: {\"cluster\": {\"worker\": "
                               "[...]}, \"task\": {...}}.",
                               name, quoted_text(key).text);
    }
    return STATUS_OK;
}

/* Others' keys are read over, but for a slip of one that is not there: with it
 * each process would train alone, and nobody would know. */
static enum status check_slips(const json_t *root, const char *name,
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
                nearest_distance(key, words[w]) <= strlen(words[w]) / 3)
                return status_fail(why, STATUS_CONFIG,
                                   "misspelt_key: %s has %s and no \"%s\": is "
                                   "that what is meant?",
                                   name, quoted_text(key).text, words[w]);
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
        return status_fail(why, STATUS_CONFIG,
                           "model_dir_empty: model_dir in %s is %s, not the "
                           "path of a folder. Give one, or leave it out.",
                           name, quoted_json(dir).text);
    cluster->model_dir = strdup(json_string_value(dir));
    if (!cluster->model_dir)
        return status_fail(why, STATUS_RETRY, "no memory to read %s", name);
    return STATUS_OK;
}

static enum status read_own_task(struct cluster *cluster, const json_t *root,
                                 const char *name, enum role_names names,
                                 struct failure *why) {
    char place[64], type_place[64], index_place[64];
    snprintf(place, sizeof place, "task in %s", name);
    snprintf(type_place, sizeof type_place, "task.type in %s", name);
    snprintf(index_place, sizeof index_place, "task.index in %s", name);
    struct own_task own = {.names = names,
                           .place = place,
                           .type_place = type_place,
                           .index_place = index_place};
    enum status status =
        own_task_from_json(&own, json_object_get(root, "task"), why);
    return status ? status : own_task_settle(&own, cluster, why);
}

enum status tf_config_read_object(struct cluster *cluster, const json_t *root,
                                  const char *name, enum role_names names,
                                  struct failure *why) {
    enum status status = read_jobs(cluster, root, name, names, why);
    if (status == STATUS_OK)
        status = check_bare(cluster, root, name, why);
    if (status == STATUS_OK)
        status = check_slips(root, name, why);
    if (status == STATUS_OK)
        status = read_model_dir(cluster, root, name, why);
    if (status == STATUS_OK)
        status = read_own_task(cluster, root, name, names, why);
    return status;
}

enum status tf_config_read(struct cluster *cluster,
                           const struct cluster_input *input,
                           struct failure *why) {
    json_t *root;
    bool duplicate = false;
    enum status status =
        strict_json_object(&root, cluster_input_variable(input, "TF_CONFIG"),
                           "TF_CONFIG", &duplicate, why);
    if (status != STATUS_OK)
        return status;
    if (duplicate)
        cluster->warnings |= CLUSTER_DUPLICATE_KEY;
    status =
        tf_config_read_object(cluster, root, "TF_CONFIG", ROLE_NAMES_TF, why);
    json_decref(root);
    return status;
}
