/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/csv_format.h"

#include "core/base/log.h"
#include "worker/data/number_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CRITEO_INTEGERS = 13, CRITEO_CATEGORIES = 26 };
enum { NO_FIELD = -1, BLOCK = 64 /* bytes */ };

struct csv_format {
    char delimiter;
    bool quoted, trim, unlabelled, decimal_comma;
    struct record_text *missing; /* [num_missing], their bytes are own */
    uint32_t num_missing;
    char *label, *weight; /* their names, or NULL */
    uint32_t num_fields;  /* of a record; 0: not known yet */
    int found;    /* fields of the first record, if it may lack its label */
    char **names; /* [num_fields] */
    int label_field, weight_field;
    struct record_text *fields; /* [num_fields] */
    uint32_t num_columns;
    const char **columns; /* [num_columns] */
    struct record_cell *cells;
};

/* The text of a quoted field that begins at *AT, behind its quote, with its
 * doubled quotes made single; *AT is then behind it. */
static bool take_quoted(char **at, char *end, struct record_text *out) {
    char *from = *at, *to = *at;
    out->bytes = to;
    while (from < end) {
        if (*from == '"' && (from + 1 == end || from[1] != '"')) {
            out->size = (size_t)(to - out->bytes);
            *at = from + 1;
            return true;
        }
        from += *from == '"';
        *to++ = *from++;
    }
    return false;
}

/* A bit for each of the 8 bytes of WORD that is C (Warren 2012, "Hacker's
 * Delight", 6-1); the product moves the bytes' highest bits together. */
static uint64_t bytes_that_are(uint64_t word, char c) {
    const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
    word ^= (unsigned char)c * UINT64_C(0x0101010101010101);
    word = ~(((word & low) + low) | word | low);
    return (word >> 7) * UINT64_C(0x0102040810204080) >> 56;
}

/* A bit for each of the 64 bytes AT, or as many as RECORD has, that is C. */
static uint64_t block_bytes_that_are(const struct record *record,
                                     const char *at, char c) {
    char copy[BLOCK] = {0};
    size_t before = (size_t)(at - record->bytes), left = record->size - before;
    size_t absent = left < BLOCK ? BLOCK - left : 0;
    uint64_t bits = 0, word;
    if (absent <= before) {
        at -= absent;
    } else {
        memcpy(copy + absent, at, left);
        at = copy;
    }
    for (unsigned i = 0; i < BLOCK; i += sizeof word) {
        memcpy(&word, at + i, sizeof word);
        bits |= bytes_that_are(word, c) << i;
    }
    return bits >> absent;
}

/* As split, without quotes: fields are too short to search for each end. */
static int split_unquoted(const struct csv_format *format,
                          const struct record *record,
                          struct record_text *fields, uint32_t most) {
    const char *begin = record->bytes, *end = begin + record->size;
    uint32_t count = 0;
    for (const char *at = begin; at < end; at += BLOCK) {
        uint64_t ends = block_bytes_that_are(record, at, format->delimiter);
        for (; ends; ends &= ends - 1) {
            const char *stop = at + __builtin_ctzll(ends);
            if (count < most)
                fields[count] =
                    (struct record_text){begin, (size_t)(stop - begin)};
            count++;
            begin = stop + 1;
        }
    }
    if (count < most)
        fields[count] = (struct record_text){begin, (size_t)(end - begin)};
    return (int)count + 1;
}

static inline char *skip_spaces(const struct csv_format *format, char *at,
                                char *end) {
    while (at != end && *at == ' ' && format->trim)
        at++;
    return at;
}

/* Where the text from AT on has the DELIMITER, or END. Most fields are shorter
 * than a word: the lowest byte that is the delimiter has its highest bit set,
 * and none below it (Warren 2012, 6-1). */
static inline char *end_of_field(char *at, char *end, char delimiter) {
    const uint64_t ones = UINT64_C(0x0101010101010101);
    uint64_t word;
    if (end - at >= (ptrdiff_t)sizeof word) {
        memcpy(&word, at, sizeof word);
        word ^= (unsigned char)delimiter * ones;
        word = (word - ones) & ~word & ones << 7;
        if (word)
            return at + __builtin_ctzll(word) / 8;
        at += sizeof word;
    }
    char *stop = memchr(at, delimiter, (size_t)(end - at));
    return stop ? stop : end;
}

