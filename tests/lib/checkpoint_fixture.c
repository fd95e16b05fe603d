/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/checkpoint_fixture.h"

#include "proto/store/checkpoint.h"
#include "proto/store/shard_writer.h"

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
    (void)about;
    (void)type;
    (void)where;
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
    struct failure why;
    *manifest = (struct manifest){
        .run = CHECKPOINT_FIXTURE_RUN,
        .step = step,
        .epoch = 2,
        .samples = 64 * step,
        .seed = UINT64_MAX,
        .job = strdup("{\"seed\":1,\"lr\":0.5}"),
        .rule = strdup("Adam"),
        .num_slots = 2,
        .slot_names = calloc(2, sizeof *manifest->slot_names),
        .num_files = num_ps,
        .files = calloc(num_ps, sizeof *manifest->files),
    };
    strcpy(manifest->slot_names[0], "a");
    strcpy(manifest->slot_names[1], "b");
    must(layout_build(&manifest->layout, parameters, 3, &why), &why);
    uint32_t num_blocks = manifest->layout->num_blocks;
    manifest->block_file = calloc(num_blocks, sizeof *manifest->block_file);
    for (uint32_t b = 0; b < num_blocks; b++)
        manifest->block_file[b] = b % num_ps;
    for (uint32_t f = 0; f < num_ps; f++)
        checkpoint_shard_name(f, num_ps, manifest->run, manifest->files[f].name,
                              sizeof manifest->files[f].name);
}

static void put_block(struct shard_writer *writer,
                      const struct manifest *manifest, uint32_t b) {
    const struct block *block = &manifest->layout->blocks[b];
    struct failure why;
    float *floats = malloc(block->elements * sizeof *floats);
    struct shard_key key = {.parameter = block->parameter,
                            .offset = block->offset};
    for (; key.slot <= manifest->num_slots; key.slot++) {
        for (uint32_t e = 0; e < block->elements; e++)
            floats[e] = checkpoint_fixture_value(
                manifest->step, block->parameter, key.slot, block->offset + e);
        must(shard_writer_put(writer, key, floats,
                              block->elements * sizeof *floats, &why),
             &why);
    }
    key.slot = SHARD_ROW;
    must(shard_writer_put(writer, key, "row", 3, &why), &why);
    free(floats);
}

void checkpoint_fixture_write(const char *dir, uint64_t step, uint32_t num_ps) {
    struct manifest manifest;
    struct failure why;
    char folder[PATH_MAX];
    checkpoint_fixture_manifest(&manifest, step, num_ps);
    must(checkpoint_make_folder(dir, step, &why), &why);
    checkpoint_folder(dir, step, folder, sizeof folder);
    for (uint32_t f = 0; f < num_ps; f++) {
        struct shard_writer *writer;
        char path[2 * PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", folder, manifest.files[f].name);
        must(shard_writer_open(&writer, path, 2 << 20, 64, &why), &why);
        for (uint32_t b = f; b < manifest.layout->num_blocks; b += num_ps)
            put_block(writer, &manifest, b);
        must(shard_writer_finish(&writer, &manifest.files[f], &why), &why);
    }
    must(manifest_write(&manifest, folder, &why), &why);
    manifest_clear(&manifest);
}
