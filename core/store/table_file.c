/* SPDX-License-Identifier: Apache-2.0 */
/* npz has all ids before all weights: the rows are merged twice. */
#include "core/store/table_file.h"

#include "core/store/atomic_file.h"
#include "core/store/fs_info.h"
#include "core/store/npz.h"
#include "core/store/row_merge.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LINE_BUFFER = 256 << 10,
    ID_CHARACTERS = 21,     /* of a line, with the line's end */
    NUMBER_CHARACTERS = 17, /* ",-1.23456789e-38" */
};
_Static_assert(ID_CHARACTERS + NUMBER_CHARACTERS * LAYOUT_MAX_DIM < LINE_BUFFER,
               "a line does not fit");

enum status table_format_of(const char *path, enum table_format *format,
                            struct failure *why) {
    const char *ending = strrchr(path, '.');
    bool is_npz = ending && strcmp(ending, ".npz") == 0;
    *format = is_npz ? TABLE_NPZ : TABLE_CSV;
    if (is_npz || (ending && strcmp(ending, ".csv") == 0))
        return STATUS_OK;
    return status_fail(
        why, FAILURE_WEIGHTS_INVALID,
        "%s: the name of a file of rows ends in .npz or .csv, or "
        "--format names one of them",
        path);
}

/* The next row that is admitted; NULL: the end. */
static const struct row *next_admitted(struct row_merge *merge,
                                       const struct table_source *source) {
    const struct table *table =
        &source->manifest->layout->tables[source->table];
    const struct row *row;
    do
        row = row_merge_next(merge);
    while (row && row->count < table->admit);
    return row;
}

static enum status check_row_count(const struct table_source *source,
                                   uint64_t count, struct failure *why) {
    uint64_t wanted = source->manifest->tables[source->table].count.admitted;
    if (count == wanted)
        return STATUS_OK;
    return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                       "table \"%s\" has %" PRIu64
                       " admitted rows, its manifest says %" PRIu64,
                       source->manifest->layout->tables[source->table].name,
                       count, wanted);
}

/* Appends the ids of all rows, or their weights, as an array of NPZ. */
static enum status append_rows(struct npz *npz,
                               const struct table_source *source, bool ids,
                               struct failure *why) {
    const struct layout *layout = source->manifest->layout;
    uint64_t count = source->manifest->tables[source->table].count.admitted;
    uint32_t dim = layout->tables[source->table].dim;
    size_t bytes = ids ? sizeof(uint64_t) : dim * sizeof(float);
    struct npz_array array = {.name = ids ? "ids" : "weights",
                              .descr = ids ? "<u8" : "<f4",
                              .shape = {count, dim},
                              .num_dims = ids ? 1 : 2,
                              .bytes = count * bytes};
    struct row_merge merge;
    const struct row *row;
    uint64_t appended = 0;
    enum status status = row_merge_open(&merge, source->reader,
                                        source->manifest, source->table, why);
    if (!status)
        status = npz_begin(npz, &array, why);
    for (; !status && (row = next_admitted(&merge, source)); appended++)
        status = appended == count
                     ? check_row_count(source, appended + 1, why)
                     : npz_append(npz, ids ? (const void *)&row->id : row + 1,
                                  bytes, why);
    row_merge_close(&merge);
    return status ? status : check_row_count(source, appended, why);
}

static enum status write_npz(struct atomic_file *file,
                             const struct table_source *source,
                             struct failure *why) {
    struct npz *npz;
    enum status status = npz_open(&npz, file, why);
    if (!status)
        status = append_rows(npz, source, true, why);
    if (!status)
        status = append_rows(npz, source, false, why);
    if (!status)
        status = npz_finish(npz, why);
    npz_close(&npz);
    return status;
}

/* Nine digits give the same float back. */
static size_t format_row(const struct row *row, uint32_t dim, char *text) {
    const float *weights = (const float *)(row + 1);
    size_t used = (size_t)sprintf(text, "%" PRIu64, row->id);
    for (uint32_t e = 0; e < dim; e++)
        used += (size_t)sprintf(text + used, ",%.9g", (double)weights[e]);
    text[used++] = '\n';
    return used;
}

static size_t format_names(uint32_t dim, char *text) {
    size_t used = (size_t)sprintf(text, "id");
    for (uint32_t e = 0; e < dim; e++)
        used += (size_t)sprintf(text + used, ",w%" PRIu32, e);
    text[used++] = '\n';
    return used;
}

static enum status write_lines(struct atomic_file *file,
                               const struct table_source *source, char *text,
                               struct failure *why) {
    uint32_t dim = source->manifest->layout->tables[source->table].dim;
    size_t line = ID_CHARACTERS + (size_t)NUMBER_CHARACTERS * dim;
    size_t used = format_names(dim, text);
    struct row_merge merge;
    const struct row *row;
    uint64_t count = 0;
    enum status status = row_merge_open(&merge, source->reader,
                                        source->manifest, source->table, why);
    for (; !status && (row = next_admitted(&merge, source)); count++) {
        if (used + line > LINE_BUFFER) {
            status = atomic_file_write(file, text, used, why);
            used = 0;
        }
        used += format_row(row, dim, text + used);
    }
    row_merge_close(&merge);
    if (!status)
        status = atomic_file_write(file, text, used, why);
    return status ? status : check_row_count(source, count, why);
}

static enum status table_file_write_csv(struct atomic_file *file,
                                        const struct table_source *source,
                                        struct failure *why) {
    char *text = malloc(LINE_BUFFER);
    if (!text)
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "%s", file->path);
    enum status status = write_lines(file, source, text, why);
    free(text);
    return status;
}

enum status table_file_write(const char *path, enum table_format format,
                             const struct table_source *source,
                             struct failure *why) {
    struct atomic_file file;
    char folder[PATH_MAX];
    const struct manifest *manifest = source->manifest;
    uint64_t bytes =
        manifest->tables[source->table].count.admitted *
        (sizeof(uint64_t) +
         manifest->layout->tables[source->table].dim * sizeof(float));
    enum status status =
        fs_info_parent_folder(path, folder, sizeof folder, why);
    if (!status)
        status = fs_info_check_space(folder, path, bytes, why);
    if (!status)
        status = atomic_file_create(&file, path, bytes, why);
    if (status)
        return status;
    return atomic_file_finish(&file,
                              format == TABLE_NPZ
                                  ? write_npz(&file, source, why)
                                  : table_file_write_csv(&file, source, why),
                              why);
}
