/* SPDX-License-Identifier: Apache-2.0 */
/* The wire format of protocol buffers, read in place: a field is a varint, 8
 * times its number and its type, then a varint (type 0), 8 bytes (1), a length
 * and as many bytes (2), or 4 bytes (5). */
#include "worker/data/example_format.h"

#include <endian.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };
enum {
    EXAMPLE_FEATURES = 1,
    FEATURES_ENTRY = 1,
    ENTRY_KEY = 1,
    ENTRY_VALUE = 2
};
enum { FEATURE_BYTES = 1, FEATURE_FLOATS = 2, FEATURE_INTEGERS = 3 };
enum { LIST_VALUE = 1, FIRST_VALUES = 64 };

/* What is left of a message. */
struct span {
    const uint8_t *at, *end;
};

struct field {
    const uint8_t *at; /* where it begins */
    uint32_t number, type;
    uint64_t value;   /* of VARINT, FIXED64 and FIXED32 */
    struct span span; /* of BYTES */
};

/* Values of all cells: a cell's pointers are set when no more are added. */
struct example_values {
    struct record_text *texts;
    int64_t *integers;
    float *floats;
    uint32_t num_texts, num_integers, num_floats;
    uint32_t max_texts, max_integers, max_floats;
};

struct example_format {
    uint32_t count;
    char **names;
    size_t *sizes;
    struct record_cell *cells;
    uint32_t *firsts;  /* of a cell's values, among those of its type */
    uint32_t *guesses; /* the name that an entry had in the record before */
    struct example_values values;
};

static bool take_varint(struct span *span, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; span->at < span->end && shift < 64; shift += 7) {
        uint8_t byte = *span->at++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return true;
    }
    return false;
}

static bool take_fixed(struct span *span, size_t bytes, uint64_t *value) {
    *value = 0;
    if ((size_t)(span->end - span->at) < bytes)
        return false;
    memcpy(value, span->at, bytes);
    *value = le64toh(*value);
    span->at += bytes;
    return true;
}

/* The next field; false: it is damaged. */
static bool take_field(struct span *span, struct field *field) {
    uint64_t tag;
    *field = (struct field){.at = span->at};
    if (!take_varint(span, &tag) || tag >> 3 > UINT32_MAX)
        return false;
    field->number = (uint32_t)(tag >> 3);
    field->type = tag & 7;
    switch (field->type) {
    case VARINT:
        return take_varint(span, &field->value);
    case FIXED64:
        return take_fixed(span, 8, &field->value);
    case FIXED32:
        return take_fixed(span, 4, &field->value);
    case BYTES:
        if (!take_varint(span, &field->value) ||
            field->value > (uint64_t)(span->end - span->at))
            return false;
        field->span = (struct span){span->at, span->at + field->value};
        span->at += field->value;
        return true;
    default:
        return false;
    }
}

static enum status example_no_memory(struct failure *why) {
    return status_fail(why, FAILURE_NO_MEMORY, "no memory for the values");
}

static enum status not_an_example(const struct record *record,
                                  const uint8_t *at, struct failure *why) {
    return status_fail(why, FAILURE_DATA_DAMAGED,
                       "byte %zu of the record: it is not a tf.train.Example",
                       (size_t)(at - (const uint8_t *)record->bytes));
}

static enum status next_field(const struct record *record, struct span *span,
                              struct field *field, struct failure *why) {
    return take_field(span, field) ? STATUS_OK
                                   : not_an_example(record, field->at, why);
}

/* Room for one more of COUNT values of SIZE bytes. */
static bool grow_values(void **values, uint32_t count, uint32_t *max,
                        size_t size) {
    if (count < *max)
        return true;
    uint32_t room = *max ? 2 * *max : FIRST_VALUES;
    void *grown = realloc(*values, room * size);
    if (!grown)
        return false;
    *values = grown;
    *max = room;
    return true;
}

static bool add_text(struct example_values *values, struct span text) {
    void *texts = values->texts;
    bool grown = grow_values(&texts, values->num_texts, &values->max_texts,
                             sizeof *values->texts);
    values->texts = texts;
    if (grown)
        values->texts[values->num_texts++] = (struct record_text){
            (const char *)text.at, (size_t)(text.end - text.at)};
    return grown;
}

static bool add_integer(struct example_values *values, uint64_t value) {
    void *integers = values->integers;
    bool grown = grow_values(&integers, values->num_integers,
                             &values->max_integers, sizeof *values->integers);
    values->integers = integers;
    if (grown)
        values->integers[values->num_integers++] = (int64_t)value;
    return grown;
}

