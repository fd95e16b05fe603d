/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/idx_dataset.h"

#include "core/base/free_memory.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "core/tensor/philox.h"
#include "proto/plan/run_schedule.h"
#include "worker/data/data_file.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* An epoch's order is a function of seed and epoch alone, so that a trainer
 * that resumes or joins draws the same order as the others without
 * communication. */

/* Philox streams of epochs' orders are 2^32 + epoch; those below 2^32 are for
 * the parameters' initial weights. */
#define FIRST_STREAM (UINT64_C(1) << 32)
#define NO_EPOCH UINT64_MAX

struct sampler {
    struct sampler_options options;
    uint64_t share; /* samples of this rank in an epoch */
    uint64_t batches_per_epoch;
    uint64_t epoch;  /* the epoch that `order` holds */
    uint32_t *order; /* [num_samples]; NULL: file order */
};

static enum status sampler_check(const struct sampler_options *options,
                                 struct failure *why) {
    if (options->num_samples == 0 || options->micro_batch == 0)
        return status_fail(why, FAILURE_DATA_TOO_SMALL,
                           "found %u samples in batches of %u, expected at "
                           "least 1 of each",
                           options->num_samples, options->micro_batch);
    if (options->rank >= options->num_ranks)
        return status_fail(why, FAILURE_DATA_TOO_SMALL,
                           "found rank %u of %u trainers, expected less",
                           options->rank, options->num_ranks);
    return STATUS_OK;
}

static enum status count_batches(struct sampler *sampler, struct failure *why) {
    const struct sampler_options *options = &sampler->options;
    sampler->share =
        run_schedule_share_samples(options->num_samples, options->num_ranks);
    sampler->batches_per_epoch =
        run_schedule_share_batches(options->num_samples, options->num_ranks,
                                   options->micro_batch, options->drop_last);
    if (sampler->batches_per_epoch > 0)
        return STATUS_OK;
    return status_fail(why, FAILURE_DATA_TOO_SMALL,
                       "data.drop_last leaves no batch in an epoch: a "
                       "trainer's share is %" PRIu64 " samples (%u over %u "
                       "trainers), the micro batch %u; make "
                       "train_micro_batch_size_per_gpu %" PRIu64
                       " or less, or drop_last false",
                       sampler->share, options->num_samples, options->num_ranks,
                       options->micro_batch, sampler->share);
}

enum status sampler_open(struct sampler **out,
                         const struct sampler_options *options,
                         struct failure *why) {
    enum status status = sampler_check(options, why);
    if (status)
        return status;
    struct sampler *sampler = malloc(sizeof *sampler);
    if (!sampler)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a sampler");
    *sampler = (struct sampler){.options = *options, .epoch = NO_EPOCH};
    status = count_batches(sampler, why);
    if (status)
        goto fail;
    if (options->shuffle) {
        sampler->order = malloc(options->num_samples * sizeof(uint32_t));
        if (!sampler->order) {
            status = status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                                 "no memory for the order of %u samples",
                                 options->num_samples);
            goto fail;
        }
    }
    *out = sampler;
    return STATUS_OK;
fail:
    sampler_close(&sampler);
    return status;
}

void sampler_close(struct sampler **sampler) {
    if (!sampler || !*sampler)
        return;
    free((*sampler)->order);
    free(*sampler);
    *sampler = NULL;
}

