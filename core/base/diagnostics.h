/* SPDX-License-Identifier: Apache-2.0 */
/* Problems found in a configuration, collected so that one run reports all. */
#ifndef CAPSTAN_DIAGNOSTICS_H
#define CAPSTAN_DIAGNOSTICS_H

#include "core/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct diagnostics_quote {
    char text[96];
};

/* "TEXT" in quotes; NULL gives an empty text. */
struct diagnostics_quote diagnostics_quote_text(const char *text);

/* A JSON string as diagnostics_quote_text; any other VALUE as compact JSON
 * without quotes. */
struct diagnostics_quote diagnostics_quote_json(const json_t *value);

/* Optimal string alignment distance of A and B, case ignored: insertions,
 * deletions, replacements and swaps of neighbours. For a word over 63 bytes the
 * distance is the longer length. */
unsigned diagnostics_nearest_distance(const char *a, const char *b);

/* The largest distance at which another word counts as a misspelling of
 * WORD. */
unsigned diagnostics_nearest_limit(const char *word);

enum { DIAGNOSTICS_SHOWN = 10 };

struct diagnostics {
    const char *where; /* names of the files read, borrowed; or NULL */
    unsigned count, shown;
    char text[1800];
};

/* Adds "PATH: " and the text. After DIAGNOSTICS_SHOWN problems, or when the
 * buffer is full, it only counts. PATH may be any text that a user typed. */
void diagnostics_add(struct diagnostics *diagnostics, const char *path,
                     const char *format, ...) PRINTF_LIKE(3, 4);

/* Adds "found VALUE (its type); allowed: ALLOWED". */
void diagnostics_value(struct diagnostics *diagnostics, const char *path,
                       const json_t *value, const char *allowed);

/* STATUS_OK if there are no problems; else STATUS_CONFIG with all of them in
 * WHY. */
enum status diagnostics_status(const struct diagnostics *diagnostics,
                               struct failure *why) MUST_CHECK;

#endif
