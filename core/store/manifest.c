/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/manifest.h"

#include "core/store/atomic_file.h"
#include "core/store/checkpoint.h"
#include "core/store/fs_info.h"
#include "core/tensor/initializer.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static enum status path_in(const char *folder, const char *name, char *path,
                           struct failure *why) {
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX)
        return STATUS_OK;
    return status_errno(why, FAILURE_NAME_TOO_LONG, ENAMETOOLONG, "%s", folder);
}

static enum status manifest_write_text(const char *path, const char *text,
                                       struct failure *why) {
    struct atomic_file file;
    size_t bytes = strlen(text);
    enum status status = atomic_file_create(&file, path, bytes, why);
    if (status)
        return status;
    return atomic_file_finish(&file, atomic_file_write(&file, text, bytes, why),
                              why);
}

enum status manifest_write(struct manifest *manifest, const char *folder,
                           struct failure *why) {
    char path[PATH_MAX], parent[PATH_MAX];
    enum status status = path_in(folder, "manifest.json", path, why);
    if (!status)
        status = path_in(folder, "..", parent, why);
    /* The folder may be new, so its own name is synced first. */
    if (!status)
        status = fs_info_sync_folder(parent, why);
    if (status)
        return status;
    char *text = manifest_text(manifest);
    if (!text)
        return status_fail(
            why, FAILURE_CHECKPOINT_NOT_WRITTEN,
            "%s: cannot write it as text: memory is short, or its job is not a "
            "JSON object",
            path);
    manifest->hash = manifest_text_hash(text);
    status = manifest_write_text(path, text, why);
    free(text);
    return status;
}

/* Reads FD, the file at PATH, into a string that the caller frees. */
static enum status manifest_read_text(int fd, const char *path, char **text,
                                      struct failure *why) {
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        return status_fail(why, FAILURE_CHECKPOINT_DAMAGED, "%s is not a file",
                           path);
    if (st.st_size > MANIFEST_MAX_BYTES)
        return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                           "%s has %lld bytes, a manifest has at most %d", path,
                           (long long)st.st_size, (int)MANIFEST_MAX_BYTES);
    size_t size = (size_t)st.st_size, used = 0;
    char *bytes = malloc(size + 1);
    if (!bytes)
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "%s", path);
    ssize_t got = 1;
    while (used < size && got > 0) {
        got = read(fd, bytes + used, size - used);
        used += got > 0 ? (size_t)got : 0;
    }
    bytes[used] = '\0';
    if (got >= 0 && strlen(bytes) == size) {
        *text = bytes;
        return STATUS_OK;
    }
    free(bytes);
    if (got < 0)
        return status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                            "cannot read %s", path);
    return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                       "%s is damaged: it is not text", path);
}

/* PATH [PATH_MAX] is that of the manifest in FOLDER. */
static enum status manifest_open(const char *folder, char *path, char **text,
                                 struct failure *why) {
    enum status status = path_in(folder, "manifest.json", path, why);
    if (status)
        return status;
    /* Not blocking: a pipe of that name must not block the process. */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                            "cannot open %s", path);
    status = manifest_read_text(fd, path, text, why);
    close(fd);
    return status;
}

static enum status read_base(struct manifest *manifest, const char *folder,
                             struct failure *why) {
    const struct manifest_name *name = &manifest->base_name;
    char base[PATH_MAX], path[PATH_MAX], *text;
    checkpoint_sibling(folder, name->step, base, sizeof base);
    enum status status = manifest_open(base, path, &text, why);
    if (status)
        return status;
    status = manifest_parse_base(manifest, text, why);
    free(text);
    if (status)
        return status_context(why, "%s", path);
    if (manifest->base->hash == name->hash)
        return STATUS_OK;
    return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                       "%s is another one: its XXH3 is %016" PRIx64
                       ", not %016" PRIx64,
                       path, manifest->base->hash, name->hash);
}

enum status manifest_read_alone(struct manifest *out, const char *folder,
                                struct failure *why) {
    char path[PATH_MAX], *text = NULL;
    memset(out, 0, sizeof *out);
    enum status status = manifest_open(folder, path, &text, why);
    if (status)
        return status;
    status = manifest_parse(out, text, why);
    free(text);
    return status ? status_context(why, "%s", path) : STATUS_OK;
}