/* Fisher-Yates from file order: equal on every rank. */
static void shuffle(struct sampler *sampler, uint64_t epoch) {
    struct philox_sequence sequence;
    philox_sequence_open(&sequence, sampler->options.seed,
                         FIRST_STREAM + epoch);
    uint32_t *order = sampler->order;
    for (uint32_t i = 0; i < sampler->options.num_samples; i++) {
        uint32_t j = philox_below(&sequence, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    sampler->epoch = epoch;
}

uint32_t sampler_batch(struct sampler *sampler, uint64_t batch,
                       uint32_t *indices) {
    const struct sampler_options *options = &sampler->options;
    uint64_t epoch = batch / sampler->batches_per_epoch;
    if (sampler->order && sampler->epoch != epoch)
        shuffle(sampler, epoch);
    uint64_t first = batch % sampler->batches_per_epoch * options->micro_batch;
    uint64_t left = sampler->share - first;
    uint32_t count =
        left < options->micro_batch ? (uint32_t)left : options->micro_batch;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t place = options->rank + (first + i) * options->num_ranks;
        uint32_t wrapped = (uint32_t)(place % options->num_samples);
        indices[i] = sampler->order ? sampler->order[wrapped] : wrapped;
    }
    return count;
}

/* One more than the largest class; at least 1. Not all labels need be
 * classes. */
static uint32_t count_classes(const float *labels, uint64_t count) {
    float largest = 0;
    for (uint64_t i = 0; i < count; i++)
        if (labels[i] > largest && labels[i] < (float)UINT32_MAX &&
            labels[i] == floorf(labels[i]))
            largest = labels[i];
    return (uint32_t)largest + 1;
}

static enum status check_agreement(const struct idx_file *images,
                                   const char *images_path,
                                   const struct idx_file *labels,
                                   const char *labels_path,
                                   struct failure *why) {
    if (images->bytes / images->dims[0] > UINT32_MAX)
        return status_fail(why, FAILURE_DATA_DAMAGED,
                           "%s: byte 8: an image has 2^32 bytes or more",
                           images_path);
    if (labels_path && images->dims[0] != labels->dims[0])
        return status_fail(why, FAILURE_DATA_MISMATCH,
                           "%s: byte 4: found %u labels, expected %u, as many "
                           "as there are images in %s",
                           labels_path, labels->dims[0], images->dims[0],
                           images_path);
    return STATUS_OK;
}

/* The samples of IMAGES, whose data it takes, with LABELS; without data labels
 * are 0. */
static enum status make_dataset(struct dataset **out, struct idx_file *images,
                                const struct idx_file *labels,
                                struct failure *why) {
    uint32_t count = images->dims[0];
    struct idx_dataset *dataset = malloc(sizeof *dataset);
    float *numbers = calloc(count, sizeof *numbers);
    if (!dataset || !numbers) {
        free(dataset);
        free(numbers);
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a data set");
    }
    if (labels->data)
        idx_file_decode(labels->type, labels->data, count, numbers);
    *dataset = (struct idx_dataset){
        .dataset = {.table = &idx_dataset_table,
                    .count = count,
                    .features = (uint32_t)(images->bytes / count /
                                           idx_file_element(images->type)),
                    .pixels = images->type == IDX_FILE_UBYTE,
                    .labels = numbers,
                    .num_classes = count_classes(numbers, count)},
        .type = images->type,
        .images = images->data,
    };
    images->data = NULL;
    *out = &dataset->dataset;
    return STATUS_OK;
}

static void warn_trailing(const struct idx_file *file, const char *path,
                          const struct log *log) {
    if (file->trailing)
        log_warning(log, "trailing_data_ignored",
                    "%s: %" PRIu64 " bytes follow the end of the gzip data and "
                    "are left out: is it the right file?",
                    path, file->trailing);
}

/* Sets that were freed, oldest first. */
static struct {
    pthread_mutex_t mutex;
    struct idx_dataset *sets[2];
} kept = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void free_set(struct idx_dataset *dataset) {
    if (!dataset)
        return;
    free_memory_hold(-(int64_t)dataset->held);
    free(dataset->images);
    free(dataset->dataset.labels);
    free(dataset);
}

static int64_t nanoseconds(struct timespec time) {
    return time.tv_sec * TIME_S + time.tv_nsec;
}

/* Fills STAMP, all 0 where a change of the file might not show in it: it was
 * written to just now, and the kernel counts its time in steps. */
static void idx_stamp_of(struct idx_stamp *stamp, const char *path) {
    enum { STEPS_OF_TIME = 2 /* seconds, the longest of a file system's */ };
    struct timespec now;
    struct stat about;
    *stamp = (struct idx_stamp){0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (!path || stat(path, &about) ||
        nanoseconds(now) - nanoseconds(about.st_ctim) < STEPS_OF_TIME * TIME_S)
        return;
    *stamp = (struct idx_stamp){.device = about.st_dev,
                                .inode = about.st_ino,
                                .size = (uint64_t)about.st_size,
                                .modified = nanoseconds(about.st_mtim),
                                .changed = nanoseconds(about.st_ctim)};
}

/* The set of the files of STAMPS (NULL: not known); NULL: it is not kept, and
 * no other is any longer. */
static struct dataset *take_kept_set(const struct idx_stamp stamps[2]) {
    struct idx_dataset *found = NULL;
    pthread_mutex_lock(&kept.mutex);
    for (int i = 0; i < 2 && !found; i++)
        if (stamps && kept.sets[i] &&
            !memcmp(kept.sets[i]->stamps, stamps,
                    sizeof kept.sets[i]->stamps)) {
            found = kept.sets[i];
            kept.sets[i] = NULL;
        }
    for (int i = 0; i < 2 && !found; i++) {
        free_set(kept.sets[i]);
        kept.sets[i] = NULL;
    }
    pthread_mutex_unlock(&kept.mutex);
    return found ? &found->dataset : NULL;
}

static void keep_dataset(struct idx_dataset *dataset) {
    const struct dataset *set = &dataset->dataset;
    if (!dataset->held) {
        dataset->held =
            set->count * (set->features * idx_file_element(dataset->type) +
                          sizeof *set->labels);
        free_memory_hold((int64_t)dataset->held);
    }
    pthread_mutex_lock(&kept.mutex);
    free_set(kept.sets[0]);
    kept.sets[0] = kept.sets[1];
    kept.sets[1] = dataset;
    pthread_mutex_unlock(&kept.mutex);
}

enum status idx_dataset_load(struct dataset **out, const char *images_path,
                             const char *labels_path, const struct log *log,
                             struct failure *why) {
    struct idx_file images = {0}, labels = {0};
    struct idx_stamp stamps[2];
    idx_stamp_of(&stamps[0], images_path);
    idx_stamp_of(&stamps[1], labels_path);
    bool known = stamps[0].size && (!labels_path || stamps[1].size);
    *out = take_kept_set(known ? stamps : NULL);
    if (*out)
        return STATUS_OK;
    enum status status = idx_file_read(&images, images_path, "images", 2,
                                       IDX_FILE_MAX_DIMS, why);
    if (!status && labels_path)
        status = idx_file_read(&labels, labels_path, "labels", 1, 1, why);
    if (!status)
        status =
            check_agreement(&images, images_path, &labels, labels_path, why);
    if (!status) {
        warn_trailing(&images, images_path, log);
        warn_trailing(&labels, labels_path, log);
        status = make_dataset(out, &images, &labels, why);
    }
    if (!status && known)
        memcpy(((struct idx_dataset *)*out)->stamps, stamps, sizeof stamps);
    free(images.data);
    free(labels.data);
    return status;
}

enum status idx_dataset_check_files(const char *images_path,
                                    const char *labels_path,
                                    struct failure *why) {
    const char *const paths[] = {images_path, labels_path};
    const char *const contents[] = {"images", "labels"};
    enum status status = STATUS_OK;
    for (int i = 0; !status && i < 2; i++) {
        struct data_file *file;
        status = data_file_open(&file, paths[i], contents[i], why);
        data_file_close(&file);
    }
    return status;
}

float idx_dataset_sample(const struct idx_dataset *dataset, uint32_t index,
                         float *pixels) {
    size_t features = dataset->dataset.features;
    const uint8_t *image =
        dataset->images + index * features * idx_file_element(dataset->type);
    if (dataset->type != IDX_FILE_UBYTE)
        idx_file_decode(dataset->type, image, features, pixels);
    else
        for (size_t i = 0; i < features; i++)
            pixels[i] = (float)image[i] / 255.0f;
    return dataset->dataset.labels[index];
}

static void idx_dataset_free(struct dataset **out) {
    struct idx_dataset *dataset = (struct idx_dataset *)*out;
    *out = NULL;
    if (dataset->stamps[0].size)
        keep_dataset(dataset);
    else
        free_set(dataset);
}

/* A share by a sampler, or a range in order. */
struct batch_source {
    const struct idx_dataset *dataset;
    struct batch_column inputs, label;
    struct sampler *sampler; /* NULL: a range */
    uint32_t size;           /* of a batch */
    uint64_t next, end;      /* of a range */
};

static uint32_t idx_batches_size(struct batch_source *source, uint64_t number) {
    (void)number;
    return source->size; /* or fewer, but not none */
}

static enum status idx_batches_claim(struct batch_source *source,
                                     struct batch_claim *claim,
                                     struct failure *why) {
    enum status status =
        batch_claim_reserve(claim, source->size * sizeof(uint32_t), why);
    uint32_t *indices = claim->memory;
    if (status)
        return status;
    if (source->sampler) {
        claim->count = sampler_batch(source->sampler, claim->number, indices);
        return STATUS_OK;
    }
    for (claim->count = 0;
         claim->count < source->size && source->next < source->end;
         claim->count++)
        indices[claim->count] = (uint32_t)source->next++;
    return STATUS_OK;
}

static enum status idx_batches_fill(struct batch_source *source,
                                    struct batch_claim *claim,
                                    struct batch *batch, struct failure *why) {
    const struct idx_dataset *dataset = source->dataset;
    const uint32_t *indices = claim->memory;
    size_t features = dataset->dataset.features;
    enum status status = STATUS_OK;
    batch->count = claim->count;
    for (uint32_t i = 0; !status && i < claim->count; i++) {
        float label = dataset->dataset.labels[indices[i]];
        if (source->inputs.pixels)
            memcpy((uint8_t *)batch->columns[0] + i * features,
                   dataset->images + indices[i] * features, features);
        else
            idx_dataset_sample(dataset, indices[i],
                               (float *)batch->columns[0] + i * features);
        status =
            batch_put_label(&source->label, label, batch->columns[1], i, why);
    }
    return status;
}

static void idx_batches_close(struct batch_source **source) {
    if (!*source)
        return;
    sampler_close(&(*source)->sampler);
    free(*source);
    *source = NULL;
}

static enum status idx_batches_open(struct batch_source **out,
                                    const struct dataset *dataset,
                                    const struct batch_spec *spec,
                                    uint32_t size, struct failure *why) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory to read a data set");
    (*out)->dataset = (const struct idx_dataset *)dataset;
    (*out)->inputs = spec->columns[0];
    (*out)->label = spec->columns[batch_label_column(spec)];
    (*out)->size = size;
    return STATUS_OK;
}

static enum status idx_share(struct batch_source **out,
                             const struct dataset *dataset,
                             const struct batch_spec *spec,
                             const struct sampler_options *options,
                             uint64_t first, struct failure *why) {
    struct sampler_options own = *options;
    own.num_samples = (uint32_t)dataset->count;
    (void)first; /* the sampler finds any batch */
    enum status status =
        idx_batches_open(out, dataset, spec, options->micro_batch, why);
    if (!status)
        status = sampler_open(&(*out)->sampler, &own, why);
    if (status)
        idx_batches_close(out);
    return status;
}

static enum status idx_range(struct batch_source **out,
                             const struct dataset *dataset,
                             const struct batch_spec *spec, uint64_t first,
                             uint64_t end, uint32_t size, struct failure *why) {
    enum status status = idx_batches_open(out, dataset, spec, size, why);
    if (status)
        return status;
    (*out)->next = first;
    (*out)->end = end;
    return STATUS_OK;
}

static enum status idx_peek(const struct dataset *of,
                            const struct batch_spec *spec, uint64_t rows,
                            json_t *list, struct failure *why) {
    (void)spec; /* which the labels fit as they are */
    const struct idx_dataset *dataset = (const struct idx_dataset *)of;
    float *pixels = calloc(of->features + 1, sizeof *pixels);
    if (!pixels)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for an image");
    for (uint32_t row = 0; row < rows && row < of->count; row++) {
        json_t *values = json_array();
        float label = idx_dataset_sample(dataset, row, pixels);
        for (uint32_t i = 0; i < of->features; i++)
            json_array_append_new(values, json_real((double)pixels[i]));
        json_array_append_new(list, json_pack("{s:o, s:{s:o}, s:f}", "at",
                                              json_sprintf("image %u", row),
                                              "features", "pixels", values,
                                              "label", (double)label));
    }
    free(pixels);
    return STATUS_OK;
}

static const struct batch_source_table idx_batches = {
    .size = idx_batches_size,
    .claim = idx_batches_claim,
    .fill = idx_batches_fill,
    .close = idx_batches_close,
};

const struct dataset_table idx_dataset_table = {
    .batches = &idx_batches,
    .share = idx_share,
    .range = idx_range,
    .peek = idx_peek,
    .free = idx_dataset_free,
};
