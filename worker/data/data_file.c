/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/data_file.h"

#include "core/base/input_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { BUFFER = 128 << 10, LONGEST_MAGIC = 10, MAX_INFLATE = 1 << 30 };
/* Of inflateInit2: the wrapper of gzip, or of zlib, with any window. */
enum { GZIP_WINDOW = 15 + 16, ZLIB_WINDOW = 15 };

struct data_file {
    const char *path;
    int file;
    int window; /* of the inflater; 0: it is not used */
    bool ended; /* the last gzip member, or the content of a Zstandard file, has
                   ended */
    z_stream inflater;
    ZSTD_DCtx *zstd;
    bool in_frame;     /* of Zstandard */
    uint64_t position; /* in the content, bytes */
    uint64_t trailing; /* bytes after the last gzip member, */
    bool not_padding;  /* some of which are not 0 */
    size_t begin, end; /* of what is in the buffer */
    uint8_t bytes[BUFFER];
};

static enum status fail_of_stream(const struct data_file *file,
                                  enum failure_code code, const char *text,
                                  struct failure *why) {
    return status_fail(
        why, code, "%s: %s, after %" PRIu64 " bytes of uncompressed content",
        file->path, text, file->position);
}

static enum status fail_damaged(const struct data_file *file, const char *text,
                                struct failure *why) {
    return status_fail(why, FAILURE_DATA_DAMAGED,
                       "%s: %s, after %" PRIu64 " bytes of uncompressed "
                       "content: the file is damaged or incomplete; fetch it "
                       "again",
                       file->path, text, file->position);
}

/* Reads until WANTED bytes are in the buffer, fewer at the file's end. */
static enum status data_file_fill(struct data_file *file, size_t wanted,
                                  struct failure *why) {
    size_t count = file->end - file->begin;
    ssize_t got = 1;
    if (count >= wanted)
        return STATUS_OK;
    memmove(file->bytes, file->bytes + file->begin, count);
    file->begin = 0;
    while (count < wanted && got > 0) {
        got = read(file->file, file->bytes + count, BUFFER - count);
        count += got > 0 ? (size_t)got : 0;
    }
    file->end = count;
    if (got >= 0)
        return STATUS_OK;
    return fail_of_stream(file,
                          failure_code_of_errno(errno, FAILURE_DATA_UNREADABLE),
                          strerror(errno), why);
}

static bool begins_with(const struct data_file *file, const char *magic,
                        size_t bytes) {
    return file->end - file->begin >= bytes &&
           !memcmp(file->bytes + file->begin, magic, bytes);
}

static bool begins_gzip(const struct data_file *file) {
    return begins_with(file, "\x1f\x8b", 2);
}

/* Also a skippable frame, by which pzstd begins (RFC 8878, 3.1.2). */
static bool begins_zstd(const struct data_file *file) {
    const uint8_t *first = file->bytes + file->begin;
    return begins_with(file, "\x28\xb5\x2f\xfd", 4) ||
           (file->end - file->begin >= 4 && (*first & 0xf0) == 0x50 &&
            !memcmp(first + 1, "\x2a\x4d\x18", 3));
}

/* A member has ended, and zlib has verified its checksum and length. Another
 * member may follow, or unrelated bytes. */
static enum status end_member(struct data_file *file, struct failure *why) {
    enum status status = data_file_fill(file, 2, why);
    if (!status && file->window == GZIP_WINDOW && begins_gzip(file)) {
        inflateReset(&file->inflater);
        return STATUS_OK;
    }
    file->ended = true;
    while (!status && file->begin < file->end) {
        file->trailing += file->end - file->begin;
        while (file->begin < file->end)
            file->not_padding |= file->bytes[file->begin++] != 0;
        status = data_file_fill(file, 1, why);
    }
    return status;
}

/* Takes what of the buffer gives up to COUNT bytes; *GOT of them. */
static enum status inflate_some(struct data_file *file, uint8_t *bytes,
                                size_t count, size_t *got,
                                struct failure *why) {
    z_stream *stream = &file->inflater;
    stream->next_in = file->bytes + file->begin;
    stream->avail_in = (unsigned)(file->end - file->begin);
    stream->next_out = bytes;
    stream->avail_out = count < MAX_INFLATE ? (unsigned)count : MAX_INFLATE;
    int result = inflate(stream, Z_NO_FLUSH);
    *got = (size_t)(stream->next_out - bytes);
    file->position += *got;
    file->begin = file->end - stream->avail_in;
    if (result == Z_STREAM_END)
        return end_member(file, why);
    if (result == Z_MEM_ERROR)
        return fail_of_stream(file, FAILURE_NO_MEMORY, "no memory", why);
    if (result == Z_OK)
        return STATUS_OK;
    return fail_damaged(file, stream->msg ? stream->msg : "damaged", why);
}

