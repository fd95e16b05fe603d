/* SPDX-License-Identifier: Apache-2.0 */
/* Images and labels in memory, from gzip-compressed or plain IDX files
 * (LeCun's format, as in MNIST): bytes 0 0 8 and the number of dimensions, a
 * big-endian 32-bit size a dimension, then the bytes. */
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

/* LOG is warned of bytes behind a gzip stream, which gzip leaves out, too.
 * Reads both files whole: images of 2 to 4 dimensions, the first counts them;
 * labels of one. STATUS_CONFIG names file, place (a byte of the uncompressed
 * content), found and expected for an unreadable, truncated, overlong, damaged
 * or contradictory file. *OUT is the caller's. */
enum status dataset_load(struct dataset **out, const char *images_path,
                         const char *labels_path, const struct log *log,
                         struct failure *why) MUST_CHECK;

/* Opens both files and reads nothing: what dataset_load would say of files that
 * are not there. */
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
