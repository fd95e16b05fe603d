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

#endif
