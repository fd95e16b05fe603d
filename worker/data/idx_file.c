#include "worker/data/idx_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <zlib.h>

/* The third byte of the magic number: elements are unsigned bytes. */
enum { TYPE_UBYTE = 0x08 };
enum { FIRST_ROOM = 1 << 20, MAX_READ = 1 << 30 };
enum { BUFFER = 16 << 10, OTHER_BUFFER = 24 << 10 }; /* of zlib's, bytes */

/* An open file: what error texts and every read need. */
struct reader {
    gzFile stream;
    const char *path, *what;
    uint64_t position; /* in the uncompressed content, bytes */
    struct failure *why;
};

static uint32_t big_endian(const uint8_t bytes[4]) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 |
           (uint32_t)bytes[2] << 8 | bytes[3];
}

/* The stream says for itself what is wrong with it: a checksum, a code that
 * does not exist, an end too early, an error of the disk. Its texts begin
 * with the path. */
static enum status fail_of_stream(struct reader *reader) {
    int error, of_system = errno;
    const char *text = gzerror(reader->stream, &error);
    if (error != Z_ERRNO)
        of_system = error == Z_MEM_ERROR ? ENOMEM : 0;
    return status_fail(reader->why, status_of_errno(of_system, STATUS_CONFIG),
                       "%s, after %" PRIu64 " bytes of uncompressed content: "
                       "the file cannot be read whole; fetch it again",
                       text, reader->position);
}

/* Reads up to COUNT bytes, fewer at the end of the content. */
static enum status read_up_to(struct reader *reader, uint8_t *bytes,
                              uint32_t count, uint32_t *got) {
    int error, result = gzread(reader->stream, bytes, count);
    gzerror(reader->stream, &error);
    *got = result > 0 ? (uint32_t)result : 0;
    reader->position += *got;
    return error == Z_OK ? STATUS_OK : fail_of_stream(reader);
}

/* TOTAL is the size that the file should have, as far as is known by now. */
static enum status fail_of_end(struct reader *reader, uint64_t total) {
    return status_fail(reader->why, STATUS_CONFIG,
                       "%s: truncated: it ends after byte %" PRIu64
                       ", expected %" PRIu64 " bytes (%s); fetch it again",
                       reader->path, reader->position, total, reader->what);
}

static enum status read_word(struct reader *reader, uint8_t word[4],
                             uint64_t total) {
    uint32_t got;
    enum status status = read_up_to(reader, word, 4, &got);
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
    return status_fail(reader->why, STATUS_CONFIG,
                       "%s: byte 0: found magic number 0x%08x, expected "
                       "0x%08x to 0x%08x: an IDX file of unsigned bytes in %u "
                       "to %u dimensions (%s)%s",
                       reader->path, found, TYPE_UBYTE << 8 | min_dims,
                       TYPE_UBYTE << 8 | max_dims, min_dims, max_dims,
                       reader->what,
                       other_file ? "; are images and labels swapped?" : "");
}

static enum status read_dims(struct reader *reader, struct idx_file *file) {
    uint64_t header = 4 + 4 * (uint64_t)file->num_dims;
    file->bytes = 1;
    for (uint32_t d = 0; d < file->num_dims; d++) {
        uint8_t bytes[4];
        uint64_t place = reader->position;
        enum status status = read_word(reader, bytes, header);
        if (status)
            return status;
        file->dims[d] = big_endian(bytes);
        if (file->dims[d] == 0 ||
            file->dims[d] > IDX_FILE_MAX_BYTES / file->bytes)
            return status_fail(
                reader->why, STATUS_CONFIG,
                "%s: byte %" PRIu64 ": found size %u of dimension %u, "
                "expected 1 or more, and 2^40 bytes at most in all (%s)",
                reader->path, place, file->dims[d], d, reader->what);
        file->bytes *= file->dims[d];
    }
    return STATUS_OK;
}