static enum status decompress_some(struct data_file *file, uint8_t *bytes,
                                   size_t count, size_t *got,
                                   struct failure *why) {
    ZSTD_inBuffer in = {file->bytes, file->end, file->begin};
    ZSTD_outBuffer out = {bytes, count, 0};
    size_t result = ZSTD_decompressStream(file->zstd, &out, &in);
    *got = out.pos;
    file->position += *got;
    file->begin = in.pos;
    file->in_frame = result != 0;
    if (!ZSTD_isError(result))
        return STATUS_OK;
    return fail_damaged(file, ZSTD_getErrorName(result), why);
}

static enum status unpack(struct data_file *file, uint8_t *bytes, size_t count,
                          size_t *got, struct failure *why) {
    enum status status = STATUS_OK;
    while (!status && *got < count && !file->ended) {
        size_t some = 0;
        status = data_file_fill(file, 1, why);
        if (status)
            return status;
        if (file->begin == file->end && file->zstd && !file->in_frame)
            file->ended = true;
        else if (file->begin == file->end)
            return fail_damaged(file, "unexpected end of file", why);
        else if (file->window)
            status = inflate_some(file, bytes + *got, count - *got, &some, why);
        else
            status =
                decompress_some(file, bytes + *got, count - *got, &some, why);
        *got += some;
    }
    return status;
}

static enum status copy_plain(struct data_file *file, uint8_t *bytes,
                              size_t count, size_t *got, struct failure *why) {
    while (*got < count) {
        enum status status = data_file_fill(file, 1, why);
        size_t left = count - *got, available = file->end - file->begin;
        size_t chunk = available < left ? available : left;
        if (status || !chunk)
            return status;
        memcpy(bytes + *got, file->bytes + file->begin, chunk);
        file->begin += chunk;
        file->position += chunk;
        *got += chunk;
    }
    return STATUS_OK;
}

enum status data_file_read(struct data_file *file, void *bytes, size_t count,
                           size_t *got, struct failure *why) {
    *got = 0;
    return data_file_seeks(file) ? copy_plain(file, bytes, count, got, why)
                                 : unpack(file, bytes, count, got, why);
}

/* Refuses what is packed in another way than the two that are read. */
static enum status refuse_foreign(const struct data_file *file,
                                  struct failure *why) {
    static const struct {
        const char *magic;
        size_t at, bytes;
        const char *name, *advice;
    } kinds[] = {
        {"PK\3\4", 0, 4, "a zip archive", "unpack it first, by unzip"},
        {"PK\5\6", 0, 4, "an empty zip archive", "pack it anew"},
        {"\xfd"
         "7zXZ",
         0, 6, "a file of xz", "unpack it first, by xz -d"},
        {"1AY&SY", 4, 6, "a file of bzip2", "unpack it first, by bzip2 -d"},
        {"7z\xbc\xaf\x27\x1c", 0, 6, "a 7z archive",
         "unpack it first, by 7z x"},
        {"\x04\x22\x4d\x18", 0, 4, "a file of LZ4",
         "unpack it first, by lz4 -d"},
        {"PAR1\x15", 0, 5, "a Parquet file",
         "write it as CSV, for example by pandas' to_csv"},
        {"\x89HDF\r\n\x1a\n", 0, 8, "an HDF5 file",
         "write it as .npz, by numpy.savez"}};
    const uint8_t *first = file->bytes + file->begin;
    size_t size = file->end - file->begin;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (size >= kinds[i].at + kinds[i].bytes &&
            !memcmp(first + kinds[i].at, kinds[i].magic, kinds[i].bytes))
            return status_fail(why, FAILURE_DATA_UNREADABLE,
                               "%s: found %s; read are files as they are, or "
                               "packed by gzip or Zstandard: %s",
                               file->path, kinds[i].name, kinds[i].advice);
    return STATUS_OK;
}

