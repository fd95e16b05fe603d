/* SPDX-License-Identifier: Apache-2.0 */

#define STATE struct place *place

#include "commands/ckpt_command.h"
#include "core/base/time.h"
#include "core/store/checkpoint.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/test.h"

#include <archive.h>
#include <archive_entry.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct place {
    char dir[PATH_MAX];
    char out[PATH_MAX + 32];
};

static int setup(void **state) {
    struct place *place = calloc(1, sizeof *place);
    checkpoint_fixture_folder(place->dir);
    snprintf(place->out, sizeof place->out, "%s/model.safetensors", place->dir);
    *state = place;
    return 0;
}

static int teardown(void **state) {
    struct place *place = *state;
    checkpoint_fixture_remove(place->dir);
    free(place);
    return 0;
}

FIXTURE(setup, teardown);

enum verb { LS, VERIFY, EXPORT };

/* What VERB prints; the caller frees it. */
static char *printed(enum verb verb, const struct ckpt_command_options *options,
                     enum failure_code wanted, struct failure *why) {
    FILE *to = tmpfile();
    *why = (struct failure){0};
    enum status status = verb == LS ? ckpt_command_ls(options, to, why)
                         : verb == VERIFY
                             ? ckpt_command_verify(options, to, why)
                             : ckpt_command_export(options, to, NULL, why);
    if (wanted)
        assert_fails(status, why, wanted);
    else if (status)
        fail_msg("%s", why->text);
    char *text = calloc(1, (size_t)ftell(to) + 1);
    size_t size = (size_t)ftell(to);
    rewind(to);
    assert_int_equal(fread(text, 1, size, to), size);
    fclose(to);
    return text;
}

/* The same as the one JSON object it must be. */
static json_t *printed_json(enum verb verb, struct ckpt_command_options options,
                            enum failure_code wanted) {
    options.json = true;
    char *text = printed(verb, &options, wanted, &failure);
    json_t *object = json_loads(text, 0, NULL);
    assert_non_null(object);
    assert_int_equal(strcspn(text, "\n"), strlen(text) - 1);
    free(text);
    return object;
}

static void damage(const char *dir, uint64_t step, const char *name) {
    char folder[PATH_MAX];
    checkpoint_folder(dir, step, folder, sizeof folder);
    assert_int_equal(truncate(textf("%s/%s", folder, name), 10), 0);
}

static void remove_manifest(const char *dir, uint64_t step) {
    char folder[PATH_MAX];
    checkpoint_folder(dir, step, folder, sizeof folder);
    assert_int_equal(unlink(textf("%s/manifest.json", folder)), 0);
}

#define SHARD "ps-0-of-1-0000000000abcdef.mdb"

TEST(ls_prints_one_line_for_each_checkpoint) {
    struct ckpt_command_options options = {.dir = place->dir};
    checkpoint_fixture_write(place->dir, 5, 2);
    checkpoint_fixture_write(place->dir, 1500, 1);
    checkpoint_fixture_write(place->dir, 2000, 1);
    damage(place->dir, 2000, "manifest.json");
    char *text = printed(LS, &options, FAILURE_NONE, &failure);
    char *second = strchr(text, '\n') + 1, *third = strchr(second, '\n') + 1;
    char *fourth = strchr(third, '\n') + 1;
    assert_contains(text, "samples");
    uint64_t step, epoch, samples;
    assert_int_equal(sscanf(second, "%lu %lu %lu", &step, &epoch, &samples), 3);
    assert_true(step == 5 && epoch == 2 && samples == 320);
    assert_int_equal(sscanf(third, "%lu", &step), 1);
    assert_int_equal(step, 1500);
    assert_contains(fourth, "2000 damaged: ");
    free(text);
}

