/* SPDX-License-Identifier: Apache-2.0 */

#include "core/store/manifest.h"

#include "core/tensor/initializer.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

static void assert_same(const struct manifest *a, const struct manifest *b) {
    assert_true(a->run == b->run && a->step == b->step);
    assert_true(a->epoch == b->epoch && a->samples == b->samples);
    assert_true(a->seed == b->seed && a->final == b->final);
    assert_string_equal(a->job, b->job);
    assert_int_equal(a->num_rules, b->num_rules);
    assert_memory_equal(a->rules, b->rules, a->num_rules * sizeof *a->rules);
    assert_true(layout_digest(a->layout) == layout_digest(b->layout));
    assert_int_equal(a->num_files, b->num_files);
    for (uint32_t f = 0; f < a->num_files; f++) {
        assert_string_equal(a->files[f].name, b->files[f].name);
        assert_string_equal(a->files[f].host, b->files[f].host);
        assert_true(a->files[f].size == b->files[f].size);
        assert_memory_equal(a->files[f].hash, b->files[f].hash, 16);
    }
    assert_int_equal(a->layout->num_partitions, b->layout->num_partitions);
    assert_int_equal(a->layout->num_stacks, b->layout->num_stacks);
    assert_memory_equal(a->block_file, b->block_file,
                        layout_units(a->layout) * sizeof *a->block_file);
    for (uint32_t t = 0; t < a->layout->num_tables; t++) {
        assert_string_equal(a->tables[t].rule, b->tables[t].rule);
        assert_int_equal(a->tables[t].num_slots, b->tables[t].num_slots);
        assert_memory_equal(&a->tables[t].count, &b->tables[t].count,
                            sizeof a->tables[t].count);
    }
}

static void fill(struct manifest *manifest) {
    checkpoint_fixture_manifest(manifest, 1500, 2);
    checkpoint_fixture_tables(manifest, CHECKPOINT_FIXTURE_TABLES, 3);
    manifest->tables[0].count = (struct shard_rows_count){INT64_MAX, 0};
    manifest->tables[2].count = (struct shard_rows_count){7, 5};
    manifest->final = true;
    manifest->files[0].size = INT64_MAX;
    manifest->files[0].hash[0] = 1;
    manifest->files[0].hash[1] = UINT64_MAX;
    strcpy(manifest->files[1].host, "node-7");
    manifest->is_delta = true;
    manifest->base_name = (struct manifest_name){1000, UINT64_MAX - 1};
}

TEST(a_manifest_reads_back_from_its_file) {
    char folder[PATH_MAX];
    struct manifest written, read;
    checkpoint_fixture_folder(folder);
    fill(&written);
    written.is_delta = false;
    assert_ok(manifest_write(&written, folder, &failure));
    assert_int_equal(checkpoint_fixture_entries(folder), 1);
    assert_ok(manifest_read(&read, folder, &failure));
    assert_same(&written, &read);
    assert_true(written.hash && written.hash == read.hash);
    manifest_clear(&written);
    manifest_clear(&read);
    checkpoint_fixture_remove(folder);
}

/* Of three parameters the second is in group 1; the others have the run's. */
TEST(a_manifest_has_optimizers_and_initializers) {
    struct manifest manifest, parsed;
    fill(&manifest);
    manifest.num_rules = 2;
    manifest.rules =
        realloc(manifest.rules, manifest.num_rules * sizeof *manifest.rules);
    manifest.rules[1] = (struct manifest_rule){"Ftrl", 2, {"accum", "linear"}};
    manifest.layout->parameters[1].group = 1;
    manifest.layout->parameters[2].init_kind = INITIALIZER_NORMAL;
    manifest.layout->parameters[2].init_shift = -0.1f;
    manifest.layout->tables[0].init_kind = INITIALIZER_TRUNCATED_NORMAL;
    manifest.layout->tables[1].init_shift = 1;
    char *text = manifest_text(&manifest);
    assert_ok(manifest_parse(&parsed, text, &failure));
    assert_same(&manifest, &parsed);
    assert_string_equal(manifest_rule(&parsed, 0)->name, "Adam");
    assert_string_equal(manifest_rule(&parsed, 1)->slot_names[1], "linear");
    manifest_clear(&parsed);
    free(text);
    manifest.layout->parameters[1].group = 2;
    text = manifest_text(&manifest);
    assert_error(manifest_parse(&parsed, text, &failure),
                 FAILURE_CHECKPOINT_DAMAGED);
    assert_contains(failure.text, "group");
    free(text);
    manifest_clear(&manifest);
}

