/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "tests/lib/test.h"
#include "worker/data/loader.h"
#include "worker/data/npy_header.h"
#include "worker/data/record_reader.h"

#include <archive.h>
#include <archive_entry.h>
#include <inttypes.h>
#include <unistd.h>

static const struct record_cut any;

struct fixture {
    char path[32];
    struct archive *archive;
};

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->path, "/tmp/npz_reader.XXXXXX");
    close(mkstemp(fixture->path));
    *state = fixture;
    return 0;
}

TEARDOWN(teardown) {
    unlink(fixture->path);
    free(fixture);
}

FIXTURE(setup, teardown);

/* FILTER is around the whole archive, or NULL. */
static void begin_packed(struct fixture *fixture, const char *compression,
                         const char *filter) {
    fixture->archive = archive_write_new();
    if (filter)
        assert_int_equal(
            archive_write_add_filter_by_name(fixture->archive, filter),
            ARCHIVE_OK);
    archive_write_set_format_zip(fixture->archive);
    archive_write_set_format_option(fixture->archive, "zip", "compression",
                                    compression);
    assert_int_equal(
        archive_write_open_filename(fixture->archive, fixture->path),
        ARCHIVE_OK);
}

static void begin_archive(struct fixture *fixture, const char *compression) {
    begin_packed(fixture, compression, NULL);
}

static void end_archive(struct fixture *fixture) {
    assert_int_equal(archive_write_close(fixture->archive), ARCHIVE_OK);
    archive_write_free(fixture->archive);
}

/* NAME.npy with a header of format VERSION that ends with SHAPE. */
static void put_array(struct fixture *fixture, const char *name, int version,
                      const char *type_and_shape, const void *data,
                      size_t size) {
    char text[256];
    int length = snprintf(text, sizeof text, "{%s, }\n", type_and_shape);
    unsigned char prefix[12] = {0x93, 'N', 'U', 'M', 'P', 'Y'};
    size_t before = version == 1 ? 10 : 12;
    prefix[6] = (unsigned char)version;
    prefix[8] = (unsigned char)length;
    const char *member = textf("%s.npy", name);
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, member);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_size(entry, (la_int64_t)(before + (size_t)length + size));
    assert_int_equal(archive_write_header(fixture->archive, entry), ARCHIVE_OK);
    archive_write_data(fixture->archive, prefix, before);
    archive_write_data(fixture->archive, text, (size_t)length);
    archive_write_data(fixture->archive, data, size);
    archive_entry_free(entry);
}

#define SHAPED(type, shape)                                                    \
    "'descr': '" type "', 'fortran_order': False, 'shape': " shape

#define PUT(fixture, name, type, shape, data)                                  \
    put_array(fixture, name, 1, SHAPED(type, shape), data, sizeof(data))

static const float points[3][2] = {{1.5f, -2}, {0, 1e30f}, {3, 4}};
static const double wide[3] = {0.1, -1e300, 7};
static const int8_t small[3] = {-1, 127, -128};
static const uint64_t hashes[3] = {UINT64_MAX, 1, 1ull << 63};
static const char words[3][4] = {"ab", "", {'a', 'b', 'c', 'd'}};
/* UCS-4, with zeros behind: e with an acute accent and a, a euro, a face. */
static const uint32_t texts[3][2] = {{0xe9, 'a'}, {0x20ac}, {0x1f600}};
static const char *const utf8[3] = {"\xc3\xa9"
                                    "a",
                                    "\xe2\x82\xac", "\xf0\x9f\x98\x80"};

static void assert_text(const struct record_cell *cell, const char *expected,
                        size_t size) {
    assert_int_equal(cell->type, RECORD_TEXTS);
    assert_int_equal(cell->count, 1);
    assert_int_equal(cell->texts->size, size);
    assert_memory_equal(cell->texts->bytes, expected, size);
}

/* An integer, or the digits of what an Example has no integer for. */
static void assert_hash(const struct record_cell *cell, int r) {
    const char *digits = textf("%" PRIu64, hashes[r]);
    if (hashes[r] > INT64_MAX)
        assert_text(cell, digits, strlen(digits));
    else
        assert_int_equal(cell->integers[0], hashes[r]);
}

