/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/checkpoint_fixture.h"

#include "core/store/checkpoint.h"
#include "core/store/shard_file.h"
#include "core/store/shard_rows.h"
#include "tests/lib/assert_fails.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(enum status status, const struct failure *why) {
    if (!status)
        return;
    fprintf(stderr, "%s\n", why->text);
    abort();
}

void checkpoint_fixture_folder(char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "/tmp/capstan-test-XXXXXX");
    if (!mkdtemp(path))
        abort();
}

static int remove_one(const char *path, const struct stat *about, int type,
                      struct FTW *where) {
    (void)about, (void)type, (void)where;
    return remove(path);
}

void checkpoint_fixture_remove(const char *path) {
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int checkpoint_fixture_setup_folder(void **state) {
    char *folder = malloc(PATH_MAX);
    if (!folder)
        return -1;
    checkpoint_fixture_folder(folder);
    *state = folder;
    return 0;
}

int checkpoint_fixture_teardown_folder(void **state) {
    checkpoint_fixture_remove(*state);
    free(*state);
    return 0;
}

int checkpoint_fixture_setup(void **state, const char *name) {
    struct checkpoint_fixture_file *place = calloc(1, sizeof *place);
    checkpoint_fixture_folder(place->folder);
    snprintf(place->path, sizeof place->path, "%s/%s", place->folder, name);
    *state = place;
    return 0;
}

int checkpoint_fixture_teardown(void **state) {
    struct checkpoint_fixture_file *place = *state;
    checkpoint_fixture_remove(place->folder);
    free(place);
    return 0;
}

int checkpoint_fixture_entries(const char *path) {
    DIR *folder = opendir(path);
    int count = 0;
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count - 2;
}

float checkpoint_fixture_value(uint64_t step, uint32_t parameter, uint16_t slot,
                               uint64_t element) {
    return (float)step + 100.0f * (float)parameter + 1000.0f * (float)slot +
           (float)(element % 1024) / 1024.0f;
}

void checkpoint_fixture_manifest(struct manifest *manifest, uint64_t step,
                                 uint32_t num_ps) {
    static const struct parameter parameters[] = {
        {.name = "layer0.weight",
         .num_dims = 2,
         .dims = {300, 200},
         .init_bound = 0.1f},
        {.name = "layer0.bias", .num_dims = 1, .dims = {300}},
        {.name = "layer1.weight", .num_dims = 2, .dims = {100, 300}},
    };
    *manifest = (struct manifest){
        .run = CHECKPOINT_FIXTURE_RUN,
        .step = step,
        .epoch = 2,
        .samples = 64 * step,
        .seed = UINT64_MAX,
        .job = strdup("{\"seed\":1,\"lr\":0.5}"),
        .num_rules = 1,
        .rules = calloc(1, sizeof *manifest->rules),
        .num_files = num_ps,
        .files = calloc(num_ps, sizeof *manifest->files),
    };
    *manifest->rules = (struct manifest_rule){"Adam", 2, {"a", "b"}};
    must(layout_build(&manifest->layout, parameters, 3, &failure), &failure);
    uint32_t num_blocks = manifest->layout->num_blocks;
    manifest->block_file = calloc(num_blocks, sizeof *manifest->block_file);
    for (uint32_t b = 0; b < num_blocks; b++)
        manifest->block_file[b] = b % num_ps;
    for (uint32_t f = 0; f < num_ps; f++)
        checkpoint_shard_name(f, num_ps, manifest->run, false,
                              manifest->files[f].name,
                              sizeof manifest->files[f].name);
}

uint64_t checkpoint_fixture_rule_step(const struct manifest *manifest,
                                      uint32_t b) {
    return manifest->step / (1 + manifest->layout->blocks[b].parameter);
}

static void put_block(struct shard_writer *writer,
                      const struct manifest *manifest, uint32_t b) {
    const struct block *block = &manifest->layout->blocks[b];
    float *floats = malloc(block->elements * sizeof *floats);
    struct shard_key key = {.parameter = block->parameter,
                            .offset = block->offset};
    const struct manifest_rule *rule =
        manifest_rule(manifest, block->parameter);
    for (; key.slot <= rule->num_slots; key.slot++) {
        for (uint32_t e = 0; e < block->elements; e++)
            floats[e] = checkpoint_fixture_value(
                manifest->step, block->parameter, key.slot, block->offset + e);
        must(shard_writer_put(writer, key, floats,
                              block->elements * sizeof *floats, &failure),
             &failure);
    }
    uint64_t rule_step = checkpoint_fixture_rule_step(manifest, b);
    key.slot = SHARD_RULE_STEP;
    if (block->parameter)
        must(shard_writer_put(writer, key, &rule_step, sizeof rule_step,
                              &failure),
             &failure);
    key.slot = SHARD_ROW;
    must(shard_writer_put(writer, key, "row", 3, &failure), &failure);
    free(floats);
}

void checkpoint_fixture_tables(struct manifest *manifest, uint32_t num_tables,
                               uint32_t num_partitions) {
    static const struct table tables[CHECKPOINT_FIXTURE_TABLES] = {
        {.name = "e1", .dim = 3, .init_bound = 0.25f},
        {.name = "e2", .dim = 3, .init_bound = 0.25f, .max_rows = 1 << 20},
        {.name = "c", .dim = 8, .optimizer = 1, .admit = 2, .expire = 1000},
    };
    must(layout_add_tables(manifest->layout, tables, num_tables, num_partitions,
                           &failure),
         &failure);
    uint32_t units = layout_units(manifest->layout);
    manifest->tables =
        calloc(CHECKPOINT_FIXTURE_TABLES, sizeof *manifest->tables);
    for (uint32_t t = 0; t < num_tables; t++) {
        manifest->tables[t].num_slots = t < 2 ? manifest->rules->num_slots : 1;
        strcpy(manifest->tables[t].rule,
               t < 2 ? manifest->rules->name : "Ftrl");
    }
    free(manifest->block_file);
    manifest->block_file = calloc(units, sizeof *manifest->block_file);
    for (uint32_t b = 0; b < units; b++)
        manifest->block_file[b] = b % manifest->num_files;
}

uint64_t checkpoint_fixture_id(uint32_t i) {
    return (i + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15);
}

bool checkpoint_fixture_has_row(uint32_t t, uint32_t i) {
    return i < CHECKPOINT_FIXTURE_IDS && i % (t == 0 ? 1 : 3 * t) == 0;
}

float checkpoint_fixture_weight(uint32_t t, uint64_t id, uint32_t element) {
    return (float)t + (float)(id >> 50) + (float)element / 16.0f;
}

static void fill_row(const struct manifest *manifest, uint32_t t, uint32_t i,
                     struct row *row) {
    const struct table *table = &manifest->layout->tables[t];
    *row = (struct row){
        .id = checkpoint_fixture_id(i),
        .touched = i,
        .table = (uint16_t)t,
        .count = (uint16_t)(table->admit ? table->admit - i / 6 % 2 : 0)};
    float *floats = (float *)(row + 1);
    for (uint32_t e = 0; e < table->dim; e++)
        floats[e] = checkpoint_fixture_weight(t, row->id, e);
}

bool checkpoint_fixture_is_removed(uint32_t i) {
    return i % 50 == 0;
}

/* Lists row I of table T as removed after the update that changed no row. */
static void list_removed(struct shard_rows_source *rows, uint32_t t,
                         uint32_t i) {
    size_t all = CHECKPOINT_FIXTURE_IDS * sizeof(struct row);
    if (!rows->removed)
        rows->removed = buffer_open(all, NULL, NULL);
    struct row *list = buffer_data(rows->removed);
    list[rows->num_removed++] =
        (struct row){.id = checkpoint_fixture_id(i),
                     .table = (uint16_t)t,
                     .touched = CHECKPOINT_FIXTURE_CHANGED};
}

/* A further row of the pages, four rows each. */
static struct row *add_row(struct shard_rows_source *rows) {
    struct buffer **pages = (struct buffer **)rows->pages;
    if (rows->rows % rows->page_rows == 0) {
        struct buffer *page =
            buffer_open(rows->page_rows * rows->row_bytes, NULL, NULL);
        memset(buffer_data(page), 0, rows->page_rows * rows->row_bytes);
        pages = realloc(pages, (rows->num_pages + 1) * sizeof(void *));
        pages[rows->num_pages++] = page;
        rows->pages = pages;
    }
    char *page = buffer_data(pages[rows->num_pages - 1]);
    return (struct row *)(page +
                          rows->rows++ % rows->page_rows * rows->row_bytes);
}

struct shard_rows_source *checkpoint_fixture_rows(
    const struct manifest *manifest, uint32_t partition) {
    const struct layout *layout = manifest->layout;
    struct shard_rows_source *rows = calloc(layout->num_stacks, sizeof *rows);
    for (uint32_t i = 0; i < CHECKPOINT_FIXTURE_IDS; i++)
        for (uint32_t t = 0; t < layout->num_tables; t++) {
            struct shard_rows_source *stack = &rows[layout->tables[t].stack];
            uint64_t hash = layout_row_hash(t, checkpoint_fixture_id(i));
            stack->page_rows = 4;
            stack->row_bytes = row_keys_row_bytes(
                layout->tables[t].dim, manifest->tables[t].num_slots);
            stack->delta = manifest->is_delta;
            stack->since = CHECKPOINT_FIXTURE_CHANGED - 1;
            if (!checkpoint_fixture_has_row(t, i) ||
                layout_partition(layout, hash) != partition)
                continue;
            if (manifest->is_delta && checkpoint_fixture_is_removed(i))
                list_removed(stack, t, i);
            else
                fill_row(manifest, t, i, add_row(stack));
        }
    return rows;
}

void checkpoint_fixture_free_rows(struct shard_rows_source *rows,
                                  uint32_t num_stacks) {
    for (uint32_t s = 0; s < num_stacks; s++) {
        for (size_t p = 0; p < rows[s].num_pages; p++) {
            struct buffer *page = rows[s].pages[p];
            buffer_release(&page);
        }
        free((void *)rows[s].pages);
        buffer_release(&rows[s].removed);
    }
    free(rows);
}

static void put_partition(struct shard_writer *writer,
                          struct manifest *manifest, uint32_t partition) {
    struct shard_rows_count counts[CHECKPOINT_FIXTURE_TABLES] = {{0}};
    struct shard_key key = {.parameter = SHARD_ROWS | partition,
                            .slot = SHARD_ROW};
    struct shard_rows_source *rows =
        checkpoint_fixture_rows(manifest, partition);
    must(shard_rows_write(writer, manifest->layout, partition, rows, counts,
                          &failure),
         &failure);
    must(shard_writer_put(writer, key, "row", 3, &failure), &failure);
    checkpoint_fixture_free_rows(rows, manifest->layout->num_stacks);
    for (uint32_t t = 0; t < manifest->layout->num_tables; t++) {
        manifest->tables[t].count.rows += counts[t].rows;
        manifest->tables[t].count.admitted += counts[t].admitted;
    }
}

void checkpoint_fixture_write_manifest(const char *dir,
                                       struct manifest *manifest) {
    char folder[PATH_MAX];
    uint32_t num_ps = manifest->num_files;
    uint32_t num_blocks = manifest->layout->num_blocks;
    must(checkpoint_make_folder(dir, manifest->step, &failure), &failure);
    checkpoint_folder(dir, manifest->step, folder, sizeof folder);
    for (uint32_t f = 0; f < num_ps; f++) {
        struct shard_writer *writer;
        char path[2 * PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", folder, manifest->files[f].name);
        must(shard_writer_open(&writer, path,
                               (2 << 20) + 2 * sizeof(float) *
                                               manifest->layout->elements,
                               64 + 4 * num_blocks, &failure),
             &failure);
        for (uint32_t b = f; b < layout_units(manifest->layout); b += num_ps)
            if (b < num_blocks)
                put_block(writer, manifest, b);
            else
                put_partition(writer, manifest, b - num_blocks);
        must(shard_writer_finish(&writer, &manifest->files[f], &failure),
             &failure);
    }
    must(manifest_write(manifest, folder, &failure), &failure);
    manifest_clear(manifest);
}

void checkpoint_fixture_write(const char *dir, uint64_t step, uint32_t num_ps) {
    struct manifest manifest;
    checkpoint_fixture_manifest(&manifest, step, num_ps);
    checkpoint_fixture_write_manifest(dir, &manifest);
}

void checkpoint_fixture_write_tables(const char *dir, uint64_t step,
                                     uint32_t num_ps, uint32_t num_partitions) {
    struct manifest manifest;
    checkpoint_fixture_manifest(&manifest, step, num_ps);
    checkpoint_fixture_tables(&manifest, CHECKPOINT_FIXTURE_TABLES,
                              num_partitions);
    checkpoint_fixture_write_manifest(dir, &manifest);
}

void checkpoint_fixture_write_delta(const char *dir, uint64_t step,
                                    uint32_t num_ps, uint64_t base) {
    struct manifest manifest, full;
    char folder[PATH_MAX];
    checkpoint_folder(dir, base, folder, sizeof folder);
    must(manifest_read(&full, folder, &failure), &failure);
    checkpoint_fixture_manifest(&manifest, step, num_ps);
    checkpoint_fixture_tables(&manifest, CHECKPOINT_FIXTURE_TABLES,
                              full.layout->num_partitions);
    manifest.is_delta = true;
    manifest.base_name = (struct manifest_name){base, full.hash};
    checkpoint_fixture_write_manifest(dir, &manifest);
    manifest_clear(&full);
}
