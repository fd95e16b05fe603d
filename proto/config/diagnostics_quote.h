/* SPDX-License-Identifier: Apache-2.0 */
/* A user's value as an error text shows it: in double quotes, on one line,
 * without control characters, shortened if it is long. */
#ifndef CAPSTAN_DIAGNOSTICS_QUOTE_H
#define CAPSTAN_DIAGNOSTICS_QUOTE_H

#include <jansson.h>

struct diagnostics_quote {
    char text[96];
};

/* "TEXT" in quotes; NULL gives an empty text. */
struct diagnostics_quote diagnostics_quote_text(const char *text);

/* A JSON string as diagnostics_quote_text; any other VALUE as compact JSON
 * without quotes. */
struct diagnostics_quote diagnostics_quote_json(const json_t *value);

#endif
