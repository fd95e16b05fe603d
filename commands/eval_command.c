/* SPDX-License-Identifier: Apache-2.0 */
/* A job file, or the job in a checkpoint, gives model and data. The format of a
 * prediction's samples is put into the job by overrides before those of --set.
 */
#include "commands/verbs.h"

#include "commands/ckpt_command.h"
#include "core/base/status.h"
#include "core/store/atomic_file.h"
#include "core/store/checkpoint.h"
#include "core/store/npz.h"
#include "worker/data/example_format.h"
#include "worker/data/idx_file.h"
#include "worker/data/record_reader.h"
#include "worker/models/model.h"
#include "worker/train/checkpoint_model.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A file of predictions, a row for each sample: npz or csv. Of a classifier's
 * logits (softmax) it has the largest one's class and all probabilities, of
 * other logits the probabilities (sigmoid), of a regression the numbers. An
 * archive has its arrays one after the other, so that classes are kept until
 * all probabilities are written. */

struct prediction_file {
    struct atomic_file file;
    struct npz *npz; /* NULL: csv, or nothing was taken yet */
    bool is_npz, is_open;
    bool classifies;       /* the predictions have classes */
    uint64_t count, taken; /* samples */
    int64_t *classes;      /* [count], npz */
};

static enum status prediction_no_memory(const struct prediction_file *file,
                                        struct failure *why) {
    return status_fail(why, FAILURE_NO_MEMORY,
                       "%s: no memory for %" PRIu64 " predictions",
                       file->file.path, file->count);
}

static bool ends_in(const char *path, const char *ending) {
    const char *found = strrchr(path, '.');
    return found && !strcmp(found, ending);
}

/* STATUS_CONFIG for any ending of PATH but .npz and .csv. */
static enum status prediction_file_check(const char *path,
                                         struct failure *why) {
    if (ends_in(path, ".npz") || ends_in(path, ".csv"))
        return STATUS_OK;
    return status_fail(why, FAILURE_USAGE,
                       "%s: the name of a file of predictions ends in .npz or "
                       ".csv",
                       path);
}

/* Frees *FILE (may be NULL) and clears it; removes a file that was not
 * committed. */
static void prediction_file_close(struct prediction_file **where) {
    struct prediction_file *file = *where;
    if (!file)
        return;
    npz_close(&file->npz);
    if (file->is_open)
        atomic_file_abort(&file->file);
    free(file->classes);
    free(file);
    *where = NULL;
}

/* Creates PATH, which has one of them, for COUNT samples under a temporary
 * name. */
static enum status prediction_file_open(struct prediction_file **out,
                                        const char *path, uint64_t count,
                                        struct failure *why) {
    bool is_npz = ends_in(path, ".npz");
    *out = NULL;
    struct prediction_file *file = calloc(1, sizeof *file);
    if (!file)
        return status_fail(why, FAILURE_NO_MEMORY, "%s: no memory", path);
    file->is_npz = is_npz;
    file->count = count;
    enum status status =
        atomic_file_create(&file->file, path, count * sizeof(float), why);
    file->is_open = !status;
    if (!status && is_npz) {
        file->classes = malloc((count + 1) * sizeof *file->classes);
        status = file->classes ? npz_open(&file->npz, &file->file, why)
                               : prediction_no_memory(file, why);
    }
    if (status)
        prediction_file_close(&file);
    *out = file;
    return status;
}

/* Softmax of Z [width], in place; returns the place of the largest, the first
 * of equals. */
static uint32_t take_softmax(float *z, uint32_t width) {
    uint32_t best = 0;
    double sum = 0;
    for (uint32_t i = 1; i < width; i++)
        best = z[i] > z[best] ? i : best;
    float largest = z[best];
    for (uint32_t i = 0; i < width; i++)
        sum += exp((double)z[i] - (double)largest);
    for (uint32_t i = 0; i < width; i++)
        z[i] = (float)(exp((double)z[i] - (double)largest) / sum);
    return best;
}

