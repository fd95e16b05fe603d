/* SPDX-License-Identifier: Apache-2.0 */
/* An archive has its arrays one after the other, so that classes are kept until
 * all probabilities are written. */
#include "commands/prediction_file.h"

#include "core/store/atomic_file.h"
#include "core/store/npz.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

enum status prediction_file_check(const char *path, struct failure *why) {
    if (ends_in(path, ".npz") || ends_in(path, ".csv"))
        return STATUS_OK;
    return status_fail(why, FAILURE_USAGE,
                       "%s: the name of a file of predictions ends in .npz or "
                       ".csv",
                       path);
}

enum status prediction_file_open(struct prediction_file **out, const char *path,
                                 uint64_t count, struct failure *why) {
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

enum status prediction_file_take(void *context,
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

enum status prediction_file_commit(struct prediction_file *file,
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

void prediction_file_close(struct prediction_file **where) {
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
