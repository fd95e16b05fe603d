/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static const char *const names[] = {"x"};
    static const struct record_cut cuts[] = {{.names = NULL},
                                             {.names = names, .num_names = 1}};
    for (int c = 0; c < 2; c++)
        fuzz_records(&safetensors_reader, bytes, size, &cuts[c], fuzz_touch_row,
                     (void *)&cuts[c]);
    return 0;
}
