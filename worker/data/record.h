/* SPDX-License-Identifier: Apache-2.0 */
/* A record of a data file: its bytes, and the values that its format finds in
 * them. */
#ifndef CAPSTAN_RECORD_H
#define CAPSTAN_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct record {
    char *bytes; /* NULL: the file has ended. The format may change them */
    size_t size;
    uint64_t number; /* in its file, from 0 */
    uint64_t line;   /* of a text file: where it begins, from 1; else 0 */
    bool is_damaged; /* its checksum differs; where the next begins is known */
};

struct record_text {
    const char *bytes; /* UTF-8, not ended by a 0 */
    size_t size;
};

enum record_type {
    RECORD_TEXTS,
    RECORD_INTEGERS,
    RECORD_FLOATS,
    RECORD_PAIRS, /* integers, each with a float */
};

/* What a record has for one column: COUNT values, 0 where it is missing. */
struct record_cell {
    enum record_type type;
    uint32_t count;
    const struct record_text *texts;
    const int64_t *integers; /* RECORD_PAIRS: ids, all 64 bits of them */
    const float *floats;
};

#endif
