/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "worker/data/idx_file.h"

#include "tests/lib/file_bytes.h"
#include "tests/lib/test.h"

#include <float.h>
#include <sys/resource.h>
#include <unistd.h>

/* Two images of 2 x 3 bytes: a header of 16 bytes, 28 in all. */
static const uint8_t small[28] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2,  0,  0,
                                  0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255};

struct fixture {
    char folder[32], path[64];
    struct idx_file file;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->folder, "/tmp/idx_file_test.XXXXXX");
    assert_non_null(mkdtemp(fixture->folder));
    snprintf(fixture->path, sizeof fixture->path, "%s/images", fixture->folder);
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    free(fixture->file.data);
    unlink(fixture->path);
    rmdir(fixture->folder);
    free(fixture);
}

FIXTURE(setup, teardown);

static file_bytes_writer *const compressors[] = {file_bytes_gzip,
                                                 file_bytes_zstd};

static size_t read_back(const char *path, uint8_t *bytes, size_t room) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t count = fread(bytes, 1, room, file);
    fclose(file);
    return count;
}

static enum status read_images(struct fixture *fixture) {
    free(fixture->file.data);
    return idx_file_read(&fixture->file, fixture->path, "images", 2, 4,
                         &failure);
}

static void assert_refused(struct fixture *fixture, enum failure_code code,
                           const char *text) {
    assert_error(read_images(fixture), code);
    assert_null(fixture->file.data);
    assert_contains(failure.text, fixture->path);
    assert_contains(failure.text, text);
}

static void assert_small(const struct idx_file *file) {
    assert_int_equal(file->num_dims, 3);
    assert_int_equal(file->dims[0], 2);
    assert_int_equal(file->dims[1], 2);
    assert_int_equal(file->dims[2], 3);
    assert_int_equal(file->bytes, 12);
    assert_memory_equal(file->data, small + 16, 12);
}

TEST(plain_and_compressed_files_give_the_same) {
    file_bytes_write(fixture->path, small, sizeof small);
    assert_ok(read_images(fixture));
    assert_small(&fixture->file);
    for (int i = 0; i < 2; i++) {
        compressors[i](fixture->path, small, sizeof small);
        assert_ok(read_images(fixture));
        assert_small(&fixture->file);
    }
}

/* 5000 rows of 701 bytes, their header before them; for the caller to free. */
enum { LARGE_DATA = 5000 * 701, LARGE = 12 + LARGE_DATA };

static uint8_t *large_content(void) {
    static const uint8_t header[12] = {
        0, 0, 8, 2, 0, 0, 5000 >> 8, 5000 & 255, 0, 0, 701 >> 8, 701 & 255};
    uint8_t *bytes = malloc(LARGE);
    memcpy(bytes, header, sizeof header);
    for (uint32_t i = 0; i < LARGE_DATA; i++)
        bytes[12 + i] = (uint8_t)(i * 2654435761u >> 24);
    return bytes;
}

/* What a supervisor's next try may find mended. */
TEST(running_out_of_descriptors_is_retryable) {
    struct rlimit before, none;
    file_bytes_gzip(fixture->path, small, sizeof small);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    enum status status = read_images(fixture);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_error(status, FAILURE_NO_DESCRIPTORS);
    assert_ok(read_images(fixture));
}

TEST(a_file_larger_than_one_read_is_read_whole) {
    uint8_t *bytes = large_content();
    file_bytes_gzip(fixture->path, bytes, LARGE);
    assert_ok(read_images(fixture));
    assert_int_equal(fixture->file.bytes, LARGE_DATA);
    assert_memory_equal(fixture->file.data, bytes + 12, LARGE_DATA);
    free(bytes);
}

/* SIZE bytes of `small` (one more than it has: a byte too many), the byte at
 * PLACE replaced by VALUE. */
struct corruption {
    size_t size, place;
    uint8_t value;
    const char *text;
};

