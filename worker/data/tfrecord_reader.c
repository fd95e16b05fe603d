/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/record_reader.h"

#include "core/base/masked_crc.h"
#include "worker/data/data_file.h"

#include <endian.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct record_file {
    struct data_file *file;
    const char *path;
    uint64_t number; /* of the next record */
    char *bytes;
    size_t capacity;
};

static enum status fail_of_record(const struct record_file *file,
                                  uint64_t position, const char *text,
                                  struct failure *why) {
    return status_fail(why, FAILURE_DATA_DAMAGED,
                       "%s: record %" PRIu64 ", byte %" PRIu64
                       ": %s (TFRecord)",
                       file->path, file->number, position, text);
}

/* Reads SIZE bytes and the checksum that follows them, *DIFFERS if it is not
 * theirs. *ENDED: the file ends before the first. */
static enum status read_with_checksum(struct record_file *file, void *bytes,
                                      size_t size, bool *ended, bool *differs,
                                      struct failure *why) {
    uint64_t position = data_file_position(file->file);
    uint32_t stored;
    size_t got;
    enum status status = data_file_read(file->file, bytes, size, &got, why);
    *ended = !status && !got && size;
    *differs = false;
    if (status || *ended)
        return status;
    if (got == size)
        status = data_file_read(file->file, &stored, sizeof stored, &got, why);
    else
        got = 0;
    if (status)
        return status;
    if (got < sizeof stored)
        return fail_of_record(file, position, "the file is truncated", why);
    *differs = le32toh(stored) != masked_crc(bytes, size);
    return STATUS_OK;
}

static bool grow_record(struct record_file *file, size_t size) {
    if (size <= file->capacity)
        return true;
    char *bytes = realloc(file->bytes, size + size / 2);
    if (!bytes)
        return false;
    file->bytes = bytes;
    file->capacity = size + size / 2;
    return true;
}

static enum status next_tfrecord(struct record_file *file,
                                 struct record *record, struct failure *why) {
    uint64_t position = data_file_position(file->file), length;
    bool ended, differs;
    *record = (struct record){0};
    enum status status =
        read_with_checksum(file, &length, sizeof length, &ended, &differs, why);
    if (!status && ended)
        status = data_file_check_end(file->file, why);
    if (status || ended)
        return status;
    if (differs)
        return fail_of_record(file, position,
                              position ? "its length's checksum differs"
                                       : "its length's checksum differs; of "
                                         "compressed files those of gzip, "
                                         "zlib and Zstandard are read",
                              why);
    length = le64toh(length);
    if (length > RECORD_READER_MAX_BYTES)
        return fail_of_record(file, position, "its length is more than 64 MiB",
                              why);
    if (!grow_record(file, length + 1))
        return status_fail(why, FAILURE_NO_MEMORY,
                           "%s: no memory for a record of %" PRIu64 " bytes",
                           file->path, length);
    status =
        read_with_checksum(file, file->bytes, length, &ended, &differs, why);
    if (!status && ended)
        status = fail_of_record(file, position, "the file is truncated", why);
    if (!status)
        *record = (struct record){.bytes = file->bytes,
                                  .size = length,
                                  .number = file->number++,
                                  .is_damaged = differs};
    return status;
}

static void close_tfrecords(struct record_file **where) {
    struct record_file *file = where ? *where : NULL;
    if (!file)
        return;
    data_file_close(&file->file);
    free(file->bytes);
    free(file);
    *where = NULL;
}

/* TensorFlow's ZLIB has no magic number: such a file begins as a stream may
 * (RFC 1950, section 2.2) and with no length that has its checksum. */
static enum status open_packed(struct record_file *file, struct failure *why) {
    uint8_t head[12];
    uint32_t stored;
    size_t got;
    enum status status =
        data_file_read(file->file, head, sizeof head, &got, why);
    bool stream = !status && got > 1 && (head[0] & 15) == 8 &&
                  (head[0] << 8 | head[1]) % 31 == 0;
    memcpy(&stored, head + 8, sizeof stored);
    if (stream &&
        (got < sizeof head || le32toh(stored) != masked_crc(head, 8))) {
        data_file_close(&file->file);
        return data_file_open_zlib(&file->file, file->path, "records", why);
    }
    return status ? status : data_file_seek(file->file, 0, why);
}

static enum status open_tfrecords(struct record_file **out, const char *path,
                                  const struct record_cut *cut,
                                  struct failure *why) {
    (void)cut;
    struct record_file *file = calloc(1, sizeof *file);
    *out = NULL;
    if (!file)
        return status_fail(why, FAILURE_NO_MEMORY, "%s: no memory to read it",
                           path);
    file->path = path;
    enum status status = data_file_open(&file->file, path, "records", why);
    if (!status && data_file_seeks(file->file))
        status = open_packed(file, why);
    if (status)
        close_tfrecords(&file);
    *out = file;
    return status;
}

static bool tfrecord_position(const struct record_file *file,
                              struct record_position *position) {
    *position = (struct record_position){.byte = data_file_position(file->file),
                                         .number = file->number};
    return data_file_seeks(file->file);
}

static enum status seek_tfrecord(struct record_file *file,
                                 const struct record_position *position,
                                 struct failure *why) {
    file->number = position->number;
    return data_file_seek(file->file, position->byte, why);
}

const struct record_reader tfrecord_reader = {
    "TFRecord",        open_tfrecords, next_tfrecord, close_tfrecords,
    tfrecord_position, seek_tfrecord,  NULL};
