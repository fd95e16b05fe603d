/* SPDX-License-Identifier: Apache-2.0 */
/* A micro batch of samples: columns of values, which the model defines. */
#ifndef CAPSTAN_BATCH_H
#define CAPSTAN_BATCH_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BATCH_MAX_COLUMNS = 8, BATCH_MAX_FEATURES = 512 };

enum batch_type {
    BATCH_FLOATS,  /* float */
    BATCH_CLASSES, /* uint32_t */
    BATCH_ROWS,    /* float: rows of tables, combined as the lookups say */
    BATCH_WEIGHTS, /* float: of the samples; the last column, or none */
};

/* What is added to a column of rows from a sample's rows. */
enum batch_combiner {
    BATCH_SUM,   /* the sum of weight * row */
    BATCH_MEAN,  /* that, by the sum of the weights */
    BATCH_SQRTN, /* that, by the root of the sum of their squares */
};

struct batch_column {
    enum batch_type type;
    uint32_t width; /* values of a sample */
    bool pixels; /* BATCH_FLOATS: the host has bytes, the device bytes / 255 */
    uint32_t num_classes; /* BATCH_CLASSES: all values are below it */
    float min, max;       /* a label's two values; equal: any number */
    /* BATCH_FLOATS: the features whose values follow each other in it, in the
     * spec's `features` from FIRST on; 0: all that give floats. */
    uint32_t first_feature, num_features;
    uint32_t tag; /* the model's own; nobody else reads it */
};

/* Rows of TABLE by the ids of a feature, added to a column. */
struct batch_lookup {
    uint32_t ids;    /* place among the spec's id features */
    uint32_t table;  /* of the model */
    uint32_t column; /* of BATCH_ROWS */
    uint32_t offset; /* in the column's values; the row has the table's width */
    enum batch_combiner combiner;
};

/* The columns of a model's batches, in its order. Labels are the last that is
 * of neither rows nor weights; its width is 1. The data fills the columns of
 * floats before it, and the ids; whoever looks the ids up fills the columns of
 * rows. */
struct batch_spec {
    bool regression; /* labels are numbers, of which none is right or wrong */
    bool numbered;   /* the model reads the batch's number on the device */
    uint32_t num_columns;
    struct batch_column columns[BATCH_MAX_COLUMNS];
    uint32_t features[BATCH_MAX_FEATURES]; /* of all columns: numbers as in
                                              features.h */
    uint32_t num_ids;                      /* features that give ids */
    uint32_t id_features[BATCH_MAX_FEATURES];
    uint32_t num_lookups;
    struct batch_lookup lookups[BATCH_MAX_FEATURES];
};

/* One feature's ids of a batch, in host memory: those of sample s are at
 * offsets[s] .. offsets[s + 1] - 1. */
struct batch_ids {
    uint32_t *offsets; /* [count + 1] */
    uint64_t *ids;
    float *weights; /* of the ids; NULL: 1 each, or there are no ids */
    uint32_t room;  /* of `ids`, and of `weights` if there are any */
};

struct batch {
    uint64_t number; /* micro batch number from the start of the run */
    const uint64_t *device_number; /* the same in the memory of the device, if
                                      the spec says `numbered`; NULL: that is
                                      the host's */
    uint32_t count;                /* samples */
    uint32_t bad_lines;            /* left out of it (data.bad_lines) */
    void *columns[BATCH_MAX_COLUMNS];    /* [count, width], 4 bytes a value,
                                            those of pixels 1 */
    float *gradients[BATCH_MAX_COLUMNS]; /* BATCH_ROWS, when training: where the
                                            model writes the column's gradient,
                                            [count, width]; else NULL */
    struct batch_ids *ids;               /* [num_ids] */
};

/* Bytes of COLUMN for COUNT samples: of its values, */
static inline size_t batch_column_bytes(const struct batch_column *column,
                                        size_t count) {
    return count * column->width * sizeof(float);
}

/* and of the host's, */
static inline size_t batch_column_host_bytes(const struct batch_column *column,
                                             size_t count) {
    return column->pixels ? count * column->width
                          : batch_column_bytes(column, count);
}

/* and with what aligns the next column. */
static inline size_t batch_column_room(const struct batch_column *column,
                                       size_t count) {
    size_t bytes = batch_column_host_bytes(column, count);
    return (bytes + sizeof(float) - 1) / sizeof(float) * sizeof(float);
}

/* Bytes of all columns for COUNT samples on the host. */
static inline size_t batch_bytes(const struct batch_spec *spec, size_t count) {
    size_t bytes = 0;
    for (uint32_t c = 0; c < spec->num_columns; c++)
        bytes += batch_column_room(&spec->columns[c], count);
    return bytes;
}

/* Points BATCH's columns into MEMORY of batch_bytes(SPEC, COUNT). */
static inline void batch_place(struct batch *batch,
                               const struct batch_spec *spec, void *memory,
                               size_t count) {
    char *at = memory;
    for (uint32_t c = 0; c < spec->num_columns; c++) {
        batch->columns[c] = at;
        at += batch_column_room(&spec->columns[c], count);
    }
}

/* The column of the labels; 0 of no columns. */
static inline uint32_t batch_label_column(const struct batch_spec *spec) {
    uint32_t c = spec->num_columns;
    while (c && spec->columns[c - 1].type >= BATCH_ROWS)
        c--;
    return c ? c - 1 : 0;
}

/* The column of the samples' weights; 0: none, which is 1 each. */
static inline uint32_t batch_weights_column(const struct batch_spec *spec) {
    uint32_t count = spec->num_columns;
    return count && spec->columns[count - 1].type == BATCH_WEIGHTS ? count - 1
                                                                   : 0;
}

/* Writes LABEL as sample I of COLUMN, whose values are VALUES.
 * FAILURE_DATA_DAMAGED if the column may not have it. */
enum status batch_put_label(const struct batch_column *column, float label,
                            void *values, uint32_t i,
                            struct failure *why) MUST_CHECK;

/* The ids of a batch of up to COUNT samples, none yet, for SPEC's id features
 * (*OUT is NULL without any). Their memory grows as samples are added. */
enum status batch_ids_open(struct batch_ids **out,
                           const struct batch_spec *spec, uint32_t count,
                           struct failure *why) MUST_CHECK;

/* Frees *IDS (may be NULL), which are of SPEC, and clears it. */
void batch_ids_close(struct batch_ids **ids, const struct batch_spec *spec);

/* What one thread has claimed of a source and then fills a batch from. All
 * zero: nothing. Threads reuse it. */
struct batch_claim {
    uint64_t number; /* of the batch */
    uint32_t count;  /* samples; 0: the source's epoch has no more */
    void *memory;
    size_t bytes;
    void *scratch; /* of the source, for this thread */
};

/* Room for BYTES in CLAIM's memory, which may move. */
enum status batch_claim_reserve(struct batch_claim *claim, size_t bytes,
                                struct failure *why) MUST_CHECK;

#endif
