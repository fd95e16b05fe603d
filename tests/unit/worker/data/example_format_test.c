/* SPDX-License-Identifier: Apache-2.0 */
/* TFRecord files of tf.train.Example, written here by their definition. */
#include "worker/data/example_format.h"

#include "core/base/masked_crc.h"
#include "tests/lib/example_message.h"
#include "tests/lib/test.h"
#include "worker/data/record_reader.h"

#include <unistd.h>
#include <zlib.h>

/* city: two texts; price: floats; clicks: integers, both packed or not. */
static void write_example(struct example_message *example, bool packed,
                          bool reversed) {
    static const float prices[] = {1.5f, -2, 1e30f};
    static const int64_t clicks[] = {7, -1, INT64_MIN, INT64_MAX};
    struct example_message city = {.size = 0}, price = {.size = 0},
                           click = {.size = 0}, features = {.size = 0};
    example_message_put_part(&city, 1, "K\xc3\xb6ln", 5);
    example_message_put_part(&city, 1, "", 0);
    if (packed) {
        struct example_message values = {.size = 0};
        example_message_put_part(&price, 1, prices, sizeof prices);
        for (int i = 0; i < 4; i++)
            example_message_put_varint(&values, (uint64_t)clicks[i]);
        example_message_put_part(&click, 1, values.bytes, values.size);
    } else {
        for (int i = 0; i < 3; i++) {
            example_message_put_varint(&price, 1 << 3 | 5);
            example_message_put(&price, &prices[i], 4);
        }
        for (int i = 0; i < 4; i++) {
            example_message_put_varint(&click, 1 << 3 | 0);
            example_message_put_varint(&click, (uint64_t)clicks[i]);
        }
    }
    if (reversed)
        example_message_put_entry(&features, "clicks", 3, &click);
    example_message_put_entry(&features, "city", 1, &city);
    example_message_put_entry(&features, "not wanted", 1, &city);
    example_message_put_entry(&features, "price", 2, &price);
    if (!reversed)
        example_message_put_entry(&features, "clicks", 3, &click);
    example->size = 0;
    example_message_put_part(example, 1, features.bytes, features.size);
}

static const char *const names[] = {"clicks", "missing", "price", "city"};

static void expect_values(struct example_format *format,
                          struct example_message *example) {
    struct record record = {.bytes = example->bytes, .size = example->size};
    const struct record_cell *cells;
    assert_ok(example_format_read(format, &record, &cells, &failure));
    assert_int_equal(cells[0].type, RECORD_INTEGERS);
    assert_int_equal(cells[0].count, 4);
    assert_true(cells[0].integers[0] == 7 && cells[0].integers[1] == -1 &&
                cells[0].integers[2] == INT64_MIN &&
                cells[0].integers[3] == INT64_MAX);
    assert_int_equal(cells[1].count, 0);
    assert_int_equal(cells[2].type, RECORD_FLOATS);
    assert_int_equal(cells[2].count, 3);
    assert_true(cells[2].floats[0] == 1.5f && cells[2].floats[1] == -2 &&
                cells[2].floats[2] == 1e30f);
    assert_int_equal(cells[3].type, RECORD_TEXTS);
    assert_int_equal(cells[3].count, 2);
    assert_int_equal(cells[3].texts[0].size, 5);
    assert_memory_equal(cells[3].texts[0].bytes, "K\xc3\xb6ln", 5);
    assert_int_equal(cells[3].texts[1].size, 0);
}

static struct example_format *open_names(void) {
    struct example_format *format;
    assert_ok(example_format_open(&format, names, 4, &failure));
    return format;
}

TEST(values_are_found_by_name_in_any_order) {
    struct example_format *format = open_names();
    for (int i = 0; i < 8; i++) {
        struct example_message example;
        write_example(&example, i & 1, i & 2);
        expect_values(format, &example);
    }
    example_format_close(&format);
}

/* Three names of SIZE bytes, and one whose last byte is doubled. */
static void name_alike(char alike[4][32], size_t size) {
    for (int i = 0; i < 4; i++)
        snprintf(alike[i], sizeof alike[i], "%.*s", (int)size,
                 "feature_of_many_bytes");
    alike[1][size - 1] = '1';
    alike[2][0] = '2';
    alike[3][size] = alike[3][size - 1];
    alike[3][size + 1] = 0;
}

