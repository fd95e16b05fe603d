/* SPDX-License-Identifier: Apache-2.0 */

#define STATE const char *dir

#include "core/rows/row_table.h"
#include "core/store/checkpoint.h"
#include "core/store/checkpoint_reader.h"
#include "core/store/shard_file.h"
#include "core/store/shard_rows.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/test.h"

#include <unistd.h>

/* The path of file F of STEP, written by NUM_PS. */
static void shard_path(const char *dir, uint64_t step, uint32_t f,
                       uint32_t num_ps, char path[PATH_MAX + 128]) {
    char folder[PATH_MAX], name[128];
    checkpoint_folder(dir, step, folder, sizeof folder);
    checkpoint_shard_name(f, num_ps, CHECKPOINT_FIXTURE_RUN, false, name,
                          sizeof name);
    snprintf(path, PATH_MAX + 128, "%s/%s", folder, name);
}

static void assert_block(struct checkpoint_reader *reader,
                         const struct manifest *manifest, uint32_t b) {
    const struct block *block = &manifest->layout->blocks[b];
    const void *row;
    size_t bytes;
    float *floats = malloc(block->elements * sizeof *floats);
    for (uint16_t slot = 0; slot < 3; slot++) {
        assert_ok(checkpoint_reader_block(reader, b, slot, floats, &failure));
        for (uint32_t e = 0; e < block->elements; e++)
            if (floats[e] != checkpoint_fixture_value(manifest->step,
                                                      block->parameter, slot,
                                                      block->offset + e))
                fail_msg("block %u slot %u element %u", b, slot, e);
    }
    assert_ok(checkpoint_reader_row(reader, b, &row, &bytes, &failure));
    assert_int_equal(bytes, 3);
    assert_memory_equal(row, "row", 3);
    uint64_t rule_step;
    assert_ok(checkpoint_reader_rule_step(reader, b, &rule_step, &failure));
    assert_int_equal(rule_step, checkpoint_fixture_rule_step(manifest, b));
    free(floats);
}

FIXTURE(checkpoint_fixture_setup_folder, checkpoint_fixture_teardown_folder);

TEST(blocks_are_read_back_for_any_number_of_ps) {
    struct manifest manifest;
    struct checkpoint_reader *reader;
    char folder[PATH_MAX];
    for (uint32_t num_ps = 1; num_ps <= 3; num_ps++) {
        checkpoint_fixture_write(dir, num_ps, num_ps);
        checkpoint_folder(dir, num_ps, folder, sizeof folder);
        assert_ok(manifest_read(&manifest, folder, &failure));
        assert_ok(checkpoint_reader_open(&reader, folder, &manifest, &failure));
        for (uint32_t b = 0; b < manifest.layout->num_blocks; b++)
            assert_block(reader, &manifest, b);
        checkpoint_reader_close(&reader);
        manifest_clear(&manifest);
    }
}

TEST(a_missing_slot_is_reported) {
    struct manifest manifest;
    struct checkpoint_reader *reader;
    char folder[PATH_MAX];
    float none[1];
    checkpoint_fixture_write(dir, 1, 1);
    checkpoint_folder(dir, 1, folder, sizeof folder);
    assert_ok(manifest_read(&manifest, folder, &failure));
    assert_ok(checkpoint_reader_open(&reader, folder, &manifest, &failure));
    assert_error(checkpoint_reader_block(reader, 0, 3, none, &failure),
                 FAILURE_CHECKPOINT_DAMAGED);
    assert_contains(failure.text, "slot 3");
    /* A row is no block of floats: its size is checked before it is copied. */
    assert_error(checkpoint_reader_block(reader, 0, SHARD_ROW, none, &failure),
                 FAILURE_CHECKPOINT_DAMAGED);
    assert_contains(failure.text, "3 bytes");
    checkpoint_reader_close(&reader);
    manifest_clear(&manifest);
}

static void expect_damage(const char *dir, uint64_t step,
                          enum failure_code code, const char *text) {
    assert_error(checkpoint_reader_verify(dir, step, &failure), code);
    assert_contains(failure.text, text);
}