TEST(ls_json_is_one_object) {
    struct ckpt_command_options options = {.dir = place->dir};
    checkpoint_fixture_write(place->dir, 5, 2);
    checkpoint_fixture_write(place->dir, 6, 1);
    damage(place->dir, 6, "manifest.json");
    json_t *object = printed_json(LS, options, FAILURE_NONE);
    json_t *rows = json_object_get(object, "checkpoints");
    json_t *row = json_array_get(rows, 0);
    assert_int_equal(json_array_size(rows), 1);
    assert_int_equal(json_integer_value(json_object_get(row, "step")), 5);
    assert_int_equal(json_integer_value(json_object_get(row, "files")), 2);
    assert_true(json_integer_value(json_object_get(row, "size")) > 1000000);
    assert_true(json_is_false(json_object_get(row, "final")));
    assert_true(json_number_value(json_object_get(row, "age")) < 600);
    assert_string_equal(json_string_value(json_object_get(row, "run")),
                        "0000000000abcdef");
    assert_int_equal(json_integer_value(json_object_get(row, "epoch_step")), 0);
    double age =
        time_calendar() - json_number_value(json_object_get(row, "time"));
    assert_true(age > -600 && age < 600);
    const json_t *shards = json_object_get(row, "shards");
    const json_t *last = json_array_get(shards, 1);
    assert_int_equal(json_array_size(shards), 2);
    assert_string_equal(json_string_value(json_object_get(last, "name")),
                        "ps-1-of-2-0000000000abcdef.mdb");
    assert_true(json_is_null(json_object_get(last, "host")));
    json_int_t size = json_integer_value(json_object_get(row, "size"));
    for (size_t f = 0; f < 2; f++)
        size -= json_integer_value(
            json_object_get(json_array_get(shards, f), "bytes"));
    assert_int_equal(size, 0);
    assert_int_equal(json_array_size(json_object_get(object, "damaged")), 1);
    json_decref(object);
}

TEST(a_missing_directory_is_reported) {
    struct ckpt_command_options options = {.dir = "/nowhere",
                                           .out = place->out};
    for (int verb = LS; verb <= EXPORT; verb++) {
        free(printed((enum verb)verb, &options, FAILURE_FILE_UNREADABLE,
                     &failure));
        assert_contains(failure.text, "/nowhere");
    }
}

TEST(a_missing_step_is_reported) {
    struct ckpt_command_options options = {
        .dir = place->dir, .out = place->out, .has_step = true, .step = 7};
    checkpoint_fixture_write(place->dir, 5, 1);
    for (int verb = LS; verb <= EXPORT; verb++) {
        free(printed((enum verb)verb, &options, FAILURE_CHECKPOINT_MISSING,
                     &failure));
        assert_contains(failure.text, "of step 7");
    }
}

/* A mistyped path is no healthy checkpoint; an empty list is a list. */
TEST(verify_of_a_folder_without_checkpoints_fails) {
    struct ckpt_command_options options = {.dir = place->dir};
    free(printed(VERIFY, &options, FAILURE_CHECKPOINT_MISSING, &failure));
    char *text = printed(LS, &options, FAILURE_NONE, &failure);
    assert_contains(text, "has no checkpoint: is it the job's");
    free(text);
}

TEST(naming_a_step_folder_suggests_its_parent) {
    char folder[PATH_MAX];
    struct ckpt_command_options options = {.dir = folder, .out = place->out};
    checkpoint_fixture_write(place->dir, 5, 1);
    checkpoint_folder(place->dir, 5, folder, sizeof folder);
    const char *wanted = textf("give the folder above it, %s", place->dir);
    free(printed(VERIFY, &options, FAILURE_CHECKPOINT_MISSING, &failure));
    assert_contains(failure.text, wanted);
    free(printed(EXPORT, &options, FAILURE_CHECKPOINT_MISSING, &failure));
    assert_contains(failure.text, wanted);
    strcat(folder, "/");
    char *text = printed(LS, &options, FAILURE_NONE, &failure);
    assert_contains(text, wanted);
    free(text);
}

TEST(verify_names_each_defect) {
    struct ckpt_command_options options = {.dir = place->dir};
    for (uint64_t step = 1; step <= 3; step++)
        checkpoint_fixture_write(place->dir, step, 1);
    free(printed(VERIFY, &options, FAILURE_NONE, &failure));
    damage(place->dir, 1, SHARD);
    damage(place->dir, 3, "manifest.json");
    char *text =
        printed(VERIFY, &options, FAILURE_CHECKPOINT_DAMAGED, &failure);
    assert_contains(text, "step 1: FAILED: ");
    assert_contains(text, "step 2: ok");
    assert_contains(text, "step 3: FAILED: ");
    assert_contains(failure.text, "2 of 3 checkpoints");
    assert_null(strstr(failure.text, "manifest")); /* said once */
    free(text);
    options.has_step = true;
    options.step = 2;
    free(printed(VERIFY, &options, FAILURE_NONE, &failure));
    json_t *object = printed_json(VERIFY, options, FAILURE_NONE);
    assert_true(json_is_true(json_object_get(object, "ok")));
    json_decref(object);
    options.step = 1;
    object = printed_json(VERIFY, options, FAILURE_CHECKPOINT_DAMAGED);
    json_t *row = json_array_get(json_object_get(object, "checkpoints"), 0);
    assert_true(json_is_false(json_object_get(row, "ok")));
    assert_contains(json_string_value(json_object_get(row, "error")),
                    "its manifest says");
    json_decref(object);
}

