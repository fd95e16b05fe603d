/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the directory as every reader does. A step with a manifest is a
 * checkpoint; if the manifest cannot be read, the checkpoint is listed as
 * damaged; a step folder without one is listed as incomplete. Nothing is
 * changed. */
#include "commands/ckpt_command.h"

#include "commands/ckpt_diff.h"
#include "commands/verbs.h"
#include "core/base/byte_size.h"
#include "core/base/time.h"
#include "core/store/checkpoint.h"
#include "core/store/checkpoint_reader.h"
#include "core/store/manifest.h"
#include "core/tensor/row_keys.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char incomplete_text[] =
    "incomplete: it has no manifest.json; a run is writing it, or ended before "
    "it was complete";

/* The steps without a manifest; only the requested step if one is given. */
static enum status list_incomplete(const struct ckpt_command_options *options,
                                   json_t **out, struct failure *why) {
    uint64_t *steps;
    size_t count;
    char folder[PATH_MAX];
    enum status status =
        checkpoint_incomplete(options->dir, &steps, &count, why);
    *out = json_array();
    for (size_t i = 0; !status && i < count; i++) {
        if (options->has_step && steps[i] != options->step)
            continue;
        checkpoint_folder(options->dir, steps[i], folder, sizeof folder);
        json_array_append_new(*out,
                              json_pack("{s:I, s:s}", "step",
                                        (json_int_t)steps[i], "path", folder));
    }
    free(steps);
    return status;
}

/* Prints for each of ROWS: BEFORE, the step in WIDTH columns, BETWEEN, its
 * text. */
static void print_incomplete(const json_t *rows, const char *before, int width,
                             const char *between, FILE *to) {
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
        fprintf(to, "%s%*" JSON_INTEGER_FORMAT "%s%s\n", before, width,
                json_integer_value(json_object_get(row, "step")), between,
                incomplete_text);
}

static enum status fail_no_step(const struct ckpt_command_options *options,
                                struct failure *why) {
    json_t *incomplete;
    bool exists = !list_incomplete(options, &incomplete, why) &&
                  json_array_size(incomplete);
    json_decref(incomplete);
    if (exists)
        return status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                           "%s: step %" PRIu64 " is %s", options->dir,
                           options->step, incomplete_text);
    return status_fail(why, FAILURE_CHECKPOINT_MISSING,
                       "%s has no checkpoint of step %" PRIu64
                       "; `capstan ckpt ls` lists those it has",
                       options->dir, options->step);
}

/* The requested steps of the directory, ascending; the caller frees *STEPS. */
static enum status wanted_steps(const struct ckpt_command_options *options,
                                uint64_t **steps, size_t *count,
                                struct failure *why) {
    struct stat about;
    *steps = NULL;
    if (stat(options->dir, &about))
        return status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                            "cannot open %s", options->dir);
    enum status status = checkpoint_list(options->dir, steps, count, why);
    if (status || !options->has_step)
        return status;
    for (size_t i = 0; i < *count; i++)
        if ((*steps)[i] == options->step) {
            (*steps)[0] = options->step;
            *count = 1;
            return STATUS_OK;
        }
    free(*steps);
    *steps = NULL;
    return fail_no_step(options, why);
}

/* Both lists of the directory. On failure there is nothing to free. */
static enum status list_steps(const struct ckpt_command_options *options,
                              uint64_t **steps, size_t *count,
                              json_t **incomplete, struct failure *why) {
    enum status status = list_incomplete(options, incomplete, why);
    if (!status)
        status = wanted_steps(options, steps, count, why);
    if (status)
        json_decref(*incomplete);
    return status;
}

/* Explains why DIR holds no step: it is probably another folder than intended,
 * often the folder of a step. */
static void print_empty(const char *dir, const json_t *incomplete, char *text,
                        size_t size) {
    size_t length = strlen(dir);
    while (length > 1 && dir[length - 1] == '/')
        length--;
    size_t name = length;
    while (name && dir[name - 1] != '/')
        name--;
    if (json_array_size(incomplete))
        snprintf(text, size, "%s has no complete checkpoint", dir);
    else if (strncmp(dir + name, "step-", 5) != 0)
        snprintf(text, size,
                 "%s has no checkpoint: is it the job's checkpoint.dir?", dir);
    else
        snprintf(text, size,
                 "%s has no checkpoint, it is one: give the folder above it, "
                 "%.*s",
                 dir, name > 1 ? (int)name - 1 : 1, name ? dir : ".");
}

