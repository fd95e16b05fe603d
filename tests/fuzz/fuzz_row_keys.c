/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/row_keys.h"

#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TABLES = 5, STACKS = 2 };

static const struct layout *layout_of_tables(void) {
    static struct layout *layout;
    struct parameter parameter = {.name = "p"};
    struct table tables[TABLES] = {0};
    struct failure why;
    if (layout)
        return layout;
    for (uint32_t t = 0; t < TABLES; t++) {
        snprintf(tables[t].name, LAYOUT_MAX_NAME, "t%u", t);
        tables[t].dim = 1 + t % STACKS;
    }
    fuzz_require(!layout_build(&layout, &parameter, 1, &why) &&
                     !layout_add_tables(layout, tables, TABLES, 8, &why) &&
                     layout->num_stacks == STACKS,
                 "there is a layout");
    return layout;
}

static void expect_same(const struct row_keys *a, const struct row_keys *b) {
    size_t count = a->count;
    fuzz_require(count == b->count, "lists are as long when read again");
    fuzz_require(!count ||
                     (!memcmp(a->ids, b->ids, count * sizeof *a->ids) &&
                      !memcmp(a->tables, b->tables, count * sizeof *a->tables)),
                 "lists that were read and written are the same");
}

static void free_all(struct row_keys keys[STACKS]) {
    for (int s = 0; s < STACKS; s++)
        row_keys_free(&keys[s]);
}

/* Lists of rows off the wire: those that are read are written, and are read
 * again. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    const struct layout *layout = layout_of_tables();
    struct row_keys keys[STACKS] = {{0}}, again[STACKS] = {{0}};
    size_t used, read;
    struct failure why;
    if (fuzz_is_read(row_keys_read(layout, bytes, size, keys, &used, &why),
                     &why)) {
        unsigned char *to = malloc(row_keys_most_bytes(layout, keys) + 1);
        fuzz_require(to && used <= size, "it fits");
        size_t written = row_keys_write(layout, keys, to);
        fuzz_require(!row_keys_read(layout, to, written, again, &read, &why) &&
                         read == written && written <= used,
                     "lists that were written are read, and are not longer");
        for (int s = 0; s < STACKS; s++)
            expect_same(&keys[s], &again[s]);
        free(to);
    }
    free_all(keys);
    free_all(again);
    return 0;
}
