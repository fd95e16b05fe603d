/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cluster/azureml.h"

#include "proto/config/decimal.h"
#include "proto/config/diagnostics.h"
#include "proto/config/strict_json.h"
#include "proto/config/yaml_json.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* A distribution block, and what it is called in messages. VERSION is that of
 * Azure ML's SDK whose names and defaults it has. */
struct block {
    const json_t *keys;
    const char *location;
    int version;
};

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
                             const struct block *block, struct failure *why) {
    const json_t *type = find_key(block->keys, "type");
    const char *text = json_string_value(type);
    for (size_t t = 0; text && t < sizeof type_names / sizeof *type_names; t++)
        if (!strcasecmp(text, type_names[t])) {
            distribution->type = (enum azureml_type)t;
            return STATUS_OK;
        }
    return status_fail(why, FAILURE_CLUSTER_INVALID,
                       "type in %s is %s; it is \"tensorflow\", \"pytorch\" or "
                       "\"mpi\"",
                       block->location,
                       type ? diagnostics_quote_json(type).text : "missing");
}

/* Reads key NAME, a whole number of at least LEAST. If it is null or missing,
 * *VALUE stays. */
static enum status read_count(const struct block *block, const char *name,
                              uint32_t min, uint32_t *value,
                              struct failure *why) {
    const json_t *found = find_key(block->keys, name);
    json_int_t number = json_integer_value(found);
    if (!found || json_is_null(found))
        return STATUS_OK;
    if (!json_is_integer(found) || number < min ||
        number > AZUREML_MAX_PROCESSES)
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "%s in %s is %s; it is a whole number from %u to %d",
                           name, block->location,
                           diagnostics_quote_json(found).text, min,
                           AZUREML_MAX_PROCESSES);
    *value = (uint32_t)number;
    return STATUS_OK;
}

/* The keys of each type, those of SDK v1 last. */
static const char *const block_keys[][6] = {
    [AZUREML_TENSORFLOW] = {"type", "worker_count", "parameter_server_count"},
    [AZUREML_PYTORCH] = {"type", "process_count_per_instance", "process_count",
                         "node_count", "communication_backend"},
    [AZUREML_MPI] = {"type", "process_count_per_instance",
                     "process_count_per_node", "node_count"},
};

static enum status check_keys(const struct azureml_distribution *distribution,
                              const struct block *block, struct failure *why) {
    const char *const *names = block_keys[distribution->type], *key;
    json_t *value;
    json_object_foreach((json_t *)block->keys, key, value) {
        size_t n = 0, used = 0;
        char known[160] = "";
        while (names[n] && !keys_match(key, names[n])) {
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s",
                                     n ? ", " : "", names[n]);
            n++;
        }
        if (!names[n])
            return status_fail(why, FAILURE_CLUSTER_INVALID,
                               "%s has the key %s; of type \"%s\" the keys are "
                               "%s",
                               block->location,
                               diagnostics_quote_text(key).text,
                               type_names[distribution->type], known);
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
            "--num-ps is for ranks; in a distribution of type \"tensorflow\" "
            "use parameter_server_count");
    if (distribution->num_ps >= size)
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "--num-ps is %u of %u processes: rank 0 trains, so "
                           "it is at most %u",
                           distribution->num_ps, size, size - 1);
    if (size > AZUREML_MAX_PROCESSES)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "the distribution and --instances make %u processes; the maximum "
            "is %d",
            size, AZUREML_MAX_PROCESSES);
    return STATUS_OK;
}

/* PyTorchConfiguration's process_count is that of all nodes. */
static enum status read_total_count(struct azureml_distribution *distribution,
                                    const struct block *block,
                                    struct failure *why) {
    uint32_t total = 0;
    enum status status = read_count(block, "process_count", 1, &total, why);
    if (status || !total)
        return status;
    if (total % distribution->instances)
        return status_fail(why, FAILURE_CLUSTER_INVALID,
                           "process_count in %s is %u on %u nodes; it is a "
                           "multiple of the nodes",
                           block->location, total, distribution->instances);
    distribution->per_instance = total / distribution->instances;
    return STATUS_OK;
}

static enum status read_counts_of(struct azureml_distribution *distribution,
                                  const struct block *block,
                                  struct failure *why) {
    struct azureml_distribution *d = distribution;
    enum status status = read_count(block, "worker_count", 1, &d->workers, why);
    if (!status)
        status = read_count(block, "parameter_server_count", 0, &d->ps, why);
    if (!status)
        status = read_count(block, "process_count_per_instance", 1,
                            &d->per_instance, why);
    if (!status)
        status = read_count(block, "process_count_per_node", 1,
                            &d->per_instance, why);
    return status ? status : read_total_count(d, block, why);
}