static enum status fail_empty(const char *dir, const json_t *incomplete,
                              struct failure *why) {
    char text[2 * PATH_MAX];
    print_empty(dir, incomplete, text, sizeof text);
    return status_fail(why, FAILURE_CHECKPOINT_MISSING, "%s", text);
}

static void ckpt_command_print_json(json_t *object, FILE *to) {
    json_dumpf(object, to, JSON_COMPACT);
    fputc('\n', to);
    json_decref(object);
}

static uint64_t total_size(const struct manifest *manifest) {
    uint64_t size = 0;
    for (uint32_t f = 0; f < manifest->num_files; f++)
        size += manifest->files[f].size;
    return size;
}

/* When the manifest in FOLDER was written, in seconds of the calendar. */
static double written_at(const char *folder) {
    char path[PATH_MAX];
    struct stat about;
    if (snprintf(path, sizeof path, "%s/manifest.json", folder) >= PATH_MAX ||
        stat(path, &about))
        return time_calendar();
    return (double)about.st_mtim.tv_sec + (double)about.st_mtim.tv_nsec * 1e-9;
}

/* Seconds since then. */
static double age_of(const char *folder) {
    double age = time_calendar() - written_at(folder);
    return age > 0 ? age : 0;
}

struct unit {
    double size;
    const char *name;
};

/* "12 MB", "4.1 min": NUMBER in the largest unit of UNITS that it reaches. */
static void scale(double number, const struct unit *units, char *text,
                  size_t size) {
    while (units[1].name && number >= units[1].size)
        units++;
    double value = number / units->size;
    snprintf(text, size, "%.*f %s", units->size > 1 && value < 10 ? 1 : 0,
             value, units->name);
}

/* Bytes of table T's rows, weights and state. */
static uint64_t table_bytes(const struct manifest *manifest, uint32_t t) {
    return manifest->tables[t].count.rows *
           row_keys_row_bytes(manifest->layout->tables[t].dim,
                              manifest->tables[t].num_slots);
}

static void print_table_rows(const struct manifest *manifest, FILE *to) {
    for (uint32_t t = 0; t < manifest->layout->num_tables; t++) {
        const struct table *table = &manifest->layout->tables[t];
        const struct shard_rows_count *count = &manifest->tables[t].count;
        char size_text[32];
        byte_size_text(table_bytes(manifest, t), size_text, sizeof size_text);
        fprintf(to, "%12s table %s: %" PRIu64 " row%s of %" PRIu32, "",
                table->name, count->rows, log_plural(count->rows), table->dim);
        if (table->admit)
            fprintf(to, ", %" PRIu64 " of them admitted", count->admitted);
        fprintf(to, ", %s\n", size_text);
    }
}

static json_t *rows_of_tables(const struct manifest *manifest) {
    json_t *all = json_array();
    for (uint32_t t = 0; t < manifest->layout->num_tables; t++)
        json_array_append_new(
            all,
            json_pack("{s:s, s:I, s:I, s:I, s:I}", "name",
                      manifest->layout->tables[t].name, "dim",
                      (json_int_t)manifest->layout->tables[t].dim, "rows",
                      (json_int_t)manifest->tables[t].count.rows, "admitted",
                      (json_int_t)manifest->tables[t].count.admitted, "bytes",
                      (json_int_t)table_bytes(manifest, t)));
    return all;
}

static void print_row(const struct manifest *manifest, double age, FILE *to) {
    static const struct unit times[] = {
        {1, "s"}, {60, "min"}, {3600, "h"}, {86400, "d"}, {0, NULL}};
    char size_text[32], age_text[32];
    byte_size_text(total_size(manifest), size_text, sizeof size_text);
    scale(age, times, age_text, sizeof age_text);
    fprintf(to,
            "%12" PRIu64 " %7" PRIu64 " %14" PRIu64 " %9s %6" PRIu32
            " %6s %9s\n",
            manifest->step, manifest->epoch, manifest->samples, size_text,
            manifest->num_files, manifest->final ? "final" : "-", age_text);
    if (manifest->is_delta)
        fprintf(to, "%12s delta of step %" PRIu64 "\n", "",
                manifest->base_name.step);
    print_table_rows(manifest, to);
}

