/* SPDX-License-Identifier: Apache-2.0 */
/* A job is built in these steps. The tree is the job file, completed by
 * DeepSpeed's configuration (two different values of one key are a problem) and
 * overridden by --set. DeepSpeed's keys are translated. Each key of the schema
 * is read into its field. Unknown and contradictory keys are problems, and all
 * problems are reported together. `text` is the canonical form of the result;
 * every other process reads the same struct from it, so the chief's defaults,
 * flags and files apply everywhere. */
#include "proto/job/job.h"

#include "core/base/input_file.h"
#include "core/base/yaml_json.h"
#include "proto/job/deepspeed.h"
#include "proto/job/job_rules.h"
#include "proto/job/job_schema.h"
#include "proto/job/job_tree.h"
#include "proto/job/job_value.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum status check_is_object(json_t **out, json_t *tree,
                                   const json_error_t *error, const char *where,
                                   struct failure *why) {
    if (json_is_object(tree)) {
        *out = tree;
        return STATUS_OK;
    }
    if (!tree)
        return status_fail(why, FAILURE_JOB_INVALID,
                           "%s: not JSON at line %d, column %d: %s%s", where,
                           error->line, error->column, error->text,
                           strlen(where) > 3 &&
                                   !strcmp(where + strlen(where) - 3, ".py")
                               ? "; a script is started by capstan local -- "
                                 "python SCRIPT, or by its launcher"
                               : "");
    json_decref(tree);
    return status_fail(
        why, FAILURE_JOB_INVALID,
        "%s: found JSON, but no object; allowed: {\"key\": value, ...}", where);
}

/* What jansson refuses may have comments and trailing commas, which YAML has.
 * NULL, with ERROR jansson's, if it is neither. */
static json_t *parse_json_or_yaml(const char *text, size_t length,
                                  json_error_t *error) {
    json_t *tree = json_loadb(text, length, JSON_REJECT_DUPLICATES, error);
    if (!tree && yaml_json_parse(&tree, text, length, "", NULL))
        return NULL;
    return tree;
}

/* Reads an object from the file at PATH: JSON, or what yaml_json_parse takes,
 * such as JSON with # comments and trailing commas. If the file cannot be read
 * or is neither: STATUS_CONFIG, with line and column as JSON if known. */
static enum status load_tree(json_t **out, const char *path,
                             struct failure *why) {
    int descriptor;
    enum status status = input_file_open(&descriptor, path, "the job",
                                         FAILURE_JOB_UNREADABLE, why);
    if (status)
        return status;
    FILE *file = fdopen(descriptor, "r");
    if (!file) {
        int problem = errno;
        close(descriptor);
        return status_errno(why, FAILURE_JOB_UNREADABLE, problem,
                            "%s: cannot read", path);
    }
    json_error_t error;
    char *text = NULL;
    size_t size = 0;
    ssize_t length = getdelim(&text, &size, '\0', file);
    int failed = ferror(file) ? errno : 0;
    fclose(file);
    if (failed) {
        status = status_errno(why, FAILURE_JOB_UNREADABLE, failed,
                              "%s: cannot read", path);
    } else {
        json_t *tree = parse_json_or_yaml(
            text ? text : "", length > 0 ? (size_t)length : 0, &error);
        status = check_is_object(out, tree, &error, path, why);
    }
    free(text);
    return status;
}

/* The same from TEXT, which is JSON; WHERE is its name in messages. */
static enum status parse_tree(json_t **out, const char *text, const char *where,
                              struct failure *why) {
    json_error_t error;
    json_t *tree = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    return check_is_object(out, tree, &error, where, why);
}

static json_t *override_value(const char *text) {
    json_t *value =
        json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    return value ? value : json_string(text);
}

/* Applies "key.path=value": a JSON value, else a string, put as by
 * job_tree_put. A number in the path is the index of an array element, from 0;
 * the array's length appends. */
static void override_key(json_t *tree, const char *text,
                         struct diagnostics *diagnostics) {
    const char *equals = strchr(text, '=');
    size_t length = equals ? (size_t)(equals - text) : 0;
    char path[4 * JOB_TREE_PATH];
    snprintf(path, sizeof path, "%.*s", (int)length, text);
    json_t *value = equals ? override_value(equals + 1) : NULL;
    if (length >= sizeof path || !job_tree_put(tree, path, value))
        diagnostics_add(diagnostics, "--set",
                        "found \"%.80s\"; allowed: key.path=value, where the "
                        "path leads through objects, and through arrays by the "
                        "number of an element",
                        text);
    json_decref(value);
}

