/* SPDX-License-Identifier: Apache-2.0 */

#define STATE struct checkpoint_fixture_file *place

#include "core/store/tensor_file.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <jansson.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NUM_TENSORS = 5 };

static const struct parameter tensors[NUM_TENSORS] = {
    {.name = "layer0.weight", .num_dims = 2, .dims = {3, 5}, .elements = 15},
    {.name = "layer0.bias", .num_dims = 1, .dims = {3}, .elements = 3},
    {.name = "größe/\"x\"", .num_dims = 4, .dims = {2, 1, 2, 2}, .elements = 8},
    {.name = "scalar", .num_dims = 0, .dims = {0}, .elements = 1},
    {.name = "large", .num_dims = 2, .dims = {1000, 300}, .elements = 300000},
};

static int setup(void **state) {
    return checkpoint_fixture_setup(state, "w.safetensors");
}

FIXTURE(setup, checkpoint_fixture_teardown);

static float value_of(uint32_t t, uint64_t e) {
    return (float)t + (float)e / 1024.0f;
}

/* CONTEXT: the index of a tensor that fails, or NULL. */
static enum status fetch(void *context, uint32_t t, float *floats,
                         struct failure *why) {
    if (context && *(uint32_t *)context == t)
        return status_fail(why, FAILURE_PEER_LOST, "ps 1 is gone");
    for (uint64_t e = 0; e < tensors[t].elements; e++)
        floats[e] = value_of(t, e);
    return STATUS_OK;
}

/* Fetching tensor *FAILS fails, unless FAILS is NULL. */
static enum status try_write(const struct checkpoint_fixture_file *place,
                             enum tensor_format format, uint32_t *fails,
                             struct failure *why) {
    const struct tensor_source source = {tensors, NUM_TENSORS, fetch, fails};
    return tensor_file_write(place->path, format, &source, why);
}

static void write_file(const struct checkpoint_fixture_file *place,
                       enum tensor_format format) {
    assert_ok(try_write(place, format, NULL, &failure));
    assert_int_equal(checkpoint_fixture_entries(place->folder), 1);
}

TEST(written_tensors_read_back) {
    struct tensor_file *file;
    float *floats = malloc(300000 * sizeof *floats);
    write_file(place, TENSOR_SAFETENSORS);
    assert_ok(tensor_file_open(&file, place->path, &failure));
    for (uint32_t t = NUM_TENSORS; t-- > 0;) {
        assert_ok(tensor_file_read(file, &tensors[t], floats, &failure));
        for (uint64_t e = 0; e < tensors[t].elements; e++)
            assert_true(floats[e] == value_of(t, e));
    }
    tensor_file_close(&file);
    free(floats);
}

TEST(a_compiled_models_tensor_is_read_by_its_plain_name) {
    struct parameter tensor = tensors[0];
    const struct tensor_source source = {&tensor, 1, fetch, NULL};
    struct tensor_file *file;
    float found[15];
    strcpy(tensor.name, "a._orig_mod.b_orig_mod.w");
    assert_ok(
        tensor_file_write(place->path, TENSOR_SAFETENSORS, &source, &failure));
    assert_ok(tensor_file_open(&file, place->path, &failure));
    strcpy(tensor.name, "a.b_orig_mod.w");
    assert_ok(tensor_file_read(file, &tensor, found, &failure));
    assert_true(found[14] == value_of(0, 14));
    strcpy(tensor.name, "a.bw");
    assert_error(tensor_file_read(file, &tensor, found, &failure),
                 FAILURE_WEIGHTS_MISMATCH);
    tensor_file_close(&file);
}

TEST(a_difference_from_the_model_is_named) {
    static const struct {
        struct parameter tensor;
        enum failure_code code;
        const char *named;
    } cases[] = {
        {{.name = "layer9.weight", .num_dims = 1, .dims = {3}, .elements = 3},
         FAILURE_WEIGHTS_MISMATCH,
         "no tensor \"layer9.weight\"; it has"},
        {{.name = "layer0.weight",
          .num_dims = 2,
          .dims = {5, 3},
          .elements = 15},
         FAILURE_WEIGHTS_MISMATCH,
         "shape [3,5], the model [5,3]"},
        {{.name = "layer0.weight", .num_dims = 1, .dims = {15}, .elements = 15},
         FAILURE_WEIGHTS_MISMATCH,
         "shape [3,5], the model [15]"},
        {{.name = "__metadata__", .num_dims = 1, .dims = {15}, .elements = 15},
         FAILURE_WEIGHTS_INVALID,
         "only F32"},
    };
    struct tensor_file *file;
    float none[1];
    write_file(place, TENSOR_SAFETENSORS);
    assert_ok(tensor_file_open(&file, place->path, &failure));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_error(tensor_file_read(file, &cases[i].tensor, none, &failure),
                     cases[i].code);
        assert_contains(failure.text, cases[i].named);
    }
    tensor_file_close(&file);
}