/* The file of each ps, by its number; the host is null if all share it. */
static json_t *shards_of(const struct manifest *manifest) {
    json_t *all = json_array();
    for (uint32_t f = 0; f < manifest->num_files; f++) {
        const struct shard_info *file = &manifest->files[f];
        json_array_append_new(all,
                              json_pack("{s:s, s:I, s:s?}", "name", file->name,
                                        "bytes", (json_int_t)file->size, "host",
                                        *file->host ? file->host : NULL));
    }
    return all;
}

static json_t *row_json(const struct manifest *manifest, const char *folder) {
    json_t *base = manifest->is_delta
                       ? json_integer((json_int_t)manifest->base_name.step)
                       : json_null();
    char run[17];
    snprintf(run, sizeof run, "%016" PRIx64, manifest->run);
    return json_pack("{s:s, s:f, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:b, s:o, "
                     "s:f, s:s, s:o}",
                     "run", run, "time", written_at(folder), "epoch_step",
                     (json_int_t)manifest->epoch_step, "shards",
                     shards_of(manifest), "step", (json_int_t)manifest->step,
                     "epoch", (json_int_t)manifest->epoch, "samples",
                     (json_int_t)manifest->samples, "size",
                     (json_int_t)total_size(manifest), "files",
                     (json_int_t)manifest->num_files, "final", manifest->final,
                     "base", base, "age", age_of(folder), "path", folder,
                     "tables", rows_of_tables(manifest));
}

/* Adds the row of STEP: prints it as text, or collects it for JSON. */
static void list_step(const struct ckpt_command_options *options, uint64_t step,
                      json_t *complete, json_t *damaged, FILE *to) {
    char folder[PATH_MAX];
    struct manifest manifest;
    struct failure wrong;
    checkpoint_folder(options->dir, step, folder, sizeof folder);
    if (manifest_read(&manifest, folder, &wrong)) {
        json_array_append_new(damaged,
                              json_pack("{s:I, s:s}", "step", (json_int_t)step,
                                        "error", wrong.text));
        return;
    }
    if (options->json)
        json_array_append_new(complete, row_json(&manifest, folder));
    else
        print_row(&manifest, age_of(folder), to);
    manifest_clear(&manifest);
}

enum status ckpt_command_ls(const struct ckpt_command_options *options,
                            FILE *to, struct failure *why) {
    uint64_t *steps;
    size_t count, i;
    json_t *incomplete;
    enum status status = list_steps(options, &steps, &count, &incomplete, why);
    if (status)
        return status;
    json_t *complete = json_array(), *damaged = json_array(), *one;
    if (!options->json && count)
        fprintf(to, "%12s %7s %14s %9s %6s %6s %9s\n", "step", "epochs",
                "samples", "size", "files", "final", "age");
    for (i = 0; i < count; i++)
        list_step(options, steps[i], complete, damaged, to);
    free(steps);
    if (options->json) {
        ckpt_command_print_json(json_pack("{s:s, s:o, s:o, s:o}", "dir",
                                          options->dir, "checkpoints", complete,
                                          "damaged", damaged, "incomplete",
                                          incomplete),
                                to);
        return STATUS_OK;
    }
    if (!count) {
        char text[2 * PATH_MAX];
        print_empty(options->dir, incomplete, text, sizeof text);
        fprintf(to, "%s\n", text);
    }
    json_array_foreach(damaged, i, one)
        fprintf(to, "%12" JSON_INTEGER_FORMAT " damaged: %s\n",
                json_integer_value(json_object_get(one, "step")),
                json_string_value(json_object_get(one, "error")));
    print_incomplete(incomplete, "", 12, " ", to);
    json_decref(complete);
    json_decref(damaged);
    json_decref(incomplete);
    return STATUS_OK;
}