/* What the logits VALUES [count, width] say, in place, and CLASSES [count]. */
static void take_logits(const struct model_outputs *outputs, float *values,
                        uint32_t count, int64_t *classes) {
    size_t all = (size_t)count * outputs->width;
    if (outputs->loss == JOB_SOFTMAX_CROSS_ENTROPY) {
        for (uint32_t s = 0; s < count; s++)
            classes[s] = take_softmax(values + (size_t)s * outputs->width,
                                      outputs->width);
    } else if (outputs->loss == JOB_SIGMOID_CROSS_ENTROPY) {
        for (size_t i = 0; i < all; i++)
            values[i] = (float)(1 / (1 + exp(-(double)values[i])));
    }
}

static const char *values_name(const struct model_outputs *outputs) {
    return outputs->loss == JOB_MSE ? "prediction" : "probability";
}

static enum status begin_npz(struct prediction_file *file,
                             const struct model_outputs *outputs,
                             struct failure *why) {
    struct npz_array array = {.name = values_name(outputs),
                              .descr = "<f4",
                              .shape = {file->count, outputs->width},
                              .num_dims = outputs->width == 1 ? 1 : 2,
                              .bytes =
                                  file->count * outputs->width * sizeof(float)};
    return npz_begin(file->npz, &array, why);
}

static enum status append_classes(struct prediction_file *file,
                                  struct failure *why) {
    uint64_t bytes = file->count * sizeof *file->classes;
    struct npz_array array = {.name = "class",
                              .descr = "<i8",
                              .shape = {file->count},
                              .num_dims = 1,
                              .bytes = bytes};
    enum status status = npz_begin(file->npz, &array, why);
    return status ? status : npz_append(file->npz, file->classes, bytes, why);
}

/* "class,probability0,probability1,...", or the one name. */
static void put_header(const struct prediction_file *file, FILE *text,
                       const struct model_outputs *outputs) {
    const char *name = values_name(outputs);
    if (file->classifies)
        fputs("class,", text);
    for (uint32_t i = 0; outputs->width > 1 && i < outputs->width; i++)
        fprintf(text, "%s%s%u", i ? "," : "", name, i);
    fprintf(text, "%s\n", outputs->width > 1 ? "" : name);
}

static enum status append_lines(struct prediction_file *file,
                                const struct model_outputs *outputs,
                                const float *values, const int64_t *classes,
                                uint32_t count, struct failure *why) {
    char *bytes = NULL;
    size_t size = 0;
    FILE *text = open_memstream(&bytes, &size);
    if (!text)
        return prediction_no_memory(file, why);
    if (!file->taken)
        put_header(file, text, outputs);
    for (uint32_t s = 0; s < count; s++) {
        if (file->classifies)
            fprintf(text, "%" PRId64 ",", classes[s]);
        for (uint32_t i = 0; i < outputs->width; i++, values++)
            fprintf(text, "%s%.9g", i ? "," : "", (double)*values);
        fputc('\n', text);
    }
    bool whole = !ferror(text);
    whole = !fclose(text) && whole;
    enum status status = whole
                             ? atomic_file_write(&file->file, bytes, size, why)
                             : prediction_no_memory(file, why);
    free(bytes);
    return status;
}

/* Appends what VALUES and CLASSES say of COUNT samples. */
static enum status append_predictions(struct prediction_file *file,
                                      const struct model_outputs *outputs,
                                      const float *values,
                                      const int64_t *classes, uint32_t count,
                                      struct failure *why) {
    size_t bytes = (size_t)count * outputs->width * sizeof *values;
    if (!file->is_npz)
        return append_lines(file, outputs, values, classes, count, why);
    enum status status =
        file->taken ? STATUS_OK : begin_npz(file, outputs, why);
    memcpy(file->classes + file->taken, classes, count * sizeof *classes);
    return status ? status : npz_append(file->npz, values, bytes, why);
}

