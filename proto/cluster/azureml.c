/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/azureml.h"

#include "core/base/decimal.h"
#include "core/base/diagnostics.h"
#include "core/base/strict_json.h"
#include "core/base/yaml_json.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* A distribution block. NAME, which ends in a dot unless it is empty, is where
 * it lies in its file, for messages; VERSION is that of Azure ML's SDK whose
 * names and defaults it has. Mistakes go to PROBLEMS. */
struct block {
    const json_t *keys;
    const char *name;
    int version;
    struct diagnostics *problems;
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

const json_t *azureml_find_key(const json_t *root, const char *name) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value) {
        if (keys_match(key, name))
            return value;
    }
    return NULL;
}

/* Adds that key NAME of BLOCK is VALUE (NULL: missing), and what is allowed. */
static void refuse_key(const struct block *block, const char *name,
                       const json_t *value, const char *allowed) {
    char path[160];
    snprintf(path, sizeof path, "%s%s", block->name, name);
    if (value)
        diagnostics_value(block->problems, path, value, allowed);
    else
        diagnostics_add(block->problems, path, "missing; allowed: %s", allowed);
}

static bool read_type(struct azureml_distribution *distribution,
                      const struct block *block) {
    const json_t *type = azureml_find_key(block->keys, "type");
    const char *text = json_string_value(type);
    for (size_t t = 0; text && t < sizeof type_names / sizeof *type_names; t++)
        if (!strcasecmp(text, type_names[t])) {
            distribution->type = (enum azureml_type)t;
            return true;
        }
    refuse_key(block, "type", type, "\"tensorflow\", \"pytorch\" or \"mpi\"");
    return false;
}

/* Reads key NAME, a whole number of at least MIN. If it is null or missing,
 * *VALUE stays. */
static void read_count(const struct block *block, const char *name,
                       uint32_t min, uint32_t *value) {
    const json_t *found = azureml_find_key(block->keys, name);
    json_int_t number = json_integer_value(found);
    char allowed[64];
    if (!found || json_is_null(found))
        return;
    if (json_is_integer(found) && number >= min &&
        number <= AZUREML_MAX_PROCESSES) {
        *value = (uint32_t)number;
        return;
    }
    snprintf(allowed, sizeof allowed, "a whole number from %u to %d", min,
             AZUREML_MAX_PROCESSES);
    refuse_key(block, name, found, allowed);
}

/* The keys of each type, those of SDK v1 last. */
static const char *const block_keys[][6] = {
    [AZUREML_TENSORFLOW] = {"type", "worker_count", "parameter_server_count"},
    [AZUREML_PYTORCH] = {"type", "process_count_per_instance", "process_count",
                         "node_count", "communication_backend"},
    [AZUREML_MPI] = {"type", "process_count_per_instance",
                     "process_count_per_node", "node_count"},
};

static void check_keys(const struct azureml_distribution *distribution,
                       const struct block *block) {
    const char *const *names = block_keys[distribution->type], *key;
    json_t *value;
    json_object_foreach((json_t *)block->keys, key, value) {
        size_t n = 0, used = 0;
        char known[160] = "", path[160];
        while (names[n] && !keys_match(key, names[n])) {
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s",
                                     n ? ", " : "", names[n]);
            n++;
        }
        snprintf(path, sizeof path, "%s%s", block->name, key);
        bool instances = keys_match(key, "instance_count");
        if (!names[n])
            diagnostics_add(
                block->problems, path,
                "unknown key; allowed with type %s: %s%s",
                type_names[distribution->type], known,
                instances ? "; nearest: resources.instance_count, or the flag "
                            "--instances"
                          : "");
    }
}

/* What a key of a job holds. */
enum job_value {
    TEXT,
    OBJECT,
    TEXT_OR_OBJECT,
    TEXT_OR_LIST,
    LIST,
    NUMBER,
    ANY, /* read_count checks it */
};

/* https://azuremlschemas.azureedge.net/latest/commandJob.schema.json: the keys
 * that a user writes, of the job and of two of its objects. */
