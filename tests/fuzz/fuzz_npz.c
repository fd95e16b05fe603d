/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/fuzz.h"

/* NumPy's archives and structured arrays, plain and compressed; what a file
 * begins with tells. All arrays, and one. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static const char *const names[] = {"x"};
    static const struct record_cut cuts[] = {{.names = NULL},
                                             {.names = names, .num_names = 1}};
    for (int c = 0; c < 2; c++) {
        fuzz_records(&npz_reader, bytes, size, &cuts[c], fuzz_touch_row,
                     (void *)&cuts[c]);
        fuzz_records(&npy_reader, bytes, size, &cuts[c], fuzz_touch_row,
                     (void *)&cuts[c]);
    }
    return 0;
}