/* The other tree's name in messages, and the overrides "key.path=value" that
 * are applied after the merge. */
struct merging {
    const char *other_name;
    const char *const *overrides;
    unsigned num_overrides;
};

/* True if an override replaces the value at PATH or an object that contains
 * it. */
static bool is_overridden(const struct merging *merging, const char *path) {
    for (unsigned i = 0; i < merging->num_overrides; i++) {
        size_t length = strcspn(merging->overrides[i], "=");
        if (!strncmp(path, merging->overrides[i], length) &&
            (!path[length] || path[length] == '.'))
            return true;
    }
    return false;
}

static bool holds_auto(const json_t *value) {
    const char *text = json_string_value(value);
    return text && !strcmp(text, "auto");
}

/* Adds to TREE, at PATH, the keys of OTHER that TREE lacks (keeps references to
 * its values); any value replaces "auto". A key with two different values is a
 * problem that names the other tree, unless an override sets it. */
static void merge(json_t *tree, json_t *other, const char *path,
                  const struct merging *merging,
                  struct diagnostics *diagnostics) {
    const char *key;
    json_t *theirs;
    json_object_foreach(other, key, theirs) {
        char below[JOB_TREE_PATH];
        snprintf(below, sizeof below, "%s%s%s", path, *path ? "." : "", key);
        json_t *ours = json_object_get(tree, key);
        bool same = json_is_null(theirs) || holds_auto(theirs) ||
                    json_equal(ours, theirs);
        if (!ours || json_is_null(ours) ||
            (holds_auto(ours) && !json_is_null(theirs)))
            json_object_set(tree, key, theirs);
        else if (json_is_object(ours) && json_is_object(theirs))
            merge(ours, theirs, below, merging, diagnostics);
        else if (!same && !is_overridden(merging, below))
            diagnostics_add(
                diagnostics, below,
                "the job and %s have different values; remove one of them, or "
                "set the key with --set",
                merging->other_name);
    }
}

/* Reads the default of KEY, or DeepSpeed's or TensorFlow's if it applies and
 * differs. */
static void read_default(const struct job_key *key, bool deepspeed,
                         const struct job_reader *reader) {
    const char *text = key->default_value;
    if (deepspeed && key->deepspeed)
        text = key->deepspeed;
    else if (reader->job->tf_defaults && key->tf)
        text = key->tf;
    json_t *value = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    bool read = value && job_value_read(key, value, reader);
    (void)read; /* a test checks that each default is within its bounds */
    json_decref(value);
}

/* Parameters of an unknown type, that of PATH, cannot be checked. */
static void drop_params(json_t *tree, const char *path) {
    char params[JOB_TREE_PATH];
    const char *end = strstr(path, ".type");
    if (!end || strcmp(end, ".type") || !strcmp(path, "model.type"))
        return;
    snprintf(params, sizeof params, "%.*s.params", (int)(end - path), path);
    job_tree_remove(tree, params);
}

/* KEY has a value that is none of its words. */
static void note_unknown(const struct job_key *key, struct job *job) {
    job->model_unknown |= !strcmp(key->path, "model.type");
    job->format_unknown |= !strcmp(key->path, "data.format");
}

static void read_key(const struct job_key *key, json_t *tree, bool deepspeed,
                     const struct job_reader *reader,
                     struct diagnostics *diagnostics) {
    const json_t *value = job_tree_get(tree, key->path);
    if (value && job_value_read(key, value, reader))
        return;
    if (!value && !key->required) {
        read_default(key, deepspeed, reader);
        return;
    }
    char allowed[512];
    job_value_allowed(key, allowed, sizeof allowed);
    if (value) {
        diagnostics_value(diagnostics, key->path, value, allowed);
        note_unknown(key, reader->job);
    } else if (!job_tree_blocked(tree, key->path))
        diagnostics_add(diagnostics, key->path, "missing; allowed: %s",
                        allowed);
    drop_params(tree, key->path);
}