/* The same of a field that begins with a quote at AT, or NULL: one is
 * misplaced. */
static inline char *take_quotes(const struct csv_format *format, char *at,
                                char *end, struct record_text *text) {
    at++;
    if (!take_quoted(&at, end, text))
        return NULL;
    at = skip_spaces(format, at, end);
    return at == end || *at == format->delimiter ? at : NULL;
}

/* The field of quotes or none that begins at AT becomes *TEXT; returns where it
 * stops, or NULL: a quote is misplaced. */
static inline char *take_text(const struct csv_format *format, char *at,
                              char *end, struct record_text *text) {
    if (at < end && *at == ' ')
        at = skip_spaces(format, at, end);
    if (at < end && *at == '"')
        return take_quotes(format, at, end, text);
    char *stop = end_of_field(at, end, format->delimiter);
    *text = (struct record_text){at, (size_t)(stop - at)};
    if (text->size && stop[-1] == ' ' && format->trim)
        while (text->size && at[text->size - 1] == ' ')
            text->size--;
    return stop;
}

/* Splits RECORD into FIELDS (room for MOST); returns how many there are, or -1:
 * a quote is misplaced. */
static int split(const struct csv_format *format, const struct record *record,
                 struct record_text *fields, uint32_t most) {
    char *at = record->bytes, *end = at + record->size;
    uint32_t count = 0;
    if (!format->quoted)
        return split_unquoted(format, record, fields, most);
    while (true) {
        struct record_text text;
        char *stop = take_text(format, at, end, &text);
        if (!stop)
            return -1;
        if (count < most)
            fields[count] = text;
        count++;
        if (stop == end)
            return (int)count;
        at = stop + 1;
    }
}

static enum status csv_format_no_memory(struct failure *why) {
    return status_fail(why, FAILURE_NO_MEMORY, "no memory for the columns");
}

/* The field of NAME, which is one of the columns. */
static enum status find_field(const struct csv_format *format, const char *key,
                              const char *name, int *field,
                              struct failure *why) {
    char list[512];
    *field = NO_FIELD;
    for (uint32_t i = 0; name && i < format->num_fields; i++)
        if (!strcmp(format->names[i], name))
            *field = (int)i;
    if (!name || *field != NO_FIELD || format->unlabelled)
        return STATUS_OK;
    status_list_names(list, sizeof list, format->names, format->num_fields);
    return status_fail(why, FAILURE_DATA_MISMATCH,
                       "%s: found \"%s\"; allowed: a column: %s", key, name,
                       list);
}

static enum status check_unique(const struct csv_format *format,
                                struct failure *why) {
    for (uint32_t i = 0; i < format->num_fields; i++)
        for (uint32_t j = 0; j < i; j++)
            if (!strcmp(format->names[i], format->names[j]))
                return status_fail(why, FAILURE_DATA_MISMATCH,
                                   "columns %u and %u are both named \"%s\"",
                                   j + 1, i + 1, format->names[i]);
    return STATUS_OK;
}

/* Names are known: what follows from them. */
static enum status use_names(struct csv_format *format, struct failure *why) {
    uint32_t count = format->num_fields;
    format->fields = calloc(count, sizeof *format->fields);
    format->columns = calloc(count, sizeof *format->columns);
    format->cells = calloc(count, sizeof *format->cells);
    if (!format->fields || !format->columns || !format->cells)
        return csv_format_no_memory(why);
    enum status status = check_unique(format, why);
    if (!status)
        status = find_field(format, "data.label", format->label,
                            &format->label_field, why);
    if (!status)
        status = find_field(format, "data.weight", format->weight,
                            &format->weight_field, why);
    for (uint32_t i = 0; !status && i < count; i++) {
        if ((int)i == format->label_field || (int)i == format->weight_field)
            continue;
        struct record_cell *cell = &format->cells[format->num_columns];
        *cell = (struct record_cell){.type = RECORD_TEXTS,
                                     .texts = &format->fields[i]};
        format->columns[format->num_columns++] = format->names[i];
    }
    return status;
}

static bool allocate_names(struct csv_format *format, uint32_t count) {
    format->names = calloc(count, sizeof *format->names);
    format->num_fields = count;
    return format->names;
}

