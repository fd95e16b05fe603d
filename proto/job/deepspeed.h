/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSpeed's configuration: what Capstan does with each of its keys
 * (deepspeed.ai/docs/config-json, deepspeed/runtime/constants.py). */
#ifndef CAPSTAN_DEEPSPEED_H
#define CAPSTAN_DEEPSPEED_H

#include "core/base/diagnostics.h"
#include "core/base/log.h"

#include <stdbool.h>
#include <stddef.h>

enum deepspeed_support {
    DEEPSPEED_SUPPORTED, /* same name and meaning as in the job file; `text` is
                            the reason if only values of `allowed` are accepted
                          */
    DEEPSPEED_RENAMED,   /* `text` is its path in the job file */
    DEEPSPEED_BY_DESIGN, /* satisfied without an action; docs/job.md says how */
    DEEPSPEED_DEPENDENT, /* a setting of a feature that another key enables */
    DEEPSPEED_REFUSED,   /* accepted only as a value of `allowed`, or as false
                            without it; `text` is the reason */
};

/* A path that ends in ".*" covers all keys below it. */
struct deepspeed_key {
    const char *path;
    enum deepspeed_support support;
    const char *text;
    const char *allowed; /* JSON array of values, or NULL */
};

/* All known keys of DeepSpeed, *COUNT of them; static. */
const struct deepspeed_key *deepspeed_keys(size_t *count);

/* True if "auto" is replaced at PATH. */
bool deepspeed_takes_auto(const char *path);

/* PATH was set by --set: removes the same key under its other name. */
void deepspeed_remove_alias(json_t *tree, const char *path);

/* Removes DeepSpeed's own keys from TREE, or translates them to the job file's.
 * LOG receives the keys satisfied by design; a refused key is a problem. With
 * DEFAULTS, DeepSpeed's defaults other than plain numbers apply. */
void deepspeed_translate(json_t *tree, bool defaults, const struct log *log,
                         struct diagnostics *diagnostics);

#endif