static void assert_row(const struct record_cell *cells, int r) {
    assert_int_equal(cells[0].count, 2);
    assert_memory_equal(cells[0].floats, points[r], sizeof points[r]);
    assert_int_equal(cells[1].count, 1);
    assert_true(cells[1].floats[0] == (float)wide[r]);
    assert_int_equal(cells[2].type, RECORD_INTEGERS);
    assert_int_equal(cells[2].integers[0], small[r]);
    assert_hash(&cells[3], r);
    assert_text(&cells[4], words[r], r == 1 ? 0 : r == 0 ? 2 : 4);
    assert_text(&cells[5], utf8[r], strlen(utf8[r]));
}

TEST(a_record_has_a_row_of_each_array) {
    static const char one_column[] = /* which has one order only */
        "'descr': '<f8', 'fortran_order': True, 'shape': (3, 1)";
    static const char *const kinds[] = {"store", "deflate", "deflate", "store"};
    static const char *const filters[] = {NULL, NULL, "gzip", "zstd"};
    static const char *const names[] = {"points", "wide",  "small",
                                        "hashes", "words", "texts"};
    const struct record_cut named = {.names = names, .num_names = 6};
    struct npz_row row = {0};
    for (int k = 0; k < 4; k++) {
        begin_packed(fixture, kinds[k], filters[k]);
        PUT(fixture, "texts", "<U2", "(3,)", texts);
        PUT(fixture, "points", "<f4", "(3, 2)", points);
        put_array(fixture, "wide", 1, one_column, wide, sizeof wide);
        put_array(fixture, "small", 2, SHAPED("|i1", "(3,)"), small,
                  sizeof small);
        PUT(fixture, "hashes", "<u8", "(3,)", hashes);
        PUT(fixture, "words", "|S4", "(3,)", words);
        end_archive(fixture);
        struct record_file *file;
        struct record record;
        assert_ok(npz_reader.open(&file, fixture->path, &named, &failure));
        for (int r = 0; r < 3; r++) {
            const struct record_cell *cells;
            assert_ok(npz_reader.next(file, &record, &failure));
            assert_int_equal(record.number, r);
            assert_ok(npz_row_read(&row, 6, &record, &cells, &failure));
            assert_row(cells, r);
        }
        for (int i = 0; i < 2; i++) {
            assert_ok(npz_reader.next(file, &record, &failure));
            assert_null(record.bytes);
        }
        npz_reader.close(&file);
        assert_null(file);
    }
    free(row.cells);
}

static void assert_refused_by(struct fixture *fixture,
                              const struct record_reader *reader,
                              enum failure_code code, const char *said) {
    struct record_file *file;
    assert_error(reader->open(&file, fixture->path, &any, &failure), code);
    assert_null(file);
    assert_contains(failure.text, said);
}

static void assert_refused(struct fixture *fixture, enum failure_code code,
                           const char *said) {
    assert_refused_by(fixture, &npz_reader, code, said);
}

/* A .npy file with a header of "descr" DESCR and "shape" SHAPE. */
static void write_npy(struct fixture *fixture, const char *descr,
                      const char *shape, const void *data, size_t size) {
    char text[512];
    unsigned char prefix[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1};
    int length = snprintf(text, sizeof text,
                          "{'descr': %s, 'fortran_order': False, 'shape': %s, "
                          "}\n",
                          descr, shape);
    FILE *file = fopen(fixture->path, "w");
    prefix[8] = (unsigned char)(length & 255);
    prefix[9] = (unsigned char)(length >> 8);
    fwrite(prefix, 1, sizeof prefix, file);
    fwrite(text, 1, (size_t)length, file);
    fwrite(data, 1, size, file);
    assert_int_equal(fclose(file), 0);
}

