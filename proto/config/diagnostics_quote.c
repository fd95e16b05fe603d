/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/diagnostics_quote.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LENGTH = 80 };

static bool is_continuation_byte(char c) {
    return ((unsigned char)c & 0xc0) == 0x80;
}

static bool is_utf8(const char *text) {
    json_t *string = json_string(text);
    json_decref(string);
    return string != NULL;
}

/* Appends TEXT at *END, cut between characters. If TEXT is not UTF-8, its
 * non-ASCII bytes are left out. */
static void diagnostics_quote_append(char **end, const char *text) {
    size_t length = strlen(text);
    size_t kept = length;
    if (length > MAX_LENGTH) {
        kept = MAX_LENGTH;
        while (kept > 0 && is_continuation_byte(text[kept]))
            kept--;
    }
    unsigned char last = is_utf8(text) ? 0xff : 0x7e;
    for (size_t i = 0; i < kept; i++) {
        unsigned char c = (unsigned char)text[i];
        *(*end)++ = c < ' ' || c == 0x7f || c > last ? '?' : text[i];
    }
    if (kept < length) {
        memcpy(*end, "...", 3);
        *end += 3;
    }
}

struct diagnostics_quote diagnostics_quote_text(const char *text) {
    struct diagnostics_quote diagnostics_quote = {{0}};
    char *end = diagnostics_quote.text;
    *end++ = '"';
    diagnostics_quote_append(&end, text ? text : "");
    *end++ = '"';
    return diagnostics_quote;
}

struct diagnostics_quote diagnostics_quote_json(const json_t *value) {
    if (json_is_string(value))
        return diagnostics_quote_text(json_string_value(value));
    struct diagnostics_quote diagnostics_quote = {{0}};
    char *end = diagnostics_quote.text;
    char *dump = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    diagnostics_quote_append(&end, dump ? dump : "nothing");
    free(dump);
    return diagnostics_quote;
}
