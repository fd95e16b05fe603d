/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cluster/host_list.h"

#include "proto/config/quoted.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOST_SIZE = 256, DIGITS_MAX = 18 };

struct reading {
    struct host_list *list;
    const char *fault; /* what is wrong, or NULL */
};

static bool add(struct reading *reading, const char *host) {
    struct host_list *list = reading->list;
    if (!*host)
        reading->fault = "a host without a name";
    else if (list->count == HOST_LIST_MAX)
        reading->fault = "more than 65536 hosts";
    if (reading->fault)
        return false;
    if ((list->count & (list->count - 1)) == 0) {
        size_t room = list->count ? 2 * (size_t)list->count : 1;
        char **hosts = realloc(list->hosts, room * sizeof *hosts);
        if (hosts)
            list->hosts = hosts;
        else
            reading->fault = "no memory for its hosts";
    }
    char *copy = reading->fault ? NULL : strdup(host);
    if (copy)
        list->hosts[list->count++] = copy;
    else if (!reading->fault)
        reading->fault = "no memory for its hosts";
    return copy != NULL;
}

/* Digits at *TEXT, which moves behind them; their number of digits is WIDTH. */
static bool number(const char **text, uint64_t *value, int *width) {
    size_t digits = strspn(*text, "0123456789");
    if (!digits || digits > DIGITS_MAX)
        return false;
    *value = strtoull(*text, NULL, 10);
    *width = (int)digits;
    *text += digits;
    return true;
}

/* A range "LOW-HIGH" or "LOW" at *TEXT. */
static bool range(const char **text, uint64_t *low, uint64_t *high,
                  int *width) {
    int ignored;
    if (!number(text, low, width))
        return false;
    *high = *low;
    if (**text != '-')
        return true;
    ++*text;
    return number(text, high, &ignored) && *high >= *low;
}

static bool expand(struct reading *reading, char *host, size_t used,
                   const char *rest, const char *end);

/* The ranges in the bracket at RANGES, each number put at HOST + USED; what
 * follows the bracket is expanded behind it. */
static bool expand_bracket(struct reading *reading, char *host, size_t used,
                           const char *ranges, const char *end) {
    const char *close = memchr(ranges, ']', (size_t)(end - ranges));
    if (!close)
        reading->fault = "a bracket is not closed";
    while (!reading->fault) {
        uint64_t low = 0, high = 0;
        int width = 0;
        if (!range(&ranges, &low, &high, &width) ||
            (*ranges != ',' && ranges != close))
            reading->fault = "a bracket holds numbers and ranges such as "
                             "[001-003,7]";
        for (uint64_t n = low; !reading->fault && n <= high; n++) {
            int size = snprintf(host + used, HOST_SIZE - used, "%0*ju", width,
                                (uintmax_t)n);
            if (used + (size_t)size >= HOST_SIZE)
                reading->fault = "a host of more than 255 characters";
            else if (!expand(reading, host, used + (size_t)size, close + 1,
                             end))
                return false;
        }
        if (reading->fault || ranges == close)
            break;
        ranges++;
    }
    return !reading->fault;
}

/* HOST has USED characters of an entry that goes on at REST, up to END. */
static bool expand(struct reading *reading, char *host, size_t used,
                   const char *rest, const char *end) {
    size_t plain = 0;
    while (rest + plain < end && !strchr("[]", rest[plain]))
        plain++;
    if (used + plain >= HOST_SIZE) {
        reading->fault = "a host of more than 255 characters";
        return false;
    }
    memcpy(host + used, rest, plain);
    used += plain;
    host[used] = 0;
    rest += plain;
    if (rest == end)
        return add(reading, host);
    if (*rest == '[')
        return expand_bracket(reading, host, used, rest + 1, end);
    reading->fault = "a bracket is closed that was not opened";
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
                            const char *place, struct failure *why) {
    struct reading reading = {.list = out};
    *out = (struct host_list){0};
    const char *entry = text;
    for (;;) {
        char host[HOST_SIZE];
        const char *end = entry_end(entry);
        if (!expand(&reading, host, 0, entry, end) || !*end)
            break;
        entry = end + 1;
    }
    if (!reading.fault)
        return STATUS_OK;
    host_list_free(out);
    return status_fail(why, STATUS_CONFIG,
                       "bad_node_list: %s is %s: %s. Slurm writes it, such as "
                       "n[001-003,7],m1; take over what it was.",
                       place, quoted_text(text).text, reading.fault);
}

void host_list_free(struct host_list *list) {
    for (uint32_t i = 0; i < list->count; i++)
        free(list->hosts[i]);
    free(list->hosts);
    *list = (struct host_list){0};
}

/* "N" or "N(xM)" at *TEXT. */
static bool repeated(const char **text, uint64_t *value, uint64_t *times) {
    int width;
    *times = 1;
    if (!number(text, value, &width))
        return false;
    if (strncmp(*text, "(x", 2))
        return true;
    *text += 2;
    return number(text, times, &width) && *(*text)++ == ')';
}

enum status host_list_counts(const char *text, const char *place,
                             uint64_t *count, uint64_t *sum,
                             struct failure *why) {
    const char *at = text;
    *count = *sum = 0;
    for (;;) {
        uint64_t value, times;
        if (!repeated(&at, &value, &times) || (*at && *at != ',') ||
            value > UINT32_MAX || times > HOST_LIST_MAX)
            break;
        *count += times;
        *sum += value * times;
        if (!*at)
            return STATUS_OK;
        at++;
    }
    return status_fail(why, STATUS_CONFIG,
                       "bad_task_counts: %s is %s; it is how many tasks each "
                       "node has, such as 2(x3),1.",
                       place, quoted_text(text).text);
}
