/* SPDX-License-Identifier: Apache-2.0 */
/* YAML files as JSON values, by libyaml. */
#ifndef CAPSTAN_YAML_JSON_H
#define CAPSTAN_YAML_JSON_H

#include "core/base/status.h"

#include <jansson.h>

/* Reads the only document of the file PATH, a mapping; the caller decrefs
 * *OUT. Plain scalars are null, booleans, integers and reals as YAML's core
 * schema has them (YAML 1.2, 10.3.2), quoted ones are strings. Refused, with
 * line and column: what is no YAML, a key that is no scalar or occurs twice,
 * a key within braces without a value, a number that is no double and no 64-bit
 * integer, a second document, more than 64 levels or 100,000 values (aliases
 * count as what they stand for). */
enum status yaml_json_load(json_t **out, const char *path,
                           struct failure *why) MUST_CHECK;

/* The same of TEXT (LENGTH bytes); WHERE is its name in messages. */
enum status yaml_json_parse(json_t **out, const char *text, size_t length,
                            const char *where, struct failure *why) MUST_CHECK;

#endif