/* As numpy.save writes it of a dtype with align=True. */
TEST(a_record_has_the_fields_of_an_element) {
    static const char *const names[] = {"points", "wide",  "small",
                                        "hashes", "words", "texts"};
    const struct record_cut named = {.names = names, .num_names = 6};
    static const char descr[] =
        "[('texts', '<U2'), ('small', '|i1'), ('', '|V7'), ('wide', '<f8'),"
        " ('points', '<f4', (2, 1)), (\"it's\", '|u1'), ('words', '|S4'),"
        " ('', '|V3'), ('hashes', '<u8')]";
    struct element {
        uint32_t texts[2];
        int8_t small;
        char padding[7];
        double wide;
        float points[2];
        uint8_t other;
        char words[4], more_padding[3];
        uint64_t hashes;
    } elements[3] = {0};
    struct npz_row row = {0};
    struct record_file *file;
    struct record record;
    for (int r = 0; r < 3; r++) {
        memcpy(elements[r].texts, texts[r], sizeof texts[r]);
        memcpy(elements[r].points, points[r], sizeof points[r]);
        memcpy(elements[r].words, words[r], sizeof words[r]);
        elements[r].wide = wide[r];
        elements[r].small = small[r];
        elements[r].hashes = hashes[r];
    }
    assert_int_equal(sizeof *elements, 48);
    write_npy(fixture, descr, "(3,)", elements, sizeof elements);
    assert_ok(npy_reader.open(&file, fixture->path, &named, &failure));
    for (int r = 0; r < 3; r++) {
        const struct record_cell *cells;
        assert_ok(npy_reader.next(file, &record, &failure));
        assert_int_equal(record.number, r);
        assert_ok(npz_row_read(&row, 6, &record, &cells, &failure));
        assert_row(cells, r);
    }
    assert_ok(npy_reader.next(file, &record, &failure));
    assert_null(record.bytes);
    npy_reader.close(&file);
    assert_null(file);
    write_npy(fixture, descr, "(4,)", elements, sizeof elements);
    assert_ok(npy_reader.open(&file, fixture->path, &any, &failure));
    for (int r = 0; r < 3; r++)
        assert_ok(npy_reader.next(file, &record, &failure));
    assert_error(npy_reader.next(file, &record, &failure),
                 FAILURE_DATA_DAMAGED);
    assert_contains(failure.text, "fewer elements");
    npy_reader.close(&file);
    free(row.cells);
}