/* What a killed run leaves of a checkpoint, and what one that writes has. */
TEST(a_step_without_a_manifest_is_reported_incomplete) {
    struct ckpt_command_options options = {.dir = place->dir,
                                           .out = place->out};
    char folder[PATH_MAX];
    checkpoint_fixture_write(place->dir, 5, 1);
    checkpoint_fixture_write(place->dir, 9, 1);
    checkpoint_folder(place->dir, 9, folder, sizeof folder);
    remove_manifest(place->dir, 9);
    char *text = printed(LS, &options, FAILURE_NONE, &failure);
    assert_contains(text, "           9 incomplete: ");
    free(text);
    text = printed(VERIFY, &options, FAILURE_NONE, &failure);
    assert_contains(text, "step 5: ok");
    assert_contains(text, "step 9: incomplete: ");
    free(text);
    for (int verb = LS; verb <= VERIFY; verb++) {
        json_t *object = printed_json((enum verb)verb, options, FAILURE_NONE);
        json_t *rows = json_object_get(object, "incomplete");
        json_t *row = json_array_get(rows, 0);
        assert_int_equal(json_array_size(rows), 1);
        assert_int_equal(json_integer_value(json_object_get(row, "step")), 9);
        assert_string_equal(json_string_value(json_object_get(row, "path")),
                            folder);
        assert_int_equal(
            json_array_size(json_object_get(object, "checkpoints")), 1);
        json_decref(object);
    }
    options.has_step = true;
    options.step = 9;
    for (int verb = LS; verb <= EXPORT; verb++) {
        free(printed((enum verb)verb, &options, FAILURE_CHECKPOINT_DAMAGED,
                     &failure));
        assert_contains(failure.text, "step 9 is incomplete");
    }
    options.has_step = false;
    remove_manifest(place->dir, 5);
    text = printed(VERIFY, &options, FAILURE_CHECKPOINT_MISSING, &failure);
    assert_contains(text, "step 5: incomplete: ");
    free(text);
}

static void assert_tensor(struct tensor_file *file, const char *name,
                          uint64_t step, uint32_t parameter, uint16_t slot) {
    static const uint32_t dims[3][2] = {{300, 200}, {300, 0}, {100, 300}};
    struct parameter tensor = {.num_dims = parameter == 1 ? 1 : 2};
    memcpy(tensor.dims, dims[parameter], sizeof dims[parameter]);
    snprintf(tensor.name, sizeof tensor.name, "%s", name);
    tensor.elements =
        (uint64_t)tensor.dims[0] * (parameter == 1 ? 1 : tensor.dims[1]);
    float *floats = malloc(tensor.elements * sizeof *floats);
    assert_ok(tensor_file_read(file, &tensor, floats, &failure));
    for (uint64_t e = 0; e < tensor.elements; e++)
        assert_true(floats[e] ==
                    checkpoint_fixture_value(step, parameter, slot, e));
    free(floats);
}

TEST(export_uses_the_newest_valid_checkpoint) {
    struct ckpt_command_options options = {.dir = place->dir,
                                           .out = place->out};
    struct tensor_file *file;
    struct parameter absent = {
        .name = "layer0.bias.a", .num_dims = 1, .dims = {300}};
    checkpoint_fixture_write(place->dir, 3, 3);
    checkpoint_fixture_write(place->dir, 4, 2);
    checkpoint_fixture_write(place->dir, 5, 1);
    damage(place->dir, 5, SHARD);
    json_t *object = printed_json(EXPORT, options, FAILURE_NONE);
    assert_int_equal(json_integer_value(json_object_get(object, "step")), 4);
    json_decref(object);
    assert_ok(tensor_file_open(&file, place->out, &failure));
    assert_tensor(file, "layer0.weight", 4, 0, 0);
    assert_tensor(file, "layer0.bias", 4, 1, 0);
    assert_tensor(file, "layer1.weight", 4, 2, 0);
    assert_error(tensor_file_read(file, &absent, NULL, &failure),
                 FAILURE_WEIGHTS_MISMATCH);
    tensor_file_close(&file);
}

