/* SPDX-License-Identifier: Apache-2.0 */
/* YAML files as JSON values, by libyaml. */
#ifndef CAPSTAN_YAML_JSON_H
#define CAPSTAN_YAML_JSON_H

#include "proto/base/status.h"

#include <jansson.h>

/* Reads the first document of the file PATH, a mapping; the caller decrefs
 * *OUT. Plain scalars are null, booleans, integers and reals as YAML's core
 * schema has them (YAML 1.2, 10.3.2), quoted ones are strings. Refused, with
 * line and column: what is no YAML, a key that is no scalar or occurs twice,
 * more than 64 levels or 100,000 values (aliases count as what they stand for).
 */
enum status yaml_json_load(json_t **out, const char *path,
                           struct failure *why) MUST_CHECK;

#endif
