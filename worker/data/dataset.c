/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/dataset.h"

#include "worker/data/data_file.h"
#include "worker/data/idx_file.h"

#include <inttypes.h>
#include <stdlib.h>

static uint32_t dataset_largest(const uint8_t *labels, uint32_t count) {
    uint32_t best = 0;
    for (uint32_t i = 0; i < count; i++)
        best = labels[i] > best ? labels[i] : best;
    return best;
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
    if (images->dims[0] != labels->dims[0])
        return status_fail(why, FAILURE_DATA_MISMATCH,
                           "%s: byte 4: found %u labels, expected %u, as many "
                           "as there are images in %s",
                           labels_path, labels->dims[0], images->dims[0],
                           images_path);
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

enum status dataset_load(struct dataset **out, const char *images_path,
                         const char *labels_path, const struct log *log,
                         struct failure *why) {
    struct idx_file images = {0}, labels = {0};
    struct dataset *dataset = NULL;
    enum status status = idx_file_read(&images, images_path, "images", 2,
                                       IDX_FILE_MAX_DIMS, why);
    if (!status)
        status = idx_file_read(&labels, labels_path, "labels", 1, 1, why);
    if (!status)
        status =
            check_agreement(&images, images_path, &labels, labels_path, why);
    if (status)
        goto fail;
    warn_trailing(&images, images_path, log);
    warn_trailing(&labels, labels_path, log);
    dataset = malloc(sizeof *dataset);
    if (!dataset) {
        status =
            status_fail(why, FAILURE_NO_MEMORY, "no memory for a data set");
        goto fail;
    }
    *dataset = (struct dataset){
        .count = images.dims[0],
        .features = (uint32_t)(images.bytes / images.dims[0]),
        .num_classes = dataset_largest(labels.data, labels.dims[0]) + 1,
        .images = images.data,
        .labels = labels.data,
    };
    *out = dataset;
    return STATUS_OK;
fail:
    free(images.data);
    free(labels.data);
    return status;
}

enum status dataset_check_files(const char *images_path,
                                const char *labels_path, struct failure *why) {
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

void dataset_free(struct dataset **dataset) {
    if (!dataset || !*dataset)
        return;
    free((*dataset)->images);
    free((*dataset)->labels);
    free(*dataset);
    *dataset = NULL;
}

uint32_t dataset_sample(const struct dataset *dataset, uint32_t index,
                        float *pixels) {
    size_t features = dataset->features;
    const uint8_t *image = dataset->images + index * features;
    for (size_t i = 0; i < features; i++)
        pixels[i] = (float)image[i] / 255.0f;
    return dataset->labels[index];
}