/* A byte, not the size. */
static void change_byte(const char *path) {
    FILE *file = fopen(path, "r+");
    fseek(file, 100000, SEEK_SET);
    fputc(0x5a, file);
    fclose(file);
}

TEST(damage_fails_verification_and_is_named) {
    char path[PATH_MAX + 128];
    for (uint64_t step = 1; step <= 4; step++)
        checkpoint_fixture_write(dir, step, 2);
    assert_ok(checkpoint_reader_verify(dir, 1, &failure));
    shard_path(dir, 1, 1, 2, path);
    assert_int_equal(truncate(path, 5000), 0);
    expect_damage(dir, 1, FAILURE_CHECKPOINT_DAMAGED, path);
    shard_path(dir, 2, 0, 2, path);
    assert_int_equal(unlink(path), 0);
    expect_damage(dir, 2, FAILURE_FILE_UNREADABLE, "No such file");
    shard_path(dir, 3, 1, 2, path);
    change_byte(path);
    expect_damage(dir, 3, FAILURE_CHECKPOINT_DAMAGED, "is damaged");
    expect_damage(dir, 9, FAILURE_FILE_UNREADABLE, "manifest.json");
    char whole[PATH_MAX];
    checkpoint_folder(dir, 3, whole, sizeof whole);
    snprintf(path, sizeof path, "%s/manifest.json", whole);
    FILE *file = fopen(path, "a");
    fputc(0, file);
    fclose(file);
    expect_damage(dir, 3, FAILURE_CHECKPOINT_DAMAGED, "it is not text");
    char from[PATH_MAX], to[PATH_MAX];
    checkpoint_folder(dir, 4, from, sizeof from);
    checkpoint_folder(dir, 5, to, sizeof to);
    assert_int_equal(rename(from, to), 0);
    expect_damage(dir, 5, FAILURE_CHECKPOINT_DAMAGED, "is of step 4");
}

/* A checkpoint whose file has one block and no row, hashes and all right. */
static void write_without_rows(const char *dir, uint64_t step) {
    struct manifest manifest;
    struct shard_writer *writer;
    char folder[PATH_MAX], path[PATH_MAX + 128];
    checkpoint_fixture_manifest(&manifest, step, 1);
    manifest.rules->num_slots = 0;
    assert_ok(checkpoint_make_folder(dir, step, &failure));
    checkpoint_folder(dir, step, folder, sizeof folder);
    shard_path(dir, step, 0, 1, path);
    const struct block *block = &manifest.layout->blocks[0];
    struct shard_key key = {.parameter = block->parameter,
                            .offset = block->offset};
    float *floats = calloc(block->elements, sizeof *floats);
    assert_ok(shard_writer_open(&writer, path, 1 << 20, 9, &failure));
    assert_ok(shard_writer_put(writer, key, floats,
                               block->elements * sizeof *floats, &failure));
    assert_ok(shard_writer_finish(&writer, &manifest.files[0], &failure));
    assert_ok(manifest_write(&manifest, folder, &failure));
    free(floats);
    manifest_clear(&manifest);
}

TEST(a_block_without_its_row_fails_verification) {
    write_without_rows(dir, 1);
    expect_damage(dir, 1, FAILURE_CHECKPOINT_DAMAGED, "slot 65535");
}

static void assert_newest(const char *dir, uint64_t upto, uint64_t step) {
    struct manifest manifest;
    bool found;
    assert_ok(
        checkpoint_reader_newest(dir, upto, &manifest, &found, NULL, &failure));
    assert_true(found);
    assert_true(manifest.step == step);
    manifest_clear(&manifest);
}

TEST(the_newest_valid_checkpoint_is_chosen) {
    char path[PATH_MAX + 128];
    for (uint64_t step = 10; step <= 40; step += 10)
        checkpoint_fixture_write(dir, step, 1);
    assert_newest(dir, CHECKPOINT_READER_ANY, 40);
    assert_newest(dir, 35, 30);
    shard_path(dir, 40, 0, 1, path);
    assert_int_equal(truncate(path, 1), 0);
    snprintf(path, sizeof path, "%s/step-000000030/manifest.json", dir);
    assert_int_equal(truncate(path, 100), 0);
    assert_newest(dir, CHECKPOINT_READER_ANY, 20);
}