/* Writes the predictions of the next COUNT samples; CONTEXT is the file,
 * OUTPUTS's values are in host memory. */
static enum status prediction_file_take(void *context,
                                        const struct model_outputs *outputs,
                                        uint32_t count, struct failure *why) {
    struct prediction_file *file = context;
    size_t bytes = (size_t)count * outputs->width * sizeof(float);
    float *values = malloc(bytes);
    int64_t *classes = calloc(count, sizeof *classes);
    enum status status = STATUS_OK;
    file->classifies = outputs->loss == JOB_SOFTMAX_CROSS_ENTROPY;
    if (values && classes) {
        memcpy(values, outputs->values, bytes);
        take_logits(outputs, values, count, classes);
        status = append_predictions(file, outputs, values, classes, count, why);
    } else {
        status = prediction_no_memory(file, why);
    }
    file->taken += count;
    free(values);
    free(classes);
    return status;
}

/* Gives the file its name; STATUS_FAILED unless all samples were taken. */
static enum status prediction_file_commit(struct prediction_file *file,
                                          struct failure *why) {
    if (file->taken != file->count)
        return status_fail(why, FAILURE_DATA_MISMATCH,
                           "%s: found %" PRIu64 " samples, expected %" PRIu64
                           ": has a file changed?",
                           file->file.path, file->taken, file->count);
    enum status status = STATUS_OK;
    if (file->is_npz && file->classifies)
        status = append_classes(file, why);
    if (!status && file->is_npz)
        status = npz_finish(file->npz, why);
    if (status)
        return status;
    file->is_open = false;
    return atomic_file_commit(&file->file, why);
}

enum { MOST_SETS = OPTIONS_MAX_SETS + 10, ARRAY_NAME = 256, ATTEMPTS = 5 };

struct eval {
    const struct options *options;
    struct log log;
    bool has_file;                        /* the job is a file's */
    char dir[PATH_MAX], folder[PATH_MAX]; /* the directory, the checkpoint's */
    struct manifest manifest;
    struct job *job;
    bool is_image; /* predictions of images in another format than the job's */
    bool is_unscaled; /* such images are not divided by 255 */
};

/* Overrides of the job that are not on the command line. */
struct eval_sets {
    const char *items[MOST_SETS - OPTIONS_MAX_SETS];
    unsigned count;
    bool counts_rows; /* then, after --set: no record is left out */
};

/* Loads the job with SETS, then those of --set. */
static enum status eval_load_job(struct eval *eval,
                                 const struct eval_sets *sets,
                                 struct failure *why) {
    const struct options *options = eval->options;
    const char *all[MOST_SETS + 1];
    struct job_source source = {.models = &model_schemas,
                                .path = eval->has_file ? options->job : NULL,
                                .text = eval->manifest.job,
                                .overrides = all,
                                .num_overrides =
                                    sets->count + options->num_sets};
    memcpy(all, sets->items, sets->count * sizeof *all);
    memcpy(all + sets->count, options->sets, options->num_sets * sizeof *all);
    if (sets->counts_rows)
        all[source.num_overrides++] = "data.bad_lines=stop";
    job_free(&eval->job);
    return job_load(&eval->job, &source, NULL, why); /* no run: no advice */
}

/* Removes the keys that describe files of another format than FORMAT. */
static void drop_format(struct eval_sets *sets, const char *format) {
    sets->items[sets->count++] = "data.columns=null";
    sets->items[sets->count++] = "data.delimiter=null";
    sets->items[sets->count++] = "data.trim=null";
    sets->items[sets->count++] = "data.missing=null";
    sets->items[sets->count++] = "data.decimal=null";
    sets->items[sets->count++] =
        strcmp(format, "csv") != 0 ? "data.header=null" : "data.header=true";
    if (strcmp(format, "libsvm") != 0)
        return;
    sets->items[sets->count++] = "data.label=null";
    sets->items[sets->count++] = "data.weight=null";
}

/* Loads the checkpoint's job. Its text also has the keys that were left out,
 * with their defaults. */