static const struct job_key {
    const char *object, *name;
    enum job_value value;
} job_keys[] = {
    {"", "$schema", TEXT},
    {"", "type", TEXT},
    {"", "name", TEXT},
    {"", "display_name", TEXT},
    {"", "experiment_name", TEXT},
    {"", "description", TEXT},
    {"", "tags", OBJECT},
    {"", "properties", OBJECT},
    {"", "command", TEXT},
    {"", "code", TEXT},
    {"", "environment", TEXT_OR_OBJECT},
    {"", "environment_variables", OBJECT},
    {"", "distribution", OBJECT},
    {"", "compute", TEXT},
    {"", "resources", OBJECT},
    {"", "limits", OBJECT},
    {"", "inputs", OBJECT},
    {"", "outputs", OBJECT},
    {"", "identity", OBJECT},
    {"", "services", OBJECT},
    {"", "queue_settings", OBJECT},
    {"", "parent_job_name", TEXT},
    {"resources.", "instance_count", ANY},
    {"resources.", "max_instance_count", NUMBER},
    {"resources.", "instance_type", TEXT},
    {"resources.", "properties", OBJECT},
    {"resources.", "locations", LIST},
    {"resources.", "shm_size", TEXT},
    {"resources.", "docker_args", TEXT_OR_LIST},
    {"limits.", "timeout", NUMBER},
};

static bool value_fits(const json_t *value, enum job_value kind) {
    bool text = json_is_string(value);
    switch (kind) {
    case TEXT:
        return text;
    case OBJECT:
        return json_is_object(value);
    case TEXT_OR_OBJECT:
        return text || json_is_object(value);
    case TEXT_OR_LIST:
        return text || json_is_array(value);
    case LIST:
        return json_is_array(value);
    case NUMBER:
        return json_is_integer(value) && json_integer_value(value) > 0;
    case ANY:
        break;
    }
    return true;
}

static void check_job_key(const struct block *block, const char *key,
                          const json_t *value) {
    static const char *const allowed[] = {[TEXT] = "a text",
                                          [OBJECT] = "keys with values",
                                          [TEXT_OR_OBJECT] =
                                              "a text, or keys with values",
                                          [TEXT_OR_LIST] = "a text or a list",
                                          [LIST] = "a list",
                                          [NUMBER] = "a whole number from 1",
                                          [ANY] = ""};
    const struct job_key *nearest = NULL;
    unsigned least = diagnostics_nearest_limit(key) + 1;
    char path[160], hint[96] = "";
    for (size_t k = 0; k < sizeof job_keys / sizeof *job_keys; k++) {
        const struct job_key *known = &job_keys[k];
        if (strcmp(known->object, block->name)) {
            if (keys_match(key, known->name)) /* of another object */
                nearest = known;
            continue;
        }
        if (keys_match(key, known->name)) {
            if (!json_is_null(value) && !value_fits(value, known->value))
                refuse_key(block, key, value, allowed[known->value]);
            return;
        }
        unsigned distance = diagnostics_nearest_distance(key, known->name);
        if (distance < least) {
            least = distance;
            nearest = known;
        }
    }
    snprintf(path, sizeof path, "%s%s", block->name, key);
    if (nearest)
        snprintf(hint, sizeof hint, "; nearest: %s%s", nearest->object,
                 nearest->name);
    diagnostics_add(block->problems, path, "unknown key of a command job%s",
                    hint);
}

static void check_job_object(const json_t *object, const char *name,
                             struct diagnostics *problems) {
    struct block block = {object, name, 2, problems};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
        check_job_key(&block, key, value);
}

/* A job of CLI v2, not a block alone nor a run configuration of SDK v1. */
static bool is_job(const json_t *root) {
    const char *type = json_string_value(azureml_find_key(root, "type"));
    return !azureml_find_key(root, "communicator") &&
           (azureml_find_key(root, "$schema") ||
            azureml_find_key(root, "command") ||
            (type && !strcasecmp(type, "command")));
}

