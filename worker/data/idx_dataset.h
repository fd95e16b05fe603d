/* SPDX-License-Identifier: Apache-2.0 */
/* Images and labels in memory, from plain or compressed IDX files
 * (idx_file.h), as in MNIST. Batches have two columns, the pixels and the
 * label: a class or a number, as the model has it. */
#ifndef CAPSTAN_IDX_DATASET_H
#define CAPSTAN_IDX_DATASET_H

#include "core/base/log.h"
#include "core/base/status.h"
#include "worker/data/dataset.h"
#include "worker/data/idx_file.h"

#include <stddef.h>
#include <stdint.h>

/* What tells a file from others, and from itself before it was written to. */
struct idx_stamp {
    uint64_t device, inode, size;
    int64_t modified, changed; /* nanoseconds of the real time */
};

/* Images stay as in the file, [count, features] of TYPE, row-major. */
struct idx_dataset {
    struct dataset dataset;
    enum idx_file_type type;
    uint8_t *images;
    struct idx_stamp stamps[2]; /* of both files; all 0: not known */
    uint64_t held;              /* bytes, of free_memory.h; 0: not yet */
};

extern const struct dataset_table idx_dataset_table;

/* Reads both files completely: images of 2 to 4 dimensions, the first being the
 * count; labels of one (LABELS_PATH NULL: labels are 0). Warns in LOG of bytes
 * after a gzip stream, which gzip ignores too. STATUS_CONFIG for an unreadable,
 * truncated, overlong, damaged or inconsistent file; WHY names the file, the
 * byte of the uncompressed content, found and expected. The caller owns *OUT.
 *
 * The last two sets that were freed stay in memory, for a run that goes back,
 * or the next of a series. A load of the same two files, unchanged, takes such
 * a set and reads nothing; a load of other files frees both. By any thread. */
enum status idx_dataset_load(struct dataset **out, const char *images_path,
                             const char *labels_path, const struct log *log,
                             struct failure *why) MUST_CHECK;

/* Opens both files without reading them: fails as idx_dataset_load would if
 * they do not exist. */
enum status idx_dataset_check_files(const char *images_path,
                                    const char *labels_path,
                                    struct failure *why) MUST_CHECK;

/* Writes sample INDEX's pixels into PIXELS[features]: unsigned bytes scaled to
 * 0..1 (byte / 255, float32 division), other types as they are, in float32.
 * Returns its label. */
float idx_dataset_sample(const struct idx_dataset *dataset, uint32_t index,
                         float *pixels);

/* Selects the samples that a trainer reads, as torch's DistributedSampler: an
 * epoch's order is a permutation by (seed, epoch), or file order; rank r of n
 * takes r, r+n, r+2n, ..., wrapped so that all have ceil(N / n). */
struct sampler;

/* STATUS_CONFIG when a count is 0 or an epoch has no batch. */
enum status sampler_open(struct sampler **out,
                         const struct sampler_options *options,
                         struct failure *why) MUST_CHECK;

/* Frees *SAMPLER (may be NULL) and clears it. */
void sampler_close(struct sampler **sampler);

/* The samples of micro batch BATCH, counted from the start of the run (epoch =
 * BATCH / batches per epoch). INDICES has room for micro_batch; returns how
 * many, at least 1. The result does not depend on the order of calls. */
uint32_t sampler_batch(struct sampler *sampler, uint64_t batch,
                       uint32_t *indices);

#endif