enum status manifest_read(struct manifest *out, const char *folder,
                          struct failure *why) {
    enum status status = manifest_read_alone(out, folder, why);
    if (status)
        return status;
    struct failure wrong;
    if (!out->is_delta || !read_base(out, folder, &wrong))
        return STATUS_OK;
    uint64_t step = out->base_name.step;
    manifest_clear(out);
    return status_fail(
        why,
        wrong.code == FAILURE_FILE_UNREADABLE ? FAILURE_CHECKPOINT_DAMAGED
                                              : wrong.code,
        "%s: a delta, and its base of step %" PRIu64 " cannot be read: %.1500s",
        folder, step, wrong.text);
}

enum { MANIFEST_TEXT_FORMAT = 1 };

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

/* A manifest may be damaged or from another release: every value is checked for
 * type and range, and after a failure nothing is kept. The format comes before
 * the digest, as another release may compute the digest differently. The digest
 * comes before all else, so that later errors mean a faulty writer and not a
 * faulty disk. */

static enum status manifest_parse_report_invalid(const char *key,
                                                 const char *allowed,
                                                 struct failure *why) {
    return status_fail(why, FAILURE_CHECKPOINT_DAMAGED, "\"%s\" is not %s", key,
                       allowed);
}

static enum status require_integer(const json_t *object, const char *key,
                                   uint64_t max, uint64_t *out,
                                   struct failure *why) {
    const json_t *value = json_object_get(object, key);
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 0 || (uint64_t)number > max)
        return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                           "\"%s\" is not an integer from 0 to %" PRIu64, key,
                           max);
    *out = (uint64_t)number;
    return STATUS_OK;
}

static bool is_hex(const char *text, size_t digits) {
    return strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}

/* Reads COUNT numbers of 16 hex digits each, the highest first. */
static enum status require_hex(const json_t *object, const char *key,
                               unsigned numbers, uint64_t *out,
                               struct failure *why) {
    const char *text = json_string_value(json_object_get(object, key));
    if (!text || !is_hex(text, 16 * (size_t)numbers))
        return manifest_parse_report_invalid(
            key, numbers == 1 ? "16 hex digits" : "32 hex digits", why);
    for (unsigned n = 0; n < numbers; n++) {
        char digits[17];
        snprintf(digits, sizeof digits, "%.16s", text + 16 * n);
        out[numbers - 1 - n] = strtoull(digits, NULL, 16);
    }
    return STATUS_OK;
}

/* Text of fewer than SIZE bytes. */
static enum status require_text(const json_t *value, const char *key, char *out,
                                size_t size, struct failure *why) {
    const char *text = json_string_value(value);
    if (!text || strlen(text) >= size)
        return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                           "\"%s\" is not text of less than %zu bytes", key,
                           size);
    memcpy(out, text, strlen(text) + 1);
    return STATUS_OK;
}

static enum status require_array(const json_t *root, const char *key,
                                 size_t max, json_t **out,
                                 struct failure *why) {
    *out = json_object_get(root, key);
    if (!json_is_array(*out) || json_array_size(*out) > max)
        return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                           "\"%s\" is not a list of at most %zu", key, max);
    return STATUS_OK;
}

static void *manifest_parse_allocate(size_t count_of, size_t size,
                                     struct failure *why) {
    void *memory = calloc(count_of ? count_of : 1, size);
    if (!memory)
        status_fail(why, FAILURE_TOO_LITTLE_MEMORY, "memory is short");
    return memory;
}

