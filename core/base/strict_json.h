/* SPDX-License-Identifier: Apache-2.0 */
/* Strict reading of JSON from the environment: one value and nothing after
 * it. */
#ifndef CAPSTAN_STRICT_JSON_H
#define CAPSTAN_STRICT_JSON_H

#include "core/base/status.h"

#include <jansson.h>
#include <stdbool.h>

/* Reads TEXT, the value of NAME, which must be an object; the caller decrefs
 * *OUT. If a key occurs twice, the last value counts and *DUPLICATE is set. A
 * number beyond 64 bits becomes the nearest that fits. The errors bad_json and
 * not_object name the usual cause. */
enum status strict_json_object(json_t **out, const char *text, const char *name,
                               bool *duplicate, struct failure *why) MUST_CHECK;

#endif
