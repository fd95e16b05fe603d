/* SPDX-License-Identifier: Apache-2.0 */
/* Partition of the parameters into blocks, the unit of placement, update and
 * checkpoint. It depends only on the shapes, not on the number of ps. */
#ifndef CAPSTAN_LAYOUT_H
#define CAPSTAN_LAYOUT_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

enum {
    LAYOUT_MAX_DIMS = 8,
    LAYOUT_MAX_NAME = 128,
    LAYOUT_MAX_PARAMETERS = 1 << 16,
    LAYOUT_MAX_BLOCKS = 1 << 24,
    LAYOUT_MAX_TABLES = 1 << 12,
    LAYOUT_MAX_DIM = 4096, /* floats of a table's row */
    LAYOUT_MAX_ADMIT = UINT16_MAX,
    LAYOUT_PARTITIONS = 256, /* of a run on up to 64 ps */
    LAYOUT_MAX_PARTITIONS = 1 << 14,
};
#define LAYOUT_MAX_ELEMENTS (UINT64_C(1) << 40)

/* What trainers contribute to a parameter, and what its update makes of it. */
enum parameter_kind {
    PARAMETER_TRAINED,  /* gradients; by the optimizer of its group */
    PARAMETER_AVERAGED, /* values; their mean. With staleness each push moves
                           the weights towards its values by 1/n of the distance
                         */
    PARAMETER_ASSIGNED, /* values of the lowest rank that brings any */
    PARAMETER_KINDS
};

enum parameter_dtype {
    PARAMETER_FLOAT32,
    PARAMETER_INT64, /* ASSIGNED only; each value lies in two elements */
    PARAMETER_DTYPES
};

/* A named tensor, row-major; a scalar has no dims. Initial weights are those of
 * an initializer with these values: uniform in [-init_bound, init_bound) where
 * the others are 0; or rank 0 sends them. */
struct parameter {
    char name[LAYOUT_MAX_NAME];
    uint32_t num_dims, dims[LAYOUT_MAX_DIMS];
    float init_bound, init_shift;
    uint32_t init_kind;   /* initializer.h */
    uint32_t kind, dtype; /* enums above */
    uint32_t group;       /* of the optimizer: plan.h */
    uint32_t values;      /* 1: rank 0 sends the initial weights */
    uint64_t elements;    /* floats of memory */
};

/* Rows of DIM floats by 64-bit id. A row that no push has created has an
 * initial value, as a parameter has, that follows from the job's seed, the
 * table's number and the id. */
struct table {
    char name[LAYOUT_MAX_NAME];
    uint32_t dim;
    float init_bound, init_shift;
    uint32_t init_kind;
    uint32_t optimizer; /* 0: the run's, else 1 + its place in the plan's
                           table_groups */
    uint32_t admit;    /* pushes before a row is admitted and counts; 0: none */
    uint64_t expire;   /* updates without a push that remove a row; 0: never */
    uint64_t max_rows; /* of all ps together; 0: no limit */
    uint32_t stack;  /* computed: tables of one width, optimizer, admission and
                        expiry are stored together, numbered from 0 */
    uint32_t unused; /* 0: no padding in layout_digest */
    /* Not of its identity: not in layout_digest, nor in a manifest. */
    uint64_t num_ids; /* how many there are; 0: any */
    bool assigned;    /* rank 0 sends rows before the first step */
};

/* ELEMENTS floats of PARAMETER, starting at OFFSET (in floats). */
struct block {
    uint32_t parameter;
    uint32_t elements;
    uint64_t offset;
};

/* Parameters in model order. Blocks in the plan's order, which is the order
 * of every push: last parameter first, within it ascending. A parameter's
 * blocks are first_block[p] .. first_block[p] + num_blocks_of[p] - 1. */