static const struct corruption corruptions[] = {
    {0, 0, 0, "truncated: it ends after byte 0, expected 12"},
    {3, 0, 0, "truncated: it ends after byte 3, expected 12"},
    {9, 0, 0, "truncated: it ends after byte 9, expected 16"},
    {16, 0, 0, "truncated: it ends after byte 16, expected 28"},
    {27, 0, 0, "truncated: it ends after byte 27, expected 28"},
    {29, 0, 0, "byte 28: found more data, expected the end"},
    {28, 7, 3, "truncated: it ends after byte 28, expected 34"},
    {28, 7, 1, "byte 22: found more data"},
    {28, 11, 0, "byte 8: found size 0 of dimension 1"},
    {28, 2, 0x0A, "found magic number 0x00000a03, expected 0x0000TT02"},
    {28, 2, 0x0A, "type TT, 08, 09, 0b, 0c, 0d or 0e, in 2 to 4 dimensions"},
    {28, 2, 0x0B, "truncated: it ends after byte 28, expected 40"},
    {28, 1, 1, "found magic number 0x00010803"},
    {28, 0, 'P', "found magic number 0x50000803"},
    {28, 3, 1, "0x00000801, expected 0x0000TT02 to 0x0000TT04"},
    {28, 3, 1, "are images and labels swapped?"},
    {28, 2, 0x0F, "found magic number 0x00000f03"},
    {28, 3, 5, "found magic number 0x00000805"},
};

/* One row of elements, and what they are in float32. */
struct numbers {
    enum idx_file_type type;
    size_t element, count;
    uint8_t bytes[40];
    float values[5];
};

static const struct numbers all_numbers[] = {
    {IDX_FILE_UBYTE, 1, 4, {0, 1, 128, 255}, {0, 1, 128, 255}},
    {IDX_FILE_SBYTE, 1, 4, {0, 127, 128, 255}, {0, 127, -128, -1}},
    {IDX_FILE_SHORT,
     2,
     4,
     {1, 2, 127, 255, 128, 0, 255, 254},
     {258, 32767, -32768, -2}},
    {IDX_FILE_INT,
     4,
     4,
     /* 2^24 + 3 lies between two floats; the even one is taken. */
     {1, 2, 3, 4, 128, 0, 0, 0, 255, 255, 255, 253, 1, 0, 0, 3},
     {0x1020304, -0x1p31f, -3, 0x1000004}},
    {IDX_FILE_FLOAT,
     4,
     5,
     {0x3f, 0xc0, 0, 0, 0xc0, 0x49, 0x0f, 0xdb, 0,    0,
      0,    1,    0, 0, 0,    0,    0x7f, 0x7f, 0xff, 0xff},
     {1.5f, -0x1.921fb6p+1f, 0x1p-149f, 0, FLT_MAX}},
    {IDX_FILE_DOUBLE,
     8,
     4,
     {0xbf, 0xf8, 0,    0,    0,    0,    0,    0,   0x3f, 0xb9, 0x99,
      0x99, 0x99, 0x99, 0x99, 0x9a, 0x47, 0xef, 255, 255,  0xe0, 0,
      0,    0,    0,    1,    2,    3,    4,    5,   6,    7},
     {-1.5f, 0.1f, FLT_MAX, 0}},
};

/* Writes NUMBERS as a file in BYTES; returns its size. */
static size_t make_numbers(const struct numbers *numbers, uint8_t bytes[52]) {
    size_t size = numbers->count * numbers->element;
    const uint8_t header[12] = {0, 0, (uint8_t)numbers->type, 2, 0, 0, 0, 1, 0,
                                0, 0, (uint8_t)numbers->count};
    memcpy(bytes, header, sizeof header);
    memcpy(bytes + sizeof header, numbers->bytes, size);
    return sizeof header + size;
}

