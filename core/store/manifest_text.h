/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by writing and parsing of a manifest's text. */
#ifndef CAPSTAN_MANIFEST_TEXT_H
#define CAPSTAN_MANIFEST_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { MANIFEST_TEXT_FORMAT = 1 };

/* XXH3-64 of OBJECT's compact text as 16 hex digits: the value of its key
 * "xxh3", which OBJECT does not have yet. False if memory is short. */
bool manifest_text_digest(const json_t *object, char digits[17]);

/* That digest of TEXT, one that manifest_text made. */
uint64_t manifest_text_hash(const char *text);

#endif