TEST(names_that_differ_in_one_byte_have_their_own_values) {
    for (size_t size = 2; size < 20; size++) {
        char alike[4][32];
        name_alike(alike, size);
        const char *wanted[] = {alike[0], alike[1], alike[2]};
        struct example_format *format;
        struct example_message features = {.size = 0}, example = {.size = 0};
        const struct record_cell *cells;
        for (char i = 0; i < 4; i++) {
            struct example_message list = {.size = 0};
            example_message_put_part(&list, 1, &i, 1);
            example_message_put_entry(&features, alike[(int)i], 3, &list);
        }
        example_message_put_part(&example, 1, features.bytes, features.size);
        assert_ok(example_format_open(&format, wanted, 3, &failure));
        struct record record = {.bytes = example.bytes, .size = example.size};
        assert_ok(example_format_read(format, &record, &cells, &failure));
        for (int i = 0; i < 3; i++) {
            assert_int_equal(cells[i].count, 1);
            assert_int_equal(cells[i].integers[0], i);
        }
        example_format_close(&format);
    }
}

static void note_name(void *context, const struct record_text *name) {
    char *list = context;
    sprintf(list + strlen(list), "%.*s;", (int)name->size, name->bytes);
}

TEST(all_names_of_a_record_are_listed) {
    struct example_message example;
    char list[128] = "";
    write_example(&example, true, false);
    struct record record = {.bytes = example.bytes, .size = example.size};
    assert_ok(example_format_names(&record, note_name, list, &failure));
    assert_string_equal(list, "city;not wanted;price;clicks;");
}

/* A read beyond the record is one beyond the allocation. */
static enum status read_copy(struct example_format *format,
                             const struct example_message *example, size_t size,
                             struct failure *why) {
    const struct record_cell *cells;
    char *copy = malloc(size);
    memcpy(copy, example->bytes, size);
    struct record record = {.bytes = copy, .size = size};
    enum status status = example_format_read(format, &record, &cells, why);
    free(copy);
    return status;
}

TEST(what_is_no_example_is_refused) {
    struct example_format *format = open_names();
    struct example_message example;
    write_example(&example, true, false);
    for (size_t cut = 1; cut < example.size; cut++)
        assert_error(read_copy(format, &example, cut, &failure),
                     FAILURE_DATA_DAMAGED);
    assert_contains(failure.text, "it is not a tf.train.Example");
    unsigned seed = 8;
    for (int i = 0; i < 20000; i++) {
        struct example_message damaged = example;
        for (int b = 0; b < 1 + i % 3; b++)
            damaged.bytes[(size_t)rand_r(&seed) % example.size] =
                (char)rand_r(&seed);
        enum status status =
            read_copy(format, &damaged, damaged.size, &failure);
        assert_true(!status || status == STATUS_CONFIG);
    }
    example_format_close(&format);
}

/* Its context, if it has one, would be read as the features of an Example. */
TEST(a_sequence_example_is_none) {
    struct example_format *format = open_names();
    for (int context = 0; context < 2; context++) {
        struct example_message example = {.size = 0}, lists = {.size = 0};
        char list[64] = "";
        if (context)
            write_example(&example, true, false);
        example_message_put_part(&lists, 1, "", 0);
        example_message_put_part(&example, 2, lists.bytes, lists.size);
        struct record record = {.bytes = example.bytes, .size = example.size};
        assert_error(read_copy(format, &example, example.size, &failure),
                     FAILURE_DATA_MISMATCH);
        assert_error(example_format_names(&record, note_name, list, &failure),
                     FAILURE_DATA_MISMATCH);
    }
    example_format_close(&format);
}

static const struct record_cut any;

