/* SPDX-License-Identifier: Apache-2.0 */
/* The header of an array in NumPy's format (numpy/lib/format.py). */
#ifndef CAPSTAN_NPY_HEADER_H
#define CAPSTAN_NPY_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NPY_HEADER_MAX_BYTES = 1 << 16, NPY_HEADER_PREFIX = 12 };

struct npy_header {
    char kind;      /* of NumPy's dtype: f, i, u, b, S or U */
    bool big;       /* values of several bytes are big-endian */
    uint32_t bytes; /* of a value */
    uint64_t rows;  /* the first dimension */
    uint64_t row;   /* values of a row, the product of the others */
};

/* The bytes of the header's text, and in *PREFIX those before it, by the first
 * NPY_HEADER_PREFIX bytes of a file; 0: they are of none. */
size_t npy_header_text_bytes(const unsigned char *bytes, size_t *prefix);

/* NULL, or what is wrong with the TEXT, which a 0 ends: values are numbers,
 * booleans or texts, in rows. */
const char *npy_header_parse(const char *text, struct npy_header *out);

/* A field of a structured array; `header.rows` is the array's. */
struct npy_field {
    const char *name; /* of NAME_BYTES, in the header's text */
    size_t name_bytes;
    size_t offset; /* in an element */
    struct npy_header header;
    const char *wrong; /* why its values cannot be read; NULL: they can */
};

/* The same of an array of one dimension with 1 to MOST fields, of which FIELDS
 * gets *COUNT, and *BYTES those of an element. Padding is left out. */
const char *npy_header_parse_fields(const char *text, struct npy_field *fields,
                                    uint32_t most, uint32_t *count,
                                    size_t *bytes);

#endif
