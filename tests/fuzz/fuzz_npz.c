/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/fuzz.h"

static void visit_array(void *context, const struct record *record) {
    (void)context;
    fuzz_touch(record->bytes, record->size);
}

/* NumPy's archives and structured arrays, plain and compressed; what a file
 * begins with tells. All arrays, and one. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static const char *const names[] = {"x"};
    static const struct record_cut cuts[] = {{.names = NULL},
                                             {.names = names, .num_names = 1}};
    for (int c = 0; c < 2; c++) {
        fuzz_records(&npz_reader, bytes, size, &cuts[c], visit_array, NULL);
        fuzz_records(&npy_reader, bytes, size, &cuts[c], visit_array, NULL);
    }
    return 0;
}