/* Number of files of STEP on other hosts, which cannot be checked here. */
static uint32_t files_elsewhere(const char *dir, uint64_t step) {
    char folder[PATH_MAX];
    struct manifest manifest;
    checkpoint_folder(dir, step, folder, sizeof folder);
    if (manifest_read(&manifest, folder, NULL))
        return 0;
    uint32_t count = checkpoint_reader_count_remote(folder, &manifest, NULL);
    manifest_clear(&manifest);
    return count;
}

/* Verifies STEP, after those before it, and prints the result; ROWS collects it
 * for JSON. */
static enum status verify_step(const struct ckpt_command_options *options,
                               uint64_t step, struct manifest_name *base,
                               json_t *rows, FILE *to, struct failure *wrong) {
    enum status status =
        checkpoint_reader_verify_next(options->dir, step, base, wrong);
    uint32_t elsewhere = status ? 0 : files_elsewhere(options->dir, step);
    json_t *row = json_pack("{s:I, s:b, s:I}", "step", (json_int_t)step, "ok",
                            !status, "elsewhere", (json_int_t)elsewhere);
    if (status)
        json_object_set_new(row, "error", json_string(wrong->text));
    json_array_append_new(rows, row);
    if (options->json)
        return status;
    fprintf(to, "step %" PRIu64 ": %s", step, status ? "FAILED: " : "ok");
    if (status)
        fputs(wrong->text, to);
    if (elsewhere)
        fprintf(to, "; %" PRIu32 " file%s on other hosts, not checked",
                elsewhere, log_plural(elsewhere));
    fputc('\n', to);
    return status;
}

enum status ckpt_command_verify(const struct ckpt_command_options *options,
                                FILE *to, struct failure *why) {
    uint64_t *steps;
    size_t count, failed = 0;
    struct failure wrong;
    struct manifest_name base = {0};
    json_t *incomplete;
    enum status status = list_steps(options, &steps, &count, &incomplete, why);
    if (status)
        return status;
    json_t *rows = json_array();
    for (size_t i = 0; i < count; i++)
        failed += verify_step(options, steps[i], &base, rows, to, &wrong) !=
                  STATUS_OK;
    free(steps);
    if (options->json)
        ckpt_command_print_json(json_pack("{s:s, s:b, s:O, s:O}", "dir",
                                          options->dir, "ok", count && !failed,
                                          "checkpoints", rows, "incomplete",
                                          incomplete),
                                to);
    else
        print_incomplete(incomplete, "step ", 0, ": ", to);
    if (!count)
        status = fail_empty(options->dir, incomplete, why);
    else if (failed) /* each was printed with its reason */
        status = status_fail(why, FAILURE_CHECKPOINT_DAMAGED,
                             "%zu of %zu checkpoint%s in %s failed", failed,
                             count, log_plural(count), options->dir);
    json_decref(rows);
    json_decref(incomplete);
    return status;
}

/* The tensors of an export: each parameter, followed by its state. */
struct tensors {
    const struct layout *layout;
    struct checkpoint_reader *reader;
    uint32_t count;
    uint64_t elements;
    struct parameter *list; /* [count] */
    struct {
        uint32_t parameter;
        uint16_t slot; /* 0: the weights */
    } * of;            /* [count] */
};

static enum status read_tensor(void *context, uint32_t index, float *floats,
                               struct failure *why) {
    const struct tensors *tensors = context;
    return checkpoint_reader_parameter(tensors->reader,
                                       tensors->of[index].parameter,
                                       tensors->of[index].slot, floats, why);
}

/* Adds SLOT of parameter P, whose state has RULE's names. */
static enum status list_tensor(struct tensors *tensors, uint32_t p,
                               const struct manifest_rule *rule, uint16_t slot,
                               struct failure *why) {
    struct parameter *tensor = &tensors->list[tensors->count];
    *tensor = tensors->layout->parameters[p];
    tensors->of[tensors->count].parameter = p;
    tensors->of[tensors->count++].slot = slot;
    tensors->elements += tensor->elements;
    size_t used = strlen(tensor->name), left = sizeof tensor->name - used;
    if (slot && snprintf(tensor->name + used, left, ".%s",
                         rule->slot_names[slot - 1]) >= (int)left)
        return status_fail(
            why, FAILURE_NAME_TOO_LONG, "the name %s.%s is too long",
            tensors->layout->parameters[p].name, rule->slot_names[slot - 1]);
    return STATUS_OK;
}