TEST(export_writes_a_step_with_its_state) {
    struct ckpt_command_options options = {.dir = place->dir,
                                           .out = place->out,
                                           .has_step = true,
                                           .step = 3,
                                           .state = true};
    struct tensor_file *file;
    checkpoint_fixture_write(place->dir, 3, 3);
    checkpoint_fixture_write(place->dir, 4, 2);
    free(printed(EXPORT, &options, FAILURE_NONE, &failure));
    assert_ok(tensor_file_open(&file, place->out, &failure));
    assert_tensor(file, "layer0.weight", 3, 0, 0);
    assert_tensor(file, "layer0.weight.a", 3, 0, 1);
    assert_tensor(file, "layer1.weight.b", 3, 2, 2);
    tensor_file_close(&file);
}

TEST(export_of_a_damaged_step_fails_and_writes_nothing) {
    struct ckpt_command_options options = {
        .dir = place->dir, .out = place->out, .has_step = true, .step = 3};
    checkpoint_fixture_write(place->dir, 3, 1);
    damage(place->dir, 3, SHARD);
    free(printed(EXPORT, &options, FAILURE_CHECKPOINT_DAMAGED, &failure));
    assert_int_equal(checkpoint_fixture_entries(place->dir), 1);
    options.out = "model.pt";
    free(printed(EXPORT, &options, FAILURE_WEIGHTS_INVALID, &failure));
}

/* Table T of the checkpoint, by id. */
static int compare_ids(const void *left, const void *right) {
    const uint64_t *l = left, *r = right;
    return (*l > *r) - (*l < *r);
}

/* Fills IDS with those of the admitted rows of T, ascending. */
static size_t admitted_ids(uint32_t t, uint64_t *ids) {
    size_t count = 0;
    for (uint32_t i = 0; i < CHECKPOINT_FIXTURE_IDS; i++)
        if (checkpoint_fixture_has_row(t, i) && (t < 2 || i / 6 % 2 == 0))
            ids[count++] = checkpoint_fixture_id(i);
    qsort(ids, count, sizeof *ids, compare_ids);
    return count;
}

TEST(ls_shows_the_tables_with_their_rows) {
    struct ckpt_command_options options = {.dir = place->dir};
    checkpoint_fixture_write_tables(place->dir, 5, 2, 16);
    char *text = printed(LS, &options, FAILURE_NONE, &failure);
    assert_contains(text, "table e1: 20000 rows of 3, 1.1 MB\n");
    assert_contains(text,
                    "table c: 3334 rows of 8, 1667 of them admitted, 260 KB");
    free(text);
    json_t *object = printed_json(LS, options, FAILURE_NONE);
    const json_t *tables = json_object_get(
        json_array_get(json_object_get(object, "checkpoints"), 0), "tables");
    const json_t *c = json_array_get(tables, 2);
    assert_int_equal(json_array_size(tables), 3);
    assert_string_equal(json_string_value(json_object_get(c, "name")), "c");
    assert_int_equal(json_integer_value(json_object_get(c, "dim")), 8);
    assert_int_equal(json_integer_value(json_object_get(c, "rows")), 3334);
    assert_int_equal(json_integer_value(json_object_get(c, "admitted")), 1667);
    assert_int_equal(json_integer_value(json_object_get(c, "bytes")),
                     3334 * (16 + 2 * 8 * 4));
    json_decref(object);
}

