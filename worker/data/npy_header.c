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

/* 'descr': '<f4'. */
static const char *parse_type(const char *at, struct npy_header *out) {
    char *end;
    if (!at || *at != '\'' || !strchr("<|", at[1]) || !at[1])
        return "values that are neither little-endian nor of one byte";
    out->kind = at[2];
    unsigned long bytes = strtoul(at + 3, &end, 10);
    if (out->kind == 'U')
        bytes *= 4; /* UCS-4 */
    bool number = (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8);
    bool good = out->kind == 'f'   ? bytes == 4 || bytes == 8
                : out->kind == 'b' ? bytes == 1
                : out->kind == 'i' || out->kind == 'u'
                    ? number
                    : (out->kind == 'S' || out->kind == 'U') && bytes > 0 &&
                          bytes <= MAX_ITEM_BYTES;
    if (*end != '\'' || !good)
        return "a type of values other than float32, float64, integers, "
               "booleans, bytes (S) and texts (U)";
    out->bytes = (uint32_t)bytes;
    return NULL;
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

const char *npy_header_parse(const char *text, struct npy_header *out) {
    const char *order = value_of(text, "'fortran_order':");
    *out = (struct npy_header){0};
    const char *wrong = parse_type(value_of(text, "'descr':"), out);
    if (!wrong)
        wrong = parse_shape(value_of(text, "'shape':"), out);
    if (!wrong && out->row != 1 && (!order || strncmp(order, "False", 5)))
        wrong = "columns in memory one after the other (fortran_order)";
    return wrong;
}
