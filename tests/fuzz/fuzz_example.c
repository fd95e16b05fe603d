/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/example_format.h"

#include "tests/fuzz/fuzz.h"

static void visit_name(void *context, const struct record_text *name) {
    (void)context;
    fuzz_touch(name->bytes, name->size);
}

/* The input twice, as the second record is read by what the first has taught.
 */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static const char *const names[] = {"a", "label", "x"};
    struct record record = {.bytes = (char *)(uintptr_t)bytes, .size = size};
    const struct record_cell *cells;
    struct example_format *format;
    struct failure why;
    fuzz_require(!example_format_open(&format, names, 3, &why), "it opens");
    for (int turn = 0; turn < 2; turn++)
        if (fuzz_is_read(example_format_read(format, &record, &cells, &why),
                         &why))
            for (int c = 0; c < 3; c++)
                fuzz_touch_cell(&cells[c]);
    (void)fuzz_is_read(example_format_names(&record, visit_name, NULL, &why),
                       &why);
    example_format_close(&format);
    return 0;
}
