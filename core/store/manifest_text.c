/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/manifest_text.h"

#include "core/store/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

bool manifest_text_digest(const json_t *object, char digits[17]) {
    char *text = json_dumps(object, JSON_COMPACT);
    if (text)
        snprintf(digits, 17, "%016" PRIx64,
                 (uint64_t)XXH3_64bits(text, strlen(text)));
    free(text);
    return text != NULL;
}

static json_t *hex(uint64_t number) {
    char digits[17];
    snprintf(digits, sizeof digits, "%016" PRIx64, number);
    return json_string(digits);
}

/* Counts must fit JSON's signed integers; above that NULL, which json_pack
 * refuses. */
static json_t *manifest_text_count(uint64_t number) {
    return number <= INT64_MAX ? json_integer((json_int_t)number) : NULL;
}

/* ALL, or NULL if fewer than ELEMENTS of its elements could be made. */
static json_t *check_complete(json_t *all, size_t elements) {
    if (json_array_size(all) == elements)
        return all;
    json_decref(all);
    return NULL;
}

/* 0 is the usual value, and left out. */
static void set_nonzero(json_t *entry, const char *key, uint64_t number) {
    if (number)
        json_object_set_new(entry, key, manifest_text_count(number));
}

/* An initializer with a shift, or of another kind than uniform. */
static void set_initializer(json_t *entry, float shift, uint32_t kind) {
    if (shift != 0)
        json_object_set_new(entry, "init_shift", json_real((double)shift));
    set_nonzero(entry, "init_kind", kind);
}

static json_t *parameters_json(const struct layout *layout) {
    json_t *all = json_array();
    for (uint32_t p = 0; p < layout->num_parameters; p++) {
        const struct parameter *parameter = &layout->parameters[p];
        json_t *dims = json_array();
        for (uint32_t d = 0; d < parameter->num_dims; d++)
            json_array_append_new(dims, json_integer(parameter->dims[d]));
        json_t *entry =
            json_pack("{s:s, s:o, s:f}", "name", parameter->name, "dims", dims,
                      "init_bound", (double)parameter->init_bound);
        set_initializer(entry, parameter->init_shift, parameter->init_kind);
        set_nonzero(entry, "kind", parameter->kind);
        set_nonzero(entry, "dtype", parameter->dtype);
        set_nonzero(entry, "group", parameter->group);
        set_nonzero(entry, "values", parameter->values);
        json_array_append_new(all, entry);
    }
    return check_complete(all, layout->num_parameters);
}

/* The rule and its slots are the manifest's where a table has no optimizer of
 * its own. */
static json_t *tables_json(const struct manifest *manifest) {
    json_t *all = json_array();
    for (uint32_t t = 0; t < manifest->layout->num_tables; t++) {
        const struct table *table = &manifest->layout->tables[t];
        const struct manifest_table *more = &manifest->tables[t];
        json_t *entry = json_pack(
            "{s:s, s:I, s:f, s:o, s:o}", "name", table->name, "dim",
            (json_int_t)table->dim, "init_bound", (double)table->init_bound,
            "rows", manifest_text_count(more->count.rows), "admitted",
            manifest_text_count(more->count.admitted));
        set_initializer(entry, table->init_shift, table->init_kind);
        set_nonzero(entry, "optimizer", table->optimizer);
        if (table->optimizer) {
            json_object_set_new(entry, "rule", json_string(more->rule));
            json_object_set_new(entry, "slots", json_integer(more->num_slots));
        }
        set_nonzero(entry, "admit", table->admit);
        set_nonzero(entry, "expire", table->expire);
        set_nonzero(entry, "max_rows", table->max_rows);
        json_array_append_new(all, entry);
    }
    return check_complete(all, manifest->layout->num_tables);
}

static json_t *slots_json(const struct manifest_rule *rule) {
    json_t *all = json_array();
    for (uint32_t s = 0; s < rule->num_slots; s++)
        json_array_append_new(all, json_string(rule->slot_names[s]));
    return check_complete(all, rule->num_slots);
}

/* The rules of groups, omitted where all parameters have the run's. False:
 * memory is short. */
static bool manifest_add_groups(json_t *root, const struct manifest *manifest) {
    json_t *all = json_array();
    for (uint32_t g = 1; g < manifest->num_rules; g++)
        json_array_append_new(all, json_pack("{s:s, s:o}", "rule",
                                             manifest->rules[g].name, "slots",
                                             slots_json(&manifest->rules[g])));
    if (manifest->num_rules > 1)
        return !json_object_set_new(
            root, "groups", check_complete(all, manifest->num_rules - 1));
    json_decref(all);
    return true;
}

