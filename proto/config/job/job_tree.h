/* SPDX-License-Identifier: Apache-2.0 */
/* A tree of JSON addressed by dotted paths, as job files, overrides and
 * DeepSpeed configurations are before they are checked. */
#ifndef CAPSTAN_JOB_TREE_H
#define CAPSTAN_JOB_TREE_H

#include "proto/config/diagnostics.h"

#include <jansson.h>

enum { JOB_TREE_PATH = 256 }; /* bytes of the longest path shown */

/* The value at PATH, a view; NULL when it is missing or null. */
json_t *job_tree_get(const json_t *tree, const char *path);

/* True when a value that is no object stands where PATH needs one. */
bool job_tree_blocked(const json_t *tree, const char *path);

/* Puts VALUE (keeps a reference) at PATH, making missing objects; false when
 * the path leads through something else. */
bool job_tree_put(json_t *tree, const char *path, json_t *value) MUST_CHECK;

/* Takes the value at PATH out; objects above stay. */
void job_tree_remove(json_t *tree, const char *path);

/* Applies "key.path=value": a JSON value, else a string, put as by
 * job_tree_put. A number in the path counts the elements of an array, from 0,
 * and may be its length to append. */
void job_tree_override(json_t *tree, const char *text,
                       struct diagnostics *diagnostics);

/* What is merged: the name of the other tree, and the "key.path=value" that are
 * to be applied afterwards. */
struct job_tree_merging {
    const char *other_name;
    const char *const *overrides;
    unsigned num_overrides;
};

/* Fills into TREE what it lacks of OTHER (keeps references to its values);
 * "auto" is less than any value. The same key with two values is a problem that
 * names the other tree, unless an override settles it. */
void job_tree_merge(json_t *tree, json_t *other,
                    const struct job_tree_merging *merging,
                    struct diagnostics *diagnostics);

/* Reads an object from the file at PATH. A file that cannot be read or is no
 * JSON object is STATUS_CONFIG, with line and column where that is known. */
enum status job_tree_load(json_t **out, const char *path,
                          struct failure *why) MUST_CHECK;

/* The same from TEXT; WHERE is its name in messages. */
enum status job_tree_parse(json_t **out, const char *text, const char *where,
                           struct failure *why) MUST_CHECK;

#endif