TEST(the_text_of_a_parsed_manifest_is_the_same) {
    struct manifest manifest, parsed;
    fill(&manifest);
    free(manifest.job);
    manifest.job = strdup(" { \"b\" : 1.50,\n \"a\": [ 1e-3, \"\\u00e9\" ] }");
    char *text = manifest_text(&manifest);
    assert_non_null(text);
    assert_ok(manifest_parse(&parsed, text, &failure));
    assert_string_equal(parsed.job, "{\"b\":1.5,\"a\":[0.001,\"é\"]}");
    char *again = manifest_text(&parsed);
    assert_string_equal(text, again);
    assert_true(parsed.is_delta && !parsed.base);
    assert_memory_equal(&parsed.base_name, &manifest.base_name,
                        sizeof parsed.base_name);
    assert_true(parsed.hash == manifest_text_hash(text));
    free(text);
    free(again);
    manifest_clear(&manifest);
    manifest_clear(&parsed);
}

/* The base of a delta of step 1500, from its text. */
static void expect_base(struct manifest *base, const char *wrong) {
    struct manifest delta;
    fill(&delta);
    char *text = manifest_text(base);
    assert_non_null(text);
    enum status status = manifest_parse_base(&delta, text, &failure);
    if (wrong) {
        assert_error(status, FAILURE_CHECKPOINT_DAMAGED);
        assert_contains(failure.text, wrong);
        assert_null(delta.base);
    } else {
        assert_int_equal(status, STATUS_OK);
        assert_same(delta.base, base);
    }
    free(text);
    manifest_clear(&delta);
}

TEST(a_base_is_full_and_has_the_same_tables) {
    struct manifest base;
    fill(&base);
    base.step = 1000;
    base.base_name.step = 500;
    expect_base(&base, "itself a delta");
    base.is_delta = false;
    expect_base(&base, NULL);
    base.layout->tables[1].max_rows++;
    expect_base(&base, NULL);
    base.layout->tables[1].init_bound = 0.5f;
    expect_base(&base, "other tables");
    base.layout->tables[1].init_bound = 0.25f;
    base.tables[2].num_slots++;
    expect_base(&base, "other tables");
    base.tables[2].num_slots--;
    base.step = 999;
    expect_base(&base, "of step 999");
    manifest_clear(&base);
}

/* As one of a release before tables. */
TEST(tables_are_present_only_where_used) {
    struct manifest manifest, parsed;
    checkpoint_fixture_manifest(&manifest, 1500, 2);
    char *text = manifest_text(&manifest);
    assert_null(strstr(text, "tables"));
    assert_null(strstr(text, "partitions"));
    assert_ok(manifest_parse(&parsed, text, &failure));
    assert_int_equal(parsed.layout->num_tables, 0);
    assert_int_equal(parsed.layout->num_partitions, 0);
    manifest_clear(&manifest);
    manifest_clear(&parsed);
    free(text);
}

TEST(a_loss_scaler_is_present_only_where_used) {
    struct manifest manifest, parsed;
    fill(&manifest);
    manifest.scaler = (struct loss_scaler){.scale = 1};
    char *text = manifest_text(&manifest);
    assert_null(strstr(text, "loss_scaler"));
    assert_ok(manifest_parse(&parsed, text, &failure));
    assert_int_equal(parsed.scaler.hysteresis, 0);
    manifest_clear(&parsed);
    free(text);
    manifest.scaler = (struct loss_scaler){
        .scale = 0x1p-20 / 3, .good = 999, .hysteresis = 2, .skipped = 1500};
    text = manifest_text(&manifest);
    assert_ok(manifest_parse(&parsed, text, &failure));
    assert_true(parsed.scaler.scale == 0x1p-20 / 3);
    assert_int_equal(parsed.scaler.good, 999);
    assert_int_equal(parsed.scaler.hysteresis, 2);
    assert_int_equal(parsed.scaler.skipped, 1500);
    manifest_clear(&parsed);
    manifest_clear(&manifest);
    free(text);
}

TEST(a_manifest_without_a_text_form_is_refused) {
    struct manifest manifest;
    fill(&manifest);
    free(manifest.job);
    manifest.job = strdup("[1]");
    /* A list is JSON, but no object; parsing would refuse what we wrote. */
    assert_null(manifest_text(&manifest));
    free(manifest.job);
    manifest.job = strdup("{");
    assert_null(manifest_text(&manifest));
    free(manifest.job);
    manifest.job = NULL;
    manifest.step = UINT64_MAX;
    assert_null(manifest_text(&manifest));
    manifest.step = 1;
    manifest.files[1].size = UINT64_MAX;
    assert_null(manifest_text(&manifest));
    manifest_clear(&manifest);
}

