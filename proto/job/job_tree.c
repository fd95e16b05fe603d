/* SPDX-License-Identifier: Apache-2.0 */
/* Paths are walked part by part and copied only if the tree is changed. Missing
 * objects on a path are made. Arrays are entered by index; no other element is
 * made. */
#include "proto/job/job_tree.h"

#include <stdlib.h>
#include <string.h>

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
    char copy[4 * JOB_TREE_PATH], *parts[MAX_DEPTH];
    bool fits = snprintf(copy, sizeof copy, "%s", path) < (int)sizeof copy;
    unsigned count = fits ? job_tree_split(copy, parts) : 0;
    for (unsigned i = 0; i + 1 < count && tree; i++)
        tree = descend(tree, parts[i]);
    return count && tree && value &&
           job_tree_put_member(tree, parts[count - 1], value);
}
