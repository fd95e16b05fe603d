/* SPDX-License-Identifier: Apache-2.0 */
/* Checks everything that a header says of units in one pass, before the update
 * core sees it: they are on this ps, in the plan's order and so each once, in
 * the job's encoding, and as long as the payload. */
#include "ps/units/block_index.h"

#include "proto/plan/encoding.h"

#include <stdlib.h>

bool block_index_open(struct block_index *block_index,
                      const struct layout *layout, const uint32_t *ids,
                      uint32_t num_blocks, enum job_wire wire) {
    *block_index = (struct block_index){.layout = layout, .wire = wire};
    uint32_t units = layout_units(layout);
    block_index->local = malloc((units + 1) * sizeof(uint32_t));
    if (!block_index->local)
        return false;
    for (uint32_t b = 0; b < units; b++)
        block_index->local[b] = BLOCK_INDEX_NOT_LOCAL;
    for (uint32_t b = 0; b < num_blocks; b++)
        block_index->local[ids[b]] = b;
    return true;
}

void block_index_close(struct block_index *index) {
    free(index->local);
    index->local = NULL;
}

/* What is said of a message that is about other units than it may be. */
static const struct unit_texts {
    const char *absent, *order, *size;
} of_blocks = {"a block that is not on this ps",
               "blocks out of the plan's order",
               "a payload that is not the size of its blocks"},
  of_partitions = {"a partition that is not on this ps",
                   "partitions out of order",
                   "a payload that is not the size of its rows"};

static bool is_push(const Capstan__DataHeader *header) {
    return header->kind == CAPSTAN__DATA_HEADER__KIND__PUSH ||
           header->kind == CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS;
}

static bool is_empty_push(const Capstan__DataHeader *header) {
    return is_push(header) &&
           (header->encoding == CAPSTAN__DATA_HEADER__ENCODING__EMPTY ||
            header->encoding == CAPSTAN__DATA_HEADER__ENCODING__OVERFLOW ||
            header->encoding == CAPSTAN__DATA_HEADER__ENCODING__ZERO);
}

static bool has_payload(const Capstan__DataHeader *header) {
    return (is_push(header) && !is_empty_push(header)) ||
           header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN ||
           header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN_ROWS ||
           header->kind == CAPSTAN__DATA_HEADER__KIND__LOOKUP;
}

/* The encoding of a message's floats and of its reply's. Assigned weights,
 * snapshots and state end up in files, so they are float32 whatever the job's
 * wire. */
static enum job_wire expected_encoding(const struct block_index *index,
                                       const Capstan__DataHeader *header) {
    bool is_exact = header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN ||
                    header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN_ROWS ||
                    header->kind == CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS ||
                    header->snapshot || header->tensor;
    return is_exact ? JOB_WIRE_FLOAT32 : index->wire;
}

/* A push of rows, with gradients or without, may set some. */
static bool sizes_assigned(const Capstan__DataHeader *header) {
    return !header->n_assigned ||
           (header->kind == CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS &&
            header->n_assigned == header->n_blocks);
}

/* A query is about units of any kind. */
static bool block_index_has(const struct block_index *index,
                            const Capstan__DataHeader *header, bool of_rows,
                            uint32_t id) {
    return id < layout_units(index->layout) &&
           index->local[id] != BLOCK_INDEX_NOT_LOCAL &&
           (header->kind == CAPSTAN__DATA_HEADER__KIND__QUERY ||
            of_rows == (id >= index->layout->num_blocks));
}

const char *block_index_check(struct block_index *index,
                              Capstan__DataHeader *header, size_t payload) {
    enum job_wire wire = expected_encoding(index, header);
    bool of_rows = header->kind == CAPSTAN__DATA_HEADER__KIND__PUSH_ROWS ||
                   header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN_ROWS ||
                   header->kind == CAPSTAN__DATA_HEADER__KIND__LOOKUP;
    const struct unit_texts *texts = of_rows ? &of_partitions : &of_blocks;
    size_t bytes = 0;
    if (!is_empty_push(header) && header->encoding != encoding_name(wire))
        return wire == JOB_WIRE_BF16
                   ? "an encoding other than bf16, the job's wire: run the "
                     "same release of capstan everywhere"
                   : "an encoding other than float32";
    size_t sized = has_payload(header) ? header->n_blocks : 0;
    if (of_rows && (!header->n_blocks || header->n_sizes != sized))
        return "rows without the sizes of their partitions";
    if (!sizes_assigned(header))
        return "rows to be set without the sizes of their partitions";
    for (size_t i = 0; i < header->n_blocks; i++) {
        uint32_t id = header->blocks[i];
        if (!block_index_has(index, header, of_rows, id))
            return texts->absent;
        if (i && index->local[id] <= header->blocks[i - 1])
            return texts->order;
        header->blocks[i] = index->local[id];
        if (!has_payload(header))
            index->sizes[i] = 0;
        else if (of_rows)
            index->sizes[i] = header->sizes[i];
        else
            index->sizes[i] = (uint32_t)encoding_bytes(
                encoding_of_block(index->layout, id, wire),
                index->layout->blocks[id].elements);
        index->assigned[i] = header->n_assigned ? header->assigned[i] : 0;
        bytes += (size_t)index->sizes[i] + index->assigned[i];
    }
    return payload == bytes ? NULL : texts->size;
}
