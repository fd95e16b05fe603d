/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cluster/distribution.h"

#include "proto/config/decimal.h"
#include "proto/config/quoted.h"
#include "proto/config/strict_json.h"

#include <string.h>
#include <strings.h>

static const char place[] = "--distribution";

static const char *const type_names[] = {
    [DISTRIBUTION_TENSORFLOW] = "tensorflow",
    [DISTRIBUTION_PYTORCH] = "pytorch",
    [DISTRIBUTION_MPI] = "mpi",
};

/* KEY is NAME but for case and underscores. */
static bool same_key(const char *key, const char *name) {
    for (;; key++, name++) {
        key += strspn(key, "_");
        name += strspn(name, "_");
        if (strncasecmp(key, name, 1))
            return false;
        if (!*key)
            return true;
    }
}

static const json_t *find(const json_t *root, const char *name) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value) {
        if (same_key(key, name))
            return value;
    }
    return NULL;
}

static enum status read_type(struct distribution *distribution,
                             const json_t *root, struct failure *why) {
    const json_t *type = find(root, "type");
    const char *text = json_string_value(type);
    for (size_t t = 0; text && t < sizeof type_names / sizeof *type_names; t++)
        if (!strcasecmp(text, type_names[t])) {
            distribution->type = (enum distribution_type)t;
            return STATUS_OK;
        }
    return status_fail(why, STATUS_CONFIG,
                       "type in %s is %s; it is \"tensorflow\", \"pytorch\" or "
                       "\"mpi\"",
                       place, type ? quoted_json(type).text : "missing");
}

/* Key NAME is a number from LEAST on; null and missing leave *VALUE. */
static enum status read_count(const json_t *root, const char *name,
                              uint32_t least, uint32_t *value,
                              struct failure *why) {
    const json_t *found = find(root, name);
    json_int_t number = json_integer_value(found);
    if (!found || json_is_null(found))
        return STATUS_OK;
    if (!json_is_integer(found) || number < least || number > DISTRIBUTION_MOST)
        return status_fail(why, STATUS_CONFIG,
                           "%s in %s is %s; it is a whole number from %u to %d",
                           name, place, quoted_json(found).text, least,
                           DISTRIBUTION_MOST);
    *value = (uint32_t)number;
    return STATUS_OK;
}

static enum status check_keys(const struct distribution *distribution,
                              const json_t *root, struct failure *why) {
    bool ranks = distribution->type != DISTRIBUTION_TENSORFLOW;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value) {
        bool known = same_key(key, "type") ||
                     (ranks ? same_key(key, "process_count_per_instance")
                            : same_key(key, "worker_count") ||
                                  same_key(key, "parameter_server_count"));
        if (!known)
            return status_fail(
                why, STATUS_CONFIG,
                "%s has the key %s; of type \"%s\" the keys are type%s", place,
                quoted_text(key).text, type_names[distribution->type],
                ranks ? " and process_count_per_instance"
                      : ", worker_count and parameter_server_count");
    }
    return STATUS_OK;
}

static enum status read_flag(const char *name, const char *text, uint64_t least,
                             uint32_t *value, struct failure *why) {
    uint64_t found;
    if (!text)
        return STATUS_OK;
    if (!decimal_parse(text, &found) || found < least ||
        found > DISTRIBUTION_MOST)
        return status_fail(
            why, STATUS_CONFIG, "%s is %s; it is a whole number from %ju to %d",
            name, quoted_text(text).text, (uintmax_t)least, DISTRIBUTION_MOST);
    *value = (uint32_t)found;
    return STATUS_OK;
}

/* What the numbers are together. */
static enum status check_sizes(const struct distribution *distribution,
                               const char *num_ps, struct failure *why) {
    uint32_t size = distribution_size(distribution);
    bool ranks = distribution->type != DISTRIBUTION_TENSORFLOW;
    if (!ranks && num_ps)
        return status_fail(why, STATUS_CONFIG,
                           "--num-ps is for ranks; in %s of type "
                           "\"tensorflow\" parameter_server_count says it",
                           place);
    if (distribution->num_ps >= size)
        return status_fail(why, STATUS_CONFIG,
                           "--num-ps is %u of %u processes: rank 0 trains, so "
                           "it is at most %u",
                           distribution->num_ps, size, size - 1);
    if (size > DISTRIBUTION_MOST)
        return status_fail(why, STATUS_CONFIG,
                           "%s and --instances make %u processes; at most %d "
                           "are started",
                           place, size, DISTRIBUTION_MOST);
    return STATUS_OK;
}

enum status distribution_read(struct distribution *distribution,
                              const char *text, const char *instances,
                              const char *num_ps, struct failure *why) {
    json_t *root;
    bool duplicate = false;
    *distribution = (struct distribution){.instances = 1, .per_instance = 1};
    enum status status =
        strict_json_object(&root, text, place, &duplicate, why);
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

uint32_t distribution_size(const struct distribution *distribution) {
    return distribution->type == DISTRIBUTION_TENSORFLOW
               ? distribution->workers + distribution->ps
               : distribution->instances * distribution->per_instance;
}

uint32_t distribution_ps(const struct distribution *distribution) {
    return distribution->type == DISTRIBUTION_TENSORFLOW ? distribution->ps
                                                         : distribution->num_ps;
}