static enum status open_stream(struct reader *reader, unsigned buffer) {
    errno = 0;
    reader->stream = gzopen(reader->path, "rbe");
    if (!reader->stream)
        return status_errno(reader->why, STATUS_CONFIG, errno ? errno : ENOMEM,
                            "%s: cannot open the file of %s", reader->path,
                            reader->what);
    gzbuffer(reader->stream, buffer);
    return STATUS_OK;
}

/* zlib decompresses into a buffer of twice the size first, and forgets to look
 * for a trailer when the whole content TOTAL just fills that: such a file is
 * begun anew with another buffer. */
static enum status avoid_full_buffer(struct reader *reader, uint64_t total) {
    uint8_t header[4 + 4 * IDX_FILE_MAX_DIMS];
    uint32_t count = (uint32_t)reader->position, got;
    if (total != 2 * BUFFER)
        return STATUS_OK;
    gzclose_r(reader->stream);
    enum status status = open_stream(reader, OTHER_BUFFER);
    reader->position = 0;
    if (!status)
        status = read_up_to(reader, header, count, &got);
    return status;
}

/* Doubles ROOM, at last to one byte more than there should be. */
static enum status grow(struct reader *reader, struct idx_file *file,
                        uint64_t *room) {
    uint64_t wanted = *room ? 2 * *room : FIRST_ROOM;
    if (wanted >= file->bytes)
        wanted = file->bytes + 1;
    uint8_t *data = realloc(file->data, wanted);
    if (!data)
        return status_fail(reader->why, STATUS_RETRY,
                           "%s: no memory for its %" PRIu64 " bytes of %s",
                           reader->path, file->bytes, reader->what);
    file->data = data;
    *room = wanted;
    return STATUS_OK;
}

/* The last read asks for one byte too many: it finds what should not be there,
 * and has zlib compare gzip's checksum and length, which follow the data. */
static enum status read_data(struct reader *reader, struct idx_file *file) {
    uint64_t total = reader->position + file->bytes;
    uint64_t done = 0, room = 0;
    uint32_t take, got;
    enum status status = avoid_full_buffer(reader, total);
    if (status)
        return status;
    do {
        if (done == room)
            status = grow(reader, file, &room);
        if (status)
            return status;
        uint64_t left = room - done;
        take = left <= MAX_READ ? (uint32_t)left : MAX_READ / 2;
        status = read_up_to(reader, file->data + done, take, &got);
        if (status)
            return status;
        done += got;
    } while (got == take && done <= file->bytes);
    if (done < file->bytes)
        return fail_of_end(reader, total);
    if (done == file->bytes)
        return STATUS_OK;
    return status_fail(reader->why, STATUS_CONFIG,
                       "%s: byte %" PRIu64 ": found more data, expected the "
                       "end, where the header's sizes put it (%s)",
                       reader->path, total, reader->what);
}

static enum status read_whole(struct reader *reader, struct idx_file *file,
                              uint32_t min_dims, uint32_t max_dims) {
    uint8_t magic[4];
    enum status status = read_word(reader, magic, 4 + 4 * min_dims);
    if (!status)
        status = check_magic(reader, magic, min_dims, max_dims);
    if (status)
        return status;
    file->num_dims = magic[3];
    status = read_dims(reader, file);
    return status ? status : read_data(reader, file);
}

enum status idx_file_read(struct idx_file *file, const char *path,
                          const char *what, uint32_t min_dims,
                          uint32_t max_dims, struct failure *why) {
    *file = (struct idx_file){0};
    struct reader reader = {.path = path, .what = what, .why = why};
    enum status status = open_stream(&reader, BUFFER);
    if (!status)
        status = read_whole(&reader, file, min_dims, max_dims);
    if (reader.stream)
        gzclose_r(reader.stream);
    if (status) {
        free(file->data);
        file->data = NULL;
    }
    return status;
}

enum status idx_file_look(const char *path, const char *what,
                          struct failure *why) {
    struct reader reader = {.path = path, .what = what, .why = why};
    enum status status = open_stream(&reader, BUFFER);
    if (reader.stream)
        gzclose_r(reader.stream);
    return status;
}
