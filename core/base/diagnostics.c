/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/diagnostics.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_SHOWN = 120, VALUE_SHOWN = 60 };

/* Copies SOURCE for a terminal without control characters. If it does not fit,
 * it is cut between UTF-8 characters and ends in "...". */
static void copy_printable(char *target, size_t size, const char *source) {
    size_t length = strlen(source), used = length;
    if (length >= size) {
        used = size - 4;
        while (used > 0 && (source[used] & 0xC0) == 0x80)
            used--;
    }
    for (size_t i = 0; i < used; i++)
        target[i] = (unsigned char)source[i] < ' ' || source[i] == 0x7F
                        ? '?'
                        : source[i];
    strcpy(target + used, used < length ? "..." : "");
}

void diagnostics_add(struct diagnostics *diagnostics, const char *path,
                     const char *format, ...) {
    diagnostics->count++;
    if (diagnostics->shown == DIAGNOSTICS_SHOWN)
        return;
    char key[PATH_SHOWN], message[sizeof diagnostics->text];
    copy_printable(key, sizeof key, path);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    size_t used = strlen(diagnostics->text),
           room = sizeof diagnostics->text - used;
    if (used && strlen(key) + strlen(message) + 6 > room)
        return;
    snprintf(diagnostics->text + used, room, "%s%s: %s", used ? "\n  " : "",
             key, message);
    diagnostics->shown++;
}

static const char *type_name(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real";
    case JSON_NULL:
        return "null";
    default:
        return "a boolean";
    }
}

/* A number is shown as it was typed, not with 17 digits. */
static char *dump_json(const json_t *value) {
    size_t flags = JSON_ENCODE_ANY | JSON_COMPACT;
    return json_dumps(value, flags | JSON_REAL_PRECISION(15));
}

void diagnostics_value(struct diagnostics *diagnostics, const char *path,
                       const json_t *value, const char *allowed) {
    char found[VALUE_SHOWN] = "?";
    char *whole = dump_json(value);
    if (whole)
        copy_printable(found, sizeof found, whole);
    free(whole);
    const char *text = json_string_value(value);
    bool automatic = text && !strcmp(text, "auto");
    diagnostics_add(
        diagnostics, path, "found %s (%s); allowed: %s%s", found,
        type_name(value), allowed,
        automatic
            ? "; \"auto\" is filled in by Hugging Face's Trainer: write the "
              "value itself, or use --set"
            : "");
}

enum status diagnostics_status(const struct diagnostics *diagnostics,
                               struct failure *why) {
    if (!diagnostics->count)
        return STATUS_OK;
    const char *where = diagnostics->where ? diagnostics->where : "";
    const char *colon = diagnostics->where ? ": " : "";
    if (diagnostics->count == 1)
        return status_fail(why, FAILURE_JOB_INVALID, "%s%s%s", where, colon,
                           diagnostics->text);
    char more[48] = "";
    if (diagnostics->count > diagnostics->shown)
        snprintf(more, sizeof more, "\n  and %u more",
                 diagnostics->count - diagnostics->shown);
    return status_fail(why, FAILURE_JOB_INVALID, "%s%s%u errors\n  %s%s", where,
                       colon, diagnostics->count, diagnostics->text, more);
}

enum { NEAREST_MAX_LENGTH = 63 };

static unsigned diagnostics_nearest_smaller(unsigned a, unsigned b) {
    return a < b ? a : b;
}

static int lower(char c) {
    return tolower((unsigned char)c);
}

unsigned diagnostics_nearest_distance(const char *a, const char *b) {
    size_t m = strlen(a), n = strlen(b);
    if (m > NEAREST_MAX_LENGTH || n > NEAREST_MAX_LENGTH)
        return (unsigned)(m > n ? m : n);
    /* d[i][j]: distance between the first i letters of a and the first j of
     * b. */
    unsigned char d[NEAREST_MAX_LENGTH + 1][NEAREST_MAX_LENGTH + 1];
    for (size_t i = 0; i <= m; i++)
        d[i][0] = (unsigned char)i;
    for (size_t j = 0; j <= n; j++)
        d[0][j] = (unsigned char)j;
    for (size_t i = 1; i <= m; i++)
        for (size_t j = 1; j <= n; j++) {
            unsigned change = lower(a[i - 1]) != lower(b[j - 1]);
            unsigned best =
                diagnostics_nearest_smaller(d[i - 1][j] + 1u, d[i][j - 1] + 1u);
            best = diagnostics_nearest_smaller(best, d[i - 1][j - 1] + change);
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                lower(a[i - 2]) == lower(b[j - 1]))
                best = diagnostics_nearest_smaller(best, d[i - 2][j - 2] + 1u);
            d[i][j] = (unsigned char)best;
        }
    return d[m][n];
}

unsigned diagnostics_nearest_limit(const char *word) {
    return 1 + (unsigned)strlen(word) / 4;
}

enum { QUOTE_MAX_LENGTH = 80 };

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
    if (length > QUOTE_MAX_LENGTH) {
        kept = QUOTE_MAX_LENGTH;
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
    struct diagnostics_quote quote = {{0}};
    char *end = quote.text;
    *end++ = '"';
    diagnostics_quote_append(&end, text ? text : "");
    *end++ = '"';
    return quote;
}

struct diagnostics_quote diagnostics_quote_json(const json_t *value) {
    if (json_is_string(value))
        return diagnostics_quote_text(json_string_value(value));
    struct diagnostics_quote quote = {{0}};
    char *end = quote.text;
    char *dump = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    diagnostics_quote_append(&end, dump ? dump : "nothing");
    free(dump);
    return quote;
}
