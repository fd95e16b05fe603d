/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that a header says of blocks is checked here in one pass, before
 * the exchange hears of any: that they are this ps's, in the plan's order and
 * so none twice, in the job's encoding, and as long as the payload. */
#include "ps/dense/holding.h"

#include "proto/tensor/encoding.h"

#include <stdlib.h>

bool holding_open(struct holding *holding, const struct layout *layout,
                  const uint32_t *ids, uint32_t num_blocks,
                  enum job_wire wire) {
    *holding = (struct holding){.layout = layout, .wire = wire};
    holding->local = malloc((layout->num_blocks + 1) * sizeof(uint32_t));
    if (!holding->local)
        return false;
    for (uint32_t b = 0; b < layout->num_blocks; b++)
        holding->local[b] = HOLDING_NOT_MINE;
    for (uint32_t b = 0; b < num_blocks; b++)
        holding->local[ids[b]] = b;
    return true;
}

void holding_close(struct holding *holding) {
    free(holding->local);
    holding->local = NULL;
}

static bool is_empty_push(const Capstan__DataHeader *header) {
    return header->kind == CAPSTAN__DATA_HEADER__KIND__PUSH &&
           (header->encoding == CAPSTAN__DATA_HEADER__ENCODING__EMPTY ||
            header->encoding == CAPSTAN__DATA_HEADER__ENCODING__VOID);
}

/* What a message's floats are in, and its answer's: files are made of what is
 * assigned and of snapshots. */
static enum job_wire wire_of(const struct holding *holding,
                             const Capstan__DataHeader *header) {
    bool whole =
        header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN ||
        (header->kind == CAPSTAN__DATA_HEADER__KIND__PULL && header->snapshot);
    return whole ? JOB_FLOAT32 : holding->wire;
}

const char *holding_check(const struct holding *holding,
                          Capstan__DataHeader *header, size_t payload) {
    enum job_wire wire = wire_of(holding, header);
    size_t elements = 0;
    if (!is_empty_push(header) && header->encoding != encoding_name(wire))
        return wire == JOB_BF16
                   ? "an encoding other than bf16, the job's wire: run the "
                     "same release of capstan everywhere"
                   : "an encoding other than float32";
    for (size_t i = 0; i < header->n_blocks; i++) {
        uint32_t id = header->blocks[i];
        if (id >= holding->layout->num_blocks ||
            holding->local[id] == HOLDING_NOT_MINE)
            return "a block that is not of this ps";
        if (i && holding->local[id] <= header->blocks[i - 1])
            return "blocks out of the plan's order";
        header->blocks[i] = holding->local[id];
        elements += holding->layout->blocks[id].elements;
    }
    bool pushes = header->kind == CAPSTAN__DATA_HEADER__KIND__PUSH;
    bool carries = (pushes && !is_empty_push(header)) ||
                   header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN;
    return payload == (carries ? encoding_bytes(wire, elements) : 0)
               ? NULL
               : "a payload that has not the size of its blocks";
}