/* The size of the newest one's shard is looked at, the others are read. */
TEST(of_the_newest_written_in_the_run_only_sizes_are_looked_at) {
    static const struct {
        uint64_t changed, truncated, newest;
    } cases[] = {{30, 0, 30}, {20, 30, 10}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct manifest manifest;
        char path[PATH_MAX + 128];
        bool found;
        for (uint64_t step = 10; step <= 30; step += 10)
            checkpoint_fixture_write(dir, step, 1);
        shard_path(dir, cases[i].changed, 0, 1, path);
        change_byte(path);
        shard_path(dir, cases[i].truncated, 0, 1, path);
        assert_true(!cases[i].truncated || !truncate(path, 5000));
        assert_ok(checkpoint_reader_newest_sized(dir, &manifest, &found, NULL,
                                                 &failure));
        assert_true(found && manifest.step == cases[i].newest);
        manifest_clear(&manifest);
    }
}

TEST(an_empty_folder_succeeds_and_only_damaged_ones_fail) {
    struct manifest manifest;
    bool found = true;
    char path[PATH_MAX + 128];
    assert_ok(checkpoint_reader_newest(dir, CHECKPOINT_READER_ANY, &manifest,
                                       &found, NULL, &failure));
    assert_false(found);
    checkpoint_fixture_write(dir, 10, 1);
    shard_path(dir, 10, 0, 1, path);
    assert_int_equal(unlink(path), 0);
    assert_error(checkpoint_reader_newest(dir, CHECKPOINT_READER_ANY, &manifest,
                                          &found, NULL, &failure),
                 FAILURE_CHECKPOINT_DAMAGED);
    assert_false(found);
    assert_contains(failure.text, dir);
}

/* Sets the host of both files of STEP. */
static void set_host(const char *dir, uint64_t step, const char *host) {
    struct manifest manifest;
    char folder[PATH_MAX];
    checkpoint_folder(dir, step, folder, sizeof folder);
    assert_ok(manifest_read(&manifest, folder, &failure));
    for (uint32_t f = 0; f < manifest.num_files; f++)
        strcpy(manifest.files[f].host, host);
    assert_ok(manifest_write(&manifest, folder, &failure));
    manifest_clear(&manifest);
}

TEST(a_file_on_another_host_is_skipped_and_its_host_named) {
    struct manifest manifest;
    struct checkpoint_reader *reader;
    char path[PATH_MAX + 128], folder[PATH_MAX], here[256] = "";
    float none[1];
    checkpoint_fixture_write(dir, 1, 2);
    set_host(dir, 1, "node-7");
    shard_path(dir, 1, 0, 2, path);
    assert_int_equal(unlink(path), 0);
    assert_ok(checkpoint_reader_verify(dir, 1, &failure));
    checkpoint_folder(dir, 1, folder, sizeof folder);
    assert_ok(manifest_read(&manifest, folder, &failure));
    const struct shard_info *remote;
    assert_int_equal(checkpoint_reader_count_remote(folder, &manifest, &remote),
                     1);
    assert_ptr_equal(remote, &manifest.files[0]);
    assert_ok(checkpoint_reader_open(&reader, folder, &manifest, &failure));
    assert_error(checkpoint_reader_block(reader, 0, 0, none, &failure),
                 FAILURE_CHECKPOINT_ELSEWHERE);
    assert_contains(failure.text, "host node-7 holds it");
    checkpoint_reader_close(&reader);
    manifest_clear(&manifest);
    gethostname(here, sizeof here - 1);
    set_host(dir, 1, here);
    expect_damage(dir, 1, FAILURE_FILE_UNREADABLE, "No such file");
    set_host(dir, 1, "node-7");
    shard_path(dir, 1, 1, 2, path);
    assert_int_equal(truncate(path, 7), 0);
    expect_damage(dir, 1, FAILURE_CHECKPOINT_DAMAGED, "its manifest says");
}