TEST(what_is_no_structured_array_is_refused) {
    static const struct {
        const char *descr, *shape, *said;
    } wrong[] = {
        {"'<f4'", "(3, 2)", "an array without fields"},
        {"[('x', '<f4')]", "(3, 2)", "elements in several dimensions"},
        {"[('x', '<f4')]", "()", "a single value"},
        {"[('x', '<c8')]", "(3,)", "array x: found a type of values other"},
        {"[('x', '|O')]", "(3,)", "objects of Python"},
        {"[('x', '|V4')]", "(3,)", "a type of values other than"},
        {"[('x', [('y', '<f4')])]", "(3,)", "fields of its own"},
        {"[(('title', 'x'), '<f4')]", "(3,)", "without a name of its own"},
        {"[('x', '<f4', (4294967296, 4294967296))]", "(3,)", "too many values"},
        {"[('x', '<f4', (4194304,))]", "(3,)", "more than 8 MiB"},
        {"[('x', '<f4', (2", "(3,)", "no shape of a field"},
        {"[('x', '<f4'", "(3,)", "does not end"},
        {"[('x', '<f4')", "(3,)", "do not end"},
        {"[(x", "(3,)", "without a name of its own"},
        {"[('', '|V4')]", "(3,)", "no field"},
        {"[]", "(3,)", "no field"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_npy(fixture, wrong[i].descr, wrong[i].shape, points,
                  sizeof points);
        assert_refused_by(fixture, &npy_reader, FAILURE_DATA_DAMAGED,
                          wrong[i].said);
    }
    FILE *file = fopen(fixture->path, "w");
    fputs("label,x\n1,2\n", file);
    fclose(file);
    assert_refused_by(fixture, &npy_reader, FAILURE_DATA_DAMAGED,
                      "no header of NumPy's");
}

TEST(what_is_no_array_of_rows_is_refused) {
    static const struct {
        const char *type_and_shape, *said;
    } wrong[] = {
        {SHAPED("<c8", "(3, 2)"),
         "array points: found a type of values other than"},
        {SHAPED("<f1", "(3, 2)"), "found a type of values other than"},
        {SHAPED("|O", "(3, 2)"), "found objects of Python"},
        {SHAPED("<f4", "()"), "found a single value"},
        {SHAPED("<f4", "(3, x)"), "found no shape"},
        {"'descr': '<f4', 'fortran_order': True, 'shape': (3, 2)",
         "save it by numpy.ascontiguousarray"},
        {SHAPED("<f4", "(3, 4294967296, 4294967296)"), "too many values"},
        {SHAPED("<f4", "(3, 4194304)"), "a row of more than 8 MiB"},
        {SHAPED("|u1", "(3, 8388608)"), "rows that may take more than 64 MiB"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        begin_archive(fixture, "store");
        put_array(fixture, "points", 1, wrong[i].type_and_shape, points,
                  sizeof points);
        end_archive(fixture);
        assert_refused(fixture, FAILURE_DATA_DAMAGED, wrong[i].said);
    }
    begin_archive(fixture, "store");
    PUT(fixture, "points", "<f4", "(3, 2)", points);
    PUT(fixture, "wide", "<f8", "(2,)", wide);
    end_archive(fixture);
    assert_refused(fixture, FAILURE_DATA_DAMAGED,
                   "array wide: found 2 rows, expected 3 as in points");
    begin_archive(fixture, "store");
    put_array(fixture, "points", 4, SHAPED("<f4", "(3, 2)"), points,
              sizeof points);
    end_archive(fixture);
    assert_refused(fixture, FAILURE_DATA_DAMAGED, "no header of NumPy's");
    FILE *file = fopen(fixture->path, "w");
    fputs("label,x\n1,2\n", file);
    fclose(file);
    assert_refused(fixture, FAILURE_DATA_UNREADABLE, "cannot be read");
}

/* Every fourth record is its first again: epochs follow each other. */
TEST(archives_are_files_of_records) {
    static const uint8_t labels[3] = {2, 0, 1};
    struct job job = {
        .features = "{\"points\": {\"type\": \"numeric\", \"shape\": 2},"
                    " \"small\": {\"type\": \"identity\"}}",
        .data = {.format = JOB_NPZ, .shuffle_buffer = 2, .label = "labels"}};
    struct job_files files = {.paths = {fixture->path}};
    struct dataset_options options = {
        .job = &job, .files = &files, .key = "data.train", .num_ranks = 1};
    struct batch_spec spec = {
        .num_columns = 2,
        .columns = {{BATCH_FLOATS, .width = 2},
                    {BATCH_CLASSES, .width = 1, .num_classes = 3}},
        .num_ids = 1,
        .id_features = {1}};
    struct sampler_options sampling = {.micro_batch = 5};
    struct dataset *dataset;
    struct loader *loader;
    const struct batch *batch;
    begin_archive(fixture, "deflate");
    PUT(fixture, "points", "<f4", "(3, 2)", points);
    PUT(fixture, "labels", "|u1", "(3,)", labels);
    PUT(fixture, "small", "|i1", "(3,)", small);
    end_archive(fixture);
    if (dataset_open(&dataset, &options, &failure) ||
        loader_open(&loader, dataset, &spec, &sampling, 0,
                    (struct loader_prefetch){0}, &failure) ||
        loader_next(loader, &batch, &failure))
        fail_msg("%s", failure.text);
    assert_int_equal(batch->count, 5);
    for (int i = 0; i < 5; i++) {
        assert_memory_equal((const float *)batch->columns[0] + 2 * i,
                            points[i % 3], sizeof *points);
        assert_int_equal(((const uint32_t *)batch->columns[1])[i],
                         labels[i % 3]);
        assert_int_equal(batch->ids->ids[i], (int64_t)small[i % 3]);
    }
    loader_close(&loader);
    dataset_free(&dataset);
}

TEST(an_array_with_too_few_rows_is_named) {
    struct record_file *file;
    struct record record;
    begin_archive(fixture, "store");
    PUT(fixture, "points", "<f4", "(4, 2)", points);
    end_archive(fixture);
    assert_ok(npz_reader.open(&file, fixture->path, &any, &failure));
    for (int r = 0; r < 3; r++)
        assert_ok(npz_reader.next(file, &record, &failure));
    assert_error(npz_reader.next(file, &record, &failure),
                 FAILURE_DATA_DAMAGED);
    assert_contains(failure.text, "array points: found fewer");
    npz_reader.close(&file);
}

/* As NumPy's savez writes them: not compressed, so only the checksum differs.
 */
TEST(an_array_with_another_checksum_is_named) {
    struct record_file *file;
    struct record record;
    char bytes[4096];
    begin_archive(fixture, "store");
    PUT(fixture, "points", "<f4", "(3, 2)", points);
    end_archive(fixture);
    FILE *archive = fopen(fixture->path, "r+");
    size_t size = fread(bytes, 1, sizeof bytes, archive);
    char *last = memmem(bytes, size, &points[2], sizeof points[2]);
    assert_non_null(last);
    fseek(archive, last - bytes, SEEK_SET);
    fputc(*last ^ 1, archive);
    assert_int_equal(fclose(archive), 0);
    assert_ok(npz_reader.open(&file, fixture->path, &any, &failure));
    for (int r = 0; r < 2; r++)
        assert_ok(npz_reader.next(file, &record, &failure));
    assert_error(npz_reader.next(file, &record, &failure),
                 FAILURE_DATA_DAMAGED);
    assert_contains(failure.text, "array points: found ");
    npz_reader.close(&file);
}

/* Any text is either parsed or refused; the sanitizers watch. */
TEST_WITH(NULL, NULL, damaged_headers_do_no_harm) {
    static const char good[] = "{" SHAPED("<f4", "(100, 784)") ", }\n";
    static const char fields[] =
        "{'descr': [('x', '<f4', (3, 2)), ('', '|V4'), ('label', '|u1')],"
        " 'fortran_order': False, 'shape': (100,), }\n";
    unsigned seed = 1, parsed = 0, structured = 0;
    printf("seed %u\n", seed);
    for (int i = 0; i < 20000; i++) {
        char text[sizeof good], more[sizeof fields];
        struct npy_field found[2];
        struct npy_header header;
        uint32_t count;
        size_t bytes;
        memcpy(text, good, sizeof good);
        for (int n = i % 4; n >= 0; n--)
            text[(unsigned)rand_r(&seed) % (sizeof good - 1)] =
                (char)rand_r(&seed);
        parsed += !npy_header_parse(text, &header);
        memcpy(more, fields, sizeof fields);
        for (int n = i % 4; n >= 0; n--)
            more[(unsigned)rand_r(&seed) % (sizeof fields - 1)] =
                (char)rand_r(&seed);
        structured += !npy_header_parse_fields(more, found, 2, &count, &bytes);
    }
    assert_true(parsed > 100 && parsed < 19900);
    assert_true(structured > 100 && structured < 19900);
}

/* A safetensors file with the HEADER and then points, small, the hashes. */
static void write_tensors(struct fixture *fixture, const char *header) {
    FILE *file = fopen(fixture->path, "w");
    uint64_t length = strlen(header);
    fwrite(&length, sizeof length, 1, file);
    fputs(header, file);
    fwrite(points, sizeof points, 1, file);
    fwrite(small, sizeof small, 1, file);
    fwrite(hashes, sizeof hashes, 1, file);
    assert_int_equal(fclose(file), 0);
}

TEST(a_record_has_a_row_of_each_tensor) {
    static const char *const names[] = {"points", "small", "hashes"};
    const struct record_cut named = {.names = names, .num_names = 3};
    struct npz_row row = {0};
    struct record_file *file;
    struct record record;
    write_tensors(
        fixture,
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"hashes\":{\"dtype\":\"U64\",\"shape\":[3,1],\"data_offsets\":[27,51]},"
        "\"points\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,24]},"
        "\"small\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[24,27]}}");
    assert_ok(safetensors_reader.open(&file, fixture->path, &named, &failure));
    for (int r = 0; r < 3; r++) {
        const struct record_cell *cells;
        assert_ok(safetensors_reader.next(file, &record, &failure));
        assert_int_equal(record.number, r);
        assert_ok(npz_row_read(&row, 3, &record, &cells, &failure));
        assert_int_equal(cells[0].count, 2);
        assert_memory_equal(cells[0].floats, points[r], sizeof points[r]);
        assert_int_equal(cells[1].integers[0], small[r]);
        assert_hash(&cells[2], r);
    }
    assert_ok(safetensors_reader.next(file, &record, &failure));
    assert_null(record.bytes);
    safetensors_reader.close(&file);
    free(row.cells);
}

TEST(what_is_no_tensor_of_samples_is_refused) {
    static const struct {
        const char *header, *said;
        enum failure_code code;
    } wrong[] = {
        {"{}", "found no array", FAILURE_DATA_DAMAGED},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
         "array x: found no dimension", FAILURE_DATA_DAMAGED},
        {"{\"x\":{\"dtype\":\"C64\",\"shape\":[3],\"data_offsets\":[0,24]}}",
         "array x: found a dtype", FAILURE_DATA_DAMAGED},
        {"{\"x\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[24,28]}}",
         "array x: found other bytes", FAILURE_DATA_DAMAGED},
        {"{\"x\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[24,27]},"
         "\"y\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24]}}",
         "array y: found 6 rows, expected 3 as in x", FAILURE_DATA_DAMAGED},
        {"{\"x\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[50,53]}}",
         "a tensor lies outside the file", FAILURE_WEIGHTS_INVALID},
        {"[]", "not a JSON object", FAILURE_WEIGHTS_INVALID},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_tensors(fixture, wrong[i].header);
        assert_refused_by(fixture, &safetensors_reader, wrong[i].code,
                          wrong[i].said);
    }
}

/* The values of names[0], one a row, are VALUES. */
static void expect_floats(struct fixture *fixture,
                          const struct record_reader *reader,
                          const struct record_cut *cut, const float *values) {
    struct npz_row row = {0};
    struct record_file *file;
    struct record record;
    assert_ok(reader->open(&file, fixture->path, cut, &failure));
    for (int r = 0; r < 3; r++) {
        const struct record_cell *cells;
        assert_ok(reader->next(file, &record, &failure));
        assert_ok(npz_row_read(&row, 1, &record, &cells, &failure));
        assert_int_equal(cells[0].count, 1);
        if (cells[0].type == RECORD_FLOATS)
            assert_true(cells[0].floats[0] == values[r]);
        else
            assert_true((float)cells[0].integers[0] == values[r]);
    }
    assert_ok(reader->next(file, &record, &failure));
    assert_null(record.bytes);
    reader->close(&file);
    free(row.cells);
}

static void expect_absent(struct fixture *fixture,
                          const struct record_reader *reader,
                          const char *said) {
    static const char *const names[] = {"wide", "other"};
    const struct record_cut cut = {.names = names, .num_names = 2};
    struct record_file *file;
    assert_error(reader->open(&file, fixture->path, &cut, &failure),
                 FAILURE_DATA_MISMATCH);
    assert_contains(failure.text, said);
}

static const char *const one_name[] = {"wide"};
static const struct record_cut one = {.names = one_name, .num_names = 1};
static const float narrow[3] = {0.1f, -3, 7};

/* A scalar, objects, other lengths and types; what a field has beside it is
 * stepped over. */
TEST(arrays_that_are_not_named_need_not_fit) {
    struct __attribute__((packed)) {
        double complex_number[2];
        float wide;
        int64_t when;
    } elements[3];
    const float lone[2] = {1, 2};
    for (int r = 0; r < 3; r++)
        elements[r].wide = narrow[r];
    begin_archive(fixture, "deflate");
    PUT(fixture, "step", "<i8", "()", lone);
    PUT(fixture, "objects", "|O", "(3,)", lone);
    PUT(fixture, "dates", "<M8[ns]", "(1,)", lone);
    PUT(fixture, "wide", "<f4", "(3,)", narrow);
    PUT(fixture, "points", "<f4", "(2,)", lone);
    end_archive(fixture);
    expect_floats(fixture, &npz_reader, &one, narrow);
    expect_absent(fixture, &npz_reader,
                  "found no array other; it has step, objects, dates, wide, "
                  "points");
    write_npy(fixture, "[('c', '<c16'), ('wide', '<f4'), ('when', '<M8[us]')]",
              "(3,)", elements, sizeof elements);
    expect_floats(fixture, &npy_reader, &one, narrow);
    expect_absent(fixture, &npy_reader, "other; it has c, wide, when");
    write_tensors(
        fixture,
        "{\"step\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[26,27]},"
        "\"c\":{\"dtype\":\"C64\",\"shape\":[2],\"data_offsets\":[0,16]},"
        "\"wide\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[24,27]}}");
    expect_floats(fixture, &safetensors_reader, &one,
                  (const float[]){-1, 127, -128});
    expect_absent(fixture, &safetensors_reader, "other; it has ");
}

/* Bytes as IEEE 754, two's complement and bf16 have them. */
TEST(values_of_any_width_and_order_are_read) {
    static const struct {
        const char *type;
        unsigned char bytes[24], size;
        float values[3];
    } arrays[] = {
        {"<f2", {0x00, 0xc0, 0xff, 0x7b, 0x01, 0x00}, 6, {-2, 65504, 0x1p-24f}},
        {">f2", {0xc0, 0x00, 0x7b, 0xff, 0x00, 0x01}, 6, {-2, 65504, 0x1p-24f}},
        {">f4",
         {0x3f, 0xa0, 0, 0, 0xc0, 0x60, 0, 0, 0x42, 0xf7, 0, 0},
         12,
         {1.25f, -3.5f, 123.5f}},
        {">f8",
         {0x3f, 0xf4, 0, 0, 0, 0, 0, 0, 0xc0, 0x0c, 0, 0, 0, 0, 0, 0, 0x40,
          0x5e, 0xe0},
         24,
         {1.25f, -3.5f, 123.5f}},
        {">i2", {0x01, 0x02, 0xff, 0xfe, 0x80, 0x00}, 6, {258, -2, -32768}},
        {">u4", {0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 9}, 12, {256, 65536, 9}},
        {">i8",
         {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfb, 0, 0, 0, 0,
          0,    0,    1,    0,    0,    0,    0,    1,    0, 0, 0, 0},
         24,
         {-5, 256, 4294967296.f}},
        {"|b1", {1, 0, 1}, 3, {1, 0, 1}},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        const char *shaped = textf(SHAPED("%s", "(3,)"), arrays[i].type);
        begin_archive(fixture, "store");
        put_array(fixture, "wide", 1, shaped, arrays[i].bytes, arrays[i].size);
        end_archive(fixture);
        expect_floats(fixture, &npz_reader, &one, arrays[i].values);
        write_npy(fixture, textf("[('wide', '%s')]", arrays[i].type), "(3,)",
                  arrays[i].bytes, arrays[i].size);
        expect_floats(fixture, &npy_reader, &one, arrays[i].values);
    }
    static const unsigned char halves[] = {0, 0xc0, 0xff, 0x7b, 0x01, 0};
    static const unsigned char brains[] = {0x80, 0x3f, 0x40, 0xc0, 0xab, 0x3e};
    for (int b = 0; b < 2; b++) {
        char header[128];
        int length = snprintf(header, sizeof header,
                              "{\"wide\":{\"dtype\":\"%s\",\"shape\":[3,1],"
                              "\"data_offsets\":[0,6]}}",
                              b ? "BF16" : "F16");
        FILE *file = fopen(fixture->path, "w");
        fwrite(&(uint64_t){(uint64_t)length}, 8, 1, file);
        fputs(header, file);
        fwrite(b ? brains : halves, 6, 1, file);
        assert_int_equal(fclose(file), 0);
        expect_floats(fixture, &safetensors_reader, &one,
                      b ? (const float[]){1, -3, 0x1.56p-2f}
                        : (const float[]){-2, 65504, 0x1p-24f});
    }
}

/* Each code point in four bytes, the highest first. */
TEST(big_endian_texts_are_read) {
    struct npz_row row = {0};
    struct record_file *file;
    struct record record;
    const struct record_cell *cells;
    static const unsigned char code_points[] = {
        0, 0, 0, 0xe9, 0, 0, 0,    'a', 0, 0, 0,    'b',
        0, 0, 0, 0,    0, 1, 0xf6, 0,   0, 0, 0x20, 0xac};
    static const char *const expected[] = {"\xc3\xa9"
                                           "a",
                                           "b", "\xf0\x9f\x98\x80\xe2\x82\xac"};
    begin_archive(fixture, "store");
    PUT(fixture, "wide", ">U2", "(3,)", code_points);
    end_archive(fixture);
    assert_ok(npz_reader.open(&file, fixture->path, &one, &failure));
    for (int r = 0; r < 3; r++) {
        assert_ok(npz_reader.next(file, &record, &failure));
        assert_ok(npz_row_read(&row, 1, &record, &cells, &failure));
        assert_text(&cells[0], expected[r], strlen(expected[r]));
    }
    npz_reader.close(&file);
    free(row.cells);
}