static enum status name_criteo(struct csv_format *format, struct failure *why) {
    bool complete =
        allocate_names(format, 1 + CRITEO_INTEGERS + CRITEO_CATEGORIES);
    for (uint32_t i = 0; complete && i < format->num_fields; i++) {
        char name[16] = "label";
        if (i > CRITEO_INTEGERS)
            snprintf(name, sizeof name, "C%u", i - CRITEO_INTEGERS);
        else if (i)
            snprintf(name, sizeof name, "I%u", i);
        complete = (format->names[i] = strdup(name)) != NULL;
    }
    return complete ? use_names(format, why) : csv_format_no_memory(why);
}

static enum status name_as_given(struct csv_format *format,
                                 const struct csv_format_options *options,
                                 struct failure *why) {
    bool complete = allocate_names(format, options->num_names);
    for (uint32_t i = 0; complete && i < options->num_names; i++)
        complete = (format->names[i] = strdup(options->names[i])) != NULL;
    return complete ? use_names(format, why) : csv_format_no_memory(why);
}

static bool copy_missing(struct csv_format *format,
                         const struct csv_format_options *options) {
    format->missing = calloc(options->num_missing + 1, sizeof *format->missing);
    for (; format->missing && format->num_missing < options->num_missing;
         format->num_missing++) {
        const char *word = strdup(options->missing[format->num_missing]);
        if (!word)
            return false;
        format->missing[format->num_missing] =
            (struct record_text){word, strlen(word)};
    }
    return format->missing;
}

enum status csv_format_open(struct csv_format **out,
                            const struct csv_format_options *options,
                            struct failure *why) {
    struct csv_format *format = calloc(1, sizeof *format);
    *out = NULL;
    if (!format)
        return csv_format_no_memory(why);
    const char *label = options->criteo ? "label" : options->label;
    const char *weight = options->criteo ? NULL : options->weight;
    format->delimiter = options->criteo ? '\t' : options->delimiter;
    format->quoted = !options->criteo;
    format->trim = options->trim && format->delimiter != ' ';
    format->unlabelled = options->unlabelled;
    format->decimal_comma = options->decimal_comma;
    format->label = label ? strdup(label) : NULL;
    format->weight = weight ? strdup(weight) : NULL;
    enum status status = STATUS_OK;
    if ((label && !format->label) || (weight && !format->weight))
        status = csv_format_no_memory(why);
    else if (!copy_missing(format, options))
        status = csv_format_no_memory(why);
    else if (options->criteo)
        status = name_criteo(format, why);
    else if (options->names)
        status = name_as_given(format, options, why);
    if (status)
        csv_format_close(&format);
    *out = format;
    return status;
}

void csv_format_close(struct csv_format **where) {
    struct csv_format *format = where ? *where : NULL;
    if (!format)
        return;
    for (uint32_t i = 0; format->names && i < format->num_fields; i++)
        free(format->names[i]);
    free(format->names);
    for (uint32_t i = 0; i < format->num_missing; i++)
        free((char *)format->missing[i].bytes);
    free(format->missing);
    free(format->label);
    free(format->weight);
    free(format->fields);
    free(format->columns);
    free(format->cells);
    free(format);
    *where = NULL;
}

static bool is_text(const struct record_text *text, const char *word) {
    return strlen(word) == text->size && !memcmp(word, text->bytes, text->size);
}

static enum status compare_header(const struct csv_format *format,
                                  const struct record_text *names, int count,
                                  struct failure *why) {
    if (count != (int)format->num_fields)
        return status_fail(
            why, FAILURE_DATA_MISMATCH,
            "found %d column%s, expected %u as in the first file", count,
            log_plural((uint64_t)count), format->num_fields);
    for (int i = 0; i < count; i++)
        if (!is_text(&names[i], format->names[i]))
            return status_fail(why, FAILURE_DATA_MISMATCH,
                               "column %d: found \"%.*s\", expected \"%s\" as "
                               "in the first file",
                               i + 1, (int)names[i].size, names[i].bytes,
                               format->names[i]);
    return STATUS_OK;
}

