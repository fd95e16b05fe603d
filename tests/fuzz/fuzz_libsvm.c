/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/libsvm_format.h"

#include "tests/fuzz/fuzz.h"

static void visit_line(void *context, const struct record *record) {
    struct libsvm_format *format = context;
    struct failure why;
    bool empty;
    if (fuzz_is_read(libsvm_format_read(format, record, &empty, &why), &why) &&
        !empty)
        fuzz_touch_cell(&format->pairs);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct libsvm_format format = {0};
    fuzz_lines(bytes, size, visit_line, &format);
    libsvm_format_close(&format);
    return 0;
}