/* The struct of the model's keys; the model's type is read. */
static bool allocate_settings(struct job *job) {
    const struct job_model_schema *schema =
        job->models->of_type[job->model.type];
    if (!job->model.settings)
        job->model.settings = calloc(1, schema->bytes);
    return job->model.settings;
}

static void report_no_optimizer(const char *group,
                                struct diagnostics *diagnostics) {
    char path[JOB_TREE_PATH];
    snprintf(path, sizeof path, "optimizers.%s", group);
    diagnostics_add(diagnostics, path,
                    "missing, and there is no \"optimizer\" for the group");
}

/* Which groups of the model have an optimizer; the model's type is read. Where
 * all have one, the job need not have its own, and a rate alone, as
 * --learning_rate gives one, is of none. */
static void find_groups(json_t *tree, struct job *job,
                        struct diagnostics *diagnostics) {
    json_t *first = NULL, *all = job_tree_get(tree, "optimizers");
    const char *first_name = NULL, *lacking = NULL;
    for (int g = JOB_GROUP_WIDE; g < JOB_GROUPS; g++) {
        const char *name = job_schema_group(g, job->model.type);
        json_t *own = name ? json_object_get(all, name) : NULL;
        job->groups[g].given = own && !json_is_null(own);
        if (name && !job->groups[g].given)
            lacking = name;
        if (job->groups[g].given && !first) {
            first = own;
            first_name = name;
        }
    }
    json_t *rate = job_tree_get(tree, "optimizer.params.lr");
    if (!first || job_tree_get(tree, "optimizer.type"))
        return;
    if (!job_tree_get(tree, "optimizer")) {
        if (lacking)
            report_no_optimizer(lacking, diagnostics);
        json_object_set(tree, "optimizer", first);
        job->optimizer_is_groups = true;
    } else if (!lacking && rate && !json_is_null(rate)) {
        diagnostics_add(diagnostics, "optimizer.params.lr",
                        "has no effect, as each group has an optimizer of its "
                        "own; set optimizers.%s.params.lr (--learning_rate "
                        "sets optimizer.params.lr)",
                        first_name);
        json_object_set(tree, "optimizer", first);
        job->optimizer_is_groups = true;
    }
}

/* LIBSVM's models of its pairs have no bias, so none is the default there. */
static void fill_bias(json_t *tree, const struct job *job) {
    const char *format = json_string_value(job_tree_get(tree, "data.format"));
    if (job->model.type != JOB_LINEAR || !format ||
        strcasecmp(format, "libsvm") || job_tree_get(tree, "features") ||
        job_tree_get(tree, "model.bias"))
        return;
    bool done = job_tree_put(tree, "model.bias", json_false());
    (void)done; /* a conflict is reported later as a problem */
}

/* True if KEY may apply, because a type that decides it is no known word. */
static bool may_apply(const struct job_key *key, const struct job *job) {
    return (job->model_unknown && (key->of_model || key->group)) ||
           (job->format_unknown &&
            (key->formats || key->kind == JOB_KIND_FILES));
}

/* False for the keys of a group's optimizer that the job does not have. */
static bool has_job_key(const struct job_key *key, const struct job *job) {
    return job_schema_applies(key, job) && !may_apply(key, job) &&
           (!key->group || job->groups[key->group].given);
}

static void read_keys(json_t *tree, bool deepspeed,
                      const struct job_reader *reader,
                      struct diagnostics *diagnostics) {
    struct job *job = reader->job;
    struct diagnostics again = {0}; /* what a group's optimizer has shown */
    const struct job_key *key;
    for (size_t i = 0; (key = job_schema_row(job->models, i)); i++) {
        if (i == JOB_SCHEMA_FIRST) {
            find_groups(tree, job, diagnostics);
            fill_bias(tree, job);
        }
        if (!has_job_key(key, job))
            continue;
        job->is_cut |= key->of_model && !allocate_settings(job);
        if (job->is_cut)
            return;
        bool shown = job->optimizer_is_groups &&
                     !strncmp(key->path, "optimizer.", strlen("optimizer."));
        read_key(key, tree, deepspeed, reader, shown ? &again : diagnostics);
    }
}

/* Each key that is given or has a default, in the order of the schema; what was
 * not read as it is in GIVEN. NULL: no memory. */