TEST(every_flipped_bit_is_refused_or_changes_nothing) {
    struct manifest manifest, parsed;
    fill(&manifest);
    char *text = manifest_text(&manifest);
    size_t size = strlen(text);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        text[bit / 8] ^= (char)(1 << bit % 8);
        if (!manifest_parse(&parsed, text, &failure))
            assert_same(&manifest, &parsed);
        else
            assert_true(*failure.text != '\0');
        manifest_clear(&parsed);
        text[bit / 8] ^= (char)(1 << bit % 8);
    }
    free(text);
    manifest_clear(&manifest);
}

TEST(every_truncated_text_is_refused) {
    struct manifest manifest, parsed;
    fill(&manifest);
    char *text = manifest_text(&manifest);
    for (size_t size = strlen(text); size-- > 0;) {
        text[size] = '\0';
        assert_error(manifest_parse(&parsed, text, &failure),
                     FAILURE_CHECKPOINT_DAMAGED);
    }
    free(text);
    manifest_clear(&manifest);
}

/* The text of a good manifest with VALUE, JSON, at PATH ("files.0.name", NULL
 * VALUE: nothing) and a hash that fits. */
static char *changed_text(const char *path, const char *value) {
    struct manifest manifest;
    fill(&manifest);
    char *text = manifest_text(&manifest), digits[17], parts[64], *rest;
    json_t *root = json_loads(text, 0, NULL), *at = root;
    free(text);
    manifest_clear(&manifest);
    json_object_del(root, "xxh3");
    snprintf(parts, sizeof parts, "%s", path);
    char *part = strtok_r(parts, ".", &rest), *next;
    for (; (next = strtok_r(NULL, ".", &rest)); part = next)
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(part))
                               : json_object_get(at, part);
    json_t *new = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    if (json_is_array(at))
        json_array_set_new(at, (size_t)atoi(part), new);
    else if (new)
        json_object_set_new(at, part, new);
    else
        json_object_del(at, part);
    assert_true(manifest_text_digest(root, digits));
    json_object_set_new(root, "xxh3", json_string(digits));
    text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

TEST(a_manifest_of_another_release_says_so) {
    static const char *const fields[][2] = {{"format", "2"},
                                            {"block_elements", "5"}};
    struct manifest parsed;
    for (int i = 0; i < 2; i++) {
        char *text = changed_text(fields[i][0], fields[i][1]);
        assert_error(manifest_parse(&parsed, text, &failure),
                     FAILURE_CHECKPOINT_FOREIGN);
        assert_contains(failure.text, "another release wrote it");
        free(text);
    }
}