TEST_WITH(NULL, NULL, the_file_extension_selects_the_format) {
    enum tensor_format format;
    assert_ok(tensor_format_of("a/b.npz", &format, &failure));
    assert_int_equal(format, TENSOR_NPZ);
    assert_ok(tensor_format_of("m.safetensors", &format, &failure));
    assert_int_equal(format, TENSOR_SAFETENSORS);
    assert_error(tensor_format_of("m.pt", &format, &failure),
                 FAILURE_WEIGHTS_INVALID);
    assert_error(tensor_format_of("npz", &format, &failure),
                 FAILURE_WEIGHTS_INVALID);
    assert_contains(failure.text, ".safetensors or .npz");
}

TEST(a_failed_fetch_keeps_the_existing_file) {
    struct stat before, after;
    for (int format = 0; format < 2; format++) {
        write_file(place, (enum tensor_format)format);
        stat(place->path, &before);
        for (uint32_t t = 0; t < NUM_TENSORS; t++) {
            assert_error(
                try_write(place, (enum tensor_format)format, &t, &failure),
                FAILURE_PEER_LOST);
        }
        stat(place->path, &after);
        assert_int_equal(before.st_ino, after.st_ino);
        assert_int_equal(checkpoint_fixture_entries(place->folder), 1);
    }
}

TEST(a_file_that_cannot_be_created_is_named) {
    checkpoint_fixture_remove(place->folder);
    assert_error(try_write(place, TENSOR_NPZ, NULL, &failure),
                 FAILURE_FILE_UNWRITABLE);
    assert_contains(failure.text, place->path);
}

/* Writes a safetensors file of a header that says LENGTH, and DATA bytes. */
static void write_raw(const struct checkpoint_fixture_file *place,
                      uint64_t length, const char *header, size_t data) {
    FILE *file = fopen(place->path, "w");
    fwrite(&length, 8, 1, file);
    fputs(header, file);
    for (size_t i = 0; i < data; i++)
        fputc(0, file);
    fclose(file);
}

TEST(a_bad_header_is_refused) {
    static const char *const headers[] = {
        "",
        "[]",
        "{\"a\":1}",
        "{\"a\":{}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,20]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[8,24]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,16]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4.0],\"data_offsets\":[0,16]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,16]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16,1]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,2],"
        "\"data_offsets\":[0,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],"
        "\"data_offsets\":[0,0]}}",
        "{\"a\":{\"shape\":[4],\"data_offsets\":[0,16]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
    };
    struct tensor_file *file;
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        write_raw(place, strlen(headers[i]), headers[i], 16);
        if (tensor_file_open(&file, place->path, &failure) != STATUS_CONFIG)
            fail_msg("taken: %s", headers[i]);
        assert_contains(failure.text, place->path);
        assert_null(file);
    }
}

TEST(a_length_beyond_the_file_is_refused) {
    static const uint64_t lengths[] = {
        3, 100, UINT64_MAX, UINT64_MAX - 7, UINT64_C(1) << 63, 100000001};
    struct tensor_file *file;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        write_raw(place, lengths[i], "{}", 0);
        assert_error(tensor_file_open(&file, place->path, &failure),
                     FAILURE_WEIGHTS_INVALID);
    }
    write_raw(place, 2, "{}", 0);
    assert_ok(tensor_file_open(&file, place->path, &failure));
    tensor_file_close(&file);
    assert_int_equal(truncate(place->path, 7), 0);
    assert_error(tensor_file_open(&file, place->path, &failure),
                 FAILURE_WEIGHTS_INVALID);
}

TEST(every_shorter_file_is_refused) {
    struct tensor_file *file;
    struct stat about;
    write_file(place, TENSOR_SAFETENSORS);
    stat(place->path, &about);
    for (off_t size = about.st_size - 1; size > 0; size -= 1 + size / 3) {
        assert_int_equal(truncate(place->path, size), 0);
        assert_error(tensor_file_open(&file, place->path, &failure),
                     FAILURE_WEIGHTS_INVALID);
    }
}