static enum status list_tensors(struct tensors *tensors,
                                const struct manifest *manifest, bool state,
                                struct failure *why) {
    const struct layout *layout = tensors->layout = manifest->layout;
    enum status status = STATUS_OK;
    size_t most = layout->num_parameters;
    for (uint32_t p = 0; state && p < layout->num_parameters; p++)
        most += manifest_rule(manifest, p)->num_slots;
    tensors->list = calloc(most + 1, sizeof *tensors->list);
    tensors->of = calloc(most + 1, sizeof *tensors->of);
    if (!tensors->list || !tensors->of)
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "tensors");
    for (uint32_t p = 0; p < layout->num_parameters; p++) {
        const struct manifest_rule *rule = manifest_rule(manifest, p);
        uint32_t slots = state ? rule->num_slots : 0;
        for (uint32_t s = 0; s <= slots && !status; s++)
            status = list_tensor(tensors, p, rule, (uint16_t)s, why);
    }
    return status;
}

static enum status write_tensors(const struct ckpt_command_options *options,
                                 enum tensor_format format,
                                 const struct manifest *manifest,
                                 struct tensors *tensors, struct failure *why) {
    char folder[PATH_MAX];
    checkpoint_folder(options->dir, manifest->step, folder, sizeof folder);
    enum status status = list_tensors(tensors, manifest, options->state, why);
    if (!status)
        status =
            checkpoint_reader_open(&tensors->reader, folder, manifest, why);
    struct tensor_source source = {tensors->list, tensors->count, read_tensor,
                                   tensors};
    if (!status)
        status = tensor_file_write(options->out, format, &source, why);
    checkpoint_reader_close(&tensors->reader);
    return status;
}

enum status ckpt_command_find(const struct ckpt_command_options *options,
                              struct manifest *manifest, const struct log *log,
                              struct failure *why) {
    char folder[PATH_MAX];
    uint64_t *steps;
    size_t count;
    bool found;
    memset(manifest, 0, sizeof *manifest);
    enum status status = wanted_steps(options, &steps, &count, why);
    free(steps);
    if (status)
        return status;
    if (options->has_step) {
        checkpoint_folder(options->dir, options->step, folder, sizeof folder);
        return manifest_read(manifest, folder, why);
    }
    status = checkpoint_reader_newest(options->dir, CHECKPOINT_READER_ANY,
                                      manifest, &found, log, why);
    if (!status && !found)
        status = fail_empty(options->dir, NULL, why);
    return status;
}

static void print_export(const struct ckpt_command_options *options,
                         const struct manifest *manifest,
                         const struct tensors *tensors, FILE *to) {
    uint64_t bytes = tensors->elements * sizeof(float);
    if (options->json)
        ckpt_command_print_json(json_pack("{s:I, s:s, s:I, s:I}", "step",
                                          (json_int_t)manifest->step, "path",
                                          options->out, "tensors",
                                          (json_int_t)tensors->count, "bytes",
                                          (json_int_t)bytes),
                                to);
    else
        fprintf(to,
                "step %" PRIu64 ": %" PRIu32 " tensor%s, %" PRIu64
                " bytes of numbers, in %s%s\n",
                manifest->step, tensors->count, log_plural(tensors->count),
                bytes, options->out,
                manifest->layout->num_tables
                    ? "; --table NAME exports the rows of a table"
                    : "");
}

static enum status find_table(const struct manifest *manifest, const char *name,
                              uint32_t *out, struct failure *why) {
    const struct layout *layout = manifest->layout;
    char names[256] = "none";
    for (uint32_t t = 0, used = 0; t < layout->num_tables; t++) {
        if (strcmp(layout->tables[t].name, name) == 0) {
            *out = t;
            return STATUS_OK;
        }
        if (used < sizeof names)
            used +=
                (uint32_t)snprintf(names + used, sizeof names - used, "%s%s",
                                   t ? ", " : "", layout->tables[t].name);
    }
    return status_fail(why, FAILURE_CHECKPOINT_MISSING,
                       "the checkpoint of step %" PRIu64
                       " has no table \"%s\"; its tables: %s",
                       manifest->step, name, names);
}

