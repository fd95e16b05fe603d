/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/batch.h"

#include <math.h>
#include <stdlib.h>

enum status batch_ids_open(struct batch_ids **out,
                           const struct batch_spec *spec, uint32_t count,
                           struct failure *why) {
    *out = NULL;
    if (!spec->num_ids)
        return STATUS_OK;
    struct batch_ids *ids = calloc(spec->num_ids, sizeof *ids);
    bool complete = ids;
    for (uint32_t i = 0; complete && i < spec->num_ids; i++) {
        ids[i].offsets = calloc((size_t)count + 1, sizeof *ids->offsets);
        complete = ids[i].offsets;
    }
    if (!complete) {
        batch_ids_close(&ids, spec);
        return status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                           "no memory for the ids of %u features in batches "
                           "of %u samples",
                           spec->num_ids, count);
    }
    *out = ids;
    return STATUS_OK;
}

void batch_ids_close(struct batch_ids **where, const struct batch_spec *spec) {
    struct batch_ids *ids = *where;
    for (uint32_t i = 0; ids && i < spec->num_ids; i++) {
        free(ids[i].offsets);
        free(ids[i].ids);
        free(ids[i].weights);
    }
    free(ids);
    *where = NULL;
}

enum status batch_put_label(const struct batch_column *column, float label,
                            void *values, uint32_t i, struct failure *why) {
    if (column->type == BATCH_FLOATS) {
        ((float *)values)[i] = label;
        if (column->max <= column->min || label == column->min ||
            label == column->max)
            return STATUS_OK;
        return status_fail(why, FAILURE_DATA_DAMAGED,
                           "label: found %g, expected %g or %g", (double)label,
                           (double)column->min, (double)column->max);
    }
    if (label < 0 || label >= (float)column->num_classes ||
        label != floorf(label))
        return status_fail(why, FAILURE_DATA_DAMAGED,
                           "label: found %g, expected a class, an integer from "
                           "0 to %u",
                           (double)label, column->num_classes - 1);
    ((uint32_t *)values)[i] = (uint32_t)label;
    return STATUS_OK;
}

enum status batch_claim_reserve(struct batch_claim *claim, size_t bytes,
                                struct failure *why) {
    if (bytes <= claim->bytes)
        return STATUS_OK;
    void *memory = realloc(claim->memory, bytes);
    if (!memory)
        return status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                           "no memory for the %zu bytes of a batch's samples",
                           bytes);
    claim->memory = memory;
    claim->bytes = bytes;
    return STATUS_OK;
}
