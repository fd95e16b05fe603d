/* SPDX-License-Identifier: Apache-2.0 */
/* A micro batch of samples: columns of values, which the model defines. */
#ifndef CAPSTAN_BATCH_H
#define CAPSTAN_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BATCH_MAX_COLUMNS = 8 };

enum batch_type {
    BATCH_FLOATS,  /* float */
    BATCH_CLASSES, /* uint32_t */
};

struct batch_column {
    enum batch_type type;
    uint32_t width;       /* values of a sample */
    uint32_t num_classes; /* BATCH_CLASSES: all values are below it */
    float min, max;       /* BATCH_FLOATS: bounds; equal: none */
};

/* The columns of a model's batches, in its order. */
struct batch_spec {
    bool regression; /* labels are numbers, of which none is right or wrong */
    uint32_t num_columns;
    struct batch_column columns[BATCH_MAX_COLUMNS];
};

struct batch {
    uint64_t number; /* micro batch number from the start of the run */
    uint32_t count;  /* samples */
    void *columns[BATCH_MAX_COLUMNS]; /* [count, width], 4 bytes a value */
};

/* Bytes of COLUMN for COUNT samples. */
static inline size_t batch_column_bytes(const struct batch_column *column,
                                        size_t count) {
    return count * column->width * sizeof(float);
}

/* Bytes of all columns for COUNT samples. */
static inline size_t batch_bytes(const struct batch_spec *spec, size_t count) {
    size_t bytes = 0;
    for (uint32_t c = 0; c < spec->num_columns; c++)
        bytes += batch_column_bytes(&spec->columns[c], count);
    return bytes;
}

/* Points BATCH's columns into MEMORY of batch_bytes(SPEC, COUNT). */
static inline void batch_place(struct batch *batch,
                               const struct batch_spec *spec, void *memory,
                               size_t count) {
    char *at = memory;
    for (uint32_t c = 0; c < spec->num_columns; c++) {
        batch->columns[c] = at;
        at += batch_column_bytes(&spec->columns[c], count);
    }
}

#endif