static enum status azureml_read_block(struct azureml_distribution *distribution,
                                      const struct block *block,
                                      const char *instances, const char *num_ps,
                                      struct failure *why) {
    enum status status = read_type(distribution, block, why);
    if (!status)
        status = check_keys(distribution, block, why);
    if (!status)
        status =
            read_count(block, "node_count", 1, &distribution->instances, why);
    if (!status)
        status = read_flag("--instances", instances, 1,
                           &distribution->instances, why);
    if (!status)
        status = read_flag("--num-ps", num_ps, 0, &distribution->num_ps, why);
    distribution->workers = block->version == 1 ? 1 : distribution->instances;
    distribution->ps = block->version == 1;
    if (!status)
        status = read_counts_of(distribution, block, why);
    if (!status && distribution->type != AZUREML_TENSORFLOW)
        distribution->workers = distribution->ps = 0;
    return status ? status : check_sizes(distribution, num_ps, why);
}

/* The block of ROOT, a run configuration of SDK v1, by its communicator. The
 * caller decrefs *KEYS. */
static enum status find_v1_block(const json_t *root, const char *path,
                                 json_t **keys, struct failure *why) {
    static const char *const communicators[][2] = {
        {"ParameterServer", "tensorflow"},
        {"OpenMpi", "mpi"},
        {"IntelMpi", "mpi"},
        {"Mpi", "mpi"},
        {"Nccl", "pytorch"},
        {"Gloo", "pytorch"}};
    const json_t *communicator = find_key(root, "communicator");
    const char *text = json_string_value(communicator);
    size_t count = sizeof communicators / sizeof *communicators, c = 0;
    while (c < count && (!text || strcasecmp(text, communicators[c][0])))
        c++;
    if (c == count)
        return status_fail(
            why, FAILURE_CLUSTER_INVALID,
            "%s has no distribution, and %s for a communicator: with "
            "ParameterServer, OpenMpi, IntelMpi, Mpi, Nccl or Gloo a run "
            "configuration of SDK v1 starts several processes",
            path,
            communicator ? diagnostics_quote_json(communicator).text : "none");
    const char *type = communicators[c][1];
    const json_t *block = find_key(root, type);
    const json_t *nodes = find_key(root, "node_count");
    *keys = json_is_object(block) ? json_copy((json_t *)block) : json_object();
    json_object_set_new(*keys, "type", json_string(type));
    if (nodes && strcmp(type, "tensorflow") && !find_key(*keys, "node_count"))
        json_object_set(*keys, "node_count", (json_t *)nodes);
    return STATUS_OK;
}

static enum status azureml_read_file(struct azureml_distribution *distribution,
                                     const char *path, const char *instances,
                                     const char *num_ps, struct failure *why) {
    json_t *root, *v1 = NULL;
    enum status status = yaml_json_load(&root, path, why);
    if (status)
        return status;
    struct block block = {find_key(root, "distribution"), path, 2};
    struct block resources = {find_key(root, "resources"), path, 2};
    if (!block.keys && find_key(root, "type") && !find_key(root, "command"))
        block.keys = root; /* the block alone */
    if (json_is_object(resources.keys))
        status = read_count(&resources, "instance_count", 1,
                            &distribution->instances, why);
    if (!status && !json_is_object(block.keys)) {
        status = find_v1_block(root, path, &v1, why);
        block = (struct block){v1, path, 1};
    }
    if (!status)
        status =
            azureml_read_block(distribution, &block, instances, num_ps, why);
    json_decref(v1);
    json_decref(root);
    return status;
}

enum status azureml_read(struct azureml_distribution *distribution,
                         const char *text, const char *instances,
                         const char *num_ps, struct failure *why) {
    json_t *root;
    bool duplicate = false;
    *distribution =
        (struct azureml_distribution){.instances = 1, .per_instance = 1};
    if (!strchr("{['\"", text[strspn(text, " \t\r\n")]))
        return azureml_read_file(distribution, text, instances, num_ps, why);
    struct block block = {.location = "--distribution", .version = 2};
    enum status status =
        strict_json_object(&root, text, block.location, &duplicate, why);
    if (status)
        return status;
    block.keys = root;
    status = azureml_read_block(distribution, &block, instances, num_ps, why);
    json_decref(root);
    return status;
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
