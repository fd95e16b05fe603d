/* SPDX-License-Identifier: Apache-2.0 */
/* Checks everything that a header says of blocks in one pass, before the update
 * core sees it: the blocks are on this ps, in the plan's order and so each
 * once, in the job's encoding, and as long as the payload. */
#include "ps/dense/block_index.h"

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

static bool is_empty_push(const Capstan__DataHeader *header) {
    return header->kind == CAPSTAN__DATA_HEADER__KIND__PUSH &&
           (header->encoding == CAPSTAN__DATA_HEADER__ENCODING__EMPTY ||
            header->encoding == CAPSTAN__DATA_HEADER__ENCODING__OVERFLOW ||
            header->encoding == CAPSTAN__DATA_HEADER__ENCODING__ZERO);
}

/* The encoding of a message's floats and of its reply's. Assigned weights,
 * snapshots and state end up in files, so they are float32 whatever the job's
 * wire. */
static enum job_wire expected_encoding(const struct block_index *index,
                                       const Capstan__DataHeader *header) {
    bool is_exact = header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN ||
                    header->snapshot || header->tensor;
    return is_exact ? JOB_WIRE_FLOAT32 : index->wire;
}

const char *block_index_check(const struct block_index *index,
                              Capstan__DataHeader *header, size_t payload) {
    enum job_wire wire = expected_encoding(index, header);
    size_t bytes = 0;
    if (!is_empty_push(header) && header->encoding != encoding_name(wire))
        return wire == JOB_WIRE_BF16
                   ? "an encoding other than bf16, the job's wire: run the "
                     "same release of capstan everywhere"
                   : "an encoding other than float32";
    for (size_t i = 0; i < header->n_blocks; i++) {
        uint32_t id = header->blocks[i];
        uint32_t known = header->kind == CAPSTAN__DATA_HEADER__KIND__QUERY
                             ? layout_units(index->layout)
                             : index->layout->num_blocks;
        if (id >= known || index->local[id] == BLOCK_INDEX_NOT_LOCAL)
            return "a block that is not on this ps";
        if (i && index->local[id] <= header->blocks[i - 1])
            return "blocks out of the plan's order";
        header->blocks[i] = index->local[id];
        if (id >= index->layout->num_blocks)
            continue; /* a partition, whose push is asked for */
        bytes += encoding_bytes(encoding_of_block(index->layout, id, wire),
                                index->layout->blocks[id].elements);
    }
    bool is_push = header->kind == CAPSTAN__DATA_HEADER__KIND__PUSH;
    bool has_payload = (is_push && !is_empty_push(header)) ||
                       header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN;
    return payload == (has_payload ? bytes : 0)
               ? NULL
               : "a payload that is not the size of its blocks";
}