TEST(a_field_out_of_range_is_named) {
    static const struct {
        const char *path, *value, *named;
    } cases[] = {
        {"format", NULL, "format"},
        {"run", "\"12\"", "run"},
        {"run", "\"000000000000000G\"", "run"},
        {"step", "-1", "step"},
        {"step", "1.5", "step"},
        {"epoch", "\"1\"", "epoch"},
        {"samples", NULL, "samples"},
        {"seed", "1", "seed"},
        {"final", "1", "final"},
        {"loss_scaler", "{}", "loss_scaler"},
        {"loss_scaler", "3", "loss_scaler"},
        {"loss_scaler",
         "{\"scale\":-1,\"good\":0,\"hysteresis\":1,\"skipped\":0}",
         "loss_scaler"},
        {"loss_scaler",
         "{\"scale\":8,\"good\":-1,\"hysteresis\":1,\"skipped\":0}", "good"},
        {"loss_scaler",
         "{\"scale\":8,\"good\":0,\"hysteresis\":5000000000,\"skipped\":0}",
         "hysteresis"},
        {"loss_scaler",
         "{\"scale\":8,\"good\":0,\"hysteresis\":1,\"skipped\":1501}",
         "skipped"},
        {"rule", "null", "rule"},
        {"slots", "{}", "slots"},
        {"slots.0", "3", "slots"},
        {"slots.0", "\"12345678901234567890123456789012\"", "slots"},
        {"files", "3", "files"},
        {"files.0", "3", "name"},
        {"files.0.name", "\"../other/ps.mdb\"", "outside"},
        {"files.0.name", "\"/etc/passwd\"", "outside"},
        {"files.1.name", "\"..\"", "files[1]"},
        {"files.0.name", "\".\"", "outside"},
        {"files.0.name", "\"\"", "outside"},
        {"files.0.size", "-5", "size"},
        {"files.0.xxh3", "\"0\"", "xxh3"},
        {"files.0.holder", "7", "holder"},
        {"parameters", "\"many\"", "parameters"},
        {"parameters.0.name", "\"\"", "name"},
        {"parameters.1.name", "\"layer0.weight\"", "layer0.weight"},
        {"parameters.1.name", "\"_orig_mod.layer0.weight\"", "layer0.weight"},
        {"parameters.0.dims", "[1,2,3,4,5,6,7,8,9]", "dims"},
        {"parameters.0.dims", "[4294967296]", "dims"},
        {"parameters.0.dims", "[0]", "dim"},
        {"parameters.0.dims", "[4294967295,4294967295]", "elements"},
        {"parameters.0.init_bound", "-1", "init_bound"},
        {"parameters.0.init_bound", "1e300", "init_bound"},
        {"parameters.0.init_shift", "1e300", "init_shift"},
        {"parameters.0.init_kind", "-1", "init_kind"},
        {"parameters.0.init_kind", "3", "found 3"},
        {"tables", "{}", "tables"},
        {"tables", "[]", "10 entries"},
        {"tables.0", "3", "tables[0]"},
        {"tables.1.name", "\"e1\"", "e1"},
        {"tables.1.name", "\"layer0.bias\"", "layer0.bias"},
        {"tables.1.name", "\"_orig_mod.e1\"", "e1"},
        {"tables.1.name", "\"\"", "name"},
        {"tables.0.dim", "0", "rows of 0 floats"},
        {"tables.0.dim", "4097", "dim"},
        {"tables.0.init_bound", "-1", "init_bound"},
        {"tables.0.init_kind", "3", "found 3"},
        {"tables.0.rows", "-1", "rows"},
        {"tables.2.admitted", "8", "admitted"},
        {"tables.2.admit", "65536", "admits"},
        {"tables.2.admit", "-1", "admit"},
        {"tables.2.optimizer", "1.5", "optimizer"},
        {"tables.2.rule", "7", "rule"},
        {"groups", "7", "groups"},
        {"groups", "[{\"rule\":\"Ftrl\"}]", "groups[0]"},
        {"tables.2.slots", "65", "slots"},
        {"tables.2.expire", "-1", "expire"},
        {"tables.1.max_rows", "\"all\"", "max_rows"},
        {"partitions", "0", "partitions"},
        {"partitions", "16385", "partitions"},
        {"partitions", "4", "block_file"},
        {"partitions", NULL, "partitions"},
        {"block_file", "[0]", "block_file"},
        {"block_file", "[0,0,0,0,0,0,0,0,0,0,0,0]", "12 entries"},
        {"block_file.0", "2", "block_file"},
        {"block_file.0", "-1", "block_file"},
        {"base", "7", "base"},
        {"base.step", "1500", "before that of the delta"},
        {"base.step", "-1", "step"},
        {"base.hash", "\"12\"", "hash"},
        {"job", "[]", "job"},
    };
    struct manifest parsed;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = changed_text(cases[i].path, cases[i].value);
        assert_error(manifest_parse(&parsed, text, &failure),
                     FAILURE_CHECKPOINT_DAMAGED);
        if (!strstr(failure.text, cases[i].named))
            fail_msg("%s = %s: %s", cases[i].path, cases[i].value,
                     failure.text);
        free(text);
    }
}

TEST(a_null_job_and_a_valid_change_are_accepted) {
    struct manifest parsed;
    char *text = changed_text("job", "null");
    assert_ok(manifest_parse(&parsed, text, &failure));
    assert_null(parsed.job);
    free(text);
    manifest_clear(&parsed);
}

TEST(garbage_in_the_file_is_refused) {
    static const char *const garbage[] = {
        "", "{", "[]", "null", "\0\0\0", "{}", "\xff\xfe", "{\"format\":1}",
    };
    char folder[PATH_MAX];
    struct manifest read;
    checkpoint_fixture_folder(folder);
    const char *path = textf("%s/manifest.json", folder);
    assert_error(manifest_read(&read, folder, &failure),
                 FAILURE_FILE_UNREADABLE);
    assert_contains(failure.text, path);
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        size_t size = i == 4 ? 3 : strlen(garbage[i]);
        assert_int_equal(write(fd, garbage[i], size), size);
        close(fd);
        assert_error(manifest_read(&read, folder, &failure),
                     FAILURE_CHECKPOINT_DAMAGED);
        assert_contains(failure.text, path);
    }
    unlink(path);
    assert_int_equal(mkfifo(path, 0666), 0);
    assert_error(manifest_read(&read, folder, &failure),
                 FAILURE_CHECKPOINT_DAMAGED);
    assert_contains(failure.text, "is not a file");
    checkpoint_fixture_remove(folder);
}