/* COUNT records, of which DAMAGED have another checksum. */
static enum status read_file(const char *path, unsigned *count,
                             unsigned *damaged, struct failure *why) {
    struct record_file *file;
    struct record record = {.bytes = ""};
    enum status status = tfrecord_reader.open(&file, path, &any, why);
    *damaged = 0;
    for (*count = 0; !status && record.bytes; *count += record.bytes != NULL) {
        status = tfrecord_reader.next(file, &record, why);
        if (!status && record.bytes)
            assert_int_equal(record.number, *count);
        *damaged += !status && record.bytes && record.is_damaged;
    }
    tfrecord_reader.close(&file);
    return status;
}

/* Where the next record begins follows from the length alone. */
TEST(a_damaged_or_truncated_file_is_refused) {
    char path[] = "/tmp/example_format_test.XXXXXX", bytes[2048];
    int descriptor = mkstemp(path);
    struct example_message example;
    unsigned count, damaged;
    FILE *file = fdopen(descriptor, "wb");
    write_example(&example, true, false);
    example_message_write(file, &example);
    size_t first = 16 + example.size;
    example.size = 0;
    example_message_write(file, &example);
    fclose(file);
    assert_ok(read_file(path, &count, &damaged, &failure));
    assert_int_equal(count, 2);
    assert_int_equal(damaged, 0);
    file = fopen(path, "rb");
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    for (size_t at = 0; at < size; at++) {
        bool whole = at == 0 || at == size - 16;
        bool in_length = at < 12 || (at >= first && at < first + 12);
        file = fopen(path, "wb");
        fwrite(bytes, 1, at, file);
        fclose(file);
        if (whole)
            assert_ok(read_file(path, &count, &damaged, &failure));
        else
            assert_error(read_file(path, &count, &damaged, &failure),
                         FAILURE_DATA_DAMAGED);
        bytes[at] ^= 16;
        file = fopen(path, "wb");
        fwrite(bytes, 1, size, file);
        fclose(file);
        bytes[at] ^= 16;
        if (in_length) {
            assert_error(read_file(path, &count, &damaged, &failure),
                         FAILURE_DATA_DAMAGED);
            assert_contains(failure.text, path);
        } else {
            assert_ok(read_file(path, &count, &damaged, &failure));
            assert_int_equal(count, 2);
            assert_int_equal(damaged, 1);
        }
    }
    unlink(path);
}

/* SIZE bytes as TensorFlow's ZLIB has them. */
static void write_stream(const char *path, const char *bytes, size_t size,
                         size_t cut) {
    static char packed[1 << 16];
    uLongf length = sizeof packed;
    assert_int_equal(
        compress((Bytef *)packed, &length, (const Bytef *)bytes, size), Z_OK);
    FILE *file = fopen(path, "wb");
    fwrite(packed, 1, length - cut, file);
    assert_int_equal(fclose(file), 0);
}

/* A plain file whose first record has such a length begins as a stream does. */
TEST(a_stream_of_zlib_is_unpacked) {
    char path[] = "/tmp/example_format_test.XXXXXX";
    static char bytes[1 << 16];
    struct example_message example;
    unsigned count, damaged;
    int descriptor = mkstemp(path);
    FILE *file = fdopen(descriptor, "wb+");
    write_example(&example, true, false);
    for (int i = 0; i < 20; i++)
        example_message_write(file, &example);
    rewind(file);
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    write_stream(path, bytes, size, 0);
    assert_ok(read_file(path, &count, &damaged, &failure));
    assert_int_equal(count, 20);
    assert_int_equal(damaged, 0);
    write_stream(path, bytes, size, 5);
    assert_error(read_file(path, &count, &damaged, &failure),
                 FAILURE_DATA_DAMAGED);
    write_stream(path, bytes, 0, 0);
    assert_ok(read_file(path, &count, &damaged, &failure));
    assert_int_equal(count, 0);
    uint64_t length = 0x9c78;
    uint32_t crc = masked_crc(&length, sizeof length);
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, &length, sizeof length);
    memcpy(bytes + 8, &crc, sizeof crc);
    crc = masked_crc(bytes + 12, length);
    memcpy(bytes + 12 + length, &crc, sizeof crc);
    file = fopen(path, "wb");
    fwrite(bytes, 1, length + 16, file);
    fclose(file);
    assert_ok(read_file(path, &count, &damaged, &failure));
    assert_int_equal(count, 1);
    assert_int_equal(damaged, 0);
    unlink(path);
}