TEST(every_type_is_read_to_its_values) {
    for (size_t i = 0; i < sizeof all_numbers / sizeof *all_numbers; i++) {
        const struct numbers *numbers = &all_numbers[i];
        uint8_t bytes[52];
        float values[5];
        enum idx_file_type type;
        size_t size = make_numbers(numbers, bytes);
        for (int packed = 0; packed < 2; packed++) {
            (packed ? file_bytes_gzip : file_bytes_write)(fixture->path, bytes,
                                                          size);
            assert_ok(read_images(fixture));
            assert_int_equal(fixture->file.type, numbers->type);
            assert_int_equal(fixture->file.dims[1], numbers->count);
            assert_int_equal(fixture->file.bytes, size - 12);
            assert_int_equal(idx_file_element(numbers->type), numbers->element);
            idx_file_decode(numbers->type, fixture->file.data, numbers->count,
                            values);
            assert_memory_equal(values, numbers->values,
                                numbers->count * sizeof *values);
            assert_ok(idx_file_peek_type(&type, fixture->path, &failure));
            assert_int_equal(type, numbers->type);
            (packed ? file_bytes_gzip : file_bytes_write)(fixture->path, bytes,
                                                          size - 1);
            assert_refused(fixture, FAILURE_DATA_DAMAGED, "truncated: it ends");
        }
    }
}