static bool add_float(struct example_values *values, uint64_t value) {
    uint32_t bits = (uint32_t)value;
    void *floats = values->floats;
    bool grown = grow_values(&floats, values->num_floats, &values->max_floats,
                             sizeof *values->floats);
    values->floats = floats;
    if (grown)
        memcpy(&values->floats[values->num_floats++], &bits, sizeof bits);
    return grown;
}

/* One value, or several of them packed. */
static enum status add_list_values(struct example_format *format,
                                   const struct record *record, uint32_t kind,
                                   const struct field *field,
                                   struct failure *why) {
    struct example_values *values = &format->values;
    bool packed = field->type == BYTES && kind != FEATURE_BYTES;
    struct span span = field->span;
    uint64_t value = field->value;
    bool whole = true, added = true;
    if (kind == FEATURE_BYTES && field->type == BYTES)
        added = add_text(values, span);
    else if (kind == FEATURE_FLOATS && field->type == FIXED32)
        added = add_float(values, value);
    else if (kind == FEATURE_INTEGERS && field->type == VARINT)
        added = add_integer(values, value);
    else if (!packed)
        return not_an_example(record, field->at, why);
    while (packed && whole && added && span.at < span.end) {
        whole = kind == FEATURE_FLOATS ? take_fixed(&span, 4, &value)
                                       : take_varint(&span, &value);
        if (whole)
            added = kind == FEATURE_FLOATS ? add_float(values, value)
                                           : add_integer(values, value);
    }
    if (!whole)
        return not_an_example(record, span.at, why);
    return added ? STATUS_OK : example_no_memory(why);
}

static uint32_t *values_of(struct example_values *values,
                           enum record_type type) {
    return type == RECORD_TEXTS    ? &values->num_texts
           : type == RECORD_FLOATS ? &values->num_floats
                                   : &values->num_integers;
}

/* The list of KIND in FEATURE's field, as the values of CELL. */
static enum status read_list(struct example_format *format,
                             const struct record *record, uint32_t cell,
                             const struct field *list, struct failure *why) {
    static const enum record_type types[] = {[FEATURE_BYTES] = RECORD_TEXTS,
                                             [FEATURE_FLOATS] = RECORD_FLOATS,
                                             [FEATURE_INTEGERS] =
                                                 RECORD_INTEGERS};
    enum record_type type = types[list->number];
    uint32_t first = *values_of(&format->values, type);
    struct span span = list->span;
    enum status status = STATUS_OK;
    while (!status && span.at < span.end) {
        struct field field;
        status = next_field(record, &span, &field, why);
        if (!status && field.number == LIST_VALUE)
            status = add_list_values(format, record, list->number, &field, why);
    }
    format->firsts[cell] = first;
    format->cells[cell].type = type;
    format->cells[cell].count = *values_of(&format->values, type) - first;
    return status;
}

static enum status read_feature(struct example_format *format,
                                const struct record *record, uint32_t cell,
                                struct span span, struct failure *why) {
    enum status status = STATUS_OK;
    while (!status && span.at < span.end) {
        struct field field;
        status = next_field(record, &span, &field, why);
        if (!status && field.type == BYTES && field.number >= FEATURE_BYTES &&
            field.number <= FEATURE_INTEGERS)
            status = read_list(format, record, cell, &field, why);
    }
    return status;
}

static bool is_name(const struct example_format *format, uint32_t i,
                    struct span key) {
    size_t size = (size_t)(key.end - key.at);
    return format->sizes[i] == size && !memcmp(format->names[i], key.at, size);
}

/* The cell of KEY, which is most often the one of the record before; COUNT: it
 * is not wanted. */
static uint32_t find_cell(const struct example_format *format, uint32_t guess,
                          struct span key) {
    if (guess < format->count && is_name(format, guess, key))
        return guess;
    for (uint32_t i = 0; i < format->count; i++)
        if (is_name(format, i, key))
            return i;
    return format->count;
}

/* An entry of the map: a key and a value. */
static bool take_entry(struct span span, struct span *key, struct span *value) {
    struct field field;
    *key = *value = (struct span){span.at, span.at};
    while (span.at < span.end) {
        if (!take_field(&span, &field))
            return false;
        if (field.type == BYTES && field.number == ENTRY_KEY)
            *key = field.span;
        if (field.type == BYTES && field.number == ENTRY_VALUE)
            *value = field.span;
    }
    return true;
}

/* The next entry of the record; KEY.at is NULL at its end. FEATURES: what is
 * left of the features that are being read. */
