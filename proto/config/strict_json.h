/* SPDX-License-Identifier: Apache-2.0 */
/* JSON from the environment, read strictly: one value, nothing after it. */
#ifndef CAPSTAN_STRICT_JSON_H
#define CAPSTAN_STRICT_JSON_H

#include "proto/base/status.h"

#include <jansson.h>
#include <stdbool.h>

/* Reads TEXT, found in NAME, which must be an object; the caller decrefs
 * *OUT. Of a key given twice the last counts, and *DUPLICATE becomes true.
 * Numbers beyond 64 bits are cut to the nearest that fits. Errors are
 * bad_json and report_not_object, with what is usually meant. */
enum status strict_json_object(json_t **out, const char *text, const char *name,
                               bool *duplicate, struct failure *why) MUST_CHECK;

#endif
