/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/idx_file.h"

#include "worker/data/data_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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

static double element_at(enum idx_file_type type, const uint8_t *at) {
    uint32_t bits = type >= IDX_FILE_INT ? big_endian(at) : 0;
    uint64_t wide;
    float single;
    double value;
    switch (type) {
    case IDX_FILE_UBYTE:
        return *at;
    case IDX_FILE_SBYTE:
        return (int8_t)*at;
    case IDX_FILE_SHORT:
        return (int16_t)(at[0] << 8 | at[1]);
    case IDX_FILE_INT:
        return (int32_t)bits;
    case IDX_FILE_FLOAT:
        memcpy(&single, &bits, sizeof single);
        return (double)single;
    case IDX_FILE_DOUBLE:
        wide = (uint64_t)bits << 32 | big_endian(at + 4);
        memcpy(&value, &wide, sizeof value);
        return value;
    }
    return 0;
}

size_t idx_file_element(enum idx_file_type type) {
    static const uint8_t bytes[] = {
        [IDX_FILE_UBYTE] = 1, [IDX_FILE_SBYTE] = 1, [IDX_FILE_SHORT] = 2,
        [IDX_FILE_INT] = 4,   [IDX_FILE_FLOAT] = 4, [IDX_FILE_DOUBLE] = 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

void idx_file_decode(enum idx_file_type type, const uint8_t *bytes,
                     size_t count, float *values) {
    size_t size = idx_file_element(type);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)element_at(type, bytes + i * size);
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
    bool is_idx = idx_file_element(found >> 8);
    if (is_idx && dims >= min_dims && dims <= max_dims)
        return STATUS_OK;
    return status_fail(reader->why, FAILURE_DATA_DAMAGED,
                       "%s: byte 0: found magic number 0x%08x, expected "
                       "0x0000TT%02x to 0x0000TT%02x: an IDX file of type TT, "
                       "08, 09, 0b, 0c, 0d or 0e, in %u to %u dimensions "
                       "(%s)%s",
                       reader->path, found, min_dims, max_dims, min_dims,
                       max_dims, reader->content,
                       is_idx ? "; are images and labels swapped?" : "");
}

static enum status read_dims(struct reader *reader, struct idx_file *file) {
    uint64_t header = 4 + 4 * (uint64_t)file->num_dims;
    file->bytes = idx_file_element(file->type);
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

/* Elements are finite in float32. */
static enum status check_reals(struct reader *reader,
                               const struct idx_file *file) {
    size_t size = idx_file_element(file->type);
    uint64_t header = 4 + 4 * (uint64_t)file->num_dims;
    if (file->type < IDX_FILE_FLOAT)
        return STATUS_OK;
    for (uint64_t at = 0; at < file->bytes; at += size) {
        double value = element_at(file->type, file->data + at);
        if (!isfinite((float)value))
            return status_fail(
                reader->why, FAILURE_DATA_DAMAGED,
                "%s: byte %" PRIu64 ": found %.9g, expected a finite number of "
                "float32, -3.40282347e38 to 3.40282347e38 (%s)",
                reader->path, header + at, value, reader->content);
    }
    return STATUS_OK;
}

static enum status read_content(struct reader *reader, struct idx_file *file,
                                uint32_t min_dims, uint32_t max_dims) {
    uint8_t magic[4];
    enum status status = read_uint32s(reader, magic, 4 + 4 * min_dims);
    if (!status)
        status = check_magic(reader, magic, min_dims, max_dims);
    if (status)
        return status;
    file->type = magic[2];
    file->num_dims = magic[3];
    status = read_dims(reader, file);
    if (!status)
        status = read_data(reader, file);
    return status ? status : check_reals(reader, file);
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

enum status idx_file_peek_type(enum idx_file_type *type, const char *path,
                               struct failure *why) {
    struct reader reader = {.path = path, .content = "images", .why = why};
    uint8_t magic[4] = {0};
    enum status status =
        data_file_open(&reader.file, path, reader.content, why);
    if (!status)
        status = read_uint32s(&reader, magic, sizeof magic);
    data_file_close(&reader.file);
    *type = magic[2];
    return status;
}