TEST(ls_names_the_base_of_a_delta) {
    struct ckpt_command_options options = {.dir = place->dir};
    checkpoint_fixture_write_tables(place->dir, 5, 1, 4);
    checkpoint_fixture_write_delta(place->dir, 8, 2, 5);
    char *text = printed(LS, &options, FAILURE_NONE, &failure);
    const char *delta = strstr(text, " delta of step 5\n");
    assert_non_null(delta);
    assert_null(strstr(delta + 8, "delta of"));
    assert_contains(delta, "table e1: 19600 rows of 3");
    free(text);
    json_t *object = printed_json(LS, options, FAILURE_NONE);
    json_t *rows = json_object_get(object, "checkpoints");
    assert_true(json_is_null(json_object_get(json_array_get(rows, 0), "base")));
    assert_int_equal(
        json_integer_value(json_object_get(json_array_get(rows, 1), "base")),
        5);
    json_decref(object);
    remove_manifest(place->dir, 5);
    text = printed(VERIFY, &options, FAILURE_CHECKPOINT_DAMAGED, &failure);
    assert_contains(text, "step 8: FAILED: ");
    assert_contains(text, "its base of step 5 cannot be read");
    free(text);
}

TEST(verify_reads_the_rows_of_tables) {
    struct ckpt_command_options options = {.dir = place->dir};
    checkpoint_fixture_write_tables(place->dir, 5, 1, 4);
    char *text = printed(VERIFY, &options, FAILURE_NONE, &failure);
    assert_contains(text, "step 5: ok");
    free(text);
    damage(place->dir, 5, SHARD);
    free(printed(VERIFY, &options, FAILURE_CHECKPOINT_DAMAGED, &failure));
}

/* Reads array NAME of the npz at PATH behind its header of 128 bytes. */
static size_t read_array(const char *path, const char *name, void *to,
                         size_t room, char header[128]) {
    struct archive *archive = archive_read_new();
    struct archive_entry *entry;
    size_t size = 0;
    archive_read_support_format_zip(archive);
    assert_int_equal(archive_read_open_filename(archive, path, 1 << 16),
                     ARCHIVE_OK);
    while (archive_read_next_header(archive, &entry) == ARCHIVE_OK)
        if (strcmp(archive_entry_pathname(entry), name) == 0) {
            assert_int_equal(archive_read_data(archive, header, 128), 128);
            size = (size_t)archive_read_data(archive, to, room);
        }
    archive_read_free(archive);
    return size;
}

TEST(an_npz_has_the_admitted_rows_by_id) {
    char out[PATH_MAX + 32], header[128];
    struct ckpt_command_options options = {.dir = place->dir, .out = out};
    checkpoint_fixture_write_tables(place->dir, 5, 2, 16);
    snprintf(out, sizeof out, "%s/rows.npz", place->dir);
    size_t room = CHECKPOINT_FIXTURE_IDS * sizeof(uint64_t);
    uint64_t *ids = malloc(room), *wanted = malloc(room);
    float *weights = malloc(4 * room);
    for (uint32_t t = 0; t < CHECKPOINT_FIXTURE_TABLES; t++) {
        uint32_t dim = t < 2 ? 3 : 8;
        options.table = t == 0 ? "e1" : t == 1 ? "e2" : "c";
        char *text = printed(EXPORT, &options, FAILURE_NONE, &failure);
        assert_contains(text, options.table);
        free(text);
        size_t count = admitted_ids(t, wanted);
        assert_int_equal(read_array(out, "ids.npy", ids, room, header),
                         count * sizeof *ids);
        assert_contains(header + 10, "'<u8'");
        assert_memory_equal(ids, wanted, count * sizeof *ids);
        assert_int_equal(
            read_array(out, "weights.npy", weights, 4 * room, header),
            count * dim * sizeof *weights);
        assert_contains(header + 10, textf("'<f4', 'fortran_order': False, "
                                           "'shape': (%zu, %u, )",
                                           count, dim));
        for (size_t i = 0; i < count * dim; i++)
            assert_true(weights[i] ==
                        checkpoint_fixture_weight(t, ids[i / dim],
                                                  (uint32_t)(i % dim)));
    }
    free(ids);
    free(wanted);
    free(weights);
}