static enum status load_own_job(struct eval *eval, struct failure *why) {
    static const char key[] = "data.format=";
    struct eval_sets sets = {.count = 0};
    const char *own = "", *given = NULL;
    json_t *job = json_loads(eval->manifest.job, 0, NULL);
    for (unsigned i = 0; i < eval->options->num_sets; i++)
        if (!strncmp(eval->options->sets[i], key, strlen(key)))
            given = eval->options->sets[i] + strlen(key);
    json_unpack(job, "{s:{s:s}}", "data", "format", &own);
    if (given && strcmp(given, own) != 0)
        drop_format(&sets, given);
    json_decref(job);
    return eval_load_job(eval, &sets, why);
}

static enum status find_directory(struct eval *eval,
                                  struct ckpt_command_options *checkpoint,
                                  struct failure *why) {
    const char *name = eval->options->job;
    const struct eval_sets none = {.count = 0};
    struct stat about;
    enum status status = STATUS_OK;
    if (stat(name, &about))
        return status_errno(why, FAILURE_JOB_UNREADABLE, errno,
                            "cannot open %s", name);
    eval->has_file = !S_ISDIR(about.st_mode);
    if (eval->has_file)
        status = eval_load_job(eval, &none, why);
    if (status)
        return status;
    if (eval->has_file && !eval->job->checkpoint.dir)
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "%s: checkpoint.dir: not given, so there is no "
                           "checkpoint; give the directory of one in place of "
                           "the job",
                           name);
    snprintf(eval->dir, sizeof eval->dir, "%s",
             eval->has_file ? eval->job->checkpoint.dir : name);
    uint64_t step;
    if (eval->has_file || !checkpoint_split_folder(eval->dir, &step))
        return STATUS_OK;
    if (checkpoint->has_step && checkpoint->step != step)
        return status_fail(why, FAILURE_FLAG_CONFLICT,
                           "%s is the checkpoint of another step than --step "
                           "%" PRIu64,
                           name, checkpoint->step);
    checkpoint->has_step = true;
    checkpoint->step = step;
    return STATUS_OK;
}

/* Finds checkpoint and job. */
static enum status eval_open(struct eval *eval, const struct options *options,
                             const char *name, struct failure *why) {
    struct ckpt_command_options checkpoint = {.dir = eval->dir,
                                              .has_step = options->given.step,
                                              .step = options->step};
    eval->options = options;
    log_open(&eval->log, name, -1);
    enum status status = find_directory(eval, &checkpoint, why);
    if (!status)
        status =
            ckpt_command_find(&checkpoint, &eval->manifest, &eval->log, why);
    if (status)
        return eval->has_file ? status_context(why, "checkpoint.dir") : status;
    checkpoint_folder(eval->dir, eval->manifest.step, eval->folder,
                      sizeof eval->folder);
    if (eval->has_file)
        return STATUS_OK;
    if (!eval->manifest.job)
        return status_fail(why, FAILURE_CHECKPOINT_INCOMPATIBLE,
                           "%s has no job, so model and data are unknown: give "
                           "the job file in place of the checkpoint",
                           eval->folder);
    return load_own_job(eval, why);
}

static void eval_close(struct eval *eval) {
    manifest_clear(&eval->manifest);
    job_free(&eval->job);
}

/* The key of the model in which the job JOB differs from the one of the
 * checkpoint, TRAINED; NULL: there is none. */
static const char *differing_key(const json_t *job, const json_t *trained) {
    const json_t *model = json_object_get(trained, "model");
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(job, "model"), name, value) {
        const json_t *other = json_object_get(model, name);
        if (other && !json_equal(other, value))
            return name;
    }
    return NULL;
}