enum status csv_format_take_header(struct csv_format *format,
                                   const struct record *record,
                                   struct failure *why) {
    struct record_text *names = calloc(CSV_FORMAT_MAX_COLUMNS, sizeof *names);
    if (!names)
        return csv_format_no_memory(why);
    int count = split(format, record, names, CSV_FORMAT_MAX_COLUMNS);
    enum status status = STATUS_OK;
    if (count < 1 || count > CSV_FORMAT_MAX_COLUMNS) {
        status = status_fail(why, FAILURE_DATA_DAMAGED,
                             count < 0 ? "a quote of the header is misplaced"
                                       : "a header of more than %d columns",
                             CSV_FORMAT_MAX_COLUMNS);
    } else if (format->num_fields) {
        status = compare_header(format, names, count, why);
    } else {
        bool complete = allocate_names(format, (uint32_t)count);
        for (int i = 0; complete && i < count; i++)
            complete = (format->names[i] =
                            strndup(names[i].bytes, names[i].size)) != NULL;
        status = complete ? use_names(format, why) : csv_format_no_memory(why);
    }
    free(names);
    return status;
}

const char *const *csv_format_columns(const struct csv_format *format,
                                      uint32_t *count) {
    *count = format->num_columns;
    return format->columns;
}

static enum status read_number(const struct csv_format *format, int field,
                               float *out, struct failure *why) {
    const struct record_text *text = &format->fields[field];
    if (number_text_field(text->bytes, text->size, format->decimal_comma, out))
        return STATUS_OK;
    return status_fail(why, FAILURE_DATA_DAMAGED,
                       "column %d (%s): found \"%.*s\", expected a number",
                       field + 1, format->names[field],
                       text->size < 80 ? (int)text->size : 80, text->bytes);
}

/* The fields of a record without a label, with an empty one in its place. */
static void insert_label(struct csv_format *format) {
    struct record_text *at = format->fields + format->label_field;
    size_t after = format->num_fields - 1 - (size_t)format->label_field;
    memmove(at + 1, at, after * sizeof *at);
    *at = (struct record_text){"", 0};
}

static bool may_lack_label(const struct csv_format *format) {
    return format->unlabelled && format->label_field != NO_FIELD &&
           format->weight_field == NO_FIELD;
}

/* How many fields a record has: without a label one less, as the first one had,
 * of COUNT fields. */
static int expected_fields(struct csv_format *format, int count) {
    int most = (int)format->num_fields;
    if (!may_lack_label(format))
        return most;
    if (!format->found && (count == most || count == most - 1))
        format->found = count;
    return format->found ? format->found : most;
}

static bool means_no_value(const struct csv_format *format,
                           const struct record_text *text) {
    for (uint32_t i = 0; i < format->num_missing; i++)
        if (format->missing[i].size == text->size &&
            !memcmp(format->missing[i].bytes, text->bytes, text->size))
            return true;
    return false;
}

static void leave_out_missing(struct csv_format *format) {
    for (uint32_t c = 0; c < format->num_columns; c++)
        if (means_no_value(format, format->cells[c].texts))
            format->cells[c].count = 0;
}

enum status csv_format_read(struct csv_format *format,
                            const struct record *record,
                            struct csv_format_row *row, struct failure *why) {
    int count = split(format, record, format->fields, format->num_fields);
    *row = (struct csv_format_row){.weight = 1, .cells = format->cells};
    if (count < 0)
        return status_fail(why, FAILURE_DATA_DAMAGED,
                           "a quote stands within a field, or a quoted one "
                           "does not end or is not followed by '%c'",
                           format->delimiter);
    int expected = expected_fields(format, count);
    if (count != expected)
        return status_fail(why, FAILURE_DATA_DAMAGED,
                           "found %d field%s, expected %d%s", count,
                           log_plural((uint64_t)count), expected,
                           may_lack_label(format) && !format->found
                               ? ", or one less without the label"
                               : "");
    if (count < (int)format->num_fields)
        insert_label(format);
    for (uint32_t c = 0; c < format->num_columns; c++)
        format->cells[c].count = format->cells[c].texts->size > 0;
    if (format->num_missing)
        leave_out_missing(format);
    enum status status = STATUS_OK;
    if (format->label_field != NO_FIELD && !format->unlabelled)
        status = read_number(format, format->label_field, &row->label, why);
    if (!status && format->weight_field != NO_FIELD && !format->unlabelled)
        status = read_number(format, format->weight_field, &row->weight, why);
    return status;
}