TEST(a_csv_has_a_line_for_each_admitted_row) {
    char out[PATH_MAX + 32], line[512];
    struct ckpt_command_options options = {
        .dir = place->dir, .out = out, .table = "c"};
    checkpoint_fixture_write_tables(place->dir, 5, 2, 16);
    snprintf(out, sizeof out, "%s/rows.csv", place->dir);
    json_t *object = printed_json(EXPORT, options, FAILURE_NONE);
    assert_int_equal(json_integer_value(json_object_get(object, "rows")), 1667);
    assert_int_equal(json_integer_value(json_object_get(object, "bytes")),
                     1667 * 40);
    json_decref(object);
    uint64_t *ids = malloc(CHECKPOINT_FIXTURE_IDS * sizeof *ids);
    size_t count = admitted_ids(2, ids);
    FILE *file = fopen(out, "r");
    assert_non_null(fgets(line, sizeof line, file));
    assert_string_equal(line, "id,w0,w1,w2,w3,w4,w5,w6,w7\n");
    for (size_t i = 0; i < count; i++) {
        char *at = line;
        assert_non_null(fgets(line, sizeof line, file));
        assert_true(strtoull(at, &at, 10) == ids[i]);
        for (uint32_t e = 0; e < 8; e++) {
            assert_int_equal(*at, ',');
            assert_true(strtof(at + 1, &at) ==
                        checkpoint_fixture_weight(2, ids[i], e));
        }
        assert_string_equal(at, "\n");
    }
    assert_null(fgets(line, sizeof line, file));
    fclose(file);
    free(ids);
}

/* Rows that the delta removed are not in it. */
TEST(a_delta_is_exported_with_its_base) {
    struct ckpt_command_options options = {
        .dir = place->dir, .out = place->out, .table = "e2"};
    char line[64];
    unsigned lines = 0, wanted = 0;
    checkpoint_fixture_write_tables(place->dir, 5, 1, 4);
    checkpoint_fixture_write_delta(place->dir, 8, 2, 5);
    strcpy(strrchr(place->out, '.'), ".csv");
    json_decref(printed_json(EXPORT, options, FAILURE_NONE));
    FILE *file = fopen(place->out, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        lines++;
    fclose(file);
    for (uint32_t i = 0; i < CHECKPOINT_FIXTURE_IDS; i++)
        wanted += checkpoint_fixture_has_row(1, i) &&
                  !checkpoint_fixture_is_removed(i);
    assert_int_equal(lines, 1 + wanted);
}

TEST(what_a_table_cannot_be_exported_as_is_named) {
    char out[PATH_MAX + 32];
    struct ckpt_command_options options = {
        .dir = place->dir, .out = out, .table = "e9"};
    checkpoint_fixture_write_tables(place->dir, 5, 1, 1);
    snprintf(out, sizeof out, "%s/rows.csv", place->dir);
    free(printed(EXPORT, &options, FAILURE_CHECKPOINT_MISSING, &failure));
    assert_contains(failure.text, "no table \"e9\"; its tables: e1, e2, c");
    options.table = "e1";
    options.state = true;
    free(printed(EXPORT, &options, FAILURE_FLAG_CONFLICT, &failure));
    options.state = false;
    options.out = place->out;
    free(printed(EXPORT, &options, FAILURE_WEIGHTS_INVALID, &failure));
    assert_contains(failure.text, ".npz or .csv");
    assert_int_not_equal(access(out, F_OK), 0);
}

/* The hashes are right; only the manifest's number of rows is not. */
TEST(an_export_with_other_rows_than_its_manifest_says_fails) {
    char out[PATH_MAX + 32], folder[PATH_MAX];
    struct ckpt_command_options options = {
        .dir = place->dir, .out = out, .table = "e2"};
    struct manifest manifest;
    checkpoint_fixture_write_tables(place->dir, 5, 1, 2);
    checkpoint_folder(place->dir, 5, folder, sizeof folder);
    for (int change = -1; change < 2; change += 2)
        for (int csv = 0; csv < 2; csv++) {
            assert_ok(manifest_read(&manifest, folder, &failure));
            manifest.tables[1].count.admitted = 6667 + (uint64_t)change;
            manifest.tables[1].count.rows = 7000;
            assert_ok(manifest_write(&manifest, folder, &failure));
            manifest_clear(&manifest);
            snprintf(out, sizeof out, "%s/rows.%s", place->dir,
                     csv ? "csv" : "npz");
            free(printed(EXPORT, &options, FAILURE_CHECKPOINT_DAMAGED,
                         &failure));
            assert_contains(failure.text, "\"e2\" has 6667 admitted rows");
            assert_int_not_equal(access(out, F_OK), 0);
        }
}
