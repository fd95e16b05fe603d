/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/idx_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

/* The third byte of the magic number: elements are unsigned bytes. */
enum { TYPE_UBYTE = 0x08 };
enum { INITIAL_CAPACITY = 1 << 20, MAX_READ = 1 << 30, BUFFER = 64 << 10 };
enum { GZIP_WINDOW = 15 + 16 /* inflateInit2: gzip's wrapper, any window */ };

/* An open file: the context of reads and error texts. */
struct reader {
    int file;
    const char *path, *content;
    uint64_t position; /* in the uncompressed content, bytes */
    struct failure *why;
    bool gzip, ended;
    uint64_t trailing; /* bytes after the last gzip member */
    z_stream stream;   /* next_in, avail_in: the bytes not consumed yet */
    uint8_t bytes[BUFFER];
};

static uint32_t big_endian(const uint8_t bytes[4]) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 |
           (uint32_t)bytes[2] << 8 | bytes[3];
}

static enum status fail_of_stream(struct reader *reader, enum failure_code code,
                                  const char *text) {
    return status_fail(reader->why, code,
                       "%s: %s, after %" PRIu64 " bytes of uncompressed "
                       "content: the file is incomplete; fetch it again",
                       reader->path, text, reader->position);
}

/* Reads until WANTED bytes are in the buffer, fewer at the file's end. */
static enum status idx_file_fill(struct reader *reader, unsigned wanted) {
    z_stream *stream = &reader->stream;
    ssize_t got = 1;
    if (stream->avail_in >= wanted)
        return STATUS_OK;
    memmove(reader->bytes, stream->next_in, stream->avail_in);
    stream->next_in = reader->bytes;
    while (stream->avail_in < wanted && got > 0) {
        got = read(reader->file, reader->bytes + stream->avail_in,
                   BUFFER - stream->avail_in);
        stream->avail_in += got > 0 ? (unsigned)got : 0;
    }
    return got < 0 ? fail_of_stream(
                         reader,
                         failure_code_of_errno(errno, FAILURE_DATA_UNREADABLE),
                         strerror(errno))
                   : STATUS_OK;
}

static bool begins_gzip(const z_stream *stream) {
    return stream->avail_in > 1 && stream->next_in[0] == 0x1f &&
           stream->next_in[1] == 0x8b;
}

/* A member has ended, and zlib has verified its checksum and length. Another
 * member may follow, or unrelated bytes. */
static enum status end_member(struct reader *reader) {
    z_stream *stream = &reader->stream;
    enum status status = idx_file_fill(reader, 2);
    if (!status && begins_gzip(stream)) {
        inflateReset(stream);
        return STATUS_OK;
    }
    reader->ended = true;
    while (!status && stream->avail_in) {
        reader->trailing += stream->avail_in;
        stream->avail_in = 0;
        status = idx_file_fill(reader, 1);
    }
    return status;
}

/* Reads up to COUNT bytes, fewer at the end of the content. */
static enum status unpack(struct reader *reader, uint8_t *bytes,
                          uint32_t count) {
    z_stream *stream = &reader->stream;
    enum status status = STATUS_OK;
    stream->next_out = bytes;
    stream->avail_out = count;
    while (!status && stream->avail_out && !reader->ended) {
        status = idx_file_fill(reader, 1);
        if (status)
            return status;
        if (!stream->avail_in)
            return fail_of_stream(reader, FAILURE_DATA_DAMAGED,
                                  "unexpected end of file");
        int result = inflate(stream, Z_NO_FLUSH);
        if (result == Z_STREAM_END)
            status = end_member(reader);
        else if (result == Z_MEM_ERROR)
            return fail_of_stream(reader, FAILURE_NO_MEMORY, "no memory");
        else if (result != Z_OK)
            return fail_of_stream(reader, FAILURE_DATA_DAMAGED,
                                  stream->msg ? stream->msg : "damaged");
    }
    return status;
}