static void print_table_export(const struct ckpt_command_options *options,
                               const struct manifest *manifest, uint32_t t,
                               FILE *to) {
    uint64_t rows = manifest->tables[t].count.admitted;
    uint64_t size = rows * (sizeof(uint64_t) +
                            manifest->layout->tables[t].dim * sizeof(float));
    if (options->json)
        ckpt_command_print_json(json_pack("{s:I, s:s, s:s, s:I, s:I}", "step",
                                          (json_int_t)manifest->step, "path",
                                          options->out, "table", options->table,
                                          "rows", (json_int_t)rows, "bytes",
                                          (json_int_t)size),
                                to);
    else
        fprintf(to,
                "step %" PRIu64 ": %" PRIu64 " row%s of table %s, %" PRIu64
                " bytes of numbers, in %s\n",
                manifest->step, rows, log_plural(rows), options->table, size,
                options->out);
}

static enum status export_table(const struct ckpt_command_options *options,
                                FILE *to, const struct log *log,
                                struct failure *why) {
    struct manifest manifest = {0};
    struct table_source source = {.manifest = &manifest};
    enum table_format format = options->table_format;
    char folder[PATH_MAX];
    enum status status = STATUS_OK;
    if (options->state)
        status = status_fail(why, FAILURE_FLAG_CONFLICT,
                             "--state does not go with --table");
    if (!status && !options->has_format)
        status = table_format_of(options->out, &format, why);
    if (!status)
        status = ckpt_command_find(options, &manifest, log, why);
    if (!status)
        status = find_table(&manifest, options->table, &source.table, why);
    checkpoint_folder(options->dir, manifest.step, folder, sizeof folder);
    if (!status)
        status = checkpoint_reader_open(&source.reader, folder, &manifest, why);
    if (!status)
        status = table_file_write(options->out, format, &source, why);
    if (!status)
        print_table_export(options, &manifest, source.table, to);
    checkpoint_reader_close(&source.reader);
    manifest_clear(&manifest);
    return status;
}

enum status ckpt_command_export(const struct ckpt_command_options *options,
                                FILE *to, const struct log *log,
                                struct failure *why) {
    struct manifest manifest = {0};
    struct tensors tensors = {0};
    enum tensor_format format = options->format;
    enum status status = STATUS_OK;
    if (options->table)
        return export_table(options, to, log, why);
    if (!options->has_format)
        status = tensor_format_of(options->out, &format, why);
    if (!status)
        status = ckpt_command_find(options, &manifest, log, why);
    if (!status)
        status = write_tensors(options, format, &manifest, &tensors, why);
    if (!status)
        print_export(options, &manifest, &tensors, to);
    free(tensors.list);
    free(tensors.of);
    manifest_clear(&manifest);
    return status;
}

enum status ckpt_command(const struct options *options, struct failure *why) {
    struct log log;
    struct ckpt_command_options ckpt = {.dir = options->dir,
                                        .json = options->json,
                                        .has_step = options->given.step,
                                        .step = options->step,
                                        .out = options->out,
                                        .table = options->table,
                                        .state = options->state};
    enum status status = STATUS_OK;
    log_open(&log, "ckpt", -1);
    if (options->format) {
        char ending[64];
        snprintf(ending, sizeof ending, ".%s", options->format);
        ckpt.has_format = true;
        status = options->table
                     ? table_format_of(ending, &ckpt.table_format, why)
                     : tensor_format_of(ending, &ckpt.format, why);
    }
    if (status)
        ;
    else if (!strcmp(options->action, "ls"))
        status = ckpt_command_ls(&ckpt, stdout, why);
    else if (!strcmp(options->action, "verify"))
        status = ckpt_command_verify(&ckpt, stdout, why);
    else if (!strcmp(options->action, "export") && options->out)
        status = ckpt_command_export(&ckpt, stdout, &log, why);
    else if (!strcmp(options->action, "diff") && options->out)
        status = ckpt_diff(
            &(struct ckpt_diff_options){.a = options->dir,
                                        .b = options->out,
                                        .json = options->json,
                                        .has_step = options->given.step,
                                        .step = options->step},
            stdout, why);
    else
        status = status_fail(why, FAILURE_USAGE,
                             "capstan ckpt takes ls DIR, verify DIR, export "
                             "DIR OUT, or diff A B");
    return status;
}