static enum status parse_counts(struct manifest *out, const json_t *root,
                                struct failure *why) {
    const struct {
        const char *key;
        uint64_t *number;
    } counts[] = {{"step", &out->step},
                  {"epoch", &out->epoch},
                  {"samples", &out->samples}};
    enum status status = STATUS_OK;
    for (size_t i = 0; i < 3 && !status; i++)
        status = require_integer(root, counts[i].key, INT64_MAX,
                                 counts[i].number, why);
    if (!status)
        status = require_hex(root, "run", 1, &out->run, why);
    if (!status)
        status = require_hex(root, "seed", 1, &out->seed, why);
    out->lineage = out->run;
    if (!status && json_object_get(root, "lineage"))
        status = require_hex(root, "lineage", 1, &out->lineage, why);
    if (!status && json_object_get(root, "features"))
        status = require_hex(root, "features", 1, &out->features, why);
    if (!status && json_object_get(root, "epoch_step"))
        status = require_integer(root, "epoch_step", INT64_MAX,
                                 &out->epoch_step, why);
    if (status)
        return status;
    const json_t *final = json_object_get(root, "final");
    if (!json_is_boolean(final))
        return manifest_parse_report_invalid("final", "true or false", why);
    out->final = json_is_true(final);
    return STATUS_OK;
}

/* The "rule" and the "slots" of VALUE. */
static enum status parse_rule(struct manifest_rule *out, const json_t *value,
                              struct failure *why) {
    json_t *slots, *slot;
    size_t s;
    enum status status =
        require_array(value, "slots", MANIFEST_MAX_SLOTS, &slots, why);
    if (!status)
        status = require_text(json_object_get(value, "rule"), "rule", out->name,
                              sizeof out->name, why);
    if (status)
        return status;
    out->num_slots = (uint32_t)json_array_size(slots);
    json_array_foreach(slots, s, slot) {
        status = require_text(slot, "slots", out->slot_names[s],
                              sizeof out->slot_names[s], why);
        if (status)
            return status;
    }
    return STATUS_OK;
}

static enum status parse_rules(struct manifest *out, const json_t *root,
                               struct failure *why) {
    json_t *groups = NULL;
    enum status status = STATUS_OK;
    if (json_object_get(root, "groups"))
        status =
            require_array(root, "groups", MANIFEST_MAX_GROUPS, &groups, why);
    if (status)
        return status;
    out->num_rules = 1 + (uint32_t)json_array_size(groups);
    out->rules =
        manifest_parse_allocate(out->num_rules, sizeof *out->rules, why);
    if (!out->rules)
        return STATUS_FAILED;
    status = parse_rule(out->rules, root, why);
    for (uint32_t g = 1; g < out->num_rules && !status; g++) {
        status = parse_rule(&out->rules[g], json_array_get(groups, g - 1), why);
        if (status)
            status_context(why, "groups[%" PRIu32 "]", g - 1);
    }
    return status;
}

/* The name is joined to the folder's path: it must not lead out of the
 * folder. */
bool manifest_is_file_name(const char *name) {
    return *name && !strchr(name, '/') && !strstr(name, "..") &&
           strcmp(name, ".") != 0;
}

static enum status parse_file(struct shard_info *file, const json_t *value,
                              struct failure *why) {
    enum status status = require_text(json_object_get(value, "name"), "name",
                                      file->name, sizeof file->name, why);
    if (!status && !manifest_is_file_name(file->name))
        status = status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                             "file \"%s\" is outside the checkpoint's folder",
                             file->name);
    if (!status)
        status = require_text(json_object_get(value, "holder"), "holder",
                              file->host, sizeof file->host, why);
    if (!status)
        status = require_integer(value, "size", INT64_MAX, &file->size, why);
    if (!status)
        status = require_hex(value, "xxh3", 2, file->hash, why);
    return status;
}

static enum status parse_files(const json_t *root, const char *key,
                               struct shard_info **out, uint32_t *count,
                               struct failure *why) {
    json_t *files;
    enum status status =
        require_array(root, key, MANIFEST_MAX_FILES, &files, why);
    if (status)
        return status;
    *count = (uint32_t)json_array_size(files);
    *out = manifest_parse_allocate(*count, sizeof **out, why);
    if (!*out)
        return STATUS_FAILED;
    for (uint32_t f = 0; f < *count; f++) {
        status = parse_file(&(*out)[f], json_array_get(files, f), why);
        if (status)
            return status_context(why, "%s[%" PRIu32 "]", key, f);
    }
    return STATUS_OK;
}

