/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/strict_json.h"

#include "core/base/diagnostics.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CLAMPS = 64 };

struct mistake {
    const char *pattern; /* within the text, blanks ignored */
    bool first;          /* only at the start of the text */
    const char *advice;
};

/* Common mistakes in place of JSON; the first that matches is reported. */
static const struct mistake mistakes[] = {
    {"'{", true, "The shell's quotes are part of the value: leave them out."},
    {"{'", false,
     "Names and strings need double quotes. Python's str(dict) "
     "writes single ones: use json.dumps(dict)."},
    {"['", false, "Strings need double quotes, not single ones."},
    {"{\\\"", true, "The quotes are escaped with \\ once too often."},
    {"\xef\xbb\xbf", true, "It begins with a byte order mark: remove it."},
    {",}", false, "Remove the comma before }."},
    {",]", false, "Remove the comma before ]."},
    {":None", false, "Python's None is null in JSON: use json.dumps(dict)."},
    {":True", false, "Python's True is true in JSON: use json.dumps(dict)."},
    {":False", false, "Python's False is false in JSON: use json.dumps(dict)."},
};

static char *strip_blanks(const char *text) {
    char *stripped = malloc(strlen(text) + 1);
    char *end = stripped;
    for (; stripped && *text; text++)
        if (!isspace((unsigned char)*text))
            *end++ = *text;
    if (stripped)
        *end = '\0';
    return stripped;
}

static const char *advice_for(const char *text) {
    const char *advice = "Try it with `python3 -m json.tool`.";
    char *stripped = strip_blanks(text);
    for (size_t i = 0; stripped && i < sizeof mistakes / sizeof *mistakes;
         i++) {
        const char *match = strstr(stripped, mistakes[i].pattern);
        if (match && (match == stripped || !mistakes[i].first)) {
            advice = mistakes[i].advice;
            break;
        }
    }
    free(stripped);
    return advice;
}

/* jansson reads 64-bit integers and doubles, and rejects a larger number that
 * is valid JSON. The number that ends at END is replaced by the largest that
 * fits; the replacement is never longer. */
static bool clamp_number(char *text, size_t end) {
    if (end > strlen(text))
        return false;
    size_t start = end;
    while (start > 0 && strchr("0123456789+-.eE", text[start - 1]))
        start--;
    size_t length = end - start;
    bool real = strcspn(text + start, ".eE") < length;
    size_t pattern = text[start] == '-';
    const char *largest = real ? "1e308" : "9223372036854775807";
    if (length < pattern + strlen(largest))
        return false;
    memset(text + start + pattern, ' ', length - pattern);
    memcpy(text + start + pattern, largest, strlen(largest));
    return true;
}

/* Parses TEXT, which it may change. NULL, with ERROR set, if it is not JSON. */
static json_t *strict_json_parse(char *text, bool *duplicate,
                                 json_error_t *error) {
    size_t flags = JSON_DECODE_ANY | JSON_REJECT_DUPLICATES;
    for (int clamps = 0; clamps <= MAX_CLAMPS;) {
        json_t *root = json_loads(text, flags, error);
        if (root)
            return root;
        enum json_error_code code = json_error_code(error);
        if (code == json_error_duplicate_key) {
            *duplicate = true;
            flags &= ~(size_t)JSON_REJECT_DUPLICATES;
        } else if (code != json_error_numeric_overflow ||
                   !clamp_number(text, (size_t)error->position)) {
            return NULL;
        } else {
            clamps++;
        }
    }
    return NULL;
}

static enum status report_bad_json(const char *text, const char *name,
                                   const json_error_t *error,
                                   struct failure *why) {
    const char *reason = error->text;
    if (json_error_code(error) == json_error_null_character ||
        json_error_code(error) == json_error_null_byte_in_key)
        reason = "a string contains \\u0000";
    return status_fail(why, FAILURE_CLUSTER_INVALID,
                       "bad_json: %s is not JSON: line %d, column %d: %s. "
                       "Found %s. %s",
                       name, error->line, error->column,
                       diagnostics_quote_text(reason).text,
                       diagnostics_quote_text(text).text, advice_for(text));
}

static enum status report_not_object(const json_t *root, const char *name,
                                     struct failure *why) {
    const char *advice = "Write {\"cluster\": {...}, \"task\": {...}}.";
    if (json_is_string(root) && strchr(json_string_value(root), '{'))
        advice = "It is JSON inside a JSON string: encode it once only.";
    return status_fail(why, FAILURE_CLUSTER_INVALID,
                       "not_object: %s is %s, not an object. %s", name,
                       diagnostics_quote_json(root).text, advice);
}

enum status strict_json_object(json_t **out, const char *text, const char *name,
                               bool *duplicate, struct failure *why) {
    char *copy = strdup(text);
    if (!copy)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory to read %s",
                           name);
    json_error_t error;
    json_t *root = strict_json_parse(copy, duplicate, &error);
    free(copy);
    if (!root)
        return report_bad_json(text, name, &error, why);
    if (!json_is_object(root)) {
        enum status status = report_not_object(root, name, why);
        json_decref(root);
        return status;
    }
    *out = root;
    return STATUS_OK;
}
