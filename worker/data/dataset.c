/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/dataset.h"

#include <stdlib.h>

enum status batch_claim_reserve(struct batch_claim *claim, size_t bytes,
                                struct failure *why) {
    if (bytes <= claim->bytes)
        return STATUS_OK;
    void *memory = malloc(bytes);
    if (!memory)
        return status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                           "no memory for the %zu bytes of a batch's samples",
                           bytes);
    free(claim->memory);
    claim->memory = memory;
    claim->bytes = bytes;
    return STATUS_OK;
}

void dataset_free(struct dataset **dataset) {
    if (dataset && *dataset)
        (*dataset)->table->free(dataset);
}