TEST(a_file_truncated_after_opening_is_reported) {
    struct tensor_file *file;
    float *floats = malloc(300000 * sizeof *floats);
    write_file(place, TENSOR_SAFETENSORS);
    assert_ok(tensor_file_open(&file, place->path, &failure));
    assert_int_equal(truncate(place->path, 1000), 0);
    assert_error(tensor_file_read(file, &tensors[4], floats, &failure),
                 FAILURE_WEIGHTS_INVALID);
    assert_contains(failure.text, "ends too early");
    tensor_file_close(&file);
    free(floats);
}

/* Runs SCRIPT, which has the file's path as sys.argv[1], by a Python that has
 * MODULE; skips the test when none has. */
static void check_by_python(const struct checkpoint_fixture_file *place,
                            const char *module, const char *script) {
    static const char *const pythons[] = {"python3", "/usr/bin/python3"};
    char command[PATH_MAX + 2048];
    for (size_t i = 0; i < 2; i++) {
        snprintf(command, sizeof command, "%s -c 'import %s' 2>/dev/null",
                 pythons[i], module);
        if (system(command))
            continue;
        snprintf(command, sizeof command, "%s -c '%s' %s", pythons[i], script,
                 place->path);
        assert_int_equal(system(command), 0);
        return;
    }
    skip_test("no python3 with %s", module);
}

/* `t` is what a package has read. */
#define CHECK_TENSORS                                                          \
    "\nimport numpy\n"                                                         \
    "shapes = [(\"layer0.weight\", (3, 5)), (\"layer0.bias\", (3,)),\n"        \
    "    (\"gr\\u00f6\\u00dfe/\\\"x\\\"\", (2, 1, 2, 2)),\n"                   \
    "    (\"scalar\", ()), (\"large\", (1000, 300))]\n"                        \
    "assert sorted(t.keys()) == sorted(n for n, s in shapes), t.keys()\n"      \
    "for i, (n, s) in enumerate(shapes):\n"                                    \
    "    a = t[n]\n"                                                           \
    "    assert a.shape == s and a.dtype == numpy.float32, (n, a.shape)\n"     \
    "    want = i + numpy.arange(a.size) / 1024\n"                             \
    "    assert (a.ravel() == want.astype(numpy.float32)).all(), n\n"

TEST(numpy_loads_the_npz) {
    write_file(place, TENSOR_NPZ);
    check_by_python(
        place, "numpy",
        "import numpy, sys\nt = numpy.load(sys.argv[1])" CHECK_TENSORS);
}

TEST(the_safetensors_package_loads_the_file) {
    write_file(place, TENSOR_SAFETENSORS);
    check_by_python(place, "safetensors.numpy",
                    "import sys\nfrom safetensors.numpy import load_file\n"
                    "t = load_file(sys.argv[1])" CHECK_TENSORS);
}

/* The published format, field by field, for where that package is missing. */
TEST(the_safetensors_file_follows_its_format) {
    write_file(place, TENSOR_SAFETENSORS);
    FILE *file = fopen(place->path, "r");
    uint64_t length;
    assert_int_equal(fread(&length, 8, 1, file), 1);
    assert_int_equal(length % 8, 0);
    char *text = malloc(length);
    assert_int_equal(fread(text, length, 1, file), 1);
    assert_int_equal(text[0], '{');
    json_t *header = json_loadb(text, length, 0, NULL);
    uint64_t begin = 0;
    for (uint32_t t = 0; t < NUM_TENSORS; t++) {
        json_t *entry = json_object_get(header, tensors[t].name);
        json_t *offsets = json_object_get(entry, "data_offsets");
        assert_string_equal(json_string_value(json_object_get(entry, "dtype")),
                            "F32");
        assert_int_equal(json_array_size(json_object_get(entry, "shape")),
                         tensors[t].num_dims);
        assert_int_equal(json_integer_value(json_array_get(offsets, 0)), begin);
        begin += 4 * tensors[t].elements;
        assert_int_equal(json_integer_value(json_array_get(offsets, 1)), begin);
        for (uint64_t e = 0; e < tensors[t].elements; e++) {
            float value;
            assert_int_equal(fread(&value, 4, 1, file), 1);
            assert_true(value == value_of(t, e));
        }
    }
    assert_int_equal(fgetc(file), EOF);
    json_decref(header);
    free(text);
    fclose(file);
}