static json_t *job_write(const struct job *job, const json_t *given) {
    const struct job_key *key;
    json_t *tree = json_object(), *model = json_object_get(given, "model");
    bool whole = true;
    for (size_t i = 0; whole && (key = job_schema_row(job->models, i)); i++) {
        if (!has_job_key(key, job))
            continue;
        json_t *value = job_value_write(key, job);
        whole = !value || job_tree_put(tree, key->path, value);
        json_decref(value);
    }
    if (!job->models && model)
        whole = !json_object_set(tree, "model", model) && whole;
    if (job->compare.on && !json_object_get(tree, "compare"))
        whole = !json_object_set_new(tree, "compare", json_object()) && whole;
    if (!whole)
        json_decref(tree);
    return whole ? tree : NULL;
}

enum { LIST = 512 }; /* bytes of a list of keys */

/* A key that nothing reads is a misspelling; without an error the run would
 * train with its default. The nearest key is searched among its siblings, in
 * the job file's and in DeepSpeed's table, then everywhere by its last part,
 * because keys are often put into the wrong object. */
struct check {
    const struct job *job;
    struct diagnostics *diagnostics;
    size_t num_keys; /* of the job and its models */
    const struct deepspeed_key *foreign;
    size_t num_foreign;
};

static const struct job_key *known_key(const struct check *check, size_t i) {
    return job_schema_row(check->job->models, i);
}

/* Known path number I of both tables; NULL after the last. */
static const char *known_path(const struct check *check, size_t i) {
    if (i < check->num_keys)
        return known_key(check, i)->path;
    i -= check->num_keys;
    return i < check->num_foreign ? check->foreign[i].path : NULL;
}

static bool is_object_path(const struct check *check, const char *path) {
    const char *known;
    for (size_t i = 0; (known = known_path(check, i)); i++)
        if (job_tree_below(known, path))
            return true;
    return false;
}

/* Copies the first part of PATH. */
static void first_part(char *part, size_t size, const char *path) {
    snprintf(part, size, "%.*s", (int)strcspn(path, "."), path);
}

/* Lists the job file's keys that apply in the object at PREFIX. */
static void list_keys(const struct check *check, const char *prefix,
                      char *list) {
    char part[JOB_TREE_PATH], last[JOB_TREE_PATH] = "";
    size_t used = 0;
    *list = 0;
    for (size_t i = 0; i < check->num_keys && used < LIST; i++) {
        const struct job_key *key = known_key(check, i);
        const char *rest = job_tree_below(key->path, prefix);
        if (!rest || !job_schema_applies(key, check->job))
            continue;
        first_part(part, sizeof part, rest);
        if (strcmp(part, last))
            used += (size_t)snprintf(list + used, LIST - used, "%s%s",
                                     used ? ", " : "", part);
        strcpy(last, part);
    }
}

/* True if WHOLE has words before PART, which is long enough: "num_epochs". */
static bool ends_with(const char *whole, const char *part) {
    size_t length = strlen(part), all = strlen(whole);
    const char *end = whole + all - length;
    return length >= 4 && length < all && end[-1] == '_' && !strcmp(part, end);
}

/* True if WORD is a long enough prefix of OTHER, or one has words before the
 * other. */
static bool is_affix(const char *word, const char *other) {
    size_t length = strlen(word);
    bool prefix =
        length >= 4 && length < strlen(other) && !strncmp(word, other, length);
    return prefix || ends_with(other, word) || ends_with(word, other);
}

/* The key in the object at PREFIX most like WORD, or NULL. */
static const char *nearest_sibling(const struct check *check,
                                   const char *prefix, const char *word,
                                   char *part) {
    unsigned best = diagnostics_nearest_limit(word) + 1;
    char other[JOB_TREE_PATH];
    const char *known;
    *part = 0;
    for (size_t i = 0; (known = known_path(check, i)); i++) {
        const char *rest = job_tree_below(known, prefix);
        bool counts = i >= check->num_keys ||
                      job_schema_applies(known_key(check, i), check->job);
        if (!rest || *rest == '*' || !counts)
            continue;
        first_part(other, sizeof other, rest);
        unsigned distance = is_affix(word, other)
                                ? 1
                                : diagnostics_nearest_distance(word, other);
        if (distance < best) {
            best = distance;
            strcpy(part, other);
        }
    }
    return *part ? part : NULL;
}