/* Tensors of one shape may be of another model. */
static enum status compare_jobs(const struct eval *eval, struct failure *why) {
    json_t *trained =
        eval->manifest.job ? json_loads(eval->manifest.job, 0, NULL) : NULL;
    json_t *job = json_loads(eval->job->text, 0, NULL);
    const char *key = differing_key(job, trained);
    enum status status =
        key ? status_fail(why, FAILURE_CHECKPOINT_INCOMPATIBLE,
                          "it was trained with other settings: model.%s "
                          "differs from that of the job",
                          key)
            : STATUS_OK;
    json_decref(trained);
    json_decref(job);
    return status;
}

/* Checks that the checkpoint fits MODEL and reads its weights. */
static enum status load_weights(const struct eval *eval,
                                struct checkpoint_model *model,
                                struct failure *why) {
    enum status status = compare_jobs(eval, why);
    if (!status)
        status =
            checkpoint_model_check(model, &eval->manifest, eval->folder, why);
    if (!status)
        status =
            checkpoint_model_read(model, &eval->manifest, eval->folder, why);
    return status ? status_context(why, "%s", eval->folder) : STATUS_OK;
}

static enum status eval_evaluate(struct eval *eval, struct failure *why) {
    const struct checkpoint_model_sink none = {NULL};
    struct checkpoint_model *model;
    struct evaluation result = {0};
    enum status status =
        checkpoint_model_open_test(&model, eval->job, &eval->log, why);
    if (!status)
        status = load_weights(eval, model, why);
    if (!status)
        status = checkpoint_model_evaluate(model, &eval->manifest, eval->folder,
                                           none, &result, why);
    if (!status)
        checkpoint_model_report(model, &eval->manifest, eval->folder,
                                &eval->log, eval->options->json, &result);
    binary_scores_clear(&result.scores);
    checkpoint_model_close(&model);
    return status;
}

static uint64_t newest_step(const char *dir) {
    uint64_t *steps = NULL, newest = 0;
    size_t count = 0;
    struct failure ignored;
    if (!checkpoint_list(dir, &steps, &count, &ignored) && count)
        newest = steps[count - 1];
    free(steps);
    return newest;
}

/* Opens the checkpoint and does USE. A run may have removed what was newest:
 * then again, with what is newest now. */
static enum status eval_run(const struct options *options, const char *name,
                            enum status (*use)(struct eval *eval,
                                               struct failure *why),
                            struct failure *why) {
    uint64_t newest = 0, before;
    enum status status;
    int attempts = 0;
    do {
        struct eval eval = {NULL};
        *why = (struct failure){0};
        status = eval_open(&eval, options, name, why);
        if (!status)
            status = use(&eval, why);
        before = newest;
        newest = newest_step(eval.dir);
        eval_close(&eval);
    } while (status == STATUS_FAILED && !options->given.step &&
             newest != before && ++attempts < ATTEMPTS);
    return status;
}

enum status eval_command(const struct options *options, struct failure *why) {
    return eval_run(options, "eval", eval_evaluate, why);
}

/* The data.format of files with PATH's ending, of some perhaps before .gz or
 * .zst; NULL: it says none. */
static const char *format_by_ending(const char *path) {
#define ENDINGS(NAME, word, ...) {word, {__VA_ARGS__}},
    static const struct {
        const char *word, *endings[2];
    } formats[] = {JOB_DATA_FORMAT_ROWS(ENDINGS, ENDINGS)};
    size_t length = strlen(path);
    if (length > 3 && !strcmp(path + length - 3, ".gz"))
        length -= 3;
    else if (length > 4 && !strcmp(path + length - 4, ".zst"))
        length -= 4;
    for (size_t i = 0; i < 2 * (sizeof formats / sizeof *formats); i++) {
        const char *ending = formats[i / 2].endings[i % 2];
        size_t size = ending ? strlen(ending) : length;
        if (length > size && !strncmp(path + length - size, ending, size))
            return formats[i / 2].word;
    }
    return NULL;
}

/* The names of a record: the first, and whether x is among them. */
struct eval_names {
    char first[ARRAY_NAME];
    unsigned count;
    bool has_x;
};

