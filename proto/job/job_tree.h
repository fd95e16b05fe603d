/* SPDX-License-Identifier: Apache-2.0 */
/* A JSON tree addressed by dotted paths: job files, overrides and DeepSpeed
 * configurations before they are checked. */
#ifndef CAPSTAN_JOB_TREE_H
#define CAPSTAN_JOB_TREE_H

#include "core/base/diagnostics.h"

#include <jansson.h>

enum { JOB_TREE_PATH = 256 }; /* bytes of the longest path shown */

/* The part of PATH below PREFIX ("" for the whole), or NULL. */
const char *job_tree_below(const char *path, const char *prefix);

/* The value at PATH, a view; NULL if it is missing or null. */
json_t *job_tree_get(const json_t *tree, const char *path);

/* True if a value that is not an object stands where PATH needs one. */
bool job_tree_blocked(const json_t *tree, const char *path);

/* Puts VALUE (keeps a reference) at PATH and makes missing objects. False if
 * the path leads through a value that is not an object. */
bool job_tree_put(json_t *tree, const char *path, json_t *value) MUST_CHECK;

/* Removes the value at PATH; the objects above it stay. */
void job_tree_remove(json_t *tree, const char *path);

/* Applies "key.path=value": a JSON value, else a string, put as by
 * job_tree_put. A number in the path is the index of an array element, from 0;
 * the array's length appends. */
void job_tree_override(json_t *tree, const char *text,
                       struct diagnostics *diagnostics);

/* The other tree's name in messages, and the overrides "key.path=value" that
 * are applied after the merge. */
struct job_tree_merging {
    const char *other_name;
    const char *const *overrides;
    unsigned num_overrides;
};

/* Adds to TREE the keys of OTHER that TREE lacks (keeps references to its
 * values); any value replaces "auto". A key with two different values is a
 * problem that names the other tree, unless an override sets it. */
void job_tree_merge(json_t *tree, json_t *other,
                    const struct job_tree_merging *merging,
                    struct diagnostics *diagnostics);

/* Reads an object from the file at PATH: JSON, or what yaml_json_parse takes,
 * such as JSON with # comments and trailing commas. If the file cannot be read
 * or is neither: STATUS_CONFIG, with line and column as JSON if known. */
enum status job_tree_load(json_t **out, const char *path,
                          struct failure *why) MUST_CHECK;

/* The same from TEXT, which is JSON; WHERE is its name in messages. */
enum status job_tree_parse(json_t **out, const char *text, const char *where,
                           struct failure *why) MUST_CHECK;

#endif