TEST(a_number_that_float32_has_not_is_refused) {
    static const struct {
        enum idx_file_type type;
        size_t element;
        uint8_t bytes[8];
        const char *text;
    } cases[] = {
        {IDX_FILE_FLOAT, 4, {0x7f, 0xc0}, "byte 16: found nan, expected"},
        {IDX_FILE_FLOAT, 4, {0xff, 0x80}, "byte 16: found -inf, expected"},
        {IDX_FILE_DOUBLE, 8, {0x7f, 0xf8}, "byte 20: found nan, expected"},
        {IDX_FILE_DOUBLE, 8, {0x7f, 0xf0}, "byte 20: found inf, expected"},
        {IDX_FILE_DOUBLE,
         8,
         {0xc7, 0xf0},
         "byte 20: found -3.40282367e+38, expected a finite number of float32, "
         "-3.40282347e38 to 3.40282347e38 (images)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct numbers numbers = {cases[i].type, cases[i].element, 2, {0}, {0}};
        uint8_t bytes[52];
        memcpy(numbers.bytes + numbers.element, cases[i].bytes,
               sizeof cases[i].bytes);
        file_bytes_write(fixture->path, bytes, make_numbers(&numbers, bytes));
        assert_refused(fixture, FAILURE_DATA_DAMAGED, cases[i].text);
    }
}

TEST(corrupt_content_is_refused_with_its_position) {
    for (size_t i = 0; i < sizeof corruptions / sizeof *corruptions; i++) {
        const struct corruption *corruption = &corruptions[i];
        uint8_t bytes[sizeof small + 1] = {0};
        memcpy(bytes, small, sizeof small);
        bytes[corruption->place] = corruption->value;
        file_bytes_write(fixture->path, bytes, corruption->size);
        assert_refused(fixture, FAILURE_DATA_DAMAGED, corruption->text);
        file_bytes_gzip(fixture->path, bytes, corruption->size);
        assert_refused(fixture, FAILURE_DATA_DAMAGED, corruption->text);
    }
}

TEST(sizes_beyond_the_limit_are_refused_unread) {
    uint8_t bytes[sizeof small];
    memcpy(bytes, small, sizeof small);
    memset(bytes + 4, 255, 12);
    file_bytes_write(fixture->path, bytes, sizeof bytes);
    assert_refused(fixture, FAILURE_DATA_DAMAGED,
                   "byte 8: found size 4294967295 of dimension 1");
}

TEST(a_header_that_claims_a_terabyte_allocates_nothing) {
    uint8_t bytes[sizeof small];
    memcpy(bytes, small, sizeof small);
    memset(bytes + 4, 0, 12);
    bytes[5] = bytes[9] = bytes[14] = 16; /* 2^20 x 2^20 x 2^12 */
    file_bytes_write(fixture->path, bytes, sizeof bytes);
    assert_refused(fixture, FAILURE_DATA_DAMAGED,
                   "byte 12: found size 4096 of dimension 2");
    bytes[14] = 0;
    bytes[15] = 1;
    file_bytes_write(fixture->path, bytes, sizeof bytes);
    assert_refused(fixture, FAILURE_DATA_DAMAGED,
                   "ends after byte 28, expected 1099511627792");
}

/* The trailer, CRC-32 and length, of the gzip file at the fixture's path. */
static void check_trailer(struct fixture *fixture) {
    uint8_t *bytes = malloc(2 * LARGE);
    size_t size = read_back(fixture->path, bytes, 2 * LARGE);
    bytes[size - 8] ^= 1;
    file_bytes_write(fixture->path, bytes, size);
    assert_refused(fixture, FAILURE_DATA_DAMAGED, "incorrect data check");
    bytes[size - 8] ^= 1;
    bytes[size - 4] ^= 1;
    file_bytes_write(fixture->path, bytes, size);
    assert_refused(fixture, FAILURE_DATA_DAMAGED, "incorrect length check");
    file_bytes_write(fixture->path, bytes, size - 1);
    assert_refused(fixture, FAILURE_DATA_DAMAGED, "unexpected end of file");
    free(bytes);
}

TEST(a_wrong_checksum_or_length_is_refused) {
    file_bytes_gzip(fixture->path, small, sizeof small);
    check_trailer(fixture);
    uint8_t *bytes = large_content();
    file_bytes_gzip(fixture->path, bytes, LARGE);
    check_trailer(fixture);
    free(bytes);
}

TEST(a_compressed_file_truncated_anywhere_is_refused) {
    uint8_t bytes[256];
    for (int i = 0; i < 2; i++) {
        compressors[i](fixture->path, small, sizeof small);
        size_t size = read_back(fixture->path, bytes, sizeof bytes);
        for (size_t cut = 0; cut < size; cut++) {
            file_bytes_write(fixture->path, bytes, cut);
            assert_refused(fixture, FAILURE_DATA_DAMAGED, "");
        }
    }
}

/* Content that just fills a buffer of zlib's, and a byte less or more. */
TEST(a_gzip_file_truncated_in_its_trailer_is_refused) {
    for (uint32_t buffer = 8192; buffer <= 65536; buffer *= 2)
        for (uint32_t size = buffer - 1; size <= buffer + 1; size++) {
            uint8_t *content = calloc(1, size), *packed = malloc(2 * size);
            const uint8_t header[8] = {0,
                                       0,
                                       8,
                                       1,
                                       0,
                                       (size - 8) >> 16 & 255,
                                       (size - 8) >> 8 & 255,
                                       (size - 8) & 255};
            memcpy(content, header, sizeof header);
            file_bytes_gzip(fixture->path, content, size);
            size_t whole = read_back(fixture->path, packed, 2 * size);
            assert_ok(idx_file_read(&fixture->file, fixture->path, "labels", 1,
                                    1, &failure));
            free(fixture->file.data);
            for (size_t cut = 1; cut <= 8; cut++) {
                file_bytes_write(fixture->path, packed, whole - cut);
                assert_error(idx_file_read(&fixture->file, fixture->path,
                                           "labels", 1, 1, &failure),
                             FAILURE_DATA_DAMAGED);
                assert_contains(failure.text, fixture->path);
            }
            free(content);
            free(packed);
        }
}

TEST(no_flipped_bit_changes_the_content) {
    uint8_t bytes[256];
    for (int i = 0; i < 2; i++) {
        compressors[i](fixture->path, small, sizeof small);
        size_t size = read_back(fixture->path, bytes, sizeof bytes);
        for (size_t bit = 0; bit < 8 * size; bit++) {
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            file_bytes_write(fixture->path, bytes, size);
            if (read_images(fixture) == STATUS_OK)
                assert_small(&fixture->file);
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
}

static void write_behind(const char *path, const void *bytes, size_t count) {
    FILE *file = fopen(path, "ab");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* Two members or frames are one content (RFC 1952, 2.2; RFC 8878, 3); a third
 * with more than the header counts is too much, whatever comes of it. */
TEST(members_and_frames_follow_each_other) {
    uint8_t rest[256];
    for (int i = 0; i < 2; i++) {
        compressors[i](fixture->path, small + 20, sizeof small - 20);
        size_t size = read_back(fixture->path, rest, sizeof rest);
        compressors[i](fixture->path, small, 20);
        write_behind(fixture->path, rest, size);
        assert_ok(read_images(fixture));
        assert_small(&fixture->file);
        assert_int_equal(fixture->file.trailing, 0);
        write_behind(fixture->path, rest, size);
        assert_refused(fixture, FAILURE_DATA_DAMAGED,
                       "byte 28: found more data, expected the end");
    }
}

/* As pzstd writes them before each frame. */
TEST(skippable_frames_of_zstandard_are_skipped) {
    static const uint8_t skippable[] = {0x50, 0x2a, 0x4d, 0x18, 4, 0,
                                        0,    0,    1,    2,    3, 4};
    uint8_t rest[2][256];
    size_t sizes[2];
    for (int i = 0; i < 2; i++) {
        file_bytes_zstd(fixture->path, i ? small + 20 : small,
                        i ? sizeof small - 20 : 20);
        sizes[i] = read_back(fixture->path, rest[i], sizeof rest[i]);
    }
    file_bytes_write(fixture->path, skippable, sizeof skippable);
    write_behind(fixture->path, rest[0], sizes[0]);
    write_behind(fixture->path, skippable, sizeof skippable);
    write_behind(fixture->path, rest[1], sizes[1]);
    assert_ok(read_images(fixture));
    assert_small(&fixture->file);
    write_behind(fixture->path, skippable, sizeof skippable - 1);
    assert_refused(fixture, FAILURE_DATA_DAMAGED, "unexpected end of file");
}

TEST(bytes_after_a_zstandard_frame_are_refused) {
    file_bytes_zstd(fixture->path, small, sizeof small);
    write_behind(fixture->path, "junk", 4);
    assert_refused(fixture, FAILURE_DATA_DAMAGED, "Unknown frame descriptor");
}

/* Also where they come with another read of the file than its end. */
TEST(trailing_bytes_after_gzip_data_are_counted_and_ignored) {
    static const uint8_t junk[200000] = {0x1f, 'x'};
    uint8_t *bytes = large_content();
    file_bytes_gzip(fixture->path, small, sizeof small);
    write_behind(fixture->path, "\x1f", 1);
    assert_ok(read_images(fixture));
    assert_small(&fixture->file);
    assert_int_equal(fixture->file.trailing, 1);
    file_bytes_gzip(fixture->path, bytes, LARGE);
    write_behind(fixture->path, junk, sizeof junk);
    assert_ok(read_images(fixture));
    assert_int_equal(fixture->file.bytes, LARGE_DATA);
    assert_memory_equal(fixture->file.data, bytes + 12, LARGE_DATA);
    assert_int_equal(fixture->file.trailing, sizeof junk);
    free(bytes);
}

TEST(an_unreadable_file_is_named) {
    assert_refused(fixture, FAILURE_DATA_UNREADABLE,
                   "cannot open the file of images: No such file");
    char path[sizeof fixture->path];
    strcpy(path, fixture->path);
    strcpy(fixture->path, fixture->folder);
    assert_refused(fixture, FAILURE_DATA_UNREADABLE, "found a directory");
    strcpy(fixture->path, path);
}
