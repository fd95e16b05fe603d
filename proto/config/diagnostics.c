/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/diagnostics.h"

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
    if (diagnostics->count == 1)
        return status_fail(why, STATUS_CONFIG, "%s: %s", diagnostics->where,
                           diagnostics->text);
    char more[48] = "";
    if (diagnostics->count > diagnostics->shown)
        snprintf(more, sizeof more, "\n  and %u more",
                 diagnostics->count - diagnostics->shown);
    return status_fail(why, STATUS_CONFIG, "%s: %u errors\n  %s%s",
                       diagnostics->where, diagnostics->count,
                       diagnostics->text, more);
}