/* The same for an uncompressed file. */
static enum status idx_file_copy(struct reader *reader, uint8_t *bytes,
                                 uint32_t count) {
    z_stream *stream = &reader->stream;
    stream->avail_out = count;
    while (stream->avail_out) {
        enum status status = idx_file_fill(reader, 1);
        unsigned left = stream->avail_out, available = stream->avail_in;
        unsigned chunk = available < left ? available : left;
        if (status || !chunk)
            return status;
        memcpy(bytes + (count - left), stream->next_in, chunk);
        stream->next_in += chunk;
        stream->avail_in -= chunk;
        stream->avail_out -= chunk;
    }
    return STATUS_OK;
}

static enum status read_up_to(struct reader *reader, uint8_t *bytes,
                              uint32_t count, uint32_t *got) {
    enum status status = reader->gzip ? unpack(reader, bytes, count)
                                      : idx_file_copy(reader, bytes, count);
    *got = count - reader->stream.avail_out;
    reader->position += *got;
    return status;
}

/* TOTAL is the size that the file should have, as far as known. */
static enum status fail_of_end(struct reader *reader, uint64_t total) {
    return status_fail(reader->why, FAILURE_DATA_DAMAGED,
                       "%s: truncated: it ends after byte %" PRIu64
                       ", expected %" PRIu64 " bytes (%s); fetch it again",
                       reader->path, reader->position, total, reader->content);
}

static enum status read_uint32s(struct reader *reader, uint8_t raw[4],
                                uint64_t total) {
    uint32_t got;
    enum status status = read_up_to(reader, raw, 4, &got);
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
        uint64_t offset = reader->position;
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

static enum status idx_file_open_file(struct reader *reader, const char *path,
                                      const char *content,
                                      struct failure *why) {
    reader->path = path;
    reader->content = content;
    reader->why = why;
    reader->stream.next_in = reader->bytes;
    reader->file = open(path, O_RDONLY | O_CLOEXEC);
    return reader->file < 0
               ? status_errno(why, FAILURE_DATA_UNREADABLE, errno,
                              "%s: cannot open the file of %s", path, content)
               : STATUS_OK;
}

/* IDX cannot begin with gzip's magic number. */
static enum status idx_file_open_stream(struct reader *reader) {
    enum status status = idx_file_fill(reader, 2);
    reader->gzip = !status && begins_gzip(&reader->stream);
    if (!reader->gzip || inflateInit2(&reader->stream, GZIP_WINDOW) == Z_OK)
        return status;
    reader->gzip = false;
    return fail_of_stream(reader, FAILURE_NO_MEMORY, "no memory");
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

/* The last read asks for one byte too many: it detects excess data and makes
 * zlib verify gzip's checksum and length, which follow the data. */
static enum status read_data(struct reader *reader, struct idx_file *file) {
    uint64_t total = reader->position + file->bytes;
    uint64_t done = 0, capacity = 0;
    uint32_t chunk, got;
    enum status status = STATUS_OK;
    do {
        if (done == capacity)
            status = idx_file_grow(reader, file, &capacity);
        if (status)
            return status;
        uint64_t left = capacity - done;
        chunk = left <= MAX_READ ? (uint32_t)left : MAX_READ / 2;
        status = read_up_to(reader, file->data + done, chunk, &got);
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
    struct reader reader = {0};
    enum status status = idx_file_open_file(&reader, path, content, why);
    if (status)
        return status;
    status = idx_file_open_stream(&reader);
    if (!status)
        status = read_content(&reader, file, min_dims, max_dims);
    file->trailing = reader.trailing;
    if (reader.gzip)
        inflateEnd(&reader.stream);
    close(reader.file);
    if (status) {
        free(file->data);
        file->data = NULL;
    }
    return status;
}

enum status idx_file_check(const char *path, const char *content,
                           struct failure *why) {
    struct reader reader;
    enum status status = idx_file_open_file(&reader, path, content, why);
    if (!status)
        close(reader.file);
    return status;
}
