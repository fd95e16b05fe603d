/* SPDX-License-Identifier: Apache-2.0 */
/* The wire format of protocol buffers, read in place: a field is a varint, 8
 * times its number and its type, then a varint (type 0), 8 bytes (1), a length
 * and as many bytes (2), or 4 bytes (5). */
#include "worker/data/example_format.h"

#include <endian.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };
/* Tags: 8 times a field's number, and its type. */
enum {
    EXAMPLE_FEATURES = 1 << 3 | BYTES,
    SEQUENCE_LISTS = 2 << 3 | BYTES,
    FEATURES_ENTRY = 1 << 3 | BYTES,
    ENTRY_KEY = 1 << 3 | BYTES,
    ENTRY_VALUE = 2 << 3 | BYTES,
    FEATURE_BYTES = 1 << 3 | BYTES,
    FEATURE_FLOATS = 2 << 3 | BYTES,
    FEATURE_INTEGERS = 3 << 3 | BYTES,
    LIST_VALUE = 1 << 3, /* of any type */
    LIST_BYTES = LIST_VALUE | BYTES,
    LIST_FLOAT = LIST_VALUE | FIXED32,
    LIST_INTEGER = LIST_VALUE | VARINT
};
enum { VALUE_TYPES = RECORD_FLOATS + 1, FIRST_VALUES = 64 };
enum { WORD_BYTES = sizeof(uint64_t) };
enum { PLAIN_BYTES = 8 /* of an entry, beside its key and values */ };

/* What is left of a message. */
struct span {
    const uint8_t *at, *end;
};

struct field {
    const uint8_t *at; /* where it begins */
    uint64_t tag;
    uint64_t value;   /* of VARINT, FIXED64 and FIXED32 */
    struct span span; /* of BYTES */
};

/* Values of all cells, by their record_type: a cell's pointers are set when no
 * more are added. */
struct example_values {
    void *all[VALUE_TYPES];
    uint32_t count[VALUE_TYPES], max[VALUE_TYPES];
};

/* A name's bytes, and what they are found by. */
struct name {
    uint64_t word;
    size_t size;
    char *bytes;
};

struct example_format {
    uint32_t count;
    struct name *names;
    struct record_cell *cells;
    uint32_t *firsts; /* of a cell's values, among those of its type */
    uint32_t *slots;  /* [mask + 1], by a name's word: its cell; COUNT: free */
    uint32_t mask;
    struct example_values values;
};

static bool take_long_varint(struct span *span, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; span->at < span->end && shift < 64; shift += 7) {
        uint8_t byte = *span->at++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return true;
    }
    return false;
}

