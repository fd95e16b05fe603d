/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cluster/azureml.h"

#include "proto/config/decimal.h"
#include "proto/config/diagnostics.h"
#include "proto/config/strict_json.h"

#include <string.h>
#include <strings.h>

static const char location[] = "--distribution";

static const char *const type_names[] = {
    [AZUREML_TENSORFLOW] = "tensorflow",
    [AZUREML_PYTORCH] = "pytorch",
    [AZUREML_MPI] = "mpi",
};

/* KEY equals NAME if case and underscores are ignored. */
static bool keys_match(const char *key, const char *name) {
    for (;; key++, name++) {
        key += strspn(key, "_");
        name += strspn(name, "_");
        if (strncasecmp(key, name, 1))
            return false;
        if (!*key)
            return true;
    }
}

static const json_t *find_key(const json_t *root, const char *name) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value) {
        if (keys_match(key, name))
            return value;
    }
    return NULL;
}

static enum status read_type(struct azureml_distribution *distribution,
                             const json_t *root, struct failure *why) {
    const json_t *type = find_key(root, "type");
    const char *text = json_string_value(type);
    for (size_t t = 0; text && t < sizeof type_names / sizeof *type_names; t++)
        if (!strcasecmp(text, type_names[t])) {
            distribution->type = (enum azureml_type)t;
            return STATUS_OK;
        }
    return status_fail(why, FAILURE_CLUSTER_INVALID,
                       "type in %s is %s; it is \"tensorflow\", \"pytorch\" or "
                       "\"mpi\"",
                       location,
                       type ? diagnostics_quote_json(type).text : "missing");
}

/* Reads key NAME, a whole number of at least LEAST. If it is null or missing,
 * *VALUE stays. */
static enum status read_count(const json_t *root, const char *name,
                              uint32_t min, uint32_t *value,
                              struct failure *why) {
    const json_t *found = find_key(root, name);
    json_int_t number = json_integer_value(found);
    if (!found || json_is_null(found))
        return STATUS_OK;
    if (!json_is_integer(found) || number < min ||
        number > AZUREML_MAX_PROCESSES)
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "%s in %s is %s; it is a whole number from %u to %d",
                           name, location, diagnostics_quote_json(found).text,
                           min, AZUREML_MAX_PROCESSES);
    *value = (uint32_t)number;
    return STATUS_OK;
}

static enum status check_keys(const struct azureml_distribution *distribution,
                              const json_t *root, struct failure *why) {
    bool ranks = distribution->type != AZUREML_TENSORFLOW;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value) {
        bool known = keys_match(key, "type") ||
                     (ranks ? keys_match(key, "process_count_per_instance")
                            : keys_match(key, "worker_count") ||
                                  keys_match(key, "parameter_server_count"));
        if (!known)
            return status_fail(
                why, FAILURE_CLUSTER_INVALID,
                "%s has the key %s; of type \"%s\" the keys are type%s",
                location, diagnostics_quote_text(key).text,
                type_names[distribution->type],
                ranks ? " and process_count_per_instance"
                      : ", worker_count and parameter_server_count");
    }
    return STATUS_OK;
}

static enum status read_flag(const char *name, const char *text, uint64_t min,
                             uint32_t *value, struct failure *why) {
    uint64_t found;
    if (!text)
        return STATUS_OK;
    if (!decimal_parse(text, &found) || found < min ||
        found > AZUREML_MAX_PROCESSES)
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "%s is %s; it is a whole number from %ju to %d",
                           name, diagnostics_quote_text(text).text,
                           (uintmax_t)min, AZUREML_MAX_PROCESSES);
    *value = (uint32_t)found;
    return STATUS_OK;
}

/* Checks the total number of processes and --num-ps. */
static enum status check_sizes(const struct azureml_distribution *distribution,
                               const char *num_ps, struct failure *why) {
    uint32_t size = azureml_num_processes(distribution);
    bool ranks = distribution->type != AZUREML_TENSORFLOW;
    if (!ranks && num_ps)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "--num-ps is for ranks; in %s of type \"tensorflow\" use "
            "parameter_server_count",
            location);
    if (distribution->num_ps >= size)
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "--num-ps is %u of %u processes: rank 0 trains, so "
                           "it is at most %u",
                           distribution->num_ps, size, size - 1);
    if (size > AZUREML_MAX_PROCESSES)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "%s and --instances make %u processes; the maximum is %d", location,
            size, AZUREML_MAX_PROCESSES);
    return STATUS_OK;
}

enum status azureml_read(struct azureml_distribution *distribution,
                         const char *text, const char *instances,
                         const char *num_ps, struct failure *why) {
    json_t *root;
    bool duplicate = false;
    *distribution =
        (struct azureml_distribution){.instances = 1, .per_instance = 1};
    enum status status =
        strict_json_object(&root, text, location, &duplicate, why);
    if (status)
        return status;
    status =
        read_flag("--instances", instances, 1, &distribution->instances, why);
    distribution->workers = distribution->instances;
    if (!status)
        status = read_flag("--num-ps", num_ps, 0, &distribution->num_ps, why);
    if (!status)
        status = read_type(distribution, root, why);
    if (!status)
        status = check_keys(distribution, root, why);
    if (!status)
        status =
            read_count(root, "worker_count", 1, &distribution->workers, why);
    if (!status)
        status = read_count(root, "parameter_server_count", 0,
                            &distribution->ps, why);
    if (!status)
        status = read_count(root, "process_count_per_instance", 1,
                            &distribution->per_instance, why);
    json_decref(root);
    return status ? status : check_sizes(distribution, num_ps, why);
}

uint32_t azureml_num_processes(
    const struct azureml_distribution *distribution) {
    return distribution->type == AZUREML_TENSORFLOW
               ? distribution->workers + distribution->ps
               : distribution->instances * distribution->per_instance;
}

uint32_t azureml_num_ps(const struct azureml_distribution *distribution) {
    return distribution->type == AZUREML_TENSORFLOW ? distribution->ps
                                                    : distribution->num_ps;
}