struct layout {
    uint32_t num_parameters, num_blocks;
    struct parameter *parameters;
    struct block *blocks;
    uint32_t *first_block, *num_blocks_of;
    uint64_t elements;       /* of all parameters */
    uint32_t block_elements; /* of a full block */

    /* Tables: the rows of all are in `num_partitions` partitions, by hash. In
     * messages, gate and ledger partition p is block num_blocks + p. */
    uint32_t num_tables, num_stacks, num_partitions;
    struct table *tables;
    uint32_t *stacked;       /* [num_tables]: by stack, then number */
    uint32_t *first_stacked; /* [num_stacks + 1]: where a stack begins there */
};

/* Bytes of a full block for TOTAL_BYTES of weights: total / 512 within
 * [64 KiB, 1 MiB], rounded up to 64 KiB. */
uint32_t layout_block_bytes(uint64_t total_bytes);

/* Copies PARAMETERS (`elements` is computed here). STATUS_CONFIG if there are
 * none, a name is empty, too long or duplicate, a dimension is 0, a bound is
 * negative or not finite, kind and data type do not fit each other, or a limit
 * above is exceeded. The caller frees *OUT,
 * NULL on failure. */
enum status layout_build(struct layout **out,
                         const struct parameter *parameters, uint32_t count,
                         struct failure *why) MUST_CHECK;

/* Copies TABLES, whose names no parameter has, to LAYOUT, which has none. Fails
 * as layout_build; also if a width is not 1 to LAYOUT_MAX_DIM. */
enum status layout_add_tables(struct layout *layout, const struct table *tables,
                              uint32_t count, uint32_t num_partitions,
                              struct failure *why) MUST_CHECK;

/* Blocks and partitions. */
uint32_t layout_units(const struct layout *layout);

/* The first table of STACK, whose width, optimizer, admission and expiry are
 * those of all its tables. */
static inline const struct table *layout_first_table(
    const struct layout *layout, uint32_t stack) {
    return &layout->tables[layout->stacked[layout->first_stacked[stack]]];
}

/* The block that is unit ID; NULL: ID is a partition. */
static inline const struct block *layout_block(const struct layout *layout,
                                               uint32_t id) {
    return id < layout->num_blocks ? &layout->blocks[id] : NULL;
}

/* A hash of a row's identity; its upper half decides the partition. Steele,
 * Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014: the
 * finalizer of SplitMix64, over the table's own starting point. */
static inline uint64_t layout_row_hash(uint32_t table, uint64_t id) {
    uint64_t x = id + UINT64_C(0x9e3779b97f4a7c15) * (table + UINT64_C(1));
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static inline uint32_t layout_partition(const struct layout *layout,
                                        uint64_t row_hash) {
    return (uint32_t)((row_hash >> 32) * layout->num_partitions >> 32);
}

/* Frees *LAYOUT (may be NULL) and clears it. */
void layout_free(struct layout **layout);

/* A hash of all parameters and tables. */
uint64_t layout_digest(const struct layout *layout);

/* Does rank 0 send rows of any table before the first step? */
bool layout_assigns_rows(const struct layout *layout);

/* Writes the initial weights of block B: element e of parameter p is Philox
 * (seed, stream p, position e). WEIGHTS: blocks[b].elements floats. */
void layout_init_block(const struct layout *layout, uint32_t b, uint64_t seed,
                       float *weights);

/* Writes the initial weights [dim] of table T's row ID: stream ID of a Philox
 * key that seed and table give. */
void layout_init_row(const struct layout *layout, uint32_t t, uint64_t id,
                     uint64_t seed, float *weights);

/* Takes the parts "_orig_mod." out of NAME, which torch.compile adds to the
 * names of a model that other processes may have without it. */
void layout_plain_name(char *name);

/* Writes `"w" [3, 4] float32 trained of group 0` of PARAMETER, or "none" if
 * there is no such. */
void layout_describe_parameter(const struct layout *layout, uint32_t parameter,
                               char *text, size_t size);

#endif