static void see_array_name(void *context, const struct record_text *name) {
    struct eval_names *names = context;
    if (!names->count++)
        snprintf(names->first, sizeof names->first, "%.*s", (int)name->size,
                 name->bytes);
    names->has_x |= name->size == 1 && *name->bytes == 'x';
}

/* Writes the name of the array with images in PATH: the only one, or x. */
static enum status name_of_images(const struct record_reader *reader,
                                  const char *path, char name[ARRAY_NAME],
                                  struct failure *why) {
    struct eval_names names = {{0}, 0, false};
    struct record_file *file;
    struct record record = {NULL};
    glob_t found = {0};
    bool any = !glob(path, 0, NULL, &found) && found.gl_pathc;
    const char *first = any ? found.gl_pathv[0] : path;
    const struct record_cut cuts[] = {
        {.names = (const char *const[]){"x"}, .num_names = 1}, {.names = NULL}};
    enum status status = reader->open(&file, first, &cuts[0], why);
    if (status && why->code == FAILURE_DATA_MISMATCH)
        status = reader->open(&file, first, &cuts[1], why);
    if (!status)
        status = reader->next(file, &record, why);
    if (!status && record.bytes && reader->names)
        reader->names(file, see_array_name, &names);
    else if (!status && record.bytes)
        status = example_format_names(&record, see_array_name, &names, why);
    reader->close(&file);
    globfree(&found);
    if (!status && !record.bytes)
        status = status_fail(why, FAILURE_DATA_TOO_SMALL, "%s: has no records",
                             path);
    if (!status && names.count != 1 && !names.has_x)
        status = status_fail(why, FAILURE_DATA_MISMATCH,
                             "%s: found %u arrays, expected one, or one that "
                             "is named x, with the images",
                             path, names.count);
    snprintf(name, ARRAY_NAME, "%s", names.count == 1 ? names.first : "x");
    return status ? status_context(why, "INPUT") : STATUS_OK;
}

/* The only feature of a model of images, "features={...}", if their format
 * names arrays; the caller frees *OUT, which else stays NULL. */
static enum status describe_images(const struct eval *eval, const char *format,
                                   char **out, struct failure *why) {
    const struct record_reader *reader =
        !strcmp(format, "npz")           ? &npz_reader
        : !strcmp(format, "npy")         ? &npy_reader
        : !strcmp(format, "safetensors") ? &safetensors_reader
        : !strcmp(format, "tfrecord")    ? &tfrecord_reader
                                         : NULL;
    const struct job_model *model = &eval->job->model;
    struct batch_spec spec = {0};
    char name[ARRAY_NAME];
    if (!reader)
        return STATUS_OK;
    enum status status =
        name_of_images(reader, eval->options->input, name, why);
    if (status)
        return status;
    model_find(model)->inputs(model, NULL, &spec);
    json_t *features = json_pack("{s:{s:s, s:I}}", name, "type", "numeric",
                                 "shape", (json_int_t)spec.columns[0].width);
    char *text = json_dumps(features, JSON_COMPACT);
    size_t size = text ? strlen(text) + sizeof "features=" : 0;
    *out = malloc(size);
    json_decref(features);
    if (text && *out)
        snprintf(*out, size, "features=%s", text);
    else
        status = status_fail(why, FAILURE_NO_MEMORY, "no memory for a job");
    free(text);
    return status;
}

/* Was the model trained with images of another type than unsigned bytes, which
 * are not scaled? */
static bool trained_unscaled(const struct eval *eval) {
    enum idx_file_type type;
    struct failure why;
    if (!idx_file_peek_type(&type, eval->job->data.train.paths[0], &why))
        return type != IDX_FILE_UBYTE;
    log_warning(&eval->log, "images_taken_for_bytes",
                "INPUT: its numbers are divided by 255, as if the model was "
                "trained with bytes: data.train cannot be read: %s",
                why.text);
    return false;
}

