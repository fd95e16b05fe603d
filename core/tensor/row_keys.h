/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows a message is about: ids by table, for each stack of tables, as
 * lists in memory and as the first part of a partition's bytes in a message.
 *
 * There each stack, in order, has the number of ids of each of its tables,
 * packed; then the ids of each stack, ascending within a table: 8 bytes each,
 * little-endian, or where that is shorter the differences from the one before,
 * packed. The first byte tells which: ROW_KEYS_PLAIN or ROW_KEYS_DELTA. Floats
 * follow in the same order.
 *
 * Packed numbers: the bytes of each, less 1, in 4 bits, the first of a byte's
 * two in its lower half; then all numbers, in as few bytes as they need, 1 to
 * 8, little-endian. (As Stream VByte: Lemire, Kurz, Rupp 2018.) */
#ifndef CAPSTAN_ROW_KEYS_H
#define CAPSTAN_ROW_KEYS_H

#include "core/base/status.h"
#include "core/tensor/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { ROW_KEYS_PLAIN, ROW_KEYS_DELTA };

/* A row as ps and checkpoints have it: followed by its floats, weights and then
 * each state tensor, [dim] each, in a multiple of 8 bytes. */
struct row {
    uint64_t id;
    uint32_t touched; /* low half of its last update's number */
    uint16_t table;
    uint16_t count; /* pushes, up to the number that admits it */
};

enum {
    ROW_FLOATS = sizeof(struct row) / sizeof(float), /* in the memory of one */
    ROW_NO_TABLE = UINT16_MAX                        /* of no row */
};

/* Bytes of a row of DIM floats with SLOTS state tensors. */
size_t row_keys_row_bytes(uint32_t dim, unsigned slots);

/* Rows of one stack, ascending by table, then id, each once. */
struct row_keys {
    uint32_t count, room;
    uint64_t *ids;    /* [room] */
    uint16_t *tables; /* [room] */
};

/* Copies a row of DIM floats, at any alignment; common ones without a call. */
static inline void row_keys_copy_row(void *to, const void *from, uint32_t dim) {
    switch (dim) {
    case 1:
        memcpy(to, from, sizeof(float));
        return;
    case 8:
        memcpy(to, from, 8 * sizeof(float));
        return;
    case 16:
        memcpy(to, from, 16 * sizeof(float));
        return;
    default:
        memcpy(to, from, dim * sizeof(float));
    }
}

/* Room for COUNT rows; false: no memory. */
bool row_keys_reserve(struct row_keys *keys, size_t count);

/* Frees the lists, not the struct. */
void row_keys_free(struct row_keys *keys);

/* Room for KEYS [num_stacks] in a message, in bytes, whatever their ids. */
size_t row_keys_most_bytes(const struct layout *layout,
                           const struct row_keys *keys);

/* Writes them in their shorter form to TO, which has that room; returns how
 * many bytes they take. */
size_t row_keys_write(const struct layout *layout, const struct row_keys *keys,
                      unsigned char *to);

/* Reads KEYS [num_stacks] from the begin of BYTES [SIZE]; *USED of them.
 * FAILURE_BAD_MESSAGE if they are no such lists, or have a row twice;
 * FAILURE_NO_MEMORY. */
enum status row_keys_read(const struct layout *layout, const void *bytes,
                          size_t size, struct row_keys *keys, size_t *used,
                          struct failure *why) MUST_CHECK;

/* Floats of one row for each of KEYS [num_stacks]. */
size_t row_keys_floats(const struct layout *layout,
                       const struct row_keys *keys);

/* The width of a stack's rows. */
uint32_t row_keys_dim(const struct layout *layout, uint32_t stack);

#endif