/* *OUT stays as it is if there is no KEY; layout_build checks its range. */
static enum status parse_optional(const json_t *value, const char *key,
                                  uint32_t *out, struct failure *why) {
    const json_t *given = json_object_get(value, key);
    json_int_t number = json_integer_value(given);
    if (!given)
        return STATUS_OK;
    if (!json_is_integer(given) || number < 0 || number > UINT32_MAX)
        return manifest_parse_report_invalid(
            key, "an integer from 0 to 2^32 - 1", why);
    *out = (uint32_t)number;
    return STATUS_OK;
}

/* The bound is a float of at least 0; the others are 0 if they are not there,
 * and layout_build checks the kind. */
static enum status parse_initializer(const json_t *value,
                                     struct initializer *out,
                                     struct failure *why) {
    const json_t *bound = json_object_get(value, "init_bound");
    const json_t *shift = json_object_get(value, "init_shift");
    double number = json_number_value(bound), to = json_number_value(shift);
    *out = (struct initializer){.shift = (float)to, .bound = (float)number};
    if (!json_is_number(bound) || !(number >= 0 && number <= FLT_MAX))
        return manifest_parse_report_invalid("init_bound",
                                             "a float, 0 or above", why);
    if (shift && (!json_is_number(shift) || !(fabs(to) <= FLT_MAX)))
        return manifest_parse_report_invalid("init_shift", "a float", why);
    return parse_optional(value, "init_kind", &out->kind, why);
}

static enum status parse_parameter(struct parameter *out, const json_t *value,
                                   struct failure *why) {
    enum status status = require_text(json_object_get(value, "name"), "name",
                                      out->name, sizeof out->name, why);
    json_t *dims;
    if (!status)
        layout_plain_name(out->name);
    if (!status)
        status = require_array(value, "dims", LAYOUT_MAX_DIMS, &dims, why);
    if (status)
        return status;
    out->num_dims = (uint32_t)json_array_size(dims);
    for (uint32_t d = 0; d < out->num_dims; d++) {
        const json_t *dim = json_array_get(dims, d);
        json_int_t number = json_integer_value(dim);
        if (!json_is_integer(dim) || number < 0 || number > UINT32_MAX)
            return manifest_parse_report_invalid(
                "dims", "a list of integers from 0 to 2^32 - 1", why);
        out->dims[d] = (uint32_t)number;
    }
    struct initializer init;
    status = parse_initializer(value, &init, why);
    out->init_bound = init.bound;
    out->init_shift = init.shift;
    out->init_kind = init.kind;
    if (!status)
        status = parse_optional(value, "kind", &out->kind, why);
    if (!status)
        status = parse_optional(value, "dtype", &out->dtype, why);
    if (!status)
        status = parse_optional(value, "group", &out->group, why);
    return status ? status : parse_optional(value, "values", &out->values, why);
}

/* For the caller an impossible layout means a damaged file. */
static enum status layout_status(enum status status, struct failure *why) {
    if (status && why)
        why->code = status == STATUS_RETRY ? FAILURE_TOO_LITTLE_MEMORY
                                           : FAILURE_CHECKPOINT_DAMAGED;
    return status ? STATUS_FAILED : STATUS_OK;
}

static enum status parse_layout(struct manifest *out, const json_t *root,
                                struct failure *why) {
    json_t *list;
    enum status status =
        require_array(root, "parameters", LAYOUT_MAX_PARAMETERS, &list, why);
    if (status)
        return status;
    uint32_t num_parameters = (uint32_t)json_array_size(list);
    struct parameter *parameters =
        manifest_parse_allocate(num_parameters, sizeof *parameters, why);
    if (!parameters)
        return STATUS_FAILED;
    for (uint32_t p = 0; p < num_parameters && !status; p++) {
        status = parse_parameter(&parameters[p], json_array_get(list, p), why);
        if (status)
            status_context(why, "parameters[%" PRIu32 "]", p);
    }
    if (!status)
        status = layout_build(&out->layout, parameters, num_parameters, why);
    free(parameters);
    return layout_status(status, why);
}