/* Most have one byte. */
static inline bool take_varint(struct span *span, uint64_t *value) {
    if (span->at == span->end || *span->at >= 128)
        return take_long_varint(span, value);
    *value = *span->at++;
    return true;
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
    *field = (struct field){.at = span->at};
    if (!take_varint(span, &field->tag) || field->tag >> 3 > UINT32_MAX)
        return false;
    switch (field->tag & 7) {
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

/* Its context would pass for the features of an Example. */
static enum status is_sequence(struct failure *why) {
    return status_fail(why, FAILURE_DATA_MISMATCH,
                       "found a tf.train.SequenceExample, expected a "
                       "tf.train.Example: write its feature lists as features "
                       "of an Example");
}

static enum status next_field(const struct record *record, struct span *span,
                              struct field *field, struct failure *why) {
    return take_field(span, field) ? STATUS_OK
                                   : not_an_example(record, field->at, why);
}

static bool grow_values(struct example_values *values, enum record_type type) {
    static const size_t sizes[] = {[RECORD_TEXTS] = sizeof(struct record_text),
                                   [RECORD_INTEGERS] = sizeof(int64_t),
                                   [RECORD_FLOATS] = sizeof(float)};
    uint32_t room = values->max[type] ? 2 * values->max[type] : FIRST_VALUES;
    void *grown = realloc(values->all[type], room * sizes[type]);
    if (!grown)
        return false;
    values->all[type] = grown;
    values->max[type] = room;
    return true;
}

/* Where one more value goes, which counts as added; NULL: there is no memory.
 */
static inline void *add_value(struct example_values *values,
                              enum record_type type, size_t size) {
    uint32_t count = values->count[type];
    if (count == values->max[type] && !grow_values(values, type))
        return NULL;
    values->count[type]++;
    return (char *)values->all[type] + count * size;
}

static inline bool add_text(struct example_values *values, struct span text) {
    struct record_text *to = add_value(values, RECORD_TEXTS, sizeof *to);
    if (to)
        *to = (struct record_text){(const char *)text.at,
                                   (size_t)(text.end - text.at)};
    return to;
}

static inline bool add_integer(struct example_values *values, uint64_t value) {
    int64_t *to = add_value(values, RECORD_INTEGERS, sizeof *to);
    if (to)
        *to = (int64_t)value;
    return to;
}

static inline bool add_float(struct example_values *values, uint64_t value) {
    uint32_t bits = (uint32_t)value;
    float *to = add_value(values, RECORD_FLOATS, sizeof *to);
    if (to)
        memcpy(to, &bits, sizeof bits);
    return to;
}

static inline enum status add_packed(struct example_values *values,
                                     const struct record *record, bool floats,
                                     struct span span, struct failure *why) {
    uint64_t value;
    while (span.at < span.end) {
        if (!(floats ? take_fixed(&span, 4, &value)
                     : take_varint(&span, &value)))
            return not_an_example(record, span.at, why);
        if (!(floats ? add_float(values, value) : add_integer(values, value)))
            return example_no_memory(why);
    }
    return STATUS_OK;
}

/* FIELD of a list of TYPE: one value, or several of them packed. */
static inline enum status add_list_values(struct example_values *values,
                                          const struct record *record,
                                          enum record_type type,
                                          const struct field *field,
                                          struct failure *why) {
    bool added;
    if (type == RECORD_TEXTS && field->tag == LIST_BYTES)
        added = add_text(values, field->span);
    else if (field->tag == LIST_BYTES)
        return add_packed(values, record, type == RECORD_FLOATS, field->span,
                          why);
    else if (type == RECORD_FLOATS && field->tag == LIST_FLOAT)
        added = add_float(values, field->value);
    else if (type == RECORD_INTEGERS && field->tag == LIST_INTEGER)
        added = add_integer(values, field->value);
    else
        return not_an_example(record, field->at, why);
    return added ? STATUS_OK : example_no_memory(why);
}

/* The values of TYPE behind the FIRST become CELL's. */
static void set_cell(struct example_format *format, uint32_t cell,
                     enum record_type type, uint32_t first) {
    format->firsts[cell] = first;
    format->cells[cell].type = type;
    format->cells[cell].count = format->values.count[type] - first;
}

/* The type of a feature's list by its tag; false: it is another field. */
static bool type_of(uint64_t tag, enum record_type *type) {
    static const enum record_type types[] = {
        [1] = RECORD_TEXTS, [2] = RECORD_FLOATS, [3] = RECORD_INTEGERS};
    if (tag != FEATURE_BYTES && tag != FEATURE_FLOATS &&
        tag != FEATURE_INTEGERS)
        return false;
    *type = types[tag >> 3];
    return true;
}

/* The list SPAN of TYPE, as the values of CELL. */
static enum status read_list(struct example_format *format,
                             const struct record *record, uint32_t cell,
                             enum record_type type, struct span span,
                             struct failure *why) {
    uint32_t first = format->values.count[type];
    enum status status = STATUS_OK;
    while (!status && span.at < span.end) {
        struct field field;
        status = next_field(record, &span, &field, why);
        if (!status && (field.tag & ~UINT64_C(7)) == LIST_VALUE)
            status =
                add_list_values(&format->values, record, type, &field, why);
    }
    set_cell(format, cell, type, first);
    return status;
}

static enum status read_feature(struct example_format *format,
                                const struct record *record, uint32_t cell,
                                struct span span, struct failure *why) {
    enum status status = STATUS_OK;
    while (!status && span.at < span.end) {
        struct field field;
        enum record_type type;
        status = next_field(record, &span, &field, why);
        if (!status && type_of(field.tag, &type))
            status = read_list(format, record, cell, type, field.span, why);
    }
    return status;
}

/* All bytes of a short name, which with its size tell it from any other; else
 * their hash. */
static uint64_t word_of(struct span name) {
    size_t size = (size_t)(name.end - name.at);
    uint32_t first, last;
    if (!size || size > WORD_BYTES)
        return XXH3_64bits(name.at, size);
    if (size < sizeof first)
        return name.at[0] | (uint64_t)name.at[size / 2] << 8 |
               (uint64_t)name.at[size - 1] << 16;
    memcpy(&first, name.at, sizeof first);
    memcpy(&last, name.end - sizeof last, sizeof last);
    return first | (uint64_t)last << 32;
}

static bool is_name(const struct name *name, uint64_t word, struct span key) {
    size_t size = (size_t)(key.end - key.at);
    return name->word == word && name->size == size &&
           (size <= WORD_BYTES || !memcmp(name->bytes, key.at, size));
}

/* The slot of KEY, of WORD, or a free one. Guesses by the record before would
 * be wrong too often: maps have no order, and features may be missing. */
static uint32_t *find_slot(const struct example_format *format, uint64_t word,
                           struct span key) {
    uint64_t slot = (word * XXH_PRIME64_1 >> 32) & format->mask;
    while (format->slots[slot] < format->count &&
           !is_name(&format->names[format->slots[slot]], word, key))
        slot = (slot + 1) & format->mask;
    return &format->slots[slot];
}

/* An entry of the map: a key and a value. */
static bool take_entry(struct span span, struct span *key, struct span *value) {
    struct field field;
    *key = *value = (struct span){span.at, span.at};
    while (span.at < span.end) {
        if (!take_field(&span, &field))
            return false;
        if (field.tag == ENTRY_KEY)
            *key = field.span;
        if (field.tag == ENTRY_VALUE)
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
        if (!inside && field.tag == SEQUENCE_LISTS)
            return is_sequence(why);
        if (field.tag != (inside ? FEATURES_ENTRY : EXAMPLE_FEATURES))
            continue;
        if (inside)
            return take_entry(field.span, key, value)
                       ? STATUS_OK
                       : not_an_example(record, field.at, why);
        *features = field.span;
    }
    return STATUS_OK;
}

/* An entry of FEATURES as TensorFlow writes it if it is shorter than 128 bytes,
 * so that all lengths have one: a KEY and a list of TYPE, whose only field has
 * all VALUES. False: it is another, and nothing is taken. */
static inline bool take_plain_entry(struct span *features, struct span *key,
                                    enum record_type *type,
                                    struct field *values) {
    const uint8_t *at = features->at;
    ptrdiff_t left = features->end - at;
    if (left < 2 + PLAIN_BYTES || at[0] != FEATURES_ENTRY || at[1] >= 128 ||
        at[1] > left - 2 || at[2] != ENTRY_KEY || at[3] + PLAIN_BYTES > at[1])
        return false;
    int size = at[1] - at[3] - PLAIN_BYTES;
    *key = (struct span){at + 4, at + 4 + at[3]};
    at = key->end;
    if (at[0] != ENTRY_VALUE || at[1] != size + 4 || !type_of(at[2], type) ||
        at[3] != size + 2 || at[4] != LIST_BYTES || at[5] != size)
        return false;
    *values = (struct field){
        .at = at + 4, .tag = LIST_BYTES, .span = {at + 6, at + 6 + size}};
    features->at = values->span.end;
    return true;
}

static struct span span_of(const struct record *record) {
    const uint8_t *bytes = (const uint8_t *)record->bytes;
    return (struct span){bytes, bytes + record->size};
}

static void set_pointers(struct example_format *format) {
    void *const *all = format->values.all;
    for (uint32_t i = 0; i < format->count; i++) {
        struct record_cell *cell = &format->cells[i];
        uint32_t first = format->firsts[i];
        if (!cell->count)
            continue;
        if (cell->type == RECORD_TEXTS)
            cell->texts = (struct record_text *)all[RECORD_TEXTS] + first;
        else if (cell->type == RECORD_FLOATS)
            cell->floats = (float *)all[RECORD_FLOATS] + first;
        else
            cell->integers = (int64_t *)all[RECORD_INTEGERS] + first;
    }
}

/* Reads the entry that FEATURES begin with; *IS_PLAIN is false if it is
 * another. */
static enum status read_plain_entry(struct example_format *format,
                                    const struct record *record,
                                    struct span *features, bool *is_plain,
                                    struct failure *why) {
    struct span key;
    struct field values;
    enum record_type type;
    *is_plain = take_plain_entry(features, &key, &type, &values);
    if (!*is_plain)
        return STATUS_OK;
    uint32_t cell = *find_slot(format, word_of(key), key);
    if (cell == format->count)
        return STATUS_OK;
    uint32_t first = format->values.count[type];
    enum status status =
        add_list_values(&format->values, record, type, &values, why);
    set_cell(format, cell, type, first);
    return status;
}

enum status example_format_read(struct example_format *format,
                                const struct record *record,
                                const struct record_cell **cells,
                                struct failure *why) {
    struct span rest = span_of(record), features = {rest.at, rest.at};
    struct span key = rest, value;
    enum status status = STATUS_OK;
    memset(format->values.count, 0, sizeof format->values.count);
    memset(format->cells, 0, format->count * sizeof *format->cells);
    while (!status && key.at) {
        bool is_plain = false;
        status = read_plain_entry(format, record, &features, &is_plain, why);
        if (status || is_plain)
            continue;
        status = next_entry(record, &rest, &features, &key, &value, why);
        uint32_t cell = format->count;
        if (!status && key.at)
            cell = *find_slot(format, word_of(key), key);
        if (cell < format->count)
            status = read_feature(format, record, cell, value, why);
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
    format->cells = calloc(count + 1, sizeof *format->cells);
    format->firsts = calloc(count + 1, sizeof *format->firsts);
    while (format->mask < 8 * count)
        format->mask = 2 * format->mask + 1;
    format->slots = calloc(format->mask + 1, sizeof *format->slots);
    bool complete =
        format->names && format->cells && format->firsts && format->slots;
    for (uint32_t s = 0; complete && s <= format->mask; s++)
        format->slots[s] = count;
    for (uint32_t i = 0; complete && i < count; i++) {
        struct name *name = &format->names[i];
        complete = (name->bytes = strdup(names[i])) != NULL;
        if (!complete)
            break;
        name->size = strlen(names[i]);
        struct span key = {(uint8_t *)name->bytes,
                           (uint8_t *)name->bytes + name->size};
        name->word = word_of(key);
        uint32_t *slot = find_slot(format, name->word, key);
        *slot = *slot < i ? *slot : i;
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
        free(format->names[i].bytes);
    free(format->names);
    free(format->cells);
    free(format->firsts);
    free(format->slots);
    for (int type = 0; type < VALUE_TYPES; type++)
        free(format->values.all[type]);
    free(format);
    *where = NULL;
}