/* WINDOW: of the inflater; 0: the first bytes tell what unpacks the file. */
static enum status begin_unpacking(struct data_file *file, int window,
                                   struct failure *why) {
    enum status status = data_file_fill(file, LONGEST_MAGIC, why);
    if (!status && !window)
        status = refuse_foreign(file, why);
    bool complete = true;
    if (!status && (window || begins_gzip(file))) {
        file->window = window ? window : GZIP_WINDOW;
        complete = inflateInit2(&file->inflater, file->window) == Z_OK;
        file->window = complete ? file->window : 0;
    } else if (!status && begins_zstd(file)) {
        complete = (file->zstd = ZSTD_createDCtx()) != NULL;
    }
    if (complete)
        return status;
    return fail_of_stream(file, FAILURE_NO_MEMORY, "no memory", why);
}

static enum status data_file_open_packed(struct data_file **out,
                                         const char *path, const char *content,
                                         int window, struct failure *why) {
    struct data_file *file = calloc(1, sizeof *file);
    char what[64];
    *out = NULL;
    if (!file)
        return status_fail(why, FAILURE_NO_MEMORY, "%s: no memory to read it",
                           path);
    file->path = path;
    snprintf(what, sizeof what, "the file of %s", content);
    enum status status =
        input_file_open(&file->file, path, what, FAILURE_DATA_UNREADABLE, why);
    if (!status)
        status = begin_unpacking(file, window, why);
    if (status)
        data_file_close(&file);
    *out = file;
    return status;
}

enum status data_file_open(struct data_file **out, const char *path,
                           const char *content, struct failure *why) {
    return data_file_open_packed(out, path, content, 0, why);
}

enum status data_file_open_zlib(struct data_file **out, const char *path,
                                const char *content, struct failure *why) {
    return data_file_open_packed(out, path, content, ZLIB_WINDOW, why);
}

void data_file_close(struct data_file **where) {
    struct data_file *file = where ? *where : NULL;
    if (!file)
        return;
    if (file->window)
        inflateEnd(&file->inflater);
    ZSTD_freeDCtx(file->zstd);
    if (file->file >= 0)
        close(file->file);
    free(file);
    *where = NULL;
}

bool data_file_seeks(const struct data_file *file) {
    return !file->window && !file->zstd;
}

enum status data_file_seek(struct data_file *file, uint64_t position,
                           struct failure *why) {
    if (lseek(file->file, (off_t)position, SEEK_SET) < 0)
        return status_errno(why, FAILURE_DATA_UNREADABLE, errno,
                            "%s: cannot go to byte %" PRIu64, file->path,
                            position);
    file->begin = file->end = 0;
    file->position = position;
    return STATUS_OK;
}

uint64_t data_file_position(const struct data_file *file) {
    return file->position;
}

uint64_t data_file_trailing(const struct data_file *file) {
    return file->trailing;
}

enum status data_file_check_end(const struct data_file *file,
                                struct failure *why) {
    return file->not_padding
               ? fail_damaged(file, "found bytes that are no gzip member", why)
               : STATUS_OK;
}

/* Where a tar archive (POSIX ustar, GNU) names itself in its first header. */
enum { TAR_MAGIC = 257 };

enum status data_file_check_text(const struct data_file *file,
                                 const char *bytes, size_t size,
                                 struct failure *why) {
    const char *found = NULL;
    const char *cr = memchr(bytes, '\r', size);
    if (size > TAR_MAGIC + 5 && !memcmp(bytes + TAR_MAGIC, "ustar", 5))
        found = "a tar archive; take its files out first, by tar -xf";
    else if (size > 1 &&
             (!memcmp(bytes, "\xff\xfe", 2) || !memcmp(bytes, "\xfe\xff", 2) ||
              memchr(bytes, 0, size < 4 ? size : 4)))
        found = "text in UTF-16 or UTF-32, expected UTF-8; convert it, for "
                "example by iconv -f UTF-16 -t UTF-8";
    else if (cr && cr + 1 < bytes + size && !memchr(bytes, '\n', size))
        found = "lines that end in CR alone, expected LF or CRLF; convert "
                "them, for example by tr '\\r' '\\n'";
    return found ? status_fail(why, FAILURE_DATA_UNREADABLE, "%s: found %s",
                               file->path, found)
                 : STATUS_OK;
}