/* With groups each parameter is in one of them. */
static enum status check_rules_of_groups(const struct manifest *manifest,
                                         struct failure *why) {
    const struct layout *layout = manifest->layout;
    for (uint32_t p = 0; manifest->num_rules > 1 && p < layout->num_parameters;
         p++)
        if (layout->parameters[p].group >= manifest->num_rules)
            return manifest_parse_report_invalid(
                "group", "a number that is not above those in \"groups\"", why);
    return STATUS_OK;
}

const struct manifest_rule *manifest_rule(const struct manifest *manifest,
                                          uint32_t parameter) {
    uint32_t group = manifest->layout->parameters[parameter].group;
    return &manifest->rules[manifest->num_rules > 1 ? group : 0];
}

/* The rule of TABLE, and how many rows it has. */
static enum status parse_rows(const struct manifest *manifest,
                              const struct table *table,
                              struct manifest_table *out, const json_t *value,
                              struct failure *why) {
    uint64_t num_slots = manifest->rules->num_slots;
    enum status status = STATUS_OK;
    snprintf(out->rule, sizeof out->rule, "%s", manifest->rules->name);
    if (table->optimizer)
        status = require_text(json_object_get(value, "rule"), "rule", out->rule,
                              sizeof out->rule, why);
    if (!status && table->optimizer)
        status = require_integer(value, "slots", MANIFEST_MAX_SLOTS, &num_slots,
                                 why);
    out->num_slots = (uint32_t)num_slots;
    if (!status)
        status =
            require_integer(value, "rows", INT64_MAX, &out->count.rows, why);
    return status ? status
                  : require_integer(value, "admitted", out->count.rows,
                                    &out->count.admitted, why);
}

/* layout_add_tables checks the ranges of what is optional. */
static enum status parse_table(struct table *out, const json_t *value,
                               struct failure *why) {
    uint64_t dim = 0;
    enum status status = require_text(json_object_get(value, "name"), "name",
                                      out->name, sizeof out->name, why);
    if (!status)
        layout_plain_name(out->name);
    if (!status)
        status = require_integer(value, "dim", LAYOUT_MAX_DIM, &dim, why);
    out->dim = (uint32_t)dim;
    struct initializer init = {0};
    if (!status)
        status = parse_initializer(value, &init, why);
    out->init_bound = init.bound;
    out->init_shift = init.shift;
    out->init_kind = init.kind;
    if (!status)
        status = parse_optional(value, "optimizer", &out->optimizer, why);
    if (!status)
        status = parse_optional(value, "admit", &out->admit, why);
    if (!status && json_object_get(value, "expire"))
        status = require_integer(value, "expire", INT64_MAX, &out->expire, why);
    if (!status && json_object_get(value, "max_rows"))
        status =
            require_integer(value, "max_rows", INT64_MAX, &out->max_rows, why);
    return status;
}

static enum status parse_tables(struct manifest *out, const json_t *root,
                                struct failure *why) {
    json_t *list;
    uint64_t num_partitions = 0;
    enum status status =
        require_array(root, "tables", LAYOUT_MAX_TABLES, &list, why);
    if (!status)
        status = require_integer(root, "partitions", LAYOUT_MAX_PARTITIONS,
                                 &num_partitions, why);
    if (status)
        return status;
    uint32_t count = (uint32_t)json_array_size(list);
    struct table *tables = manifest_parse_allocate(count, sizeof *tables, why);
    out->tables = manifest_parse_allocate(count, sizeof *out->tables, why);
    if (!tables || !out->tables)
        status = STATUS_FAILED;
    for (uint32_t t = 0; t < count && !status; t++) {
        const json_t *value = json_array_get(list, t);
        status = parse_table(&tables[t], value, why);
        if (!status)
            status = parse_rows(out, &tables[t], &out->tables[t], value, why);
        if (status)
            status_context(why, "tables[%" PRIu32 "]", t);
    }
    if (!status)
        status = layout_status(layout_add_tables(out->layout, tables, count,
                                                 (uint32_t)num_partitions, why),
                               why);
    free(tables);
    return status;
}

