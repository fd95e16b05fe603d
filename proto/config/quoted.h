/* SPDX-License-Identifier: Apache-2.0 */
/* A value that someone wrote, as an error text shows it: in double quotes, on
 * one line, free of control characters, cut when it is long. */
#ifndef CAPSTAN_QUOTED_H
#define CAPSTAN_QUOTED_H

#include <jansson.h>

struct quoted {
    char text[96];
};

/* "TEXT"; NULL reads as nothing. */
struct quoted quoted_text(const char *text);

/* A string like quoted_text; any other VALUE as compact JSON, unquoted. */
struct quoted quoted_json(const json_t *value);

#endif