/* A known path of any object that ends in WORD, or NULL. */
static const char *find_last_part(const struct check *check, const char *word) {
    const char *found = NULL;
    if (!strcmp(word, "learning_rate")) /* of TensorFlow */
        word = "lr";
    for (size_t i = 0; i < check->num_keys; i++) {
        const char *path = known_key(check, i)->path;
        const char *dot = strrchr(path, '.');
        if (dot && !strcmp(dot + 1, word))
            return path;
        if (!found && ends_with(dot ? dot + 1 : path, word))
            found = path;
    }
    return found;
}

static void report_unknown(const struct check *check, const char *prefix,
                           const char *path, const char *word) {
    char part[JOB_TREE_PATH], list[LIST];
    const char *dot = *prefix ? "." : "";
    const char *other = find_last_part(check, word);
    if (strchr(word, '.'))
        diagnostics_add(
            check->diagnostics, path,
            "unknown key; a name has no dot: write {\"%.*s\": {...}}",
            (int)strcspn(word, "."), word);
    else if (nearest_sibling(check, prefix, word, part))
        diagnostics_add(check->diagnostics, path,
                        "unknown key; nearest: %s%s%s", prefix, dot, part);
    else if (other)
        diagnostics_add(check->diagnostics, path, "unknown key; nearest: %s",
                        other);
    else {
        list_keys(check, prefix, list);
        diagnostics_add(check->diagnostics, path, "unknown key; known%s%s: %s",
                        *prefix ? " in " : "", prefix, list);
    }
}

static const char *type_word(const struct job *job, const char *path,
                             unsigned index) {
    return job_schema_find(job->models, path)->words[index];
}

/* The key is known, but not for this type of model, data,
 * optimizer or schedule. */
static void report_misplaced(const struct check *check, const char *prefix,
                             const char *path, const struct job_key *key) {
    char list[LIST];
    list_keys(check, prefix, list);
    const struct job *job = check->job;
    const char *type =
        job_schema_group(key->group, job->model.type)
            ? type_word(job, "optimizer.type",
                        job->groups[key->group].optimizer.type)
        : key->formats && job->model.type != JOB_EXTERNAL
            ? type_word(job, "data.format", job->data.format)
        : key->models ? type_word(job, "model.type", job->model.type)
        : key->optimizers
            ? type_word(job, "optimizer.type", job->optimizer.type)
            : type_word(job, "scheduler.type", job->schedule.type);
    diagnostics_add(check->diagnostics, path, "not a key of %s; allowed: %s",
                    type, *list ? list : "none");
}

/* True for a key of the schema; reports it if it does not apply here and has a
 * VALUE. */
static bool check_leaf(const struct check *check, const char *prefix,
                       const char *path, const json_t *value) {
    const struct job_key *found = NULL;
    for (size_t i = 0; i < check->num_keys; i++) {
        const struct job_key *key = known_key(check, i);
        if (strcmp(key->path, path))
            continue;
        if (job_schema_applies(key, check->job))
            return true;
        found = key;
    }
    if (found && !json_is_null(value) && !may_apply(found, check->job))
        report_misplaced(check, prefix, path, found);
    return found != NULL;
}

/* True for the optimizer at PATH of a group that the model does not have;
 * reports it if it has a VALUE. */
static bool check_group(const struct check *check, const char *prefix,
                        const char *path, const json_t *value) {
    for (size_t i = 0; i < check->num_keys; i++) {
        const struct job_key *key = known_key(check, i);
        if (!key->group || !job_tree_below(key->path, path) ||
            job_schema_group(key->group, check->job->model.type) ||
            !strcmp(path, "optimizers"))
            continue;
        if (!check->job->model_unknown && !json_is_null(value))
            report_misplaced(check, prefix, path, key);
        return true;
    }
    return false;
}

static void check_object(const struct check *check, const json_t *object,
                         const char *prefix) {
    const char *word;
    json_t *value;
    json_object_foreach((json_t *)object, word, value) {
        char path[JOB_TREE_PATH], list[LIST], allowed[LIST + 32];
        snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "." : "", word);
        if (!check->job->models && !strcmp(prefix, "model")) {
            continue;
        } else if (check->job->optimizer_is_groups &&
                   !strcmp(path, "optimizer")) {
            continue; /* they are checked there */
        } else if (strchr(word, '.')) {
            report_unknown(check, prefix, path, word);
        } else if (check_leaf(check, prefix, path, value) ||
                   check_group(check, prefix, path, value)) {
            continue;
        } else if (!is_object_path(check, path)) {
            report_unknown(check, prefix, path, word);
        } else if (json_is_object(value)) {
            check_object(check, value, path);
        } else if (!json_is_null(value)) {
            list_keys(check, path, list);
            snprintf(allowed, sizeof allowed, "an object%s%s",
                     *list ? " with the keys " : "", list);
            diagnostics_value(check->diagnostics, path, value, allowed);
        }
    }
}

