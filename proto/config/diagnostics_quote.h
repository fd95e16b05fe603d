/* SPDX-License-Identifier: Apache-2.0 */
/* A value that someone wrote, as an error text shows it: in double quotes, on
 * one line, free of control characters, cut when it is long. */
#ifndef CAPSTAN_DIAGNOSTICS_QUOTE_H
#define CAPSTAN_DIAGNOSTICS_QUOTE_H

#include <jansson.h>

struct diagnostics_quote {
    char text[96];
};

/* "TEXT"; NULL reads as nothing. */
struct diagnostics_quote diagnostics_quote_text(const char *text);

/* A string like diagnostics_quote_text; any other VALUE as compact JSON,
 * unquoted. */
struct diagnostics_quote diagnostics_quote_json(const json_t *value);

#endif
