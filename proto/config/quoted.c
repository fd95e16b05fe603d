/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/quoted.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 80 };

static bool inside_character(char c) {
    return ((unsigned char)c & 0xc0) == 0x80;
}

static bool is_utf8(const char *text) {
    json_t *string = json_string(text);
    json_decref(string);
    return string != NULL;
}

/* Appends TEXT at *END, cut between characters; what is not UTF-8 loses all
 * that is not ASCII. */
static void append(char **end, const char *text) {
    size_t length = strlen(text);
    size_t kept = length;
    if (length > LONGEST) {
        kept = LONGEST;
        while (kept > 0 && inside_character(text[kept]))
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

struct quoted quoted_text(const char *text) {
    struct quoted quoted = {{0}};
    char *end = quoted.text;
    *end++ = '"';
    append(&end, text ? text : "");
    *end++ = '"';
    return quoted;
}

struct quoted quoted_json(const json_t *value) {
    if (json_is_string(value))
        return quoted_text(json_string_value(value));
    struct quoted quoted = {{0}};
    char *end = quoted.text;
    char *dump = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    append(&end, dump ? dump : "nothing");
    free(dump);
    return quoted;
}
