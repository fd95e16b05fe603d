/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/libsvm_format.h"

#include "worker/data/number_text.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 256, SHOWN = 40 /* bytes of a wrong word */ };
enum { ID_DIGITS = 19 /* of ids that are below 2^64 */ };

static bool is_blank(char c) {
    return c == ' ' || c == '\t';
}

/* The next word of the line from *AT on, and the first colon in it, or NULL;
 * false: there is no word. */
static bool next_word(const char **at, const char *end,
                      struct record_text *word, const char **colon) {
    const char *from = *at;
    while (from < end && is_blank(*from))
        from++;
    word->bytes = from;
    while (from < end && *from != ':' && !is_blank(*from))
        from++;
    *colon = from < end && *from == ':' ? from : NULL;
    while (from < end && !is_blank(*from))
        from++;
    word->size = (size_t)(from - word->bytes);
    *at = from;
    return word->size > 0;
}

static bool grow_pairs(struct libsvm_format *format) {
    uint32_t capacity =
        format->capacity ? 2 * format->capacity : FIRST_CAPACITY;
    int64_t *ids = realloc(format->ids, capacity * sizeof *ids);
    format->ids = ids ? ids : format->ids;
    float *values = realloc(format->values, capacity * sizeof *values);
    format->values = values ? values : format->values;
    if (!ids || !values)
        return false;
    format->capacity = capacity;
    return true;
}

static enum status wrong_word(const struct record *record,
                              const struct record_text *word,
                              const char *expected, struct failure *why) {
    return status_fail(
        why, FAILURE_DATA_DAMAGED, "column %zu: found \"%.*s\", expected %s",
        (size_t)(word->bytes - record->bytes) + 1,
        word->size < SHOWN ? (int)word->size : SHOWN, word->bytes, expected);
}

static enum status add_pair(struct libsvm_format *format,
                            const struct record *record,
                            const struct record_text *word, const char *colon,
                            struct failure *why) {
    size_t before = colon ? (size_t)(colon - word->bytes) : 0;
    uint32_t count = format->pairs.count;
    uint64_t id;
    if (count == format->capacity && !grow_pairs(format))
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for the line");
    if (!colon || !number_text_unsigned(word->bytes, before, &id))
        return wrong_word(record, word, "ID:VALUE, with an id below 2^64", why);
    if (!number_text_float(colon + 1, word->size - before - 1,
                           &format->values[count]))
        return wrong_word(record, word, "ID:VALUE, with a number as value",
                          why);
    format->ids[count] = (int64_t)id;
    format->pairs.count++;
    return STATUS_OK;
}

/* The number of a group, which is an id too: qid:N. */
static bool is_group(const struct record_text *word, const char *colon) {
    static const char name[] = "qid";
    size_t size = sizeof name - 1;
    uint64_t group;
    return colon == word->bytes + size && !memcmp(word->bytes, name, size) &&
           number_text_unsigned(colon + 1, word->size - size - 1, &group);
}

/* A pair as nearly all are, without a branch for what can be wrong with it.
 * False: any other word, or no room. */
static bool take_plain_pair(struct libsvm_format *format, const char **at,
                            const char *end) {
    const char *from = *at;
    uint32_t count = format->pairs.count;
    uint64_t id = 0;
    while (from < end && is_blank(*from))
        from++;
    const char *word = from;
    for (unsigned digit; from < end && (digit = (unsigned)(*from - '0')) <= 9 &&
                         from - word < ID_DIGITS;
         from++)
        id = id * 10 + digit;
    if (count == format->capacity || from == word || from == end ||
        *from != ':')
        return false;
    from = number_text_plain(from + 1, end, &format->values[count]);
    if (!from || (from < end && !is_blank(*from)))
        return false;
    format->ids[count] = (int64_t)id;
    format->pairs.count++;
    *at = from;
    return true;
}

enum status libsvm_format_read(struct libsvm_format *format,
                               const struct record *record, bool *empty,
                               struct failure *why) {
    const char *at = record->bytes, *end = at + record->size;
    const char *comment = memchr(at, '#', record->size), *colon;
    struct record_text word;
    end = comment ? comment : end;
    format->pairs = (struct record_cell){.type = RECORD_PAIRS};
    format->has_group = false;
    *empty = !next_word(&at, end, &word, &colon);
    if (*empty)
        return STATUS_OK;
    if (!number_text_float(word.bytes, word.size, &format->label))
        return wrong_word(record, &word, "a label, a number", why);
    enum status status = STATUS_OK;
    while (!status) {
        if (take_plain_pair(format, &at, end))
            continue;
        if (!next_word(&at, end, &word, &colon))
            break;
        if (is_group(&word, colon))
            format->has_group = true;
        else
            status = add_pair(format, record, &word, colon, why);
    }
    format->pairs.integers = format->ids;
    format->pairs.floats = format->values;
    return status;
}

void libsvm_format_close(struct libsvm_format *format) {
    free(format->ids);
    free(format->values);
    *format = (struct libsvm_format){0};
}