static enum status parse_block_file(struct manifest *out, const json_t *root,
                                    struct failure *why) {
    uint64_t elements = 0;
    json_t *list;
    enum status status =
        require_integer(root, "block_elements", INT32_MAX, &elements, why);
    if (!status && elements != out->layout->block_elements)
        status = status_fail(why, FAILURE_CHECKPOINT_FOREIGN,
                             "its blocks have %" PRIu64 " elements, here they "
                             "have %" PRIu32 ": another release wrote it",
                             elements, out->layout->block_elements);
    if (!status)
        status = require_array(root, "block_file",
                               LAYOUT_MAX_BLOCKS + LAYOUT_MAX_PARTITIONS, &list,
                               why);
    if (status)
        return status;
    uint32_t units = layout_units(out->layout);
    if (json_array_size(list) != units)
        return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                           "\"block_file\" has %zu entries, parameters and "
                           "partitions make %" PRIu32 " blocks",
                           json_array_size(list), units);
    out->block_file =
        manifest_parse_allocate(units, sizeof *out->block_file, why);
    if (!out->block_file)
        return STATUS_FAILED;
    for (uint32_t b = 0; b < units; b++) {
        const json_t *file = json_array_get(list, b);
        json_int_t number = json_integer_value(file);
        if (!json_is_integer(file) || number < 0 || number >= out->num_files)
            return manifest_parse_report_invalid(
                "block_file", "a list of indexes of \"files\"", why);
        out->block_file[b] = (uint32_t)number;
    }
    return STATUS_OK;
}

static enum status parse_job(struct manifest *out, const json_t *root,
                             struct failure *why) {
    const json_t *job = json_object_get(root, "job");
    if (json_is_null(job))
        return STATUS_OK;
    if (!json_is_object(job))
        return manifest_parse_report_invalid("job", "an object", why);
    out->job = json_dumps(job, JSON_COMPACT);
    return out->job
               ? STATUS_OK
               : status_fail(why, FAILURE_TOO_LITTLE_MEMORY, "memory is short");
}

static enum status parse_scaler(struct manifest *out, const json_t *root,
                                struct failure *why) {
    const json_t *scaler = json_object_get(root, "loss_scaler");
    const json_t *scale = json_object_get(scaler, "scale");
    uint64_t hysteresis = 0;
    if (!scaler)
        return STATUS_OK;
    out->scaler.scale = json_number_value(scale);
    enum status status = STATUS_OK;
    if (!json_is_number(scale) || !(out->scaler.scale >= 0))
        status = manifest_parse_report_invalid(
            "loss_scaler", "a scale, 0 or above, and counts", why);
    if (!status)
        status =
            require_integer(scaler, "good", INT64_MAX, &out->scaler.good, why);
    if (!status)
        status =
            require_integer(scaler, "hysteresis", UINT32_MAX, &hysteresis, why);
    if (!status)
        status = require_integer(scaler, "skipped", out->step,
                                 &out->scaler.skipped, why);
    out->scaler.hysteresis = (uint32_t)hysteresis;
    return status;
}

static enum status parse_base(struct manifest *out, const json_t *root,
                              struct failure *why) {
    const json_t *base = json_object_get(root, "base");
    struct manifest_name *name = &out->base_name;
    out->is_delta = base;
    if (!base)
        return STATUS_OK;
    enum status status =
        require_integer(base, "step", INT64_MAX, &name->step, why);
    if (!status)
        status = require_hex(base, "hash", 1, &name->hash, why);
    if (!status && name->step >= out->step)
        status = status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                             "\"step\" is not before that of the delta");
    return status ? status_context(why, "base") : STATUS_OK;
}

/* Removes "xxh3" from ROOT, compares it with the digest of the rest and sets
 * *HASH. */
static enum status check_digest(json_t *root, uint64_t *hash,
                                struct failure *why) {
    char digits[17];
    const char *digest = json_string_value(json_object_get(root, "xxh3"));
    if (!digest || !is_hex(digest, 16))
        return manifest_parse_report_invalid("xxh3", "16 hex digits", why);
    char kept[17];
    memcpy(kept, digest, sizeof kept);
    json_object_del(root, "xxh3");
    if (!manifest_text_digest(root, digits))
        return status_fail(why, FAILURE_TOO_LITTLE_MEMORY, "memory is short");
    if (strcmp(kept, digits) != 0)
        return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                           "damaged: its XXH3 is %s, it says %s", digits, kept);
    *hash = strtoull(digits, NULL, 16);
    return STATUS_OK;
}