static void open_step(const char *dir, uint64_t step, struct manifest *manifest,
                      struct checkpoint_reader **reader) {
    char folder[PATH_MAX];
    assert_ok(checkpoint_reader_verify(dir, step, &failure));
    checkpoint_folder(dir, step, folder, sizeof folder);
    assert_ok(manifest_read(manifest, folder, &failure));
    assert_ok(checkpoint_reader_open(reader, folder, manifest, &failure));
}

static void open_tables(const char *dir, uint64_t step, uint32_t num_ps,
                        uint32_t num_partitions, struct manifest *manifest,
                        struct checkpoint_reader **reader) {
    checkpoint_fixture_write_tables(dir, step, num_ps, num_partitions);
    open_step(dir, step, manifest, reader);
}

/* The rows of all partitions are counted by table in COUNTS. */
static void count_rows(struct checkpoint_reader *reader,
                       const struct layout *layout, uint64_t *counts) {
    for (uint32_t p = 0; p < layout->num_partitions; p++)
        for (uint32_t s = 0; s < layout->num_stacks; s++) {
            struct shard_rows_pair rows;
            const struct row *row, *before = NULL;
            struct shard_rows_cursor cursor;
            assert_ok(checkpoint_reader_rows(reader, p, s, &rows, &failure));
            shard_rows_seek(&cursor, &rows, 0, 0);
            while ((row = shard_rows_step(&cursor))) {
                assert_int_equal((uintptr_t)row % 8, 0);
                assert_int_equal(layout->tables[row->table].stack, s);
                assert_true(
                    !before || before->table < row->table ||
                    (before->table == row->table && before->id < row->id));
                assert_memory_equal((float[]){checkpoint_fixture_weight(
                                        row->table, row->id, 1)},
                                    (const float *)(row + 1) + 1,
                                    sizeof(float));
                counts[row->table]++;
                before = row;
            }
        }
}

static void expect_counts(const struct manifest *manifest,
                          const uint64_t *counts) {
    for (uint32_t t = 0; t < CHECKPOINT_FIXTURE_TABLES; t++) {
        uint64_t wanted = 0, admitted = 0;
        for (uint32_t i = 0; i < CHECKPOINT_FIXTURE_IDS; i++) {
            if (!checkpoint_fixture_has_row(t, i) ||
                (manifest->is_delta && checkpoint_fixture_is_removed(i)))
                continue;
            wanted++;
            admitted += t < 2 || i / 6 % 2 == 0;
        }
        assert_int_equal(counts[t], wanted);
        assert_int_equal(manifest->tables[t].count.rows, wanted);
        assert_int_equal(manifest->tables[t].count.admitted, admitted);
    }
}

TEST(rows_are_read_back_sorted_for_any_number_of_partitions) {
    static const uint32_t cases[][2] = {{1, 1}, {2, 5}, {3, 256}};
    for (uint64_t step = 0; step < 3; step++) {
        struct manifest manifest;
        struct checkpoint_reader *reader;
        uint64_t counts[CHECKPOINT_FIXTURE_TABLES] = {0};
        open_tables(dir, step, cases[step][0], cases[step][1], &manifest,
                    &reader);
        count_rows(reader, manifest.layout, counts);
        expect_counts(&manifest, counts);
        checkpoint_reader_close(&reader);
        manifest_clear(&manifest);
    }
}

/* Keys of STACK in PARTITION: ids with rows, and as many without. */
static void make_keys(const struct layout *layout, uint32_t partition,
                      uint32_t stack, struct row_keys *keys) {
    keys->count = 0;
    assert_true(row_keys_reserve(keys, 2 * 2 * CHECKPOINT_FIXTURE_IDS));
    for (uint32_t t = 0; t < layout->num_tables; t++)
        for (uint32_t i = 0; i < 2 * CHECKPOINT_FIXTURE_IDS; i++) {
            uint64_t id = checkpoint_fixture_id(i);
            if (layout->tables[t].stack != stack ||
                layout_partition(layout, layout_row_hash(t, id)) != partition)
                continue;
            keys->ids[keys->count] = id;
            keys->tables[keys->count++] = (uint16_t)t;
        }
}