/* Changes the job's data to the format of the samples. */
static enum status use_format(struct eval *eval, struct failure *why) {
    const char *own = job_data_format_name(eval->job->data.format);
    const char *format = format_by_ending(eval->options->input);
    char set[64], *features = NULL;
    struct eval_sets sets = {.count = 0};
    enum status status = STATUS_OK;
    bool other = format && strcmp(format, own) != 0;
    if (eval->job->model.type == JOB_EXTERNAL)
        return STATUS_OK; /* which checkpoint_model_open refuses */
    eval->is_image = other && eval->job->data.format == JOB_IDX;
    eval->is_unscaled = eval->is_image && trained_unscaled(eval);
    if (eval->is_image)
        status = describe_images(eval, format, &features, why);
    if (other) {
        snprintf(set, sizeof set, "data.format=%s", format);
        sets.items[sets.count++] = set;
        drop_format(&sets, format);
    }
    sets.counts_rows = other || eval->job->data.format != JOB_IDX;
    if (features)
        sets.items[sets.count++] = features;
    if (!status && (sets.count || sets.counts_rows))
        status = eval_load_job(eval, &sets, why);
    free(features);
    return status && other
               ? status_context(why, "INPUT, of format %s by its ending",
                                format)
               : status;
}

static void report_predictions(const struct eval *eval, uint64_t count) {
    const struct options *options = eval->options;
    log_info(&eval->log, "predicted",
             "step %" PRIu64 ": %" PRIu64 " sample%s, in %s",
             eval->manifest.step, count, log_plural(count), options->out);
    if (!options->json)
        return;
    json_t *object =
        json_pack("{s:I, s:I, s:s}", "step", (json_int_t)eval->manifest.step,
                  "samples", (json_int_t)count, "path", options->out);
    json_dumpf(object, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(object);
}

/* Predicts the samples of MODEL's data. */
static enum status write_predictions(const struct eval *eval,
                                     struct checkpoint_model *model,
                                     struct failure *why) {
    uint64_t count = checkpoint_model_count(model);
    struct checkpoint_model_sink sink = {.take = prediction_file_take};
    struct prediction_file *file = NULL;
    struct evaluation result = {0};
    enum status status = load_weights(eval, model, why);
    if (!status)
        status = prediction_file_open(&file, eval->options->out, count, why);
    sink.context = file;
    if (!status)
        status = checkpoint_model_evaluate(model, &eval->manifest, eval->folder,
                                           sink, &result, why);
    if (!status)
        status = prediction_file_commit(file, why);
    if (!status)
        report_predictions(eval, count);
    prediction_file_close(&file);
    binary_scores_clear(&result.scores);
    return status;
}

/* OUTPUT's ending, and that it is not INPUT. */
static enum status check_output(const struct options *options,
                                struct failure *why) {
    struct stat input, output;
    enum status status = prediction_file_check(options->out, why);
    if (status || stat(options->input, &input) || stat(options->out, &output))
        return status;
    return input.st_dev == output.st_dev && input.st_ino == output.st_ino
               ? status_fail(why, FAILURE_USAGE,
                             "%s is INPUT, too: give OUTPUT another name",
                             options->out)
               : STATUS_OK;
}

static enum status eval_predict(struct eval *eval, struct failure *why) {
    struct checkpoint_model *model = NULL;
    struct job_files files = {.paths = {(char *)eval->options->input}};
    struct dataset_options data = {.files = &files,
                                   .key = "INPUT",
                                   .num_ranks = 1,
                                   .count = true,
                                   .unlabelled = true,
                                   .log = &eval->log};
    enum status status = use_format(eval, why);
    data.job = eval->job;
    data.pixels = eval->is_image;
    data.unscaled = eval->is_unscaled;
    if (!status)
        status = checkpoint_model_open(&model, &data, why);
    if (!status)
        status = write_predictions(eval, model, why);
    checkpoint_model_close(&model);
    return status;
}

enum status eval_command_predict(const struct options *options,
                                 struct failure *why) {
    enum status status = check_output(options, why);
    return status ? status : eval_run(options, "predict", eval_predict, why);
}