static enum status parse_root(struct manifest *out, json_t *root,
                              struct failure *why) {
    uint64_t format = 0;
    enum status status =
        require_integer(root, "format", INT32_MAX, &format, why);
    if (!status && format != MANIFEST_TEXT_FORMAT)
        status = status_fail(why, FAILURE_CHECKPOINT_FOREIGN,
                             "format %" PRIu64 ", this release reads %d: "
                             "another release wrote it",
                             format, MANIFEST_TEXT_FORMAT);
    if (!status)
        status = check_digest(root, &out->hash, why);
    if (!status)
        status = parse_counts(out, root, why);
    if (!status)
        status = parse_base(out, root, why);
    if (!status)
        status = parse_rules(out, root, why);
    if (!status)
        status = parse_files(root, "files", &out->files, &out->num_files, why);
    if (!status && json_object_get(root, "kept"))
        status = parse_files(root, "kept", &out->kept, &out->num_kept, why);
    if (!status)
        status = parse_layout(out, root, why);
    if (!status)
        status = check_rules_of_groups(out, why);
    if (!status && json_object_get(root, "tables"))
        status = parse_tables(out, root, why);
    if (!status)
        status = parse_block_file(out, root, why);
    if (!status)
        status = parse_job(out, root, why);
    return status ? status : parse_scaler(out, root, why);
}

void manifest_clear(struct manifest *manifest) {
    if (manifest->base)
        manifest_clear(manifest->base);
    free(manifest->base);
    free(manifest->job);
    free(manifest->rules);
    layout_free(&manifest->layout);
    free(manifest->files);
    free(manifest->kept);
    free(manifest->block_file);
    free(manifest->tables);
    memset(manifest, 0, sizeof *manifest);
}

enum status manifest_parse(struct manifest *out, const char *text,
                           struct failure *why) {
    json_error_t error;
    memset(out, 0, sizeof *out);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(root)) {
        json_decref(root);
        return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                           "damaged: not a JSON object%s%s",
                           *error.text ? ": " : "", error.text);
    }
    enum status status = parse_root(out, root, why);
    json_decref(root);
    if (status)
        manifest_clear(out);
    return status;
}

/* A limit of rows and the number of an optimizer may differ: a run may resume
 * with others. */
static bool are_same_tables(const struct manifest *left,
                            const struct manifest *right) {
    const struct layout *l = left->layout, *r = right->layout;
    bool same = l->num_tables == r->num_tables &&
                l->num_partitions == r->num_partitions;
    for (uint32_t t = 0; same && t < l->num_tables; t++) {
        struct table table = l->tables[t];
        table.max_rows = r->tables[t].max_rows;
        table.optimizer = r->tables[t].optimizer;
        same = !memcmp(&table, &r->tables[t], sizeof table) &&
               !strcmp(left->tables[t].rule, right->tables[t].rule) &&
               left->tables[t].num_slots == right->tables[t].num_slots;
    }
    return same;
}

enum status manifest_parse_base(struct manifest *manifest, const char *text,
                                struct failure *why) {
    struct manifest *base =
        manifest_parse_allocate(1, sizeof *manifest->base, why);
    if (!base)
        return STATUS_FAILED;
    enum status status = manifest_parse(base, text, why);
    if (!status && base->step != manifest->base_name.step)
        status = status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                             "it is of step %" PRIu64, base->step);
    if (!status && base->is_delta)
        status = status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                             "it is itself a delta");
    if (!status && !are_same_tables(manifest, base))
        status =
            status_fail(why, FAILURE_CHECKPOINT_DAMAGED, "it has other tables");
    if (!status) {
        manifest->base = base;
        return STATUS_OK;
    }
    manifest_clear(base);
    free(base);
    return status;
}
