/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/idx_file.h"

#include "worker/data/data_file.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

/* The third byte of the magic number: elements are unsigned bytes. */
enum { TYPE_UBYTE = 0x08 };
enum { INITIAL_CAPACITY = 1 << 20 };

/* An open file: the context of reads and error texts. */
struct reader {
    struct data_file *file;
    const char *path, *content;
    struct failure *why;
};

static uint32_t big_endian(const uint8_t bytes[4]) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 |
           (uint32_t)bytes[2] << 8 | bytes[3];
}

/* TOTAL is the size that the file should have, as far as known. */
static enum status fail_of_end(struct reader *reader, uint64_t total) {
    return status_fail(reader->why, FAILURE_DATA_DAMAGED,
                       "%s: truncated: it ends after byte %" PRIu64
                       ", expected %" PRIu64 " bytes (%s); fetch it again",
                       reader->path, data_file_position(reader->file), total,
                       reader->content);
}

static enum status read_uint32s(struct reader *reader, uint8_t raw[4],
                                uint64_t total) {
    size_t got;
    enum status status =
        data_file_read(reader->file, raw, 4, &got, reader->why);
    if (status || got == 4)
        return status;
    return fail_of_end(reader, total);
}

static enum status check_magic(struct reader *reader, const uint8_t magic[4],
                               uint32_t min_dims, uint32_t max_dims) {
    uint32_t found = big_endian(magic);
    uint32_t dims = magic[3];
    if (found >> 8 == TYPE_UBYTE && dims >= min_dims && dims <= max_dims)
        return STATUS_OK;
    bool other_file = found >> 8 == TYPE_UBYTE;
    return status_fail(reader->why, FAILURE_DATA_DAMAGED,
                       "%s: byte 0: found magic number 0x%08x, expected "
                       "0x%08x to 0x%08x: an IDX file of unsigned bytes in %u "
                       "to %u dimensions (%s)%s",
                       reader->path, found, TYPE_UBYTE << 8 | min_dims,
                       TYPE_UBYTE << 8 | max_dims, min_dims, max_dims,
                       reader->content,
                       other_file ? "; are images and labels swapped?" : "");
}

static enum status read_dims(struct reader *reader, struct idx_file *file) {
    uint64_t header = 4 + 4 * (uint64_t)file->num_dims;
    file->bytes = 1;
    for (uint32_t d = 0; d < file->num_dims; d++) {
        uint8_t bytes[4];
        uint64_t offset = data_file_position(reader->file);
        enum status status = read_uint32s(reader, bytes, header);
        if (status)
            return status;
        file->dims[d] = big_endian(bytes);
        if (file->dims[d] == 0 ||
            file->dims[d] > IDX_FILE_MAX_BYTES / file->bytes)
            return status_fail(
                reader->why, FAILURE_DATA_DAMAGED,
                "%s: byte %" PRIu64 ": found size %u of dimension %u, "
                "expected 1 or more, and 2^40 bytes at most in all (%s)",
                reader->path, offset, file->dims[d], d, reader->content);
        file->bytes *= file->dims[d];
    }
    return STATUS_OK;
}

/* Doubles CAPACITY, finally to one byte more than expected. */
static enum status idx_file_grow(struct reader *reader, struct idx_file *file,
                                 uint64_t *capacity) {
    uint64_t wanted = *capacity ? 2 * *capacity : INITIAL_CAPACITY;
    if (wanted >= file->bytes)
        wanted = file->bytes + 1;
    uint8_t *data = realloc(file->data, wanted);
    if (!data)
        return status_fail(reader->why, FAILURE_NO_MEMORY,
                           "%s: no memory for its %" PRIu64 " bytes of %s",
                           reader->path, file->bytes, reader->content);
    file->data = data;
    *capacity = wanted;
    return STATUS_OK;
}

/* The last read asks for one byte too many: it detects excess data, and checks
 * what follows the data in a compressed file. */
static enum status read_data(struct reader *reader, struct idx_file *file) {
    uint64_t total = data_file_position(reader->file) + file->bytes;
    uint64_t done = 0, capacity = 0, chunk;
    size_t got;
    enum status status = STATUS_OK;
    do {
        if (done == capacity)
            status = idx_file_grow(reader, file, &capacity);
        if (status)
            return status;
        chunk = capacity - done;
        status = data_file_read(reader->file, file->data + done, chunk, &got,
                                reader->why);
        if (status)
            return status;
        done += got;
    } while (got == chunk && done <= file->bytes);
    if (done < file->bytes)
        return fail_of_end(reader, total);
    if (done == file->bytes)
        return STATUS_OK;
    return status_fail(reader->why, FAILURE_DATA_DAMAGED,
                       "%s: byte %" PRIu64 ": found more data, expected the "
                       "end, where the header's sizes put it (%s)",
                       reader->path, total, reader->content);
}

static enum status read_content(struct reader *reader, struct idx_file *file,
                                uint32_t min_dims, uint32_t max_dims) {
    uint8_t magic[4];
    enum status status = read_uint32s(reader, magic, 4 + 4 * min_dims);
    if (!status)
        status = check_magic(reader, magic, min_dims, max_dims);
    if (status)
        return status;
    file->num_dims = magic[3];
    status = read_dims(reader, file);
    return status ? status : read_data(reader, file);
}

enum status idx_file_read(struct idx_file *file, const char *path,
                          const char *content, uint32_t min_dims,
                          uint32_t max_dims, struct failure *why) {
    *file = (struct idx_file){0};
    struct reader reader = {.path = path, .content = content, .why = why};
    enum status status = data_file_open(&reader.file, path, content, why);
    if (status)
        return status;
    status = read_content(&reader, file, min_dims, max_dims);
    file->trailing = data_file_trailing(reader.file);
    data_file_close(&reader.file);
    if (status) {
        free(file->data);
        file->data = NULL;
    }
    return status;
}