/* What a ps with the rows of the checkpoint answers. */
static void lookup_on_ps(const struct manifest *manifest,
                         struct checkpoint_reader *reader, uint32_t partition,
                         uint32_t stack, const struct row_keys *keys,
                         float *weights) {
    static const struct optimizer adam = {.type = OPTIMIZER_ADAM},
                                  adagrad = {.type = OPTIMIZER_ADAGRAD};
    struct row_table_count counts[CHECKPOINT_FIXTURE_TABLES] = {{0}};
    struct row_table_options options = {.layout = manifest->layout,
                                        .stack = stack,
                                        .seed = manifest->seed,
                                        .optimizer = stack ? &adagrad : &adam,
                                        .counts = counts};
    struct row_table *table;
    struct shard_rows_pair rows;
    struct shard_rows_cursor cursor;
    const struct row *row;
    assert_ok(row_table_open(&table, &options, &failure));
    assert_ok(
        checkpoint_reader_rows(reader, partition, stack, &rows, &failure));
    assert_int_equal(rows.rows->row_bytes, row_table_row_bytes(table));
    shard_rows_seek(&cursor, &rows, 0, 0);
    while ((row = shard_rows_step(&cursor)))
        assert_ok(row_table_restore(table, row, 1, partition, &failure));
    row_table_lookup(table, keys, NULL, weights);
    row_table_close(&table);
}

static void expect_lookups_of_a_ps(const struct manifest *manifest,
                                   struct checkpoint_reader *reader) {
    struct row_keys keys = {0};
    size_t bytes = 4 * CHECKPOINT_FIXTURE_IDS * 8 * sizeof(float);
    float *file = malloc(bytes), *ps = malloc(bytes);
    for (uint32_t p = 0; p < 3; p++)
        for (uint32_t s = 0; s < manifest->layout->num_stacks; s++) {
            make_keys(manifest->layout, p, s, &keys);
            assert_true(keys.count > 1000);
            assert_ok(
                checkpoint_reader_lookup(reader, p, s, &keys, file, &failure));
            lookup_on_ps(manifest, reader, p, s, &keys, ps);
            assert_memory_equal(file, ps,
                                keys.count * row_keys_dim(manifest->layout, s) *
                                    sizeof(float));
        }
    free(file);
    free(ps);
    row_keys_free(&keys);
}

TEST(a_lookup_in_the_file_is_that_of_a_ps_which_restored_it) {
    struct manifest manifest;
    struct checkpoint_reader *reader;
    open_tables(dir, 1, 2, 3, &manifest, &reader);
    expect_lookups_of_a_ps(&manifest, reader);
    checkpoint_reader_close(&reader);
    manifest_clear(&manifest);
}

/* The base is of two ps, the delta of three. */
TEST(a_delta_is_read_with_its_base) {
    struct manifest manifest;
    struct checkpoint_reader *reader;
    uint64_t counts[CHECKPOINT_FIXTURE_TABLES] = {0}, base = 0, delta = 0;
    checkpoint_fixture_write_tables(dir, 10, 2, 3);
    checkpoint_fixture_write_delta(dir, 20, 3, 10);
    open_step(dir, 20, &manifest, &reader);
    assert_true(manifest.is_delta && manifest.base->step == 10);
    count_rows(reader, manifest.layout, counts);
    expect_counts(&manifest, counts);
    expect_lookups_of_a_ps(&manifest, reader);
    checkpoint_reader_close(&reader);
    for (uint32_t f = 0; f < manifest.base->num_files; f++)
        base += manifest.base->files[f].size;
    for (uint32_t f = 0; f < manifest.num_files; f++)
        delta += manifest.files[f].size;
    assert_true(delta < base - 1000000); /* the dense blocks are in both */
    manifest_clear(&manifest);
}

static void expect_newest(const char *dir, uint64_t step) {
    struct manifest manifest;
    bool found;
    assert_ok(checkpoint_reader_newest(dir, CHECKPOINT_READER_ANY, &manifest,
                                       &found, NULL, &failure));
    assert_true(found);
    assert_int_equal(manifest.step, step);
    manifest_clear(&manifest);
}

