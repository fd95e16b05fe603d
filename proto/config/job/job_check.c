/* SPDX-License-Identifier: Apache-2.0 */
/* A key that nothing reads is a misspelling; without an error the run would
 * train with its default. The nearest key is searched among its siblings, in
 * the job file's and in DeepSpeed's table, then everywhere by its last part,
 * because keys are often put into the wrong object. */
#include "proto/config/job/job_check.h"

#include "proto/config/diagnostics.h"
#include "proto/config/job/deepspeed.h"
#include "proto/config/job/job_schema.h"
#include "proto/config/job/job_tree.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { LIST = 512 }; /* bytes of a list of keys */

struct check {
    const struct job *job;
    struct diagnostics *diagnostics;
    size_t num_keys; /* of the job and its models */
    const struct deepspeed_key *foreign;
    size_t num_foreign;
};

/* The part of PATH below PREFIX ("" for the whole), or NULL. */
static const char *path_below(const char *path, const char *prefix) {
    size_t length = strlen(prefix);
    if (!length)
        return path;
    bool inside = !strncmp(path, prefix, length) && path[length] == '.';
    return inside ? path + length + 1 : NULL;
}

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
        if (path_below(known, path))
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
        const char *rest = path_below(key->path, prefix);
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
        const char *rest = path_below(known, prefix);
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

static const char *type_word(const struct check *check, const char *path,
                             unsigned index) {
    for (size_t i = 0; i < check->num_keys; i++)
        if (!strcmp(known_key(check, i)->path, path))
            return known_key(check, i)->words[index];
    return "?";
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
            ? type_word(check, "optimizer.type",
                        job->groups[key->group].optimizer.type)
        : key->formats && job->model.type != JOB_EXTERNAL
            ? type_word(check, "data.format", job->data.format)
        : key->models ? type_word(check, "model.type", job->model.type)
        : key->optimizers
            ? type_word(check, "optimizer.type", job->optimizer.type)
            : type_word(check, "scheduler.type", job->schedule.type);
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
    if (found && !json_is_null(value) &&
        !job_schema_may_apply(found, check->job))
        report_misplaced(check, prefix, path, found);
    return found != NULL;
}

/* True for the optimizer at PATH of a group that the model does not have;
 * reports it if it has a VALUE. */
static bool check_group(const struct check *check, const char *prefix,
                        const char *path, const json_t *value) {
    for (size_t i = 0; i < check->num_keys; i++) {
        const struct job_key *key = known_key(check, i);
        if (!key->group || !path_below(key->path, path) ||
            job_schema_group(key->group, check->job->model.type) ||
            !strcmp(path, "optimizers"))
            continue;
        if (!check->job->model_unknown && !json_is_null(value))
            report_misplaced(check, prefix, path, key);
        return true;
    }
    return false;
}

static void job_check_check_object(const struct check *check,
                                   const json_t *object, const char *prefix) {
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
            job_check_check_object(check, value, path);
        } else if (!json_is_null(value)) {
            list_keys(check, path, list);
            snprintf(allowed, sizeof allowed, "an object%s%s",
                     *list ? " with the keys " : "", list);
            diagnostics_value(check->diagnostics, path, value, allowed);
        }
    }
}

void job_check_keys(const json_t *tree, const struct job *job,
                    struct diagnostics *diagnostics) {
    struct check check = {.job = job, .diagnostics = diagnostics};
    while (known_key(&check, check.num_keys))
        check.num_keys++;
    check.foreign = deepspeed_keys(&check.num_foreign);
    job_check_check_object(&check, tree, "");
}