/* Each key of TREE that is not in the schema, or not valid for the types of
 * JOB, is a problem that names the nearest key. */
static void check_known_keys(const json_t *tree, const struct job *job,
                             struct diagnostics *diagnostics) {
    struct check check = {.job = job, .diagnostics = diagnostics};
    while (known_key(&check, check.num_keys))
        check.num_keys++;
    check.foreign = deepspeed_keys(&check.num_foreign);
    check_object(&check, tree, "");
}

/* Builds the job from the merged TREE, which is changed. */
static enum status job_build(struct job **out, json_t *tree,
                             struct job_input *input,
                             struct diagnostics *diagnostics,
                             struct failure *why) {
    struct job *job = calloc(1, sizeof *job);
    if (!job)
        return status_fail(why, FAILURE_NO_MEMORY, "out of memory");
    struct job_reader reader = {.job = job, .folder = input->folder};
    job->models = input->models;
    input->tree = tree;
    deepspeed_translate(tree, input->deepspeed, input->log, diagnostics);
    read_keys(tree, input->deepspeed, &reader, diagnostics);
    if (!job->is_cut) {
        check_known_keys(tree, job, diagnostics);
        job_rules_check(job, input, diagnostics);
    }
    json_t *values = job->is_cut ? NULL : job_write(job, tree);
    if (values)
        job_rules_check_values(job, values, diagnostics);
    enum status status =
        job->is_cut ? STATUS_OK : diagnostics_status(diagnostics, why);
    if (job->is_cut ||
        (!status && !(job->text = json_dumps(values, JSON_COMPACT))))
        status = status_fail(why, FAILURE_NO_MEMORY, "out of memory");
    json_decref(values);
    if (status)
        job_free(&job);
    *out = job;
    return status;
}

/* The folder of the job file, where relative paths start; the caller frees
 * it. */
static enum status find_folder(char **out, const char *path,
                               struct failure *why) {
    char *name = path ? strdup(path) : NULL;
    char *slash = name ? strrchr(name, '/') : NULL;
    if (slash)
        slash[slash == name] = 0;
    *out = realpath(slash ? name : ".", NULL);
    free(name);
    if (!*out)
        return status_errno(why, FAILURE_JOB_UNREADABLE, errno,
                            "%s: no such folder", path ? path : ".");
    json_t *text = json_string(*out);
    json_decref(text);
    if (text)
        return STATUS_OK;
    free(*out);
    return status_fail(why, FAILURE_JOB_UNREADABLE,
                       "%s: its folder's name is not UTF-8; move it", path);
}

static enum status add_deepspeed(json_t *tree, const struct job_source *source,
                                 struct diagnostics *diagnostics,
                                 struct failure *why) {
    const struct merging merging = {
        .other_name = source->deepspeed,
        .overrides = source->overrides,
        .num_overrides = source->num_overrides,
    };
    json_t *other;
    enum status status = load_tree(&other, source->deepspeed, why);
    if (status)
        return status;
    merge(tree, other, "", &merging, diagnostics);
    json_decref(other);
    return STATUS_OK;
}

/* An override of epochs replaces steps and the reverse. An override of a key
 * replaces the same key under DeepSpeed's name. */
static void override(json_t *tree, const char *text,
                     struct diagnostics *diagnostics) {
    char path[JOB_TREE_PATH];
    snprintf(path, sizeof path, "%.*s", (int)strcspn(text, "="), text);
    override_key(tree, text, diagnostics);
    deepspeed_remove_alias(tree, path);
    if (!strncmp(text, "steps=", 6) && job_tree_get(tree, "steps"))
        job_tree_remove(tree, "epochs");
    if (!strncmp(text, "epochs=", 7) && job_tree_get(tree, "epochs"))
        job_tree_remove(tree, "steps");
}

