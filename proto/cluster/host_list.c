/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/host_list.h"

#include "core/base/diagnostics.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOST_SIZE = 256, DIGITS_MAX = 18 };

struct parser {
    struct host_list *list;
    const char *error; /* the problem, or NULL */
};

static bool add_host(struct parser *parser, const char *host) {
    struct host_list *list = parser->list;
    if (!*host)
        parser->error = "a host without a name";
    else if (list->count == HOST_LIST_MAX)
        parser->error = "more than 65536 hosts";
    if (parser->error)
        return false;
    if ((list->count & (list->count - 1)) == 0) {
        size_t capacity = list->count ? 2 * (size_t)list->count : 1;
        char **hosts = realloc(list->hosts, capacity * sizeof *hosts);
        if (hosts)
            list->hosts = hosts;
        else
            parser->error = "no memory for its hosts";
    }
    char *copy = parser->error ? NULL : strdup(host);
    if (copy)
        list->hosts[list->count++] = copy;
    else if (!parser->error)
        parser->error = "no memory for its hosts";
    return copy != NULL;
}

/* Reads the digits at *TEXT and moves *TEXT behind them; WIDTH is the number of
 * digits. */
static bool host_list_parse_number(const char **text, uint64_t *value,
                                   int *width) {
    size_t digits = strspn(*text, "0123456789");
    if (!digits || digits > DIGITS_MAX)
        return false;
    *value = strtoull(*text, NULL, 10);
    *width = (int)digits;
    *text += digits;
    return true;
}

/* Reads a range "LOW-HIGH" or "LOW" at *TEXT. */
static bool parse_range(const char **text, uint64_t *low, uint64_t *high,
                        int *width) {
    int ignored;
    if (!host_list_parse_number(text, low, width))
        return false;
    *high = *low;
    if (**text != '-')
        return true;
    ++*text;
    return host_list_parse_number(text, high, &ignored) && *high >= *low;
}

static bool expand(struct parser *parser, char *host, size_t used,
                   const char *rest, const char *end);

/* Expands the bracket at RANGES: each number is written at HOST + USED, then
 * the rest after the bracket is expanded. */
static bool expand_bracket(struct parser *parser, char *host, size_t used,
                           const char *ranges, const char *end) {
    const char *close = memchr(ranges, ']', (size_t)(end - ranges));
    if (!close)
        parser->error = "a bracket is not closed";
    while (!parser->error) {
        uint64_t low = 0, high = 0;
        int width = 0;
        if (!parse_range(&ranges, &low, &high, &width) ||
            (*ranges != ',' && ranges != close))
            parser->error =
                "a bracket contains only numbers and ranges, such as "
                "[001-003,7]";
        for (uint64_t n = low; !parser->error && n <= high; n++) {
            int size = snprintf(host + used, HOST_SIZE - used, "%0*ju", width,
                                (uintmax_t)n);
            if (used + (size_t)size >= HOST_SIZE)
                parser->error = "a host of more than 255 characters";
            else if (!expand(parser, host, used + (size_t)size, close + 1, end))
                return false;
        }
        if (parser->error || ranges == close)
            break;
        ranges++;
    }
    return !parser->error;
}

/* Expands the rest of an entry, from REST to END; HOST has USED characters. */
static bool expand(struct parser *parser, char *host, size_t used,
                   const char *rest, const char *end) {
    size_t plain = 0;
    while (rest + plain < end && !strchr("[]", rest[plain]))
        plain++;
    if (used + plain >= HOST_SIZE) {
        parser->error = "a host of more than 255 characters";
        return false;
    }
    memcpy(host + used, rest, plain);
    used += plain;
    host[used] = 0;
    rest += plain;
    if (rest == end)
        return add_host(parser, host);
    if (*rest == '[')
        return expand_bracket(parser, host, used, rest + 1, end);
    parser->error = "a closing bracket has no opening one";
    return false;
}

/* The end of the entry at TEXT: a comma outside brackets, or the end. */
static const char *entry_end(const char *text) {
    bool inside = false;
    for (; *text && (inside || *text != ','); text++)
        inside = *text == '[' || (inside && *text != ']');
    return text;
}

enum status host_list_parse(struct host_list *out, const char *text,
                            const char *location, struct failure *why) {
    struct parser parser = {.list = out};
    *out = (struct host_list){0};
    const char *entry = text;
    for (;;) {
        char host[HOST_SIZE];
        const char *end = entry_end(entry);
        if (!expand(&parser, host, 0, entry, end) || !*end)
            break;
        entry = end + 1;
    }
    if (!parser.error)
        return STATUS_OK;
    host_list_free(out);
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "bad_node_list: %s is %s: %s. Slurm writes it in the form "
        "n[001-003,7],m1; use Slurm's value.",
        location, diagnostics_quote_text(text).text, parser.error);
}

void host_list_free(struct host_list *list) {
    for (uint32_t i = 0; i < list->count; i++)
        free(list->hosts[i]);
    free(list->hosts);
    *list = (struct host_list){0};
}

/* Reads "N" or "N(xM)" at *TEXT. */
static bool parse_repeat(const char **text, uint64_t *value, uint64_t *times) {
    int width;
    *times = 1;
    if (!host_list_parse_number(text, value, &width))
        return false;
    if (strncmp(*text, "(x", 2))
        return true;
    *text += 2;
    return host_list_parse_number(text, times, &width) && *(*text)++ == ')';
}

enum status host_list_counts(const char *text, const char *location,
                             uint64_t *count, uint64_t *sum,
                             struct failure *why) {
    const char *at = text;
    *count = *sum = 0;
    for (;;) {
        uint64_t value, times;
        if (!parse_repeat(&at, &value, &times) || (*at && *at != ',') ||
            value > UINT32_MAX || times > HOST_LIST_MAX)
            break;
        *count += times;
        *sum += value * times;
        if (!*at)
            return STATUS_OK;
        at++;
    }
    return status_fail(
        why, FAILURE_CLUSTER_INVALID,
        "bad_task_counts: %s is %s; it is the number of tasks of each node, "
        "such as 2(x3),1.",
        location, diagnostics_quote_text(text).text);
}
