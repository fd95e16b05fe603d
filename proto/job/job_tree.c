/* SPDX-License-Identifier: Apache-2.0 */
/* Paths are walked part by part and copied only if the tree is changed. Missing
 * objects on a path are made. Arrays are entered by index; no other element is
 * made. */
#include "proto/job/job_tree.h"

#include "core/base/input_file.h"
#include "core/base/yaml_json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_DEPTH = 16 }; /* parts of a path that is set */

/* The member of OBJECT named by the part of PATH before its next dot. */
static json_t *get_member(const json_t *object, const char *path) {
    return json_object_getn(object, path, strcspn(path, "."));
}

static const char *next_part(const char *path) {
    path += strcspn(path, ".");
    return *path ? path + 1 : NULL;
}

const char *job_tree_below(const char *path, const char *prefix) {
    size_t length = strlen(prefix);
    if (!length)
        return path;
    bool inside = !strncmp(path, prefix, length) && path[length] == '.';
    return inside ? path + length + 1 : NULL;
}

json_t *job_tree_get(const json_t *tree, const char *path) {
    json_t *found = NULL;
    for (; path; path = next_part(path))
        tree = found = get_member(tree, path);
    return json_is_null(found) ? NULL : found;
}

bool job_tree_blocked(const json_t *tree, const char *path) {
    for (; path && tree && !json_is_null(tree); path = next_part(path)) {
        if (!json_is_object(tree))
            return true;
        tree = get_member(tree, path);
    }
    return false;
}

void job_tree_remove(json_t *tree, const char *path) {
    for (const char *rest; (rest = next_part(path)); path = rest)
        tree = get_member(tree, path);
    json_object_del(tree, path);
}

/* The index in ARRAY that PART gives. */
static bool array_index(const json_t *array, const char *part, size_t *index) {
    char *end;
    if (*part < '0' || *part > '9')
        return false;
    *index = strtoul(part, &end, 10);
    return !*end && *index <= json_array_size(array);
}

static bool job_tree_put_member(json_t *into, const char *part, json_t *value) {
    size_t index;
    if (json_is_object(into))
        return !json_object_set(into, part, value);
    if (!json_is_array(into) || !array_index(into, part, &index))
        return false;
    return index < json_array_size(into) ? !json_array_set(into, index, value)
                                         : !json_array_append(into, value);
}

/* The value of PART in INTO; a missing one becomes an empty object. */
static json_t *descend(json_t *into, const char *part) {
    size_t index;
    json_t *below = json_object_get(into, part);
    if (json_is_array(into) && array_index(into, part, &index))
        below = json_array_get(into, index);
    if (below && !json_is_null(below))
        return below;
    below = json_object();
    bool done = job_tree_put_member(into, part, below);
    json_decref(below);
    return done ? below : NULL;
}

static json_t *override_value(const char *text) {
    json_t *value =
        json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    return value ? value : json_string(text);
}

/* Splits PATH, which is changed, at its dots; 0 if it is too deep or has an
 * empty part. */
static unsigned job_tree_split(char *path, char *parts[MAX_DEPTH]) {
    unsigned count = 0;
    for (char *part; (part = strsep(&path, "."));) {
        if (count == MAX_DEPTH || !*part)
            return 0;
        parts[count++] = part;
    }
    return count;
}

bool job_tree_put(json_t *tree, const char *path, json_t *value) {
    char *copy = strdup(path), *parts[MAX_DEPTH];
    unsigned count = copy ? job_tree_split(copy, parts) : 0;
    for (unsigned i = 0; i + 1 < count && tree; i++)
        tree = descend(tree, parts[i]);
    bool done = count && tree && value &&
                job_tree_put_member(tree, parts[count - 1], value);
    free(copy);
    return done;
}

void job_tree_override(json_t *tree, const char *text,
                       struct diagnostics *diagnostics) {
    const char *equals = strchr(text, '=');
    char *path = equals ? strndup(text, (size_t)(equals - text)) : NULL;
    json_t *value = equals ? override_value(equals + 1) : NULL;
    if (!path || !job_tree_put(tree, path, value))
        diagnostics_add(diagnostics, "--set",
                        "found \"%.80s\"; allowed: key.path=value, where the "
                        "path leads through objects, and through arrays by the "
                        "number of an element",
                        text);
    json_decref(value);
    free(path);
}

/* True if an override replaces the value at PATH or an object that contains
 * it. */
static bool is_overridden(const struct job_tree_merging *merging,
                          const char *path) {
    for (unsigned i = 0; i < merging->num_overrides; i++) {
        size_t length = strcspn(merging->overrides[i], "=");
        if (!strncmp(path, merging->overrides[i], length) &&
            (!path[length] || path[length] == '.'))
            return true;
    }
    return false;
}

static bool job_tree_is_auto(const json_t *value) {
    const char *text = json_string_value(value);
    return text && !strcmp(text, "auto");
}

static void merge(json_t *tree, json_t *other, const char *path,
                  const struct job_tree_merging *merging,
                  struct diagnostics *diagnostics) {
    const char *key;
    json_t *theirs;
    json_object_foreach(other, key, theirs) {
        char below[JOB_TREE_PATH];
        snprintf(below, sizeof below, "%s%s%s", path, *path ? "." : "", key);
        json_t *ours = json_object_get(tree, key);
        bool same = json_is_null(theirs) || job_tree_is_auto(theirs) ||
                    json_equal(ours, theirs);
        if (!ours || json_is_null(ours) ||
            (job_tree_is_auto(ours) && !json_is_null(theirs)))
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

void job_tree_merge(json_t *tree, json_t *other,
                    const struct job_tree_merging *merging,
                    struct diagnostics *diagnostics) {
    merge(tree, other, "", merging, diagnostics);
}

static enum status job_tree_check_object(json_t **out, json_t *tree,
                                         const json_error_t *error,
                                         const char *where,
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
static json_t *job_tree_read(const char *text, size_t length,
                             json_error_t *error) {
    json_t *tree = json_loadb(text, length, JSON_REJECT_DUPLICATES, error);
    if (!tree && yaml_json_parse(&tree, text, length, "", NULL))
        return NULL;
    return tree;
}

enum status job_tree_load(json_t **out, const char *path, struct failure *why) {
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
        json_t *tree = job_tree_read(text ? text : "",
                                     length > 0 ? (size_t)length : 0, &error);
        status = job_tree_check_object(out, tree, &error, path, why);
    }
    free(text);
    return status;
}

enum status job_tree_parse(json_t **out, const char *text, const char *where,
                           struct failure *why) {
    json_error_t error;
    json_t *tree = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    return job_tree_check_object(out, tree, &error, where, why);
}
