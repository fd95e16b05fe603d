/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/csv_format.h"

#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

struct table {
    struct csv_format *format;
    bool header; /* the next record is one */
    bool refused;
};

static void visit_record(void *context, const struct record *record) {
    struct table *table = context;
    struct csv_format_row row;
    struct failure why;
    uint32_t count;
    if (table->refused)
        return;
    if (table->header) {
        table->refused = !fuzz_is_read(
            csv_format_take_header(table->format, record, &why), &why);
        table->header = false;
        return;
    }
    if (!fuzz_is_read(csv_format_read(table->format, record, &row, &why), &why))
        return;
    (void)csv_format_columns(table->format, &count);
    for (uint32_t c = 0; c < count; c++)
        fuzz_touch_cell(&row.cells[c]);
}

/* The first byte says how the rest is read: by which delimiter, with a header
 * or not, and with which keys of the job. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static const char *const names[] = {"label", "weight", "a"};
    static const char *const missing[] = {"NA", "?"};
    struct csv_format_options options = {.label = "label"};
    struct table table = {.header = true};
    struct failure why;
    if (!size)
        return 0;
    options.delimiter = ",;\t|"[*bytes & 3];
    options.weight = *bytes & 4 ? "weight" : NULL;
    table.header = *bytes & 8;
    options.names = table.header ? NULL : names;
    options.num_names = 3;
    options.trim = *bytes & 16;
    options.missing = missing;
    options.num_missing = *bytes & 32 ? 2 : 0;
    options.decimal_comma = *bytes & 64;
    fuzz_require(!csv_format_open(&table.format, &options, &why), "it opens");
    fuzz_records(options.trim ? &trimmed_line_reader : &quoted_line_reader,
                 bytes + 1, size - 1,
                 &(struct record_cut){.delimiter = options.delimiter},
                 visit_record, &table);
    csv_format_close(&table.format);
    return 0;
}
