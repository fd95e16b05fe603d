/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/file_bytes.h"
#include "tests/lib/test.h"

#include <zlib.h>
#include <zstd.h>

void file_bytes_write(const char *path, const uint8_t *bytes, size_t count) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

void file_bytes_gzip(const char *path, const uint8_t *bytes, size_t count) {
    gzFile file = gzopen(path, "wb");
    assert_non_null(file);
    if (count > 0)
        assert_int_equal(gzwrite(file, bytes, (unsigned)count), count);
    assert_int_equal(gzclose(file), Z_OK);
}

void file_bytes_zstd(const char *path, const uint8_t *bytes, size_t count) {
    ZSTD_CCtx *context = ZSTD_createCCtx();
    size_t room = ZSTD_compressBound(count);
    uint8_t *packed = malloc(room);
    assert_non_null(packed);
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    size_t size = ZSTD_compress2(context, packed, room, bytes, count);
    assert_false(ZSTD_isError(size));
    file_bytes_write(path, packed, size);
    ZSTD_freeCCtx(context);
    free(packed);
}

uint8_t *file_bytes_read(const char *path, size_t *count) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    assert_true(size >= 0);
    rewind(file);
    uint8_t *bytes = malloc((size_t)size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)size, file), size);
    fclose(file);
    *count = (size_t)size;
    return bytes;
}

void file_bytes_copy(const char *from, const char *to,
                     file_bytes_writer *writer) {
    size_t count;
    uint8_t *bytes = file_bytes_read(from, &count);
    writer(to, bytes, count);
    free(bytes);
}
