/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/masked_crc.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void visit_record(void *context, const struct record *record) {
    (void)context;
    fuzz_touch(record->bytes, record->size);
}

/* Mends the checksums of the records that the file has whole, as no mutation
 * would. */
static void mend(uint8_t *bytes, size_t size) {
    size_t at = 0;
    while (size - at >= 16) {
        uint64_t length;
        uint32_t crc = masked_crc(bytes + at, sizeof length);
        memcpy(&length, bytes + at, sizeof length);
        memcpy(bytes + at + 8, &crc, sizeof crc);
        if (length > size - at - 16)
            return;
        crc = masked_crc(bytes + at + 12, length);
        memcpy(bytes + at + 12 + length, &crc, sizeof crc);
        at += 16 + length;
    }
}

/* An odd first byte: the rest as it is; else with right checksums. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    if (!size)
        return 0;
    uint8_t *copy = (uint8_t *)fuzz_text(bytes + 1, size - 1);
    if (!(*bytes & 1))
        mend(copy, size - 1);
    fuzz_records(&tfrecord_reader, copy, size - 1, &(struct record_cut){0},
                 visit_record, NULL);
    free(copy);
    return 0;
}
