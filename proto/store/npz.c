/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/store/npz.h"

#include <archive.h>
#include <archive_entry.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum {
    HEADER_BYTES = 128, /* of an array; a multiple of 64 that holds four dims */
    PREFIX_BYTES = 10,  /* magic, version, length */
};

/* The output that libarchive writes to. */
struct sink {
    struct atomic_file *file;
    enum status status; /* of the last write */
    struct failure *why;
};

static la_ssize_t write_piece(struct archive *archive, void *context,
                              const void *bytes, size_t size) {
    (void)archive;
    struct sink *sink = context;
    sink->status = atomic_file_write(sink->file, bytes, size, sink->why);
    return sink->status ? -1 : (la_ssize_t)size;
}

static void npz_make_header(const struct parameter *tensor,
                            char header[HEADER_BYTES]) {
    static const unsigned char prefix[PREFIX_BYTES] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, HEADER_BYTES - PREFIX_BYTES, 0};
    memset(header, ' ', HEADER_BYTES);
    memcpy(header, prefix, PREFIX_BYTES);
    char *text = header + PREFIX_BYTES;
    size_t room = HEADER_BYTES - PREFIX_BYTES;
    size_t used = (size_t)snprintf(
        text, room, "{'descr': '<f4', 'fortran_order': False, 'shape': (");
    for (uint32_t d = 0; d < tensor->num_dims; d++)
        used +=
            (size_t)snprintf(text + used, room - used, "%u, ", tensor->dims[d]);
    used += (size_t)snprintf(text + used, room - used, "), }");
    text[used] = ' '; /* replaces snprintf's final 0 */
    header[HEADER_BYTES - 1] = '\n';
}

/* Reports a failure of libarchive, unless the write has already reported
 * one. */
static enum status npz_failed(struct archive *archive, const struct sink *sink,
                              struct failure *why) {
    if (sink->status)
        return sink->status;
    const char *text = archive_error_string(archive);
    return status_fail(why, FAILURE_FILE_UNWRITABLE, "cannot write %s: %s",
                       sink->file->path, text ? text : "libarchive failed");
}

/* True if all of BYTES is written; libarchive takes at most 2 GiB at a time. */
static bool write_bytes(struct archive *archive, const void *bytes,
                        size_t size) {
    const char *at = bytes;
    while (size) {
        la_ssize_t written = archive_write_data(archive, at, size);
        if (written <= 0)
            return false;
        at += written;
        size -= (size_t)written;
    }
    return true;
}

static enum status write_array(struct archive *archive, struct sink *sink,
                               const struct parameter *tensor,
                               const float *floats, struct failure *why) {
    char name[LAYOUT_MAX_NAME + sizeof ".npy"], header[HEADER_BYTES];
    size_t bytes = tensor->elements * sizeof *floats;
    struct archive_entry *entry = archive_entry_new();
    if (!entry)
        return status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                           "%s: memory is short", sink->file->path);
    snprintf(name, sizeof name, "%s.npy", tensor->name);
    archive_entry_set_pathname_utf8(entry, name);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, (la_int64_t)(HEADER_BYTES + bytes));
    npz_make_header(tensor, header);
    /* A warning concerns a name, which the zip stores as it is. */
    bool whole = archive_write_header(archive, entry) >= ARCHIVE_WARN &&
                 write_bytes(archive, header, HEADER_BYTES) &&
                 write_bytes(archive, floats, bytes);
    archive_entry_free(entry);
    return whole ? STATUS_OK : npz_failed(archive, sink, why);
}

static bool open_archive(struct archive *archive, struct sink *sink) {
    /* The last block is not padded; names are UTF-8 in every locale. */
    return !archive_write_set_format_zip(archive) &&
           !archive_write_zip_set_compression_store(archive) &&
           !archive_write_set_bytes_in_last_block(archive, 1) &&
           !archive_write_set_options(archive, "hdrcharset=UTF-8") &&
           !archive_write_open(archive, sink, NULL, write_piece, NULL);
}

enum status npz_write(struct atomic_file *file,
                      const struct tensor_source *source, float *floats,
                      struct failure *why) {
    struct sink sink = {.file = file, .why = why};
    struct archive *archive = archive_write_new();
    if (!archive)
        return status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                           "%s: memory is short", file->path);
    enum status status = STATUS_OK;
    if (!open_archive(archive, &sink))
        status = npz_failed(archive, &sink, why);
    for (uint32_t t = 0; t < source->count && !status; t++) {
        status = source->fetch(source->context, t, floats, why);
        if (!status)
            status =
                write_array(archive, &sink, &source->tensors[t], floats, why);
    }
    if (!status && archive_write_close(archive))
        status = npz_failed(archive, &sink, why);
    if (status)
        sink.why = NULL; /* closing writes the rest; the first text is kept */
    archive_write_free(archive);
    return status;
}
