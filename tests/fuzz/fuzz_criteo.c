/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/csv_format.h"

#include "tests/fuzz/fuzz.h"

static void visit_line(void *context, const struct record *record) {
    struct csv_format_row row;
    struct failure why;
    uint32_t count;
    if (!fuzz_is_read(csv_format_read(context, record, &row, &why), &why))
        return;
    (void)csv_format_columns(context, &count);
    fuzz_require(count == 39, "a line has 39 columns beside the label");
    for (uint32_t c = 0; c < count; c++)
        fuzz_touch_cell(&row.cells[c]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    const struct csv_format_options options = {.criteo = true};
    struct csv_format *format;
    struct failure why;
    fuzz_require(!csv_format_open(&format, &options, &why), "it opens");
    fuzz_lines(bytes, size, visit_line, format);
    csv_format_close(&format);
    return 0;
}
