/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSpeed's configuration: what Capstan does with each of its keys
 * (deepspeed.ai/docs/config-json, deepspeed/runtime/constants.py). */
#ifndef CAPSTAN_DEEPSPEED_H
#define CAPSTAN_DEEPSPEED_H

#include "proto/base/log.h"
#include "proto/config/diagnostics.h"

#include <stdbool.h>
#include <stddef.h>

enum deepspeed_support {
    DEEPSPEED_SUPPORTED, /* its name and meaning are the job file's; `text` is
                           why only values of `allowed` count, if there are */
    DEEPSPEED_RENAMED,   /* `text` is its path in the job file */
    DEEPSPEED_BY_DESIGN, /* satisfied; `text` says how, once */
    DEEPSPEED_DEPENDENT, /* of a feature judged by another key */
    DEEPSPEED_REFUSED,   /* but for `allowed`, else for false; `text` is why */
};

/* A path that ends in ".*" covers all below it. */
struct deepspeed_key {
    const char *path;
    enum deepspeed_support support;
    const char *text;
    const char *allowed; /* JSON array of values, or NULL */
};

/* All keys of DeepSpeed that are known, *COUNT of them; static. */
const struct deepspeed_key *deepspeed_keys(size_t *count);

/* PATH has got its value by --set: the other name of the same key goes. */
void deepspeed_remove_alias(json_t *tree, const char *path);

/* Takes DeepSpeed's own keys out of TREE, or turns them into the job file's.
 * What is satisfied by design is said through LOG, what is refused is a
 * problem. With DEFAULTS those of DeepSpeed that are no mere numbers count. */
void deepspeed_translate(json_t *tree, bool defaults, const struct log *log,
                         struct diagnostics *diagnostics);

#endif