static enum status next_entry(const struct record *record, struct span *rest,
                              struct span *features, struct span *key,
                              struct span *value, struct failure *why) {
    struct field field;
    key->at = NULL;
    while (features->at < features->end || rest->at < rest->end) {
        bool inside = features->at < features->end;
        struct span *from = inside ? features : rest;
        enum status status = next_field(record, from, &field, why);
        if (status)
            return status;
        if (field.type != BYTES ||
            field.number != (inside ? FEATURES_ENTRY : EXAMPLE_FEATURES))
            continue;
        if (inside)
            return take_entry(field.span, key, value)
                       ? STATUS_OK
                       : not_an_example(record, field.at, why);
        *features = field.span;
    }
    return STATUS_OK;
}

static struct span span_of(const struct record *record) {
    const uint8_t *bytes = (const uint8_t *)record->bytes;
    return (struct span){bytes, bytes + record->size};
}

static void set_pointers(struct example_format *format) {
    for (uint32_t i = 0; i < format->count; i++) {
        struct record_cell *cell = &format->cells[i];
        uint32_t first = format->firsts[i];
        if (!cell->count)
            continue;
        if (cell->type == RECORD_TEXTS)
            cell->texts = format->values.texts + first;
        else if (cell->type == RECORD_FLOATS)
            cell->floats = format->values.floats + first;
        else
            cell->integers = format->values.integers + first;
    }
}

enum status example_format_read(struct example_format *format,
                                const struct record *record,
                                const struct record_cell **cells,
                                struct failure *why) {
    struct span rest = span_of(record), features = {rest.at, rest.at};
    struct span key, value;
    struct example_values *values = &format->values;
    values->num_texts = values->num_integers = values->num_floats = 0;
    memset(format->cells, 0, format->count * sizeof *format->cells);
    enum status status =
        next_entry(record, &rest, &features, &key, &value, why);
    for (uint32_t entry = 0; !status && key.at; entry++) {
        uint32_t *guess =
            entry < format->count ? &format->guesses[entry] : NULL;
        uint32_t cell = find_cell(format, guess ? *guess : format->count, key);
        if (guess)
            *guess = cell;
        if (cell < format->count)
            status = read_feature(format, record, cell, value, why);
        if (!status)
            status = next_entry(record, &rest, &features, &key, &value, why);
    }
    if (!status)
        set_pointers(format);
    *cells = format->cells;
    return status;
}

enum status example_format_names(const struct record *record,
                                 void (*visit)(void *context,
                                               const struct record_text *name),
                                 void *context, struct failure *why) {
    struct span rest = span_of(record), features = {rest.at, rest.at};
    struct span key, value;
    enum status status =
        next_entry(record, &rest, &features, &key, &value, why);
    while (!status && key.at) {
        visit(context, &(struct record_text){(const char *)key.at,
                                             (size_t)(key.end - key.at)});
        status = next_entry(record, &rest, &features, &key, &value, why);
    }
    return status;
}

enum status example_format_open(struct example_format **out,
                                const char *const *names, uint32_t count,
                                struct failure *why) {
    struct example_format *format = calloc(1, sizeof *format);
    *out = NULL;
    if (!format)
        return example_no_memory(why);
    format->count = count;
    format->names = calloc(count + 1, sizeof *format->names);
    format->sizes = calloc(count + 1, sizeof *format->sizes);
    format->cells = calloc(count + 1, sizeof *format->cells);
    format->firsts = calloc(count + 1, sizeof *format->firsts);
    format->guesses = calloc(count + 1, sizeof *format->guesses);
    bool complete = format->names && format->sizes && format->cells &&
                    format->firsts && format->guesses;
    for (uint32_t i = 0; complete && i < count; i++) {
        complete = (format->names[i] = strdup(names[i])) != NULL;
        format->sizes[i] = strlen(names[i]);
        format->guesses[i] = i;
    }
    if (!complete)
        example_format_close(&format);
    *out = format;
    return complete ? STATUS_OK : example_no_memory(why);
}

void example_format_close(struct example_format **where) {
    struct example_format *format = where ? *where : NULL;
    if (!format)
        return;
    for (uint32_t i = 0; format->names && i < format->count; i++)
        free(format->names[i]);
    free(format->names);
    free(format->sizes);
    free(format->cells);
    free(format->firsts);
    free(format->guesses);
    free(format->values.texts);
    free(format->values.integers);
    free(format->values.floats);
    free(format);
    *where = NULL;
}