static json_t *files_json(const struct shard_info *files, uint32_t count) {
    json_t *all = json_array();
    for (uint32_t f = 0; f < count; f++) {
        const struct shard_info *file = &files[f];
        char hash[33];
        snprintf(hash, sizeof hash, "%016" PRIx64 "%016" PRIx64, file->hash[1],
                 file->hash[0]);
        json_array_append_new(
            all, json_pack("{s:s, s:s, s:o, s:s}", "name", file->name, "holder",
                           file->host, "size", manifest_text_count(file->size),
                           "xxh3", hash));
    }
    return check_complete(all, count);
}

static json_t *block_file_json(const struct manifest *manifest) {
    json_t *all = json_array();
    for (uint32_t b = 0; b < layout_units(manifest->layout); b++)
        json_array_append_new(all, json_integer(manifest->block_file[b]));
    return check_complete(all, layout_units(manifest->layout));
}

static json_t *job_json(const struct manifest *manifest) {
    if (!manifest->job)
        return json_null();
    json_t *job = json_loads(manifest->job, 0, NULL);
    if (json_is_object(job))
        return job;
    json_decref(job);
    return NULL;
}

/* Omitted by full checkpoints. False: memory is short. */
static bool add_base(json_t *root, const struct manifest *manifest) {
    const struct manifest_name *base = &manifest->base_name;
    return !manifest->is_delta ||
           !json_object_set_new(root, "base",
                                json_pack("{s:o, s:o}", "step",
                                          manifest_text_count(base->step),
                                          "hash", hex(base->hash)));
}

/* Omitted by runs without tables. False: memory is short. */
static bool manifest_add_tables(json_t *root, const struct manifest *manifest) {
    const struct layout *layout = manifest->layout;
    if (!layout->num_tables)
        return true;
    return !json_object_set_new(root, "tables", tables_json(manifest)) &&
           !json_object_set_new(root, "partitions",
                                json_integer(layout->num_partitions));
}

/* Omitted by runs that do not scale the loss. False: memory is short. */
static bool add_scaler(json_t *root, const struct loss_scaler *scaler) {
    if (!scaler->hysteresis && !scaler->skipped)
        return true;
    return !json_object_set_new(
        root, "loss_scaler",
        json_pack("{s:f, s:o, s:o, s:o}", "scale", scaler->scale, "good",
                  manifest_text_count(scaler->good), "hysteresis",
                  manifest_text_count(scaler->hysteresis), "skipped",
                  manifest_text_count(scaler->skipped)));
}

char *manifest_text(const struct manifest *manifest) {
    json_t *root = json_pack(
        "{s:i, s:o, s:o, s:o, s:o, s:o, s:b, s:s, s:o, s:o, s:i, s:o, s:o, "
        "s:o}",
        "format", MANIFEST_TEXT_FORMAT, "run", hex(manifest->run), "step",
        manifest_text_count(manifest->step), "epoch",
        manifest_text_count(manifest->epoch), "samples",
        manifest_text_count(manifest->samples), "seed", hex(manifest->seed),
        "final", manifest->final, "rule", manifest->rules->name, "slots",
        slots_json(manifest->rules), "files",
        files_json(manifest->files, manifest->num_files), "block_elements",
        (int)manifest->layout->block_elements, "parameters",
        parameters_json(manifest->layout), "job", job_json(manifest),
        "block_file", block_file_json(manifest));
    char digits[17], *text = NULL;
    if (manifest->epoch_step)
        json_object_set_new(root, "epoch_step",
                            manifest_text_count(manifest->epoch_step));
    if (manifest->num_kept)
        json_object_set_new(root, "kept",
                            files_json(manifest->kept, manifest->num_kept));
    if (manifest->lineage && manifest->lineage != manifest->run)
        json_object_set_new(root, "lineage", hex(manifest->lineage));
    if (manifest->features)
        json_object_set_new(root, "features", hex(manifest->features));
    if (root && add_scaler(root, &manifest->scaler) &&
        manifest_add_groups(root, manifest) &&
        manifest_add_tables(root, manifest) && add_base(root, manifest) &&
        manifest_text_digest(root, digits) &&
        !json_object_set_new(root, "xxh3", json_string(digits)))
        text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

/* The digest is the value of the last key. */
uint64_t manifest_text_hash(const char *text) {
    return strtoull(text + strlen(text) - strlen("0123456789abcdef\"}"), NULL,
                    16);
}