static void check_job(const json_t *root, struct diagnostics *problems) {
    struct block block = {root, "", 2, problems};
    const json_t *type = azureml_find_key(root, "type");
    const char *text = json_string_value(type);
    check_job_object(root, "", problems);
    check_job_object(azureml_find_key(root, "resources"), "resources.",
                     problems);
    check_job_object(azureml_find_key(root, "limits"), "limits.", problems);
    if (text && strcasecmp(text, "command"))
        refuse_key(&block, "type", type, "\"command\"");
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
static void read_total_count(struct azureml_distribution *distribution,
                             const struct block *block) {
    uint32_t total = 0;
    char allowed[64];
    read_count(block, "process_count", 1, &total);
    if (total % distribution->instances) {
        snprintf(allowed, sizeof allowed, "a multiple of the nodes, %u",
                 distribution->instances);
        refuse_key(block, "process_count",
                   azureml_find_key(block->keys, "process_count"), allowed);
    } else if (total)
        distribution->per_instance = total / distribution->instances;
}

static void read_counts_of(struct azureml_distribution *distribution,
                           const struct block *block) {
    struct azureml_distribution *d = distribution;
    read_count(block, "worker_count", 1, &d->workers);
    read_count(block, "parameter_server_count", 0, &d->ps);
    read_count(block, "process_count_per_instance", 1, &d->per_instance);
    read_count(block, "process_count_per_node", 1, &d->per_instance);
    read_total_count(d, block);
}

/* All problems of a file or block; STATUS_OK if there are none. */
static enum status finish_reading(const struct diagnostics *problems,
                                  struct failure *why) {
    enum status status = diagnostics_status(problems, why);
    if (status && why)
        why->code = FAILURE_CLUSTER_INVALID;
    return status;
}

static enum status azureml_read_block(struct azureml_distribution *distribution,
                                      const struct block *block,
                                      const char *instances, const char *num_ps,
                                      struct failure *why) {
    if (read_type(distribution, block))
        check_keys(distribution, block);
    read_count(block, "node_count", 1, &distribution->instances);
    enum status status =
        read_flag("--instances", instances, 1, &distribution->instances, why);
    if (!status)
        status = read_flag("--num-ps", num_ps, 0, &distribution->num_ps, why);
    distribution->workers = block->version == 1 ? 1 : distribution->instances;
    distribution->ps = block->version == 1;
    read_counts_of(distribution, block);
    if (!status)
        status = finish_reading(block->problems, why);
    if (!status && distribution->type != AZUREML_TENSORFLOW)
        distribution->workers = distribution->ps = 0;
    return status ? status : check_sizes(distribution, num_ps, why);
}

/* The block of ROOT, a run configuration of SDK v1, by its communicator. The
 * caller decrefs *KEYS. */
static enum status find_v1_block(const json_t *root, const char *path,
                                 struct block *found, json_t **keys,
                                 struct failure *why) {
    static const char *const communicators[][3] = {
        {"ParameterServer", "tensorflow", "tensorflow."},
        {"OpenMpi", "mpi", "mpi."},
        {"IntelMpi", "mpi", "mpi."},
        {"Mpi", "mpi", "mpi."},
        {"Nccl", "pytorch", "pytorch."},
        {"Gloo", "pytorch", "pytorch."}};
    const json_t *communicator = azureml_find_key(root, "communicator");
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
    const json_t *block = azureml_find_key(root, type);
    const json_t *nodes = azureml_find_key(root, "node_count");
    *keys = json_is_object(block) ? json_copy((json_t *)block) : json_object();
    json_object_set_new(*keys, "type", json_string(type));
    if (nodes && strcmp(type, "tensorflow") &&
        !azureml_find_key(*keys, "node_count"))
        json_object_set(*keys, "node_count", (json_t *)nodes);
    found->keys = *keys;
    found->name = communicators[c][2];
    found->version = 1;
    return STATUS_OK;
}

/* The class of Azure's SDKs that TEXT constructs, or its type in a block. */
struct constructor {
    const char *class, *type;
    bool v1; /* has the defaults of SDK v1 */
};

static const struct constructor constructors[] = {
    {"TensorflowConfiguration(", "tensorflow", true},
    {"PyTorchConfiguration(", "pytorch", true},
    {"MpiConfiguration(", "mpi", true},
    {"TensorFlowDistribution(", "tensorflow", false},
    {"PyTorchDistribution(", "pytorch", false},
    {"MpiDistribution(", "mpi", false},
};

static const struct constructor *find_constructor(const char *text) {
    size_t count = sizeof constructors / sizeof *constructors;
    for (size_t c = 0; c < count; c++) {
        const char *class = constructors[c].class;
        if (!strncasecmp(text, class, strlen(class)))
            return &constructors[c];
    }
    return NULL;
}

/* Writes a value of Python as JSON. */
static void write_python_value(FILE *out, const char *value) {
    bool quoted = strchr("'\"", *value);
    if (!strcmp(value, "None"))
        fputs("null", out);
    else if (quoted)
        fprintf(out, "\"%.*s\"", (int)strcspn(value + 1, "'\""), value + 1);
    else
        fputs(value, out);
}

/* Writes the arguments of TEXT, up to its parenthesis, as further pairs of an
 * object; dots stand for those without a name. Returns whether one is NAME. */
static bool write_arguments(FILE *out, const char *text, const char *name) {
    char key[64], value[64];
    bool found = false;
    int length;
    while (sscanf(text, " %63[A-Za-z_] = %63[^,) \n] %n", key, value,
                  &length) == 2) {
        fprintf(out, ", \"%s\": ", key);
        write_python_value(out, value);
        found |= !strcmp(key, name);
        text += length;
        text += *text == ',';
    }
    if (text[strspn(text, " \n")] != ')')
        fputs(", ...", out);
    return found;
}

/* Python's constructors are not read: says what to write in place of TEXT. */
static enum status refuse_constructor(const struct constructor *from,
                                      const char *text, struct failure *why) {
    char block[512] = "";
    FILE *out = fmemopen(block, sizeof block, "w");
    if (!out)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory");
    fprintf(out, "{\"type\": \"%s\"", from->type);
    bool has_ps = write_arguments(out, text + strlen(from->class),
                                  "parameter_server_count");
    if (!has_ps && from->v1 && !strcmp(from->type, "tensorflow"))
        fputs(", \"parameter_server_count\": 1", out);
    fputs("}", out);
    fclose(out);
    return status_fail(why, FAILURE_CLUSTER_INVALID,
                       "--distribution is %s: a constructor of Python is not "
                       "read; write it as JSON: --distribution '%s'",
                       diagnostics_quote_text(text).text, block);
}

static enum status azureml_read_file(struct azureml_distribution *distribution,
                                     const char *path, const char *instances,
                                     const char *num_ps, struct failure *why) {
    json_t *root, *v1 = NULL;
    struct diagnostics problems = {.where = path};
    const struct constructor *constructor = find_constructor(path);
    if (constructor)
        return refuse_constructor(constructor, path, why);
    enum status status = yaml_json_load(&root, path, why);
    if (status)
        return status;
    struct block block = {azureml_find_key(root, "distribution"),
                          "distribution.", 2, &problems};
    struct block resources = {azureml_find_key(root, "resources"), "resources.",
                              2, &problems};
    if (is_job(root))
        check_job(root, &problems);
    else if (!block.keys && azureml_find_key(root, "type")) {
        block.keys = root; /* the block alone */
        block.name = "";
    }
    read_count(&resources, "instance_count", 1, &distribution->instances);
    if (!json_is_object(block.keys))
        status = finish_reading(&problems, why);
    if (!status && !json_is_object(block.keys))
        status = find_v1_block(root, path, &block, &v1, why);
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
    if (!azureml_is_block(text))
        return azureml_read_file(distribution, text, instances, num_ps, why);
    struct diagnostics problems = {.where = "--distribution"};
    struct block block = {NULL, "", 2, &problems};
    enum status status =
        strict_json_object(&root, text, problems.where, &duplicate, why);
    /* Azure's pages print blocks with comments and trailing commas. */
    if (status &&
        yaml_json_parse(&root, text, strlen(text), problems.where, NULL))
        return status;
    block.keys = root;
    status = azureml_read_block(distribution, &block, instances, num_ps, why);
    json_decref(root);
    return status;
}

bool azureml_is_block(const char *text) {
    return strchr("{['\"", text[strspn(text, " \t\r\n")]);
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
