/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what `capstan compare --json` has printed. */
#ifndef CAPSTAN_COMPARE_FILE_H
#define CAPSTAN_COMPARE_FILE_H

#include "core/base/status.h"

#include <jansson.h>

/* Reads PATH, a regular file of one JSON object of docs/compare.md, and checks
 * every value that it has; the caller decrefs *OUT. STATUS_CONFIG: it is none;
 * the reason names PATH and the key. */
enum status compare_file_read(json_t **out, const char *path,
                              struct failure *why) MUST_CHECK;

/* The same of TEXT, which PATH names in WHY. */
enum status compare_file_parse(json_t **out, const char *text, size_t size,
                               const char *path,
                               struct failure *why) MUST_CHECK;

#endif