/* A caller that declares its own model need not say so in the job. */
static void fill_external(json_t *tree, struct diagnostics *diagnostics) {
    if (!job_tree_get(tree, "model"))
        override_key(tree, "model.type=external", diagnostics);
    if (!job_tree_get(tree, "optimizer"))
        override_key(tree, "optimizer.type=SGD", diagnostics);
}

/* Merges the job file, DeepSpeed's configuration, then the overrides. */
static enum status merge_sources(json_t **out, const struct job_source *source,
                                 struct diagnostics *diagnostics,
                                 struct failure *why) {
    json_t *tree = NULL;
    enum status status = STATUS_OK;
    if (source->path)
        status = load_tree(&tree, source->path, why);
    else if (source->text)
        status = parse_tree(&tree, source->text, "the checkpoint's job", why);
    else
        tree = json_object();
    if (!status && source->deepspeed)
        status = add_deepspeed(tree, source, diagnostics, why);
    if (status) {
        json_decref(tree);
        return status;
    }
    if (source->external)
        fill_external(tree, diagnostics);
    for (unsigned i = 0; i < source->num_overrides; i++)
        override(tree, source->overrides[i], diagnostics);
    *out = tree;
    return STATUS_OK;
}

/* "job.json + --deepspeed_config ds.json + --set"; a caller's overrides are
 * "settings". */
static void describe_source(char *text, size_t size,
                            const struct job_source *source) {
    const char *overrides = source->external ? " + settings" : " + --set";
    if (source->external && !source->path) {
        snprintf(text, size, "settings");
        return;
    }
    snprintf(text, size, "%.200s%s%.200s%s",
             source->path ? source->path : "job",
             source->deepspeed ? " + --deepspeed_config " : "",
             source->deepspeed ? source->deepspeed : "",
             source->num_overrides ? overrides : "");
}

enum status job_load(struct job **out, const struct job_source *source,
                     const struct log *log, struct failure *why) {
    *out = NULL;
    char where[512], *folder;
    describe_source(where, sizeof where, source);
    struct diagnostics diagnostics = {.where = where};
    json_t *tree;
    enum status status = merge_sources(&tree, source, &diagnostics, why);
    if (status)
        return status;
    status = find_folder(&folder, source->path, why);
    if (!status) {
        struct job_input input = {.models = source->models,
                                  .folder = folder,
                                  .deepspeed = source->deepspeed != NULL,
                                  .log = log};
        status = job_build(out, tree, &input, &diagnostics, why);
        free(folder);
    }
    json_decref(tree);
    return status;
}

bool job_find_secret_file(char **out, const struct job_source *source) {
    struct diagnostics ignored = {.where = NULL};
    struct failure why;
    char *folder = NULL;
    json_t *tree = NULL;
    *out = NULL;
    struct job_source own = *source;
    own.deepspeed = NULL;
    if (merge_sources(&tree, source, &ignored, &why) &&
        merge_sources(&tree, &own, &ignored, &why))
        return true;
    const json_t *value = job_tree_get(tree, "security.secret_file");
    if (json_is_string(value) && !find_folder(&folder, source->path, &why))
        *out = job_value_join(folder, json_string_value(value));
    bool usable = !job_tree_get(tree, "security") || *out;
    free(folder);
    json_decref(tree);
    return usable;
}

enum status job_parse(struct job **out, const char *text,
                      const struct job_models *models, struct failure *why) {
    *out = NULL;
    json_t *tree = NULL;
    struct diagnostics diagnostics = {.where = "job"};
    struct job_input input = {.models = models};
    enum status status = parse_tree(&tree, text, "job", why);
    if (status)
        return status;
    status = job_build(out, tree, &input, &diagnostics, why);
    json_decref(tree);
    return status;
}

void job_free(struct job **job) {
    if (!job || !*job)
        return;
    const struct job_key *key;
    for (size_t i = 0; (key = job_schema_row((*job)->models, i)); i++)
        job_value_free(key, *job);
    free((void *)(*job)->model.settings);
    free((*job)->events_dir);
    free((*job)->text);
    free(*job);
    *job = NULL;
}

const char *job_data_format_name(enum job_data_format format) {
    static const char *const names[] = {
        JOB_DATA_FORMAT_ROWS(JOB_WORD, JOB_WORD)};
    return names[format];
}
