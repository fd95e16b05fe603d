/* SPDX-License-Identifier: Apache-2.0 */
/* Images and labels in memory, from plain or compressed IDX files (LeCun's
 * format, as in MNIST): bytes 0 0 8 and the number of dimensions, one
 * big-endian 32-bit size per dimension, then the bytes. */
#ifndef CAPSTAN_DATASET_H
#define CAPSTAN_DATASET_H

#include "proto/base/log.h"
#include "proto/base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Images stay bytes, [count, features] row-major; labels [count]. */
struct dataset {
    uint32_t count, features, num_classes /* largest label + 1 */;
    uint8_t *images, *labels;
};

/* Reads both files completely: images of 2 to 4 dimensions, the first being the
 * count; labels of one. Warns in LOG of bytes after a gzip stream, which gzip
 * ignores too. STATUS_CONFIG for an unreadable, truncated, overlong, damaged or
 * inconsistent file; WHY names the file, the byte of the uncompressed content,
 * found and expected. The caller owns *OUT. */
enum status dataset_load(struct dataset **out, const char *images_path,
                         const char *labels_path, const struct log *log,
                         struct failure *why) MUST_CHECK;

/* Opens both files without reading them: fails as dataset_load would if they do
 * not exist. */
enum status dataset_check_files(const char *images_path,
                                const char *labels_path,
                                struct failure *why) MUST_CHECK;

/* Frees *DATASET (may be NULL) and clears it. */
void dataset_free(struct dataset **dataset);

/* Writes sample INDEX's pixels scaled to 0..1 (byte / 255, float32 division)
 * into PIXELS[features]; returns its label. */
uint32_t dataset_sample(const struct dataset *dataset, uint32_t index,
                        float *pixels);

#endif
