/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/fuzz.h"

static void visit_record(void *context, const struct record *record) {
    (void)context;
    fuzz_touch(record->bytes, record->size);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    fuzz_records(&safetensors_reader, bytes, size, 0, visit_record, NULL);
    return 0;
}
