/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/npy_header.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ITEM_BYTES = 1 << 20 };

size_t npy_header_text_bytes(const unsigned char *bytes, size_t *prefix) {
    if (memcmp(bytes, "\x93NUMPY", 6) || bytes[6] < 1 || bytes[6] > 3)
        return 0;
    size_t size = bytes[8] | (size_t)bytes[9] << 8;
    *prefix = bytes[6] == 1 ? 10 : 12;
    if (bytes[6] > 1)
        size |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    return size <= NPY_HEADER_MAX_BYTES ? size : 0;
}

/* What follows 'KEY': in TEXT, or NULL. */
static const char *value_of(const char *text, const char *key) {
    const char *at = strstr(text, key);
    if (!at)
        return NULL;
    at += strlen(key);
    while (*at == ' ')
        at++;
    return at;
}

/* 'descr': '<f4'. The bytes of a value are known of other types as well. */
static const char *parse_type(const char *at, struct npy_header *out) {
    char *end;
    if (!at || *at != '\'' || !at[1] || !strchr("<>|", at[1]))
        return "no type of values";
    out->big = at[1] == '>';
    out->kind = at[2];
    unsigned long bytes = strtoul(at + 3, &end, 10);
    if (out->kind == 'O')
        return "objects of Python, which only Python can read; save numbers "
               "or texts";
    if (out->kind == 'U')
        bytes *= 4; /* UCS-4 */
    if (!bytes || bytes > MAX_ITEM_BYTES)
        return "values of no byte, or of more than 1 MiB";
    out->bytes = (uint32_t)bytes;
    bool number = bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
    bool good = out->kind == 'f'   ? number && bytes > 1
                : out->kind == 'b' ? bytes == 1
                : out->kind == 'i' || out->kind == 'u'
                    ? number
                    : out->kind == 'S' || out->kind == 'U';
    return *end == '\'' && good
               ? NULL
               : "a type of values other than float16, float32, float64, "
                 "integers, booleans, bytes (S) and texts (U); convert them by "
                 "astype";
}

/* 'shape': (100, 784). */
static const char *parse_shape(const char *at, struct npy_header *out) {
    uint32_t dims = 0;
    out->row = 1;
    at = at && *at == '(' ? at + 1 : NULL;
    while (at && *at && *at != ')') {
        char *end;
        unsigned long long size = strtoull(at, &end, 10);
        if (end == at)
            return "no shape";
        if (!dims++)
            out->rows = size;
        else if (__builtin_mul_overflow(out->row, size, &out->row))
            return "a shape of too many values";
        at = end + strspn(end, ", ");
    }
    return !at ? "no shape" : !dims ? "a single value, no rows" : NULL;
}

/* The sizes of a field in an element, ", (3, 4)", if there are any: *AT moves
 * behind them. */
static const char *parse_sizes(const char **at, struct npy_header *out) {
    const char *next = *at + strspn(*at, ", ");
    out->row = 1;
    if (*next != '(')
        return NULL;
    for (next++; *next && *next != ')'; next += strspn(next, ", ")) {
        char *end;
        unsigned long long size = strtoull(next, &end, 10);
        if (end == next)
            return "no shape of a field";
        if (__builtin_mul_overflow(out->row, size, &out->row))
            return "a shape of too many values";
        next = end;
    }
    *at = next + (*next == ')');
    return NULL;
}

/* A field, ('name', '<f4') or ('name', '<f4', (3,)), behind its parenthesis. A
 * field of padding is ('', '|V4'). */
static const char *parse_field(const char **where, struct npy_field *out) {
    const char *at = *where, quote = *at;
    const char *end =
        quote == '\'' || quote == '"' ? strchr(at + 1, quote) : NULL;
    if (!end)
        return "a field without a name of its own";
    *out = (struct npy_field){.name = at + 1,
                              .name_bytes = (size_t)(end - at - 1)};
    at = end + 1 + strspn(end + 1, ", ");
    end = *at == '\'' ? strchr(at + 1, '\'') : NULL;
    if (!end)
        return "a field with fields of its own";
    out->wrong = parse_type(at, &out->header);
    if (!out->header.bytes)
        return out->wrong;
    *where = end + 1;
    return parse_sizes(where, &out->header);
}

/* Adds FIELD, whose values begin at *BYTES of an element. */
static const char *npy_header_add(const struct npy_field *field,
                                  struct npy_field *fields, uint32_t most,
                                  uint32_t *count, size_t *bytes) {
    size_t size;
    if (field->header.kind != 'V' || field->name_bytes) {
        if (*count == most)
            return "too many fields";
        fields[*count] = *field;
        fields[(*count)++].offset = *bytes;
    }
    if (__builtin_mul_overflow(field->header.row, field->header.bytes, &size) ||
        __builtin_add_overflow(*bytes, size, bytes))
        return "a shape of too many values";
    return NULL;
}

const char *npy_header_parse_fields(const char *text, struct npy_field *fields,
                                    uint32_t most, uint32_t *count,
                                    size_t *bytes) {
    const char *at = value_of(text, "'descr':");
    struct npy_header whole = {0};
    const char *wrong = parse_shape(value_of(text, "'shape':"), &whole);
    *count = 0;
    *bytes = 0;
    if (!wrong && (!at || *at != '['))
        wrong = "an array without fields, expected a structured array";
    if (!wrong && whole.row != 1)
        wrong = "elements in several dimensions";
    for (at = wrong ? at : at + 1; !wrong && *at == '(';) {
        struct npy_field field;
        at++;
        wrong = parse_field(&at, &field);
        if (!wrong && *at != ')')
            wrong = "a field that does not end";
        field.header.rows = whole.rows;
        if (!wrong)
            wrong = npy_header_add(&field, fields, most, count, bytes);
        if (!wrong)
            at += 1 + strspn(at + 1, ", ");
    }
    if (!wrong && *at != ']')
        wrong = "fields that do not end";
    return wrong ? wrong : *count ? NULL : "no field";
}

const char *npy_header_parse(const char *text, struct npy_header *out) {
    const char *order = value_of(text, "'fortran_order':");
    *out = (struct npy_header){0};
    const char *wrong = parse_type(value_of(text, "'descr':"), out);
    if (!wrong)
        wrong = parse_shape(value_of(text, "'shape':"), out);
    if (!wrong && out->row != 1 && (!order || strncmp(order, "False", 5)))
        wrong = "columns in memory one after the other (fortran_order), "
                "expected rows: save it by numpy.ascontiguousarray";
    return wrong;
}