TEST(a_delta_without_its_very_base_is_passed_over) {
    struct manifest manifest;
    char path[PATH_MAX + 128], folder[PATH_MAX];
    checkpoint_fixture_write_tables(dir, 5, 1, 3);
    checkpoint_fixture_write_tables(dir, 10, 1, 3);
    checkpoint_fixture_write_delta(dir, 20, 1, 10);
    expect_newest(dir, 20);
    /* A file of the base is damaged. */
    shard_path(dir, 10, 0, 1, path);
    assert_int_equal(truncate(path, 7), 0);
    expect_damage(dir, 20, FAILURE_CHECKPOINT_DAMAGED, "step-000000010/ps-0");
    expect_newest(dir, 5);
    /* Another checkpoint of that step. */
    checkpoint_folder(dir, 10, folder, sizeof folder);
    assert_ok(manifest_read(&manifest, folder, &failure));
    manifest.run++;
    assert_ok(manifest_write(&manifest, folder, &failure));
    manifest_clear(&manifest);
    expect_damage(dir, 20, FAILURE_CHECKPOINT_DAMAGED,
                  "base of step 10 cannot be read");
    expect_damage(dir, 20, FAILURE_CHECKPOINT_DAMAGED, "is another one");
    assert_ok(checkpoint_remove(dir, 10, &failure));
    expect_damage(dir, 20, FAILURE_CHECKPOINT_DAMAGED, "No such file");
    expect_newest(dir, 5);
}

/* A file that is damaged in between shows which steps read it. */
TEST(the_deltas_of_a_verified_base_do_not_read_it_again) {
    struct manifest_name base = {0}, other = {0};
    char path[PATH_MAX + 128];
    checkpoint_fixture_write_tables(dir, 5, 1, 3);
    checkpoint_fixture_write_tables(dir, 10, 1, 3);
    checkpoint_fixture_write_delta(dir, 20, 1, 10);
    assert_ok(checkpoint_reader_verify_next(dir, 5, &other, &failure));
    assert_ok(checkpoint_reader_verify_next(dir, 10, &base, &failure));
    assert_int_equal(base.step, 10);
    shard_path(dir, 10, 0, 1, path);
    assert_int_equal(truncate(path, 7), 0);
    assert_ok(checkpoint_reader_verify_next(dir, 20, &base, &failure));
    assert_error(checkpoint_reader_verify_next(dir, 20, &other, &failure),
                 FAILURE_CHECKPOINT_DAMAGED);
    assert_error(checkpoint_reader_verify_next(dir, 10, &base, &failure),
                 FAILURE_CHECKPOINT_DAMAGED);
}

/* The file of the base on the other host is not here. */
TEST(a_base_on_another_host_is_counted) {
    struct manifest manifest;
    const struct shard_info *remote;
    char path[PATH_MAX + 128], folder[PATH_MAX];
    checkpoint_fixture_write_tables(dir, 10, 2, 3);
    set_host(dir, 10, "node-7");
    checkpoint_fixture_write_delta(dir, 20, 1, 10);
    shard_path(dir, 10, 1, 2, path);
    assert_int_equal(unlink(path), 0);
    checkpoint_folder(dir, 20, folder, sizeof folder);
    assert_ok(manifest_read(&manifest, folder, &failure));
    assert_int_equal(checkpoint_reader_count_remote(folder, &manifest, &remote),
                     1);
    assert_string_equal(remote->host, "node-7");
    assert_ok(checkpoint_reader_verify(dir, 20, &failure));
    manifest_clear(&manifest);
}

TEST(a_partition_that_its_file_lacks_fails_verification) {
    struct manifest manifest;
    struct checkpoint_reader *reader;
    char folder[PATH_MAX];
    open_tables(dir, 1, 2, 4, &manifest, &reader);
    checkpoint_reader_close(&reader);
    /* Partition 3 is said to be in the file of the other ps. */
    manifest.block_file[manifest.layout->num_blocks + 3] ^= 1;
    checkpoint_folder(dir, 1, folder, sizeof folder);
    assert_ok(manifest_write(&manifest, folder, &failure));
    expect_damage(dir, 1, FAILURE_CHECKPOINT_DAMAGED, "partition 3, value 0");
    manifest_clear(&manifest);
}
