/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/npz.h"

#include <archive.h>
#include <archive_entry.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADER_BYTES = 128, /* of an array; a multiple of 64 that holds four dims */
    PREFIX_BYTES = 10,  /* magic, version, length */
};

struct npz {
    struct archive *archive;
    struct atomic_file *file;
    enum status status; /* of the last write */
    struct failure *why;
};

static la_ssize_t write_piece(struct archive *archive, void *context,
                              const void *bytes, size_t size) {
    (void)archive;
    struct npz *npz = context;
    npz->status = atomic_file_write(npz->file, bytes, size, npz->why);
    return npz->status ? -1 : (la_ssize_t)size;
}

static void npz_make_header(const struct npz_array *array,
                            char header[HEADER_BYTES]) {
    static const unsigned char prefix[PREFIX_BYTES] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, HEADER_BYTES - PREFIX_BYTES, 0};
    memset(header, ' ', HEADER_BYTES);
    memcpy(header, prefix, PREFIX_BYTES);
    char *text = header + PREFIX_BYTES;
    size_t room = HEADER_BYTES - PREFIX_BYTES;
    size_t used = (size_t)snprintf(
        text, room, "{'descr': '%s', 'fortran_order': False, 'shape': (",
        array->descr);
    for (uint32_t d = 0; d < array->num_dims; d++)
        used += (size_t)snprintf(text + used, room - used, "%" PRIu64 ", ",
                                 array->shape[d]);
    used += (size_t)snprintf(text + used, room - used, "), }");
    text[used] = ' '; /* replaces snprintf's final 0 */
    header[HEADER_BYTES - 1] = '\n';
}

/* Reports a failure of libarchive, unless the write has already reported
 * one. */
static enum status npz_failed(struct npz *npz, struct failure *why) {
    if (npz->status)
        return npz->status;
    const char *text = archive_error_string(npz->archive);
    return status_fail(why, FAILURE_FILE_UNWRITABLE, "cannot write %s: %s",
                       npz->file->path, text ? text : "libarchive failed");
}

static enum status npz_no_memory(const struct atomic_file *file,
                                 struct failure *why) {
    return status_fail(why, FAILURE_TOO_LITTLE_MEMORY, "%s: memory is short",
                       file->path);
}

/* libarchive takes at most 2 GiB at a time. */
enum status npz_append(struct npz *npz, const void *bytes, size_t size,
                       struct failure *why) {
    const char *at = bytes;
    npz->why = why;
    while (size) {
        la_ssize_t written = archive_write_data(npz->archive, at, size);
        if (written <= 0)
            return npz_failed(npz, why);
        at += written;
        size -= (size_t)written;
    }
    return STATUS_OK;
}

enum status npz_begin(struct npz *npz, const struct npz_array *array,
                      struct failure *why) {
    char name[LAYOUT_MAX_NAME + sizeof ".npy"], header[HEADER_BYTES];
    struct archive_entry *entry = archive_entry_new();
    if (!entry)
        return npz_no_memory(npz->file, why);
    snprintf(name, sizeof name, "%s.npy", array->name);
    archive_entry_set_pathname_utf8(entry, name);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, (la_int64_t)(HEADER_BYTES + array->bytes));
    npz_make_header(array, header);
    npz->why = why;
    /* A warning concerns a name, which the zip stores as it is. */
    bool began = archive_write_header(npz->archive, entry) >= ARCHIVE_WARN;
    archive_entry_free(entry);
    return began ? npz_append(npz, header, HEADER_BYTES, why)
                 : npz_failed(npz, why);
}

static bool open_archive(struct npz *npz) {
    struct archive *archive = npz->archive;
    /* The last block is not padded; names are UTF-8 in every locale. */
    return !archive_write_set_format_zip(archive) &&
           !archive_write_zip_set_compression_store(archive) &&
           !archive_write_set_bytes_in_last_block(archive, 1) &&
           !archive_write_set_options(archive, "hdrcharset=UTF-8") &&
           !archive_write_open(archive, npz, NULL, write_piece, NULL);
}

enum status npz_open(struct npz **out, struct atomic_file *file,
                     struct failure *why) {
    struct npz *npz = calloc(1, sizeof *npz);
    *out = npz;
    if (npz) {
        npz->archive = archive_write_new();
        npz->file = file;
        npz->why = why;
    }
    if (!npz || !npz->archive) {
        npz_close(out);
        return npz_no_memory(file, why);
    }
    if (open_archive(npz))
        return STATUS_OK;
    enum status status = npz_failed(npz, why);
    npz_close(out);
    return status;
}

enum status npz_finish(struct npz *npz, struct failure *why) {
    npz->why = why;
    return archive_write_close(npz->archive) ? npz_failed(npz, why) : STATUS_OK;
}

void npz_close(struct npz **where) {
    struct npz *npz = *where;
    *where = NULL;
    if (!npz)
        return;
    npz->why = NULL; /* closing writes the rest; the first text is kept */
    archive_write_free(npz->archive);
    free(npz);
}
